/* Attention: softmax(query key^T scale + mask) value. Forward and first gradients run in a fused kernel that never
   holds the scores of all pairs. Dropout, the mask's gradient and second gradients are made of other ops. */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "ops/express.h"

enum { Q, K, V, MASK };

typedef struct { int64_t causal; double scale; } attend_attrs;

/* ---- in ops ------------------------------------------------------------------------------------------------------ */

static pd_val shaped(pd_vjp *v, pd_tensor *t, int n, const int64_t *size) {
    pd_shape_attrs a = {.shape = {.n = n}};
    memcpy(a.shape.v, size, sizeof(int64_t) * (size_t)n);
    return pd_val_of(pd_x_call1(v, PD_OP_reshape, t, &a));
}
static pd_val product(pd_vjp *v, pd_val a, pd_val b) { return pd_val_of(pd_x_call2(v, PD_OP_matmul, a.t, b.t, NULL)); }
static pd_val turned(pd_vjp *v, pd_val t) {
    return pd_val_of(pd_x_call1(v, PD_OP_transpose, t.t, &(pd_dims2_attrs){-2, -1}));
}

/* [T, S]: whether query t may see key s; true up to the diagonal. */
static pd_val lower_triangle(pd_vjp *v, int64_t T, int64_t S) {
    pd_tensor *i = pd_x_new(v, PD_I64, 2, (int64_t[]){T, 1}), *j = pd_x_new(v, PD_I64, 2, (int64_t[]){1, S});
    if (!i || !j) return pd_val_of(NULL);
    pd_here()->range(PD_I64, pd_tensor_data(i), T, 0, 1);
    pd_here()->range(PD_I64, pd_tensor_data(j), S, 0, 1);
    return pd_x2(v, PD_OP_le, pd_val_of(j), pd_val_of(i));
}

/* The operands, with query heads that share a key head in a dimension of their own: q [B, Hkv, H / Hkv, T, d], k [B,
   Hkv, 1, S, d]. */
typedef struct attended { pd_val q, k, v, p; } attended;

static attended attend_in_ops(pd_vjp *v, const attend_attrs *a, pd_tensor *const *in) {
    const pd_tensor *q = in[Q], *k = in[K];
    attended x = {0};
    if (v->status) return x;
    int64_t group = q->size[1] / (k->size[1] ? k->size[1] : 1), B = q->size[0], H = k->size[1], T = q->size[2],
            S = k->size[2];
    x.q = shaped(v, in[Q], 5, (int64_t[]){B, H, group, T, q->size[3]});
    x.k = shaped(v, in[K], 5, (int64_t[]){B, H, 1, S, k->size[3]});
    x.v = shaped(v, in[V], 5, (int64_t[]){B, H, 1, S, in[V]->size[3]});
    pd_val s = MULC(product(v, x.q, turned(v, x.k)), a->scale);
    if (in[MASK]) {
        pd_val m = shaped(v, in[MASK], 5, (int64_t[]){B, H, group, T, S});
        s = in[MASK]->dtype == PD_BOOL ? pd_x_where(v, PD_OP_eq, m, C(0), C(-INFINITY), s) : ADD(s, m);
    }
    if (a->causal) s = pd_x_where(v, PD_OP_eq, lower_triangle(v, T, S), C(0), C(-INFINITY), s);
    pd_reduce_attrs along = {.dim = {.n = 1, .v = {-1}}, .keepdim = true, .dtype = PD_NO_DTYPE};
    struct { int64_t dim, dtype; } last = {-1, PD_NO_DTYPE};
    pd_val top = s;
    if (S && s.t) top = pd_val_of(pd_x_call1(v, PD_OP_amax, s.t, &along));
    s = pd_x_where(v, PD_OP_eq, top, C(-INFINITY), C(0), s); /* a query that may see nothing gets zeros */
    x.p = pd_x_where(v, PD_OP_eq, top, C(-INFINITY), C(0), pd_val_of(pd_x_call1(v, PD_OP_softmax, s.t, &last)));
    return x;
}

