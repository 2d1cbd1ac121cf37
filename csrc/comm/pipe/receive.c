/* Receiving: one message of a rank at a time, by whichever thread has that rank's turn.

   epoll watches an inlet only while nobody has its turn, and once: the thread that it wakes takes the turn, reads, and
   lets epoll look again. A thread that waits for one rank takes the turn away from epoll. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/pipe/pipe_impl.h"

#define KEPT ((size_t)64 << 10)       /* freed blocks that a thread keeps which waits: it frees what others have made */
#define RIPENING_NS INT64_C(10000000) /* how often one looks whether news can be told */

typedef enum result { MORE, WHOLE, ENDED } result;

/* ---- connections ------------------------------------------------------------------------------------------------- */

/* Lets epoll look at an inlet whose turn is free, or no longer (armed false). */
static void watch(pd_pipes *p, int rank, bool armed) {
    struct epoll_event e = {.events = EPOLLONESHOT | (armed ? EPOLLIN : 0),
                            .data.u64 = pd_pipe_tag(PD_TAG_INLET, rank)};
    if (p->inlets[rank].fd >= 0) epoll_ctl(p->poll, EPOLL_CTL_MOD, p->inlets[rank].fd, &e);
}

static void forget_mail(pd_inlet *in) {
    pd_mail_drop(&in->mail);
    if (in->handle >= 0) close(in->handle);
    in->handle = -1;
}

/* Bytes that wait in the stage can be taken by any thread that receives: epoll does not know of them. */
static void count_backlog(pd_pipes *p, pd_inlet *in, bool there) {
    if (in->backlog == there) return;
    in->backlog = there;
    atomic_fetch_add(&p->backlogs, there ? 1 : -1);
}

static void expect_head(pd_inlet *in) {
    in->stage = PD_STAGE_HEAD;
    in->to = (char *)&in->head;
    in->left = sizeof in->head;
}

static void begin(pd_pipes *p, int rank, int fd) {
    pd_inlet *in = &p->inlets[rank];
    struct epoll_event e = {.events = EPOLLONESHOT, .data.u64 = pd_pipe_tag(PD_TAG_INLET, rank)};
    in->fd = fd;
    in->begin = in->end = 0;
    in->mail.from = -1;
    pd_fork_watch_add(&in->watch, fd);
    expect_head(in);
    epoll_ctl(p->poll, EPOLL_CTL_ADD, fd, &e);
}

static void hang_up(pd_inlet *in) {
    forget_mail(in);
    if (in->fd < 0) return;
    pd_fork_watch_drop(&in->watch);
    close(in->fd);
    in->fd = -1;
    in->begin = in->end = 0;
}

void pd_inlet_close(pd_inlet *in) {
    int next = atomic_exchange(&in->next, -1);
    hang_up(in);
    if (next >= 0) close(next);
    pd_free(in->stage_bytes);
    pd_free(in->table);
}

static bool take_turn(pd_inlet *in) { return !atomic_exchange(&in->taken, true); }

/* For what happens while another thread has the turn: that one will look again, or we take the turn after it. */
static bool take_or_leave_word(pd_inlet *in) {
    if (take_turn(in)) return true;
    atomic_store(&in->missed, true);
    return take_turn(in);
}

static void end_turn(pd_pipes *p, int rank) {
    pd_inlet *in = &p->inlets[rank];
    do {
        atomic_store(&in->missed, false);
        if (in->fd < 0) {
            int next = atomic_exchange(&in->next, -1);
            if (next >= 0) begin(p, rank, next);
        }
        count_backlog(p, in, in->end > in->begin);
        watch(p, rank, true);
        atomic_store(&in->taken, false);
    } while (atomic_load(&in->missed) && take_turn(in));
}

bool pd_inlet_settle(pd_pipes *p, int rank, int fd) {
    int none = -1;
    pd_inlet *in = &p->inlets[rank]; /* only doors come here, one at a time */
    if (!in->stage_bytes && pd_malloc(PD_PIPE_STAGE, "pipes", &in->stage_bytes)) return false;
    if (!atomic_compare_exchange_strong(&in->next, &none, fd)) return false;
    if (take_or_leave_word(in)) end_turn(p, rank);
    return true;
}

