/* Pooling: max, mean, adaptive. The public ops turn [C, L], [N, C, L] and [C, H, W] into [N, C, H, W], compute the
   windows and call a hidden op. Its gradients are ops, too: max_pool_grad puts g at the places that max_pool has found,
   max_pool_take reads there, and each is the other's gradient. The same holds for the mean and its gradient. */
#include <inttypes.h>
#include <string.h>

#include "ops/block.h"

/* The windows. size: H, W; out: P, Q. */
typedef struct {
    int64_t kernel[2], stride[2], padding[2], dilation[2], size[2], out[2], adaptive, include_pad, divisor, nhwc;
} pool_attrs;
#define POOL_ATTRS                                                                                                 \
    "int[2] kernel, int[2] stride, int[2] padding, int[2] dilation, int[2] size, int[2] out, bool adaptive, bool " \
    "include_pad, int divisor, bool nhwc"

/* ---- windows worked out: hidden ops ------------------------------------------------------------------------------ */

static bool is_wide(const pool_attrs *a) { return a->kernel[0] * a->kernel[1] >= 255; }

static pd_pool shape_of(const pd_tensor *t, const pool_attrs *a, pd_dtype dtype) {
    pd_pool s = {.t = dtype,
                 .N = t->size[0],
                 .C = t->size[1],
                 .H = a->size[0],
                 .W = a->size[1],
                 .P = a->out[0],
                 .Q = a->out[1],
                 .divisor = a->divisor,
                 .nhwc = a->nhwc,
                 .adaptive = a->adaptive,
                 .include_pad = a->include_pad,
                 .wide = is_wide(a)};
    for (int i = 0; i < 2; i++)
        s.kernel[i] = a->kernel[i], s.stride[i] = a->stride[i], s.padding[i] = a->padding[i],
        s.dilation[i] = a->dilation[i];
    return s;
}

static pd_status infer_image(pd_call *c, int k, pd_dtype dtype, const int64_t *image) {
    const pool_attrs *a = c->attrs;
    int64_t size[4] = {c->in[0]->size[0], c->in[0]->size[1], image[0], image[1]};
    PD_TRY(pd_out_shape(c, k, dtype, 4, size));
    if (a->nhwc) pd_shape_channels_last(4, size, c->out[k]->stride);
    return PD_OK;
}
static pd_status small_infer(pd_call *c) {
    return infer_image(c, 0, (pd_dtype)c->in[0]->dtype, ((const pool_attrs *)c->attrs)->out);
}
static pd_status large_infer(pd_call *c) {
    return infer_image(c, 0, (pd_dtype)c->in[0]->dtype, ((const pool_attrs *)c->attrs)->size);
}
static pd_status index_infer(pd_call *c) { return infer_image(c, 0, PD_I64, ((const pool_attrs *)c->attrs)->out); }
static pd_status max_infer(pd_call *c) {
    PD_TRY(small_infer(c));
    return infer_image(c, 1, is_wide(c->attrs) ? PD_I32 : PD_U8, ((const pool_attrs *)c->attrs)->out);
}

static size_t scratch(const pd_call *c) {
    size_t bytes = 0;
    for (int i = 0; i < c->nin; i++) bytes += pd_laid_out_bytes(c->in[i], ((const pool_attrs *)c->attrs)->nhwc);
    return bytes;
}
static double work(const pd_call *c) {
    const pool_attrs *a = c->attrs;
    return (double)c->in[0]->numel * 0.5 + (double)(c->in[0]->size[0] * c->in[0]->size[1] * a->out[0] * a->out[1]) *
                                               (double)(a->kernel[0] * a->kernel[1]) * 0.2;
}