static void attend_vjp(pd_vjp *v) {
    const attend_attrs *a = v->attrs;
    pd_tensor *in[4];
    for (int i = 0; i < 4; i++) in[i] = pd_vjp_in(v, i);
    if (v->status || !v->g[0]) return;
    attended x = attend_in_ops(v, a, in);
    if (v->status) return;
    int64_t size[5] = {x.q.t->size[0], x.q.t->size[1], x.q.t->size[2], x.q.t->size[3], in[V]->size[3]};
    pd_val g = shaped(v, v->g[0], 5, size), gp = product(v, g, turned(v, x.v));
    pd_reduce_attrs along = {.dim = {.n = 1, .v = {-1}}, .keepdim = true, .dtype = PD_NO_DTYPE};
    pd_reduce_attrs heads = {.dim = {.n = 1, .v = {2}}, .keepdim = false, .dtype = PD_NO_DTYPE};
    pd_val gs = MUL(x.p, SUB(gp, pd_val_of(pd_x_call1(v, PD_OP_sum, MUL(gp, x.p).t, &along)))), by = MULC(gs, a->scale);
    if (pd_vjp_needs(v, Q)) pd_vjp_set(v, Q, shaped(v, product(v, by, x.k).t, 4, in[Q]->size).t);
    if (pd_vjp_needs(v, K)) pd_vjp_set(v, K, pd_x_call1(v, PD_OP_sum, product(v, turned(v, by), x.q).t, &heads));
    if (pd_vjp_needs(v, V)) pd_vjp_set(v, V, pd_x_call1(v, PD_OP_sum, product(v, turned(v, x.p), g).t, &heads));
    if (in[MASK] && pd_vjp_needs(v, MASK)) pd_vjp_set(v, MASK, shaped(v, gs.t, 4, in[MASK]->size).t);
}

/* ---- fused ------------------------------------------------------------------------------------------------------- */

static void strides_of(const pd_tensor *t, int64_t *to) { memcpy(to, t->stride, sizeof(int64_t) * 3); }

static pd_attention shape_of(const attend_attrs *a, pd_tensor *const *in, const pd_tensor *out) {
    const pd_tensor *q = in[Q], *k = in[K], *v = in[V];
    pd_attention c = {.t = (pd_dtype)q->dtype,
                      .B = q->size[0],
                      .H = q->size[1],
                      .Hkv = k->size[1],
                      .nq = q->size[2],
                      .nk = k->size[2],
                      .d = q->size[3],
                      .dv = v->size[3],
                      .scale = a->scale,
                      .causal = a->causal};
    strides_of(q, c.qs), strides_of(k, c.ks), strides_of(v, c.vs), strides_of(out, c.os);
    if (in[MASK]) c.mask_t = (pd_dtype)in[MASK]->dtype, memcpy(c.ms, in[MASK]->stride, sizeof c.ms);
    return c;
}

/* The result's memory is ordered [B, T, H, dv], so that heads can be joined without a copy. */
static pd_status attend_infer(pd_call *c) {
    const pd_tensor *q = c->in[Q], *v = c->in[V];
    PD_TRY(pd_out_shape(c, 0, (pd_dtype)q->dtype, 4, (int64_t[]){q->size[0], q->size[1], q->size[2], v->size[3]}));
    pd_tensor *o = c->out[0];
    o->stride[0] = o->size[2] * o->size[1] * o->size[3], o->stride[1] = o->size[3],
    o->stride[2] = o->size[1] * o->size[3];
    return pd_out_shape(c, 1, pd_dtype_computed((pd_dtype)q->dtype), 3, q->size);
}
static size_t attend_scratch(const pd_call *c) {
    pd_attention s = shape_of(c->attrs, c->in, c->out[0]);
    return pd_here()->attention_scratch(&s, false);
}
static pd_status attend_kernel(const pd_call *c) {
    pd_attention s = shape_of(c->attrs, c->in, c->out[0]);
    pd_here()->attention(&s, pd_tensor_data(c->in[Q]), pd_tensor_data(c->in[K]), pd_tensor_data(c->in[V]),
                         c->in[MASK] ? pd_tensor_data(c->in[MASK]) : NULL, pd_tensor_data(c->out[0]),
                         pd_tensor_data(c->out[1]), c->scratch);
    return PD_OK;
}
static double attend_work(const pd_call *c) {
    return (double)c->in[Q]->numel * (double)c->in[K]->size[2] * 4 / 50; /* at 50 GFLOP/s */
}

static bool fits(const pd_tensor *t) { return t->stride[3] == 1 || t->size[3] <= 1; }

/* Room for the gradient of input i: in its place, if the kernel can write there, else a new tensor [B, H, n, width]
   whose memory is ordered [B, n, H, width]. *place: where the gradient has to be copied then; else NULL. *sums: where
   the sums over batches and rows go, if they are wanted and heads stand side by side; else NULL. */
