/* 2-D convolution. Its gradients are ops too, and their gradients are convolutions again. */
#include <inttypes.h>

#include "ops/block.h"

typedef struct { int64_t stride[2], padding[2], dilation[2], groups; } conv_attrs;
typedef struct { conv_attrs conv; int64_t size[4]; } grad_attrs; /* of the result: input or weight */

static bool is_plain(const pd_tensor *t) { return pd_tensor_is_contiguous(t) || pd_is_nhwc(t); }

/* Computes the result's sizes from the others, after checking that these fit together. */
static pd_status shape_of(const pd_call *c, const int64_t *x, const int64_t *w, const conv_attrs *a, pd_conv *s) {
    const char *op = c->def->name;
    *s = (pd_conv){.N = x[0], .C = x[1], .H = x[2], .W = x[3], .K = w[0], .R = w[2], .S = w[3], .groups = a->groups};
    int64_t *out[2] = {&s->P, &s->Q}, in[2] = {s->H, s->W}, k[2] = {s->R, s->S};
    if (a->groups < 1 || s->C % a->groups || s->K % a->groups || w[1] != s->C / a->groups)
        return pd_fail(PD_E_SHAPE,
                       "%s: input has shape %s, weight %s, groups is %" PRId64
                       " (expected weight [K, C / groups, R, S], C and K divisible by groups)",
                       op, pd_shape_text(4, x), pd_shape_text(4, w), a->groups);
    for (int i = 0; i < 2; i++) {
        s->stride[i] = a->stride[i], s->padding[i] = a->padding[i], s->dilation[i] = a->dilation[i];
        if (a->stride[i] < 1 || a->dilation[i] < 1 || a->padding[i] < 0 || a->stride[i] > INT32_MAX ||
            a->dilation[i] > INT32_MAX || a->padding[i] > INT32_MAX)
            return pd_fail(PD_E_VALUE,
                           "%s: stride is %s, padding %s, dilation %s (expected stride and dilation at least 1, "
                           "padding at least 0)",
                           op, pd_shape_text(2, a->stride), pd_shape_text(2, a->padding),
                           pd_shape_text(2, a->dilation));
        int64_t span = in[i] + 2 * a->padding[i] - a->dilation[i] * (k[i] - 1) - 1;
        if (span < 0 || k[i] < 1)
            return pd_fail(PD_E_SHAPE,
                           "%s: kernel size %s with dilation %s can't be greater than input %s with padding %s "
                           "(expected a smaller kernel or more padding)",
                           op, pd_shape_text(2, w + 2), pd_shape_text(2, a->dilation), pd_shape_text(4, x),
                           pd_shape_text(2, a->padding));
        *out[i] = span / a->stride[i] + 1;
    }
    return PD_OK;
}

static void channels_last(pd_tensor *o, bool yes) {
    if (yes) pd_shape_channels_last(4, o->size, o->stride);
}

/* The data of t in a layout for the kernel: t's own, or a copy at *scratch, which is advanced. */
static const void *plain(pd_tensor *t, void **scratch) {
    if (is_plain(t)) return pd_tensor_data(t);
    const void *at = *scratch;
    pd_block_pack(t, 0, *scratch);
    *scratch = (char *)*scratch + ((pd_tensor_bytes(t) + 63) & ~(size_t)63);
    return at;
}
static size_t plain_bytes(const pd_tensor *t) {
    return !t || is_plain(t) ? 0 : (pd_tensor_bytes(t) + 63) & ~(size_t)63;
}

