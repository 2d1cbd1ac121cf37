/* The group's queue: who runs a collective, and when. */
#include "base/mem.h"
#include "comm/group/mover.h"
#include "comm/group/p2p.h"
#include "comm/group/readers.h"

/* ---- entering ---------------------------------------------------------------------------------------------------- */

static uintptr_t self(void) {
    static _Thread_local char here;
    return (uintptr_t)&here;
}

/* Never sleeps with the GIL held: the holder of the lock may have to take the GIL before it leaves. */
pd_status pd_group_lock(pd_group *g) {
    pd_status status = PD_OK;
    if (pthread_mutex_trylock(&g->lock)) {
        if (atomic_load(&g->owner) == self())
            return pd_fail(PD_E_RUNTIME,
                           "comm: a signal handler called a group in which this thread is waiting (expected the call "
                           "after the wait)");
        void *token = pd_host_release();
        for (;;) {
            if (pd_os_lock(&g->lock, PD_SLICE_NS)) break;
            if ((status = pd_hooks_interrupt(g->hooks))) break;
        }
        pd_host_acquire(token);
        PD_TRY(status);
    }
    atomic_store_explicit(&g->owner, self(), memory_order_relaxed);
    return PD_OK;
}

pd_status pd_group_enter(pd_group *g) {
    pd_readers_written_here();
    return pd_group_lock(g);
}

