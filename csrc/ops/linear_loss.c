/* The cross entropy of a linear layer's logits, which never holds all logits at once: chunks of rows go through layer,
   loss and both gradients, and the gradient of the logits overwrites the logits.

       logits[m, C] = x[m, D] W^T + b  ->  lse, loss  ->  G in the place of logits
       G  ->  gx[m, D] = G W,  gW += G^T x,  gb += sum G

   So the forward pass computes the gradients of the loss; backward only multiplies them by the gradient that arrives,
   and nothing is computed twice. For float16, in which a mean's G would underflow, backward applies the factor 1 /
   total. */
#include <string.h>

#include "autograd/autocast.h"
#include "base/host.h"
#include "base/mem.h"
#include "ops/loss.h"

enum { X, W, TARGET, BIAS, WEIGHT, INPUTS };
enum { LOSS, GX, GW, GB };

typedef struct { pd_loss_attrs loss; int64_t chunk, dtype; } fused_attrs;

/* Bytes of logits in a chunk; each further chunk reads and writes all of gW once more. */
#define CHUNK_BYTES (pd_device_here->kernels ? INT64_C(1) << 30 : INT64_C(64) << 20)
#define CHUNK_ROWS 64          /* at least; products of fewer rows are slow */

typedef struct job {
    pd_dtype t;
    pd_xent all;     /* rows, classes, labels */
    int64_t D, rows; /* rows: of a chunk */
    /* sums: losses and weights of each chunk; total: sum of the weights of all labels; row: for the sum of G over
       rows */
    pd_tensor *in[INPUTS], *out[4], *logits, *lse, *sums, *total, *row;
} job;

static char *at(const pd_tensor *t, int64_t row, int64_t width) {
    return t ? (char *)pd_tensor_data(t) + row * width * (int64_t)pd_dtype_size((pd_dtype)t->dtype) : NULL;
}

static pd_status product(pd_gemm s, const void *A, const void *B, const void *bias, void *C) {
    const pd_device *d = pd_device_here;
    const char *op = "linear_cross_entropy";
    size_t bytes = pd_gemm_scratch(&s);
    void *scratch;
    PD_TRY(d->scratch ? d->scratch(d, bytes, op, &scratch) : pd_scratch(bytes, op, &scratch));
    return pd_gemm_run(&s, A, B, bias, C, scratch);
}

static pd_status run_chunk(job *j, int64_t row, int64_t m) {
    const int64_t C = j->all.C, D = j->D;
    const void *w = pd_tensor_data(j->in[W]), *x = at(j->in[X], row, D);
    void *g = pd_tensor_data(j->logits), *lse = pd_tensor_data(j->lse);
    pd_tensor *gx = j->out[GX], *gw = j->out[GW], *gb = j->out[GB];
    pd_xent s = j->all;
    s.rows = m;
    s.target += row;
    PD_TRY(product(pd_gemm_dense(j->t, m, C, D, false, true), x, w, at(j->in[BIAS], 0, 0), g));
    pd_here()->xent(j->t, &s, g, lse, NULL, (double *)pd_tensor_data(j->sums) + row / j->rows * 3);
    if (gx || gw || gb)
        pd_here()->xent_grad(j->t, &s, g, lse, NULL, false, j->total ? pd_tensor_data(j->total) : NULL, 1, g);
    if (gx) {
        pd_gemm of_x = pd_gemm_dense(j->t, m, D, C, false, false);
        of_x.wide = gx->dtype != (int)j->t;
        PD_TRY(product(of_x, g, w, NULL, at(gx, row, D)));
    }
    if (gw) {
        pd_gemm of_w = pd_gemm_dense(j->t, C, D, m, true, false);
        of_w.beta = row > 0;
        of_w.wide = gw->dtype != (int)j->t;
        PD_TRY(product(of_w, g, x, NULL, pd_tensor_data(gw)));
    }
    if (gb) {
        pd_tensor *to = row ? j->row : gb, *all[3] = {gb, gb, to};
        pd_here()->fold(PD_FOLD_SUM, j->t, (pd_dtype)gb->dtype, &(pd_block){1, m, C}, g, pd_tensor_data(to));
        pd_loop l;
        pd_loop_build(&l, 3, all);
        if (row) pd_here()->binary(PD_BINARY_add, (pd_dtype)gb->dtype, 1, &l);
    }
    return pd_device_check(pd_device_here, "linear_cross_entropy");
}

