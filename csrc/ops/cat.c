/* Joining tensors along a dimension. */
#include "base/mem.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

typedef struct { int64_t dim; } dim_attrs;
typedef struct { int64_t dim, start, end, step; } slice_attrs;

static bool is_skipped(const pd_tensor *t) {
    return t->ndim == 1 && t->size[0] == 0;
} /* PyTorch's legacy empty tensor */

static pd_status cat_dim(pd_call *c, int *dim, int *first) {
    *first = 0;
    if (c->nin == 0) return pd_fail(PD_E_VALUE, "cat: got no tensors (expected a non-empty list of Tensors)");
    while (*first < c->nin - 1 && is_skipped(c->in[*first])) ++*first;
    if (c->in[*first]->ndim == 0)
        return pd_fail(
            PD_E_SHAPE,
            "cat: a zero-dimensional tensor cannot be concatenated (expected at least 1 dimension, or stack)");
    return pd_shape_dim("cat", ((const dim_attrs *)c->attrs)->dim, c->in[*first]->ndim, dim);
}

static pd_status cat_infer(pd_call *c) {
    int dim, first;
    PD_TRY(cat_dim(c, &dim, &first));
    const pd_tensor *x = c->in[first];
    int64_t size[PD_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++) size[d] = d == dim ? 0 : x->size[d];
    for (int i = 0; i < c->nin; i++) {
        const pd_tensor *t = c->in[i];
        if (is_skipped(t)) continue;
        bool fits = t->ndim == x->ndim;
        for (int d = 0; d < x->ndim && fits; d++) fits = d == dim || t->size[d] == x->size[d];
        if (!fits)
            return pd_fail(PD_E_SHAPE,
                           "cat: tensor %d has shape %s (expected the shape of tensor %d, %s, except in dimension %d)",
                           i, pd_tensor_shape(t), first, pd_tensor_shape(x), dim);
        size[dim] += t->size[dim];
    }
    if (is_skipped(x)) size[0] = 0;
    return pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, size);
}

static pd_status cat_kernel(const pd_call *c) {
    int dim, first;
    PD_TRY(cat_dim((pd_call *)(uintptr_t)c, &dim, &first));
    pd_tensor part = *c->out[0];
    for (int i = 0; i < c->nin; i++) {
        pd_tensor *x = c->in[i];
        if (is_skipped(x)) continue;
        part.size[dim] = x->size[dim];
        part.numel = x->numel;
        pd_tensor *t[2] = {&part, x};
        pd_loop l;
        pd_loop_build(&l, 2, t);
        pd_here()->copy((pd_dtype)part.dtype, (pd_dtype)x->dtype, &l);
        part.offset += x->size[dim] * part.stride[dim];
    }
    return PD_OK;
}

static void cat_vjp(pd_vjp *v) {
    int64_t dim = ((const dim_attrs *)v->attrs)->dim;
    pd_tensor *g = v->g[0];
    if (dim < 0) dim += g->ndim;
    slice_attrs s = {.dim = dim, .step = 1};
    for (int i = 0; i < v->node->nin; i++) {
        const pd_edge *e = &v->node->edges[i];
        if (e->ndim == 1 && e->size[0] == 0 && g->ndim != 1) continue;
        s.end = s.start + e->size[dim];
        if (pd_vjp_needs(v, i)) pd_vjp_set(v, i, pd_x_call1(v, PD_OP_slice, g, &s));
        s.start = s.end;
    }
}

const pd_op pd_op_cat = {
    .sig = "cat(Tensor[] tensors, int dim=0)",
    .doc = "Concatenates tensors along dim; all other sizes must be equal.",
    .promote = PD_ARITH,
    .cast = PD_CAST_WIDEST,
    .flags = PD_FUNC | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(dim_attrs),
    .infer = cat_infer,
    .kernel = cat_kernel,
    .vjp = cat_vjp,
};

static pd_status stack_compose(pd_call *c) {
    pd_tensor **rows;
    int dim;
    if (c->nin == 0) return pd_fail(PD_E_VALUE, "stack: got no tensors (expected a non-empty list of Tensors)");
    PD_TRY(pd_shape_dim("stack", ((const dim_attrs *)c->attrs)->dim, c->in[0]->ndim + 1, &dim));
    for (int i = 1; i < c->nin; i++)
        if (!pd_tensor_same_shape(c->in[i], c->in[0]))
            return pd_fail(PD_E_SHAPE,
                           "stack: tensor %d has shape %s, tensor 0 %s (expected each tensor to be equal size)", i,
                           pd_tensor_shape(c->in[i]), pd_tensor_shape(c->in[0]));
    PD_TRY(pd_calloc(sizeof *rows * (size_t)c->nin, "stack", &rows));
    dim_attrs a = {dim};
    pd_status status = PD_OK;
    for (int i = 0; i < c->nin && !status; i++) status = pd_call1(PD_OP_unsqueeze, c->in[i], &a, &rows[i]);
    PD_THEN(pd_apply(PD_DEF(cat), rows, c->nin, &a, c->out, NULL));
    for (int i = 0; i < c->nin; i++) pd_tensor_release(rows[i]);
    pd_free(rows);
    return status;
}

const pd_op pd_op_stack = {
    .sig = "stack(Tensor[] tensors, int dim=0)",
    .doc = "Joins tensors of one shape along a new dimension dim.",
    .flags = PD_FUNC,
    .attrs = sizeof(dim_attrs),
    .compose = stack_compose,
};
