/* A recurrent layer in one direction: each step is one product and one cell. The gradient of the weight is one product
   over all steps. Second gradients are made of other ops. */
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "ops/express.h"

enum { X, H0, C0, W, BIAS, MASK };    /* inputs */
enum { Y, LAST_C, GATES, CELLS };     /* outputs, the last two for the gradient */

typedef struct { int64_t kind, reverse; } recurrent_attrs;

static const int gates_of[] = {[PD_RNN_TANH] = 1, [PD_RNN_RELU] = 1, [PD_LSTM] = 4, [PD_GRU] = 3};

typedef struct layer {
    pd_cell cell;
    int64_t T, width; /* steps; gates of a row */
    bool reverse;
    size_t item;
} layer;

static layer layer_of(const recurrent_attrs *a, pd_tensor *const *in) {
    layer l = {.T = in[X]->size[0], .reverse = a->reverse, .item = pd_dtype_size((pd_dtype)in[X]->dtype)};
    l.cell = (pd_cell){(pd_dtype)in[X]->dtype, (pd_cell_kind)a->kind, in[X]->size[1], in[W]->size[1]};
    l.width = gates_of[a->kind] * l.cell.H;
    return l;
}
static int64_t step_at(const layer *l, int64_t i) { return l->reverse ? l->T - 1 - i : i; }
static const uint8_t *kept_at(pd_tensor *const *in, size_t t) { /* the rows that make step t; NULL: all */
    return in[MASK] ? (const uint8_t *)pd_tensor_data(in[MASK]) + t * (size_t)in[X]->size[1] : NULL;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static pd_status check(const pd_call *c, int i, int ndim, const int64_t *size) {
    static const char *const names[] = {"x", "h", "c", "weight", "bias"};
    const pd_tensor *t = c->in[i];
    if (t && t->dtype == c->in[X]->dtype && pd_tensor_is_contiguous(t) && pd_shape_equal(t->ndim, t->size, ndim, size))
        return PD_OK;
    if (!t) return pd_fail(PD_E_VALUE, "recurrent: %s is missing (expected %s)", names[i], pd_shape_text(ndim, size));
    return pd_fail(PD_E_SHAPE, "recurrent: %s is %s of shape %s (expected contiguous %s of shape %s)", names[i],
                   pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), pd_dtype_name((pd_dtype)c->in[X]->dtype),
                   pd_shape_text(ndim, size));
}

static pd_status recurrent_infer(pd_call *c) {
    const recurrent_attrs *a = c->attrs;
    const pd_tensor *x = c->in[X], *w = c->in[W];
    pd_dtype t = (pd_dtype)x->dtype;
    if (t != PD_F32 && t != PD_F64)
        return pd_fail(PD_E_DTYPE, "recurrent: x is %s (expected float32 or float64)", pd_dtype_name(t));
    if (x->ndim != 3 || w->ndim != 2)
        return pd_fail(PD_E_SHAPE, "recurrent: x has shape %s, weight %s (expected [T, B, gates H] and [gates H, H])",
                       pd_tensor_shape(x), pd_tensor_shape(w));
    if (!x->size[0])
        return pd_fail(PD_E_SHAPE, "recurrent: x has shape %s (expected at least one step)", pd_tensor_shape(x));
    layer l = layer_of(a, c->in);
    const int64_t B = l.cell.B, H = l.cell.H, T = l.T;
    PD_TRY(check(c, X, 3, (int64_t[]){T, B, l.width}));
    PD_TRY(check(c, H0, 2, (int64_t[]){B, H}));
    if (a->kind == PD_LSTM) PD_TRY(check(c, C0, 2, (int64_t[]){B, H}));
    else if (c->in[C0])
        return pd_fail(PD_E_VALUE, "recurrent: c is given (expected c only if kind is lstm)");
    PD_TRY(check(c, W, 2, (int64_t[]){l.width, H}));
    if (c->in[BIAS]) PD_TRY(check(c, BIAS, 1, &l.width));
    const pd_tensor *mask = c->in[MASK];
    if (mask && !(mask->dtype == PD_BOOL && pd_tensor_is_contiguous(mask) &&
                  pd_shape_equal(mask->ndim, mask->size, 2, (int64_t[]){T, B})))
        return pd_fail(PD_E_SHAPE, "recurrent: mask is %s of shape %s (expected contiguous bool of shape %s)",
                       pd_dtype_name((pd_dtype)mask->dtype), pd_tensor_shape(mask),
                       pd_shape_text(2, (int64_t[]){T, B}));
    bool lstm = a->kind == PD_LSTM, gated = lstm || a->kind == PD_GRU;
    PD_TRY(pd_out_shape(c, Y, t, 3, (int64_t[]){T, B, H}));
    PD_TRY(pd_out_shape(c, LAST_C, t, 2, (int64_t[]){lstm ? B : 0, H}));
    PD_TRY(pd_out_shape(c, GATES, t, 3, (int64_t[]){gated ? T : 0, B, 4 * H}));
    return pd_out_shape(c, CELLS, t, 3, (int64_t[]){lstm ? T : 0, B, H});
}

