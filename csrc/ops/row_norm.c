/* Layer, RMS and group normalisation: each of the rows [R, n] by its own mean and deviation. */
#include <inttypes.h>
#include <string.h>

#include "kernels/kernels.h"
#include "ops/block.h"
#include "ops/express.h"

typedef struct { double eps; int64_t rms; } rows_attrs;
enum { X, WEIGHT, BIAS };

static pd_dtype wide(pd_dtype t) { return t == PD_F64 ? PD_F64 : PD_F32; }
static const void *data_or_null(const pd_tensor *t) { return t ? pd_tensor_data(t) : NULL; }
static pd_row_norm shape_of(const pd_tensor *x, const rows_attrs *a) {
    return (pd_row_norm){x->size[0], x->size[1], a->eps, a->rms};
}

/* ---- on contiguous rows ------------------------------------------------------------------------------------------ */

static pd_status rows_infer(pd_call *c) {
    pd_tensor *x = c->in[X];
    PD_TRY(pd_out_like(c, 0, (pd_dtype)x->dtype, x));
    PD_TRY(pd_out_shape(c, 1, wide((pd_dtype)x->dtype), 1, x->size));
    return pd_out_shape(c, 2, wide((pd_dtype)x->dtype), 1, x->size);
}
static pd_status rows_kernel(const pd_call *c) {
    pd_tensor *x = c->in[X];
    pd_row_norm s = shape_of(x, c->attrs);
    pd_here()->row_norm((pd_dtype)x->dtype, &s, pd_tensor_data(x), data_or_null(c->in[WEIGHT]),
                        data_or_null(c->in[BIAS]), pd_tensor_data(c->out[0]), pd_tensor_data(c->out[1]),
                        pd_tensor_data(c->out[2]));
    return PD_OK;
}
static double rows_work(const pd_call *c) { return (double)c->in[X]->numel * 0.8; }

static pd_val over(pd_vjp *v, pd_op_id op, pd_val x, int dim, bool keepdim) {
    pd_reduce_attrs a = {.dim = {.n = 1, .v = {dim}}, .keepdim = keepdim, .dtype = PD_NO_DTYPE};
    return pd_val_of(pd_x_call1(v, op, x.t, &a));
}
/* Puts the normalised rows x (without weights) into *hat and returns the gradient of x; gh is the gradient of *hat. */
static pd_val rows_gradient(pd_vjp *v, pd_val x, pd_val gh, double eps, bool rms, pd_val *hat) {
    pd_val centred = rms ? x : SUB(x, over(v, PD_OP_mean, x, 1, true));
    pd_val rstd = pd_x1(v, PD_OP_rsqrt, ADDC(over(v, PD_OP_mean, pd_x1(v, PD_OP_square, centred), 1, true), eps));
    *hat = MUL(centred, rstd);
    pd_val inner = SUB(gh, MUL(*hat, over(v, PD_OP_mean, MUL(gh, *hat), 1, true)));
    if (!rms) inner = SUB(inner, over(v, PD_OP_mean, gh, 1, true));
    return MUL(inner, rstd);
}
static void rows_vjp(pd_vjp *v) {
    const rows_attrs *a = v->attrs;
    pd_val x = pd_val_of(pd_vjp_in(v, X)), g = pd_val_of(v->g[0]), hat;
    pd_tensor *w = pd_vjp_in(v, WEIGHT);
    if (v->status || !g.t) return;
    pd_val gx = rows_gradient(v, x, w ? MUL(g, pd_val_of(w)) : g, a->eps, a->rms, &hat);
    if (pd_vjp_needs(v, WEIGHT)) pd_vjp_set(v, WEIGHT, over(v, PD_OP_sum, MUL(g, hat), 0, false).t);
    if (pd_vjp_needs(v, BIAS)) pd_vjp_set(v, BIAS, over(v, PD_OP_sum, g, 0, false).t);
    if (pd_vjp_needs(v, X)) pd_vjp_set(v, X, gx.t);
}
static void rows_fast(pd_vjp *v) {
    pd_tensor *x = pd_vjp_in(v, X), *w = pd_vjp_in(v, WEIGHT), *mean = pd_vjp_out(v, 1), *rstd = pd_vjp_out(v, 2),
              *g = pd_x_contiguous(v, v->g[0]);
    pd_tensor *gx = NULL, *gw = NULL, *gb = NULL, *room = NULL;
    if (v->status || !g) return;
    pd_row_norm s = shape_of(x, v->attrs);
    int64_t bytes = (int64_t)pd_here()->row_norm_scratch(&s);
    pd_dtype t = (pd_dtype)x->dtype;
    if (pd_vjp_needs(v, X)) gx = pd_x_new(v, t, 2, x->size);
    if (pd_vjp_needs(v, WEIGHT)) gw = pd_x_new(v, t, 1, &s.n);
    if (pd_vjp_needs(v, BIAS)) gb = pd_x_new(v, t, 1, &s.n);
    if (gw || gb) room = pd_x_new(v, PD_U8, 1, &bytes);
    if (v->status) return;
    pd_here()->row_norm_grad(t, &s, pd_tensor_data(g), pd_tensor_data(x), data_or_null(w), pd_tensor_data(mean),
                             pd_tensor_data(rstd), (void *)(uintptr_t)data_or_null(gx),
                             (void *)(uintptr_t)data_or_null(gw), (void *)(uintptr_t)data_or_null(gb),
                             (void *)(uintptr_t)data_or_null(room));
    pd_vjp_set(v, X, gx);
    pd_vjp_set(v, WEIGHT, gw);
    pd_vjp_set(v, BIAS, gb);
}

