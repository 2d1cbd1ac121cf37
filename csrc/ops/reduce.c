/* Reductions: sum, mean, prod, amax, amin, any, all; and argmax, argmin, max, min, topk, which return indices. */
#include <inttypes.h>
#include <string.h>

#include "ops/block.h"

/* ---- folds ------------------------------------------------------------------------------------------------------- */

static void reduced_shape(const pd_tensor *x, unsigned bits, bool keepdim, pd_ints *out) {
    out->n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (!(bits >> d & 1)) out->v[out->n++] = x->size[d];
        else if (keepdim) out->v[out->n++] = 1;
    }
}

static pd_status infer_as(pd_call *c, pd_dtype dtype) {
    const pd_reduce_attrs *a = c->attrs;
    unsigned bits;
    pd_ints shape;
    PD_TRY(pd_dims_of(c->def->name, &a->dim, c->in[0]->ndim, &bits));
    reduced_shape(c->in[0], bits, a->keepdim, &shape);
    return pd_out_shape(c, 0, dtype, (int)shape.n, shape.v);
}

static pd_status infer(pd_call *c) { return infer_as(c, (pd_dtype)c->in[0]->dtype); }
static pd_status infer_sum(pd_call *c) {
    pd_dtype t = (pd_dtype)c->in[0]->dtype;
    bool given = ((const pd_reduce_attrs *)c->attrs)->dtype != PD_NO_DTYPE;
    return infer_as(c, !given && pd_dtype_category(t) < PD_CAT_FLOAT ? PD_I64 : t);
}
static pd_status infer_bool(pd_call *c) {
    return infer_as(c, c->in[0]->dtype == PD_U8 ? PD_U8 : PD_BOOL);
} /* as in PyTorch */
static pd_status infer_mean(pd_call *c) {
    if (!pd_dtype_is_complex((pd_dtype)c->in[0]->dtype)) PD_TRY(pd_check_float(c, 0));
    return infer(c);
}
/* A reduction without a neutral element needs at least one element along every dim in `bits`. */
static pd_status want_elements(const pd_call *c, unsigned bits) {
    for (int d = 0; d < c->in[0]->ndim; d++)
        if ((bits >> d & 1) && !c->in[0]->size[d])
            return pd_fail(PD_E_INDEX,
                           "%s: the tensor has shape %s, with no element along dimension %d (expected at least one)",
                           c->def->name, pd_tensor_shape(c->in[0]), d);
    return PD_OK;
}
static pd_status infer_extreme(pd_call *c) {
    unsigned bits;
    PD_TRY(infer(c));
    PD_TRY(pd_dims_of(c->def->name, c->attrs, c->in[0]->ndim, &bits));
    return want_elements(c, bits);
}

