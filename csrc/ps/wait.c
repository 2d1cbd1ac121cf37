/* Waiting for other workers: for locks, pushes, rounds and clocks. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "comm/group/group_impl.h"
#include "ps/ps_impl.h"

#define SPIN_NS 20000

void pd_ps_tick(pd_ps *ps) {
    atomic_fetch_add(&ps->head->tick, 1);
    if (ps->workers > 1 && atomic_load(&ps->head->asleep)) pd_os_wake(&ps->head->tick);
}

pd_status pd_ps_interrupted(pd_ps *ps) { return pd_hooks_interrupt(ps->group->hooks); }

void pd_ps_enter(pd_ps *ps) { pd_host_lock(&ps->lock); }
void pd_ps_leave(pd_ps *ps) { pthread_mutex_unlock(&ps->lock); }

static pd_status wait_for_lock(pd_ps *ps, pthread_mutex_t *lock, int *e) {
    const int64_t start = pd_os_now();
    while ((*e = pd_os_lock_robust(lock, PD_SLICE_NS)) == EBUSY) {
        PD_TRY(pd_ps_interrupted(ps));
        if (pd_os_now() - start > ps->timeout_ns)
            return pd_fail(PD_E_TIMEOUT, "push: rank %d waited %.1f s for a lock of the store", ps->rank,
                           (double)ps->timeout_ns * 1e-9);
    }
    return PD_OK;
}

pd_status pd_ps_lock(pd_ps *ps, pthread_mutex_t *lock, bool *died) {
    int e = pthread_mutex_trylock(lock);
    if (e == EBUSY) {
        void *token = pd_host_release();
        pd_status status = wait_for_lock(ps, lock, &e);
        pd_host_acquire(token);
        PD_TRY(status);
    }
    *died = e == EOWNERDEAD;
    return !e || *died ? PD_OK : pd_fail(PD_E_OS, "push: a lock of the store failed: %s", strerror(e));
}

/* Finishes what a worker that has gone has pushed. */
static pd_status settle(pd_ps *ps, int w) {
    for (size_t i = 0; i < ps->nkeys && ps->o.mode == PD_PS_ASYNC; i++) {
        PD_TRY(pd_ps_learn_rule(ps->keys[i]));
        PD_TRY(pd_ps_apply(ps->keys[i], w, pushed(ps->keys[i], w)));
    }
    for (size_t i = 0; i < ps->ntables && ps->o.mode == PD_PS_ASYNC; i++) PD_TRY(pd_table_settle(ps->tables[i], w));
    ps->settled[w] = true;
    return PD_OK;
}

pd_status pd_ps_check_workers(pd_ps *ps) {
    for (int w = 0; w < ps->workers && ps->link; w++) {
        worker *c = worker_at(ps, w);
        if (w == ps->rank) continue;
        if (!atomic_load(&c->gone)) {
            pd_weight weight = pd_link_left(ps->link, pd_group_link_rank(ps->group, w));
            if (!weight) continue;
            if (weight == PD_WEIGHT_LEFT) atomic_store(&c->has_left, 1);
            atomic_store(&c->gone, 1);
            pd_ps_tick(ps);
        }
        if (!ps->settled[w]) PD_TRY(settle(ps, w));
    }
    return PD_OK;
}

/* A wait that nobody can end any more, and one for clocks in a store that does not go on without a dead worker. */
static pd_status check_hope(pd_ps *ps, const wait *w) {
    for (int r = 0; r < ps->workers && !ps->o.goes_on; r++) {
        const worker *c = worker_at(ps, r);
        const int name = pd_group_link_rank(ps->group, r);
        const bool left = atomic_load(&c->has_left);
        if (!atomic_load(&c->gone) || !(w->lacks(ps, w->ctx, r) || (w->all && !left))) continue;
        pd_status status =
            pd_fail(PD_E_PEER,
                    "%s: rank %d waits in round %" PRIu64 " of %s for rank %d, which has %s after %" PRIu64
                    " pushes (expected on_death=\"continue\" for a store that goes on without it)",
                    w->what, pd_group_link_rank(ps->group, ps->rank), w->number, w->name, name, left ? "left" : "died",
                    get(&c->pushes));
        pd_error_set_rank(name);
        return status;
    }
    return PD_OK;
}

/* "rank 2 (train.py:12, in main)" */
static void name_missing(pd_ps *ps, const wait *w, char *text, size_t size) {
    size_t at = 0;
    *text = 0;
    for (int r = 0; r < ps->workers && at + 1 < size; r++) {
        char where[200] = "";
        if (r == ps->rank || atomic_load(&worker_at(ps, r)->gone) || !w->lacks(ps, w->ctx, r)) continue;
        const int name = pd_group_link_rank(ps->group, r);
        bool known = pd_link_place(ps->link, name, where, sizeof where) && *where;
        at += (size_t)snprintf(text + at, size - at, "%s%d%s%s%s", at ? ", " : "", name, known ? " (" : "", where,
                               known ? ")" : "");
    }
}

static void warn(pd_ps *ps, const wait *w) {
    char who[1000];
    for (int r = 0; r < ps->workers; r++)
        if (r != ps->rank && w->lacks(ps, w->ctx, r)) pd_link_ask(ps->link, pd_group_link_rank(ps->group, r));
    pd_os_sleep(100000000); /* for the answers */
    name_missing(ps, w, who, sizeof who);
    if (*who)
        pd_log(PD_LOG_WARN, "%s: rank %d has waited %.0f s in round %" PRIu64 " of %s for rank %s", w->what,
               pd_group_link_rank(ps->group, ps->rank), (double)ps->warn_ns * 1e-9, w->number, w->name, who);
}

static pd_status wait_slowly(pd_ps *ps, const wait *w) {
    const int64_t start = pd_os_now();
    bool warned = ps->warn_ns <= 0;
    char who[1000];
    for (;;) {
        atomic_fetch_add(&ps->head->asleep, 1);
        const uint32_t seen = atomic_load(&ps->head->tick);
        const bool done = w->done(ps, w->ctx);
        if (!done) pd_os_wait(&ps->head->tick, seen, PD_SLICE_NS);
        atomic_fetch_sub(&ps->head->asleep, 1);
        if (done || w->done(ps, w->ctx)) return PD_OK;
        PD_TRY(pd_ps_check_workers(ps));
        if (w->done(ps, w->ctx)) return PD_OK; /* after the last words of those that have gone */
        PD_TRY(check_hope(ps, w));
        PD_TRY(pd_ps_interrupted(ps));
        const int64_t waited = pd_os_now() - start;
        if (!warned && waited > ps->warn_ns) warned = true, warn(ps, w);
        if (waited < ps->timeout_ns) continue;
        name_missing(ps, w, who, sizeof who);
        return pd_fail(PD_E_TIMEOUT, "%s: rank %d waited %.1f s in round %" PRIu64 " of %s for rank %s", w->what,
                       pd_group_link_rank(ps->group, ps->rank), (double)waited * 1e-9, w->number, w->name, who);
    }
}

pd_status pd_ps_wait(pd_ps *ps, const wait *w) {
    for (int64_t end = pd_os_now() + SPIN_NS; pd_os_now() < end; pd_os_pause())
        if (w->done(ps, w->ctx)) return PD_OK;
    void *token = pd_host_release();
    pd_status status = wait_slowly(ps, w);
    pd_host_acquire(token);
    return status;
}
