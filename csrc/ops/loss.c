/* Losses over classes. nll_loss and cross_entropy turn [C], [N, C] and [N, C, d1, ...] into rows [R, C]. Each has one
   kernel for the rows, which also returns what the gradient needs: the log-sum-exp of each row, and the total weight by
   which a mean divides. */
#include <inttypes.h>
#include <string.h>

#include "autograd/autocast.h"
#include "ops/loss.h"

typedef pd_loss_attrs loss_attrs;
typedef struct rows_attrs { loss_attrs loss; int64_t dtype; } rows_attrs; /* dtype: of the loss; none: the input's */
enum { NONE = PD_LOSS_NONE, MEAN = PD_LOSS_MEAN, SUM = PD_LOSS_SUM };

/* ---- on rows ----------------------------------------------------------------------------------------------------- */

pd_xent pd_loss_rows(int64_t rows, int64_t C, const pd_tensor *target, const pd_tensor *weight, const loss_attrs *a) {
    return (pd_xent){.rows = rows,
                     .C = C,
                     .target = pd_tensor_data(target),
                     .weight = weight ? pd_tensor_data(weight) : NULL,
                     .ignore_index = a->ignore_index,
                     .smoothing = a->smoothing};
}
static pd_xent rows_of(const pd_tensor *x, const pd_tensor *target, const pd_tensor *weight, const rows_attrs *a) {
    pd_xent s = pd_loss_rows(x->size[0], x->size[1], target, weight, &a->loss);
    s.wide = a->dtype != PD_NO_DTYPE;
    return s;
}

pd_status pd_loss_check_labels(const char *op, pd_dtype t, const pd_xent *s, double *total) {
    pd_bad_index bad;
    return pd_here()->labels(op, t, s, total, &bad) ? PD_OK : pd_bad_index_fail(&bad);
}

static pd_status rows_infer(pd_call *c) {
    const rows_attrs *a = c->attrs;
    pd_tensor *x = c->in[0];
    pd_dtype t = (pd_dtype)x->dtype, wide = t == PD_F64 ? PD_F64 : PD_F32;
    if (a->dtype != PD_NO_DTYPE && (a->dtype != PD_F32 || pd_dtype_size(t) != 2 || c->in[2]))
        return pd_fail(PD_E_VALUE, "%s: dtype %s for an input of %s%s (expected float32 for 16 bits without weights)",
                       c->def->name, pd_dtype_name((pd_dtype)a->dtype), pd_dtype_name(t),
                       c->in[2] ? " with weights" : "");
    PD_TRY(pd_out_shape(c, 0, a->dtype == PD_NO_DTYPE ? t : PD_F32, a->loss.reduction == NONE, x->size));
    PD_TRY(pd_out_shape(c, 1, wide, 0, NULL));
    return pd_out_shape(c, 2, wide, 1, x->size);
}

static pd_status rows_run(const pd_call *c, bool logits) {
    const rows_attrs *a = c->attrs;
    const int64_t reduction = a->loss.reduction;
    pd_tensor *x = c->in[0], *loss = c->out[0];
    pd_dtype t = (pd_dtype)x->dtype;
    pd_xent s = rows_of(x, c->in[1], c->in[2], a);
    PD_TRY(pd_loss_check_labels(logits ? "cross_entropy" : "nll_loss", t, &s, NULL));
    double *sums = c->scratch; /* on the kernels' device, so that nobody waits for them */
    void *losses = reduction == NONE ? pd_tensor_data(loss) : NULL;
    if (logits) pd_here()->xent(t, &s, pd_tensor_data(x), pd_tensor_data(c->out[2]), losses, sums);
    else pd_here()->nll(t, &s, pd_tensor_data(x), losses, sums);
    const double *sum = reduction == MEAN ? sums + 2 : sums;
    if (!losses) pd_convert((pd_dtype)loss->dtype, PD_F64, 1, sum, pd_tensor_data(loss));
    pd_convert((pd_dtype)c->out[1]->dtype, PD_F64, 1, sums + 1, pd_tensor_data(c->out[1]));
    return PD_OK;
}

static size_t rows_scratch(const pd_call *c) {
    (void)c;
    return 3 * sizeof(double);
}
static pd_status nll_kernel(const pd_call *c) { return rows_run(c, false); }
static pd_status xent_kernel(const pd_call *c) { return rows_run(c, true); }

