/* Batch normalisation: y = (x - mean) * rstd * weight + bias over all dims but the second. */
#include <inttypes.h>

#include "ops/block.h"

typedef struct { int64_t training; double momentum, eps; } norm_attrs;
enum { X, MEAN, VAR, WEIGHT, BIAS };

static pd_batch_norm shape_of(const pd_tensor *x, double eps, pd_dtype params) {
    pd_batch_norm s = {
        .N = x->size[0], .C = x->size[1], .S = 1, .channels_last = pd_is_nhwc(x), .eps = eps, .params = params};
    for (int d = 2; d < x->ndim; d++) s.S *= x->size[d];
    return s;
}

/* The dtype of statistics, weight and bias; x's dtype if there are none. */
static pd_dtype params_of(const pd_call *c) {
    for (int i = MEAN; i <= BIAS; i++)
        if (c->in[i]) return (pd_dtype)c->in[i]->dtype;
    return (pd_dtype)c->in[X]->dtype;
}

static pd_status infer(pd_call *c) {
    static const char *const names[] = {"input", "running_mean", "running_var", "weight", "bias"};
    const norm_attrs *a = c->attrs;
    pd_tensor *x = c->in[X];
    const pd_dtype own = (pd_dtype)x->dtype, given = params_of(c),
                   want = given == PD_F32 && pd_dtype_computed(own) == PD_F32 ? PD_F32 : own;
    PD_TRY(pd_check_float(c, X));
    if (x->ndim < 2)
        return pd_fail(PD_E_SHAPE, "batch_norm: input has shape %s (expected [N, C, ...])", pd_tensor_shape(x));
    for (int i = MEAN; i <= BIAS; i++) {
        pd_tensor *t = c->in[i];
        if (t && (t->ndim != 1 || t->size[0] != x->size[1] || !pd_tensor_is_contiguous(t) || t->dtype != (int)want))
            return pd_fail(PD_E_SHAPE,
                           "batch_norm: %s is %s of shape %s (expected contiguous %s of shape [%" PRId64 "])", names[i],
                           pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), pd_dtype_name(want), x->size[1]);
    }
    if (!a->training && (!c->in[MEAN] || !c->in[VAR]))
        return pd_fail(PD_E_VALUE,
                       "batch_norm: running_mean or running_var is missing (expected both where training is False)");
    pd_batch_norm s = shape_of(x, a->eps, given);
    if (a->training && s.N * s.S < 2)
        return pd_fail(PD_E_VALUE,
                       "batch_norm: got %" PRId64
                       " value per channel, input %s (Expected more than 1 value per channel when training)",
                       s.N * s.S, pd_tensor_shape(x));
    PD_TRY(pd_out_like(c, 0, (pd_dtype)x->dtype, x));
    if (s.channels_last) pd_shape_channels_last(4, x->size, c->out[0]->stride);
    PD_TRY(pd_out_shape(c, 1, pd_dtype_computed((pd_dtype)x->dtype), 1, &s.C));
    return pd_out_shape(c, 2, pd_dtype_computed((pd_dtype)x->dtype), 1, &s.C);
}

static const void *data_or_null(const pd_tensor *t) { return t ? pd_tensor_data(t) : NULL; }
static size_t scratch(const pd_call *c) { return pd_is_nhwc(c->in[X]) ? 0 : pd_packed_bytes(c); }

static pd_status kernel(const pd_call *c) {
    const norm_attrs *a = c->attrs;
    pd_tensor *x = c->in[X];
    pd_batch_norm s = shape_of(x, a->eps, params_of(c));
    pd_dtype t = (pd_dtype)x->dtype;
    const void *data = s.channels_last ? pd_tensor_data(x) : pd_packed(x, c->scratch), *w = data_or_null(c->in[WEIGHT]),
               *b = data_or_null(c->in[BIAS]);
    void *mean = (void *)(uintptr_t)data_or_null(c->in[MEAN]), *var = (void *)(uintptr_t)data_or_null(c->in[VAR]);
    if (!a->training) {
        pd_here()->batch_norm_eval(t, &s, data, w, b, mean, var, pd_tensor_data(c->out[0]));
        return PD_OK;
    }
    if (mean) PD_TRY(pd_tensor_before_write("batch_norm", c->in[MEAN]));
    if (var) PD_TRY(pd_tensor_before_write("batch_norm", c->in[VAR]));
    pd_here()->batch_norm_train(t, &s, data, w, b, a->momentum, mean, var, pd_tensor_data(c->out[0]),
                                pd_tensor_data(c->out[1]), pd_tensor_data(c->out[2]));
    return PD_OK;
}

/* ---- gradients: written over x, mean and rstd as ops, fused where that will do ----------------------------------- */

static pd_tensor *per_channel(pd_vjp *v, pd_tensor *t) { /* [C] as [1, C, 1, ...] */
    int n = v->node->edges[X].ndim;
    pd_shape_attrs a = {.shape = {.n = n}};
    for (int d = 0; d < n; d++) a.shape.v[d] = d == 1 ? -1 : 1;
    return pd_x_call1(v, PD_OP_reshape, t, &a);
}

static pd_tensor *over_rest(pd_vjp *v, pd_op_id op, pd_tensor *t, bool keepdim) {
    int n = v->node->edges[X].ndim;
    pd_reduce_attrs a = {.keepdim = keepdim, .dtype = PD_NO_DTYPE};
    for (int d = 0; d < n; d++)
        if (d != 1) a.dim.v[a.dim.n++] = d;
    return pd_x_call1(v, op, t, &a);
}

static pd_val val(pd_tensor *t) { return pd_val_of(t); }