/* x with its dims in the order of memory, if the dims that stay keep their order; else x as it is. */
static pd_tensor in_memory_order(const pd_tensor *x, unsigned *bits) {
    pd_tensor t = *x;
    int order[PD_MAX_DIMS], last = -1;
    unsigned moved = 0;
    for (int d = 0; d < x->ndim; d++) { /* sorts by falling strides; dims of size 1 may be anywhere */
        int at = d;
        for (; at > 0 && (x->size[order[at - 1]] == 1 || x->stride[order[at - 1]] < x->stride[d]); at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
    for (int i = 0; i < x->ndim; i++) {
        int d = order[i];
        t.size[i] = x->size[d], t.stride[i] = x->stride[d];
        if (*bits >> d & 1) moved |= 1u << i;
        else if (x->size[d] > 1) {
            if (d < last) return *x;
            last = d;
        }
    }
    *bits = moved;
    return t;
}

/* How x is folded: in its own memory; in two passes, the first into scratch (`twice`); or packed first (`scratch`). */
typedef struct { pd_block b, second; bool twice; size_t scratch; } course;
#define LONG_RUN 16 /* elements from which on a run is worth a pass of its own */

static pd_status course_of(pd_fold f, const pd_call *c, course *o) {
    unsigned bits, lying;
    const pd_tensor *x = c->in[0];
    const pd_dtype t = (pd_dtype)x->dtype;
    *o = (course){0};
    PD_TRY(pd_dims_of(c->def->name, c->attrs, x->ndim, &bits));
    if (pd_block_of(x, bits, &o->b)) return PD_OK;
    lying = bits;
    pd_tensor dense = in_memory_order(x, &lying), rest = dense;
    if (pd_block_of(&dense, lying, &o->b)) return PD_OK;
    const bool wide = t == PD_F32 || t == PD_F64 || pd_dtype_is_complex(t);
    if (wide && (f == PD_FOLD_SUM || f == PD_FOLD_MEAN) && pd_tensor_is_contiguous(&dense)) {
        pd_block run = {1, 1, 1};
        int d = rest.ndim - 1;
        for (; d >= 0 && (rest.size[d] == 1 || !(lying >> d & 1)); d--) run.inner *= rest.size[d];
        for (; d >= 0 && (rest.size[d] == 1 || lying >> d & 1); d--) run.n *= rest.size[d], rest.size[d] = 1;
        for (; d >= 0; d--) run.outer *= rest.size[d];
        pd_shape_contiguous(rest.ndim, rest.size, rest.stride);
        if (run.n >= LONG_RUN && pd_block_of(&rest, lying, &o->second)) {
            o->b = run, o->twice = true;
            o->scratch = (size_t)(run.outer * run.inner) * pd_dtype_size(t);
            return PD_OK;
        }
    }
    pd_block_of(x, bits, &o->b);
    o->scratch = pd_tensor_bytes(x);
    return PD_OK;
}
static size_t scratch(pd_fold f, const pd_call *c) {
    course o;
    return course_of(f, c, &o) ? 0 : o.scratch;
}

static pd_status fold(pd_fold f, const pd_call *c) {
    course o;
    unsigned bits;
    pd_tensor *x = c->in[0];
    const void *data = pd_tensor_data(x);
    pd_dtype t = (pd_dtype)x->dtype, out = (pd_dtype)c->out[0]->dtype;
    PD_TRY(course_of(f, c, &o));
    if (o.scratch && !o.twice) {
        PD_TRY(pd_dims_of(c->def->name, c->attrs, x->ndim, &bits));
        pd_block_pack(x, bits, c->scratch);
        data = c->scratch;
    }
    if (pd_dtype_is_complex(t)) /* a sum's parts are sums of parts */
        t = out = pd_dtype_part(t), o.b.inner *= 2, o.second.inner *= 2;
    if (o.twice) {
        pd_here()->fold(f, t, out, &o.b, data, c->scratch);
        o.b = o.second, data = c->scratch;
    }
    pd_here()->fold(f, t, out, &o.b, data, pd_tensor_data(c->out[0]));
    return PD_OK;
}

/* t, which has the reduced shape, with the reduced dims as dims of size 1. */
static pd_tensor *keep_dims(pd_vjp *v, pd_tensor *t) {
    const pd_reduce_attrs *a = v->attrs;
    const pd_edge *e = &v->node->edges[0];
    unsigned bits;
    pd_shape_attrs shape = {.shape = {.n = e->ndim}};
    if (!t || pd_dims_of("sum", &a->dim, e->ndim, &bits)) return NULL;
    for (int d = 0; d < e->ndim; d++) shape.shape.v[d] = bits >> d & 1 ? 1 : e->size[d];
    return pd_x_call1(v, PD_OP_reshape, t, &shape);
}

static pd_tensor *spread(pd_vjp *v, pd_tensor *t) {
    const pd_edge *e = &v->node->edges[0];
    pd_ints size = {.n = e->ndim};
    memcpy(size.v, e->size, sizeof(int64_t) * (size_t)e->ndim);
    return pd_x_call1(v, PD_OP_expand, keep_dims(v, t), &size);
}

static double count_of(pd_vjp *v) {
    const pd_edge *e = &v->node->edges[0];
    unsigned bits;
    double n = 1;
    if (pd_dims_of("mean", v->attrs, e->ndim, &bits)) return 1;
    for (int d = 0; d < e->ndim; d++)
        if (bits >> d & 1) n *= (double)e->size[d];
    return n;
}

static void sum_vjp(pd_vjp *v) { pd_vjp_set(v, 0, spread(v, v->g[0])); }
static void mean_vjp(pd_vjp *v) { pd_vjp_set(v, 0, spread(v, pd_x_scale(v, v->g[0], 1 / count_of(v)))); }

static pd_tensor *over_same(pd_vjp *v, pd_op_id op, pd_tensor *x) {
    pd_reduce_attrs a = *(const pd_reduce_attrs *)v->attrs;
    a.keepdim = 1;
    a.dtype = PD_NO_DTYPE;
    return pd_x_call1(v, op, x, &a);
}

/* For each element the product of the others: products over [rows, n, n] with ones on the diagonals. */
static pd_tensor *products_of_others(pd_vjp *v, pd_tensor *x) {
    const pd_reduce_attrs *a = v->attrs;
    pd_reduce_attrs last = {.dim = {.n = 1, .v = {2}}, .dtype = PD_NO_DTYPE};
    pd_ints order = {.n = x->ndim}, back = {.n = x->ndim};
    pd_shape_attrs moved = {.shape = {.n = x->ndim}};
    unsigned bits;
    int64_t n = 1;
    if (pd_dims_of("prod", &a->dim, x->ndim, &bits)) return NULL;
    for (unsigned pass = 0, at = 0; pass < 2; pass++) /* the dims of the product become the last */
        for (int d = 0; d < x->ndim; d++)
            if ((bits >> d & 1) == pass) {
                if (pass) n *= x->size[d];
                order.v[at] = d, back.v[d] = at, moved.shape.v[at++] = x->size[d];
            }
    pd_shape_attrs row = {.shape = {.n = 3, .v = {x->numel / n, 1, n}}};
    pd_ints square = {.n = 3, .v = {x->numel / n, n, n}};
    pd_tensor *i = pd_x_new(v, PD_I64, 2, (int64_t[]){n, 1});
    if (!i) return NULL;
    pd_here()->range(PD_I64, pd_tensor_data(i), n, 0, 1);
    pd_tensor *eye =
        pd_x2(v, PD_OP_eq, pd_val_of(i), pd_val_of(pd_x_call1(v, PD_OP_transpose, i, &(pd_dims2_attrs){0, 1}))).t;
    pd_tensor *wide = pd_x_call1(v, PD_OP_expand,
                                 pd_x_call1(v, PD_OP_reshape, pd_x_call1(v, PD_OP_permute, x, &order), &row), &square);
    pd_tensor *others = pd_x_call1(
        v, PD_OP_prod, pd_x_where(v, PD_OP_gt, pd_val_of(eye), pd_const(0), pd_const(1), pd_val_of(wide)).t, &last);
    return pd_x_call1(v, PD_OP_permute, pd_x_call1(v, PD_OP_reshape, others, &moved), &back);
}

/* g * y / x. With zeros in x: the product of the others for a single zero, and 0 for the rest. That formula holds at
   this point only, so a gradient that is differentiated again is made of the products themselves. */
static void prod_gradient(pd_vjp *v, bool again) {
    pd_tensor *x = pd_vjp_in(v, 0), *y = pd_vjp_out(v, 0);
    pd_val g = pd_val_of(keep_dims(v, v->g[0])), one = pd_const(1), zero = pd_const(0);
    pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_scalar nonzero = {.i = pd_device_here == &pd_device_meta};
    pd_tensor *any = pd_x_call1(v, PD_OP_all, x, &all);
    if (!any) return;
    if (!nonzero.i && (v->status = pd_item("prod", any, PD_WAIT, &nonzero))) return;
    if (nonzero.i) {
        pd_vjp_set(v, 0, pd_x2(v, PD_OP_div, pd_x2(v, PD_OP_mul, g, pd_val_of(keep_dims(v, y))), pd_val_of(x)).t);
        return;
    }
    if (again) {
        pd_vjp_set(v, 0, pd_x2(v, PD_OP_mul, g, pd_val_of(products_of_others(v, x))).t);
        return;
    }
    pd_val is_zero = pd_x2(v, PD_OP_eq, pd_val_of(x), zero),
           rest = pd_x_where(v, PD_OP_ne, pd_val_of(x), zero, pd_val_of(x), one);
    pd_val others = pd_val_of(over_same(v, PD_OP_prod, rest.t)), count = pd_val_of(over_same(v, PD_OP_sum, is_zero.t));
    pd_val g_others = pd_x2(v, PD_OP_mul, g, others),
           spread_out = pd_x2(v, PD_OP_add, g_others, pd_x2(v, PD_OP_mul, rest, zero));
    pd_val single = pd_x_if(v, PD_OP_eq, pd_val_of(x), zero, pd_x_if(v, PD_OP_eq, count, one, spread_out));
    pd_vjp_set(v, 0, pd_x_where(v, PD_OP_eq, count, zero, pd_x2(v, PD_OP_div, g_others, rest), single).t);
}

static void prod_vjp(pd_vjp *v) { prod_gradient(v, true); }
static void prod_fast(pd_vjp *v) { prod_gradient(v, false); }

static void extreme_vjp(pd_vjp *v) { /* ties share the gradient evenly */
    pd_tensor *x = pd_vjp_in(v, 0), *y = keep_dims(v, pd_vjp_out(v, 0)), *g = keep_dims(v, v->g[0]);
    pd_val mask = pd_x_if(v, PD_OP_eq, pd_val_of(x), pd_val_of(y), pd_const(1));
    if (!mask.t) return;
    pd_cast_attrs to = {x->dtype};
    pd_reduce_attrs dims = *(const pd_reduce_attrs *)v->attrs;
    dims.keepdim = 1;
    pd_tensor *m = pd_x_call1(v, PD_OP_cast, mask.t, &to);
    pd_tensor *share = pd_x2(v, PD_OP_div, pd_val_of(g), pd_val_of(pd_x_call1(v, PD_OP_sum, m, &dims))).t;
    pd_vjp_set(v, 0, m && share ? pd_x_mul(v, m, share) : NULL);
}

#define FOLD_AS(Flags, fn, F, Infer, ...)                                                                   \
    static pd_status fn##_kernel(const pd_call *c) { return fold(PD_FOLD_##F, c); }                         \
    static size_t fn##_scratch(const pd_call *c) { return scratch(PD_FOLD_##F, c); }                        \
    const pd_op pd_op_##fn = {                                                                              \
        .sig = #fn "(Tensor input, int[]? dim=None, bool keepdim=False, dtype dtype=None)",                     \
        .flags = (Flags) | PD_NO_BROADCAST_GRAD, .attrs = sizeof(pd_reduce_attrs),                          \
        .infer = Infer, .kernel = fn##_kernel, .scratch = fn##_scratch, __VA_ARGS__                         \
    }
#define FOLD(...) FOLD_AS(PD_FUNC | PD_METHOD, __VA_ARGS__)
FOLD(sum, SUM, infer_sum, .doc = "The sum over dim, or over all dims if dim is None. Integers and bool give int64.",
     .promote = PD_GIVEN, .cast = PD_CAST_FP32_CUDA, .vjp = sum_vjp);
FOLD(mean, MEAN, infer_mean, .doc = "The mean of a floating tensor over dim, or over all dims if dim is None.",
     .promote = PD_GIVEN, .vjp = mean_vjp);
static void square_sum_vjp(pd_vjp *v) {
    pd_val g = pd_val_of(spread(v, v->g[0])), twice = pd_x2(v, PD_OP_mul, pd_val_of(pd_vjp_in(v, 0)), pd_const(2));
    pd_vjp_set(v, 0, pd_x2(v, PD_OP_mul, g, twice).t);
}
FOLD_AS(PD_METHOD, square_sum, SQUARES, infer_mean,
        .doc = "The sum of squares of a floating tensor over dim, or over all dims if dim is None.",
        .promote = PD_GIVEN, .save = PD_SAVE_IN(0), .vjp = square_sum_vjp);
FOLD(prod, PROD, infer_sum,
     .doc = "The product over dim, or over all dims if dim is None. Integers and bool give int64.", .promote = PD_GIVEN,
     .cast = PD_CAST_FP32, .save = PD_SAVE_IN(0) | PD_SAVE_OUT(0), .vjp = prod_vjp, .vjp_fast = prod_fast);
FOLD(amax, MAX, infer_extreme,
     .doc = "The largest element over dim; NaN if there is one. Equal largest elements share the gradient.",
     .save = PD_SAVE_IN(0) | PD_SAVE_OUT(0), .vjp = extreme_vjp);
FOLD(amin, MIN, infer_extreme,
     .doc = "The smallest element over dim; NaN if there is one. Equal smallest elements share the gradient.",
     .save = PD_SAVE_IN(0) | PD_SAVE_OUT(0), .vjp = extreme_vjp);
FOLD(any, ANY, infer_bool, .doc = "True where any element over dim is nonzero.");
FOLD(all, ALL, infer_bool, .doc = "True where all elements over dim are nonzero.");

/* ---- argmax, argmin ---------------------------------------------------------------------------------------------- */

typedef struct { int64_t dim, keepdim; } arg_attrs;

static pd_status arg_bits(const pd_call *c, unsigned *bits) {
    int64_t dim = ((const arg_attrs *)c->attrs)->dim;
    int d;
    *bits = (1u << c->in[0]->ndim) - 1;
    if (dim == PD_NONE_INT) return PD_OK;
    PD_TRY(pd_shape_dim(c->def->name, dim, c->in[0]->ndim, &d));
    *bits = c->in[0]->ndim ? 1u << d : 0;
    return PD_OK;
}

static pd_status arg_shape(pd_call *c, int k, pd_dtype dtype) {
    unsigned bits;
    pd_ints shape;
    PD_TRY(arg_bits(c, &bits));
    reduced_shape(c->in[0], bits, ((const arg_attrs *)c->attrs)->keepdim, &shape);
    PD_TRY(pd_out_shape(c, k, dtype, (int)shape.n, shape.v));
    return want_elements(c, bits);
}

static pd_status arg_infer(pd_call *c) { return arg_shape(c, 0, PD_I64); }

static pd_status arg_run(const pd_call *c, bool largest, void *values, pd_tensor *index) {
    unsigned bits;
    pd_block b;
    pd_tensor packed = *c->in[0];
    PD_TRY(arg_bits(c, &bits));
    pd_shape_contiguous(packed.ndim, packed.size, packed.stride); /* as pd_packed leaves it */
    pd_block_of(&packed, bits, &b);
    pd_here()->arg(largest, (pd_dtype)packed.dtype, &b, pd_packed(c->in[0], c->scratch), values, pd_tensor_data(index));
    return PD_OK;
}

static pd_status argmax_kernel(const pd_call *c) { return arg_run(c, true, NULL, c->out[0]); }
static pd_status argmin_kernel(const pd_call *c) { return arg_run(c, false, NULL, c->out[0]); }

const pd_op pd_op_argmax = {
    .sig = "argmax(Tensor input, int? dim=None, bool keepdim=False)",
    .doc =
        "The index (int64) of the first largest element along dim, or in the flattened tensor if dim is None. NaN "
        "counts as largest.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(arg_attrs),
    .infer = arg_infer,
    .kernel = argmax_kernel,
    .scratch = pd_packed_bytes,
};
const pd_op pd_op_argmin = {
    .sig = "argmin(Tensor input, int? dim=None, bool keepdim=False)",
    .doc =
        "The index (int64) of the first smallest element along dim, or in the flattened tensor if dim is None. NaN "
        "counts as smallest.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(arg_attrs),
    .infer = arg_infer,
    .kernel = argmin_kernel,
    .scratch = pd_packed_bytes,
};

/* ---- values and indices along one dimension ---------------------------------------------------------------------- */

/* The gradient of taking `index` along dim: zeros, and g at those places. g and index have as many dims as the
   input. */
static void put_along(pd_vjp *v, int dim, pd_tensor *g, pd_tensor *index) {
    const pd_edge *e = &v->node->edges[0];
    pd_tensor *in[2 + PD_MAX_DIMS], *zeros = pd_x_new(v, (pd_dtype)e->dtype, e->ndim, e->size);
    if (!zeros || !g || !index) return;
    pd_fill(zeros, &(pd_scalar){.cat = PD_CAT_INT});
    in[0] = zeros;
    in[1] = g;
    for (int d = 0; d < e->ndim; d++) {
        int64_t shape[PD_MAX_DIMS];
        if (d == dim) {
            in[2 + d] = index;
            continue;
        }
        for (int k = 0; k < e->ndim; k++) shape[k] = k == d ? e->size[d] : 1;
        in[2 + d] = pd_x_new(v, PD_I64, e->ndim, shape);
        if (!in[2 + d]) return;
        pd_here()->range(PD_I64, pd_tensor_data(in[2 + d]), e->size[d], 0, 1);
    }
    pd_vjp_set(v, 0, pd_x(v, PD_OP_index_put_front, &(pd_put_attrs){.order = PD_INDEX_ORDER}, 2 + e->ndim, in));
}

typedef struct { int64_t dim, keepdim, largest; } extreme_attrs;

static pd_status pick_infer(pd_call *c) {
    if (c->in[0]->ndim == 0) {
        PD_TRY(pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]));
        return pd_out_like(c, 1, PD_I64, c->in[0]);
    }
    PD_TRY(arg_shape(c, 0, (pd_dtype)c->in[0]->dtype));
    return arg_shape(c, 1, PD_I64);
}