static double work(const pd_call *c) { return (double)c->in[0]->numel * 1.0; }

/* With reduction `none` g has one number for each row, with `sum` and `mean` a single one. */
static void rows_fast(pd_vjp *v, bool logits) {
    const rows_attrs *a = v->attrs;
    pd_tensor *x = pd_vjp_in(v, 0), *target = pd_vjp_in(v, 1), *weight = pd_vjp_in(v, 2), *total = pd_vjp_out(v, 1);
    pd_tensor *lse = pd_vjp_out(v, 2), *g = pd_x_contiguous(v, v->g[0]);
    pd_tensor *gx = v->status || !g ? NULL : logits ? pd_vjp_take(v, 0) : NULL;
    if (!gx && g) gx = pd_x_new(v, (pd_dtype)x->dtype, 2, x->size);
    if (!gx) return;
    pd_xent s = rows_of(x, target, weight, a);
    bool each = a->loss.reduction == NONE;
    const void *by = a->loss.reduction == MEAN ? pd_tensor_data(total) : NULL;
    if (logits)
        pd_here()->xent_grad((pd_dtype)x->dtype, &s, pd_tensor_data(x), pd_tensor_data(lse), pd_tensor_data(g), each,
                             by, 1, pd_tensor_data(gx));
    else pd_here()->nll_grad((pd_dtype)x->dtype, &s, pd_tensor_data(g), each, by, 1, pd_tensor_data(gx));
    pd_vjp_set(v, 0, gx);
}

/* Q[r, c], the weight of -log p(c) in row r's loss, which is -sum(Q * logp). It depends on the targets only. */
static pd_tensor *target_weights(pd_vjp *v, const loss_attrs *a, pd_tensor *x, pd_tensor *target, pd_tensor *weight) {
    pd_tensor *q = v->status ? NULL : pd_x_new(v, (pd_dtype)x->dtype, 2, x->size);
    if (!q) return NULL;
    pd_xent s = pd_loss_rows(x->size[0], x->size[1], target, weight, a);
    pd_here()->nll_grad((pd_dtype)x->dtype, &s, NULL, false, NULL, a->smoothing - 1, pd_tensor_data(q));
    if (a->smoothing == 0) return q;
    /* smoothing / C of each class's weight, in rows that count */
    pd_val counts = pd_x2(v, PD_OP_ne, pd_val_of(target), pd_const((double)a->ignore_index)),
           share = pd_const(a->smoothing / (double)s.C);
    pd_tensor *on =
        pd_x_call1(v, PD_OP_unsqueeze, pd_x_call1(v, PD_OP_cast, counts.t, &(pd_cast_attrs){x->dtype}), &(int64_t){-1});
    if (weight) share = pd_x2(v, PD_OP_mul, pd_val_of(weight), share);
    return pd_x2(v, PD_OP_add, pd_val_of(q), pd_x2(v, PD_OP_mul, pd_val_of(on), share)).t;
}

/* g as a column [R, 1], divided by the total for a mean. */
static pd_val row_factor(pd_vjp *v) {
    const loss_attrs *a = v->attrs;
    int64_t last = -1;
    if (a->reduction == NONE) return pd_val_of(pd_x_call1(v, PD_OP_unsqueeze, v->g[0], &last));
    if (a->reduction == SUM) return pd_val_of(v->g[0]);
    return pd_x2(v, PD_OP_div, pd_val_of(v->g[0]), pd_val_of(pd_vjp_out(v, 1)));
}

static void nll_vjp(pd_vjp *v) { /* -Q * g */
    pd_tensor *x = pd_vjp_in(v, 0), *target = pd_vjp_in(v, 1), *weight = pd_vjp_in(v, 2),
              *q = x ? target_weights(v, v->attrs, x, target, weight) : NULL;
    pd_vjp_set(v, 0, pd_x2(v, PD_OP_mul, row_factor(v), pd_x1(v, PD_OP_neg, pd_val_of(q))).t);
}

