/* Waiting for messages. A waiting rank moves messages on all lanes; it does not sleep while bytes move, then it
   naps. */
#include "comm/group/p2p_impl.h"
#include "comm/group/straggler.h"

#define SPIN_NS 50000     /* how long it looks without a sleep after bytes have moved; a sleep takes as long */
#define NAP_NS 20000      /* the first sleep between two looks; each is half as long again as the one before */
#define NAP_MOST_NS 500000

pd_status pd_p2p_lose(pd_group *g) {
    pd_p2p *p = g->p2p;
    pd_error e;
    pd_error_save(&e);
    pthread_mutex_lock(&p->lock);
    if (!p->error.kind) p->error = e;
    pthread_mutex_unlock(&p->lock);
    if (!pthread_mutex_trylock(&g->lock)) {
        pd_group_fail(g, !atomic_load(&g->abort));
        pthread_mutex_unlock(&g->lock);
    } else {
        pd_p2p_end(g);
    }
    return pd_error_restore(&e);
}

static bool is_done(const pd_work *w) { return atomic_load_explicit(&w->state, memory_order_acquire) >= PD_WORK_DONE; }

pd_status pd_p2p_carry_on(pd_group *g, const pd_work *w, int64_t ns) {
    if (!g->mesh) return pd_p2p_pump(g);
    if (pthread_mutex_trylock(&g->lock)) return PD_OK;
    pd_status status = pd_group_check(g);
    PD_THEN(pd_mesh_check(g->mesh));
    PD_THEN(pd_p2p_pump(g));
    if (!status && ns && !is_done(w)) pd_mesh_wait(g->mesh, ns);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static pd_status result_of(const pd_work *w) {
    if (atomic_load_explicit(&w->state, memory_order_acquire) == PD_WORK_DONE) return PD_OK;
    return pd_p2p_error(w->group);
}

/* That a peer has left matters only to a wait for that peer; every other end matters to all. */
static pd_status end_of_wait(pd_group *g, const pd_work *w) {
    int64_t now = pd_os_now();
    char call[400];
    bool somebody = w->peer >= 0;
    if (atomic_load(&g->abort) >= PD_WEIGHT_GONE) return pd_group_heard(g, w);
    if (g->mesh) { /* a closed connection that nothing explains */
        int64_t lost = somebody ? pd_mesh_lost(g->mesh, w->peer, true) : 0;
        if (lost && now - lost > PD_CLOSED_NS) goto gone;
    }
    for (int r = 0; r < g->size; r++) {
        int64_t left = atomic_load(&g->p2p->peers[r].left);
        bool matters = r != g->rank && (!somebody || r == w->peer);
        if (matters && (!left || now - left < PD_LEFT_GRACE_NS)) return PD_OK; /* another rank may still answer */
    }
gone:
    pd_work_text(g, w, call, sizeof call);
    int rank = somebody ? pd_group_name(g, w->peer) : -1;
    pd_status status = somebody ? pd_fail(PD_E_PEER, "%s: rank %d left the group", call, rank)
                                : pd_fail(PD_E_PEER, "%s: all other ranks left the group", call);
    pd_error_set_rank(rank);
    return status;
}

static bool is_missing(const pd_group *g, const pd_work *w, int r) {
    return r != g->rank && (w->peer < 0 ? !atomic_load(&g->p2p->peers[r].left) : r == w->peer);
}

static pd_status wait_slowly(pd_group *g, pd_work *w, pd_straggler *l, bool *fatal) {
    int64_t nap = NAP_NS, moving = l->start;
    for (size_t moved = atomic_load(&g->p2p->moved); !is_done(w);) {
        PD_TRY(pd_p2p_carry_on(g, w, nap));
        if (is_done(w)) break;
        if (moved != atomic_load(&g->p2p->moved)) {
            moved = atomic_load(&g->p2p->moved);
            moving = pd_os_now();
            nap = NAP_NS;
        }
        PD_TRY(end_of_wait(g, w));
        PD_TRY(pd_hooks_interrupt(g->hooks));
        PD_TRY(pd_straggler_look(l, fatal));
        if (pd_os_now() - moving < SPIN_NS) {
            if (!g->mesh) pd_os_yield();
            continue;
        }
        if (!g->mesh) pd_os_sleep(nap);
        nap = nap * 3 / 2 < NAP_MOST_NS ? nap * 3 / 2 : NAP_MOST_NS;
    }
    return PD_OK;
}

pd_status pd_p2p_wait(pd_work *w, int64_t deadline) {
    pd_group *g = w->group;
    bool fatal = true;
    int64_t start = pd_os_now(), end_spin = start + (g->spins_max ? SPIN_NS : 0);
    pd_status status = PD_OK;
    while (!is_done(w) && !status) {
        status = pd_p2p_carry_on(g, w, 0);
        if (is_done(w) || pd_os_now() > end_spin) break;
    }
    if (!is_done(w) && !status) {
        pd_straggler l = {.g = g, .w = w, .is_missing = is_missing, .any = w->peer < 0};
        void *token = pd_host_release();
        pd_straggler_begin(&l, deadline);
        if (w->peer >= 0) pd_flight_wait(&g->p2p->flight, w->seq, pd_group_name(g, w->peer));
        status = wait_slowly(g, w, &l, &fatal);
        pd_straggler_end(&l);
        pd_host_acquire(token);
    }
    if (is_done(w)) return result_of(w);
    return fatal ? pd_p2p_lose(g) : status;
}

pd_status pd_p2p_test(pd_work *w, bool *done) {
    pd_group *g = w->group;
    if (!is_done(w) && pd_p2p_carry_on(g, w, 0)) pd_p2p_lose(g);
    if (!is_done(w) && end_of_wait(g, w)) pd_p2p_lose(g);
    *done = is_done(w);
    return *done ? result_of(w) : PD_OK;
}

int pd_work_source(const pd_work *w) { return w->peer; }
