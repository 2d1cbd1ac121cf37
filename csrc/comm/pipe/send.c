/* Sending: large parcels are put into shared memory, the rest is gathered from where it lies. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/pipe/pipe_impl.h"

#define PIECES 64 /* pieces that one call of the kernel gets */
#define NEWS_NS INT64_C(2000000000) /* how long the news of a death may take */
#define QUICK ((size_t)32 << 10) /* so many bytes are copied with the host's lock */

typedef struct letter { /* a message under way */
    pd_pipes *p;
    int to;
    pd_outlet *out;
    pd_pipe_head head;
    pd_pipe_entry *table;
    struct iovec *pieces;
    int npieces;
    int64_t until;   /* as in pd_pipes_send */
    bool *held;      /* as in pd_pipes_send */
    bool now;        /* it leaves at once or not at all */
    bool refused;    /* not at all */
    void *token;     /* of the host's lock, once it was given up */
    bool released;
} letter;

/* From here on it may take long: a quick message keeps the host's lock, since getting it back may take longer. */
static void take_time(letter *l) {
    if (l->held && *l->held) pd_pipes_resume(l->p, l->to);
    if (l->held) *l->held = false;
    if (!l->released) l->token = pd_host_release();
    l->released = true;
}

static void hang_up(pd_outlet *out) {
    pd_fork_watch_drop(&out->watch);
    close(out->fd);
    out->fd = -1;
}

static pd_status refuse(letter *l) {
    l->refused = true;
    return PD_E_TIMEOUT;
}

static pd_status connect_once(letter *l) {
    if (l->out->fd >= 0) return PD_OK;
    if (l->now) return refuse(l);
    take_time(l);
    PD_TRY(pd_door_dial(l->p, l->to, l->until, &l->out->fd));
    pd_fork_watch_add(&l->out->watch, l->out->fd);
    for (int i = 0; i < PD_SLABS; i++) /* news of them may be lost with the last one */
        atomic_store_explicit(&l->p->arena.known[l->to * PD_SLABS + i], 0, memory_order_relaxed);
    return PD_OK;
}

static pd_status late(const letter *l) {
    return pd_fail(PD_E_TIMEOUT, "rpc: rank %d has not taken a message of rank %d in time (expected it to read)", l->to,
                   l->p->rank);
}

/* Waits until the socket takes more. */
static pd_status wait_for_room(letter *l) {
    take_time(l);
    if (pd_os_now() > l->until) return late(l);
    poll(&(struct pollfd){.fd = l->out->fd, .events = POLLOUT}, 1, PD_SLICE_NS / 1000000);
    PD_TRY(pd_pipes_check(l->p, l->to));
    return pd_hooks_interrupt(l->p->link->hooks);
}

/* The connection has ended. If the peer is dead, the link tells within a moment. */
static pd_status broken(letter *l) {
    take_time(l);
    for (int64_t end = pd_os_now() + NEWS_NS; pd_os_now() < end; pd_os_sleep(1000000))
        PD_TRY(pd_pipes_check(l->p, l->to));
    return pd_fail(PD_E_DIST, "rpc: rank %d lost its connection to rank %d, which is alive (expected it to stay open)",
                   l->p->rank, l->to);
}

/* Sends all pieces, which are used up. handle: a descriptor that goes with the first byte, or -1. After a failure in
   the middle of a message the connection is of no use: the next message gets another one. */