static pd_status pick_kernel(const pd_call *c) {
    return arg_run(c, ((const extreme_attrs *)c->attrs)->largest, pd_tensor_data(c->out[0]), c->out[1]);
}

static void pick_vjp(pd_vjp *v) {
    const extreme_attrs *a = v->attrs;
    int n = v->node->edges[0].ndim;
    int64_t dim = a->dim < 0 ? a->dim + n : a->dim;
    pd_tensor *index = pd_vjp_out(v, 1), *g = v->g[0];
    if (!g || !index) return;
    if (n == 0) {
        pd_vjp_set(v, 0, g);
        return;
    }
    if (!a->keepdim) {
        g = pd_x_call1(v, PD_OP_unsqueeze, g, &dim);
        index = pd_x_call1(v, PD_OP_unsqueeze, index, &dim);
    }
    put_along(v, (int)dim, g, index);
}

const pd_op pd_op_extreme = {
    .sig = "extreme(Tensor input, int dim, bool keepdim, bool largest)",
    .doc = "max or min along dim, with the indices.",
    .nout = 2,
    .save = PD_SAVE_OUT(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(extreme_attrs),
    .infer = pick_infer,
    .kernel = pick_kernel,
    .scratch = pd_packed_bytes,
    .vjp = pick_vjp,
};

static pd_status extreme_compose(pd_call *c, bool largest) {
    const arg_attrs *a = c->attrs;
    if (a->dim == PD_NONE_INT) {
        pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
        c->nout = 1;
        return pd_call1(largest ? PD_OP_amax : PD_OP_amin, c->in[0], &all, c->out);
    }
    extreme_attrs e = {a->dim, a->keepdim, largest};
    c->nout = 2;
    return pd_call1(PD_OP_extreme, c->in[0], &e, c->out);
}

static pd_status max_compose(pd_call *c) { return extreme_compose(c, true); }
static pd_status min_compose(pd_call *c) { return extreme_compose(c, false); }

extern const pd_op pd_op_maximum, pd_op_minimum;

const pd_op pd_op_max = {
    .sig = "max(Tensor input, int? dim=None, bool keepdim=False)",
    .doc =
        "The largest element. With dim: (values, indices) of the first largest element along dim. With a second "
        "tensor: the maximum of both.",
    .names = "values indices",
    .elementwise = &pd_op_maximum,
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(arg_attrs),
    .compose = max_compose,
};
const pd_op pd_op_min = {
    .sig = "min(Tensor input, int? dim=None, bool keepdim=False)",
    .doc =
        "The smallest element. With dim: (values, indices) of the first smallest element along dim. With a second "
        "tensor: the minimum of both.",
    .names = "values indices",
    .elementwise = &pd_op_minimum,
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(arg_attrs),
    .compose = min_compose,
};

/* ---- topk -------------------------------------------------------------------------------------------------------- */

typedef struct { int64_t k, dim, largest, sorted; } topk_attrs;

static pd_status topk_infer(pd_call *c) {
    const topk_attrs *a = c->attrs;
    pd_tensor *x = c->in[0];
    int64_t size[PD_MAX_DIMS], n = x->ndim ? x->size[x->ndim - 1] : 1;
    if (a->k < 0 || a->k > n)
        return pd_fail(PD_E_INDEX,
                       "topk: selected index k out of range: got %" PRId64 " (expected 0 to %" PRId64
                       ", the size of the dimension)",
                       a->k, n);
    memcpy(size, x->size, sizeof(int64_t) * (size_t)x->ndim);
    if (x->ndim) size[x->ndim - 1] = a->k;
    PD_TRY(pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, size));
    return pd_out_shape(c, 1, PD_I64, x->ndim, size);
}