const pd_op pd_op_norm_rows = {
    .sig = "norm_rows(Tensor input, Tensor? weight, Tensor? bias, float eps, bool rms)",
    .doc = "layer_norm (rms_norm) of contiguous rows [R, n].",
    .nout = 3,
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(WEIGHT) | PD_SAVE_OUT(1) | PD_SAVE_OUT(2),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(rows_attrs),
    .infer = rows_infer,
    .kernel = rows_kernel,
    .work = rows_work,
    .vjp = rows_vjp,
    .vjp_fast = rows_fast,
};

/* ---- any shape --------------------------------------------------------------------------------------------------- */

static pd_tensor *shaped(pd_vjp *v, pd_tensor *t, int ndim, const int64_t *size) {
    pd_shape_attrs a = {.shape = {.n = ndim}};
    if (!t || pd_shape_equal(ndim, size, t->ndim, t->size)) return t;
    memcpy(a.shape.v, size, sizeof(int64_t) * (size_t)ndim);
    return pd_x_call1(v, PD_OP_reshape, t, &a);
}
static pd_tensor *normed(pd_vjp *v, pd_tensor *x, int64_t rows, int64_t n, pd_tensor *w, pd_tensor *b, double eps,
                         bool rms) {
    rows_attrs a = {eps, rms};
    pd_tensor *in[3] = {pd_x_contiguous(v, shaped(v, x, 2, (int64_t[]){rows, n})), NULL, NULL};
    if (w) in[1] = pd_x_contiguous(v, shaped(v, w, 1, &n));
    if (b) in[2] = pd_x_contiguous(v, shaped(v, b, 1, &n));
    if (v->status) return NULL;
    return shaped(v, pd_x(v, PD_OP_norm_rows, &a, 3, in), x->ndim, x->size);
}