/* ---- one message ------------------------------------------------------------------------------------------------- */

/* Reads what is there into the stage, or a lot that is wanted now straight to where it belongs. A descriptor belongs to
   the next head of a slab. Returns as recv does. */
static ssize_t refill(pd_inlet *in) {
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    bool direct = in->left >= PD_PIPE_STAGE && in->stage != PD_STAGE_SKIP;
    struct iovec piece = {direct ? in->to : in->stage_bytes, direct ? in->left : PD_PIPE_STAGE};
    struct msghdr m = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.room,
                       .msg_controllen = CMSG_LEN(sizeof(int))}; /* the kernel closes further ones */
    ssize_t n = recvmsg(in->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0) return n;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        if (in->handle >= 0) close(in->handle);
        memcpy(&in->handle, CMSG_DATA(c), sizeof in->handle);
    }
    if (direct) {
        in->to += n;
        in->left -= (size_t)n;
    } else {
        in->begin = 0;
        in->end = (size_t)n;
    }
    return n;
}

static void take_staged(pd_inlet *in) {
    size_t n = in->end - in->begin < in->left ? in->end - in->begin : in->left;
    if (in->stage != PD_STAGE_SKIP) {
        memcpy(in->to, in->stage_bytes + in->begin, n);
        in->to += n;
    }
    in->begin += n;
    in->left -= n;
}

/* A slab that cannot be mapped, since this process has no descriptor or no memory for it, stays unknown. */
static pd_status learn_slab(int rank, pd_inlet *in) {
    pd_slab *s = NULL;
    uint64_t number = in->head.id;
    int fd = in->handle;
    pd_status status = PD_OK;
    in->handle = -1;
    if (number >= PD_SLABS) status = pd_fail(PD_E_DIST, "pipe: rank %d sent what is no slab", rank);
    if (!in->slabs) PD_THEN(pd_calloc(PD_SLABS * sizeof *in->slabs, "pipe", &in->slabs));
    if (fd < 0) PD_THEN(pd_fail(PD_E_MEMORY, "pipe: no descriptor for a slab of rank %d", rank));
    if (!status) PD_THEN(pd_slab_open(fd, in->head.bytes, rank, (uint32_t)number, &s));
    else if (fd >= 0) close(fd);
    if (status && status != PD_E_MEMORY) return PD_TRAIL(status);
    if (in->slabs && in->slabs[number]) pd_slab_release(in->slabs[number]);
    if (in->slabs) in->slabs[number] = s;
    return PD_OK;
}

/* The slab of an entry, if the parcel lies in it. */
static pd_slab *slab_of(pd_pipes *p, const pd_inlet *in, const pd_pipe_entry *e) {
    pd_slab *s = NULL;
    if (e->slab >= PD_SLABS) return NULL;
    if (e->way == PD_WAY_SLAB && in->slabs) s = in->slabs[e->slab];
    if (e->way == PD_WAY_BACK) {
        pthread_mutex_lock(&p->arena.lock);
        s = p->arena.slabs[e->slab];
        pthread_mutex_unlock(&p->arena.lock);
    }
    bool inside = s && e->offset >= PD_SLAB_HEAD && e->offset <= s->bytes && e->bytes <= s->bytes - e->offset;
    return inside ? s : NULL;
}

