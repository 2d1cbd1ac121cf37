/* Resizing along one dimension: each result is a weighted sum of a few inputs, by tables made from the attributes. The
   gradient is the same op, transposed. interpolate (pydist/nn/functional) calls it for each dimension. */
#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "ops/block.h"

enum { NEAREST, EXACT, LINEAR, CUBIC, LINEAR_AA, CUBIC_AA };
typedef struct { int64_t dim, size, mode, align; double scale; int64_t transposed; } resample_attrs;

static double scale_of(const resample_attrs *a, int64_t from, int64_t to) {
    return a->align       ? to > 1 ? (double)(from - 1) / (double)(to - 1) : 0
           : a->scale > 0 ? a->scale
                          : (double)from / (double)to;
}

/* With antialiasing: how many inputs to each side a result depends on. The filter grows when results are fewer. */
static double reach_of(const resample_attrs *a, double scale) {
    return (a->mode == CUBIC_AA ? 2 : 1) * (scale > 1 ? scale : 1);
}

static int64_t taps_of(const resample_attrs *a, int64_t from, int64_t to) {
    if (a->mode < LINEAR_AA) return a->mode == CUBIC ? 4 : a->mode == LINEAR ? 2 : 1;
    return 2 * (int64_t)ceil(reach_of(a, scale_of(a, from, to))) + 2;
}

/* The place of dimension d in the order of memory. */
static int place_in_memory(bool nhwc, int d) { return nhwc && d == 1 ? PD_MAX_DIMS : d; }

/* Sets the sizes along dim: `from` inputs and `to` results, exchanged if transposed. */
static pd_status sizes(const pd_call *c, int *dim, pd_resample *s) {
    const resample_attrs *a = c->attrs;
    const pd_tensor *x = c->in[0];
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(pd_shape_dim("resample", a->dim, x->ndim, dim));
    if (a->size < 1 || x->ndim == 0 || x->size[*dim] < 1)
        return pd_fail(PD_E_SHAPE, "resample: input has shape %s, size is %" PRId64 " (expected sizes of at least 1)",
                       pd_tensor_shape(x), a->size);
    *s = (pd_resample){.t = x->dtype == PD_F64 ? PD_F64 : PD_F32,
                       .outer = 1,
                       .inner = 1,
                       .from = x->size[*dim],
                       .to = a->size,
                       .transposed = a->transposed};
    if (a->transposed) s->from = a->size, s->to = x->size[*dim];
    s->taps = taps_of(a, s->from, s->to);
    if (s->taps > INT32_MAX)
        return pd_fail(
            PD_E_VALUE,
            "resample: scale is %g, which is too large (expected less than 2^31 source elements for a result)",
            a->scale);
    const bool nhwc = pd_is_nhwc(x);
    for (int d = 0; d < x->ndim; d++)
        if (d != *dim) *(place_in_memory(nhwc, d) < place_in_memory(nhwc, *dim) ? &s->outer : &s->inner) *= x->size[d];
    return PD_OK;
}

static pd_status infer(pd_call *c) {
    const resample_attrs *a = c->attrs;
    const pd_tensor *x = c->in[0];
    int64_t size[PD_MAX_DIMS];
    pd_resample s;
    int dim;
    PD_TRY(sizes(c, &dim, &s));
    for (int d = 0; d < x->ndim; d++) size[d] = d == dim ? a->size : x->size[d];
    PD_TRY(pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, size));
    if (pd_is_nhwc(x)) pd_shape_channels_last(4, size, c->out[0]->stride);
    return PD_OK;
}

static size_t table_bytes(const pd_resample *s) { return (size_t)(s->to * s->taps) * 16; }

static size_t scratch(const pd_call *c) {
    pd_resample s;
    int dim;
    if (sizes(c, &dim, &s)) return 0;
    return table_bytes(&s) + pd_laid_out_bytes(c->in[0], pd_is_nhwc(c->in[0])) +
           (pd_dtype_size(s.t) == pd_dtype_size((pd_dtype)c->in[0]->dtype)
                ? 0
                : (size_t)(c->in[0]->numel + c->out[0]->numel) * 4);
}

/* The weights of four neighbours of a point at distance t after the second (Keys, 1981, with -0.75 as in PyTorch). */
static void cubic(double t, double w[4]) {
    const double A = -0.75;
    for (int k = 0; k < 4; k++) {
        double d = fabs(k - 1 - t);
        w[k] = d <= 1 ? ((A + 2) * d - (A + 3)) * d * d + 1 : ((A * d - 5 * A) * d + 8 * A) * d - 4 * A;
    }
}