static pd_status last_dims(const pd_call *c, const pd_ints *shape, int64_t *n) {
    static const char *const names[] = {"weight", "bias"};
    const pd_tensor *x = c->in[X];
    const char *op = c->def->name;
    int lead = x->ndim - (int)shape->n;
    PD_TRY(pd_check_float(c, X));
    if (shape->n < 1 || lead < 0 || !pd_shape_equal((int)shape->n, shape->v, (int)shape->n, x->size + lead))
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s (expected a shape that ends with normalized_shape %s)", op,
                       pd_tensor_shape(x), pd_shape_text((int)shape->n, shape->v));
    for (int i = 1; i < c->nin; i++)
        if (c->in[i] &&
            (!pd_shape_equal((int)shape->n, shape->v, c->in[i]->ndim, c->in[i]->size) || c->in[i]->dtype != x->dtype))
            return pd_fail(PD_E_SHAPE, "%s: %s is %s of shape %s (expected %s of shape %s)", op, names[i - 1],
                           pd_dtype_name((pd_dtype)c->in[i]->dtype), pd_tensor_shape(c->in[i]),
                           pd_dtype_name((pd_dtype)x->dtype), pd_shape_text((int)shape->n, shape->v));
    *n = 1;
    for (int i = 0; i < shape->n; i++) *n *= shape->v[i];
    return PD_OK;
}

static int64_t rows_in(const pd_tensor *x, int dims) {
    int64_t rows = 1;
    for (int d = 0; d < dims; d++) rows *= x->size[d];
    return rows;
}

typedef struct { pd_ints shape; double eps; } layer_attrs;
static pd_status layer_compose(pd_call *c) {
    const layer_attrs *a = c->attrs;
    pd_vjp v = {0};
    int64_t n;
    PD_TRY(last_dims(c, &a->shape, &n));
    return pd_x_end(
        &v,
        normed(&v, c->in[X], rows_in(c->in[X], c->in[X]->ndim - (int)a->shape.n), n, c->in[1], c->in[2], a->eps, false),
        &c->out[0]);
}

const pd_op pd_op_layer_norm = {
    .sig = "layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05)",
    .doc =
        "(input - mean) / sqrt(var + eps) * weight + bias; mean and (biased) variance are taken over the last dims, "
        "whose shape is normalized_shape.",
    .cast = PD_CAST_BACK,
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(layer_attrs),
    .compose = layer_compose,
};

typedef struct { pd_ints shape; pd_scalar eps; } rms_attrs;
static pd_status rms_compose(pd_call *c) {
    const rms_attrs *a = c->attrs;
    pd_vjp v = {0};
    int64_t n;
    PD_TRY(last_dims(c, &a->shape, &n));
    double least = c->in[X]->dtype == PD_F64 ? 0x1p-52 : 0x1p-23; /* 16-bit types compute in float32 */
    return pd_x_end(&v,
                    normed(&v, c->in[X], rows_in(c->in[X], c->in[X]->ndim - (int)a->shape.n), n, c->in[1], NULL,
                           a->eps.cat < 0 ? least : a->eps.d, true),
                    &c->out[0]);
}

const pd_op pd_op_rms_norm = {
    .sig = "rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Scalar eps=None)",
    .doc =
        "input / sqrt(mean(input ** 2) + eps) * weight over the last dims, whose shape is normalized_shape. eps is the "
        "dtype's machine epsilon by default.",
    .cast = PD_CAST_BACK,
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(rms_attrs),
    .compose = rms_compose,
};

/* ---- groups of channels ------------------------------------------------------------------------------------------ */

typedef struct { int64_t groups; double eps; } group_attrs;

