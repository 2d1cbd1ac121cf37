/* Elementwise functions with parameters: descriptors expanded from kernels/pointwise.def, and the losses made of their
   terms. */
#include <string.h>

#include "kernels/kernels.h"
#include "ops/express.h"

static pd_status infer(pd_call *c) {
    for (int i = 0; i < c->nin; i++) PD_TRY(pd_check_float(c, i));
    return pd_infer_elementwise(c, (pd_dtype)c->in[0]->dtype);
}

static void run(pd_pointwise fn, int which, pd_dtype t, const void *attrs, size_t bytes, const pd_loop *l) {
    double params[PD_POINTWISE_PARAMS] = {0};
    memcpy(params, attrs, bytes);
    pd_here()->pointwise(fn, which, t, params, l);
}

static pd_status forward(pd_pointwise fn, const pd_call *c) {
    pd_tensor *t[3] = {c->out[0], c->in[0], c->nin > 1 ? c->in[1] : NULL};
    pd_loop l;
    pd_loop_build(&l, 1 + c->nin, t);
    run(fn, 0, (pd_dtype)t[0]->dtype, c->attrs, c->def->op->attrs, &l);
    return PD_OK;
}

/* Computes one gradient in one pass, in the shape of g; the engine undoes broadcasting. */
static void fused(pd_vjp *v, pd_pointwise fn, int which, int nin) {
    pd_tensor *g = v->g[0], *x = pd_vjp_in(v, 0), *y = nin > 1 ? pd_vjp_in(v, 1) : NULL;
    if (v->status || !pd_vjp_needs(v, which)) return;
    pd_tensor *gx = pd_x_new(v, (pd_dtype)g->dtype, g->ndim, g->size);
    if (!gx) return;
    if (pd_tensor_same_shape(x, gx) && pd_shape_is_dense(x->ndim, x->size, x->stride))
        memcpy(gx->stride, x->stride, sizeof(int64_t) * (size_t)x->ndim);
    pd_tensor *t[4] = {gx, g, x, y};
    pd_loop l;
    pd_loop_build(&l, 2 + nin, t);
    pd_x_sums(v, which, gx, &l);
    if (v->status) return;
    run(fn, 1 + which, (pd_dtype)gx->dtype, v->attrs, v->node->def->op->attrs, &l);
    pd_vjp_set(v, which, gx);
}

#define FLAGS_OPEN (PD_NN | PD_INPLACE)
#define FLAGS_INNER 0
#define PD_POINTWISE1(fn, who, count, parameters, fwd, grad, text)                                             \
    static pd_status fn##_kernel(const pd_call *c) { return forward(PD_POINTWISE_##fn, c); }              \
    static void fn##_vjp(pd_vjp *v) {                                                                     \
        const double *P = v->attrs;                                                                       \
        pd_val g = pd_val_of(v->g[0]), x = pd_val_of(pd_vjp_in(v, 0));                                    \
        (void)P;                                                                                          \
        pd_vjp_set(v, 0, (grad).t);                                                                       \
    }                                                                                                     \
    static void fn##_vjp_fast(pd_vjp *v) { fused(v, PD_POINTWISE_##fn, 0, 1); }                           \
    const pd_op pd_op_##fn = {                                                                            \
        .sig = #fn "(Tensor input" parameters ")", .doc = text ", elementwise.", .promote = PD_ARITH,     \
        .save = PD_SAVE_IN(0), .flags = FLAGS_##who, .attrs = 8 * (count), .infer = infer,         \
        .kernel = fn##_kernel, .vjp = fn##_vjp, .vjp_fast = fn##_vjp_fast,                                \
    };
#define PD_POINTWISE2(fn, count, parameters, fwd, grad_x, grad_y, text)                                   \
    static pd_status fn##_kernel(const pd_call *c) { return forward(PD_POINTWISE_##fn, c); }              \
    static void fn##_vjp(pd_vjp *v) {                                                                     \
        const double *P = v->attrs;                                                                       \
        pd_val g = pd_val_of(v->g[0]), x = pd_val_of(pd_vjp_in(v, 0)), y = pd_val_of(pd_vjp_in(v, 1));    \
        (void)P, (void)x, (void)y;                                                                        \
        if (pd_vjp_needs(v, 0)) pd_vjp_set(v, 0, (grad_x).t);                                             \
        if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, (grad_y).t);                                             \
    }                                                                                                     \
    static void fn##_vjp_fast(pd_vjp *v) {                                                                \
        fused(v, PD_POINTWISE_##fn, 0, 2);                                                                \
        fused(v, PD_POINTWISE_##fn, 1, 2);                                                                \
    }                                                                                                     \
    const pd_op pd_op_##fn = {                                                                            \
        .sig = #fn "(Tensor input, Tensor target" parameters ")", .doc = text ", elementwise.",           \
        .promote = PD_ARITH, .cast = PD_CAST_FP32, .save = PD_SAVE_IN(0) | PD_SAVE_IN(1),                 \
        .attrs = 8 * (count), .infer = infer, .kernel = fn##_kernel, .vjp = fn##_vjp, .vjp_fast = fn##_vjp_fast, \
    };
