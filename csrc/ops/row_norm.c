/* Layer, RMS and group normalisation: each of the rows [R, n] by its own mean and deviation. */
#include <inttypes.h>
#include <string.h>

#include "autograd/autocast.h"
#include "kernels/kernels.h"
#include "ops/block.h"
#include "ops/express.h"

static const void *data_or_null(const pd_tensor *t) { return t ? pd_tensor_data(t) : NULL; }
static void *room_or_null(pd_tensor *t) { return t ? pd_tensor_data(t) : NULL; }

/* ---- on contiguous rows, which are the last dims of x ------------------------------------------------------------ */

/* dtype: of the normalised rows. */
typedef struct {
    int64_t dims;
    double eps;
    int64_t rms, dtype;
} rows_attrs;
enum { X, WEIGHT, BIAS };

static int64_t product(const pd_tensor *x, int first, int end) {
    int64_t n = 1;
    for (int d = first; d < end; d++) n *= x->size[d];
    return n;
}
static int64_t rows_in(const pd_tensor *x, int64_t dims) { return product(x, 0, x->ndim - (int)dims); }
static int64_t row_of(const pd_tensor *x, int64_t dims) { return product(x, x->ndim - (int)dims, x->ndim); }
/* y, w: NULL if there are none. */
static pd_row_norm shape_of(const pd_tensor *s, pd_dtype x, const pd_tensor *y, const pd_tensor *w,
                            const rows_attrs *a) {
    pd_dtype t = (pd_dtype)s->dtype;
    return (pd_row_norm){.rows = rows_in(s, a->dims),
                         .n = row_of(s, a->dims),
                         .eps = a->eps,
                         .rms = a->rms,
                         .x = x,
                         .y = y ? (pd_dtype)y->dtype : t,
                         .s = t,
                         .w = w ? (pd_dtype)w->dtype : t,
                         .out = (pd_dtype)a->dtype};
}

/* Sets dtype and sizes of output k, the normalised rows of x; under autocast they get a 16-bit copy, too. */
static pd_status out_normed(pd_call *c, int k, const pd_tensor *x) {
    pd_tensor *low;
    PD_TRY(pd_out_like(c, k, (pd_dtype)((const rows_attrs *)c->attrs)->dtype, x));
    return pd_autocast_beside(c->out[k], pd_device_here, &low);
}
/* Runs the kernel for these rows, which go to `normed`. y, sum: NULL if nothing is added. */
static void run_rows(pd_row_norm s, pd_tensor *x, pd_tensor *y, pd_tensor *w, pd_tensor *b, pd_tensor *sum,
                     pd_tensor *normed, pd_tensor *mean, pd_tensor *rstd) {
    pd_tensor *low = normed->meta ? normed->meta->low.copy : NULL;
    if (low) s.low = (pd_dtype)low->dtype;
    pd_here()->row_norm(&s, pd_tensor_data(x), data_or_null(y), data_or_null(w), data_or_null(b), room_or_null(sum),
                        pd_tensor_data(normed), room_or_null(low), pd_tensor_data(mean), pd_tensor_data(rstd));
    if (low) pd_beside_renew(normed);
}

static pd_status rows_infer(pd_call *c) {
    const rows_attrs *a = c->attrs;
    const pd_tensor *x = c->in[X];
    const int64_t rows = rows_in(x, a->dims);
    PD_TRY(out_normed(c, 0, x));
    PD_TRY(pd_out_shape(c, 1, pd_dtype_computed((pd_dtype)x->dtype), 1, &rows));
    return pd_out_shape(c, 2, pd_dtype_computed((pd_dtype)x->dtype), 1, &rows);
}
static pd_status rows_kernel(const pd_call *c) {
    pd_tensor *x = c->in[X], *w = c->in[WEIGHT];
    run_rows(shape_of(x, (pd_dtype)x->dtype, NULL, w, c->attrs), x, NULL, w, c->in[BIAS], NULL, c->out[0], c->out[1],
             c->out[2]);
    return PD_OK;
}
static double rows_work(const pd_call *c) { return (double)c->in[X]->numel * 0.8; }

