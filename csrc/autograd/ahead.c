/* What a gradient will be used for, before it is made: so the kernel that makes it can make more in the same pass. */
#include "autograd/engine_impl.h"

/* Whether only e's node, which is an op's, sees its gradients. */
static bool is_unseen(const entry *e) {
    return e->node && e->node->kind == &pd_node_of_op && !e->node->hooks && e->needed && e->first_capture < 0 &&
           !e->is_root;
}

/* The op's node behind e, if a gradient that comes over e is the last one of its output, and nobody but the node sees
   it; first: and the only one. Else NULL. */
static const pd_node *alone(const pd_run *r, const pd_edge *e, bool first) {
    entry *to = e->fn && !r->b->fed && !r->b->create_graph ? pd_run_find(r, e->fn) : NULL;
    if (!to || to->waiting != 1 || !is_unseen(to)) return NULL;
    pd_tensor **g = pd_run_grads(to);
    return first && g && g[e->index] ? NULL : e->fn;
}

bool pd_run_reads_low(const pd_run *r, const pd_edge *e) {
    const pd_node *n = e->dtype == PD_F32 && e->device >= 0 ? alone(r, e, true) : NULL;
    return n && n->def->op->reads_low == 1 + e->index;
}

static bool has_bias(const pd_node *n) {
    const pd_edge *bias = n && n->def->op->bias ? &n->edges[n->def->op->bias - 1] : NULL;
    return bias && (bias->fn || bias->leaf);
}

bool pd_run_wants_sums(const entry *e) { return is_unseen(e) && has_bias(e->node); }

pd_ahead pd_vjp_ahead(const pd_vjp *v, int i, bool first) {
    const pd_edge *e = &v->node->edges[i];
    const pd_run *r = v->run;
    const pd_node *n = r && !v->status && e->device >= 0 ? alone(r, e, first) : NULL;
    pd_ahead found = {PD_NO_DTYPE, has_bias(n)};
    if (!n || e->dtype != PD_F32 || !n->def->op->passes || !n->def->op->passes(n->attrs)) return found;
    for (int k = 0; k < n->nin && found.low == PD_NO_DTYPE; k++) {
        const pd_edge *to = &n->edges[k];
        bool passed = (to->fn || to->leaf) && pd_shape_equal(to->ndim, to->size, e->ndim, e->size);
        if (!passed || (to->dtype != PD_BF16 && to->dtype != PD_F16)) continue;
        found = (pd_ahead){(pd_dtype)to->dtype, has_bias(alone(r, to, true))};
    }
    return found;
}
