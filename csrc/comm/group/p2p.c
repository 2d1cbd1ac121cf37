/* Messages between two ranks of a group, beside the queue of its collectives.

   Every rank's part of the control memory ends with a lane for each peer. Lane d of rank r has the ring in which r
   writes to d, the number of bytes that r has written there (head), and the number of bytes that r has read from d's
   ring (ack):

     part of r:  board, slots, shares | lane 0 | lane 1 | ...       lane = head | ack | ring

   Every word has one writer, so lanes work in mirrored memory as in shared memory. A message is an envelope (what it
   holds) and its bytes, in pieces for which the ring has room. Messages of a pair arrive in the order of sending; a
   receive takes the oldest one of its tag. A message without a receive is put aside in private memory, so two ranks
   that send to each other first do not wait for each other; if there is no memory for that, it stays in the ring.

   A rank that waits, for a message or a collective, moves the messages on all lanes. p2p->lock guards the state and is
   never held while waiting. A mesh is used only with the group's lock held, too. */
#include <stdio.h>

#include "base/flags.h"
#include "base/mem.h"
#include "comm/group/p2p_impl.h"

static size_t ring_bytes(int size) {
    size_t ring = 64 << 10;
    while (ring > 4096 && ring * (size_t)size > 512 << 10) ring /= 2;
    return ring;
}

static size_t stride(const pd_p2p *p) { return sizeof(pd_lane) + p->ring; }

size_t pd_p2p_room(int size) { return (size_t)size * (sizeof(pd_lane) + ring_bytes(size)); }

pd_status pd_p2p_new(int size, size_t at, pd_p2p **out) {
    pd_p2p *p;
    PD_TRY(pd_calloc(sizeof *p + (size_t)size * sizeof *p->peers, "group", &p));
    pthread_mutex_init(&p->lock, NULL);
    p->ring = ring_bytes(size);
    p->at = at;
    p->receives_last = &p->receives;
    for (int r = 0; r < size; r++) {
        p->peers[r].last = &p->peers[r].first;
        p->peers[r].unexpected_last = &p->peers[r].unexpected;
    }
    pd_status status = pd_flight_init(&p->flight, pd_flags_get()->FLIGHT);
    if (status) pd_p2p_free(p, size);
    else *out = p;
    return status;
}

static void free_unexpected(pd_unexpected *x) {
    while (x) {
        pd_unexpected *next = x->next;
        pd_free(x);
        x = next;
    }
}

void pd_p2p_free(pd_p2p *p, int size) {
    if (!p) return;
    for (int r = 0; r < size; r++) {
        free_unexpected(p->peers[r].unexpected);
        pd_free(p->peers[r].aside);
    }
    pd_flight_fini(&p->flight);
    pthread_mutex_destroy(&p->lock);
    pd_free(p);
}

const pd_flight *pd_p2p_flight(const pd_group *g) {
    static const pd_flight none;
    return g->p2p ? &g->p2p->flight : &none;
}

static pd_lane *lane_of(const pd_group *g, int owner, int peer) {
    return (pd_lane *)(void *)((char *)g->boards[owner] + g->p2p->at + (size_t)peer * stride(g->p2p));
}

static size_t place_of(const pd_group *g, const void *x) {
    return (size_t)((const char *)x - (char *)g->boards[g->rank]);
}

/* ---- the ends of works ------------------------------------------------------------------------------------------- */

static void end(pd_work *w, int state) {
    pd_flight_end(&w->group->p2p->flight, w->seq, state == PD_WORK_DONE ? PD_FLIGHT_DONE : PD_FLIGHT_FAILED);
    atomic_store_explicit(&w->state, state, memory_order_release);
    pd_work_release(w);
}

static void drop_list(pd_work **first, pd_work ***last) {
    while (*first) {
        pd_work *w = *first;
        *first = w->next;
        end(w, PD_WORK_FAILED);
    }
    *last = first;
}

/* The group has ended: from here on no buffers are used. */
void pd_p2p_end(pd_group *g) {
    pd_p2p *p = g->p2p;
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->failed, true);
    if (!p->error.kind) p->error = g->error;
    for (int r = 0; r < g->size; r++) {
        pd_p2p_peer *b = &p->peers[r];
        drop_list(&b->first, &b->last);
        if (b->into) end(b->into, PD_WORK_FAILED);
        b->into = NULL;
        for (pd_unexpected *x = b->unexpected; x; x = x->next) {
            if (x->taker) end(x->taker, PD_WORK_FAILED);
            x->taker = NULL;
        }
        if (b->aside && b->aside->taker) end(b->aside->taker, PD_WORK_FAILED);
        if (b->aside) b->aside->taker = NULL;
    }
    drop_list(&p->receives, &p->receives_last);
    pthread_mutex_unlock(&p->lock);
}

