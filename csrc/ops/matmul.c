/* Matrix products: linear, bmm (2-D and 3-D), matmul with PyTorch's broadcasting on top. */
#include <string.h>

#include "autograd/beside.h"
#include "kernels/portable/portable.h"
#include "ops/block.h"

static double gemm_ns(double m, double n, double k) { return m * n * k * 2 / 100; } /* at 100 GFLOP/s */

/* Whether one of the strides is 1, as the kernel requires. */
static bool fits(const pd_tensor *t) {
    int r = t->ndim - 2, c = t->ndim - 1;
    return t->stride[c] == 1 || t->stride[r] == 1 || t->size[c] <= 1 || t->size[r] <= 1;
}
static size_t packed_bytes(const pd_tensor *t) { return fits(t) ? 0 : (pd_tensor_bytes(t) + 63) & ~(size_t)63; }

typedef struct { const void *data; int64_t batch, row, col; } matrix;

/* The strides of a matrix that fits, one of them 1. The stride of a dimension of size 1 may be anything. */
static void read_strides(const pd_tensor *t, int64_t *row, int64_t *col) {
    int r = t->ndim - 2, c = t->ndim - 1;
    bool free_row = t->stride[r] != 1 && t->stride[c] != 1 && t->size[r] <= 1,
         free_col = t->stride[r] != 1 && t->stride[c] != 1 && !free_row;
    *row = free_row ? 1 : t->stride[r];
    *col = free_col ? 1 : t->stride[c];
}

static matrix read_matrix(pd_tensor *t, void **scratch) {
    int r = t->ndim - 2, c = t->ndim - 1;
    if (fits(t)) {
        matrix own = {.data = pd_tensor_data(t), .batch = t->ndim > 2 && t->size[0] > 1 ? t->stride[0] : 0};
        read_strides(t, &own.row, &own.col);
        return own;
    }
    matrix m = {*scratch, t->ndim > 2 ? t->size[r] * t->size[c] : 0, t->size[c], 1};
    pd_block_pack(t, 0, *scratch);
    *scratch = (char *)*scratch + packed_bytes(t);
    return m;
}

/* ---- bmm --------------------------------------------------------------------------------------------------------- */

static pd_status infer_as(pd_call *c, pd_dtype t) {
    pd_tensor *a = c->in[0], *b = c->in[1];
    int n = a->ndim;
    if (a->dtype == PD_BOOL) return pd_fail(PD_E_DTYPE, "%s: the inputs are bool (expected numbers)", c->def->name);
    if ((n != 2 && n != 3) || b->ndim != n || a->size[n - 1] != b->size[n - 2] || (n == 3 && a->size[0] != b->size[0]))
        return pd_fail(PD_E_SHAPE, "%s: got shapes %s and %s (expected [B, M, K] and [B, K, N])", c->def->name,
                       pd_tensor_shape(a), pd_tensor_shape(b));
    int64_t size[3] = {a->size[0], a->size[n - 2], b->size[n - 1]};
    return pd_out_shape(c, 0, t, n, n == 3 ? size : size + 1);
}
static pd_status bmm_infer(pd_call *c) { return infer_as(c, (pd_dtype)c->in[0]->dtype); }

static pd_gemm bmm_shape(const pd_call *c) {
    pd_tensor *a = c->in[0], *b = c->in[1], *o = c->out[0];
    int n = a->ndim;
    pd_gemm s = {.t = (pd_dtype)a->dtype,
                 .batch = n == 3 ? a->size[0] : 1,
                 .M = a->size[n - 2],
                 .N = b->size[n - 1],
                 .K = a->size[n - 1],
                 .wide = o->dtype != a->dtype};
    s.c_batch = n == 3 ? o->stride[0] : 0;
    s.c_row = o->stride[n - 2];
    s.a_batch = s.b_batch = s.c_batch;
    s.a_row = s.K, s.b_row = s.N, s.a_col = s.b_col = 1;
    if (fits(a)) read_strides(a, &s.a_row, &s.a_col);
    if (fits(b)) read_strides(b, &s.b_row, &s.b_col);
    return s;
}

/* A product of complex matrices as one real product. A's rows are [re im re im ...] in memory. So each row [re im ...]
   of B is followed by the same row of i B, [-im re ...], and the rows of the product are complex again. */