/* Computes the loss from the sums of all chunks. */
static void add_up(const job *j, int64_t chunks, bool mean, void *sums) {
    double *all = sums;
    pd_here()->fold(PD_FOLD_SUM, PD_F64, PD_F64, &(pd_block){1, chunks, 3}, pd_tensor_data(j->sums), all);
    pd_loop l = {.nop = 3, .numel = 1, .ptr = {(char *)all, (char *)all, (char *)(all + 1)}};
    if (mean) pd_here()->binary(PD_BINARY_div, PD_F64, 1, &l);
    pd_convert((pd_dtype)j->out[LOSS]->dtype, PD_F64, 1, all, pd_tensor_data(j->out[LOSS]));
}

static pd_status check(const pd_call *c, const fused_attrs *a) {
    const char *op = c->def->name;
    pd_tensor *x = c->in[X], *w = c->in[W], *target = c->in[TARGET], *b = c->in[BIAS], *weight = c->in[WEIGHT];
    PD_TRY(pd_check_float(c, X));
    PD_TRY(pd_check_ndim(c, X, 2));
    PD_TRY(pd_check_ndim(c, W, 2));
    if (x->size[1] != w->size[1])
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s, linear_weight %s (expected equal inner sizes)", op,
                       pd_tensor_shape(x), pd_tensor_shape(w));
    if (target->dtype != PD_I64 || target->ndim != 1 || target->size[0] != x->size[0])
        return pd_fail(PD_E_SHAPE,
                       "%s: target is %s of shape %s (expected int64 class indices, one for each row of the input %s)",
                       op, pd_dtype_name((pd_dtype)target->dtype), pd_tensor_shape(target), pd_tensor_shape(x));
    for (int i = BIAS; i <= WEIGHT; i++) {
        const pd_tensor *t = c->in[i];
        if (t && (t->ndim != 1 || t->size[0] != w->size[0]))
            return pd_fail(PD_E_SHAPE, "%s: %s has shape %s (expected %s)", op, i == BIAS ? "linear_bias" : "weight",
                           pd_tensor_shape(t), pd_shape_text(1, w->size));
    }
    if (a->dtype == PD_NO_DTYPE &&
        (w->dtype != x->dtype || (b && b->dtype != x->dtype) || (weight && weight->dtype != x->dtype)))
        return pd_fail(PD_E_DTYPE, "%s: input is %s, linear_weight is %s (expected one dtype)", op,
                       pd_dtype_name((pd_dtype)x->dtype), pd_dtype_name((pd_dtype)w->dtype));
    if (!(a->loss.smoothing >= 0 && a->loss.smoothing <= 1))
        return pd_fail(PD_E_VALUE, "%s: label_smoothing is %g (expected 0 to 1)", op, a->loss.smoothing);
    if (a->loss.reduction == PD_LOSS_NONE || a->chunk < 0)
        return pd_fail(PD_E_VALUE, "%s: reduction is %s, chunk is %lld (expected mean or sum, and at least 0 rows)", op,
                       a->loss.reduction == PD_LOSS_NONE ? "none" : "mean or sum", (long long)a->chunk);
    return PD_OK;
}

/* [new] x in dtype t and contiguous. */
static pd_status take(pd_tensor *x, pd_dtype t, pd_tensor **out) {
    pd_tensor *cast = NULL;
    if (!x) return PD_OK;
    if (x->dtype == (int)t) pd_tensor_retain(cast = x);
    else PD_TRY(pd_autocast_cast(x, t, &cast));
    pd_status status = pd_contiguous(cast, out);
    pd_tensor_release(cast);
    return status;
}