static pd_status push(letter *l, struct iovec *pieces, int n, int handle) {
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control = {0};
    pd_status status = PD_OK;
    bool begun = false;
    while (n && !status) {
        struct msghdr m = {.msg_iov = pieces, .msg_iovlen = (size_t)(n < PIECES ? n : PIECES)};
        if (handle >= 0) {
            m.msg_control = control.room;
            m.msg_controllen = sizeof control.room;
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
            memcpy(CMSG_DATA(c), &handle, sizeof handle);
        }
        ssize_t sent = pd_fault_now(PD_FAULT_SEND) ? (errno = ECONNRESET, -1)
                                                   : sendmsg(l->out->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
            bool full = errno == EAGAIN;
            if (full && l->now && !begun) return refuse(l);
            status = full ? wait_for_room(l) : broken(l);
            continue;
        }
        handle = -1;
        begun = true;
        while (n && (size_t)sent >= pieces->iov_len) {
            sent -= (ssize_t)pieces->iov_len;
            pieces++;
            n--;
        }
        if (n) *pieces = (struct iovec){(char *)pieces->iov_base + sent, pieces->iov_len - (size_t)sent};
    }
    if (status) hang_up(l->out);
    return PD_TRAIL(status);
}

/* Tells the receiver of a slab that it does not know yet. */
static pd_status introduce(letter *l, const pd_slab *s) {
    atomic_uchar *known = &l->p->arena.known[(size_t)l->to * PD_SLABS + s->number];
    pd_pipe_head head = {.magic = PD_PIPE_MAGIC, .kind = PD_PIPE_SLAB, .id = s->number, .bytes = s->bytes};
    if (atomic_load_explicit(known, memory_order_relaxed)) return PD_OK;
    PD_TRY(push(l, &(struct iovec){&head, sizeof head}, 1, s->fd));
    atomic_store_explicit(known, 1, memory_order_relaxed);
    return PD_OK;
}

static pd_lease *lease_back(const pd_parcel *c, int to) {
    pd_lease *l = c->drop == pd_lease_drop ? c->ctx : NULL;
    return l && c->given && l->slab->owner == to ? l : NULL;
}

/* Decides how each parcel travels, and copies into *slab what goes there. */
static void route(letter *l, pd_parcel *parcels, int n, pd_slab **slab) {
    bool near = l->p->doors[l->to].host == l->p->doors[l->p->rank].host;
    size_t bytes = 0, at = PD_SLAB_HEAD;
    int shared = 0;
    for (int i = 0; i < n; i++) {
        const pd_lease *lease = lease_back(&parcels[i], l->to);
        l->table[i] = (pd_pipe_entry){.bytes = parcels[i].bytes};
        if (lease) {
            l->table[i].way = PD_WAY_BACK;
            l->table[i].slab = lease->slab->number;
            l->table[i].offset = (uint64_t)((char *)parcels[i].data - lease->slab->base);
        } else if (near && parcels[i].bytes >= PD_PIPE_INLINE) {
            l->table[i].way = PD_WAY_SLAB;
            bytes += pd_whole_lines(parcels[i].bytes);
            shared++;
        }
    }
    if (bytes > QUICK) take_time(l);
    *slab = shared ? pd_arena_take(&l->p->arena, bytes, l->to, shared) : NULL;
    for (int i = 0; i < n; i++) {
        pd_pipe_entry *e = &l->table[i];
        if (e->way != PD_WAY_SLAB) continue;
        if (!*slab) {
            e->way = PD_WAY_SOCKET;
            continue;
        }
        e->slab = (*slab)->number;
        e->offset = at;
        memcpy((*slab)->base + at, parcels[i].data, parcels[i].bytes);
        at += pd_whole_lines(parcels[i].bytes);
        atomic_fetch_add_explicit(&l->p->copied, parcels[i].bytes, memory_order_relaxed);
    }
}

static void gather(letter *l, const void *body, const pd_parcel *parcels, int n) {
    l->pieces[l->npieces++] = (struct iovec){&l->head, sizeof l->head};
    if (n) l->pieces[l->npieces++] = (struct iovec){l->table, (size_t)n * sizeof *l->table};
    if (l->head.bytes) l->pieces[l->npieces++] = (struct iovec){(void *)(uintptr_t)body, l->head.bytes};
    for (int i = 0; i < n; i++)
        if (l->table[i].way == PD_WAY_SOCKET && parcels[i].bytes)
            l->pieces[l->npieces++] = (struct iovec){parcels[i].data, parcels[i].bytes};
}