void pd_p2p_close(pd_group *g) {
    (void)pd_fail(PD_E_DIST,
                  "the group was destroyed before this message was sent or received (expected wait() first)");
    pthread_mutex_lock(&g->p2p->lock);
    if (!g->p2p->error.kind) pd_error_save(&g->p2p->error);
    pthread_mutex_unlock(&g->p2p->lock);
}

pd_status pd_p2p_error(pd_group *g) { return pd_error_restore(&g->p2p->error); }

void pd_p2p_left(pd_group *g, int link_rank) {
    for (int r = 0; g->p2p && r < g->size; r++)
        if (pd_group_name(g, r) == link_rank && !g->p2p->peers[r].left)
            atomic_store(&g->p2p->peers[r].left, pd_os_now());
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* Writes as many of these bytes as the ring has room for, and returns how many. */
static size_t put(pd_group *g, int r, const char *data, size_t bytes) {
    pd_p2p *p = g->p2p;
    pd_p2p_peer *b = &p->peers[r];
    pd_lane *lane = lane_of(g, g->rank, r);
    uint32_t ack = atomic_load_explicit(&lane_of(g, r, g->rank)->ack, memory_order_acquire);
    size_t room = p->ring - (b->written - ack), done = 0;
    if (bytes > room) bytes = room;
    while (done < bytes) {
        size_t at = (b->written + done) % p->ring, n = p->ring - at;
        if (n > bytes - done) n = bytes - done;
        memcpy(lane->ring + at, data + done, n);
        done += n;
    }
    b->written += (uint32_t)bytes;
    atomic_fetch_add_explicit(&p->moved, bytes, memory_order_relaxed);
    return bytes;
}

/* Sends the same bytes to the peer's mirror, then the word. */
static void announce(pd_group *g, int r, uint32_t from) {
    pd_p2p *p = g->p2p;
    pd_lane *lane = lane_of(g, g->rank, r);
    uint32_t to = p->peers[r].written;
    if (from == to) return;
    atomic_store_explicit(&lane->head, to, memory_order_release);
    if (!g->mesh) return;
    while (from != to) {
        size_t at = from % p->ring, n = p->ring - at;
        if (n > to - from) n = to - from;
        pd_mesh_send(g->mesh, r, place_of(g, lane->ring + at), lane->ring + at, n);
        from += (uint32_t)n;
    }
    pd_mesh_store(g->mesh, r, place_of(g, &lane->head), to);
}

/* `clear`: all that was queued on the mesh has been sent. */
static void carry_sends(pd_group *g, int r, bool clear) {
    pd_p2p_peer *b = &g->p2p->peers[r];
    uint32_t from = b->written;
    while (b->first && clear) {
        pd_work *w = b->first;
        size_t bytes = pd_job_bytes(&w->job, w->job.count), whole = sizeof b->out + bytes;
        if (!w->sent) b->out = (pd_envelope){w->job.count, w->tag, (uint32_t)w->job.dtype};
        if (w->sent < sizeof b->out) w->sent += put(g, r, (char *)&b->out + w->sent, sizeof b->out - w->sent);
        if (w->sent >= sizeof b->out)
            w->sent += put(g, r, w->job.from + (w->sent - sizeof b->out), whole - w->sent);
        /* With a mesh, a send is done once its bytes have been sent. */
        if (w->sent < whole || (g->mesh && b->written != from)) break;
        b->first = w->next;
        if (!b->first) b->last = &b->first;
        end(w, PD_WORK_DONE);
    }
    announce(g, r, from);
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static bool wants(const pd_work *w, int r, const pd_envelope *l) {
    return (w->peer < 0 || w->peer == r) && w->tag == l->tag;
}

/* Fails unless an envelope fits the receive to which it goes. */
static pd_status check(pd_group *g, pd_work *w, int r, const pd_envelope *l) {
    char call[400];
    if (l->dtype == (uint32_t)w->job.dtype && l->count == w->job.count) return PD_OK;
    pd_identity id = {.coll = PD_COLL_SEND, .dtype = (uint8_t)l->dtype, .count = l->count, .scale = l->tag,
                      .root = pd_group_name(g, g->rank)};
    char sent[200];
    pd_work_text(g, w, call, sizeof call);
    pd_identity_text(&id, sent, sizeof sent);
    return pd_fail(PD_E_MISMATCH, "%s on rank %d does not match the message: rank %d called %s", call,
                   pd_group_name(g, g->rank), pd_group_name(g, r), sent);
}

static pd_work *take_receive(pd_p2p *p, int r, const pd_envelope *l) {
    for (pd_work **at = &p->receives; *at; at = &(*at)->next) {
        pd_work *w = *at;
        if (!wants(w, r, l)) continue;
        *at = w->next;
        if (!w->next) p->receives_last = at;
        w->next = NULL;
        w->peer = r;
        return w;
    }
    return NULL;
}

/* Gives a complete unexpected message to its receive. */
static void hand_over(pd_unexpected *x, pd_work *w) {
    memcpy(w->job.to, x->data, x->got);
    pd_free(x);
    end(w, PD_WORK_DONE);
}

/* The envelope is there: finds out which receive gets its data. *stays: no memory to put the message aside. */
static pd_status open_envelope(pd_group *g, int r, bool *stays) {
    pd_p2p_peer *b = &g->p2p->peers[r];
    *stays = false;
    if (b->in.dtype >= PD_DTYPE_COUNT || b->in.count < 0 || b->in.count > INT64_MAX / 16)
        return pd_fail(PD_E_DIST, "recv: the message from rank %d is damaged (expected a valid header)",
                       pd_group_name(g, r));
    pd_work *w = take_receive(g->p2p, r, &b->in);
    if (w) {
        pd_status status = check(g, w, r, &b->in);
        b->into = w; /* if it does not fit, it ends with the group */
        PD_TRY(status);
    } else {
        size_t bytes = (size_t)b->in.count * pd_dtype_size((pd_dtype)b->in.dtype);
        if (pd_malloc(sizeof *b->aside + bytes, "message", &b->aside)) {
            b->aside = NULL;
            *stays = true;
            return PD_OK;
        }
        b->aside->next = NULL;
        b->aside->envelope = b->in;
        b->aside->taker = NULL;
        b->aside->got = 0;
    }
    b->in_body = true;
    b->in_got = 0;
    return PD_OK;
}

static void close_envelope(pd_p2p_peer *b) {
    pd_unexpected *x = b->aside;
    if (x && x->taker) hand_over(x, x->taker);
    else if (x) {
        *b->unexpected_last = x;
        b->unexpected_last = &x->next;
    } else {
        end(b->into, PD_WORK_DONE);
    }
    b->into = NULL;
    b->aside = NULL;
    b->in_body = false;
    b->in_got = 0;
}

static size_t get(pd_group *g, int r, char *to, size_t bytes) {
    pd_p2p *p = g->p2p;
    pd_p2p_peer *b = &p->peers[r];
    pd_lane *lane = lane_of(g, r, g->rank);
    size_t there = atomic_load_explicit(&lane->head, memory_order_acquire) - b->taken, done = 0;
    if (there > p->ring) there = p->ring;
    if (bytes > there) bytes = there;
    while (done < bytes) {
        size_t at = (b->taken + done) % p->ring, n = p->ring - at;
        if (n > bytes - done) n = bytes - done;
        memcpy(to + done, lane->ring + at, n);
        done += n;
    }
    b->taken += (uint32_t)bytes;
    atomic_fetch_add_explicit(&p->moved, bytes, memory_order_relaxed);
    return bytes;
}

static pd_status carry_receives(pd_group *g, int r) {
    pd_p2p_peer *b = &g->p2p->peers[r];
    for (;;) {
        if (!b->in_body) {
            b->in_got += get(g, r, (char *)&b->in + b->in_got, sizeof b->in - b->in_got);
            bool stays;
            if (b->in_got < sizeof b->in) return PD_OK;
            PD_TRY(open_envelope(g, r, &stays));
            if (stays) return PD_OK;
        }
        size_t bytes = (size_t)b->in.count * pd_dtype_size((pd_dtype)b->in.dtype);
        b->in_got += get(g, r, (b->aside ? b->aside->data : b->into->job.to) + b->in_got, bytes - b->in_got);
        if (b->aside) b->aside->got = b->in_got;
        if (b->in_got < bytes) return PD_OK;
        close_envelope(b);
    }
}

static void acknowledge(pd_group *g, int r, bool clear) {
    pd_p2p_peer *b = &g->p2p->peers[r];
    atomic_uint *ack = &lane_of(g, g->rank, r)->ack;
    if (b->acked == b->taken || !clear) return;
    b->acked = b->taken;
    atomic_store_explicit(ack, b->taken, memory_order_release);
    if (g->mesh && !pd_mesh_lost(g->mesh, r, true)) pd_mesh_store(g->mesh, r, place_of(g, ack), b->taken);
}

/* ---- carrying on ------------------------------------------------------------------------------------------------- */

static pd_status carry_lanes(pd_group *g) {
    bool clear = !g->mesh || pd_mesh_flush(g->mesh);
    for (int d = 1; d < g->size; d++) {
        int r = (g->rank + d) % g->size;
        if (g->mesh) pd_mesh_pump(g->mesh, r);
        PD_TRY(carry_receives(g, r));
        acknowledge(g, r, clear);
        if (g->p2p->peers[r].first) carry_sends(g, r, clear);
    }
    if (g->mesh) pd_mesh_flush(g->mesh);
    return PD_OK;
}

pd_status pd_p2p_pump(pd_group *g) {
    pd_p2p *p = g->p2p;
    pthread_mutex_lock(&p->lock);
    pd_status status = atomic_load(&p->failed) ? pd_error_restore(&p->error) : carry_lanes(g);
    if (status && !p->error.kind) pd_error_save(&p->error);
    pthread_mutex_unlock(&p->lock);
    return status;
}

bool pd_p2p_used(const pd_group *g) { return g->p2p && atomic_load_explicit(&g->p2p->used, memory_order_relaxed); }

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* Gives w the oldest unexpected message of its tag. *found false: there is none. */
static pd_status take_unexpected(pd_group *g, pd_work *w, bool *found) {
    *found = true;
    for (int d = 1; d < g->size; d++) {
        int r = (g->rank + d) % g->size;
        pd_p2p_peer *b = &g->p2p->peers[r];
        for (pd_unexpected **at = &b->unexpected; *at; at = &(*at)->next) {
            pd_unexpected *x = *at;
            if (!wants(w, r, &x->envelope)) continue;
            w->peer = r;
            PD_TRY(check(g, w, r, &x->envelope));
            if (b->unexpected_last == &x->next) b->unexpected_last = at;
            *at = x->next;
            hand_over(x, w);
            return PD_OK;
        }
        if (b->aside && !b->aside->taker && wants(w, r, &b->aside->envelope)) {
            w->peer = r;
            PD_TRY(check(g, w, r, &b->aside->envelope));
            b->aside->taker = w;
            return PD_OK;
        }
    }
    *found = false;
    return PD_OK;
}

static pd_status enlist(pd_group *g, pd_work *w) {
    pd_p2p *p = g->p2p;
    bool found = false;
    if (atomic_load(&p->failed)) return pd_error_restore(&p->error);
    w->seq = ++p->count;
    pd_flight_post(&p->flight, w->seq, &w->id, w->site);
    if (w->id.coll == PD_COLL_RECV) PD_TRY(take_unexpected(g, w, &found));
    pd_work ***last = w->id.coll == PD_COLL_SEND ? &p->peers[w->peer].last : &p->receives_last;
    if (found) return PD_OK;
    **last = w;
    *last = &w->next;
    return PD_OK;
}

pd_status pd_p2p_start(const pd_work *like, pd_work **out) {
    pd_group *g = like->group;
    pd_work *w;
    PD_TRY(pd_group_check(g));
    PD_TRY(pd_malloc(sizeof *w, "work", &w));
    *w = *like;
    atomic_init(&w->refs, 2); /* the list's and the caller's */
    pd_group_retain(g);
    atomic_store_explicit(&g->p2p->used, true, memory_order_relaxed);
    pthread_mutex_lock(&g->p2p->lock);
    pd_status status = enlist(g, w);
    pthread_mutex_unlock(&g->p2p->lock);
    if (status) {
        atomic_store(&w->refs, 1);
        pd_p2p_lose(g);
    } else if (pd_p2p_carry_on(g, w, 0)) {
        status = pd_p2p_lose(g);
    } else if (!out) {
        status = pd_p2p_wait(w, INT64_MAX);
    }
    if (out && !status) *out = w;
    else pd_work_release(w);
    return status;
}
