#include "comm/nccl/nccl.h"

#include <string.h>

#include "base/mem.h"
#include "comm/nccl/nccl_impl.h"
#include "kernels/kernels.h"

#define PRIORITY (-1) /* over the default streams': what others wait for goes first */

/* ---- life -------------------------------------------------------------------------------------------------------- */

pd_status pd_nccl_on_device(const pd_nccl *c) { return c->device->enter(c->device); }

pd_status pd_nccl_new(const char *op, pd_group *g, const pd_device *device, int peer, pd_nccl **out) {
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
    pd_os_cond_init(&c->news);
    pd_status status = pd_nccl_on_device(c);
    if (!status) status = pd_cuda_result(op, c->cuda->stream_new(&c->stream, PRIORITY));
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
    if (c->stream) c->cuda->stream_free(c->stream);
    pthread_cond_destroy(&c->news);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->use);
    pd_free(c);
}

/* The group's communicators, by i from -1 on; NULL: it is not there. */
static pd_nccl *one_of(const pd_group *g, int i) { return i < 0 ? g->nccl : g->pairs ? g->pairs[i] : NULL; }

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

pd_status pd_nccl_drain(pd_group *g) {
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

void pd_nccl_end(pd_group *g) {
    for (int i = -1; i < g->size; i++) {
        pd_nccl *c = one_of(g, i);
        if (!c) continue;
        void *token = pd_host_release();
        pd_nccl_finish(c, !atomic_load(&c->failed) && !atomic_load(&g->failed));
        pd_host_acquire(token);
        c->g = NULL;
        pd_nccl_release(c);
    }
    g->nccl = NULL;
    pd_free(g->pairs);
    g->pairs = NULL;
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

static pd_status begin(pd_nccl *c, pd_work *w) {
    const char *op = pd_collective_names[w->id.coll];
    if (c->device != w->device)
        return pd_fail(PD_E_VALUE, "%s: tensors on %s (expected %s, as in this rank's earlier calls)", op,
                       w->device->name, c->device->name);
    PD_TRY(pd_nccl_on_device(c));
    w->stream = pd_cuda_stream(w->device);
    w->captured = pd_cuda_capturing(w->device);
    if (w->captured) {
        w->id.device |= PD_IDENTITY_CAPTURED; /* all ranks capture it, or none */
        return PD_OK;
    }
    PD_TRY(take_mark(c, op, &w->ready));
    pd_status status = pd_cuda_result(op, c->cuda->event_record(w->ready->event, w->stream));
    if (status) give_mark(c, w->ready);
    return status;
}

pd_status pd_nccl_begin(pd_group *g, pd_work *w) {
    PD_TRY(pd_nccl_fits(w));
    if (!g->nccl) PD_TRY(pd_nccl_new(pd_collective_names[w->id.coll], g, w->device, -1, &g->nccl));
    return begin(g->nccl, w);
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

/* It goes on the captured stream itself: what it needs of memory there is the graph's. */
static pd_status capture(pd_nccl *c, pd_work *w, const pd_batch *b) {
    const char *op = pd_collective_names[w->id.coll];
    PD_TRY(new_launch(c, w, &w->launch));
    c->on = w->stream;
    pd_status status = pd_nccl_issue(c, w, b);
    c->on = c->stream;
    PD_TRY(status);
    PD_TRY(pd_cuda_result(op, c->cuda->event_record(w->launch->done->event, w->stream)));
    pd_flight_end(&c->g->flight, w->seq, PD_FLIGHT_DONE);
    atomic_store_explicit(&w->launch->state, PD_LAUNCH_DONE, memory_order_release);
    pthread_mutex_lock(&c->lock);
    c->captured = true;
    c->captured_id = w->id;
    c->captured_site = w->site;
    c->captured_seq = w->seq;
    pthread_cond_broadcast(&c->news);
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
    PD_TRY(pd_cuda_result(op, c->cuda->stream_after(c->stream, w->ready->event)));
    PD_TRY(new_launch(c, w, &w->launch));
    PD_TRY(pd_nccl_issue(c, w, b));
    PD_TRY(pd_cuda_result(op, c->cuda->event_record(w->launch->done->event, c->stream)));
    if (w->waits) PD_TRY(pd_cuda_result(op, c->cuda->stream_after(w->stream, w->launch->done->event)));
    pd_nccl_watch(c, w->launch);
    return PD_OK;
}

static pd_status launch(pd_nccl *c, pd_work *w, const pd_batch *b) {
    pd_status status = run(c, w, b);
    give_mark(c, w->ready); /* whoever waits for it has been told of it */
    if (!status) return PD_OK;
    pd_launch_release(w->launch);
    w->launch = NULL;
    pd_nccl_fail(c);
    return status;
}

pd_status pd_nccl_launch(pd_group *g, pd_work *w) { return launch(g->nccl, w, NULL); }

pd_status pd_nccl_messages(pd_group *g, pd_work *w, const pd_batch *b) {
    if (!g->pairs) PD_TRY(pd_calloc((size_t)g->size * sizeof *g->pairs, "group", &g->pairs));
    pd_nccl **c = &g->pairs[b->peer];
    if (!*c) PD_TRY(pd_nccl_new(pd_collective_names[w->id.coll], g, w->device, b->peer, c));
    PD_TRY(begin(*c, w));
    return launch(*c, w, b);
}

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

pd_status pd_launch_test(pd_launch *l, bool *done) {
    pd_nccl *c = l->c;
    int state = atomic_load_explicit(&l->state, memory_order_acquire);
    *done = state != PD_LAUNCH_UNDER_WAY;
    if (state == PD_LAUNCH_FAILED) return pd_error_restore(&c->error);
    if (*done) return PD_OK;
    PD_TRY(pd_nccl_on_device(c));
    return pd_cuda_result("wait", c->cuda->event_done(l->done->event, done));
}

/* In the capture its other streams go on after it. Outside there is nothing to wait for: whoever launches the graph
   knows in which stream. */
static pd_status wait_captured(const pd_launch *l) {
    const pd_nccl *c = l->c;
    void *stream = pd_cuda_stream(c->device);
    if (stream == l->captured || !pd_cuda_capturing(c->device)) return PD_OK;
    return pd_cuda_result("wait", c->cuda->stream_after(stream, l->done->event));
}

pd_status pd_launch_wait(pd_launch *l, double seconds) {
    pd_nccl *c = l->c;
    bool done;
    PD_TRY(pd_launch_test(l, &done));
    if (l->captured) return wait_captured(l);
    if (done) return PD_OK;
    if (seconds < 0) return pd_cuda_result("wait", c->cuda->stream_after(pd_cuda_stream(c->device), l->done->event));
    int64_t until = pd_os_now() + (int64_t)(seconds < 1e9 ? seconds * 1e9 : 1e18);
    void *token = pd_host_release();
    pd_status status = PD_OK;
    while (!status && !done && pd_os_now() < until) {
        pd_os_sleep(100000);
        status = pd_launch_test(l, &done);
        if (!status && !done && c->g) status = pd_hooks_interrupt(c->g->hooks);
    }
    pd_host_acquire(token);
    if (status || done) return status;
    return pd_fail(PD_E_TIMEOUT, "wait: the collective is not done after %g s", seconds);
}

/* ---- without NCCL ------------------------------------------------------------------------------------------------ */

pd_status pd_nccl_scale(const pd_device *d, const char *op, pd_dtype t, double factor, void *data, int64_t count) {
    const pd_device *was;
    char cell[8];
    if (factor == 1 || !count) return PD_OK;
    pd_nccl_scalar(t, factor, cell);
    pd_status status = pd_device_enter(d, &was);
    if (!status) pd_multiply(t, count, cell, data);
    pd_device_here = was;
    return status ? status : pd_device_check(d, op);
}

pd_status pd_nccl_alone(const pd_work *w) {
    const pd_job *j = &w->job;
    const pd_device *d = w->device;
    size_t bytes = pd_job_bytes(j, j->count);
    if (j->from != j->to && bytes) PD_TRY(d->copy(d, PD_WITHIN, j->to, j->from, bytes, false));
    return pd_nccl_scale(d, pd_collective_names[w->id.coll], j->dtype, j->scale, j->to, j->count);
}

pd_status pd_alone_mark(pd_work *w) {
    const pd_cuda_library *cuda = pd_cuda_open();
    const char *op = pd_collective_names[w->id.coll];
    w->captured = pd_cuda_capturing(w->device);
    PD_TRY(w->device->enter(w->device));
    PD_TRY(pd_cuda_result(op, cuda->event_new(&w->alone, false)));
    pd_status status = pd_cuda_result(op, cuda->event_record(w->alone, pd_cuda_stream(w->device)));
    if (status) pd_alone_release(w);
    return status;
}

pd_status pd_alone_wait(const pd_work *w, double seconds) {
    const pd_cuda_library *cuda = pd_cuda_open();
    bool within = pd_cuda_capturing(w->device);
    if (w->captured && !within) return PD_OK; /* whoever launches the graph knows in which stream */
    PD_TRY(w->device->enter(w->device));
    if (seconds < 0 || within)
        return pd_cuda_result("wait", cuda->stream_after(pd_cuda_stream(w->device), w->alone));
    void *token = pd_host_release(); /* it waits for nobody, so it is soon done */
    int error = cuda->event_wait(w->alone);
    pd_host_acquire(token);
    return pd_cuda_result("wait", error);
}

pd_status pd_alone_test(const pd_work *w, bool *done) {
    *done = w->captured;
    if (*done) return PD_OK;
    PD_TRY(w->device->enter(w->device));
    return pd_cuda_result("wait", pd_cuda_open()->event_done(w->alone, done));
}

void pd_alone_release(pd_work *w) {
    if (w->alone) pd_cuda_open()->event_free(w->alone);
    w->alone = NULL;
}