static pd_gemm complex_shape(const pd_call *c) {
    pd_gemm s = bmm_shape(c);
    s.t = pd_dtype_part(s.t);
    s.N *= 2, s.K *= 2, s.c_row *= 2, s.c_batch *= 2;
    s.a_row = s.K, s.a_col = 1, s.a_batch = s.M * s.K;
    s.b_row = s.N, s.b_col = 1, s.b_batch = s.K * s.N;
    return s;
}
static size_t rounded(size_t bytes) { return (bytes + 63) & ~(size_t)63; }
static size_t complex_scratch(const pd_call *c) {
    pd_gemm s = complex_shape(c);
    return rounded(pd_packed_bytes(c)) + rounded(pd_tensor_bytes(c->in[1])) + rounded(2 * pd_tensor_bytes(c->in[1])) +
           pd_gemm_scratch(&s);
}
#define FILL_PAIRS(T)                                        \
    for (int64_t r = 0; r < rows; r++) {                     \
        const T *from = (const T *)x + r * n;                \
        T *to = (T *)out + 2 * r * n, *turned = to + n;      \
        memcpy(to, from, (size_t)n * sizeof(T));             \
        for (int64_t k = 0; k < n; k += 2) turned[k] = -from[k + 1], turned[k + 1] = from[k]; \
    }
/* Makes these rows of B by a GPU's kernels for floats: each row, followed by its negated imaginary and its real
   parts. */
static void fill_pairs_there(pd_dtype t, int64_t rows, int64_t n, const void *x, void *out) {
    int64_t size = (int64_t)pd_dtype_size(t), half = rows ? n / 2 : 0;
    char *from = (char *)(uintptr_t)x, *to = out, *below = to + n * size;
    pd_loop l = {.ndim = 2, .nop = 2, .numel = rows * n, .size = {rows, n}, .ptr = {to, from},
                 .stride = {{2 * n * size, size}, {n * size, size}}};
    pd_here()->copy(t, t, &l);
    l.numel = rows * half, l.size[1] = half, l.stride[0][1] = l.stride[1][1] = 2 * size;
    l.ptr[0] = below, l.ptr[1] = from + size;
    pd_here()->unary(PD_UNARY_neg, t, &l);
    l.ptr[0] = below + size, l.ptr[1] = from;
    pd_here()->copy(t, t, &l);
}
static pd_status complex_bmm(const pd_call *c) {
    pd_gemm s = complex_shape(c);
    char *scratch = c->scratch;
    const void *a = pd_packed(c->in[0], scratch);
    scratch += rounded(pd_packed_bytes(c));
    const void *x = pd_packed(c->in[1], scratch);
    void *out = scratch += rounded(pd_tensor_bytes(c->in[1]));
    int64_t n = s.N, rows = n ? c->in[1]->numel * 2 / n : 0;
    if (pd_device_here->kernels) fill_pairs_there(s.t, rows, n, x, out);
    else if (s.t == PD_F32) FILL_PAIRS(float) else FILL_PAIRS(double)
    scratch += rounded(2 * pd_tensor_bytes(c->in[1]));
    return pd_gemm_run(&s, a, out, NULL, pd_tensor_data(c->out[0]), scratch);
}

static size_t bmm_scratch(const pd_call *c) {
    pd_gemm s = bmm_shape(c);
    if (pd_dtype_is_complex(s.t)) return complex_scratch(c);
    return packed_bytes(c->in[0]) + packed_bytes(c->in[1]) + (pd_dtype_is_float(s.t) ? pd_gemm_scratch(&s) : 0);
}

static pd_status bmm_kernel(const pd_call *c) {
    if (pd_dtype_is_complex((pd_dtype)c->in[0]->dtype)) return complex_bmm(c);
    pd_gemm s = bmm_shape(c);
    void *scratch = c->scratch;
    matrix a = read_matrix(c->in[0], &scratch), b = read_matrix(c->in[1], &scratch);
    s.a_batch = a.batch, s.a_row = a.row, s.a_col = a.col;
    s.b_batch = b.batch, s.b_row = b.row, s.b_col = b.col;
    if (!pd_dtype_is_float(s.t) && !pd_device_here->kernels) {
        pd_portable_gemm_whole(&s, a.data, b.data, pd_tensor_data(c->out[0]));
        return PD_OK;
    }
    return pd_gemm_run(&s, a.data, b.data, NULL, pd_tensor_data(c->out[0]), scratch);
}