static pd_group_norm groups_of(const pd_tensor *x, const group_attrs *a) {
    pd_group_norm s = {x->size[0], x->size[1], 1, a->groups, false, a->eps};
    for (int d = 2; d < x->ndim; d++) s.S *= x->size[d];
    s.channels_last = s.S == 1 || pd_is_nhwc(x);
    return s;
}
static pd_status groups_infer(pd_call *c) {
    const group_attrs *a = c->attrs;
    pd_tensor *x = c->in[X];
    int64_t size[2] = {x->size[0], a->groups};
    PD_TRY(pd_out_like(c, 0, (pd_dtype)x->dtype, x));
    if (pd_is_nhwc(x)) pd_shape_channels_last(x->size, c->out[0]->stride);
    PD_TRY(pd_out_shape(c, 1, wide((pd_dtype)x->dtype), 2, size));
    return pd_out_shape(c, 2, wide((pd_dtype)x->dtype), 2, size);
}
static size_t groups_scratch(const pd_call *c) {
    pd_group_norm s = groups_of(c->in[X], c->attrs);
    return pd_here()->group_norm_scratch(&s);
}
static pd_status groups_kernel(const pd_call *c) {
    pd_tensor *x = c->in[X];
    pd_group_norm s = groups_of(x, c->attrs);
    pd_here()->group_norm((pd_dtype)x->dtype, &s, pd_tensor_data(x), data_or_null(c->in[WEIGHT]),
                          data_or_null(c->in[BIAS]), pd_tensor_data(c->out[0]), pd_tensor_data(c->out[1]),
                          pd_tensor_data(c->out[2]), c->scratch);
    return PD_OK;
}
static pd_tensor *shaped(pd_vjp *v, pd_tensor *t, int ndim, const int64_t *size);
static pd_tensor *per_channel(pd_vjp *v, pd_tensor *t, int ndim) { /* [C] as [1, C, 1, ...] */
    int64_t size[PD_MAX_DIMS];
    for (int d = 0; d < ndim; d++) size[d] = d == 1 ? t->size[0] : 1;
    return shaped(v, t, ndim, size);
}
static pd_tensor *channel_sums(pd_vjp *v, pd_tensor *t, int ndim) {
    pd_reduce_attrs a = {.dtype = PD_NO_DTYPE};
    for (int d = 0; d < ndim; d++)
        if (d != 1) a.dim.v[a.dim.n++] = d;
    return pd_x_call1(v, PD_OP_sum, t, &a);
}
static void groups_vjp(pd_vjp *v) {
    const group_attrs *a = v->attrs;
    pd_tensor *x = pd_vjp_in(v, X), *w = pd_vjp_in(v, WEIGHT), *g = v->g[0];
    if (v->status || !g) return;
    const pd_group_norm s = groups_of(x, a);
    const int64_t rows[2] = {s.N * s.groups, s.C / s.groups * s.S};
    pd_val hat, gh = pd_val_of(g);
    if (w) gh = MUL(gh, pd_val_of(per_channel(v, w, x->ndim)));
    pd_val gx = rows_gradient(v, pd_val_of(shaped(v, x, 2, rows)), pd_val_of(shaped(v, gh.t, 2, rows)), a->eps, false,
                              &hat);
    if (pd_vjp_needs(v, WEIGHT)) {
        pd_val there = pd_val_of(shaped(v, hat.t, x->ndim, x->size));
        pd_vjp_set(v, WEIGHT, channel_sums(v, MUL(pd_val_of(g), there).t, x->ndim));
    }
    if (pd_vjp_needs(v, BIAS)) pd_vjp_set(v, BIAS, channel_sums(v, g, x->ndim));
    if (pd_vjp_needs(v, X)) pd_vjp_set(v, X, shaped(v, gx.t, x->ndim, x->size));
}
static void groups_fast(pd_vjp *v) {
    pd_tensor *x = pd_vjp_in(v, X), *w = pd_vjp_in(v, WEIGHT), *mean = pd_vjp_out(v, 1), *rstd = pd_vjp_out(v, 2);
    pd_tensor *g = v->g[0], *gx = NULL, *gw = NULL, *gb = NULL, *room = NULL;
    if (v->status || !g) return;
    pd_group_norm s = groups_of(x, v->attrs);
    pd_dtype t = (pd_dtype)x->dtype;
    const int64_t sums = (int64_t)(pd_here()->group_norm_scratch(&s) + 63) & ~63ll,
                  bytes = sums + (int64_t)pd_laid_out_bytes(g, pd_is_nhwc(x));
    if (pd_vjp_needs(v, X) && (gx = pd_x_new(v, t, x->ndim, x->size)) && pd_is_nhwc(x))
        pd_shape_channels_last(x->size, gx->stride);
    if (pd_vjp_needs(v, WEIGHT)) gw = pd_x_new(v, t, 1, &s.C);
    if (pd_vjp_needs(v, BIAS)) gb = pd_x_new(v, t, 1, &s.C);
    room = pd_x_new(v, PD_U8, 1, &bytes);
    if (v->status) return;
    void *behind = (char *)pd_tensor_data(room) + sums;
    const void *from = pd_laid_out(g, pd_is_nhwc(x), &behind);
    pd_here()->group_norm_grad(t, &s, from, pd_tensor_data(x), data_or_null(w), pd_tensor_data(mean),
                               pd_tensor_data(rstd), (void *)(uintptr_t)data_or_null(gx),
                               (void *)(uintptr_t)data_or_null(gw), (void *)(uintptr_t)data_or_null(gb),
                               pd_tensor_data(room));
    pd_vjp_set(v, X, gx);
    pd_vjp_set(v, WEIGHT, gw);
    pd_vjp_set(v, BIAS, gb);
}

