/* Waiting: the one place where a rank stands still.

   If every rank has a core, a wait first spins for some microseconds: for a shorter time after each wait in which that
   was in vain, since others may use the cores, and for a longer one after each success. Then it yields the core between
   looks. Then it sleeps on the word of the first missing rank, in slices of at most 50 ms.

   A rank that stores its word wakes sleepers only if a flag says that somebody sleeps. It stores the word, makes a full
   fence and reads the flag; a sleeper sets the flag, makes a full fence and reads the word. So at least one of them
   sees the other. An open gate comes before a failure: a collective that a dead rank has completed is complete. */
#include <stdio.h>

#include "comm/group/p2p.h"
#include "comm/group/straggler.h"

#define YIELD_NS 60000          /* a futex wake costs 5-50 us, so shorter waits do not sleep */
#define NAP_NS 1000000          /* the shortest sleep, and the longest one if messages have to be moved */
#define MISMATCH_NS 1000000000  /* differing ranks wait this long for the others, so that the message names all */

static atomic_uint *word_of(const pd_group *g, const pd_work *w, int r) {
    return w->at_board ? &g->boards[r]->line[w->seq & 1].seq : &g->boards[r]->step;
}

static int missing_rank(const pd_group *g, const pd_work *w) { return (g->rank + w->arrived) % g->size; }

static bool has_arrived(const pd_group *g, const pd_work *w, int r) {
    return (int32_t)(atomic_load_explicit(word_of(g, w, r), memory_order_acquire) - w->target) >= 0;
}

bool pd_gate_open(pd_group *g, pd_work *w) {
    for (; w->arrived < g->size; w->arrived++) {
        int r = missing_rank(g, w);
        if (has_arrived(g, w, r)) continue;
        if (!g->mesh) return false;
        pd_mesh_pump(g->mesh, r);
        if (!has_arrived(g, w, r)) return false;
    }
    return !g->mesh || pd_mesh_flush(g->mesh); /* bytes that are being sent may be overwritten after the gate */
}

static size_t place_of(const pd_group *g, const void *p) {
    return (size_t)((const char *)p - (char *)g->boards[g->rank]);
}

void pd_gate_send_line(pd_group *g, const pd_line *line) {
    const char *rest = (const char *)line + sizeof line->seq;
    for (int d = 1; d < g->size; d++)
        pd_mesh_send(g->mesh, (g->rank + d) % g->size, place_of(g, rest), rest, PD_LINE_BYTES - sizeof line->seq);
}

static void ring_mesh(pd_group *g, const atomic_uint *word) {
    uint32_t value = atomic_load_explicit(word, memory_order_relaxed);
    for (int d = 1; d < g->size; d++) pd_mesh_store(g->mesh, (g->rank + d) % g->size, place_of(g, word), value);
    pd_mesh_flush(g->mesh);
}

void pd_gate_ring(pd_group *g, atomic_uint *word) {
    if (g->mesh) {
        ring_mesh(g, word);
        return;
    }
    atomic_thread_fence(memory_order_seq_cst);
    for (int r = 0; r < g->size; r++)
        if (__builtin_expect(atomic_load_explicit(&g->boards[r]->asleep, memory_order_relaxed), 0) && r != g->rank) {
            pd_os_wake(word);
            return;
        }
}

static void sleep_on(pd_group *g, pd_work *w, int64_t ns) {
    atomic_uint *word = word_of(g, w, missing_rank(g, w)), *flag = &g->boards[g->rank]->asleep;
    atomic_store(&g->sleeping, word);
    atomic_store(flag, 1);
    uint32_t seen = atomic_load(word);
    if ((int32_t)(seen - w->target) < 0 && !atomic_load(&g->abort))
        pd_os_wait(word, seen, ns < PD_SLICE_NS ? ns : PD_SLICE_NS);
    atomic_store(flag, 0);
    atomic_store(&g->sleeping, NULL);
}