static int64_t chunk_rows(const fused_attrs *a, int64_t rows, int64_t row_bytes) {
    int64_t most = a->chunk > 0 ? a->chunk : row_bytes > 0 ? CHUNK_BYTES / row_bytes : rows;
    if (a->chunk <= 0 && most < CHUNK_ROWS) most = CHUNK_ROWS;
    if (most >= rows) return rows > 0 ? rows : 1;
    int64_t count = (rows + most - 1) / most, even = (rows + count - 1) / count, round = (even + 15) / 16 * 16;
    return a->chunk > 0 || round > most ? even : round;
}

static pd_status make_gradients(job *j, const pd_call *c) {
    const int of[] = {[GX] = X, [GW] = W, [GB] = BIAS};
    for (int k = GX; k <= GB; k++) {
        pd_tensor *t = c->in[of[k]];
        if (!c->wants || !t || !pd_tensor_wants_grad(t)) continue;
        bool added = k != GX && j->rows < j->all.rows && pd_dtype_size(j->t) == 2; /* summed over chunks in float32 */
        pd_dtype dtype = added ? PD_F32 : (pd_dtype)t->dtype;
        if (dtype == (pd_dtype)t->dtype) PD_TRY(pd_grad_make_ahead(t, &j->out[k]));
        if (!j->out[k]) PD_TRY(pd_tensor_new(c->def->name, dtype, t->ndim, t->size, &j->out[k]));
        if (!j->all.rows) pd_fill(j->out[k], &(pd_scalar){.cat = PD_CAT_INT});
    }
    return j->out[GB] ? pd_tensor_new(c->def->name, (pd_dtype)j->out[GB]->dtype, 1, &j->all.C, &j->row) : PD_OK;
}

static pd_status fused_compose(pd_call *c) {
    const fused_attrs *a = c->attrs;
    PD_TRY(check(c, a));
    bool mixed = a->dtype != PD_NO_DTYPE && c->in[X]->dtype != PD_F64;
    bool mean = a->loss.reduction == PD_LOSS_MEAN;
    pd_status status = PD_OK;
    pd_tensor *sums = NULL;
    job j = {.t = mixed ? (pd_dtype)a->dtype : (pd_dtype)c->in[X]->dtype, .D = c->in[X]->size[1]};
    for (int i = 0; i < INPUTS; i++) PD_TRY_TO(done, take(c->in[i], i == TARGET ? PD_I64 : j.t, &j.in[i]));
    j.all = pd_loss_rows(j.in[X]->size[0], j.in[W]->size[0], j.in[TARGET], j.in[WEIGHT], &a->loss);
    j.rows = chunk_rows(a, j.all.rows, j.all.C * (int64_t)pd_dtype_size(j.t));
    int64_t chunks = (j.all.rows + j.rows - 1) / j.rows;
    PD_TRY_TO(done, pd_tensor_new(c->def->name, PD_F64, 1, (int64_t[]){3}, &sums));
    PD_TRY_TO(done, pd_loss_check_labels(c->def->name, j.t, &j.all, pd_tensor_data(sums)));
    if (mean && j.t != PD_F16) {
        PD_TRY_TO(done, pd_tensor_new(c->def->name, pd_dtype_computed(j.t), 0, NULL, &j.total));
        pd_convert(pd_dtype_computed(j.t), PD_F64, 1, pd_tensor_data(sums), pd_tensor_data(j.total));
    }
    PD_TRY_TO(done, pd_tensor_new(c->def->name, mixed ? PD_F32 : j.t, 0, NULL, &j.out[LOSS]));
    PD_TRY_TO(done, make_gradients(&j, c));
    PD_TRY_TO(done, pd_tensor_new(c->def->name, j.t, 2, (int64_t[]){j.rows, j.all.C}, &j.logits));
    PD_TRY_TO(done, pd_tensor_new(c->def->name, pd_dtype_computed(j.t), 1, &j.rows, &j.lse));
    PD_TRY_TO(done, pd_tensor_new(c->def->name, PD_F64, 2, (int64_t[]){chunks, 3}, &j.sums));
    double work = 6.0 * (double)j.all.rows * (double)j.all.C * (double)j.D / 100;
    void *token = work > PD_RELEASE_NS && !pd_device_here->kernels ? pd_host_release() : NULL;
    for (int64_t r = 0; r < j.all.rows && !status; r += j.rows)
        status = run_chunk(&j, r, j.all.rows - r < j.rows ? j.all.rows - r : j.rows);
    pd_host_acquire(token);
    if (status) goto done;
    add_up(&j, chunks, mean, pd_tensor_data(sums));
    PD_TRY_TO(done, pd_device_check(pd_device_here, c->def->name));
    c->nout = c->wants ? 4 : 1;
    for (int k = 0; k < c->nout; k++) {
        if (!j.out[k])
            PD_TRY_TO(done, pd_tensor_new(c->def->name, PD_F32, 1, (int64_t[]){0}, &j.out[k])); /* nobody asks for it */
        c->out[k] = j.out[k];
        j.out[k] = NULL;
    }
done:
    for (int i = 0; i < INPUTS; i++) pd_tensor_release(j.in[i]);
    for (int k = 0; k < 4; k++) pd_tensor_release(j.out[k]);
    pd_tensor_release(j.logits);
    pd_tensor_release(j.lse);
    pd_tensor_release(j.sums);
    pd_tensor_release(j.total);
    pd_tensor_release(j.row);
    pd_tensor_release(sums);
    return status;
}

