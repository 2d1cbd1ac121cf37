/* The thread that looks at what is under way on the device, and the end of a communicator.

   The thread polls while something is under way, and sleeps otherwise. If graphs have captured collectives, it looks
   from time to time whether the group has failed. It must not wait for the device: if a kernel hangs, this thread is
   the only one that still answers. Another thread ends the communicator, since ncclCommAbort may hang, too; after
   PYDIST_ABORT seconds that thread is abandoned with what it holds. */
#include <stdio.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/nccl/nccl_impl.h"

#define POLL_NS 1000000
#define CAPTURED_NS 20000000
#define WORD_NS 1000000000 /* within this time the control plane knows of a peer's death */
enum { SYSTEM_ERROR = 2, INTERNAL_ERROR, REMOTE_ERROR = 6 }; /* results that a peer's death may cause */

pd_status pd_nccl_explain(pd_nccl *c, const pd_work *w, int result) {
    pd_group *g = c->g;
    char call[400];
    bool perhaps_a_peer = result == SYSTEM_ERROR || result == INTERNAL_ERROR || result == REMOTE_ERROR;
    int64_t end = pd_os_now() + WORD_NS;
    for (; perhaps_a_peer && pd_os_now() < end; pd_os_sleep(10 * POLL_NS)) PD_TRY(pd_group_heard(g, w));
    pd_work_text(g, w, call, sizeof call);
    pthread_mutex_lock(&c->use);
    pd_status status = pd_nccl_result(call, result, c->comm);
    pthread_mutex_unlock(&c->use);
    return status ? status : pd_fail(PD_E_DIST, "%s: NCCL's call does not end: NCCL says that it is in progress", call);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void *end_comm(void *arg, bool gently) {
    pd_nccl *c = arg;
    const pd_nccl_library *lib = c->lib;
    pthread_mutex_lock(&c->use);
    void *comm = c->comm;
    c->comm = NULL; /* from here on nobody else uses it */
    pd_nccl_deregister(c, gently ? comm : NULL);
    pthread_mutex_unlock(&c->use);
    if (comm && !pd_nccl_on_device(c)) {
        int result = gently ? lib->CommFinalize(comm) : PD_NCCL_OK;
        while (gently && (result == PD_NCCL_OK || result == PD_NCCL_IN_PROGRESS)) {
            int failed = lib->CommGetAsyncError(comm, &result);
            if (failed) result = failed;
            if (result != PD_NCCL_IN_PROGRESS) break;
            pd_os_sleep(POLL_NS);
        }
        if (gently && result == PD_NCCL_OK) lib->CommDestroy(comm);
        else lib->CommAbort(comm);
    }
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pd_nccl_release(c);
    return NULL;
}
static void *destroy_it(void *c) { return end_comm(c, true); }
static void *abort_it(void *c) { return end_comm(c, false); }

static void close_comm(pd_nccl *c, bool gently) {
    pd_group *g = c->g;
    pd_os_thread thread;
    double seconds = pd_flags_get()->ABORT;
    int64_t until = pd_os_now() + (int64_t)(seconds < 1e9 ? seconds * 1e9 : 1e18), left;
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_mutex_unlock(&c->lock);
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed); /* for the thread */
    if (pd_os_thread_start("nccl", &thread, gently ? destroy_it : abort_it, c)) {
        end_comm(c, gently);
        return;
    }
    pd_os_thread_detach(thread);
    pthread_mutex_lock(&c->lock);
    while (!c->ended && (left = until - pd_os_now()) > 0) pd_os_cond_wait(&c->changed, &c->lock, left);
    bool ended = c->ended;
    pthread_mutex_unlock(&c->lock);
    if (!ended)
        pd_log(PD_LOG_WARN,
               "rank %d: NCCL has not %s the communicator of group %u within %g s%s: pydist leaves the communicator as "
               "it is, and work that waits for it on %s may never end",
               pd_group_name(g, g->rank), gently ? "ended" : "aborted", g->epoch, seconds,
               c->captured ? " (CUDA graphs hold its collectives: call their reset() first)" : "", c->device->name);
}