static pd_tensor *room_for(pd_vjp *v, int i, const pd_tensor *like, pd_tensor **place, float **sums) {
    int64_t size[4] = {like->size[0], like->size[2], like->size[1], like->size[3]};
    *place = pd_vjp_place(v, i);
    if (*place && fits(*place)) {
        pd_tensor *t = *place, *of = NULL;
        if (t->stride[1] == t->size[3]) of = pd_vjp_place_sums(v, i, t->size[1] * t->size[3]);
        if (of) *sums = pd_tensor_data(of);
        *place = NULL;
        return t;
    }
    return pd_x_call1(v, PD_OP_transpose, pd_x_new(v, (pd_dtype)like->dtype, 4, size), &(pd_dims2_attrs){1, 2});
}

static void attend_fast(pd_vjp *v) {
    pd_tensor *in[4], *place[3] = {0}, *made[3] = {0};
    for (int i = 0; i < 4; i++) in[i] = pd_vjp_in(v, i);
    pd_tensor *out = pd_vjp_out(v, 0), *lse = pd_vjp_out(v, 1), *g = v->g[0];
    if (v->status || !g) return;
    if (in[MASK] && pd_vjp_needs(v, MASK)) {
        attend_vjp(v);
        return;
    }
    if (!fits(g)) g = pd_x_contiguous(v, g);
    pd_attention c = shape_of(v->attrs, in, out);
    for (int i = 0; i < 3; i++) made[i] = room_for(v, i, in[i], &place[i], &c.sums[i]);
    if (v->status) return;
    strides_of(g, c.gs), strides_of(made[Q], c.gqs), strides_of(made[K], c.gks), strides_of(made[V], c.gvs);
    int64_t bytes = (int64_t)pd_here()->attention_scratch(&c, true);
    pd_tensor *scratch = pd_x_new(v, PD_U8, 1, &bytes);
    if (v->status) return;
    pd_here()->attention_grad(&c, pd_tensor_data(g), pd_tensor_data(in[Q]), pd_tensor_data(in[K]),
                              pd_tensor_data(in[V]), in[MASK] ? pd_tensor_data(in[MASK]) : NULL, pd_tensor_data(out),
                              pd_tensor_data(lse), pd_tensor_data(made[Q]), pd_tensor_data(made[K]),
                              pd_tensor_data(made[V]), pd_tensor_data(scratch));
    for (int i = 0; i < 3; i++) {
        if (place[i] && !v->status) v->status = pd_engine.copy_into(place[i], made[i]);
        pd_vjp_set(v, i, place[i] ? place[i] : made[i]);
    }
}