static double bmm_work(const pd_call *c) {
    const pd_tensor *a = c->in[0];
    return gemm_ns((double)a->numel, (double)c->in[1]->size[a->ndim - 1], 1);
}

/* The conjugate transpose of t. */
static pd_tensor *turned(pd_vjp *v, pd_tensor *t) {
    return pd_x_call1(v, PD_OP_transpose, pd_x_conj(v, t), &(pd_dims2_attrs){-2, -1});
}

static void bmm_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[0];
    if (pd_vjp_needs(v, 0)) pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_bmm, g, turned(v, pd_vjp_in(v, 1)), NULL));
    if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, pd_x_call2(v, PD_OP_bmm, turned(v, pd_vjp_in(v, 0)), g, NULL));
}

const pd_op pd_op_bmm = {
    .sig = "bmm(Tensor input, Tensor mat2)",
    .doc = "The matrix product input @ mat2 of [M, K] and [K, N], or of [B, M, K] and [B, K, N].",
    .promote = PD_SAME,
    .cast = PD_CAST_LOW,
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1),
    .flags = PD_FUNC | PD_METHOD | PD_NO_BROADCAST_GRAD,
    .infer = bmm_infer,
    .kernel = bmm_kernel,
    .scratch = bmm_scratch,
    .work = bmm_work,
    .vjp = bmm_vjp,
};

static pd_status wide_infer(pd_call *c) {
    if (c->in[0]->dtype != PD_BF16 && c->in[0]->dtype != PD_F16)
        return pd_fail(PD_E_DTYPE, "%s: the inputs are %s (expected bfloat16 or float16)", c->def->name,
                       pd_dtype_name((pd_dtype)c->in[0]->dtype));
    return infer_as(c, PD_F32);
}

const pd_op pd_op_bmm_wide = {
    .sig = "bmm_wide(Tensor input, Tensor mat2)",
    .doc = "bmm of 16-bit matrices with a float32 result, for gradients of parameters under autocast.",
    .promote = PD_SAME,
    .infer = wide_infer,
    .kernel = bmm_kernel,
    .scratch = bmm_scratch,
    .work = bmm_work,
};

/* ---- matmul ------------------------------------------------------------------------------------------------------ */

/* x as [batch, rows, cols] of the broadcast batch; [new]. */
static pd_status to_batch(pd_tensor *x, const pd_ints *batch, pd_tensor **out) {
    pd_ints full = *batch;
    pd_shape_attrs flat = {.shape = {.n = 3, .v = {1, x->size[x->ndim - 2], x->size[x->ndim - 1]}}};
    pd_tensor *wide;
    for (int i = 0; i < batch->n; i++) flat.shape.v[0] *= batch->v[i];
    full.v[full.n++] = flat.shape.v[1];
    full.v[full.n++] = flat.shape.v[2];
    PD_TRY(pd_call1(PD_OP_expand, x, &full, &wide));
    pd_status status = pd_call1(PD_OP_reshape, wide, &flat, out);
    pd_tensor_release(wide);
    return status;
}

static pd_status matmul_nd(pd_tensor *a, pd_tensor *b, pd_tensor **out) {
    if (a->size[a->ndim - 1] != b->size[b->ndim - 2])
        return pd_fail(PD_E_SHAPE,
                       "matmul: mat1 and mat2 shapes cannot be multiplied: got %s and %s (expected equal inner sizes)",
                       pd_tensor_shape(a), pd_tensor_shape(b));
    if (a->ndim == 2 && b->ndim == 2) return pd_call2(PD_OP_bmm, a, b, NULL, out);
    pd_shape_attrs shape = {.shape = {.n = a->ndim}};
    pd_tensor *fa = NULL, *fb = NULL, *flat = NULL;
    pd_status status;
    if (b->ndim == 2) { /* the batch is rows */
        pd_shape_attrs rows = {
            .shape = {.n = 2, .v = {a->size[a->ndim - 1] ? a->numel / a->size[a->ndim - 1] : 0, a->size[a->ndim - 1]}}};
        if (!a->size[a->ndim - 1]) {
            rows.shape.v[0] = 1;
            for (int i = 0; i < a->ndim - 1; i++) rows.shape.v[0] *= a->size[i];
        }
        memcpy(shape.shape.v, a->size, sizeof(int64_t) * (size_t)a->ndim);
        shape.shape.v[a->ndim - 1] = b->size[1];
        PD_TRY_TO(done, pd_call1(PD_OP_reshape, a, &rows, &fa));
        PD_TRY_TO(done, pd_call2(PD_OP_bmm, fa, b, NULL, &flat));
    } else {
        pd_ints batch = {.n = a->ndim - 2};
        int n = a->ndim - 2;
        memcpy(batch.v, a->size, sizeof(int64_t) * (size_t)n);
        PD_TRY(pd_shape_broadcast("matmul", &n, batch.v, b->ndim - 2, b->size));
        batch.n = n;
        shape.shape = batch;
        shape.shape.v[shape.shape.n++] = a->size[a->ndim - 2];
        shape.shape.v[shape.shape.n++] = b->size[b->ndim - 1];
        PD_TRY_TO(done, to_batch(a, &batch, &fa));
        PD_TRY_TO(done, to_batch(b, &batch, &fb));
        PD_TRY_TO(done, pd_call2(PD_OP_bmm, fa, fb, NULL, &flat));
    }
    PD_TRY_TO(done, pd_call1(PD_OP_reshape, flat, &shape, out));
done:
    pd_tensor_release(fa);
    pd_tensor_release(fb);
    pd_tensor_release(flat);
    return status;
}