static pd_block last_axis(const pd_tensor *x) {
    int64_t n = x->ndim ? x->size[x->ndim - 1] : 1;
    return (pd_block){n ? x->numel / n : 0, n, 1};
}

static size_t packed_end(const pd_call *c) { return (pd_packed_bytes(c) + 63) & ~(size_t)63; }

static size_t topk_bytes(const pd_call *c) {
    pd_block b = last_axis(c->in[0]);
    return packed_end(c) + pd_here()->topk_scratch(&b);
}

static pd_status topk_kernel(const pd_call *c) {
    const topk_attrs *a = c->attrs;
    pd_block b = last_axis(c->in[0]);
    int64_t k = c->in[0]->ndim ? a->k : 1; /* of a 0-d tensor always its one element, as in PyTorch */
    pd_here()->topk(a->largest, (pd_dtype)c->in[0]->dtype, &b, k, pd_packed(c->in[0], c->scratch),
                    pd_tensor_data(c->out[0]), pd_tensor_data(c->out[1]), (char *)c->scratch + packed_end(c));
    return PD_OK;
}

static void topk_vjp(pd_vjp *v) {
    int n = v->node->edges[0].ndim;
    if (n == 0) pd_vjp_set(v, 0, v->g[0]);
    else put_along(v, n - 1, v->g[0], pd_vjp_out(v, 1));
}