void pd_group_leave(pd_group *g) {
    atomic_store_explicit(&g->owner, 0, memory_order_relaxed);
    pthread_mutex_unlock(&g->lock);
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

static void finish(pd_group *g, pd_work *w) {
    if (!w->device) pd_flight_end(&g->flight, w->seq, PD_FLIGHT_DONE); /* a GPU's work has not ended yet */
    pd_timespan_end_in(&w->span, PD_SPAN_COMM, pd_collective_names[w->id.coll],
                       (int64_t)pd_job_bytes(&w->job, w->job.count), g->epoch);
}

/* Ends the group, and tells the other ranks unless the reason came from one of them. */
static pd_status lose(pd_group *g) { return pd_group_fail(g, !atomic_load(&g->abort)); }

static pd_status carry_on(pd_group *g) {
    for (pd_work *w = g->first; w; w = g->first) {
        bool done;
        bool begins = atomic_load_explicit(&w->state, memory_order_relaxed) == PD_WORK_QUEUED;
        if ((begins && pd_rounds_begin(g, w)) || pd_rounds_run(g, w, &done)) return lose(g);
        if (!done) return PD_OK;
        g->first = w->next;
        if (!g->first) g->last = &g->first;
        finish(g, w);
        atomic_store_explicit(&w->state, PD_WORK_DONE, memory_order_release);
        pd_work_release(w);
    }
    return PD_OK;
}

/* Waits at the gate of the collective that is under way. */
static pd_status await(pd_group *g, pd_work *w, int64_t deadline) {
    bool fatal;
    pd_status status = pd_gate_wait(g, w, deadline, &fatal);
    return status && fatal ? lose(g) : status;
}

static pd_status drive(pd_group *g, pd_work *w, int64_t deadline) {
    for (;;) {
        PD_TRY(carry_on(g));
        if (atomic_load_explicit(&w->state, memory_order_acquire) == PD_WORK_DONE) return PD_OK;
        PD_TRY(await(g, g->first, deadline));
    }
}

/* A synchronous collective on an empty queue is run here, without an allocation. */
static pd_status run_here(pd_group *g, pd_work *w) {
    bool done;
    if (pd_rounds_begin(g, w)) return lose(g);
    for (;;) {
        if (pd_rounds_run(g, w, &done)) return lose(g);
        if (done) {
            finish(g, w);
            if (w->launch) w->mover->release(w);
            return PD_OK;
        }
        PD_TRY(await(g, w, INT64_MAX));
    }
}

/* Takes ownership of `like`'s table. */
static pd_status run_queued(pd_group *g, pd_work *like, pd_work **out) {
    pd_work *w;
    PD_TRY(pd_malloc(sizeof *w, "work", &w));
    *w = *like;
    like->parts = NULL;
    atomic_init(&w->refs, 2); /* the queue's and the caller's */
    pd_group_retain(g);
    if (w->segment) pd_segment_retain(w->segment);
    if (w->blocks) pd_blocks_retain(w->blocks);
    *g->last = w;
    g->last = &w->next;
    bool later = out && !w->captured; /* a capture may end before the wait */
    pd_status status = later ? carry_on(g) : drive(g, w, INT64_MAX);
    if (out && !status) *out = w;
    else pd_work_release(w);
    return status;
}

/* In a world of one there is nobody to wait for. */
static pd_status run_alone(pd_group *g, pd_work *like, pd_work **out) {
    const pd_job *j = &like->job;
    const char *in = j->from;
    pd_work *w = NULL;
    pd_status status = PD_OK;
    if (out) PD_TRY(pd_malloc(sizeof *w, "work", &w));
    if (like->mover) PD_TRY_TO(fail, like->mover->launch(like));
    else if (j->scale != 1)
        pd_reduce_run(j->dtype, j->reduce, 1, &in, 0, j->to, j->count, j->scale);
    else if (j->from != j->to)
        memmove(j->to, j->from, pd_job_bytes(j, j->count));
    if (!out) return PD_OK;
    *w = *like;
    w->segment = NULL;
    w->blocks = NULL;
    w->parts = NULL;
    atomic_init(&w->refs, 1);
    atomic_init(&w->state, PD_WORK_DONE);
    pd_group_retain(g);
    *out = w;
    return PD_OK;
fail:
    pd_free(w);
    return status;
}


/* Whether data in a segment can be used in place. */
static bool can_be_direct(const pd_group *g, const pd_work *w, size_t bytes) {
    uint8_t c = w->id.coll;
    if (g->mesh || g->forced || w->device) return false;
    if (c == PD_COLL_ALL_REDUCE) return bytes > (size_t)g->tuning.gather;
    return (c == PD_COLL_BROADCAST || c == PD_COLL_REDUCE_SCATTER) && bytes > (size_t)g->tuning.direct;
}

static _Thread_local int64_t calls[PD_COLL_COUNT];

const int64_t *pd_group_calls(void) { return calls; }

pd_status pd_group_submit(pd_work *w, pd_work **out) {
    pd_group *g = w->group;
    pd_timespan span = pd_timespan_begin();
    PD_TRY(pd_group_check(g));
    calls[w->id.coll]++;
    w->waits = !out;
    if (g->size == 1) return run_alone(g, w, out);
    if (w->device) PD_TRY(pd_mover_check(g, pd_collective_names[w->id.coll]));
    size_t bytes = pd_job_bytes(&w->job, w->job.count) * (w->id.coll == PD_COLL_REDUCE_SCATTER ? (size_t)g->size : 1);
    if (can_be_direct(g, w, bytes)) w->segment = pd_segment_of(g, w->job.from, bytes + w->job.apart);
    pd_status status = pd_group_enter(g);
    if (status) {
        pd_segment_release(w->segment);
        return PD_TRAIL(status);
    }
    status = pd_group_check(g); /* it may have ended while we waited */
    if (!status && w->mover) status = w->mover->begin(w);
    PD_THEN(out || g->first ? run_queued(g, w, out) : run_here(g, w));
    pd_group_leave(g);
    pd_segment_release(w->segment);
    pd_timespan_end(&span, PD_SPAN_CALL, pd_collective_names[w->id.coll], 0);
    return status;
}

/* ---- works ------------------------------------------------------------------------------------------------------- */

pd_status pd_group_progress(pd_group *g) {
    PD_TRY(pd_group_check(g));
    if (pthread_mutex_trylock(&g->lock)) return PD_OK; /* the thread that has it carries the queue on */
    atomic_store_explicit(&g->owner, self(), memory_order_relaxed);
    pd_status status = pd_group_check(g);
    PD_THEN(carry_on(g));
    if (!status && pd_p2p_used(g) && pd_p2p_pump(g)) status = lose(g);
    pd_group_leave(g);
    return status;
}

static bool has_launches(const pd_group *g) {
    const pd_work *w = g->first;
    while (w && !w->device) w = w->next;
    return w != NULL;
}

static pd_status drive_launches(pd_group *g) {
    for (;;) {
        PD_TRY(carry_on(g));
        if (!has_launches(g)) return PD_OK;
        PD_TRY(await(g, g->first, INT64_MAX));
    }
}

pd_status pd_group_launch(pd_group *g) {
    PD_TRY(pd_group_enter(g));
    pd_status status = pd_group_check(g);
    PD_THEN(drive_launches(g));
    pd_group_leave(g);
    return status;
}

bool pd_group_is_idle(pd_group *g) {
    if (pthread_mutex_trylock(&g->lock)) return false;
    bool idle = !g->first;
    pthread_mutex_unlock(&g->lock);
    return idle;
}

static bool is_message(const pd_work *w) { return w->id.coll == PD_COLL_SEND || w->id.coll == PD_COLL_RECV; }

static pd_status state_of(pd_work *w, bool *done) {
    int state = atomic_load_explicit(&w->state, memory_order_acquire);
    *done = state == PD_WORK_DONE;
    if (state != PD_WORK_FAILED) return PD_OK;
    return is_message(w) ? pd_p2p_error(w->group) : pd_error_restore(&w->group->error);
}

pd_status pd_work_wait(pd_work *w, double timeout) {
    pd_group *g = w->group;
    bool done;
    PD_TRY(state_of(w, &done));
    if (done) return w->launch ? w->mover->wait(w, timeout) : PD_OK;
    PD_TRY(pd_group_check(g));
    int64_t deadline = timeout < 0 || timeout > 1e9 ? INT64_MAX : pd_os_now() + (int64_t)(timeout * 1e9);
    if (is_message(w)) return pd_p2p_wait(w, deadline);
    pd_timespan span = pd_timespan_begin();
    PD_TRY(pd_group_enter(g));
    pd_status status = state_of(w, &done); /* another thread may have finished it */
    if (!status && !done) status = drive(g, w, deadline);
    pd_group_leave(g);
    pd_timespan_end(&span, PD_SPAN_CALL, "wait", 0);
    return status || !w->launch ? status : w->mover->wait(w, timeout);
}

pd_status pd_work_test(pd_work *w, bool *done) {
    PD_TRY(state_of(w, done));
    if (!*done && is_message(w)) return pd_p2p_test(w, done);
    if (!*done) PD_TRY(pd_group_progress(w->group));
    if (!*done) PD_TRY(state_of(w, done));
    return *done && w->launch ? w->mover->test(w, done) : PD_OK;
}

void pd_work_release(pd_work *w) {
    if (!w || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) > 1) return;
    pd_group *g = w->group;
    pd_segment_release(w->segment);
    pd_blocks_release(w->blocks);
    if (w->launch) w->mover->release(w);
    pd_free(w->parts);
    pd_free(w);
    pd_group_release(g);
}
