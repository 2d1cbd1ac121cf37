#if defined(PD_HAVE_ONEDNN) && PD_HAVE_ONEDNN
/* float with AVX-512: if A's rows have unit stride and K is not long, C's bits do not depend on how its rows are cut
   (measured: 198 products, whole and in 2, 3, 4, 7, 8, 16 pieces; with AVX2 90 of them differ). So each thread gets the
   same rows as in the elementwise ops and in attention before and after, and finds in its own cache what it wrote (a
   step of gpt-nano on two threads takes 2% less than with the library's own cut). With few rows for a thread, or
   several matrices, there is one primitive on all threads.

   bf16, f16: the same, if K is short.

   Otherwise the library divides K among threads, which changes the order of sums (bf16: 28 of 339 shapes differed, all
   with K of 768 or more), or sums in an order that depends on the rows. Then C is cut along its longer side into pieces
   that depend on the shape alone, with a single-thread primitive for each, so that each piece copies only the smaller
   operand. If C is small and K long, K is cut, too; the products of the pieces are made in float and added as a tree
   (for float the portable product does that). A piece of columns is written to scratch and then copied to C where the
   library is slow with distant rows of C: for bf16 (2048 x 1152 x 384 in two: 4.7 ms, whole 2.4), and for float with B
   turned (256 x 384 x 3072: 94 GFLOP/s against 108). */
#include <string.h>

#include "base/mem.h"
#include "base/threads.h"
#include "kernels/onednn/lib.h"
#include "kernels/onednn/onednn.h"

enum { A_, B_, BIAS, C_ };

#define SHORT_K 768      /* for shorter K one primitive is enough */
#define THIN_K \
    128 /* below it the library leaves AMX aside for more than THIN_N columns (128 x 784 x 64: 116 us, in four 50) */
#define THIN_N 256
#define PACKED_M 1024    /* from so many rows on B is packed first: 2048 x 1536 x 384 takes 1.9 ms against 2.4 */
#define PACKED_K 256
#define PIECES 16        /* of C, at most */
#define SIDE \
    512 /* of a piece, so that copies of the other operand are a small part; half of it, or less, to have two */
#define PIECE_FLOPS 16e6 /* for a piece of a batch: 15 us with AMX */
#define CHUNK 2048       /* the least number of elements of K in a piece */
#define CHUNKS_MAX 16
#define SIDE_F32 128     /* of a piece of float, at least */
#define ROWS_F32 64      /* of a thread, at least */
#define SMALL_F32 64     /* for a shorter side of C the portable product is used, which cuts K */

/* Below these limits the portable product is as fast (f32 256 x 256 x 256 on one thread: 158 us against 143). Products
   that would be cut have a higher limit: the portable one does without the 3 MiB of code that the library would
   generate (128 x 256 x 784: 462 us and 463). */
#define FLOPS_F32 20e6
#define FLOPS_F32_CUT 64e6
#define FLOPS_BF16 100e3

typedef struct grid {
    int64_t b, m, n, k, tb, tm, tn, tk, tasks;
    int threads;
} grid; /* sizes of a piece, numbers of pieces, threads of a piece */

/* Strides are those of the whole product; M, N, K, batch are those of the piece. */
typedef struct matmul { pd_gemm c; bool bias, partial; } matmul;

static int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Whether one primitive would make sums in an order that depends on the number of threads. */
static bool divides(const pd_gemm *c) {
    if (c->t == PD_F32) return !pd_dnn_has_avx512() || c->a_col != 1 || c->K >= 4 * (c->M > c->N ? c->M : c->N);
    return c->batch > 1 || c->K >= SHORT_K || (c->K < THIN_K && c->N > THIN_N);
}

/* Whether a piece of columns is written to scratch. */
static bool stands_apart(const pd_gemm *c) { return c->t != PD_F32 || c->b_col != 1; }