static pd_val over(pd_vjp *v, pd_op_id op, pd_val x, int dim, bool keepdim) {
    pd_reduce_attrs a = {.dim = {.n = 1, .v = {dim}}, .keepdim = keepdim, .dtype = PD_NO_DTYPE};
    return pd_val_of(pd_x_call1(v, op, x.t, &a));
}
static pd_tensor *shaped(pd_vjp *v, pd_tensor *t, int ndim, const int64_t *size) {
    pd_shape_attrs a = {.shape = {.n = ndim}};
    if (!t || pd_shape_equal(ndim, size, t->ndim, t->size)) return t;
    memcpy(a.shape.v, size, sizeof(int64_t) * (size_t)ndim);
    return pd_x_call1(v, PD_OP_reshape, t, &a);
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
/* The gradient of s; sets those of the inputs `weight` and the next one. g: the gradient of the normalised rows. */
static pd_tensor *rows_composed(pd_vjp *v, pd_tensor *s, pd_tensor *g, int weight) {
    const rows_attrs *a = v->attrs;
    pd_tensor *w = pd_vjp_in(v, weight);
    if (v->status || !s || !g) return NULL;
    const int64_t size[2] = {rows_in(s, a->dims), row_of(s, a->dims)};
    pd_tensor *gr = shaped(v, g, 2, size);
    if (v->status) return NULL;
    pd_val gv = pd_val_of(gr), hat;
    pd_val gx = rows_gradient(v, pd_val_of(shaped(v, s, 2, size)),
                              w ? MUL(gv, pd_val_of(shaped(v, w, 1, size + 1))) : gv, a->eps, a->rms, &hat);
    const int from = s->ndim - (int)a->dims, dims = (int)a->dims;
    if (pd_vjp_needs(v, weight))
        pd_vjp_set(v, weight, shaped(v, over(v, PD_OP_sum, MUL(gv, hat), 0, false).t, dims, s->size + from));
    if (pd_vjp_needs(v, weight + 1))
        pd_vjp_set(v, weight + 1, shaped(v, over(v, PD_OP_sum, gv, 0, false).t, dims, s->size + from));
    return shaped(v, gx.t, s->ndim, s->size);
}
static void rows_vjp(pd_vjp *v) {
    if (v->g[0]) pd_vjp_set(v, X, rows_composed(v, pd_vjp_in(v, X), v->g[0], WEIGHT));
}
/* Gradients by the kernel. g, gs: those of the normalised rows and of s, contiguous; gs may be NULL. gx, gy: where that
   of s goes; want_sums: and the sums of the columns of gy, or, without it, of gx. mean: the number of the output; rstd
   is the next one. */
static void rows_by_kernel(pd_vjp *v, pd_row_norm c, pd_tensor *s, pd_tensor *g, pd_tensor *gs, pd_tensor *gx,
                           pd_tensor *gy, bool want_sums, int weight, int mean) {
    pd_tensor *w = pd_vjp_in(v, weight), *m = pd_vjp_out(v, mean), *r = pd_vjp_out(v, mean + 1);
    pd_tensor *gw = NULL, *gb = NULL, *room = NULL, *sums = NULL;
    const rows_attrs *a = v->attrs;
    const int from = s->ndim - (int)a->dims, dims = (int)a->dims;
    const int64_t bytes = (int64_t)pd_here()->row_norm_scratch(&c);
    if (pd_vjp_needs(v, weight)) gw = pd_x_new(v, c.w, dims, s->size + from);
    if (pd_vjp_needs(v, weight + 1)) gb = pd_x_new(v, c.w, dims, s->size + from);
    if (want_sums && a->dims == 1 && c.s != PD_F64 && c.rows > 0) sums = pd_x_new(v, PD_F32, 1, &c.n);
    if (gw || gb || sums) room = pd_x_new(v, PD_U8, 1, &bytes);
    if (v->status) return;
    c.out = (pd_dtype)g->dtype;
    pd_here()->row_norm_grad(&c, pd_tensor_data(g), data_or_null(gs), pd_tensor_data(s), data_or_null(w),
                             pd_tensor_data(m), pd_tensor_data(r), room_or_null(gx), room_or_null(gy), room_or_null(gw),
                             room_or_null(gb), room_or_null(sums), room_or_null(room));
    if (sums) v->status = pd_beside_set(gy ? gy : gx, NULL, sums);
    pd_vjp_set(v, weight, gw);
    pd_vjp_set(v, weight + 1, gb);
}
static void rows_fast(pd_vjp *v) {
    pd_tensor *x = pd_vjp_in(v, X), *w = pd_vjp_in(v, WEIGHT), *g = pd_x_contiguous(v, v->g[0]);
    pd_tensor *gx = NULL, *low = NULL, *sum = NULL;
    pd_ahead next = {PD_NO_DTYPE, false};
    if (v->status || !g) return;
    pd_row_norm c = shape_of(x, (pd_dtype)x->dtype, NULL, w, v->attrs);
    if (pd_vjp_needs(v, X)) { /* in a residual block the stream's gradient is there already */
        sum = pd_vjp_sum(v, X);
        if (sum && !pd_tensor_is_contiguous(sum)) sum = NULL;
        gx = sum ? sum : pd_x_new(v, c.x, x->ndim, x->size);
        next = pd_vjp_ahead(v, X, !sum);
    }
    if (next.low != PD_NO_DTYPE) low = pd_x_new(v, c.y = next.low, x->ndim, x->size);
    if (v->status) return;
    rows_by_kernel(v, c, x, g, sum, gx, low, next.sums, WEIGHT, 1);
    if (low && !v->status) v->status = pd_beside_set(gx, low, NULL);
    if (!sum) pd_vjp_set(v, X, gx);
}

const pd_op pd_op_norm_rows = {
    .sig = "norm_rows(Tensor input, Tensor? weight, Tensor? bias, int dims, float eps, bool rms, dtype dtype)",
    .doc = "layer_norm (rms_norm) of the contiguous rows in the last `dims` dims, in this dtype.",
    .nout = 3,
    .reads_low = 1 + 0,
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(WEIGHT) | PD_SAVE_OUT(1) | PD_SAVE_OUT(2),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(rows_attrs),
    .infer = rows_infer,
    .kernel = rows_kernel,
    .work = rows_work,
    .vjp = rows_vjp,
    .vjp_fast = rows_fast,
};

/* ---- on the sum of two tensors ----------------------------------------------------------------------------------- */

enum { OTHER = 1, SUM_WEIGHT, SUM_BIAS, SUM_INPUTS };

static pd_status sum_infer(pd_call *c) {
    const rows_attrs *a = c->attrs;
    const pd_tensor *x = c->in[X];
    const pd_dtype t = pd_dtype_promote((pd_dtype)x->dtype, (pd_dtype)c->in[OTHER]->dtype);
    const int64_t rows = rows_in(x, a->dims);
    PD_TRY(pd_out_like(c, 0, t, x));
    PD_TRY(out_normed(c, 1, x));
    PD_TRY(pd_out_shape(c, 2, pd_dtype_computed(t), 1, &rows));
    return pd_out_shape(c, 3, pd_dtype_computed(t), 1, &rows);
}
static pd_status sum_kernel(const pd_call *c) {
    pd_tensor *x = c->in[X], *y = c->in[OTHER], *w = c->in[SUM_WEIGHT];
    run_rows(shape_of(c->out[0], (pd_dtype)x->dtype, y, w, c->attrs), x, y, w, c->in[SUM_BIAS], c->out[0], c->out[1],
             c->out[2], c->out[3]);
    return PD_OK;
}
static void sum_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[1] ? rows_composed(v, pd_vjp_out(v, 0), v->g[1], SUM_WEIGHT) : NULL;
    if (g && v->g[0]) g = ADD(pd_val_of(g), pd_val_of(v->g[0])).t;
    if (!v->g[1]) g = v->g[0];
    pd_vjp_set(v, X, g);
    pd_vjp_set(v, OTHER, g);
}
static void sum_fast(pd_vjp *v) {
    const pd_edge *e = v->node->edges;
    pd_tensor *s = pd_vjp_out(v, 0), *w = pd_vjp_in(v, SUM_WEIGHT);
    pd_tensor *g = pd_x_contiguous(v, v->g[1]), *gs = pd_x_contiguous(v, v->g[0]), *to[2] = {NULL, NULL};
    if (v->status) return;
    if (!g) {
        sum_vjp(v);
        return;
    }
    pd_row_norm c = shape_of(s, (pd_dtype)e[X].dtype, NULL, w, v->attrs);
    c.y = (pd_dtype)e[OTHER].dtype;
    for (int i = 0; i < 2; i++) {
        if (!pd_vjp_needs(v, i)) continue;
        if (i && to[X] && c.x == c.y)
            to[i] = to[X];
        else
            to[i] = pd_x_new(v, (pd_dtype)e[i].dtype, s->ndim, s->size);
    }
    if (v->status) return;
    pd_tensor *gx = to[X] ? to[X] : to[OTHER], *gy = to[OTHER] == gx ? NULL : to[OTHER];
    if (!to[X]) c.x = c.y;
    rows_by_kernel(v, c, s, g, gs, gx, gy, to[OTHER] && pd_vjp_ahead(v, OTHER, true).sums, SUM_WEIGHT, 2);
    pd_vjp_set(v, X, to[X]);
    pd_vjp_set(v, OTHER, to[OTHER]);
}