static pd_dtype params_in(pd_vjp *v) {
    for (int i = MEAN; i <= BIAS; i++)
        if (v->node->edges[i].ndim) return (pd_dtype)v->node->edges[i].dtype;
    return (pd_dtype)v->node->edges[X].dtype;
}

static void vjp(pd_vjp *v) {
    const norm_attrs *a = v->attrs;
    pd_tensor *x = pd_vjp_in(v, X), *w = pd_vjp_in(v, WEIGHT), *g = v->g[0], *centred, *var;
    if (v->status || !g) return;
    const pd_dtype own = (pd_dtype)x->dtype, params = params_in(v);
    if (params != own) {
        x = pd_x_call1(v, PD_OP_cast, x, &(pd_cast_attrs){params});
        g = pd_x_call1(v, PD_OP_cast, g, &(pd_cast_attrs){params});
    }
    if (a->training) { /* statistics again from x, so that they carry its history */
        centred = pd_x2(v, PD_OP_sub, val(x), val(over_rest(v, PD_OP_mean, x, true))).t;
        var = over_rest(v, PD_OP_mean, pd_x1(v, PD_OP_square, val(centred)).t, true);
    } else {
        centred = pd_x2(v, PD_OP_sub, val(x), val(per_channel(v, pd_vjp_in(v, MEAN)))).t;
        var = per_channel(v, pd_vjp_in(v, VAR));
    }
    pd_val rstd = pd_x1(v, PD_OP_rsqrt, pd_x2(v, PD_OP_add, val(var), pd_const(a->eps)));
    pd_val hat = pd_x2(v, PD_OP_mul, val(centred), rstd), gh = val(g);
    if (pd_vjp_needs(v, WEIGHT))
        pd_vjp_set(v, WEIGHT, over_rest(v, PD_OP_sum, pd_x2(v, PD_OP_mul, val(g), hat).t, false));
    if (pd_vjp_needs(v, BIAS)) pd_vjp_set(v, BIAS, over_rest(v, PD_OP_sum, g, false));
    if (!pd_vjp_needs(v, X)) return;
    if (w) gh = pd_x2(v, PD_OP_mul, gh, val(per_channel(v, w)));
    if (a->training) { /* gh - mean(gh) - hat * mean(gh * hat) */
        pd_val through = pd_x2(v, PD_OP_mul, hat, val(over_rest(v, PD_OP_mean, pd_x2(v, PD_OP_mul, gh, hat).t, true)));
        gh = pd_x2(v, PD_OP_sub, pd_x2(v, PD_OP_sub, gh, val(over_rest(v, PD_OP_mean, gh.t, true))), through);
    }
    pd_tensor *gx = pd_x2(v, PD_OP_mul, gh, rstd).t;
    pd_vjp_set(v, X, params == own ? gx : pd_x_call1(v, PD_OP_cast, gx, &(pd_cast_attrs){own}));
}

static void vjp_fast(pd_vjp *v) {
    const norm_attrs *a = v->attrs;
    pd_tensor *x = pd_vjp_in(v, X), *w = pd_vjp_in(v, WEIGHT), *mean = pd_vjp_out(v, 1), *rstd = pd_vjp_out(v, 2),
              *g = v->g[0];
    if (v->status || !g) return;
    const pd_dtype params = params_in(v);
    pd_batch_norm s = shape_of(x, a->eps, params);
    if (!a->training || (!s.channels_last && !pd_tensor_is_contiguous(x)) || s.channels_last != pd_is_nhwc(g)) {
        vjp(v);
        return;
    }
    if (!s.channels_last) g = pd_x_contiguous(v, g);
    pd_tensor *gx = NULL, *gw = NULL, *gb = NULL;
    if (pd_vjp_needs(v, X) && (gx = pd_x_new(v, (pd_dtype)x->dtype, x->ndim, x->size)) && s.channels_last)
        pd_shape_channels_last(4, x->size, gx->stride);
    if (pd_vjp_needs(v, WEIGHT)) gw = pd_x_new(v, params, 1, &s.C);
    if (pd_vjp_needs(v, BIAS)) gb = pd_x_new(v, params, 1, &s.C);
    if (v->status) return;
    pd_here()->batch_norm_grad((pd_dtype)x->dtype, &s, true, pd_tensor_data(g), pd_tensor_data(x), data_or_null(w),
                               pd_tensor_data(mean), pd_tensor_data(rstd), gx ? pd_tensor_data(gx) : NULL,
                               gw ? pd_tensor_data(gw) : NULL, gb ? pd_tensor_data(gb) : NULL);
    pd_vjp_set(v, X, gx);
    pd_vjp_set(v, WEIGHT, gw);
    pd_vjp_set(v, BIAS, gb);
}

const pd_op pd_op_batch_norm = {
    .sig =
        "batch_norm(Tensor input, Tensor? running_mean, Tensor? running_var, Tensor? weight=None, Tensor? bias=None, "
        "bool training=False, float momentum=0.1, float eps=1e-05)",
    .doc =
        "(input - mean) / sqrt(var + eps) * weight + bias for each channel of [N, C, ...]. With training=True mean and "
        "var are those of the batch (biased variance), and the running ones (unbiased variance) move towards them by "
        "momentum.",
    .nout = 3,
    .visible = 1,
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(MEAN) | PD_SAVE_IN(VAR) | PD_SAVE_IN(WEIGHT) | PD_SAVE_OUT(1) | PD_SAVE_OUT(2),
    .flags = PD_NN | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(norm_attrs),
    .infer = infer,
    .kernel = kernel,
    .scratch = scratch,
    .vjp = vjp,
    .vjp_fast = vjp_fast,
};