static pd_status place(pd_pipes *p, int rank, pd_inlet *in, int i) {
    const pd_pipe_entry *e = &in->table[i];
    pd_parcel *c = &in->mail.parcels[i];
    c->bytes = e->bytes;
    if (e->way == PD_WAY_SOCKET) {
        PD_TRY(pd_malloc_aligned(e->bytes, "rpc", &c->data));
        c->drop = pd_free_aligned;
        c->ctx = c->data;
        return PD_OK;
    }
    pd_slab *s = slab_of(p, in, e);
    pd_lease *l;
    if (e->way == PD_WAY_SLAB && e->slab < PD_SLABS && (!in->slabs || !in->slabs[e->slab]))
        return pd_fail(PD_E_MEMORY, "pipe: a tensor of rank %d in memory that could not be mapped", rank);
    if (!s) return pd_fail(PD_E_DIST, "pipe: rank %d sent a tensor outside of its memory", rank);
    PD_TRY(pd_lease_new(s, &l));
    c->data = s->base + e->offset;
    c->drop = pd_lease_drop;
    c->ctx = l;
    return PD_OK;
}

static pd_status take_place(pd_pipes *p, int rank, pd_inlet *in) {
    int n = in->head.parcels;
    if (n) PD_TRY(pd_calloc((size_t)n * sizeof *in->mail.parcels, "rpc", &in->mail.parcels));
    for (int i = 0; i < n; i++) {
        PD_TRY(place(p, rank, in, i));
        in->mail.nparcels = i + 1;
    }
    return pd_malloc(in->head.bytes, "rpc", &in->mail.body);
}

/* There is no place for the message: its bytes are read and dropped. */
static pd_status skip(pd_pipes *p, int rank, pd_inlet *in) {
    int placed = in->mail.nparcels;
    pd_mail_lose(&in->mail);
    in->stage = PD_STAGE_SKIP;
    in->left = in->head.bytes;
    for (int i = 0; i < in->head.parcels; i++) {
        const pd_pipe_entry *e = &in->table[i];
        pd_slab *s = i < placed || e->way == PD_WAY_SOCKET ? NULL : slab_of(p, in, e);
        if (s) atomic_fetch_sub_explicit(pd_slab_busy(s), 1, memory_order_release);
        if (e->way != PD_WAY_SOCKET) continue;
        if (e->bytes > SIZE_MAX / 2 - in->left)
            return pd_fail(PD_E_DIST, "pipe: rank %d sent what is no message", rank);
        in->left += e->bytes;
    }
    return PD_OK;
}

static pd_status start_body(pd_pipes *p, int rank, pd_inlet *in) {
    pd_status status = take_place(p, rank, in);
    if (status == PD_E_MEMORY) return skip(p, rank, in);
    PD_TRY(status);
    in->mail.bytes = in->head.bytes;
    in->stage = PD_STAGE_BODY;
    in->to = in->mail.body;
    in->left = in->head.bytes;
    return PD_OK;
}

/* What follows now that all bytes of a stage are there. */
static pd_status next_stage(pd_pipes *p, int rank, pd_inlet *in, bool *whole) {
    if (in->stage == PD_STAGE_HEAD) {
        if (in->head.magic != PD_PIPE_MAGIC || (in->head.kind != PD_PIPE_SLAB && in->head.bytes >= PD_PIPE_BODY) ||
            (in->head.kind >= PD_PIPE_NEWS && in->head.kind != PD_PIPE_SLAB))
            return pd_fail(PD_E_DIST, "pipe: rank %d sent what is no message", rank);
        if (in->head.kind == PD_PIPE_SLAB) {
            PD_TRY(learn_slab(rank, in));
            expect_head(in);
            return PD_OK;
        }
        in->mail = (pd_mail){.from = rank, .kind = in->head.kind, .id = in->head.id};
        if (!in->head.parcels) return start_body(p, rank, in);
        in->left = in->head.parcels * sizeof *in->table;
        PD_TRY(pd_grow(&in->table, &in->table_cap, in->head.parcels, sizeof *in->table, "rpc"));
        in->stage = PD_STAGE_TABLE;
        in->to = (char *)in->table;
        return PD_OK;
    }
    if (in->stage == PD_STAGE_TABLE) return start_body(p, rank, in);
    if (in->stage == PD_STAGE_SKIP) {
        *whole = true;
        return PD_OK;
    }
    if (in->stage == PD_STAGE_BODY) in->parcel = 0;
    else in->parcel++;
    in->stage = PD_STAGE_PARCEL;
    while (in->parcel < in->mail.nparcels && in->table[in->parcel].way != PD_WAY_SOCKET) in->parcel++;
    *whole = in->parcel == in->mail.nparcels;
    if (*whole) return PD_OK;
    in->to = in->mail.parcels[in->parcel].data;
    in->left = in->mail.parcels[in->parcel].bytes;
    return PD_OK;
}