static pd_status max_kernel(const pd_call *c) {
    const pool_attrs *a = c->attrs;
    void *room = c->scratch;
    pd_pool s = shape_of(c->in[0], a, (pd_dtype)c->in[0]->dtype);
    pd_here()->max_pool(&s, pd_laid_out(c->in[0], a->nhwc, &room), pd_tensor_data(c->out[0]),
                        pd_tensor_data(c->out[1]));
    return PD_OK;
}
static pd_status grad_kernel(const pd_call *c) {
    const pool_attrs *a = c->attrs;
    void *room = c->scratch;
    pd_pool s = shape_of(c->in[0], a, (pd_dtype)c->in[0]->dtype);
    const void *g = pd_laid_out(c->in[0], a->nhwc, &room);
    pd_here()->max_pool_grad(&s, g, pd_laid_out(c->in[1], a->nhwc, &room), pd_tensor_data(c->out[0]));
    return PD_OK;
}
static pd_status take_kernel(const pd_call *c) {
    const pool_attrs *a = c->attrs;
    void *room = c->scratch;
    pd_pool s = shape_of(c->in[0], a, (pd_dtype)c->in[0]->dtype);
    const void *x = pd_laid_out(c->in[0], a->nhwc, &room);
    pd_here()->max_pool_take(&s, x, pd_laid_out(c->in[1], a->nhwc, &room), pd_tensor_data(c->out[0]));
    return PD_OK;
}
static pd_status index_kernel(const pd_call *c) {
    const pool_attrs *a = c->attrs;
    void *room = c->scratch;
    pd_pool s = shape_of(c->in[0], a, PD_I64);
    pd_here()->max_pool_index(&s, pd_laid_out(c->in[0], a->nhwc, &room), pd_tensor_data(c->out[0]));
    return PD_OK;
}
static pd_status avg_kernel(const pd_call *c) {
    const pool_attrs *a = c->attrs;
    void *room = c->scratch;
    pd_pool s = shape_of(c->in[0], a, (pd_dtype)c->in[0]->dtype);
    pd_here()->avg_pool(&s, pd_laid_out(c->in[0], a->nhwc, &room), pd_tensor_data(c->out[0]));
    return PD_OK;
}
static pd_status avg_grad_kernel(const pd_call *c) {
    const pool_attrs *a = c->attrs;
    void *room = c->scratch;
    pd_pool s = shape_of(c->in[0], a, (pd_dtype)c->in[0]->dtype);
    pd_here()->avg_pool_grad(&s, pd_laid_out(c->in[0], a->nhwc, &room), pd_tensor_data(c->out[0]));
    return PD_OK;
}

static void max_vjp(pd_vjp *v) {
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_pool_max_grad, v->g[0], pd_vjp_out(v, 1), v->attrs));
}
static void grad_vjp(pd_vjp *v) {
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_pool_max_take, v->g[0], pd_vjp_in(v, 1), v->attrs));
}
static void take_vjp(pd_vjp *v) {
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_pool_max_grad, v->g[0], pd_vjp_in(v, 1), v->attrs));
}
static void avg_vjp(pd_vjp *v) { pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_pool_avg_grad, v->g[0], v->attrs)); }
static void avg_grad_vjp(pd_vjp *v) { pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_pool_avg, v->g[0], v->attrs)); }

#define POOL_OP .flags = PD_NO_BROADCAST_GRAD, .attrs = sizeof(pool_attrs), .scratch = scratch, .work = work
const pd_op pd_op_pool_max = {
    .sig = "pool_max(Tensor input, " POOL_ATTRS ")",
    POOL_OP,
    .doc = "The largest element of each window, and its position.",
    .nout = 2,
    .save = PD_SAVE_OUT(1),
    .infer = max_infer,
    .kernel = max_kernel,
    .vjp = max_vjp,
};
const pd_op pd_op_pool_max_grad = {
    .sig = "pool_max_grad(Tensor g, Tensor place, " POOL_ATTRS ")",
    POOL_OP,
    .doc = "The gradient of pool_max: zeros, to which g is added at the positions.",
    .save = PD_SAVE_IN(1),
    .infer = large_infer,
    .kernel = grad_kernel,
    .vjp = grad_vjp,
};
const pd_op pd_op_pool_max_take = {
    .sig = "pool_max_take(Tensor input, Tensor place, " POOL_ATTRS ")",
    POOL_OP,
    .doc = "The gradient of pool_max_grad: the elements at the positions.",
    .save = PD_SAVE_IN(1),
    .infer = small_infer,
    .kernel = take_kernel,
    .vjp = take_vjp,
};
const pd_op pd_op_pool_max_index = {
    .sig = "pool_max_index(Tensor place, " POOL_ATTRS ")",
    POOL_OP,
    .doc = "The positions as int64 indices in their planes.",
    .infer = index_infer,
    .kernel = index_kernel,
};
const pd_op pd_op_pool_avg = {
    .sig = "pool_avg(Tensor input, " POOL_ATTRS ")",
    POOL_OP,
    .doc = "The mean of each window.",
    .infer = small_infer,
    .kernel = avg_kernel,
    .vjp = avg_vjp,
};
const pd_op pd_op_pool_avg_grad = {
    .sig = "pool_avg_grad(Tensor g, " POOL_ATTRS ")",
    POOL_OP,
    .doc = "The gradient of pool_avg.",
    .infer = large_infer,
    .kernel = avg_grad_kernel,
    .vjp = avg_grad_vjp,
};

