#include "comm/nccl/nccl.h"

#include <string.h>

#include "base/mem.h"
#include "comm/nccl/nccl_impl.h"
#include "kernels/kernels.h"

#define PRIORITY (-1) /* above the default streams, since other ranks wait for it */

/* ---- life -------------------------------------------------------------------------------------------------------- */

pd_status pd_nccl_on_device(const pd_nccl *c) { return c->device->enter(c->device); }

/* [new] a communicator that is not connected yet. */
static pd_status new_one(const char *op, pd_group *g, const pd_device *device, int peer, pd_nccl **out) {
    const pd_nccl_library *lib;
    pd_nccl *c;
    PD_TRY(pd_nccl_open(op, &lib));
    PD_TRY(pd_calloc(sizeof *c, "nccl", &c));
    atomic_init(&c->refs, 1);
    c->g = g;
    c->rank = peer < 0 ? g->rank : g->rank > peer;
    c->size = peer < 0 ? g->size : 2;
    c->peer = peer;
    c->lib = lib;
    c->cuda = pd_cuda_open();
    c->device = device;
    c->last = &c->first;
    pthread_mutex_init(&c->use, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pd_os_cond_init(&c->changed);
    pd_status status = pd_cuda_stream_take(op, device, PRIORITY, &c->stream);
    c->on = c->stream;
    if (status) pd_nccl_release(c);
    else *out = c;
    return status;
}

void pd_nccl_release(pd_nccl *c) {
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) > 1) return;
    for (pd_mark *m = c->made, *next; m; m = next) {
        next = m->made;
        c->cuda->event_free(m->event);
        pd_free(m);
    }
    if (c->stream && !atomic_load(&c->failed)) pd_cuda_stream_back(c->stream); /* else something may hang there */
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->use);
    pd_free(c);
}

/* A group's communicators, each made when it is first needed. */
struct pd_moving {
    pd_nccl *all;
    pd_nccl *pairs[]; /* by rank, for batches of messages with that rank */
};

/* The communicator for this peer; peer -1: for the whole group. */
static pd_status find(const char *op, pd_group *g, const pd_device *device, int peer, pd_nccl **out) {
    pd_moving *m = g->moving;
    if (!m) PD_TRY(pd_calloc(sizeof *m + (size_t)g->size * sizeof *m->pairs, "nccl", &m));
    g->moving = m;
    pd_nccl **at = peer < 0 ? &m->all : &m->pairs[peer];
    if (!*at) PD_TRY(new_one(op, g, device, peer, at));
    *out = *at;
    return PD_OK;
}

pd_status pd_nccl_of(const char *op, pd_group *g, const pd_device *device, pd_nccl **out) {
    return find(op, g, device, -1, out);
}

/* Communicator i, from -1 on; NULL: it was not made. */
static pd_nccl *one_of(const pd_group *g, int i) { return i < 0 ? g->moving->all : g->moving->pairs[i]; }

static bool is_idle(const pd_group *g) {
    bool idle = true;
    for (int i = -1; i < g->size; i++) {
        pd_nccl *c = one_of(g, i);
        if (!c) continue;
        pthread_mutex_lock(&c->lock);
        idle &= !c->first || atomic_load(&c->failed);
        pthread_mutex_unlock(&c->lock);
    }
    return idle;
}

static pd_status drain(pd_group *g) {
    pd_status status = PD_OK;
    if (is_idle(g)) return PD_OK;
    void *token = pd_host_release();
    while (!status && !is_idle(g)) {
        pd_os_sleep(1000000);
        status = pd_hooks_interrupt(g->hooks);
    }
    pd_host_acquire(token);
    return status;
}