void pd_nccl_fail(pd_nccl *c) {
    pd_error e;
    pd_error_save(&e);
    pthread_mutex_lock(&c->lock);
    if (!atomic_load(&c->failed)) {
        c->error = e;
        if (e.kind == PD_E_PYTHON || e.kind == PD_E_INTERRUPT) { /* an exception is raised only once */
            c->error.kind = PD_E_DIST;
            snprintf(c->error.text, sizeof c->error.text, "the group ended, because a collective was interrupted");
        }
        atomic_store(&c->failed, true);
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pd_error_restore(&e);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Takes the first launch off the list and sets its state; false: there is none. */
static bool end_first(pd_nccl *c, int state) {
    pthread_mutex_lock(&c->lock);
    pd_launch *l = c->first;
    if (l) {
        c->first = l->next;
        if (!c->first) c->last = &c->first;
        c->since = pd_os_now();
        pd_flight_end(&c->g->flight, l->seq, state == PD_LAUNCH_DONE ? PD_FLIGHT_DONE : PD_FLIGHT_FAILED);
        atomic_store_explicit(&l->state, state, memory_order_release);
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    pd_launch_release(l);
    return l != NULL;
}

/* Looks at the first launch under way: PD_OK and *done, or the reason why it will not end. */
static pd_status look(pd_nccl *c, pd_launch *l, bool *done) {
    pd_group *g = c->g;
    pd_work w = {.id = l->id, .site = l->site, .seq = l->seq};
    char call[400];
    int result = PD_NCCL_OK, failed = 0;
    int error = c->cuda->event_done(l->done->event, done);
    if (*done && !error) return PD_OK;
    if (!error) {
        PD_TRY(pd_group_heard(g, &w));
        pthread_mutex_lock(&c->use);
        if (c->comm) failed = c->lib->CommGetAsyncError(c->comm, &result);
        pthread_mutex_unlock(&c->use);
        if (failed) result = failed;
        if (result != PD_NCCL_OK && result != PD_NCCL_IN_PROGRESS) return pd_nccl_explain(c, &w, result);
        if (pd_os_now() - c->since < g->timeout_ns) return PD_OK;
    }
    pd_work_text(g, &w, call, sizeof call);
    if (error) return pd_cuda_result(call, error);
    return pd_fail(PD_E_TIMEOUT, "%s: the call is not done on %s %.1f s after all ranks began it", call,
                   c->device->name, (double)g->timeout_ns * 1e-9);
}

/* Fails the group, and tells the other ranks unless they or the control plane have told us. */
static void give_up(pd_nccl *c) {
    pd_group *g = c->g;
    pd_error e;
    pd_error_save(&e);
    pd_nccl_fail(c);
    if (atomic_load(&g->abort)) return;
    pd_group_tell(g, &e);
    pd_group_hear(&g->listener, PD_WEIGHT_GONE, &e);
}

/* Nothing is known to be under way, but the launch of a graph may wait for a rank that is gone. */
static void look_around(pd_nccl *c) {
    pd_os_sleep(CAPTURED_NS);
    /* A rank that has left in good order has launched its graphs */
    if (atomic_load(&c->g->abort) <= PD_WEIGHT_LEFT) return;
    pthread_mutex_lock(&c->lock);
    pd_work w = {.id = c->captured_id, .site = c->captured_site, .seq = c->captured_seq};
    pthread_mutex_unlock(&c->lock);
    if (pd_group_heard(c->g, &w)) give_up(c);
}

static void step(pd_nccl *c, pd_launch *l) {
    bool done = false;
    if (!l) look_around(c);
    else if (look(c, l, &done)) give_up(c);
    else if (done) end_first(c, PD_LAUNCH_DONE);
    else pd_os_sleep(POLL_NS);
}

static void *run(void *arg) {
    pd_nccl *c = arg;
    if (pd_nccl_on_device(c)) give_up(c);
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        pd_launch *l = c->first;
        bool failed = atomic_load(&c->failed), closes = failed && !c->closing;
        if (!l && !closes && (failed || !c->captured)) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        if (!failed) step(c, l);
        while (failed && end_first(c, PD_LAUNCH_FAILED)) {}
        if (closes) close_comm(c, false);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

pd_status pd_nccl_start_watch(pd_nccl *c) {
    PD_TRY(pd_os_thread_start("nccl", &c->watcher, run, c));
    c->watched = true;
    return PD_OK;
}

void pd_nccl_watch(pd_nccl *c, pd_launch *l) {
    pd_launch_retain(l);
    pthread_mutex_lock(&c->lock);
    if (!c->first) c->since = pd_os_now();
    *c->last = l;
    c->last = &l->next;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void pd_nccl_finish(pd_nccl *c, bool gently) {
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (c->watched) pd_os_thread_join(c->watcher);
    if (c->first) {
        (void)pd_fail(PD_E_DIST, "the group was destroyed before this collective was done (expected wait() first)");
        pd_nccl_fail(c);
    }
    while (end_first(c, PD_LAUNCH_FAILED)) {}
    if (!c->closing && c->comm) close_comm(c, gently && !atomic_load(&c->failed));
}