const pd_op pd_op_add_norm_rows = {
    .sig =
        "add_norm_rows(Tensor input, Tensor other, Tensor? weight, Tensor? bias, int dims, float eps, bool rms, "
        "dtype dtype)",
    .doc = "(input + other, norm_rows of that) for contiguous tensors of one shape.",
    .nout = 4,
    .reads_low = 1 + 1,
    .save = PD_SAVE_IN(SUM_WEIGHT) | PD_SAVE_OUT(0) | PD_SAVE_OUT(2) | PD_SAVE_OUT(3),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(rows_attrs),
    .infer = sum_infer,
    .kernel = sum_kernel,
    .work = rows_work,
    .vjp = sum_vjp,
    .vjp_fast = sum_fast,
};

/* ---- any shape --------------------------------------------------------------------------------------------------- */

static pd_tensor *normed(pd_vjp *v, pd_tensor *x, pd_tensor *w, pd_tensor *b, rows_attrs a) {
    pd_tensor *in[3] = {pd_x_contiguous(v, x), pd_x_contiguous(v, w), pd_x_contiguous(v, b)};
    return v->status ? NULL : pd_x(v, PD_OP_norm_rows, &a, 3, in);
}

/* Checks the shapes of x, weight and bias, of which the first is input `weight`. t: the dtype of weight and bias;
   PD_NO_DTYPE: any floating one. */
