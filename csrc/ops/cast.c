/* Copies: to another dtype, to new memory, into a given tensor. */
#include "autograd/autocast.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

static pd_status copy_kernel_of(pd_tensor *to, pd_tensor *from) {
    pd_tensor *t[2] = {to, from};
    pd_loop l;
    pd_loop_build(&l, 2, t);
    pd_here()->copy((pd_dtype)to->dtype, (pd_dtype)from->dtype, &l);
    return PD_OK;
}

static pd_status out_from_in(const pd_call *c) { return copy_kernel_of(c->out[0], c->in[0]); }

static pd_status cast_infer(pd_call *c) {
    return pd_infer_elementwise(c, (pd_dtype)((const pd_cast_attrs *)c->attrs)->dtype);
}

const pd_op pd_op_cast = {
    .sig = "cast(Tensor input, dtype dtype)",
    .doc = "input in another dtype.",
    .attrs = sizeof(pd_cast_attrs),
    .linear = PD_LINEAR_COPY,
    .infer = cast_infer,
    .kernel = out_from_in,
    .vjp = pd_cast_vjp,
};

static void pass(pd_vjp *v) { pd_vjp_set(v, 0, v->g[0]); }
static pd_status clone_infer(pd_call *c) {
    const pd_tensor *x = c->in[0];
    int64_t layout = c->attrs ? *(const int64_t *)c->attrs : PD_FORMAT_KEEP;
    if (layout == PD_FORMAT_KEEP) return pd_infer_elementwise(c, (pd_dtype)x->dtype);
    c->each = true;
    PD_TRY(pd_out_like(c, 0, (pd_dtype)x->dtype, x));
    if (layout == PD_FORMAT_CONTIGUOUS) return PD_OK;
    const int ndim = layout == PD_FORMAT_CHANNELS_LAST ? 4 : 5;
    PD_TRY(pd_check_ndim(c, 0, ndim));
    pd_shape_channels_last(ndim, c->out[0]->size, c->out[0]->stride);
    return PD_OK;
}

const pd_op pd_op_clone = {
    .sig = "clone(Tensor input, format memory_format=None)",
    .doc = "A copy of input with its own memory, in input's memory format (preserve_format) or in the given one.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(int64_t),
    .linear = PD_LINEAR_COPY,
    .infer = clone_infer,
    .kernel = out_from_in,
    .vjp = pass,
};

static pd_status copy_infer(pd_call *c) {
    int64_t size[PD_MAX_DIMS];
    int n = c->in[0]->ndim;
    for (int d = 0; d < n; d++) size[d] = c->in[0]->size[d];
    PD_TRY(pd_shape_broadcast("copy_", &n, size, c->in[1]->ndim, c->in[1]->size));
    if (!pd_shape_equal(n, size, c->in[0]->ndim, c->in[0]->size))
        return pd_fail(PD_E_SHAPE,
                       "copy_: src has shape %s, which does not broadcast to this tensor's shape (expected %s)",
                       pd_tensor_shape(c->in[1]), pd_tensor_shape(c->in[0]));
    c->each = true;
    return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]);
}

static pd_status copy_kernel(const pd_call *c) { return copy_kernel_of(c->out[0], c->in[1]); }
static void overwritten(pd_vjp *v) { /* the old values do not matter: a zero gradient, as in PyTorch */
    pd_tensor *zero = NULL;
    if (!pd_vjp_needs(v, 0)) return;
    pd_status status = pd_engine.zeros_like(v->g[0], &zero);
    pd_vjp_set(v, 0, pd_vjp_keep(v, status, zero));
}
static void copy_vjp(pd_vjp *v) {
    overwritten(v);
    pd_vjp_set(v, 1, v->g[0]);
}

const pd_op pd_op_copy = {
    .sig = "copy(Tensor input, Tensor src)",
    .doc = "copy_: copies src into input; src is broadcast and converted.",
    .linear = PD_LINEAR_COPY,
    .infer = copy_infer,
    .kernel = copy_kernel,
    .vjp = copy_vjp,
};

static pd_status fill_infer(pd_call *c) {
    PD_TRY(pd_scalar_fits("fill_", c->attrs, (pd_dtype)c->in[0]->dtype));
    c->each = true;
    return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]);
}

static pd_status fill_kernel(const pd_call *c) {
    char cell[16];
    pd_loop l;
    pd_scalar_store(c->attrs, (pd_dtype)c->out[0]->dtype, cell);
    pd_loop_build(&l, 1, c->out);
    pd_here()->fill(pd_dtype_size((pd_dtype)c->out[0]->dtype), cell, &l);
    return PD_OK;
}

const pd_op pd_op_fill = {
    .sig = "fill(Tensor input, Scalar value)",
    .doc = "fill_: every element becomes value.",
    .flags = PD_METHOD | PD_INPLACE,
    .attrs = sizeof(pd_scalar),
    .infer = fill_infer,
    .kernel = fill_kernel,
    .vjp = overwritten,
};