static pd_status matmul_compose(pd_call *c) {
    pd_tensor *a = c->in[0], *b = c->in[1], *wide_a = NULL, *wide_b = NULL, *out = NULL;
    int64_t row = 0, col = 1;
    pd_status status;
    if (a->ndim == 0 || b->ndim == 0)
        return pd_fail(PD_E_SHAPE, "matmul: got shapes %s and %s (expected at least 1 dimension in both)",
                       pd_tensor_shape(a), pd_tensor_shape(b));
    if (a->dtype != b->dtype)
        return pd_fail(PD_E_DTYPE, "matmul: mat1 and mat2 must have the same dtype: got %s and %s (expected one dtype)",
                       pd_dtype_name((pd_dtype)a->dtype), pd_dtype_name((pd_dtype)b->dtype));
    if (a->ndim > 1 && b->ndim > 1) return matmul_nd(a, b, &c->out[0]);
    /* A vector is a row on the left, a column on the right, and its dimension goes away again. */
    if (a->ndim == 1) {
        PD_TRY_TO(done, pd_call1(PD_OP_unsqueeze, a, &row, &wide_a));
    } else pd_tensor_retain(wide_a = a);
    if (b->ndim == 1) {
        PD_TRY_TO(done, pd_call1(PD_OP_unsqueeze, b, &col, &wide_b));
    } else pd_tensor_retain(wide_b = b);
    PD_TRY_TO(done, matmul_nd(wide_a, wide_b, &out));
    for (int side = 0; side < 2; side++) {
        if ((side ? a : b)->ndim != 1) continue;
        int64_t dim = side ? out->ndim - (b->ndim == 1 ? 1 : 2) : out->ndim - 1;
        pd_tensor *less;
        PD_TRY_TO(done, pd_call1(PD_OP_squeeze, out, &(pd_ints){1, {dim}}, &less));
        pd_tensor_release(out);
        out = less;
    }
    c->out[0] = out;
    out = NULL;
done:
    pd_tensor_release(wide_a);
    pd_tensor_release(wide_b);
    pd_tensor_release(out);
    return status;
}

const pd_op pd_op_matmul = {
    .sig = "matmul(Tensor input, Tensor other)",
    .doc =
        "The matrix product input @ other of the last two dims; the other dims are broadcast. A 1-d tensor is a row on "
        "the left and a column on the right.",
    .cast = PD_CAST_LOW,
    .flags = PD_FUNC | PD_METHOD,
    .compose = matmul_compose,
};

/* ---- linear: x @ w.T + b ----------------------------------------------------------------------------------------- */

static pd_status linear_infer(pd_call *c) {
    pd_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    int64_t size[PD_MAX_DIMS];
    PD_TRY(pd_check_float(c, 0));
    PD_TRY(pd_check_ndim(c, 1, 2));
    if (x->ndim == 0 || x->size[x->ndim - 1] != w->size[1])
        return pd_fail(PD_E_SHAPE,
                       "linear: mat1 and mat2 shapes cannot be multiplied: input has shape %s, weight %s (expected "
                       "equal last sizes)",
                       pd_tensor_shape(x), pd_tensor_shape(w));
    if (b && (b->ndim != 1 || b->size[0] != w->size[0]))
        return pd_fail(PD_E_SHAPE, "linear: bias has shape %s (expected %s)", pd_tensor_shape(b),
                       pd_shape_text(1, w->size));
    memcpy(size, x->size, sizeof(int64_t) * (size_t)x->ndim);
    size[x->ndim - 1] = w->size[0];
    return pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, size);
}