const pd_op pd_op_norm_groups = {
    .sig = "norm_groups(Tensor input, Tensor? weight, Tensor? bias, int groups, float eps)",
    .doc = "group_norm of input [N, C, ...], contiguous or channels_last.",
    .nout = 3,
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(WEIGHT) | PD_SAVE_OUT(1) | PD_SAVE_OUT(2),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(group_attrs),
    .infer = groups_infer,
    .kernel = groups_kernel,
    .work = rows_work,
    .scratch = groups_scratch,
    .vjp = groups_vjp,
    .vjp_fast = groups_fast,
};

static pd_status group_compose(pd_call *c) {
    const group_attrs *a = c->attrs;
    pd_tensor *x = c->in[X];
    pd_vjp scope = {0}, *v = &scope;
    PD_TRY(pd_check_float(c, X));
    if (x->ndim < 2 || a->groups < 1 || x->size[1] % a->groups)
        return pd_fail(PD_E_SHAPE,
                       "group_norm: input has shape %s, num_groups is %" PRId64
                       " (expected [N, C, ...], C divisible by num_groups)",
                       pd_tensor_shape(x), a->groups);
    int64_t C_ = x->size[1], rows = x->size[0] * a->groups, n = 1;
    for (int d = 1; d < x->ndim; d++) n *= x->size[d];
    if (x->size[0] * n == a->groups)
        return pd_fail(PD_E_VALUE,
                       "group_norm: input has shape %s, so each group has one value (Expected more than 1 value per "
                       "channel when training)",
                       pd_tensor_shape(x));
    for (int i = 1; i < 3; i++)
        if (c->in[i] && (c->in[i]->ndim != 1 || c->in[i]->size[0] != C_ || c->in[i]->dtype != x->dtype))
            return pd_fail(PD_E_SHAPE, "group_norm: %s is %s of shape %s (expected %s of shape [%" PRId64 "])",
                           i == 1 ? "weight" : "bias", pd_dtype_name((pd_dtype)c->in[i]->dtype),
                           pd_tensor_shape(c->in[i]), pd_dtype_name((pd_dtype)x->dtype), C_);
    if (!pd_device_here->kernels) { /* on the CPU */
        pd_tensor *in[3] = {pd_is_nhwc(x) ? x : pd_x_contiguous(v, x)};
        for (int i = 1; i < 3; i++) in[i] = c->in[i] ? pd_x_contiguous(v, c->in[i]) : NULL;
        return pd_x_end(v, v->status ? NULL : pd_x(v, PD_OP_norm_groups, a, 3, in), &c->out[0]);
    }
    pd_val y = pd_val_of(normed(v, x, rows, n / a->groups, NULL, NULL, a->eps, false));
    if (c->in[1]) y = MUL(y, pd_val_of(per_channel(v, c->in[1], x->ndim)));
    if (c->in[2]) y = ADD(y, pd_val_of(per_channel(v, c->in[2], x->ndim)));
    return pd_x_end(v, y.t, &c->out[0]);
}

const pd_op pd_op_group_norm = {
    .sig = "group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05)",
    .doc =
        "(input - mean) / sqrt(var + eps) * weight + bias of input [N, C, ...]; mean and (biased) variance are taken "
        "over each of num_groups groups of channels.",
    .cast = PD_CAST_BACK,
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(group_attrs),
    .compose = group_compose,
};
