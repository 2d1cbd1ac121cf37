/* What an in-place op on a view does to the history of the base. */
#include "autograd/tape.h"
#include "base/mem.h"

/* The node of the base after `inner` has written one of its views. The gradient of the old base is the gradient in
   which the view's part is replaced by what inner passes back. The inputs are inner's, with the old base in place of
   the view. */
typedef struct slices {
    int written;         /* which input */
    pd_node *inner;      /* [strong] */
    pd_tensor *view;     /* [strong] geometry only: an alias */
    pd_tensor *base;     /* [strong] also an alias, for its geometry */
} slices;

static void slices_drop(pd_node *n) {
    slices *s = n->extra;
    if (!s) return;
    pd_node_release(s->inner);
    pd_tensor_release(s->view);
    pd_tensor_release(s->base);
    pd_free(s);
}

/* Runs inner's gradient on the part that it wrote. gin has room for inner's inputs. */
static void run_inner(pd_vjp *v, pd_node *inner, pd_tensor *g, pd_tensor **gin) {
    pd_vjp w = {.node = inner, .attrs = inner->attrs, .g = &g, .gin = gin, .create_graph = v->create_graph};
    inner->kind->run(&w);
    v->status = w.status;
    pd_vjp_end(&w);
}

static void slices_run(pd_vjp *v) {
    slices *s = v->node->extra;
    pd_tensor *t = NULL, *gin[PD_MAX_PARAMS] = {0}; /* in-place ops have fixed inputs */
    /* A copy of g with the base's strides, so that the view's strides address it. Made by ops, which record it if need
       be. */
    pd_status status = pd_engine.zeros_like(s->base, &t);
    pd_tensor *whole = pd_vjp_keep(v, status, t), *part, *g, *back;
    if (!whole || (v->status = pd_engine.write(whole, v->g[0]))) return;
    status = pd_engine.as_strided(whole, s->view, &t);
    if (!(part = pd_vjp_keep(v, status, t))) return;
    status = pd_engine.clone(part, &t);
    if (!(g = pd_vjp_keep(v, status, t))) return;
    run_inner(v, s->inner, g, gin);
    if (!(back = gin[s->written]) && !v->status) {
        status = pd_engine.zeros_like(part, &t);
        back = pd_vjp_keep(v, status, t);
    }
    if (!v->status) v->status = pd_engine.write(part, back);
    for (int i = 0; i < s->inner->nin; i++) {
        pd_vjp_set(v, i, i == s->written ? whole : gin[i]);
        pd_tensor_release(gin[i]);
    }
}

static pd_node *slices_inner(const pd_node *n) { return n->extra ? ((const slices *)n->extra)->inner : NULL; }

static const pd_node_kind copy_slices = {
    .name = "copy_slices", .run = slices_run, .drop = slices_drop, .inner = slices_inner};

static pd_status rebase_view(pd_node *n, pd_tensor *t, int written) {
    pd_tensor *base = t->base, *in[PD_MAX_PARAMS];
    pd_meta *bm = NULL;
    pd_node *cs;
    slices *s;
    if (n->nin > PD_MAX_PARAMS || n->nout > 1)
        return pd_fail(
            PD_E_NOTIMPL,
            "%s: an in-place op on a view has %d other inputs and %d outputs (expected at most %d and 1, or clone())",
            pd_node_name(n), n->nin, n->nout, PD_MAX_PARAMS);
    PD_TRY(pd_meta_get(base, &bm));
    for (int i = 0; i < n->nin; i++) in[i] = i == written ? base : NULL;
    PD_TRY(pd_node_new(&copy_slices, NULL, NULL, 0, in, n->nin, 1, 0, &cs));
    pd_status status = pd_calloc(sizeof *s, "tape", &s);
    if (status) goto fail;
    cs->extra = s;
    s->written = written;
    pd_node_retain(s->inner = n);
    PD_TRY_TO(fail, pd_tensor_alias(t, false, &s->view));
    PD_TRY_TO(fail, pd_tensor_alias(base, false, &s->base));
    for (int i = 0; i < n->nin; i++) { /* the base gets inner's other edges, too */
        if (i == written) continue;
        cs->edges[i] = n->edges[i];
        if (n->edges[i].fn) pd_node_retain(n->edges[i].fn);
        if (n->edges[i].leaf) pd_tensor_retain(n->edges[i].leaf);
    }
    cs->work = n->work;
    PD_TRY_TO(fail, pd_node_own(cs, 0, base));
    bm->rebased++;
    pd_node_release(cs);
    return PD_OK;
fail:
    pd_node_release(cs);
    return status;
}

pd_status pd_node_rebase(pd_node *n, pd_tensor *t, int written, int index) {
    if (!t->base) {
        PD_TRY(pd_node_own(n, index, t));
        t->meta->rebased++; /* histories of t's views are made anew when they are asked for */
        return PD_OK;
    }
    pd_node *fn;
    PD_TRY(rebase_view(n, t, written));
    PD_TRY(pd_tensor_history(t, &fn, &index)); /* t's own grad_fn: now a view of the new base */
    return PD_OK;
}