static double work_of(const pd_conv *s) {
    return (double)s->N * (double)s->P * (double)s->Q * (double)s->K * (double)(s->C / s->groups) *
           (double)(s->R * s->S) * 2 / 100;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static pd_status conv_infer(pd_call *c) {
    pd_conv s;
    pd_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(pd_check_ndim(c, 0, 4));
    PD_TRY(pd_check_ndim(c, 1, 4));
    PD_TRY(shape_of(c, x->size, w->size, c->attrs, &s));
    if (b && (b->ndim != 1 || b->size[0] != s.K))
        return pd_fail(PD_E_SHAPE, "conv2d: bias has shape %s (expected %s)", pd_tensor_shape(b),
                       pd_shape_text(1, w->size));
    int64_t size[4] = {s.N, s.K, s.P, s.Q};
    PD_TRY(pd_out_shape(c, 0, (pd_dtype)x->dtype, 4, size));
    channels_last(c->out[0], pd_is_nhwc(x) || pd_is_nhwc(w));
    return PD_OK;
}

static pd_status conv_shape(const pd_call *c, pd_conv *s) {
    pd_tensor *x = c->in[0], *w = c->in[1];
    PD_TRY(shape_of(c, x->size, w->size, c->attrs, s));
    s->t = (pd_dtype)x->dtype;
    s->x_nhwc = pd_is_nhwc(x), s->w_nhwc = pd_is_nhwc(w), s->y_nhwc = pd_is_nhwc(c->out[0]);
    return PD_OK;
}

static size_t conv_scratch(const pd_call *c) {
    pd_conv s;
    if (conv_shape(c, &s)) return 0;
    return pd_conv_scratch(&s, PD_CONV_FORWARD) + plain_bytes(c->in[0]) + plain_bytes(c->in[1]) + plain_bytes(c->in[2]);
}

static double conv_work(const pd_call *c) {
    pd_conv s;
    return conv_shape(c, &s) ? 0 : work_of(&s);
}

static pd_status conv_kernel(const pd_call *c) {
    pd_conv s;
    void *scratch = c->scratch;
    PD_TRY(conv_shape(c, &s));
    const void *x = plain(c->in[0], &scratch), *w = plain(c->in[1], &scratch),
               *b = c->in[2] ? plain(c->in[2], &scratch) : NULL;
    return pd_conv_forward(&s, x, w, b, pd_tensor_data(c->out[0]), scratch);
}

static pd_tensor *grad_call(pd_vjp *v, pd_op_id op, pd_tensor *a, pd_tensor *b, const conv_attrs *attrs,
                            const int64_t *size, pd_tensor *destination) {
    grad_attrs ga = {*attrs, {size[0], size[1], size[2], size[3]}};
    return a && b ? pd_x_to(v, op, &ga, 2, (pd_tensor *[]){a, b}, destination) : NULL;
}

static void conv_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[0];
    const pd_edge *e = v->node->edges;
    pd_reduce_attrs rest = {.dim = {.n = 3, .v = {0, 2, 3}}, .dtype = PD_NO_DTYPE};
    if (pd_vjp_needs(v, 0))
        pd_vjp_set(v, 0, grad_call(v, PD_OP_conv2d_grad_input, g, pd_vjp_in(v, 1), v->attrs, e[0].size, NULL));
    if (pd_vjp_needs(v, 1))
        pd_vjp_set(v, 1, grad_call(v, PD_OP_conv2d_grad_weight, g, pd_vjp_in(v, 0), v->attrs, e[1].size,
                                   pd_vjp_destination(v, 1)));
    if (pd_vjp_needs(v, 2)) pd_vjp_set(v, 2, pd_x_call1(v, PD_OP_sum, g, &rest));
}

const pd_op pd_op_conv2d = {
    .sig =
        "conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, "
        "int groups=1)",
    .doc = "The cross-correlation of input [N, C, H, W] with weight [K, C / groups, R, S], plus bias [K].",
    .promote = PD_SAME,
    .cast = PD_CAST_LOW,
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1),
    .flags = PD_FUNC | PD_NN | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(conv_attrs),
    .infer = conv_infer,
    .kernel = conv_kernel,
    .scratch = conv_scratch,
    .work = conv_work,
    .vjp = conv_vjp,
};

/* ---- gradients: g with the other operand gives the result of `size` ---------------------------------------------- */

static pd_status grad_shape(const pd_call *c, bool input, pd_conv *s) {
    const grad_attrs *a = c->attrs;
    pd_tensor *g = c->in[0], *other = c->in[1], *o = c->out[0];
    PD_TRY(shape_of(c, input ? a->size : other->size, input ? other->size : a->size, &a->conv, s));
    int64_t want[4] = {s->N, s->K, s->P, s->Q};
    if (!pd_shape_equal(4, want, g->ndim, g->size))
        return pd_fail(PD_E_SHAPE, "%s: the gradient has shape %s (expected %s)", c->def->name, pd_tensor_shape(g),
                       pd_shape_text(4, want));
    s->t = (pd_dtype)g->dtype;
    s->y_nhwc = pd_is_nhwc(g);
    s->x_nhwc = pd_is_nhwc(input ? o : other), s->w_nhwc = pd_is_nhwc(input ? other : o);
    return PD_OK;
}