static pd_status last_dims(const pd_call *c, const pd_ints *shape, int weight, pd_dtype t) {
    static const char *const names[] = {"weight", "bias"};
    const pd_tensor *x = c->in[X];
    const char *op = c->def->name;
    int lead = x->ndim - (int)shape->n;
    PD_TRY(pd_check_float(c, X));
    if (shape->n < 1 || lead < 0 || !pd_shape_equal((int)shape->n, shape->v, (int)shape->n, x->size + lead))
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s (expected a shape that ends with normalized_shape %s)", op,
                       pd_tensor_shape(x), pd_shape_text((int)shape->n, shape->v));
    for (int i = weight; i < c->nin; i++) {
        const pd_tensor *w = c->in[i];
        if (!w) continue;
        bool fits = t == PD_NO_DTYPE ? pd_dtype_is_float((pd_dtype)w->dtype) && w->dtype != PD_F64 : w->dtype == (int)t;
        if (!fits || !pd_shape_equal((int)shape->n, shape->v, w->ndim, w->size))
            return pd_fail(PD_E_SHAPE, "%s: %s is %s of shape %s (expected %s of shape %s)", op, names[i - weight],
                           pd_dtype_name((pd_dtype)w->dtype), pd_tensor_shape(w),
                           pd_dtype_name(t == PD_NO_DTYPE ? PD_F32 : t), pd_shape_text((int)shape->n, shape->v));
    }
    return PD_OK;
}

static pd_status norm_compose(pd_call *c, const pd_ints *shape, double eps, bool rms) {
    const pd_dtype t = (pd_dtype)c->in[X]->dtype;
    pd_vjp v = {0};
    PD_TRY(last_dims(c, shape, 1, t));
    return pd_x_end(&v, normed(&v, c->in[X], c->in[1], rms ? NULL : c->in[2], (rows_attrs){shape->n, eps, rms, t}),
                    &c->out[0]);
}
/* 16-bit types compute in float32. */
static double rms_eps(const pd_scalar *given, pd_dtype t) {
    return given->cat >= 0 ? given->d : t == PD_F64 ? 0x1p-52 : 0x1p-23;
}