/* The weights of the inputs that a result depends on, by Pillow's filters (cubic: -0.5). Their sum is 1. */
static void fill_smooth(const resample_attrs *a, const pd_resample *s, double scale, int64_t *index, double *weight) {
    double reach = reach_of(a, scale), wide = scale > 1 ? scale : 1;
    for (int64_t j = 0; j < s->to; j++, index += s->taps, weight += s->taps) {
        double centre = ((double)j + 0.5) * scale, sum = 0;
        int64_t first = (int64_t)(centre - reach + 0.5), end = (int64_t)(centre + reach + 0.5);
        first = first < 0 ? 0 : first;
        end = end > s->from ? s->from : end;
        for (int64_t k = 0; k < s->taps; k++) {
            double d = fabs(((double)(first + k) - centre + 0.5) / wide), w = 0;
            if (first + k < end && a->mode == LINEAR_AA) w = d < 1 ? 1 - d : 0;
            else if (first + k < end)
                w = d < 1 ? (1.5 * d - 2.5) * d * d + 1 : d < 2 ? ((-0.5 * d + 2.5) * d - 4) * d + 2 : 0;
            index[k] = first + k < s->from ? first + k : s->from - 1;
            sum += weight[k] = w;
        }
        for (int64_t k = 0; k < s->taps; k++) weight[k] /= sum;
    }
}

/* The inputs of each result j. Positions in float tensors are computed in float, so that floor() agrees with
   PyTorch. */
static void fill_tables(const resample_attrs *a, const pd_resample *s, int64_t *index, double *weight) {
    bool single = s->t == PD_F32;
    double scale = scale_of(a, s->from, s->to);
    if (single) scale = (float)scale;
    if (a->mode >= LINEAR_AA) {
        fill_smooth(a, s, scale, index, weight);
        return;
    }
    for (int64_t j = 0; j < s->to; j++, index += s->taps, weight += s->taps) {
        double half = a->mode == NEAREST || a->align ? 0 : 0.5, at = ((double)j + half) * scale;
        if (a->mode >= LINEAR) at -= half;
        if (single) at = (float)at;
        if (a->mode == LINEAR && at < 0) at = 0;
        int64_t first = (int64_t)floor(at), last = s->from - 1;
        if (a->mode != CUBIC && first > last) first = last;
        double t = at - (double)first, w[4] = {1, 0, 0, 0};
        if (a->mode == LINEAR) w[0] = 1 - (t < 1 ? t : 1), w[1] = t < 1 ? t : 1;
        if (a->mode == CUBIC) cubic(t, w), first--;
        for (int k = 0; k < s->taps; k++) {
            int64_t i = first + k;
            index[k] = i < 0 ? 0 : i > last ? last : i;
            weight[k] = w[k];
        }
    }
}

static pd_status kernel(const pd_call *c) {
    pd_resample s;
    int dim;
    PD_TRY(sizes(c, &dim, &s));
    int64_t *index = c->scratch;
    void *made = index;
    double *weight = (double *)(index + s.to * s.taps);
    const pd_device *d = pd_device_here;
    if (d->copy) PD_TRY(pd_scratch(table_bytes(&s), "resample", &made));
    fill_tables(c->attrs, &s, made, (double *)made + s.to * s.taps);
    if (d->copy) PD_TRY(d->copy(d, "resample", PD_TO_DEVICE, index, made, table_bytes(&s), PD_NO_WAIT));
    s.index = index, s.weight = weight;
    pd_tensor *x = c->in[0], *y = c->out[0];
    pd_dtype t = (pd_dtype)x->dtype;
    float *wide = (float *)(weight + s.to * s.taps); /* 16-bit types: input and result in float32 */
    void *room = t == s.t ? wide : wide + x->numel + y->numel;
    const void *from = pd_laid_out(x, pd_is_nhwc(x), &room);
    if (t == s.t) {
        pd_here()->resample(&s, from, pd_tensor_data(y));
        return PD_OK;
    }
    pd_convert(PD_F32, t, x->numel, from, wide);
    pd_here()->resample(&s, wide, wide + x->numel);
    pd_convert(t, PD_F32, y->numel, wide + x->numel, pd_tensor_data(y));
    return PD_OK;
}

static double work(const pd_call *c) { return (double)(c->in[0]->numel + c->out[0]->numel) * 2; }

static void vjp(pd_vjp *v) {
    resample_attrs back = *(const resample_attrs *)v->attrs;
    const pd_edge *e = &v->node->edges[0];
    back.size = e->size[back.dim < 0 ? back.dim + e->ndim : back.dim];
    back.transposed = !back.transposed;
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_resample, v->g[0], &back));
}

const pd_op pd_op_resample = {
    .sig =
        "resample(Tensor input, int dim, int size, enum(nearest|exact|linear|cubic|linear_aa|cubic_aa) mode=linear, "
        "bool align_corners=False, float scale=0, bool transposed=False)",
    .doc =
        "input resized to `size` along dim, as interpolate does. scale: source elements for each result (0: the "
        "quotient of the sizes). Modes with _aa are antialiased. transposed: the gradient of that.",
    .flags = PD_NN | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(resample_attrs),
    .infer = infer,
    .kernel = kernel,
    .scratch = scratch,
    .work = work,
    .vjp = vjp,
};
