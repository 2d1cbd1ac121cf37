/* Views of the same memory in another dtype. No kernel runs.

   A complex tensor [...] is its parts [..., 2]: offset and strides count twice as many elements. */
#include "ops/parts.h"

#include <inttypes.h>
#include <string.h>

#define VIEW (PD_FUNC | PD_VIEW | PD_NO_BROADCAST_GRAD)

/* Starts output 0: x's memory in `dtype`, with ndim dimensions and as many of x's sizes as fit. */
static pd_tensor *start(pd_call *c, pd_dtype dtype, int ndim) {
    pd_tensor *o = c->out[0], *x = c->in[0];
    int n = ndim < x->ndim ? ndim : x->ndim;
    o->dtype = (int8_t)dtype;
    o->ndim = (int8_t)ndim;
    memcpy(o->size, x->size, sizeof *o->size * (size_t)n);
    pd_tensor_view_of(o, x);
    return o;
}

static pd_status real_infer(pd_call *c) {
    pd_tensor *x = c->in[0];
    pd_dtype t = (pd_dtype)x->dtype;
    if (!pd_dtype_is_complex(t))
        return pd_fail(PD_E_DTYPE, "view_as_real: input is %s (expected complex numbers)", pd_dtype_name(t));
    if (x->ndim == PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "view_as_real: input has too many dimensions (expected less than %d)", PD_MAX_DIMS);
    pd_tensor *o = start(c, pd_dtype_part(t), x->ndim + 1);
    for (int d = 0; d < x->ndim; d++) o->stride[d] = 2 * x->stride[d];
    o->size[x->ndim] = 2;
    o->stride[x->ndim] = 1;
    o->offset = 2 * x->offset;
    o->numel = 2 * x->numel;
    return PD_OK;
}

static void real_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[0], *even = NULL;
    bool fits = g->stride[g->ndim - 1] == 1 && g->offset % 2 == 0;
    for (int d = 0; d < g->ndim - 1; d++) fits = fits && g->stride[d] % 2 == 0;
    if (!fits) {
        pd_status status = pd_call1(PD_OP_clone, g, &(int64_t){PD_FORMAT_CONTIGUOUS}, &even);
        g = pd_vjp_keep(v, status, even);
    }
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_view_as_complex, g, NULL));
}

const pd_op pd_op_view_as_real = {
    .sig = "view_as_real(Tensor input)",
    .doc = "A view of complex numbers [...] as their real and imaginary parts [..., 2].",
    .flags = VIEW,
    .infer = real_infer,
    .vjp = real_vjp,
};

static pd_status complex_infer(pd_call *c) {
    pd_tensor *x = c->in[0];
    pd_dtype t = (pd_dtype)x->dtype;
    int last = x->ndim - 1;
    if (t != PD_F32 && t != PD_F64)
        return pd_fail(PD_E_DTYPE, "view_as_complex: input is %s (expected float32 or float64)", pd_dtype_name(t));
    if (last < 0 || x->size[last] != 2)
        return pd_fail(PD_E_SHAPE, "view_as_complex: input has shape %s (expected [..., 2])", pd_tensor_shape(x));
    bool even = x->offset % 2 == 0 && x->stride[last] == 1;
    for (int d = 0; d < last; d++) even = even && (x->stride[d] % 2 == 0 || x->size[d] < 2);
    if (!even && x->numel)
        return pd_fail(PD_E_SHAPE,
                       "view_as_complex: strides are %s, the offset is %" PRId64
                       " (expected even numbers, and stride 1 in the last dimension; use contiguous())",
                       pd_shape_text(x->ndim, x->stride), x->offset);
    pd_tensor *o = start(c, pd_dtype_with_parts(t), last);
    for (int d = 0; d < last; d++) o->stride[d] = x->size[d] < 2 ? 1 : x->stride[d] / 2;
    o->offset = x->offset / 2;
    o->numel = x->numel / 2;
    return PD_OK;
}

static void complex_vjp(pd_vjp *v) { pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_view_as_real, v->g[0], NULL)); }

const pd_op pd_op_view_as_complex = {
    .sig = "view_as_complex(Tensor input)",
    .doc = "A view of real and imaginary parts [..., 2], float32 or float64, as complex numbers [...].",
    .flags = VIEW,
    .infer = complex_infer,
    .vjp = complex_vjp,
};