static pd_status grad_infer(pd_call *c, bool input) {
    pd_conv s;
    PD_TRY(pd_check_ndim(c, 0, 4));
    PD_TRY(pd_check_ndim(c, 1, 4));
    PD_TRY(pd_out_shape(c, 0, (pd_dtype)c->in[0]->dtype, 4, ((const grad_attrs *)c->attrs)->size));
    channels_last(c->out[0], input ? pd_is_nhwc(c->in[0]) || pd_is_nhwc(c->in[1]) : false);
    return grad_shape(c, input, &s);
}

static size_t grad_scratch(const pd_call *c, bool input) {
    pd_conv s;
    const pd_conv_part part = input ? PD_CONV_INPUT : PD_CONV_WEIGHT;
    return grad_shape(c, input, &s) ? 0 : pd_conv_scratch(&s, part) + plain_bytes(c->in[0]) + plain_bytes(c->in[1]);
}

static pd_status grad_kernel(const pd_call *c, bool input) {
    pd_conv s;
    void *scratch = c->scratch;
    PD_TRY(grad_shape(c, input, &s));
    const void *g = plain(c->in[0], &scratch), *other = plain(c->in[1], &scratch);
    if (input) return pd_conv_grad_input(&s, g, other, pd_tensor_data(c->out[0]), scratch);
    return pd_conv_grad_weight(&s, g, other, pd_tensor_data(c->out[0]), scratch);
}

static double grad_work(const pd_call *c, bool input) {
    pd_conv s;
    return grad_shape(c, input, &s) ? 0 : work_of(&s);
}

static pd_status gi_infer(pd_call *c) { return grad_infer(c, true); }
static pd_status gi_kernel(const pd_call *c) { return grad_kernel(c, true); }
static size_t gi_scratch(const pd_call *c) { return grad_scratch(c, true); }
static double gi_work(const pd_call *c) { return grad_work(c, true); }
static pd_status gw_infer(pd_call *c) { return grad_infer(c, false); }
static pd_status gw_kernel(const pd_call *c) { return grad_kernel(c, false); }
static size_t gw_scratch(const pd_call *c) { return grad_scratch(c, false); }
static double gw_work(const pd_call *c) { return grad_work(c, false); }

/* gx = G(gy, w) is linear in both: its gradient for gy is the convolution, its gradient for w the weight gradient. The
   same holds for gw = W(gy, x). */
static void gi_vjp(pd_vjp *v) {
    const grad_attrs *a = v->attrs;
    pd_tensor *g = v->g[0], *in[3] = {g, pd_vjp_in(v, 1), NULL};
    if (pd_vjp_needs(v, 0) && in[1]) pd_vjp_set(v, 0, pd_x(v, PD_OP_conv2d, &a->conv, 3, in));
    if (pd_vjp_needs(v, 1))
        pd_vjp_set(v, 1, grad_call(v, PD_OP_conv2d_grad_weight, pd_vjp_in(v, 0), g, &a->conv, v->node->edges[1].size,
                                   NULL));
}

static void gw_vjp(pd_vjp *v) {
    const grad_attrs *a = v->attrs;
    pd_tensor *g = v->g[0], *in[3] = {pd_vjp_in(v, 1), g, NULL};
    if (pd_vjp_needs(v, 0) && in[0]) pd_vjp_set(v, 0, pd_x(v, PD_OP_conv2d, &a->conv, 3, in));
    if (pd_vjp_needs(v, 1))
        pd_vjp_set(v, 1, grad_call(v, PD_OP_conv2d_grad_input, pd_vjp_in(v, 0), g, &a->conv, v->node->edges[1].size,
                                   NULL));
}

#define GRAD_ATTRS "int[2] stride, int[2] padding, int[2] dilation, int groups, int[4] size"
const pd_op pd_op_conv2d_grad_input = {
    .sig = "conv2d_grad_input(Tensor g, Tensor weight, " GRAD_ATTRS ")",
    .doc = "Gradient of conv2d with respect to its input.",
    .promote = PD_SAME,
    .cast = PD_CAST_LOW,
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(grad_attrs),
    .infer = gi_infer,
    .kernel = gi_kernel,
    .scratch = gi_scratch,
    .work = gi_work,
    .vjp = gi_vjp,
};
const pd_op pd_op_conv2d_grad_weight = {
    .sig = "conv2d_grad_weight(Tensor g, Tensor input, " GRAD_ATTRS ")",
    .doc = "Gradient of conv2d with respect to its weight.",
    .promote = PD_SAME,
    .cast = PD_CAST_LOW,
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(grad_attrs),
    .infer = gw_infer,
    .kernel = gw_kernel,
    .scratch = gw_scratch,
    .work = gw_work,
    .vjp = gw_vjp,
};

