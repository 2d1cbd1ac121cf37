/* Backward in two turns: gradients of inputs first (I), those of the other leaves later (W).

   An edge belongs to the first turn if it leads to an input, else to the second one. Without inputs the first turn has
   all edges that lead to nodes, so that in a pipeline's first stage, too, only parameters are left. A node with edges
   of both kinds runs in both turns and makes only that turn's gradients; between them it keeps the gradient that has
   come and what it has saved. What only the first turn needs is freed in it. A function of the user, and a node whose
   saved tensors a hook has replaced, run once: in the first turn, which keeps what is for the second. So every sum is
   made in the order of an undivided run, and has its bits. */
#include "autograd/engine_impl.h"
#include "base/mem.h"

/* Whether the node can run twice. */
static bool is_plain(const pd_node *n) {
    if (n->kind != &pd_node_of_op || n->nin > 64) return false;
    for (int i = 0; i < n->nsaved; i++)
        if (n->saved[i].packed) return false;
    return true;
}

pd_run_half pd_run_half_of(const pd_run *r, const entry *e) {
    const pd_node *n = e->node;
    pd_run_half s = {.calls = true, .last = true};
    uint64_t early = 0, late = 0;
    if (!r->b->split) return s;
    for (int i = 0; i < n->nin && i < 64; i++) {
        if (!n->edges[i].fn && !n->edges[i].leaf) continue;
        if (pd_run_target(r, &n->edges[i])->early)
            early |= UINT64_C(1) << i;
        else
            late |= UINT64_C(1) << i;
    }
    bool whole = early && !is_plain(n);
    s.skip = r->second ? early : late;
    s.hide = whole ? 0 : s.skip;
    s.skips_rest = r->second;
    s.defer = !r->second && late;
    s.calls = r->second ? !e->whole : (early || !late);
    s.last = r->second || !late || whole;
    return s;
}

pd_status pd_run_defer(pd_run *r, entry *e, const pd_run_half *s, pd_tensor **gin) {
    bool any = false;
    e->seen = true;
    e->whole = s->calls && s->last;
    for (int i = 0; i < e->node->nin; i++) any |= pd_run_skips(s, i) && gin[i];
    if (any) {
        PD_TRY(pd_calloc((size_t)e->node->nin * sizeof *e->kept, "backward", &e->kept));
        for (int i = 0; i < e->node->nin; i++) {
            e->kept[i] = gin[i];
            gin[i] = NULL;
        }
    }
    PD_TRY(pd_grow(&r->deferred, &r->cap_deferred, r->ndeferred + 1, sizeof *r->deferred, "backward"));
    r->deferred[r->ndeferred++] = (uint32_t)(e - r->entries);
    return PD_OK;
}

pd_status pd_run_second(pd_run *r) {
    if (!r->b->split || !r->started || r->second)
        return pd_fail(PD_E_RUNTIME,
                       "backward: the run has no second turn to make (expected a split run after its first)");
    r->second = true;
    for (size_t i = 0; i < r->ndeferred; i++) PD_TRY(pd_run_push(r, r->deferred[i]));
    r->ndeferred = 0;
    return PD_OK;
}