const pd_op pd_op_attend = {
    .sig = "attend(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale)",
    .doc =
        "scaled_dot_product_attention of query [B, H, T, d], key [B, Hkv, S, d] and value [B, Hkv, S, dv], whose last "
        "dimension is dense, and a mask [B, H, T, S].",
    .nout = 2,
    .visible = 1,
    .save = PD_SAVE_IN(Q) | PD_SAVE_IN(K) | PD_SAVE_IN(V) | PD_SAVE_IN(MASK) | PD_SAVE_OUT(0) | PD_SAVE_OUT(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(attend_attrs),
    .infer = attend_infer,
    .kernel = attend_kernel,
    .scratch = attend_scratch,
    .work = attend_work,
    .vjp = attend_vjp,
    .vjp_fast = attend_fast,
};

/* ---- as it is called --------------------------------------------------------------------------------------------- */

typedef struct { double dropout; int64_t causal; pd_scalar scale; int64_t gqa; } sdpa_attrs;

/* x as [B, H, rows, width]: leading dimensions become one batch. */
static pd_tensor *four_dims(pd_vjp *v, pd_tensor *x, bool dense) {
    int64_t size[4] = {1, 1, x->size[x->ndim - 2], x->size[x->ndim - 1]};
    if (x->ndim > 2) size[1] = x->size[x->ndim - 3];
    for (int d = 0; d < x->ndim - 3; d++) size[0] *= x->size[d];
    if (x->ndim != 4) x = shaped(v, x, 4, size).t;
    return x && dense && !fits(x) ? pd_x_contiguous(v, x) : x;
}

static pd_status check_shapes(const pd_call *c, const sdpa_attrs *a) {
    const pd_tensor *q = c->in[Q], *k = c->in[K], *v = c->in[V], *m = c->in[MASK];
    const char *op = c->def->name;
    int n = q->ndim;
    PD_TRY(pd_check_float(c, Q));
    if (k->dtype != q->dtype || v->dtype != q->dtype)
        return pd_fail(PD_E_DTYPE, "%s: query is %s, key is %s, value is %s (expected one dtype)", op,
                       pd_dtype_name((pd_dtype)q->dtype), pd_dtype_name((pd_dtype)k->dtype),
                       pd_dtype_name((pd_dtype)v->dtype));
    bool good =
        n >= 2 && k->ndim == n && v->ndim == n && q->size[n - 1] == k->size[n - 1] && k->size[n - 2] == v->size[n - 2];
    for (int d = 0; good && d < n - 2; d++) {
        bool grouped = a->gqa && d == n - 3 && k->size[d] > 0 && q->size[d] % k->size[d] == 0;
        good = k->size[d] == v->size[d] && (k->size[d] == q->size[d] || grouped);
    }
    if (!good)
        return pd_fail(
            PD_E_SHAPE,
            "%s: query has shape %s, key %s, value %s (expected [..., H, T, E], [..., H, S, E], [..., H, S, Ev]%s)", op,
            pd_tensor_shape(q), pd_tensor_shape(k), pd_tensor_shape(v),
            a->gqa ? ", and with enable_gqa an H of the query that is a multiple of the others" : "");
    if (m && a->causal)
        return pd_fail(PD_E_VALUE, "%s: attn_mask is given and is_causal is True (expected one of them)", op);
    if (m && m->dtype != PD_BOOL && m->dtype != q->dtype)
        return pd_fail(PD_E_DTYPE, "%s: attn_mask is %s (expected bool or %s, like query)", op,
                       pd_dtype_name((pd_dtype)m->dtype), pd_dtype_name((pd_dtype)q->dtype));
    if (!(a->dropout >= 0 && a->dropout <= 1))
        return pd_fail(PD_E_VALUE, "%s: dropout_p is %g (expected 0 to 1)", op, a->dropout);
    return PD_OK;
}

static pd_tensor *full_mask(pd_vjp *v, pd_tensor *mask, const pd_tensor *q, int64_t S) {
    pd_ints full = {.n = q->ndim};
    memcpy(full.v, q->size, sizeof(int64_t) * (size_t)q->ndim);
    full.v[q->ndim - 1] = S;
    pd_tensor *wide_mask = pd_x_call1(v, PD_OP_expand, mask, &full);
    return wide_mask ? four_dims(v, wide_mask, false) : NULL;
}

static pd_status sdpa_compose(pd_call *c) {
    const sdpa_attrs *a = c->attrs;
    pd_tensor *q = c->in[Q], *k = c->in[K];
    pd_vjp scope = {0}, *v = &scope;
    PD_TRY(check_shapes(c, a));
    double width = (double)q->size[q->ndim - 1];
    attend_attrs attrs = {a->causal, a->scale.cat < 0 ? 1 / sqrt(width > 0 ? width : 1) : a->scale.d};
    pd_tensor *in[4] = {four_dims(v, q, true), four_dims(v, k, true), four_dims(v, c->in[V], true), NULL}, *out = NULL;
    if (c->in[MASK]) in[MASK] = full_mask(v, c->in[MASK], q, k->size[k->ndim - 2]);
    if (a->dropout > 0) {
        struct { double p; int64_t training; } drop = {a->dropout, true};
        attended x = attend_in_ops(v, &attrs, in);
        out = product(v, pd_val_of(pd_x_call1(v, PD_OP_dropout, x.p.t, &drop)), x.v).t;
    } else {
        out = v->status ? NULL : pd_x(v, PD_OP_attend, &attrs, 4, in);
    }
    int64_t size[PD_MAX_DIMS];
    memcpy(size, q->size, sizeof(int64_t) * (size_t)q->ndim);
    size[q->ndim - 1] = c->in[V]->size[q->ndim - 1];
    if (out && !pd_shape_equal(q->ndim, size, out->ndim, out->size)) out = shaped(v, out, q->ndim, size).t;
    return pd_x_end(v, out, &c->out[0]);
}

const pd_op pd_op_scaled_dot_product_attention = {
    .sig =
        "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float "
        "dropout_p=0.0, bool is_causal=False, "
        "Scalar scale=None, bool enable_gqa=False)",
    .doc =
        "softmax(query @ key^T * scale + attn_mask) @ value, with query [..., H, T, E], key [..., H, S, E], value "
        "[..., H, S, Ev]. scale is 1 / sqrt(E) by default. A bool mask, broadcast to [..., H, T, S], says which keys a "
        "query may see; a query that sees none gets zeros. is_causal: a query sees the keys up to its own position. "
        "enable_gqa: key and value may have fewer heads. The scores of all pairs are in memory at once only if "
        "dropout_p > 0.",
    .cast = PD_CAST_LOW,
    .flags = PD_NN,
    .attrs = sizeof(sdpa_attrs),
    .compose = sdpa_compose,
};