typedef struct { pd_ints shape; double eps; } layer_attrs;
static pd_status layer_compose(pd_call *c) {
    const layer_attrs *a = c->attrs;
    return norm_compose(c, &a->shape, a->eps, false);
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
    return norm_compose(c, &a->shape, rms_eps(&a->eps, (pd_dtype)c->in[X]->dtype), true);
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

/* ---- the sum and its norm ---------------------------------------------------------------------------------------- */

/* The dtype of norm(s): as layer_norm returns it, or autocast's if `low`. *any: weights need not have the dtype of
   s. */
static pd_dtype normed_dtype(const pd_call *c, pd_dtype s, bool low, bool *any) {
    const pd_dtype cast = pd_autocast_for(c->in, c->nin);
    *any = cast != PD_NO_DTYPE && s != PD_F64;
    if (!*any) return s;
    return low ? cast : pd_autocast.cuda ? PD_F32 : s;
}
static pd_status add_norm(pd_call *c, const pd_ints *shape, double eps, bool rms, bool low) {
    pd_tensor *x = c->in[X], *y = c->in[OTHER];
    pd_vjp v = {0};
    bool any;
    PD_TRY(pd_check_float(c, X));
    PD_TRY(pd_check_float(c, OTHER));
    if (!pd_tensor_same_shape(x, y))
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s, other has shape %s (expected equal shapes)", c->def->name,
                       pd_tensor_shape(x), pd_tensor_shape(y));
    const pd_dtype s = pd_dtype_promote((pd_dtype)x->dtype, (pd_dtype)y->dtype);
    const rows_attrs a = {shape->n, eps, rms, normed_dtype(c, s, low, &any)};
    PD_TRY(last_dims(c, shape, SUM_WEIGHT, any ? PD_NO_DTYPE : s));
    pd_tensor *in[SUM_INPUTS] = {0}, *out[PD_MAX_OUTS];
    for (int i = 0; i < c->nin; i++) {
        const pd_dtype t = i < 2 ? s : PD_F32; /* the kernel reads x and y as they are, unless in double */
        in[i] = pd_x_contiguous(&v, c->in[i]);
        if (in[i] && in[i]->dtype != (int)t && (i < 2 ? s == PD_F64 : any))
            in[i] = pd_x_call1(&v, PD_OP_cast, in[i], &(pd_cast_attrs){t});
    }
    pd_status status = v.status;
    PD_THEN(pd_apply(PD_DEF(add_norm_rows), in, SUM_INPUTS, &a, out, NULL));
    pd_vjp_end(&v);
    if (status) return PD_TRAIL(status);
    for (int i = 0; i < 2; i++) c->out[i] = out[i], pd_tensor_release(out[2 + i]);
    return PD_OK;
}

typedef struct {
    pd_ints shape;
    double eps;
    int64_t low;
} add_layer_attrs;
static pd_status add_layer_compose(pd_call *c) {
    const add_layer_attrs *a = c->attrs;
    return add_norm(c, &a->shape, a->eps, false, a->low);
}

const pd_op pd_op_add_layer_norm = {
    .sig =
        "add_layer_norm(Tensor input, Tensor other, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
        "float eps=1e-05, bool low_precision=False)",
    .doc =
        "(s, layer_norm(s)) with s = input + other, two tensors of one shape, in one pass over memory. low_precision: "
        "under autocast the second result has autocast's dtype, as products want it.",
    .flags = PD_NN,
    .nout = 2,
    .names = "sum normed",
    .attrs = sizeof(add_layer_attrs),
    .compose = add_layer_compose,
};

typedef struct {
    pd_ints shape;
    pd_scalar eps;
    int64_t low;
} add_rms_attrs;
static pd_status add_rms_compose(pd_call *c) {
    const add_rms_attrs *a = c->attrs;
    const pd_dtype s = pd_dtype_promote((pd_dtype)c->in[X]->dtype, (pd_dtype)c->in[OTHER]->dtype);
    return add_norm(c, &a->shape, rms_eps(&a->eps, s), true, a->low);
}

const pd_op pd_op_add_rms_norm = {
    .sig =
        "add_rms_norm(Tensor input, Tensor other, int[] normalized_shape, Tensor? weight=None, Scalar eps=None, "
        "bool low_precision=False)",
    .doc = "(s, rms_norm(s)) with s = input + other, as add_layer_norm.",
    .flags = PD_NN,
    .nout = 2,
    .names = "sum normed",
    .attrs = sizeof(add_rms_attrs),
    .compose = add_rms_compose,
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
    if (pd_is_nhwc(x)) pd_shape_channels_last(4, x->size, c->out[0]->stride);
    PD_TRY(pd_out_shape(c, 1, pd_dtype_computed((pd_dtype)x->dtype), 2, size));
    return pd_out_shape(c, 2, pd_dtype_computed((pd_dtype)x->dtype), 2, size);
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
        pd_shape_channels_last(4, x->size, gx->stride);
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
    pd_tensor *grouped = shaped(v, x, 2, (int64_t[]){rows, n / a->groups});
    pd_val y = pd_val_of(
        shaped(v, normed(v, grouped, NULL, NULL, (rows_attrs){1, a->eps, false, x->dtype}), x->ndim, x->size));
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