int pd_work_text(const pd_group *g, const pd_work *w, char *text, size_t size) {
    char site[256] = "";
    int n = pd_identity_text(&w->id, text, size);
    if (g->hooks && g->hooks->site && w->site) g->hooks->site(w->site, site, sizeof site);
    if (n < 0 || (size_t)n >= size) return n;
    n += snprintf(text + n, size - (size_t)n, "%s%s", *site ? " at " : "", site);
    if (!w->seq || (size_t)n >= size) return n; /* a batch's messages have none */
    return n + snprintf(text + n, size - (size_t)n, " (#%u)", w->seq);
}

static bool lines_differ(const pd_group *g, const pd_work *w) {
    for (int r = 0; w->at_board && g->check && r < g->size; r++) {
        const pd_line *l = &g->boards[r]->line[w->seq & 1];
        if (atomic_load_explicit(&l->seq, memory_order_acquire) == w->seq && l->hash != w->hash) return true;
    }
    return false;
}

/* Fails if a peer's connection is closed and the control plane has had time to say why. */
static pd_status look_at_mesh(pd_group *g, const pd_work *w) {
    char call[400];
    PD_TRY(pd_mesh_check(g->mesh));
    for (int r = 0; r < g->size; r++) {
        int64_t lost = r == g->rank ? 0 : pd_mesh_lost(g->mesh, r, !has_arrived(g, w, r));
        if (!lost || pd_os_now() - lost < PD_CLOSED_NS) continue;
        pd_work_text(g, w, call, sizeof call);
        pd_status status = pd_fail(PD_E_PEER, "%s: the connection to rank %d is lost", call, pd_group_name(g, r));
        pd_error_set_rank(pd_group_name(g, r));
        return status;
    }
    return PD_OK;
}

static bool is_missing(const pd_group *g, const pd_work *w, int r) { return !has_arrived(g, w, r); }

/* Looks for failures, stragglers and signals between two sleeps. PD_OK: go on waiting. */
static pd_status look(pd_group *g, pd_work *w, pd_straggler *l, bool *fatal) {
    PD_TRY(pd_group_heard(g, w));
    PD_TRY(pd_hooks_interrupt(g->hooks));
    if (g->mesh) PD_TRY(look_at_mesh(g, w));
    if (g->p2p) PD_TRY(pd_p2p_pump(g));
    if (pd_os_now() - l->start > MISMATCH_NS && lines_differ(g, w)) return pd_group_mismatch(g, w);
    return pd_straggler_look(l, fatal);
}

static pd_status wait_slowly(pd_group *g, pd_work *w, pd_straggler *l, bool *fatal) {
    while (pd_os_now() - l->start < YIELD_NS) {
        if (pd_gate_open(g, w)) return PD_OK;
        pd_os_yield();
    }
    while (!pd_gate_open(g, w)) {
        pd_status status = look(g, w, l, fatal);
        if (status) { /* the gate may have opened meanwhile; an interrupt stays an interrupt */
            if (status == PD_E_PYTHON || !*fatal || !pd_gate_open(g, w)) return status;
            return PD_OK;
        }
        if (g->mesh && pd_gate_open(g, w)) return PD_OK; /* moving messages may have brought what we wait for */
        int64_t left = pd_straggler_rest(l);
        if (pd_p2p_used(g) && left > NAP_NS) left = NAP_NS;
        if (left < NAP_NS) left = NAP_NS;
        if (g->mesh) pd_mesh_wait(g->mesh, left);
        else sleep_on(g, w, left);
    }
    return PD_OK;
}

pd_status pd_gate_wait(pd_group *g, pd_work *w, int64_t deadline, bool *fatal) {
    *fatal = true;
    for (int i = 0; i < g->spins; i++) {
        if (pd_gate_open(g, w)) {
            g->spins = g->spins * 2 < g->spins_max ? g->spins * 2 : g->spins_max;
            return PD_OK;
        }
        pd_os_pause();
    }
    if (g->spins > 8) g->spins /= 2;
    pd_flight_wait(&g->flight, w->seq, pd_group_name(g, missing_rank(g, w)));
    pd_straggler l = {.g = g, .w = w, .is_missing = is_missing};
    void *token = pd_host_release();
    pd_straggler_begin(&l, deadline);
    pd_status status = wait_slowly(g, w, &l, fatal);
    pd_straggler_end(&l);
    pd_host_acquire(token);
    return status;
}