static void end(pd_group *g) {
    for (int i = -1; i < g->size; i++) {
        pd_nccl *c = one_of(g, i);
        if (!c) continue;
        void *token = pd_host_release();
        pd_nccl_finish(c, !atomic_load(&c->failed) && !atomic_load(&g->failed));
        pd_host_acquire(token);
        c->g = NULL;
        pd_nccl_release(c);
    }
    pd_free(g->moving);
    g->moving = NULL;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static pd_status take_mark(pd_nccl *c, const char *op, pd_mark **out) {
    pthread_mutex_lock(&c->lock);
    pd_mark *m = c->idle;
    if (m) c->idle = m->next;
    pthread_mutex_unlock(&c->lock);
    *out = m;
    if (m) return PD_OK;
    PD_TRY(pd_calloc(sizeof *m, "nccl", &m));
    pd_status status = pd_cuda_result(op, c->cuda->event_new(&m->event, false));
    if (status) {
        pd_free(m);
        return status;
    }
    pthread_mutex_lock(&c->lock);
    m->made = c->made;
    c->made = m;
    pthread_mutex_unlock(&c->lock);
    *out = m;
    return PD_OK;
}

static void give_mark(pd_nccl *c, pd_mark *m) {
    if (!m) return;
    pthread_mutex_lock(&c->lock);
    m->next = c->idle;
    c->idle = m;
    pthread_mutex_unlock(&c->lock);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static pd_status prepare(pd_nccl *c, pd_work *w) {
    const char *op = pd_collective_names[w->id.coll];
    pd_mark *ready;
    if (c->device != w->device)
        return pd_fail(PD_E_VALUE, "%s: the tensors are on %s (expected %s, like those of this rank's earlier calls)",
                       op, w->device->name, c->device->name);
    PD_TRY(pd_nccl_on_device(c));
    w->stream = pd_cuda_stream(w->device);
    w->captured = pd_cuda_capturing(w->device);
    if (w->captured) {
        w->id.device |= PD_IDENTITY_CAPTURED; /* all ranks capture it, or none */
        return PD_OK;
    }
    PD_TRY(take_mark(c, op, &ready));
    pd_status status = pd_cuda_result(op, c->cuda->event_record(ready->event, w->stream));
    if (status) give_mark(c, ready);
    else w->ready = ready;
    return status;
}

static pd_status begin(pd_work *w) {
    pd_nccl *c;
    PD_TRY(pd_nccl_fits(w));
    PD_TRY(pd_nccl_of(pd_collective_names[w->id.coll], w->group, w->device, &c));
    return prepare(c, w);
}

static pd_status new_launch(pd_nccl *c, const pd_work *w, pd_launch **out) {
    pd_launch *l;
    PD_TRY(pd_calloc(sizeof *l, "nccl", &l));
    pd_status status = take_mark(c, pd_collective_names[w->id.coll], &l->done);
    if (status) {
        pd_free(l);
        return status;
    }
    atomic_init(&l->refs, 1);
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    l->c = c;
    l->id = w->id;
    l->site = w->site;
    l->seq = w->seq;
    l->captured = w->captured ? w->stream : NULL;
    *out = l;
    return PD_OK;
}

/* Puts the work on the captured stream itself, so that memory that it needs belongs to the graph. */
static pd_status capture(pd_nccl *c, pd_work *w, const pd_batch *b) {
    const char *op = pd_collective_names[w->id.coll];
    pd_launch *l;
    PD_TRY(new_launch(c, w, &l));
    w->launch = l;
    c->on = w->stream;
    pd_status status = pd_nccl_issue(c, w, b);
    c->on = c->stream;
    PD_TRY(status);
    PD_TRY(pd_cuda_result(op, c->cuda->event_record(l->done->event, w->stream)));
    pd_flight_end(&c->g->flight, w->seq, PD_FLIGHT_DONE);
    atomic_store_explicit(&l->state, PD_LAUNCH_DONE, memory_order_release);
    pthread_mutex_lock(&c->lock);
    c->captured = true;
    c->captured_id = w->id;
    c->captured_site = w->site;
    c->captured_seq = w->seq;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return PD_OK;
}

static pd_status run(pd_nccl *c, pd_work *w, const pd_batch *b) {
    const char *op = pd_collective_names[w->id.coll];
    PD_TRY(pd_nccl_on_device(c));
    if (atomic_load(&c->failed)) return pd_error_restore(&c->error);
    if (!c->watched) PD_TRY(pd_nccl_start_watch(c));
    if (!c->connected) PD_TRY(pd_nccl_connect(c, w));
    if (w->captured) return capture(c, w, b);
    pd_mark *ready = w->ready;
    pd_launch *l;
    PD_TRY(pd_cuda_result(op, c->cuda->stream_after(c->stream, ready->event)));
    PD_TRY(new_launch(c, w, &l));
    w->launch = l;
    PD_TRY(pd_nccl_issue(c, w, b));
    PD_TRY(pd_cuda_result(op, c->cuda->event_record(l->done->event, c->stream)));
    if (w->waits) PD_TRY(pd_cuda_result(op, c->cuda->stream_after(w->stream, l->done->event)));
    pd_nccl_watch(c, l);
    return PD_OK;
}

static pd_status launch_on(pd_nccl *c, pd_work *w, const pd_batch *b) {
    pd_status status = run(c, w, b);
    give_mark(c, w->ready); /* the streams that wait for it have been told */
    if (!status) return PD_OK;
    pd_launch_release(w->launch);
    w->launch = NULL;
    pd_nccl_fail(c);
    return status;
}

static pd_status launch(pd_work *w) { return launch_on(w->group->moving->all, w, NULL); }

static pd_status exchange(pd_group *g, const pd_batch *b) {
    pd_nccl *c;
    pd_work *first = NULL;
    for (int i = 0; i < b->n; i++) {
        pd_work *w = b->works[i];
        if (b->messages[i].peer != b->peer) continue;
        if (first) {
            w->launch = pd_launch_retain(first->launch);
            continue;
        }
        PD_TRY(find(pd_collective_names[w->id.coll], g, w->device, b->peer, &c));
        PD_TRY(prepare(c, w));
        PD_TRY(launch_on(c, w, b));
        first = w;
    }
    return PD_OK;
}

/* ---- works ------------------------------------------------------------------------------------------------------- */

pd_launch *pd_launch_retain(pd_launch *l) {
    atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

void pd_launch_release(pd_launch *l) {
    if (!l || atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) > 1) return;
    pd_nccl *c = l->c;
    give_mark(c, l->done);
    pd_free(l);
    pd_nccl_release(c);
}

static pd_status test(const pd_work *w, bool *done) {
    const pd_launch *l = w->launch;
    pd_nccl *c = l->c;
    int state = atomic_load_explicit(&l->state, memory_order_acquire);
    *done = state != PD_LAUNCH_UNDER_WAY;
    if (state == PD_LAUNCH_FAILED) return pd_error_restore(&c->error);
    if (*done) return PD_OK;
    PD_TRY(pd_nccl_on_device(c));
    return pd_cuda_result("wait", c->cuda->event_done(l->done->event, done));
}

/* Within the capture other streams wait for it. Outside there is nothing to wait for, since the program that launches
   the graph chooses the stream. */
static pd_status wait_captured(const pd_launch *l) {
    const pd_nccl *c = l->c;
    void *stream = pd_cuda_stream(c->device);
    if (stream == l->captured || !pd_cuda_capturing(c->device)) return PD_OK;
    return pd_cuda_result("wait", c->cuda->stream_after(stream, l->done->event));
}

static pd_status wait(const pd_work *w, double seconds) {
    const pd_launch *l = w->launch;
    pd_nccl *c = l->c;
    bool done;
    PD_TRY(test(w, &done));
    if (l->captured) return wait_captured(l);
    if (done) return PD_OK;
    if (seconds < 0) return pd_cuda_result("wait", c->cuda->stream_after(pd_cuda_stream(c->device), l->done->event));
    int64_t until = pd_os_now() + (int64_t)(seconds < 1e9 ? seconds * 1e9 : 1e18);
    void *token = pd_host_release();
    pd_status status = PD_OK;
    while (!status && !done && pd_os_now() < until) {
        pd_os_sleep(100000);
        status = test(w, &done);
        if (!status && !done && c->g) status = pd_hooks_interrupt(c->g->hooks);
    }
    pd_host_acquire(token);
    if (status || done) return status;
    return pd_fail(PD_E_TIMEOUT, "wait: the collective is not done after %g s (expected it to end within the timeout)",
                   seconds);
}

static void release(pd_work *w) {
    pd_launch_release(w->launch);
    w->launch = NULL;
}

const pd_mover pd_mover_nccl = {
    .name = "nccl", .begin = begin, .launch = launch, .exchange = exchange, .wait = wait, .test = test,
    .release = release, .drain = drain, .end = end, .alloc = pd_nccl_alloc, .free = pd_nccl_free,
};