/* Reads on until a message is whole. A peer that sends garbage loses its connection. */
static result advance(pd_pipes *p, int rank) {
    pd_inlet *in = &p->inlets[rank];
    bool whole = false;
    while (in->fd >= 0 && !whole) {
        if (in->left && in->begin < in->end) take_staged(in);
        if (in->left) {
            ssize_t n = pd_fault_now(PD_FAULT_RECV) ? (errno = ECONNRESET, -1) : refill(in);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) return MORE;
            if (n <= 0) return ENDED;
            if (in->begin < in->end) continue;
        }
        if (!in->left && next_stage(p, rank, in, &whole)) {
            pd_log(PD_LOG_WARN, "%s; its connection is closed", pd_error_get()->text);
            return ENDED;
        }
    }
    return whole ? WHOLE : ENDED;
}

static void deliver(pd_pipes *p, pd_inlet *in, pd_mail *out) {
    size_t bytes = sizeof in->head + in->mail.bytes;
    *out = in->mail;
    in->mail = (pd_mail){.from = -1};
    expect_head(in);
    for (int i = 0; i < out->nparcels; i++) bytes += out->parcels[i].bytes;
    atomic_fetch_add_explicit(&p->received, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->bytes_received, bytes, memory_order_relaxed);
}

/* Needs the turn. True: *out has a message, and the turn goes on. */
static bool read_on(pd_pipes *p, int rank, pd_mail *out) {
    pd_inlet *in = &p->inlets[rank];
    for (;;) {
        result r = advance(p, rank);
        if (r == WHOLE) {
            deliver(p, in, out);
            return true;
        }
        if (r == MORE) return false;
        hang_up(in);
        int next = atomic_exchange(&in->next, -1);
        if (next < 0) return false;
        begin(p, rank, next);
    }
}

/* ---- news -------------------------------------------------------------------------------------------------------- */

/* The news of a rank comes after all that it had sent. Needs p->lock. */
static bool is_ripe(pd_pipes *p, int rank) {
    const pd_fate *f = &p->fates[rank];
    pd_inlet *in = &p->inlets[rank];
    if (f->told || !pd_fate_holds(f) || !take_turn(in)) return false;
    bool ended = in->fd < 0 && atomic_load(&in->next) < 0;
    if (!ended) shutdown(in->fd, SHUT_RD); /* what has come can be read, then the connection ends */
    end_turn(p, rank);
    return ended;
}