/* g, or for a mean g / total, as one float32 number (float64 for F64). */
static pd_tensor *factor_of(pd_vjp *v, bool mean, pd_tensor *x, pd_tensor *w, pd_tensor *target, pd_tensor *weight) {
    const fused_attrs *a = v->attrs;
    pd_dtype t = weight ? (pd_dtype)weight->dtype : PD_F32, to = pd_dtype_computed((pd_dtype)x->dtype);
    pd_bad_index bad;
    if (!mean || v->status) return v->g[0];
    target = pd_x_contiguous(v, target), weight = weight ? pd_x_contiguous(v, weight) : NULL;
    pd_tensor *sum = pd_x_new(v, PD_F64, 0, NULL), *total = pd_x_new(v, to, 0, NULL);
    if (!total || v->status) return NULL;
    pd_xent s = pd_loss_rows(x->size[0], w->size[0], target, weight, &a->loss);
    pd_here()->labels("linear_cross_entropy", t, &s, pd_tensor_data(sum), &bad); /* forward has checked the labels */
    pd_convert(to, PD_F64, 1, pd_tensor_data(sum), pd_tensor_data(total));
    pd_tensor *g = pd_x_call1(v, PD_OP_cast, v->g[0], &(pd_cast_attrs){to});
    return pd_x2(v, PD_OP_div, pd_val_of(g), pd_val_of(total)).t;
}

static void fused_fast(pd_vjp *v) {
    const fused_attrs *a = v->attrs;
    const int of[] = {[GX] = X, [GW] = W, [GB] = BIAS};
    pd_tensor *in[INPUTS];
    pd_scalar factor;
    for (int i = 0; i < INPUTS; i++) in[i] = i == BIAS ? NULL : pd_vjp_in(v, i);
    if (v->status) return;
    bool half = a->dtype != PD_NO_DTYPE && in[X]->dtype != PD_F64 ? a->dtype == PD_F16 : in[X]->dtype == PD_F16;
    pd_tensor *by = factor_of(v, half && a->loss.reduction == PD_LOSS_MEAN, in[X], in[W], in[TARGET], in[WEIGHT]);
    if (!v->status && !pd_device_here->kernels) /* often 1 */
        v->status = pd_item("linear_cross_entropy", by, PD_WAIT, &factor);
    if (v->status) return;
    for (int k = GX; k <= GB; k++) {
        if (!pd_vjp_needs(v, of[k])) continue;
        pd_tensor *g = pd_vjp_out(v, k), *own = pd_vjp_take_out(v, k);
        pd_val f = pd_device_here->kernels ? pd_val_of(by) : pd_const(factor.d);
        if (f.t || f.c != 1) g = pd_x2_to(v, PD_OP_mul, pd_val_of(g), f, own ? own : pd_vjp_destination(v, of[k])).t;
        pd_vjp_set(v, of[k], g);
    }
}