#include "kernels/pointwise.def"
#undef PD_POINTWISE1
#undef PD_POINTWISE2

/* ---- gelu: which formula ----------------------------------------------------------------------------------------- */

static pd_status gelu_compose(pd_call *c) {
    return pd_call1(*(const int64_t *)c->attrs ? PD_OP_gelu_tanh : PD_OP_gelu_erf, c->in[0], NULL, &c->out[0]);
}

const pd_op pd_op_gelu = {
    .sig = "gelu(Tensor input, enum(none|tanh) approximate=none)",
    .doc =
        "input * Phi(input), Phi being the normal distribution function; 'tanh': 0.5 x (1 + tanh(sqrt(2 / pi) (x + "
        "0.044715 x ** 3))).",
    .flags = PD_NN,
    .attrs = sizeof(int64_t),
    .compose = gelu_compose,
};

/* ---- losses: the terms, and what is left of them ----------------------------------------------------------------- */

enum { NONE, MEAN, SUM };

static pd_status loss(pd_call *c, pd_op_id terms, const void *attrs, int64_t reduction) {
    pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_tensor *each;
    if (reduction == NONE) return pd_call2(terms, c->in[0], c->in[1], attrs, &c->out[0]);
    PD_TRY(pd_call2(terms, c->in[0], c->in[1], attrs, &each));
    pd_status status = pd_call1(reduction == MEAN ? PD_OP_mean : PD_OP_sum, each, &all, &c->out[0]);
    pd_tensor_release(each);
    return status;
}

typedef struct { int64_t reduction; double size; } sized_attrs;
typedef struct { int64_t reduction, log_target; } kl_attrs;

static pd_status mse_compose(pd_call *c) { return loss(c, PD_OP_mse_terms, NULL, *(const int64_t *)c->attrs); }
static pd_status l1_compose(pd_call *c) { return loss(c, PD_OP_l1_terms, NULL, *(const int64_t *)c->attrs); }
static pd_status smooth_compose(pd_call *c) {
    const sized_attrs *a = c->attrs;
    if (!(a->size >= 0)) return pd_fail(PD_E_VALUE, "smooth_l1_loss: beta is %g (expected at least 0)", a->size);
    return loss(c, a->size > 0 ? PD_OP_smooth_l1_terms : PD_OP_l1_terms, &a->size, a->reduction);
}
static pd_status huber_compose(pd_call *c) {
    const sized_attrs *a = c->attrs;
    if (!(a->size > 0)) return pd_fail(PD_E_VALUE, "huber_loss: delta is %g (expected above 0)", a->size);
    return loss(c, PD_OP_huber_terms, &a->size, a->reduction);
}
static pd_status kl_compose(pd_call *c) {
    const kl_attrs *a = c->attrs;
    return loss(c, a->log_target ? PD_OP_kl_log_terms : PD_OP_kl_terms, NULL, a->reduction);
}

static bool same_shape(const pd_call *c) { return pd_tensor_same_shape(c->in[0], c->in[1]); }

/* The loss's terms, each times its weight if there are weights. */
static pd_status weighted(pd_call *c, pd_op_id terms) {
    int64_t reduction = *(const int64_t *)c->attrs;
    pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_vjp v = {0};
    if (!same_shape(c))
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s, target %s (expected the same)", c->def->name,
                       pd_tensor_shape(c->in[0]), pd_tensor_shape(c->in[1]));
    pd_tensor *each = pd_x_call2(&v, terms, c->in[0], c->in[1], NULL);
    if (c->in[2]) each = each ? pd_x_mul(&v, each, c->in[2]) : NULL;
    if (reduction != NONE) each = pd_x_call1(&v, reduction == MEAN ? PD_OP_mean : PD_OP_sum, each, &all);
    return pd_x_end(&v, each, &c->out[0]);
}