static bool take_news(pd_pipes *p, pd_mail *out) {
    bool found = false;
    pthread_mutex_lock(&p->lock);
    for (int r = 0; r < p->world && !found; r++) {
        if (!is_ripe(p, r)) continue;
        const char *text = p->fates[r].why.text;
        *out = (pd_mail){.from = r, .kind = PD_PIPE_GONE, .id = p->fates[r].weight, .bytes = strlen(text)};
        if (pd_malloc(out->bytes + 1, "rpc", &out->body)) continue; /* another time */
        memcpy(out->body, text, out->bytes + 1);
        p->fates[r].told = found = true;
        atomic_fetch_sub(&p->news, 1);
    }
    pthread_mutex_unlock(&p->lock);
    if (!found) *out = (pd_mail){.from = -1};
    if (found && out->from != p->rank) pd_arena_forget(&p->arena, out->from);
    return found;
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* True: *out has a message. */
static bool serve(pd_pipes *p, uint64_t tag, pd_mail *out) {
    int index = (int)(uint32_t)tag;
    switch (tag >> 32) {
    case PD_TAG_NEAR: pd_door_let_in(p, p->near); return false;
    case PD_TAG_FAR: pd_door_let_in(p, p->far); return false;
    case PD_TAG_GUEST: pd_door_hear(p, index); return false;
    default:
        if (!take_or_leave_word(&p->inlets[index])) return false;
        if (read_on(p, index, out)) return true;
        end_turn(p, index);
        return false;
    }
}

void pd_pipes_nudge(pd_pipes *p) {
    if (atomic_load(&p->backlogs) > 0) pd_pipes_wake(p);
}

/* A message out of a stage. */
static bool take_backlog(pd_pipes *p, pd_mail *out) {
    for (int r = 0; r < p->world && atomic_load(&p->backlogs) > 0; r++) {
        pd_inlet *in = &p->inlets[r];
        if (!in->backlog || !take_turn(in)) continue;
        if (in->backlog && read_on(p, r, out)) return true;
        end_turn(p, r);
    }
    return false;
}

/* Whether the message needs nobody else. */
static bool take_it(pd_pipes *p, pd_mail *m) {
    if (!p->take || m->kind != p->taken_kind || m->lost) return false;
    end_turn(p, m->from);
    m->resumed = true;
    pd_pipes_nudge(p);
    return p->take(p->take_ctx, m);
}

static bool sleep_once(pd_pipes *p, int64_t ns, bool *woken, pd_mail *out) {
    struct epoll_event e;
    uint64_t count;
    if (epoll_wait(p->poll, &e, 1, (int)((ns + 999999) / 1000000)) <= 0) return false;
    if (e.data.u64 != pd_pipe_tag(PD_TAG_BELL, 0)) return serve(p, e.data.u64, out);
    *woken = read(p->bell, &count, sizeof count) > 0;
    return false;
}

pd_status pd_pipes_receive(pd_pipes *p, int64_t ns, pd_mail *out) {
    bool found = false, woken = false;
    *out = (pd_mail){.from = -1};
    pd_mem_trim(KEPT);
    if (!p->take && take_backlog(p, out)) return PD_OK;
    int64_t deadline = pd_os_now() + ns;
    void *token = pd_host_release();
    while (!found && !woken) {
        int64_t left = deadline - pd_os_now();
        bool news = atomic_load(&p->news) > 0;
        if (news && (found = take_news(p, out))) break;
        if (take_backlog(p, out) && (found = !take_it(p, out))) break;
        if (left < 0) break;
        if (news && left > RIPENING_NS) left = RIPENING_NS;
        found = sleep_once(p, left, &woken, out);
        if (found) found = !take_it(p, out);
    }
    pd_host_acquire(token);
    return PD_OK;
}

bool pd_pipes_hold(pd_pipes *p, int from) {
    pd_inlet *in = &p->inlets[from];
    if (!take_turn(in)) return false;
    if (in->fd < 0) {
        end_turn(p, from);
        return false;
    }
    watch(p, from, false);
    return true;
}

pd_status pd_pipes_await(pd_pipes *p, int from, int64_t ns, pd_mail *out) {
    pd_inlet *in = &p->inlets[from];
    *out = (pd_mail){.from = -1};
    if (read_on(p, from, out)) return PD_OK;
    if (ns < 0) {
        end_turn(p, from);
        return PD_OK;
    }
    void *token = pd_host_release();
    int64_t deadline = pd_os_now() + ns;
    bool found;
    while (!(found = read_on(p, from, out)) && in->fd >= 0) {
        int64_t left = deadline - pd_os_now();
        if (pd_pipes_check(p, from)) shutdown(in->fd, SHUT_RD);
        else if (left < 0) break;
        poll(&(struct pollfd){.fd = in->fd, .events = POLLIN}, 1, (int)((left + 999999) / 1000000));
    }
    if (!found) end_turn(p, from);
    pd_host_acquire(token);
    return PD_OK;
}

void pd_pipes_resume(pd_pipes *p, int from) {
    if (from != p->rank) end_turn(p, from);
}