static int64_t rows_of(const pd_tensor *x) {
    int64_t n = 1;
    for (int d = 0; d < x->ndim - 1; d++) n *= x->size[d];
    return n;
}

/* Whether x can be used as [rows, K] in its own memory, with *stride between rows; else it is packed into scratch. */
static bool row_stride(const pd_tensor *x, int64_t *stride) {
    int64_t k = x->size[x->ndim - 1];
    *stride = k;
    if (x->ndim == 2 && (x->stride[1] == 1 || k <= 1)) {
        *stride = x->stride[0];
        return x->stride[0] >= k || x->size[0] <= 1;
    }
    return pd_tensor_is_contiguous(x);
}

static pd_gemm linear_shape(const pd_call *c) {
    pd_tensor *x = c->in[0], *w = c->in[1];
    pd_gemm s = {.t = (pd_dtype)x->dtype, .batch = 1, .M = rows_of(x), .N = w->size[0], .K = w->size[1], .a_col = 1};
    row_stride(x, &s.a_row);
    s.b_row = 1, s.b_col = s.K; /* B is w transposed */
    if (fits(w)) read_strides(w, &s.b_col, &s.b_row);
    s.c_row = s.N;
    return s;
}

static size_t linear_scratch(const pd_call *c) {
    pd_gemm s = linear_shape(c);
    int64_t stride;
    size_t bytes = row_stride(c->in[0], &stride) ? 0 : (pd_tensor_bytes(c->in[0]) + 63) & ~(size_t)63;
    return bytes + packed_bytes(c->in[1]) +
           (c->in[2] && c->in[2]->stride[0] != 1 ? (pd_tensor_bytes(c->in[2]) + 63) & ~(size_t)63 : 0) +
           pd_gemm_scratch(&s);
}

static const void *pack(pd_tensor *t, void **scratch) {
    const void *at = *scratch;
    pd_block_pack(t, 0, *scratch);
    *scratch = (char *)*scratch + ((pd_tensor_bytes(t) + 63) & ~(size_t)63);
    return at;
}

static pd_status linear_kernel(const pd_call *c) {
    pd_tensor *x = c->in[0], *b = c->in[2];
    pd_gemm s = linear_shape(c);
    void *scratch = c->scratch;
    int64_t stride;
    const void *a = row_stride(x, &stride) ? pd_tensor_data(x) : pack(x, &scratch);
    matrix w = read_matrix(c->in[1], &scratch);
    const void *bias = !b ? NULL : b->stride[0] == 1 || b->size[0] <= 1 ? pd_tensor_data(b) : pack(b, &scratch);
    s.b_row = w.col;
    s.b_col = w.row;
    return pd_gemm_run(&s, a, w.data, bias, pd_tensor_data(c->out[0]), scratch);
}

static double linear_work(const pd_call *c) {
    return gemm_ns((double)c->in[0]->numel, (double)c->in[1]->size[0], 1);
}

/* a @ b, matrices, as the gradient of input i: of autocast's in float32 at once. */
static pd_tensor *grad_product(pd_vjp *v, int i, pd_tensor *a, pd_tensor *b, pd_tensor *destination) {
    pd_tensor *in[2] = {a, b};
    if (!a || !b) return NULL;
    bool wide = a->dtype == PD_BF16 && pd_vjp_may_widen(v, i);
    return pd_x_to(v, wide ? PD_OP_bmm_wide : PD_OP_bmm, NULL, 2, in, destination);
}

/* The gradients of weight and bias by one product, if a GPU's library can sum g's columns on its way, which saves
   reading g once more. Not if the weight's gradient has a destination, which only a plain product writes to. */