/* Fails unless every element is in [0, 1]; NaN is not. */
static pd_status check_probabilities(const char *what, pd_tensor *x) {
    pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_vjp v = {0};
    pd_scalar hi = {0}, lo = {0};
    if (!x->numel || x->storage->device == &pd_device_meta) return PD_OK;
    pd_tensor *most = pd_x_call1(&v, PD_OP_amax, x, &all), *least = pd_x_call1(&v, PD_OP_amin, x, &all), *none;
    if (most && least) v.status = pd_item("binary_cross_entropy", most, PD_WAIT, &hi);
    if (most && least && !v.status) v.status = pd_item("binary_cross_entropy", least, PD_WAIT, &lo);
    PD_TRY(pd_x_end(&v, NULL, &none));
    if (pd_dtype_category((pd_dtype)x->dtype) < PD_CAT_FLOAT) lo.d = (double)lo.i, hi.d = (double)hi.i;
    if (lo.d >= 0 && hi.d <= 1) return PD_OK;
    return pd_fail(PD_E_VALUE,
                   "binary_cross_entropy: all elements of %s should be between 0 and 1: got %g to %g (expected 0 to 1)",
                   what, lo.d, hi.d);
}
static pd_status bce_compose(pd_call *c) {
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(check_probabilities("input", c->in[0]));
    PD_TRY(check_probabilities("target", c->in[1]));
    return weighted(c, PD_OP_bce_terms);
}
/* (1 - y) x - (1 + (w - 1) y) logsigmoid(x) for a pos_weight w. */
static pd_status bce_logits_compose(pd_call *c) {
    if (!c->in[3]) return weighted(c, PD_OP_bce_logits_terms);
    pd_vjp scope = {0}, *v = &scope;
    int64_t reduction = *(const int64_t *)c->attrs;
    pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_val x = pd_val_of(c->in[0]), y = pd_val_of(c->in[1]), w = pd_val_of(c->in[3]);
    PD_TRY(pd_check_float(c, 0));
    if (!same_shape(c))
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s, target %s (expected the same)", c->def->name,
                       pd_tensor_shape(c->in[0]), pd_tensor_shape(c->in[1]));
    pd_val factor = ADDC(MUL(ADDC(w, -1), y), 1);
    pd_val terms = SUB(MUL(RSUBC(1, y), x), MUL(factor, pd_x1(v, PD_OP_logsigmoid, x)));
    if (c->in[2]) terms = MUL(terms, pd_val_of(c->in[2]));
    pd_tensor *out = terms.t;
    if (reduction != NONE) out = pd_x_call1(v, reduction == MEAN ? PD_OP_mean : PD_OP_sum, out, &all);
    return pd_x_end(v, out, &c->out[0]);
}

#define REDUCTION "enum(none|mean|sum) reduction=mean"
#define LOSS(fn, tensors, more, Attrs, Compose, text)                                                           \
    const pd_op pd_op_##fn = {                                                                                  \
        .sig = #fn "(Tensor input, Tensor target" tensors ", " REDUCTION more ")", .doc = text,                 \
        .cast = PD_CAST_FP32, .flags = PD_NN, .attrs = sizeof(Attrs), .compose = Compose,                       \
    };
LOSS(mse_loss, "", "", int64_t, mse_compose, "(input - target) ** 2 of each element, or their mean or sum.")
LOSS(l1_loss, "", "", int64_t, l1_compose, "|input - target| of each element, or their mean or sum.")
LOSS(smooth_l1_loss, "", ", float beta=1", sized_attrs, smooth_compose,
     "d ** 2 / (2 beta) where d = |input - target| < beta, otherwise d - beta / 2; of each element, or their mean or "
     "sum.")
LOSS(huber_loss, "", ", float delta=1", sized_attrs, huber_compose,
     "d ** 2 / 2 where d = |input - target| <= delta, otherwise delta (d - delta / 2); of each element, or their mean "
     "or sum.")
LOSS(kl_div, "", ", bool log_target=False", kl_attrs, kl_compose,
     "target (log(target) - input) of each element, or their mean or sum. input: log-probabilities. log_target: target "
     "has logarithms, too.")
LOSS(binary_cross_entropy, ", Tensor? weight=None", "", int64_t, bce_compose,
     "-weight (target log(input) + (1 - target) log(1 - input)) of each element, or their mean or sum. The logarithms "
     "are at least -100.")
LOSS(binary_cross_entropy_with_logits, ", Tensor? weight=None, Tensor? pos_weight=None", "", int64_t,
     bce_logits_compose,
     "binary_cross_entropy of sigmoid(input), computed without overflow. pos_weight multiplies target's part.")