#undef POOL_OP

/* ---- from the user's arguments to windows ------------------------------------------------------------------------ */

/* Checks x and takes the sizes of its last `dims` dimensions (1 or 2); for one dimension the first size is 1. */
static pd_status image_of(const char *op, const pd_tensor *x, int dims, pool_attrs *a) {
    bool fits = x->ndim == dims + 1 || x->ndim == dims + 2;
    for (int d = x->ndim == dims + 2; d < x->ndim && fits; d++) fits = x->size[d] > 0;
    if (!fits)
        return pd_fail(PD_E_SHAPE,
                       "%s: input has shape %s (expected %s or [N, ...], where all sizes except N are at least 1)", op,
                       pd_tensor_shape(x), dims == 1 ? "[C, L]" : "[C, H, W]");
    if (x->dtype == PD_BOOL) return pd_fail(PD_E_DTYPE, "%s: the input is bool (expected numbers)", op);
    a->size[0] = dims == 1 ? 1 : x->size[x->ndim - 2];
    a->size[1] = x->size[x->ndim - 1];
    return PD_OK;
}

/* The user's arguments for each dimension. */
typedef struct {
    const int64_t *kernel;
    const pd_ints *stride;
    const int64_t *padding, *dilation;
    int64_t ceil_mode;
} given;

static pd_status windows_of(const char *op, const pd_tensor *x, int dims, const given *g, pool_attrs *a) {
    PD_TRY(image_of(op, x, dims, a));
    if (g->stride->n > 0 && g->stride->n != 1 && g->stride->n != dims)
        return pd_fail(PD_E_VALUE, "%s: stride has %" PRId64 " entries (expected 1 or %d)", op, g->stride->n, dims);
    for (int i = 0; i < 2; i++) {
        int k = i - (2 - dims);
        a->kernel[i] = a->stride[i] = a->dilation[i] = a->out[i] = 1;
        a->padding[i] = 0;
        if (k < 0) continue;
        a->kernel[i] = g->kernel[k];
        a->stride[i] = g->stride->n > 0 ? g->stride->v[g->stride->n == 1 ? 0 : k] : g->kernel[k];
        a->padding[i] = g->padding[k];
        a->dilation[i] = g->dilation ? g->dilation[k] : 1;
        int64_t high = a->kernel[i] > a->stride[i] ? a->kernel[i] : a->stride[i];
        if (a->kernel[i] < 1 || a->stride[i] < 1 || a->dilation[i] < 1 || a->padding[i] < 0 || high > INT32_MAX ||
            a->dilation[i] > INT32_MAX)
            return pd_fail(PD_E_VALUE,
                           "%s: kernel_size is %" PRId64 ", stride %" PRId64 ", padding %" PRId64 ", dilation %" PRId64
                           " (expected padding at least 0, the others at least 1)",
                           op, a->kernel[i], a->stride[i], a->padding[i], a->dilation[i]);
        int64_t reach = a->dilation[i] * (a->kernel[i] - 1) + 1;
        if (a->padding[i] > reach / 2)
            return pd_fail(PD_E_VALUE,
                           "%s: pad should be at most half of effective kernel size: got padding %" PRId64
                           " for a window of %" PRId64 " elements (expected less padding)",
                           op, a->padding[i], reach);
        int64_t room = a->size[i] + 2 * a->padding[i] - reach + (g->ceil_mode ? a->stride[i] - 1 : 0);
        a->out[i] = room < 0 ? 0 : room / a->stride[i] + 1;
        if (g->ceil_mode && (a->out[i] - 1) * a->stride[i] >= a->size[i] + a->padding[i]) a->out[i]--;
        if (a->out[i] < 1)
            return pd_fail(PD_E_SHAPE,
                           "%s: a window of %" PRId64 " elements does not fit into input %s with padding %" PRId64
                           " (expected a smaller window or more padding)",
                           op, reach, pd_tensor_shape(x), a->padding[i]);
    }
    if (a->kernel[0] * a->kernel[1] > INT32_MAX)
        return pd_fail(PD_E_VALUE, "%s: kernel_size is %s (expected at most 2^31 - 1 elements in a window)", op,
                       pd_shape_text(2, a->kernel));
    return PD_OK;
}