/* ---- any dtype --------------------------------------------------------------------------------------------------- */

/* The last dimension, whose stride is 1, gets `more` times as many elements, or that many times fewer. */
static pd_status view_dtype_infer(pd_call *c) {
    pd_tensor *x = c->in[0];
    pd_dtype from = (pd_dtype)x->dtype, to = (pd_dtype)((const pd_cast_attrs *)c->attrs)->dtype;
    int last = x->ndim - 1;
    if (to == PD_NO_DTYPE) return pd_fail(PD_E_VALUE, "view: dtype is None (expected a dtype)");
    int64_t have = (int64_t)pd_dtype_size(from), want = (int64_t)pd_dtype_size(to),
            wider = want > have ? want / have : 1;
    bool fits = have == want || (last >= 0 && (x->stride[last] == 1 || x->size[last] < 2));
    if (fits && wider > 1) {
        fits = x->size[last] % wider == 0 && x->offset % wider == 0;
        for (int d = 0; d < last; d++) fits = fits && x->stride[d] % wider == 0;
    }
    if (!fits)
        return pd_fail(PD_E_SHAPE,
                       "view: a tensor of dtype %s, shape %s, strides %s and offset %" PRId64
                       " cannot be viewed as %s (expected a contiguous last dimension and multiples of %" PRId64 ")",
                       pd_dtype_name(from), pd_tensor_shape(x), pd_shape_text(x->ndim, x->stride), x->offset,
                       pd_dtype_name(to), wider);
    pd_tensor *o = start(c, to, x->ndim);
    pd_tensor_release(o->base); /* it does not share x's history */
    o->base = NULL;
    o->offset = x->offset * have / want;
    o->numel = x->numel * have / want;
    for (int d = 0; d < x->ndim; d++) o->stride[d] = d < last || have == want ? x->stride[d] * have / want : 1;
    if (last >= 0) o->size[last] = x->size[last] * have / want;
    return PD_OK;
}

const pd_op pd_op_view_dtype = {
    .sig = "view_dtype(Tensor input, dtype dtype)",
    .doc = "A view of input's bytes as numbers of another dtype: Tensor.view(dtype). It has no gradient.",
    .flags = PD_FUNC | PD_VIEW,
    .attrs = sizeof(pd_cast_attrs),
    .infer = view_dtype_infer,
};

/* ---- for gradients ----------------------------------------------------------------------------------------------- */

pd_tensor *pd_x_part(pd_vjp *v, pd_tensor *t, int64_t part) {
    struct { int64_t dim, index; } at = {-1, part};
    return pd_x_call1(v, PD_OP_select, pd_x_call1(v, PD_OP_view_as_real, t, NULL), &at);
}

pd_status pd_parts_strided(pd_tensor *t, const pd_tensor *like, pd_tensor **out) {
    pd_dtype from = (pd_dtype)t->dtype, to = (pd_dtype)like->dtype;
    bool wide = pd_dtype_is_complex(to);
    if (from == to || pd_dtype_part(from) != pd_dtype_part(to))
        return pd_fail(PD_E_NOTIMPL,
                       "view: a view of a %s tensor as %s is used after an in-place write (expected a new view)",
                       pd_dtype_name(from), pd_dtype_name(to));
    pd_strided_attrs a = {.size = {.n = like->ndim + wide}, .stride = {.n = like->ndim + wide}};
    int64_t more = wide ? 2 : 1;
    a.offset = like->offset * more;
    for (int d = 0; d < like->ndim; d++) a.size.v[d] = like->size[d], a.stride.v[d] = like->stride[d] * more;
    if (wide) a.size.v[like->ndim] = 2, a.stride.v[like->ndim] = 1;
    pd_vjp v = {0};
    pd_tensor *parts = wide ? t : pd_x_call1(&v, PD_OP_view_as_real, t, NULL);
    pd_tensor *view = pd_x_call1(&v, PD_OP_as_strided, parts, &a);
    return pd_x_end(&v, wide ? pd_x_call1(&v, PD_OP_view_as_complex, view, NULL) : view, out);
}
