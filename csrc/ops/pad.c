/* Padding with a number. Its gradient is padding again, by the negative amounts. */
#include <inttypes.h>

#include "ops/block.h"

typedef struct { pd_ints pad; pd_scalar value; } pad_attrs; /* pad: before and after, of the last dimension first */

static int64_t amount(const pad_attrs *a, int ndim, int d, int after) {
    int k = 2 * (ndim - 1 - d) + after;
    return k < a->pad.n ? a->pad.v[k] : 0;
}

static pd_status infer(pd_call *c) {
    const pad_attrs *a = c->attrs;
    const pd_tensor *x = c->in[0];
    int64_t size[PD_MAX_DIMS] = {0};
    if (a->pad.n % 2 || a->pad.n > 2 * x->ndim)
        return pd_fail(PD_E_SHAPE, "constant_pad_nd: pad %s for input %s (expected two numbers for each of at most %d dimensions)",
                       pd_shape_text((int)a->pad.n, a->pad.v), pd_tensor_shape(x), x->ndim);
    for (int d = 0; d < x->ndim; d++)
        if (__builtin_add_overflow(x->size[d], amount(a, x->ndim, d, 0), &size[d]) || __builtin_add_overflow(size[d], amount(a, x->ndim, d, 1), &size[d]) || size[d] < 0)
            return pd_fail(PD_E_SHAPE, "constant_pad_nd: pad %s leaves nothing of dimension %d of input %s", pd_shape_text((int)a->pad.n, a->pad.v), d, pd_tensor_shape(x));
    PD_TRY(pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, size));
    if (pd_is_nhwc(x)) pd_shape_channels_last(c->out[0]->size, c->out[0]->stride);
    return PD_OK;
}

static pd_status kernel(const pd_call *c) {
    const pad_attrs *a = c->attrs;
    pd_tensor to = *c->out[0], from = *c->in[0], *whole = c->out[0], *pair[2] = {&to, &from};
    size_t size = pd_dtype_size((pd_dtype)to.dtype);
    uint64_t value[2] = {0};
    pd_loop l;
    from.numel = 1;
    for (int d = 0; d < to.ndim; d++) {
        int64_t before = amount(a, to.ndim, d, 0), after = amount(a, to.ndim, d, 1);
        int64_t n = from.size[d] + (before < 0 ? before : 0) + (after < 0 ? after : 0);
        (before < 0 ? &from : &to)->offset += before < 0 ? -before * from.stride[d] : before * to.stride[d];
        from.size[d] = to.size[d] = n > 0 ? n : 0;
        from.numel *= from.size[d];
    }
    if (from.numel < whole->numel) {
        pd_scalar_store(&a->value, (pd_dtype)to.dtype, value);
        pd_loop_build(&l, 1, &whole);
        pd_cpu()->fill(size, value, &l);
    }
    to.numel = from.numel;
    if (!to.numel) return PD_OK;
    pd_loop_build(&l, 2, pair);
    pd_cpu()->copy((pd_dtype)to.dtype, (pd_dtype)to.dtype, &l);
    return PD_OK;
}

static void vjp(pd_vjp *v) {
    pad_attrs back = *(const pad_attrs *)v->attrs;
    for (int i = 0; i < back.pad.n; i++) back.pad.v[i] = -back.pad.v[i];
    back.value = pd_number(0);
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_constant_pad_nd, v->g[0], &back));
}

const pd_op pd_op_constant_pad_nd = {
    .sig = "constant_pad_nd(Tensor input, int[] pad, Scalar value=0)",
    .doc = "input with pad[0] elements of `value` before and pad[1] after it along the last dimension, pad[2], pad[3] along the one before, and so on; "
           "negative: without as many.",
    .flags = PD_FUNC | PD_NO_BROADCAST_GRAD, .attrs = sizeof(pad_attrs), .infer = infer, .kernel = kernel, .vjp = vjp,
};