/* Adaptive windows; windows of equal size without overlap become plain ones. */
static pd_status adaptive_of(const char *op, const pd_tensor *x, int dims, const int64_t *out, pool_attrs *a) {
    bool even = true;
    int64_t total;
    PD_TRY(image_of(op, x, dims, a));
    for (int i = 0; i < 2; i++) {
        int k = i - (2 - dims);
        a->out[i] = k < 0 ? 1 : out[k];
        if (a->out[i] < 0)
            return pd_fail(PD_E_VALUE, "%s: output_size is %" PRId64 " (expected at least 0)", op, a->out[i]);
        a->stride[i] = a->dilation[i] = 1;
        a->padding[i] = 0;
        even = even && a->out[i] && a->size[i] % a->out[i] == 0;
    }
    for (int i = 0; i < 2; i++) {
        int64_t n = a->out[i] ? a->size[i] / a->out[i] : 1;
        a->kernel[i] = even || n + 2 > a->size[i] ? (even ? n : a->size[i]) : n + 2;
        if (even) a->stride[i] = n;
    }
    a->adaptive = !even;
    PD_TRY(pd_shape_numel(op, 2, a->out, &total));
    if (a->kernel[0] * a->kernel[1] > INT32_MAX)
        return pd_fail(PD_E_VALUE, "%s: windows have %s elements (expected at most 2^31 - 1 in a window)", op,
                       pd_shape_text(2, a->kernel));
    return PD_OK;
}

/* [new] x as [N, C, H, W]; from_images turns a result back. */
static pd_status to_images(pd_tensor *x, int dims, pd_tensor **out) {
    pd_tensor *wide;
    PD_TRY(dims == 2 ? (pd_tensor_retain(wide = x), PD_OK) : pd_call1(PD_OP_unsqueeze, x, &(int64_t){-2}, &wide));
    if (wide->ndim == 4) {
        *out = wide;
        return PD_OK;
    }
    pd_status status = pd_call1(PD_OP_unsqueeze, wide, &(int64_t){0}, out);
    pd_tensor_release(wide);
    return status;
}
static pd_status from_images(pd_tensor *y, const pd_tensor *x, int dims, pd_tensor **out) {
    pd_tensor *flat;
    PD_TRY(dims == 2 ? (pd_tensor_retain(flat = y), PD_OK) : pd_call1(PD_OP_squeeze, y, &(pd_ints){1, {-2}}, &flat));
    if (flat->ndim == x->ndim) {
        *out = flat;
        return PD_OK;
    }
    pd_status status = pd_call1(PD_OP_squeeze, flat, &(pd_ints){1, {0}}, out);
    pd_tensor_release(flat);
    return status;
}

static pd_status run(pd_call *c, int dims, pool_attrs *a, pd_op_id op, bool indices) {
    pd_tensor *x = NULL, *y[PD_MAX_OUTS] = {0}, *index = NULL;
    pd_status status;
    PD_TRY(to_images(c->in[0], dims, &x));
    a->nhwc = pd_is_nhwc(x);
    PD_TRY_TO(done, pd_apply(&pd_defs[op], &x, 1, a, y, NULL));
    c->nout = 1 + indices;
    PD_TRY_TO(done, from_images(y[0], c->in[0], dims, &c->out[0]));
    if (indices) {
        PD_TRY_TO(done, pd_call1(PD_OP_pool_max_index, y[1], a, &index));
        PD_TRY_TO(done, from_images(index, c->in[0], dims, &c->out[1]));
    }
done:
    pd_tensor_release(x);
    pd_tensor_release(y[0]);
    pd_tensor_release(y[1]);
    pd_tensor_release(index);
    return status;
}

/* ---- the public ops ---------------------------------------------------------------------------------------------- */

typedef struct { int64_t kernel[2]; pd_ints stride; int64_t padding[2], dilation[2], ceil_mode; } max2_attrs;
typedef struct { int64_t kernel; pd_ints stride; int64_t padding, dilation, ceil_mode; } max1_attrs;
typedef struct { int64_t kernel[2]; pd_ints stride; int64_t padding[2], ceil_mode, include_pad, divisor; } avg2_attrs;
typedef struct { int64_t kernel; pd_ints stride; int64_t padding, ceil_mode, include_pad; } avg1_attrs;

