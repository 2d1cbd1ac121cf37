/* softmax and log_softmax along one dimension. */
#include "ops/block.h"

typedef struct { int64_t dim, dtype; } softmax_attrs;

static pd_status infer(pd_call *c) {
    int d;
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(pd_shape_dim(c->def->name, ((const softmax_attrs *)c->attrs)->dim, c->in[0]->ndim, &d));
    return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]);
}

static pd_block block_of(int ndim, const int64_t *size, int64_t dim) {
    pd_block b = {1, 1, 1};
    if (dim < 0) dim += ndim;
    for (int d = 0; d < ndim; d++) *(d < dim ? &b.outer : d == dim ? &b.n : &b.inner) *= size[d];
    return b;
}

static pd_status run(bool log, const pd_call *c) {
    pd_tensor *x = c->in[0];
    pd_block b = block_of(x->ndim, x->size, ((const softmax_attrs *)c->attrs)->dim);
    pd_here()->softmax(log, (pd_dtype)x->dtype, &b, pd_packed(x, c->scratch), pd_tensor_data(c->out[0]));
    return PD_OK;
}

static void fused(pd_vjp *v, bool log) {
    pd_tensor *y = pd_x_contiguous(v, pd_vjp_out(v, 0)), *g = pd_x_contiguous(v, v->g[0]);
    pd_tensor *gx = y && g ? pd_x_new(v, (pd_dtype)y->dtype, y->ndim, y->size) : NULL;
    if (!gx) return;
    pd_block b = block_of(y->ndim, y->size, ((const softmax_attrs *)v->attrs)->dim);
    pd_here()->softmax_grad(log, (pd_dtype)y->dtype, &b, pd_tensor_data(g), pd_tensor_data(y), pd_tensor_data(gx));
    pd_vjp_set(v, 0, gx);
}

static pd_tensor *sum_along(pd_vjp *v, pd_tensor *t) {
    pd_reduce_attrs a = {
        .dim = {.n = 1, .v = {((const softmax_attrs *)v->attrs)->dim}}, .keepdim = 1, .dtype = PD_NO_DTYPE};
    return pd_x_call1(v, PD_OP_sum, t, &a);
}

static pd_status softmax_kernel(const pd_call *c) { return run(false, c); }
static void softmax_fast(pd_vjp *v) { fused(v, false); }
static void softmax_vjp(pd_vjp *v) { /* y * (g - sum(g * y)) */
    pd_tensor *y = pd_vjp_out(v, 0), *gy = y ? pd_x_mul(v, v->g[0], y) : NULL;
    pd_val inner = pd_x2(v, PD_OP_sub, pd_val_of(v->g[0]), pd_val_of(sum_along(v, gy)));
    pd_vjp_set(v, 0, inner.t ? pd_x_mul(v, y, inner.t) : NULL);
}

static pd_status log_softmax_kernel(const pd_call *c) { return run(true, c); }
static void log_softmax_fast(pd_vjp *v) { fused(v, true); }
static void log_softmax_vjp(pd_vjp *v) { /* g - exp(y) * sum(g) */
    pd_tensor *y = pd_vjp_out(v, 0), *p = pd_x_call1(v, PD_OP_exp, y, NULL), *total = sum_along(v, v->g[0]);
    pd_tensor *taken = p && total ? pd_x_mul(v, p, total) : NULL;
    pd_vjp_set(v, 0, pd_x2(v, PD_OP_sub, pd_val_of(v->g[0]), pd_val_of(taken)).t);
}

const pd_op pd_op_softmax = {
    .sig = "softmax(Tensor input, int dim=-1, dtype dtype=None)",
    .doc = "exp(input) / sum(exp(input)) along dim.",
    .promote = PD_GIVEN,
    .cast = PD_CAST_FP32_CUDA,
    .save = PD_SAVE_OUT(0),
    .flags = PD_FUNC | PD_METHOD | PD_NN,
    .attrs = sizeof(softmax_attrs),
    .infer = infer,
    .kernel = softmax_kernel,
    .scratch = pd_packed_bytes,
    .vjp = softmax_vjp,
    .vjp_fast = softmax_fast,
};
const pd_op pd_op_log_softmax = {
    .sig = "log_softmax(Tensor input, int dim=-1, dtype dtype=None)",
    .doc = "input - log(sum(exp(input))) along dim.",
    .promote = PD_GIVEN,
    .cast = PD_CAST_FP32_CUDA,
    .save = PD_SAVE_OUT(0),
    .flags = PD_FUNC | PD_METHOD | PD_NN,
    .attrs = sizeof(softmax_attrs),
    .infer = infer,
    .kernel = log_softmax_kernel,
    .scratch = pd_packed_bytes,
    .vjp = log_softmax_vjp,
    .vjp_fast = log_softmax_fast,
};