const pd_op pd_op_topk_last = {
    .sig = "topk_last(Tensor input, int k, int dim, bool largest, bool sorted)",
    .doc = "topk along the last dimension.",
    .nout = 2,
    .save = PD_SAVE_OUT(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(topk_attrs),
    .infer = topk_infer,
    .kernel = topk_kernel,
    .scratch = topk_bytes,
    .vjp = topk_vjp,
};

static pd_status topk_compose(pd_call *c) {
    const topk_attrs *a = c->attrs;
    pd_tensor *x = c->in[0], *moved, *got[2];
    int dim;
    PD_TRY(pd_shape_dim("topk", a->dim, x->ndim, &dim));
    c->nout = 2;
    if (dim >= x->ndim - 1) return pd_call1(PD_OP_topk_last, x, a, c->out);
    pd_dims2_attrs swap = {dim, x->ndim - 1};
    PD_TRY(pd_call1(PD_OP_transpose, x, &swap, &moved));
    pd_status status = pd_call1(PD_OP_topk_last, moved, a, got);
    pd_tensor_release(moved);
    PD_TRY(status);
    for (int i = 0; i < 2; i++) {
        PD_THEN(pd_call1(PD_OP_transpose, got[i], &swap, &c->out[i]));
        pd_tensor_release(got[i]);
    }
    return status;
}

const pd_op pd_op_topk = {
    .sig = "topk(Tensor input, int k, int dim=-1, bool largest=True, bool sorted=True)",
    .doc = "The k largest (smallest) elements along dim, in descending (ascending) order, and their indices (int64).",
    .names = "values indices", .flags = PD_FUNC | PD_METHOD, .attrs = sizeof(topk_attrs), .compose = topk_compose,
};