static pd_status max2(pd_call *c, bool indices) {
    const max2_attrs *u = c->attrs;
    pool_attrs a = {0};
    PD_TRY(windows_of(c->def->name, c->in[0], 2, &(given){u->kernel, &u->stride, u->padding, u->dilation, u->ceil_mode},
                      &a));
    return run(c, 2, &a, PD_OP_pool_max, indices);
}
static pd_status max1(pd_call *c, bool indices) {
    const max1_attrs *u = c->attrs;
    pool_attrs a = {0};
    PD_TRY(windows_of(c->def->name, c->in[0], 1,
                      &(given){&u->kernel, &u->stride, &u->padding, &u->dilation, u->ceil_mode}, &a));
    return run(c, 1, &a, PD_OP_pool_max, indices);
}
static pd_status avg2_compose(pd_call *c) {
    const avg2_attrs *u = c->attrs;
    pool_attrs a = {.include_pad = u->include_pad, .divisor = u->divisor == PD_NONE_INT ? 0 : u->divisor};
    PD_TRY(pd_check_float(c, 0));
    if (u->divisor == 0)
        return pd_fail(PD_E_VALUE, "avg_pool2d: divisor_override is 0 (expected another number or None)");
    PD_TRY(windows_of("avg_pool2d", c->in[0], 2, &(given){u->kernel, &u->stride, u->padding, NULL, u->ceil_mode}, &a));
    return run(c, 2, &a, PD_OP_pool_avg, false);
}
static pd_status avg1_compose(pd_call *c) {
    const avg1_attrs *u = c->attrs;
    pool_attrs a = {.include_pad = u->include_pad};
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(
        windows_of("avg_pool1d", c->in[0], 1, &(given){&u->kernel, &u->stride, &u->padding, NULL, u->ceil_mode}, &a));
    return run(c, 1, &a, PD_OP_pool_avg, false);
}
static pd_status adaptive_max(pd_call *c, int dims, bool indices) {
    pool_attrs a = {0};
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(adaptive_of(c->def->name, c->in[0], dims, c->attrs, &a));
    return run(c, dims, &a, PD_OP_pool_max, indices);
}
static pd_status adaptive_avg(pd_call *c, int dims) {
    pool_attrs a = {0};
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(adaptive_of(c->def->name, c->in[0], dims, c->attrs, &a));
    if (a.out[0] == 1 && a.out[1] == 1 && pd_tensor_is_contiguous(c->in[0])) { /* the mean of a plane is one long row */
        pd_reduce_attrs plane = {.dim = {.n = dims, .v = {-1, -2}}, .keepdim = 1, .dtype = PD_NO_DTYPE};
        return pd_call1(PD_OP_mean, c->in[0], &plane, &c->out[0]);
    }
    return run(c, dims, &a, PD_OP_pool_avg, false);
}
static pd_status max2_compose(pd_call *c) { return max2(c, false); }
static pd_status max2_both_compose(pd_call *c) { return max2(c, true); }
static pd_status max1_compose(pd_call *c) { return max1(c, false); }
static pd_status max1_both_compose(pd_call *c) { return max1(c, true); }
static pd_status adaptive_max2_compose(pd_call *c) { return adaptive_max(c, 2, false); }
static pd_status adaptive_max2_both_compose(pd_call *c) { return adaptive_max(c, 2, true); }
static pd_status adaptive_max1_compose(pd_call *c) { return adaptive_max(c, 1, true); }
static pd_status adaptive_avg2_compose(pd_call *c) { return adaptive_avg(c, 2); }
static pd_status adaptive_avg1_compose(pd_call *c) { return adaptive_avg(c, 1); }

#define MAX2                                                                                            \
    "(Tensor input, int[2] kernel_size, int[]? stride=None, int[2] padding=0, int[2] dilation=1, bool " \
    "ceil_mode=False)"
#define MAX1                                                                                            \
    "(Tensor input, int[1] kernel_size, int[]? stride=None, int[1] padding=0, int[1] dilation=1, bool " \
    "ceil_mode=False)"