pd_tensor *pd_loss_logits_grad(pd_vjp *v, const loss_attrs *a, pd_tensor *x, pd_tensor *target, pd_tensor *weight,
                               pd_val factor) {
    pd_tensor *q = x ? target_weights(v, a, x, target, weight) : NULL;
    pd_reduce_attrs along = {.dim = {.n = 1, .v = {1}}, .keepdim = 1, .dtype = PD_NO_DTYPE};
    struct { int64_t dim, dtype; } last = {-1, PD_NO_DTYPE};
    pd_val p = pd_val_of(pd_x_call1(v, PD_OP_softmax, x, &last)), row = pd_val_of(pd_x_call1(v, PD_OP_sum, q, &along));
    pd_val diff = pd_x2(v, PD_OP_sub, pd_x2(v, PD_OP_mul, p, row), pd_val_of(q));
    return pd_x2(v, PD_OP_mul, diff, factor).t;
}

static void xent_vjp(pd_vjp *v) {
    const rows_attrs *a = v->attrs;
    pd_tensor *x = pd_vjp_in(v, 0), *target = pd_vjp_in(v, 1), *weight = pd_vjp_in(v, 2);
    const bool wide = a->dtype != PD_NO_DTYPE;
    pd_tensor *logits = wide && x ? pd_x_call1(v, PD_OP_cast, x, &(pd_cast_attrs){a->dtype}) : x;
    pd_tensor *gx = pd_loss_logits_grad(v, &a->loss, logits, target, weight, row_factor(v));
    pd_vjp_set(v, 0, wide && gx ? pd_x_call1(v, PD_OP_cast, gx, &(pd_cast_attrs){x->dtype}) : gx);
}

static void nll_fast(pd_vjp *v) { rows_fast(v, false); }
static void xent_fast(pd_vjp *v) { rows_fast(v, true); }

#define ROWS \
    "(Tensor input, Tensor target, Tensor? weight, int ignore_index, enum(none|mean|sum) reduction, float smoothing, " \
    "dtype dtype=None)"
const pd_op pd_op_nll_rows = {
    .sig = "nll_rows" ROWS,
    .doc = "nll_loss on contiguous rows.",
    .nout = 3,
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(rows_attrs),
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1) | PD_SAVE_IN(2) | PD_SAVE_OUT(1) | PD_SAVE_OUT(2),
    .infer = rows_infer,
    .kernel = nll_kernel,
    .scratch = rows_scratch,
    .work = work,
    .vjp = nll_vjp,
    .vjp_fast = nll_fast,
};
const pd_op pd_op_cross_entropy_rows = {
    .sig = "cross_entropy_rows" ROWS,
    .doc = "cross_entropy on contiguous rows.",
    .nout = 3,
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(rows_attrs),
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1) | PD_SAVE_IN(2) | PD_SAVE_OUT(1) | PD_SAVE_OUT(2),
    .infer = rows_infer,
    .kernel = xent_kernel,
    .scratch = rows_scratch,
    .work = work,
    .vjp = xent_vjp,
    .vjp_fast = xent_fast,
};

/* ---- any shape --------------------------------------------------------------------------------------------------- */

static pd_status check_inputs(const pd_call *c) {
    pd_tensor *x = c->in[0], *target = c->in[1], *weight = c->in[2];
    const char *op = c->def->name;
    PD_TRY(pd_check_float(c, 0));
    if (target->dtype != PD_I64)
        return pd_fail(PD_E_DTYPE, "%s: target is %s (expected int64 class indices)", op,
                       pd_dtype_name((pd_dtype)target->dtype));
    bool fits = x->ndim >= 1 && target->ndim == x->ndim - 1 && (x->ndim < 2 || target->size[0] == x->size[0]);
    for (int d = 2; d < x->ndim && fits; d++) fits = target->size[d - 1] == x->size[d];
    if (!fits)
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s, target %s (expected [N, C, ...] and [N, ...])", op,
                       pd_tensor_shape(x), pd_tensor_shape(target));
    int64_t C = x->size[x->ndim > 1];
    if (!C && target->numel)
        return pd_fail(PD_E_INDEX, "%s: input has shape %s, so it has no classes (expected at least one)", op,
                       pd_tensor_shape(x));
    if (weight && (weight->ndim != 1 || weight->size[0] != C || weight->dtype != x->dtype))
        return pd_fail(PD_E_SHAPE, "%s: weight is %s of shape %s (expected %s of shape [%" PRId64 "])", op,
                       pd_dtype_name((pd_dtype)weight->dtype), pd_tensor_shape(weight),
                       pd_dtype_name((pd_dtype)x->dtype), C);
    return PD_OK;
}