static void fused_vjp(pd_vjp *v) { /* by ops, so that it can be differentiated again: makes all logits at once */
    const fused_attrs *a = v->attrs;
    pd_tensor *in[INPUTS];
    for (int i = 0; i < INPUTS; i++) in[i] = pd_vjp_in(v, i);
    if (v->status) return;
    pd_dtype t = a->dtype != PD_NO_DTYPE && in[X]->dtype != PD_F64 ? (pd_dtype)a->dtype : (pd_dtype)in[X]->dtype;
    for (int i = 0; i < INPUTS; i++)
        if (in[i] && i != TARGET && in[i]->dtype != (int)t)
            in[i] = pd_x_call1(v, PD_OP_cast, in[i], &(pd_cast_attrs){t});
    in[TARGET] = pd_x_contiguous(v, in[TARGET]);
    if (in[WEIGHT]) in[WEIGHT] = pd_x_contiguous(v, in[WEIGHT]);
    pd_tensor *logits = pd_x(v, PD_OP_linear, NULL, 3, (pd_tensor *[]){in[X], in[W], in[BIAS]});
    if (v->status) return;
    pd_val factor =
        pd_val_of(factor_of(v, a->loss.reduction == PD_LOSS_MEAN, in[X], in[W], in[TARGET], in[WEIGHT]));
    pd_tensor *g = pd_loss_logits_grad(v, &a->loss, logits, in[TARGET], in[WEIGHT], factor);
    pd_tensor *turned = pd_x_call1(v, PD_OP_transpose, g, &(pd_dims2_attrs){0, 1});
    pd_reduce_attrs rows = {.dim = {.n = 1, .v = {0}}, .dtype = PD_NO_DTYPE};
    if (pd_vjp_needs(v, X)) pd_vjp_set(v, X, pd_x_call2(v, PD_OP_matmul, g, in[W], NULL));
    if (pd_vjp_needs(v, W)) pd_vjp_set(v, W, pd_x_call2(v, PD_OP_matmul, turned, in[X], NULL));
    if (pd_vjp_needs(v, BIAS)) pd_vjp_set(v, BIAS, pd_x_call1(v, PD_OP_sum, g, &rows));
}

const pd_op pd_op_linear_cross_entropy = {
    .sig =
        "linear_cross_entropy(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias=None, Tensor? "
        "weight=None, "
        "int ignore_index=-100, enum(none|mean|sum) reduction=mean, float label_smoothing=0, int chunk=0, dtype "
        "dtype=None)",
    .doc =
        "cross_entropy(linear(input, linear_weight, linear_bias), target, weight), computed in chunks of rows. input "
        "[N, D], linear_weight [C, D], target [N] (int64).",
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(W) | PD_SAVE_IN(TARGET) | PD_SAVE_IN(BIAS) | PD_SAVE_IN(WEIGHT) |
            PD_SAVE_OUT(GX) | PD_SAVE_OUT(GW) | PD_SAVE_OUT(GB),
    .flags = PD_NN | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(fused_attrs),
    .nout = 4,
    .visible = 1,
    .compose = fused_compose,
    .vjp = fused_vjp,
    .vjp_fast = fused_fast,
};