static void settle(letter *l, pd_parcel *parcels, int n, size_t body) {
    size_t bytes = sizeof l->head + body;
    for (int i = 0; i < n; i++) {
        bytes += parcels[i].bytes;
        pd_lease *lease = lease_back(&parcels[i], l->to);
        if (!lease) continue;
        lease->moved = true;
        atomic_fetch_add_explicit(&l->p->moved, parcels[i].bytes, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&l->p->sent, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&l->p->bytes_sent, bytes, memory_order_relaxed);
}

/* The message with this slab does not leave. */
static void give_up(pd_slab *slab) {
    if (!slab) return;
    atomic_store(pd_slab_busy(slab), 0);
    pd_slab_release(slab);
}

static pd_status lock_in_time(letter *l) {
    while (!pd_os_lock(&l->out->lock, PD_SLICE_NS)) {
        if (pd_os_now() > l->until) return late(l);
        PD_TRY(pd_pipes_check(l->p, l->to));
        PD_TRY(pd_hooks_interrupt(l->p->link->hooks));
    }
    return PD_OK;
}

static pd_status post(letter *l, const void *body, size_t bytes, pd_parcel *parcels, int n) {
    pd_slab *slab = NULL;
    pd_status status = PD_OK;
    route(l, parcels, n, &slab);
    gather(l, body, parcels, n);
    if (pthread_mutex_trylock(&l->out->lock)) {
        if (l->now) {
            give_up(slab);
            return refuse(l);
        }
        take_time(l);
        status = lock_in_time(l);
    }
    if (!status) {
        status = connect_once(l);
        if (slab) PD_THEN(introduce(l, slab));
        PD_THEN(push(l, l->pieces, l->npieces, -1));
        pthread_mutex_unlock(&l->out->lock);
    }
    if (status) {
        give_up(slab);
        return status;
    }
    settle(l, parcels, n, bytes);
    if (slab) pd_slab_release(slab);
    return PD_OK;
}

static pd_status deliver(letter *l, uint32_t kind, uint64_t id, const void *body, size_t bytes, pd_parcel *parcels,
                         int n) {
    pd_status status = PD_OK;
    l->out = &l->p->outlets[l->to];
    l->head = (pd_pipe_head){.magic = PD_PIPE_MAGIC, .kind = (uint16_t)kind, .parcels = (uint16_t)n, .id = id,
                             .bytes = bytes};
    if (bytes >= PD_PIPE_BODY || n > PD_PIPE_PARCELS)
        status = pd_fail(PD_E_VALUE, "rpc: a message of %zu bytes and %d tensors (expected less than 2 GiB beside its "
                         "tensors, and at most %d tensors)", bytes, n, PD_PIPE_PARCELS);
    PD_THEN(pd_pipes_check(l->p, l->to));
    PD_THEN(pd_malloc(((size_t)n + 1) * sizeof *l->table, "rpc", &l->table));
    PD_THEN(pd_malloc(((size_t)n + 3) * sizeof *l->pieces, "rpc", &l->pieces));
    PD_THEN(post(l, body, bytes, parcels, n));
    pd_free(l->table);
    pd_free(l->pieces);
    pd_host_acquire(l->token);
    return status;
}

pd_status pd_pipes_send(pd_pipes *p, int to, uint32_t kind, uint64_t id, const void *body, size_t bytes,
                        pd_parcel *parcels, int n, int64_t until, bool *held) {
    letter l = {.p = p, .to = to, .until = until, .held = held};
    return deliver(&l, kind, id, body, bytes, parcels, n);
}

pd_status pd_pipes_try_send(pd_pipes *p, int to, uint32_t kind, uint64_t id, const void *body, size_t bytes,
                            pd_parcel *parcels, int n, bool *sent) {
    letter l = {.p = p, .to = to, .until = INT64_MAX, .now = true};
    pd_status status = p->spread ? refuse(&l) : deliver(&l, kind, id, body, bytes, parcels, n);
    *sent = !status;
    return l.refused ? PD_OK : status;
}