/* [new] x as rows, with the classes last. */
static pd_status to_rows(pd_tensor *x, pd_tensor **out) {
    int64_t C = x->size[x->ndim > 1];
    pd_shape_attrs rows = {.shape = {.n = 2, .v = {C ? x->numel / C : 0, C}}};
    pd_tensor *last = NULL, *flat = NULL;
    pd_status status = PD_OK;
    if (x->ndim == 2) pd_tensor_retain(flat = x);
    else {
        pd_ints dims = {.n = x->ndim};
        for (int d = 0; d < x->ndim; d++) dims.v[d] = d == x->ndim - 1 ? (x->ndim > 1) : d + (d >= 1);
        PD_TRY_TO(done, pd_call1(PD_OP_permute, x, &dims, &last));
        PD_TRY_TO(done, pd_call1(PD_OP_reshape, last, &rows, &flat));
    }
    PD_TRY_TO(done, pd_contiguous(flat, out));
done:
    pd_tensor_release(last);
    pd_tensor_release(flat);
    return status;
}

static pd_status compose(pd_call *c, pd_op_id rows_op) {
    const loss_attrs *a = c->attrs;
    const rows_attrs of_rows = {*a, pd_autocast_reads(c->def->op, c->in, 3) ? PD_F32 : PD_NO_DTYPE};
    pd_tensor *in[3] = {0}, *target = NULL, *got[3] = {0};
    pd_shape_attrs flat = {.shape = {.n = 1, .v = {c->in[1]->numel}}}, shape = {.shape = {.n = c->in[1]->ndim}};
    pd_status status;
    if (!(a->smoothing >= 0 && a->smoothing <= 1))
        return pd_fail(PD_E_VALUE, "%s: label_smoothing is %g (expected 0 to 1)", c->def->name, a->smoothing);
    PD_TRY(check_inputs(c));
    PD_TRY_TO(done, to_rows(c->in[0], &in[0]));
    PD_TRY_TO(done, pd_call1(PD_OP_reshape, c->in[1], &flat, &target));
    PD_TRY_TO(done, pd_contiguous(target, &in[1]));
    if (c->in[2]) PD_TRY_TO(done, pd_contiguous(c->in[2], &in[2]));
    PD_TRY_TO(done, pd_apply(&pd_defs[rows_op], in, 3, &of_rows, got, NULL));
    if (a->reduction == NONE && c->in[1]->ndim != 1) {
        memcpy(shape.shape.v, c->in[1]->size, sizeof(int64_t) * (size_t)c->in[1]->ndim);
        PD_TRY_TO(done, pd_call1(PD_OP_reshape, got[0], &shape, &c->out[0]));
    } else {
        pd_tensor_retain(c->out[0] = got[0]);
    }
done:
    for (int i = 0; i < 3; i++) {
        pd_tensor_release(in[i]);
        pd_tensor_release(got[i]);
    }
    pd_tensor_release(target);
    return status;
}

static pd_status nll_compose(pd_call *c) { return compose(c, PD_OP_nll_rows); }
static pd_status xent_compose(pd_call *c) { return compose(c, PD_OP_cross_entropy_rows); }

const pd_op pd_op_nll_loss = {
    .sig =
        "nll_loss(Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, enum(none|mean|sum) "
        "reduction=mean, "
        "float label_smoothing=0)",
    .doc =
        "-input[target] * weight[target]. input: log-probabilities [N, C, ...]; target: classes [N, ...] (int64). The "
        "mean is weighted.",
    .cast = PD_CAST_FP32,
    .flags = PD_NN,
    .attrs = sizeof(loss_attrs),
    .compose = nll_compose,
};
const pd_op pd_op_cross_entropy = {
    .sig =
        "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, enum(none|mean|sum) "
        "reduction=mean, "
        "float label_smoothing=0)",
    .doc =
        "nll_loss(log_softmax(input, 1), target) in one pass. input: logits [N, C, ...]; target: classes [N, ...] "
        "(int64).",
    .cast = PD_CAST_FP32_READ,
    .flags = PD_NN,
    .attrs = sizeof(loss_attrs),
    .compose = xent_compose,
};