static bool grads_at_once(pd_vjp *v, pd_tensor *g, pd_tensor *x) {
    bool wide = g && g->dtype == PD_BF16 && pd_vjp_may_widen(v, 1), done = false;
    if (v->status || !x || !pd_device_here->kernels || (g->dtype == PD_BF16 && pd_vjp_may_widen(v, 2)) != wide)
        return false;
    if (pd_vjp_destination(v, 1)) return false;
    pd_gemm s = {.t = (pd_dtype)g->dtype, .batch = 1, .M = g->size[1], .N = x->size[1], .K = g->size[0],
                 .a_row = g->stride[1], .a_col = g->stride[0], .b_row = x->stride[0], .b_col = x->stride[1],
                 .c_row = x->size[1], .wide = wide};
    if (!pd_gemm_makes_sums(&s)) return false;
    int64_t bytes = (int64_t)pd_gemm_scratch(&s);
    pd_tensor *gw = pd_x_new(v, pd_gemm_result(&s), 2, (int64_t[]){s.M, s.N}), *scratch = pd_x_new(v, PD_U8, 1, &bytes),
              *gb = pd_x_new(v, pd_gemm_result(&s), 1, &s.M);
    if (v->status) return false;
    v->status = pd_gemm_with_sums(&s, pd_tensor_data(g), pd_tensor_data(x), pd_tensor_data(gb), pd_tensor_data(gw),
                                  pd_tensor_data(scratch), &done);
    if (!done || v->status) return false;
    pd_vjp_set(v, 1, gw);
    pd_vjp_set(v, 2, gb);
    return true;
}

/* The sums of g's columns: on a GPU autocast's in float32 at once, as the product of the weight's gradient. */
static pd_tensor *sum_of_columns(pd_vjp *v, pd_tensor *g) {
    const pd_reduce_attrs over = {.dim = {.n = 1, .v = {0}}, .dtype = PD_NO_DTYPE};
    const bool wide = g && g->dtype == PD_BF16 && pd_vjp_may_widen(v, 2) && pd_device_here->kernels;
    if (v->status || !wide || !pd_tensor_is_contiguous(g)) return pd_x_call1(v, PD_OP_sum, g, &over);
    pd_tensor *gb = pd_x_new(v, PD_F32, 1, &g->size[1]);
    const pd_block b = {1, g->size[0], g->size[1]};
    if (gb) pd_here()->fold(PD_FOLD_SUM, PD_BF16, PD_F32, &b, pd_tensor_data(g), pd_tensor_data(gb));
    return gb;
}

static void linear_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[0], *w = pd_vjp_in(v, 1), *x = pd_vjp_in(v, 0);
    pd_tensor *sums = v->create_graph ? NULL : pd_beside_sums(g); /* by the kernel that made g */
    const pd_edge *ex = &v->node->edges[0];
    if (v->status) return;
    pd_shape_attrs rows = {.shape = {.n = 2, .v = {1, w->size[0]}}}, whole = {.shape = {.n = ex->ndim}};
    memcpy(whole.shape.v, ex->size, sizeof(int64_t) * (size_t)ex->ndim);
    for (int d = 0; d < ex->ndim - 1; d++) rows.shape.v[0] *= ex->size[d];
    pd_tensor *g2 = g->ndim == 2 ? g : pd_x_call1(v, PD_OP_reshape, g, &rows);
    rows.shape.v[1] = w->size[1];
    if (pd_vjp_needs(v, 0)) {
        pd_tensor *gx = grad_product(v, 0, g2, w, NULL);
        pd_vjp_set(v, 0, ex->ndim == 2 ? gx : pd_x_call1(v, PD_OP_reshape, gx, &whole));
    }
    if (pd_vjp_needs(v, 1)) {
        pd_tensor *x2 = x->ndim == 2 ? x : pd_x_call1(v, PD_OP_reshape, x, &rows);
        if (!v->create_graph && pd_vjp_needs(v, 2) && !sums && grads_at_once(v, g2, x2)) return;
        pd_tensor *gt = turned(v, g2);
        pd_vjp_set(v, 1, grad_product(v, 1, gt, x2, pd_vjp_destination(v, 1)));
    }
    if (pd_vjp_needs(v, 2)) pd_vjp_set(v, 2, sums ? sums : sum_of_columns(v, g2));
}

const pd_op pd_op_linear = {
    .sig = "linear(Tensor input, Tensor weight, Tensor? bias=None)",
    .doc = "input @ weight.T + bias, with input [..., K], weight [N, K], bias [N] and result [..., N].",
    .promote = PD_SAME,
    .cast = PD_CAST_LOW,
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1),
    .flags = PD_NN | PD_NO_BROADCAST_GRAD,
    .infer = linear_infer,
    .kernel = linear_kernel,
    .scratch = linear_scratch,
    .work = linear_work,
    .bias = 1 + 2,
    .vjp = linear_vjp,
};