/* ---- transposed convolution: the gradient of the input, as a function of its own --------------------------------- */

typedef struct { int64_t stride[2], padding[2], more[2], groups, dilation[2]; } transpose_attrs;

/* output_padding of a whole stride or more is as if x had more rows, of zeros: how many. */
static int64_t whole_steps(const transpose_attrs *a, int i) { return a->stride[i] > 0 ? a->more[i] / a->stride[i] : 0; }

static pd_status transpose_compose(pd_call *c) {
    const transpose_attrs *a = c->attrs;
    pd_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(pd_check_ndim(c, 0, 4));
    PD_TRY(pd_check_ndim(c, 1, 4));
    if (a->groups < 1 || x->size[1] != w->size[0] || x->size[1] % a->groups)
        return pd_fail(PD_E_SHAPE,
                       "conv_transpose2d: input has shape %s, weight %s, groups is %" PRId64
                       " (expected weight [C, K / groups, R, S], C divisible by groups)",
                       pd_tensor_shape(x), pd_tensor_shape(w), a->groups);
    grad_attrs ga = {.conv = {.groups = a->groups}, .size = {x->size[0], w->size[1] * a->groups}};
    for (int i = 0; i < 2; i++) {
        ga.conv.stride[i] = a->stride[i], ga.conv.padding[i] = a->padding[i], ga.conv.dilation[i] = a->dilation[i];
        if (a->more[i] < 0 || (a->more[i] >= a->stride[i] && a->more[i] >= a->dilation[i]))
            return pd_fail(PD_E_VALUE,
                           "conv_transpose2d: output_padding is %s, stride %s, dilation %s (expected output_padding "
                           "less than stride or dilation)",
                           pd_shape_text(2, a->more), pd_shape_text(2, a->stride), pd_shape_text(2, a->dilation));
        int64_t span = a->dilation[i] * (w->size[2 + i] - 1) + a->more[i] + 1;
        if (a->stride[i] > INT32_MAX || a->padding[i] > INT32_MAX || a->dilation[i] > INT32_MAX)
            return pd_fail(PD_E_VALUE,
                           "conv_transpose2d: stride is %s, padding %s, dilation %s (expected at most 2^31 - 1 each)",
                           pd_shape_text(2, a->stride), pd_shape_text(2, a->padding), pd_shape_text(2, a->dilation));
        ga.size[2 + i] = (x->size[2 + i] - 1) * a->stride[i] - 2 * a->padding[i] + span;
        if (ga.size[2 + i] < 1)
            return pd_fail(PD_E_SHAPE,
                           "conv_transpose2d: input %s with kernel size %s and padding %s gives an empty output "
                           "(expected less padding)",
                           pd_tensor_shape(x), pd_shape_text(2, w->size + 2), pd_shape_text(2, a->padding));
    }
    if (b && (b->ndim != 1 || b->size[0] != ga.size[1]))
        return pd_fail(PD_E_SHAPE, "conv_transpose2d: bias has shape %s (expected %s)", pd_tensor_shape(b),
                       pd_shape_text(1, ga.size + 1));
    pd_vjp v = {0};
    pd_shape_attrs channel = {.shape = {.n = 3, .v = {ga.size[1], 1, 1}}};
    struct { pd_ints pad; pd_scalar value; } zeros = {{4, {0, whole_steps(a, 1), 0, whole_steps(a, 0)}}, pd_number(0)};
    if (zeros.pad.v[1] || zeros.pad.v[3]) x = pd_x_call1(&v, PD_OP_constant_pad_nd, x, &zeros);
    pd_tensor *y = pd_x_call2(&v, PD_OP_conv2d_grad_input, x, w, &ga);
    if (b) y = pd_x2(&v, PD_OP_add, pd_val_of(y), pd_val_of(pd_x_call1(&v, PD_OP_view, b, &channel))).t;
    return pd_x_end(&v, y, &c->out[0]);
}

const pd_op pd_op_conv_transpose2d = {
    .sig =
        "conv_transpose2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] "
        "output_padding=0, int groups=1, "
        "int[2] dilation=1)",
    .doc =
        "The transposed convolution of input [N, C, H, W] with weight [C, K / groups, R, S], plus bias [K]: what "
        "conv2d's gradient does with respect to its input. The output's height is (H - 1) stride - 2 padding + "
        "dilation (R - 1) + output_padding + 1.",
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(transpose_attrs),
    .compose = transpose_compose,
};