#define WINDOWS                                                                                                       \
    " kernel_size elements that lie dilation apart, with a new window every stride (default: kernel_size) elements. " \
    "Padding never counts. ceil_mode keeps a last window that starts inside."
const pd_op pd_op_max_pool2d = {
    .sig = "max_pool2d" MAX2, .doc = "The largest element of each window of input [N, C, H, W] or [C, H, W]:" WINDOWS,
    .flags = PD_FUNC | PD_NN, .attrs = sizeof(max2_attrs), .compose = max2_compose,
};
const pd_op pd_op_max_pool2d_with_indices = {
    .sig = "max_pool2d_with_indices" MAX2,
    .doc = "max_pool2d, and the position (int64) of each result in its H * W plane.",
    .names = "values indices",
    .flags = PD_NN,
    .attrs = sizeof(max2_attrs),
    .compose = max2_both_compose,
};
const pd_op pd_op_max_pool1d = {
    .sig = "max_pool1d" MAX1, .doc = "The largest element of each window of input [N, C, L] or [C, L]:" WINDOWS,
    .flags = PD_FUNC | PD_NN, .attrs = sizeof(max1_attrs), .compose = max1_compose,
};
const pd_op pd_op_max_pool1d_with_indices = {
    .sig = "max_pool1d_with_indices" MAX1,
    .doc = "max_pool1d, and the position (int64) of each result along L.",
    .names = "values indices",
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(max1_attrs),
    .compose = max1_both_compose,
};
const pd_op pd_op_avg_pool2d = {
    .sig =
        "avg_pool2d(Tensor input, int[2] kernel_size, int[]? stride=None, int[2] padding=0, bool ceil_mode=False, bool "
        "count_include_pad=True, "
        "int? divisor_override=None)",
    .doc =
        "The mean of each window of input [N, C, H, W] or [C, H, W]. Padding counts as zeros, or not at all if "
        "count_include_pad is False. divisor_override replaces the number by which the sum is divided.",
    .flags = PD_NN,
    .attrs = sizeof(avg2_attrs),
    .compose = avg2_compose,
};
const pd_op pd_op_avg_pool1d = {
    .sig =
        "avg_pool1d(Tensor input, int[1] kernel_size, int[]? stride=None, int[1] padding=0, bool ceil_mode=False, bool "
        "count_include_pad=True)",
    .doc =
        "The mean of each window of input [N, C, L] or [C, L]. Padding counts as zeros, or not at all if "
        "count_include_pad is False.",
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(avg1_attrs),
    .compose = avg1_compose,
};
#define ADAPTIVE                                                                                                     \
    " of input's window [floor(i n / m), ceil((i + 1) n / m)) for every i below output_size m, where n is the size " \
    "of input."
const pd_op pd_op_adaptive_avg_pool2d = {
    .sig = "adaptive_avg_pool2d(Tensor input, int[2] output_size)",
    .doc = "The mean" ADAPTIVE,
    .flags = PD_NN,
    .attrs = 16,
    .compose = adaptive_avg2_compose,
};
const pd_op pd_op_adaptive_avg_pool1d = {
    .sig = "adaptive_avg_pool1d(Tensor input, int[1] output_size)",
    .doc = "The mean" ADAPTIVE,
    .flags = PD_FUNC | PD_NN,
    .attrs = 8,
    .compose = adaptive_avg1_compose,
};
const pd_op pd_op_adaptive_max_pool2d = {
    .sig = "adaptive_max_pool2d(Tensor input, int[2] output_size)",
    .doc = "The largest element" ADAPTIVE,
    .flags = PD_NN,
    .attrs = 16,
    .compose = adaptive_max2_compose,
};
const pd_op pd_op_adaptive_max_pool2d_with_indices = {
    .sig = "adaptive_max_pool2d_with_indices(Tensor input, int[2] output_size)",
    .doc = "adaptive_max_pool2d, and the position (int64) of each result in its H * W plane.",
    .names = "values indices",
    .flags = PD_NN,
    .attrs = 16,
    .compose = adaptive_max2_both_compose,
};
const pd_op pd_op_adaptive_max_pool1d = {
    .sig = "adaptive_max_pool1d(Tensor input, int[1] output_size)",
    .doc = "The largest element, and its position along L (int64)," ADAPTIVE,
    .names = "values indices",
    .flags = PD_FUNC | PD_NN,
    .attrs = 8,
    .compose = adaptive_max1_compose,
};