/* 2, 4, 8 or 16 pieces of `least` or more, which are even loads for as many threads. */
static int64_t even_pieces(int64_t n, int64_t least) {
    int64_t count = 2;
    while (count < PIECES && n >= 2 * count * least) count *= 2;
    return count;
}

static grid grid_of(const pd_gemm *c) {
    double flops = 2.0 * (double)c->batch * (double)c->M * (double)c->N * (double)c->K;
    grid g = {
        .b = c->batch, .m = c->M, .n = c->N, .k = c->K, .tb = 1, .tm = 1, .tn = 1, .tk = 1, .threads = 1, .tasks = 1};
    if (!divides(c)) {
        int threads = pd_threads_get();
        if (c->t == PD_F32 && c->batch == 1 && c->M >= (int64_t)threads * ROWS_F32) g.tm = threads;
        else {
            g.threads = threads;
            return g;
        }
    } else if (c->t == PD_F32) {
        *(c->M >= c->N || (c->beta && stands_apart(c)) ? &g.tm : &g.tn) =
            even_pieces(c->M > c->N ? c->M : c->N, SIDE_F32);
    } else if (c->batch > 1) {
        g.tb = c->batch < 32 ? c->batch : 32;
        if (g.tb > flops / PIECE_FLOPS) g.tb = flops / PIECE_FLOPS < 1 ? 1 : (int64_t)(flops / PIECE_FLOPS);
    } else if (c->K < THIN_K) {
        g.tn = c->beta ? 1 : pieces(c->N, THIN_N);
    } else if (c->K >= 2 * CHUNK && c->M * c->N < 2 * SIDE * SIDE) {
        g.tk = c->K / CHUNK < CHUNKS_MAX ? c->K / CHUNK : CHUNKS_MAX;
    } else {
        int64_t side = c->M > c->N ? c->M : c->N;
        *(c->M >= c->N || c->beta ? &g.tm : &g.tn) = side >= SIDE / 4 ? even_pieces(side, SIDE / 2) : 1;
    }
    g.b = pieces(c->batch, g.tb), g.tb = pieces(c->batch, g.b);
    g.m = (pieces(c->M, g.tm) + 15) / 16 * 16, g.tm = pieces(c->M, g.m);
    g.n = (pieces(c->N, g.tn) + 15) / 16 * 16, g.tn = pieces(c->N, g.n);
    g.k = (pieces(c->K, g.tk) + 63) / 64 * 64, g.tk = pieces(c->K, g.k);
    g.tasks = g.tb * g.tm * g.tn * g.tk;
    return g;
}

/* Describes a matrix, or a batch of them, of rows x cols. The stride of a dimension of size 1 is replaced by a regular
   one. */
static dnnl_status_t describe(dnnl_data_type_t t, int64_t batch, int64_t rows, int64_t cols, int64_t b, int64_t r,
                              int64_t c, dnnl_memory_desc_t *md) {
    if (rows == 1) r = c == 1 ? cols : 1;
    if (cols == 1) c = r == 1 ? rows : 1;
    if (batch > 1 && b == 0) batch = 1;
    if (batch == 1) b = rows * (r > cols ? r : cols);
    dnnl_dims_t dims3 = {batch, rows, cols}, strides3 = {b, r, c};
    return pd_dnn.memory_desc_create_with_strides(md, 3, dims3, t, strides3);
}