/* u = h W^T + bias, in each step with the same W */
static pd_gemm product_of(const layer *l) {
    pd_gemm s = pd_gemm_dense(l->cell.t, l->cell.B, l->width, l->cell.H, false, true);
    s.reuse = PD_GEMM_FIRST;
    return s;
}
static size_t rounded(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

static size_t recurrent_scratch(const pd_call *c) {
    layer l = layer_of(c->attrs, c->in);
    pd_gemm s = product_of(&l);
    return rounded((size_t)(l.cell.B * l.width) * l.item) + pd_gemm_scratch(&s);
}

static pd_status recurrent_kernel(const pd_call *c) {
    layer l = layer_of(c->attrs, c->in);
    pd_gemm s = product_of(&l);
    const size_t row = (size_t)(l.cell.B * l.cell.H) * l.item, wide = (size_t)(l.cell.B * l.width) * l.item;
    char *u = c->scratch, *rest = u + rounded(wide), *y = pd_tensor_data(c->out[Y]);
    char *gates = pd_tensor_data(c->out[GATES]), *cells = pd_tensor_data(c->out[CELLS]);
    const char *h = pd_tensor_data(c->in[H0]), *state = c->in[C0] ? pd_tensor_data(c->in[C0]) : NULL;
    const void *bias = c->in[BIAS] ? pd_tensor_data(c->in[BIAS]) : NULL;
    bool gated = c->out[GATES]->numel > 0;
    for (int64_t i = 0; i < l.T; i++) {
        const size_t t = (size_t)step_at(&l, i);
        PD_TRY(pd_gemm_run(&s, h, pd_tensor_data(c->in[W]), bias, u, rest));
        s.reuse = PD_GEMM_AGAIN;
        pd_cell_step one = {.x = (char *)pd_tensor_data(c->in[X]) + t * wide,
                            .u = u,
                            .h0 = h,
                            .c0 = state,
                            .keep = kept_at(c->in, t),
                            .h1 = y + t * row,
                            .c1 = state ? cells + t * row : NULL,
                            .gates = gated ? gates + t * 4 * row : NULL};
        pd_here()->cell(&l.cell, &one);
        h = one.h1;
        state = one.c1;
    }
    if (state) pd_convert(l.cell.t, l.cell.t, l.cell.B * l.cell.H, state, pd_tensor_data(c->out[LAST_C]));
    return PD_OK;
}

static double recurrent_work(const pd_call *c) {
    return (double)c->in[X]->numel * (double)c->in[W]->size[1] * 2 / 50; /* at 50 GFLOP/s */
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

/* gw = (or +=) gu^T times the state before, over so many steps. */
static pd_gemm weight_product(const layer *l, int64_t steps, int beta) {
    pd_gemm s = pd_gemm_dense(l->cell.t, l->width, l->cell.H, steps * l->cell.B, true, false);
    s.beta = beta;
    return s;
}

/* One product for the first step, and one for all steps after it. */
static pd_status weight_grad(const layer *l, const char *gu, const char *y, const char *h0, char *gw, void *scratch) {
    const int64_t B = l->cell.B, H = l->cell.H;
    const size_t row = (size_t)(B * H) * l->item, wide = (size_t)(B * l->width) * l->item, last = (size_t)(l->T - 1);
    pd_gemm others = weight_product(l, l->T - 1, 0), first = weight_product(l, 1, 1);
    PD_TRY(pd_gemm_run(&others, l->reverse ? gu : gu + wide, l->reverse ? y + row : y, NULL, gw, scratch));
    return pd_gemm_run(&first, l->reverse ? gu + last * wide : gu, h0, NULL, gw, scratch);
}
static size_t weight_grad_scratch(const layer *l) {
    pd_gemm others = weight_product(l, l->T - 1, 0), first = weight_product(l, 1, 1);
    size_t a = pd_gemm_scratch(&others), b = pd_gemm_scratch(&first);
    return a > b ? a : b;
}

static pd_tensor *start_grad(pd_vjp *v, const pd_tensor *like, const pd_tensor *from) {
    pd_tensor *t = pd_x_new(v, (pd_dtype)like->dtype, like->ndim, like->size);
    if (!t) return NULL;
    pd_dtype d = (pd_dtype)t->dtype;
    if (from) pd_convert(d, d, t->numel, pd_tensor_data(from), pd_tensor_data(t));
    else pd_fill(t, &(pd_scalar){.cat = PD_CAT_INT});
    return t;
}

static void recurrent_fast(pd_vjp *v) {
    const recurrent_attrs *a = v->attrs;
    pd_tensor *in[6], *out[4] = {0};
    for (int i = 0; i < 6; i++) in[i] = pd_vjp_in(v, i);
    for (int i = 0; i < 4; i++)
        if (i != LAST_C) out[i] = pd_vjp_out(v, i);
    if (v->status) return;
    layer l = layer_of(a, in);
    bool lstm = a->kind == PD_LSTM, gru = a->kind == PD_GRU;
    const size_t row = (size_t)(l.cell.B * l.cell.H) * l.item, wide = (size_t)(l.cell.B * l.width) * l.item;
    pd_tensor *g = v->g[Y] ? pd_x_contiguous(v, v->g[Y]) : NULL,
              *gc_in = v->g[LAST_C] ? pd_x_contiguous(v, v->g[LAST_C]) : NULL;
    pd_tensor *gx = pd_x_new(v, l.cell.t, 3, in[X]->size), *gu = gru ? pd_x_new(v, l.cell.t, 3, in[X]->size) : gx;
    pd_tensor *gh = start_grad(v, in[H0], NULL), *gc = lstm ? start_grad(v, in[C0], gc_in) : NULL;
    pd_gemm back = pd_gemm_dense(l.cell.t, l.cell.B, l.cell.H, l.width, false, false);
    back.beta = gru || in[MASK], back.reuse = PD_GEMM_FIRST;
    size_t most = pd_gemm_scratch(&back), other = weight_grad_scratch(&l);
    int64_t bytes = (int64_t)(most > other ? most : other);
    pd_tensor *scratch = pd_x_new(v, PD_U8, 1, &bytes);
    if (v->status) return;
    const char *y = pd_tensor_data(out[Y]), *h0 = pd_tensor_data(in[H0]);
    char *gates = pd_tensor_data(out[GATES]), *cells = pd_tensor_data(out[CELLS]);
    for (int64_t i = l.T - 1; i >= 0; i--) {
        const size_t t = (size_t)step_at(&l, i), before = i ? (size_t)step_at(&l, i - 1) : 0;
        pd_cell_step one = {.h0 = i ? y + before * row : h0,
                            .h1 = (void *)(uintptr_t)(y + t * row),
                            .keep = kept_at(in, t),
                            .gh = pd_tensor_data(gh),
                            .g = g ? (char *)pd_tensor_data(g) + t * row : NULL,
                            .gx = (char *)pd_tensor_data(gx) + t * wide,
                            .gu = (char *)pd_tensor_data(gu) + t * wide,
                            .gates = lstm || gru ? gates + t * 4 * row : NULL};
        if (lstm) {
            one.c0 = i ? cells + before * row : (char *)pd_tensor_data(in[C0]);
            one.c1 = cells + t * row;
            one.gc = pd_tensor_data(gc);
        }
        pd_here()->cell_grad(&l.cell, &one);
        v->status = pd_gemm_run(&back, one.gu, pd_tensor_data(in[W]), NULL, one.gh, pd_tensor_data(scratch));
        back.reuse = PD_GEMM_AGAIN;
        if (v->status) return;
    }
    if (pd_vjp_needs(v, X)) pd_vjp_set(v, X, gx);
    if (pd_vjp_needs(v, H0)) pd_vjp_set(v, H0, gh);
    if (lstm && pd_vjp_needs(v, C0)) pd_vjp_set(v, C0, gc);
    if (pd_vjp_needs(v, W)) {
        pd_tensor *gw = pd_x_new(v, l.cell.t, 2, in[W]->size);
        if (gw) v->status = weight_grad(&l, pd_tensor_data(gu), y, h0, pd_tensor_data(gw), pd_tensor_data(scratch));
        pd_vjp_set(v, W, gw);
    }
    pd_reduce_attrs over = {.dim = {.n = 2, .v = {0, 1}}, .dtype = PD_NO_DTYPE};
    if (pd_vjp_needs(v, BIAS)) pd_vjp_set(v, BIAS, pd_x_call1(v, PD_OP_sum, gu, &over));
}

/* ---- in ops ------------------------------------------------------------------------------------------------------ */

static pd_val nth(pd_vjp *v, pd_tensor *t, int64_t dim, int64_t i) {
    struct { int64_t dim, index; } at = {dim, i};
    return pd_val_of(pd_x_call1(v, PD_OP_select, t, &at));
}
static pd_val joined(pd_vjp *v, pd_op_id op, int64_t dim, int n, const pd_val *parts, pd_tensor **room) {
    for (int i = 0; i < n; i++) room[i] = parts[i].t;
    return pd_val_of(pd_x(v, op, &dim, n, room));
}
static pd_val gate(pd_vjp *v, pd_val a, int64_t H, int k) {
    struct { int64_t dim, start, end, step; } part = {1, k * H, (k + 1) * H, 1};
    return pd_val_of(pd_x_call1(v, PD_OP_slice, a.t, &part));
}

typedef struct step_vals {
    pd_val g[4], h0, c0, h1, tanh_c; /* g: the gates as pd_cell_step has them */
    pd_tensor *keep;                 /* [B, 1]; NULL: all rows make the step */
} step_vals;

/* a in the rows that make the step, b in the others */
static pd_val chosen(pd_vjp *v, const step_vals *s, pd_val a, pd_val b) {
    return s->keep ? pd_x_where(v, PD_OP_ne, pd_val_of(s->keep), C(0), a, b) : a;
}

static step_vals forward_step(pd_vjp *v, const layer *l, pd_val x, pd_val u, pd_val h0, pd_val c0, pd_val *c1) {
    const int64_t H = l->cell.H;
    step_vals s = {.h0 = h0, .c0 = c0};
    pd_val a = l->cell.kind == PD_GRU ? u : ADD(x, u);
    if (l->cell.kind == PD_LSTM) {
        for (int k = 0; k < 4; k++) s.g[k] = k == 2 ? TANH(gate(v, a, H, k)) : SIGMOID(gate(v, a, H, k));
        *c1 = ADD(MUL(s.g[1], c0), MUL(s.g[0], s.g[2]));
        s.tanh_c = TANH(*c1);
        s.h1 = MUL(s.g[3], s.tanh_c);
    } else if (l->cell.kind == PD_GRU) {
        for (int k = 0; k < 2; k++) s.g[k] = SIGMOID(ADD(gate(v, x, H, k), gate(v, u, H, k)));
        s.g[3] = gate(v, u, H, 2);
        s.g[2] = TANH(ADD(gate(v, x, H, 2), MUL(s.g[0], s.g[3])));
        s.h1 = ADD(s.g[2], MUL(s.g[1], SUB(h0, s.g[2])));
    } else {
        s.h1 = l->cell.kind == PD_RNN_TANH ? TANH(a) : IFPOS(a, a);
    }
    return s;
}

/* Computes the gates' gradients gx and gu from gh. gh becomes the part that reaches h0 without the gates (a constant 0:
   none). */
static void backward_step(pd_vjp *v, const layer *l, const step_vals *s, pd_val *gh, pd_val *gc, pd_val *gx,
                          pd_val *gu) {
    pd_tensor *room[4];
    const pd_val *g = s->g;
#define SLOPE(p) MUL(p, RSUBC(1, p))       /* of the sigmoid p */
#define ROUND(p) RSUBC(1, MUL(p, p))       /* of the tanh p */
    if (l->cell.kind == PD_LSTM) {
        pd_val dc = ADD(*gc, MUL(MUL(*gh, g[3]), ROUND(s->tanh_c)));
        pd_val parts[4] = {MUL(MUL(dc, g[2]), SLOPE(g[0])), MUL(MUL(dc, s->c0), SLOPE(g[1])),
                           MUL(MUL(dc, g[0]), ROUND(g[2])), MUL(MUL(*gh, s->tanh_c), SLOPE(g[3]))};
        *gx = *gu = joined(v, PD_OP_cat, 1, 4, parts, room);
        *gc = MUL(dc, g[1]);
        *gh = C(0);
    } else if (l->cell.kind == PD_GRU) {
        pd_val dn = MUL(MUL(*gh, RSUBC(1, g[1])), ROUND(g[2])), dr = MUL(MUL(dn, g[3]), SLOPE(g[0]));
        pd_val dz = MUL(MUL(*gh, SUB(s->h0, g[2])), SLOPE(g[1]));
        pd_val of_x[3] = {dr, dz, dn}, of_u[3] = {dr, dz, MUL(dn, g[0])};
        *gx = joined(v, PD_OP_cat, 1, 3, of_x, room);
        *gu = joined(v, PD_OP_cat, 1, 3, of_u, room);
        *gh = MUL(*gh, g[1]);
    } else {
        *gx = *gu = l->cell.kind == PD_RNN_TANH ? MUL(*gh, ROUND(s->h1)) : IFPOS(s->h1, *gh);
        *gh = C(0);
    }
#undef SLOPE
#undef ROUND
}

static void recurrent_vjp(pd_vjp *v) {
    pd_tensor *in[6], **list;
    for (int i = 0; i < 6; i++) in[i] = pd_vjp_in(v, i);
    if (v->status) return;
    layer l = layer_of(v->attrs, in);
    const size_t T = (size_t)l.T;
    step_vals *steps;
    pd_val *gx;
    v->status = pd_calloc(T * (sizeof *steps + 2 * sizeof *gx + sizeof *list) + 64, "recurrent", &steps);
    if (v->status) return;
    gx = (pd_val *)(steps + T);
    pd_val *gu = gx + T, h = pd_val_of(in[H0]), c = in[C0] ? pd_val_of(in[C0]) : C(0);
    list = (pd_tensor **)(gu + T);
    pd_tensor *turned = pd_x_call1(v, PD_OP_transpose, in[W], &(pd_dims2_attrs){0, 1});
    for (size_t i = 0; i < T; i++) {
        pd_val u = pd_val_of(pd_x_call2(v, PD_OP_bmm, h.t, turned, NULL));
        if (in[BIAS]) u = ADD(u, pd_val_of(in[BIAS]));
        const int64_t t = step_at(&l, (int64_t)i);
        pd_val before = c;
        steps[i] = forward_step(v, &l, nth(v, in[X], 0, t), u, h, c, &c);
        if (in[MASK]) steps[i].keep = pd_x_call1(v, PD_OP_unsqueeze, nth(v, in[MASK], 0, t).t, &(int64_t){1});
        h = chosen(v, &steps[i], steps[i].h1, h);
        if (in[C0]) c = chosen(v, &steps[i], c, before);
    }
    pd_val gh = C(0), gc = v->g[LAST_C] ? pd_val_of(v->g[LAST_C]) : C(0), gw = C(0), gb = C(0);
    if (!v->g[Y]) gh = MULC(pd_val_of(in[H0]), 0);
    for (size_t i = T; i-- > 0 && !v->status;) {
        const int64_t t = step_at(&l, (int64_t)i);
        if (v->g[Y]) gh = ADD(nth(v, v->g[Y], 0, t), gh);
        pd_val past = gh, past_c = gc; /* of rows that make no step */
        gh = chosen(v, &steps[i], gh, C(0));
        if (in[C0]) gc = chosen(v, &steps[i], gc, C(0));
        backward_step(v, &l, &steps[i], &gh, &gc, &gx[t], &gu[t]);
        gh = chosen(v, &steps[i], ADD(pd_val_of(pd_x_call2(v, PD_OP_bmm, gu[t].t, in[W], NULL)), gh), past);
        if (in[C0]) gc = chosen(v, &steps[i], gc, past_c);
        pd_tensor *gut = pd_x_call1(v, PD_OP_transpose, gu[t].t, &(pd_dims2_attrs){0, 1});
        gw = ADD(pd_val_of(pd_x_call2(v, PD_OP_bmm, gut, steps[i].h0.t, NULL)), gw);
        gb = ADD(gu[t], gb);
    }
    if (pd_vjp_needs(v, X)) pd_vjp_set(v, X, joined(v, PD_OP_stack, 0, (int)T, gx, list).t);
    if (pd_vjp_needs(v, H0)) pd_vjp_set(v, H0, gh.t);
    if (in[C0] && pd_vjp_needs(v, C0)) pd_vjp_set(v, C0, gc.t);
    if (pd_vjp_needs(v, W)) pd_vjp_set(v, W, gw.t);
    pd_reduce_attrs over = {.dim = {.n = 1, .v = {0}}, .dtype = PD_NO_DTYPE};
    if (in[BIAS] && pd_vjp_needs(v, BIAS)) pd_vjp_set(v, BIAS, pd_x_call1(v, PD_OP_sum, gb.t, &over));
    pd_free(steps);
}

const pd_op pd_op_recurrent = {
    .sig =
        "recurrent(Tensor x, Tensor h, Tensor? c, Tensor weight, Tensor? bias, enum(rnn_tanh|rnn_relu|lstm|gru) kind, "
        "bool reverse=False, Tensor? mask=None)",
    .doc =
        "A recurrent layer in one direction, which nn.RNN, LSTM and GRU run. Returns the states [T, B, H] after each "
        "step and, for lstm, the last c [B, H]. x [T, B, gates H]: the input's part of the gates. weight [gates H, H] "
        "and bias: the state's part. mask [T, B]: in a row where it is False the state stays as it was.",
    .nout = 4,
    .visible = 2,
    .names = "output c",
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(H0) | PD_SAVE_IN(C0) | PD_SAVE_IN(W) | PD_SAVE_IN(BIAS) | PD_SAVE_IN(MASK) |
            PD_SAVE_OUT(Y) | PD_SAVE_OUT(GATES) | PD_SAVE_OUT(CELLS),
    .flags = PD_NN | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(recurrent_attrs),
    .infer = recurrent_infer,
    .kernel = recurrent_kernel,
    .scratch = recurrent_scratch,
    .work = recurrent_work,
    .vjp = recurrent_vjp,
    .vjp_fast = recurrent_fast,
};