static dnnl_status_t build(const void *what, int threads, pd_dnn_plan *p) {
    const matmul *m = what;
    const pd_gemm *c = &m->c;
    dnnl_status_t status = dnnl_success;
    dnnl_memory_desc_t a = NULL, b = NULL, d = NULL, bias = NULL, any = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_data_type_t t = pd_dnn_type(c->t);
    (void)threads;
    PD_DNN_DO(describe(t, c->batch, c->M, c->K, c->a_batch, c->a_row, c->a_col, &a));
    PD_DNN_DO(describe(t, c->batch, c->K, c->N, c->b_batch, c->b_row, c->b_col, &b));
    PD_DNN_DO(describe(m->partial ? dnnl_f32 : pd_dnn_type(pd_gemm_result(c)), c->batch, c->M, c->N, c->c_batch,
                       c->c_row, 1, &d));
    if (m->bias) PD_DNN_DO(describe(t, 1, 1, c->N, c->N, c->N, 1, &bias));
    PD_DNN_DO(pd_dnn_attr(&attr, c->beta != 0, c->relu));
    if (c->t != PD_F32 && c->batch == 1 && c->K < SHORT_K && c->K >= PACKED_K && c->M >= PACKED_M)
        PD_DNN_DO(pd_dnn.memory_desc_create_with_tag(&any, 3, (dnnl_dims_t){1, c->K, c->N}, t, dnnl_format_tag_any));
    PD_DNN_DO(pd_dnn.matmul_primitive_desc_create(&pd, pd_dnn_engine, a, any ? any : b, bias, d, attr));
    const_dnnl_memory_desc_t packed = pd_dnn.primitive_desc_query_md(pd, dnnl_query_exec_arg_md, DNNL_ARG_WEIGHTS);
    int where = pd_dnn.memory_desc_equal(b, packed) ? B_ : PD_DNN_USER;
    if (where != B_) {
        p->temp[where] = pd_dnn.memory_desc_get_size(packed);
        PD_DNN_DO(pd_dnn_add_reorder(p, b, B_, packed, where));
    }
    dnnl_primitive_desc_t main = pd;
    pd = NULL;
    PD_DNN_DO(pd_dnn_add(p, main, m->bias ? 4 : 3, (int[]){DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
                         (int[]){A_, where, C_, BIAS}));
done:
    if (pd) pd_dnn.primitive_desc_destroy(pd);
    if (any) pd_dnn.memory_desc_destroy(any);
    if (a) pd_dnn.memory_desc_destroy(a);
    if (b) pd_dnn.memory_desc_destroy(b);
    if (d) pd_dnn.memory_desc_destroy(d);
    if (bias) pd_dnn.memory_desc_destroy(bias);
    if (attr) pd_dnn.primitive_attr_destroy(attr);
    return status;
}

/* The plan of a piece of these sizes. */
static pd_dnn_plan *plan_of(const pd_gemm *c, const grid *g, bool bias, int64_t b, int64_t m, int64_t n, int64_t k) {
    matmul w = {.c = *c, .bias = bias && g->tk == 1, .partial = g->tk > 1};
    w.c.batch = b, w.c.M = m, w.c.N = n, w.c.K = k;
    if (w.partial) w.c.relu = false, w.c.beta = 0;
    if (w.partial || (g->tn > 1 && stands_apart(c))) w.c.c_row = w.partial ? c->N : n;
    const pd_gemm *d = &w.c;
    pd_dnn_key key = {{1,        g->threads, d->t,       w.bias,     d->relu,   d->beta,  b,
                       m,        n,          k,          d->a_batch, d->a_row,  d->a_col, d->b_batch,
                       d->b_row, d->b_col,   d->c_batch, d->c_row,   w.partial, d->wide}};
    return pd_dnn_plan_get(&key, build, &w, g->threads);
}

/* Whether pieces of all sizes can be done. *scratch: as much as any of them needs. */
static bool look(const pd_gemm *c, const grid *g, bool bias, size_t *scratch) {
    for (int rest = 0; rest < 16; rest++) {
        bool rb = rest & 1, rm = rest & 2, rn = rest & 4, rk = rest & 8;
        int64_t b = rb ? c->batch % g->b : g->b, m = rm ? c->M % g->m : c->M < g->m ? c->M : g->m;
        int64_t n = rn ? c->N % g->n : c->N < g->n ? c->N : g->n, k = rk ? c->K % g->k : c->K < g->k ? c->K : g->k;
        if ((rb && !b) || (rm && (!m || c->M < g->m)) || (rn && (!n || c->N < g->n)) || (rk && (!k || c->K < g->k)))
            continue;
        pd_dnn_plan *p = plan_of(c, g, bias, b, m, n, k);
        bool can = p && p->nsteps > 0;
        if (can && p->scratch > *scratch) *scratch = p->scratch;
        pd_dnn_plan_release(p);
        if (!can) return false;
    }
    return true;
}

static bool takes(const pd_gemm *c, bool bias) {
    if (c->t == PD_F64 || c->batch <= 0 || c->M <= 1 || c->N <= 1 || c->K <= 0) return false;
    double flops = 2.0 * (double)c->M * (double)c->N * (double)c->K;
    const bool cut = c->t == PD_F32 && divides(c);
    if (c->t == PD_BF16 ? flops * (double)c->batch < FLOPS_BF16 : flops < (cut ? FLOPS_F32_CUT : FLOPS_F32))
        return false;
    if (cut && (c->batch > 1 || c->M < SMALL_F32 || c->N < SMALL_F32)) return false;
    if (!pd_dnn_serves(c->t)) return false;
    grid g = grid_of(c);
    size_t scratch = 0;
    return look(c, &g, bias, &scratch);
}

static size_t up(size_t n) { return (n + 63) & ~(size_t)63; }
static int64_t slots_of(const grid *g) {
    int64_t threads = pd_threads_get();
    return threads < g->tasks ? threads : g->tasks;
}

/* Bytes of a piece of columns that is written to scratch. */
static size_t piece_bytes(const pd_gemm *c, const grid *g) {
    bool apart = g->tn > 1 && g->tk == 1 && stands_apart(c);
    return apart ? up((size_t)(g->m * g->n) * pd_dtype_size(pd_gemm_result(c))) : 0;
}

/* [slots of the primitives' scratch and of a piece of columns | partial products, where K is cut] */
static size_t scratch_of(const pd_gemm *c) {
    grid g = grid_of(c);
    size_t one = 0;
    look(c, &g, false, &one);
    look(c, &g, true, &one);
    return (size_t)slots_of(&g) * (up(one) + piece_bytes(c, &g)) +
           (g.tk > 1 ? (size_t)g.tk * up((size_t)(c->M * c->N * 4)) : 0);
}

typedef struct job {
    const pd_gemm *c;
    grid g;
    const char *A, *B, *bias;
    char *C, *scratch, *partial;
    size_t one, piece; /* bytes of a slot's parts */
    int64_t per_slot;
    int failed; /* the first failure is kept, for the calling thread */
    pd_error error;
} job;

static void run_tasks(void *ctx, int64_t begin, int64_t end) {
    job *j = ctx;
    const pd_gemm *c = j->c;
    const grid *g = &j->g;
    int64_t size = (int64_t)pd_dtype_size(c->t), result = (int64_t)pd_dtype_size(pd_gemm_result(c));
    char *scratch = j->scratch + (size_t)(begin / j->per_slot) * (j->one + j->piece),
         *piece = j->piece ? scratch + j->one : NULL;
    for (int64_t t = begin; t < end; t++) {
        int64_t k0 = t % g->tk * g->k, n0 = t / g->tk % g->tn * g->n, m0 = t / g->tk / g->tn % g->tm * g->m,
                b0 = t / g->tk / g->tn / g->tm * g->b;
        int64_t k = c->K - k0 < g->k ? c->K - k0 : g->k, n = c->N - n0 < g->n ? c->N - n0 : g->n;
        int64_t m = c->M - m0 < g->m ? c->M - m0 : g->m, b = c->batch - b0 < g->b ? c->batch - b0 : g->b;
        char *to = j->C + (b0 * c->c_batch + m0 * c->c_row + n0) * result;
        if (g->tk > 1) to = j->partial + (size_t)(t % g->tk) * up((size_t)(c->M * c->N * 4)) + (m0 * c->N + n0) * 4;
        void *user[PD_DNN_USER] = {(char *)(uintptr_t)j->A + (b0 * c->a_batch + m0 * c->a_row + k0 * c->a_col) * size,
                                   (char *)(uintptr_t)j->B + (b0 * c->b_batch + n0 * c->b_col + k0 * c->b_row) * size,
                                   j->bias ? (char *)(uintptr_t)j->bias + n0 * size : NULL, piece ? piece : to};
        pd_dnn_plan *p = plan_of(c, g, j->bias != NULL, b, m, n, k);
        pd_status status = !p          ? PD_E_MEMORY
                           : p->nsteps ? pd_dnn_plan_run(p, user, scratch, g->threads)
                                       : pd_fail(PD_E_RUNTIME, "oneDNN: it does not support this matmul");
        pd_dnn_plan_release(p);
        for (int64_t i = 0; piece && i < m; i++)
            memcpy(to + i * c->c_row * result, piece + i * n * result, (size_t)(n * result));
        if (status != PD_OK && !__atomic_exchange_n(&j->failed, 1, __ATOMIC_RELAXED)) pd_error_save(&j->error);
    }
}

static float get(pd_dtype t, const char *p, int64_t i) {
    return t == PD_F32    ? ((const float *)(const void *)p)[i]
           : t == PD_BF16 ? pd_bf16_to_f32(((const pd_bf16 *)(const void *)p)[i])
                          : pd_f16_to_f32(((const pd_f16 *)(const void *)p)[i]);
}

static void join_rows(void *ctx, int64_t begin, int64_t end) {
    const job *j = ctx;
    const pd_gemm *c = j->c;
    size_t stride = up((size_t)(c->M * c->N * 4));
    for (int64_t i = begin; i < end; i++) {
        for (int64_t step = 1; step < j->g.tk; step *= 2)
            for (int64_t p = 0; p + step < j->g.tk; p += 2 * step) {
                float *to = (float *)(void *)(j->partial + (size_t)p * stride) + i * c->N;
                const float *from = (const float *)(const void *)((const char *)to + (size_t)step * stride);
                for (int64_t n = 0; n < c->N; n++) to[n] += from[n];
            }
        const float *sum = (const float *)(const void *)j->partial + i * c->N;
        pd_dtype t = pd_gemm_result(c);
        char *to = j->C + i * c->c_row * (int64_t)pd_dtype_size(t);
        for (int64_t n = 0; n < c->N; n++) {
            float v = sum[n];
            if (c->beta) v += get(t, to, n);
            if (j->bias) v += get(c->t, j->bias, n);
            if (c->relu) v = v <= 0.0f ? 0.0f : v;
            if (t == PD_F32) ((float *)(void *)to)[n] = v;
            else if (t == PD_BF16) ((pd_bf16 *)(void *)to)[n] = pd_f32_to_bf16(v);
            else ((pd_f16 *)(void *)to)[n] = pd_f32_to_f16(v);
        }
    }
}

static pd_status run(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch) {
    job j = {.c = c, .g = grid_of(c), .A = A, .B = B, .bias = bias, .C = C, .scratch = scratch};
    look(c, &j.g, false, &j.one); /* the same as when scratch was computed */
    look(c, &j.g, true, &j.one);
    j.one = up(j.one), j.piece = piece_bytes(c, &j.g);
    int64_t slots = slots_of(&j.g);
    j.per_slot = (j.g.tasks + slots - 1) / slots;
    j.partial = j.scratch + (size_t)slots * (j.one + j.piece);
    pd_parallel(j.g.tasks, j.per_slot, run_tasks, &j);
    if (j.failed) return pd_error_restore(&j.error);
    if (j.g.tk > 1) pd_parallel(c->M, 1 + PD_GRAIN / (c->N * j.g.tk), join_rows, &j);
    return PD_OK;
}

const pd_gemm_backend pd_onednn_gemm = {.name = "oneDNN", .takes = takes, .scratch = scratch_of, .run = run};
#endif
