/* Products on a GPU by cuBLASLt, as a backend (backend.h). What it does not take, our own tiles (csrc/cuda/gemm.cu)
   compute.

   What is known of a shape is kept: descriptors, and the algorithms that the library proposes. The first of these is
   used, which is the same in every run and on every rank. With pd_gpu.matmul_tune algorithms are timed, and the fastest
   one is used from a shape's third use on. If the library refuses to run an algorithm, the next one is used. */
#include <pthread.h>

#include "base/flags.h"
#include "base/log.h"
#include "device/cuda.h"
#include "device/gpu_timer.h"
#include "device/nvidia.h"
#include "device/plans.h"
#include "kernels/backend.h"
#include "kernels/cublaslt/lt.h"

#define WORKSPACE ((size_t)32 << 20) /* what the library wants on Hopper */
enum {
    CANDIDATES = 8,
    RUNS = 3, /* of each, timed */
    PLANS = 4096,
    ROUNDS = 3 /* that all algorithms may refuse a shape, before the library is no longer asked for it */
};

/* ---- the library ------------------------------------------------------------------------------------------------- */

static struct {
#define MEMBER(name, arguments) int (*name) arguments;
    LT_FUNCTIONS(MEMBER)
#undef MEMBER
    size_t (*GetVersion)(void);
} lt;
/* Guards handles and plans, which are used by one call at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const pd_dl_symbol symbols[] = {
#define SYMBOL(name, arguments) {"cublasLt" #name, (void **)&lt.name},
    LT_FUNCTIONS(SYMBOL)
#undef SYMBOL
    {"cublasLtGetVersion", (void **)&lt.GetVersion},
    {NULL, NULL}};
static pd_nvidia_server server = {
    .library = {"cuBLASLt", "libcublasLt.so.13", "cu13/lib", "nvidia-cublas"},
    .major = 13,
    .instead = "pydist's own kernels",
    .symbols = symbols,
    .create = &lt.Create,
    .get_version = &lt.GetVersion,
};

const char *pd_cublaslt_version(const char **reason) {
    return pd_nvidia_version(&server, pd_flags_get()->CUBLASLT, reason);
}

/* ---- how a product is told to it --------------------------------------------------------------------------------- */

/* Our matrices by rows are the library's by columns, transposed: C^T [N, M] = B^T A^T. Its first matrix is our B. */
typedef struct side {
    int64_t turned, inner, outer, ld; /* turned: the sum runs along contiguous columns */
} side;

/* Describes [R, C] with these strides; false: no column-major matrix has them. */
static bool side_of(int64_t R, int64_t C, int64_t row, int64_t col, side *s) {
    if (col == 1 && (row >= C || R <= 1)) *s = (side){0, C, R, row > C ? row : C};
    else if (row == 1 && (col >= R || C <= 1)) *s = (side){1, R, C, col > R ? col : R};
    else return false;
    return true;
}

typedef struct problem {
    const pd_gemm *c;
    side a, b; /* the library's two sides: our B and our A */
    const void *A, *B, *bias; /* bias: or the memory for the sums of A's rows */
    void *C;
    bool tf32, sums;
} problem;

/* Log2 of the pointer's alignment, at most that of 16 bytes. */
static int64_t alignment(const void *p) {
    uintptr_t bits = (uintptr_t)p | 16;
    return __builtin_ctzll(bits);
}

typedef struct plan {
    pd_plan kept;
    void *desc, *a, *b, *c; /* desc: NULL until made, and if the library cannot do it */
    lt_algo algos[CANDIDATES];
    int count, at; /* algos[at] is used */
    int refusals;  /* rounds in which the library refused all of them */
    bool timed;
} plan;

static void drop(pd_plan *kept) {
    plan *q = (plan *)kept;
    if (q->desc) lt.MatmulDescDestroy(q->desc);
    if (q->a) lt.MatrixLayoutDestroy(q->a);
    if (q->b) lt.MatrixLayoutDestroy(q->b);
    if (q->c) lt.MatrixLayoutDestroy(q->c);
    q->desc = q->a = q->b = q->c = NULL;
}

/* The plan of a product; NULL: no memory. */
static plan *plan_of(const problem *p, int device) {
    static pd_plans plans = {.most = PLANS, .drop = drop};
    const pd_gemm *c = p->c;
    const int64_t key[PD_PLAN_KEY] = {
        device,       (int64_t)c->t,     c->wide,    c->beta,     p->tf32,         (p->bias != NULL) + p->sums,
        c->batch,     c->M,              c->N,       c->K,        p->a.turned,     p->a.ld,
        c->b_batch,   p->b.turned,       p->b.ld,    c->a_batch,  c->c_row,        c->c_batch,
        alignment(p->A), alignment(p->B), alignment(p->C), alignment(p->bias)};
    return (plan *)pd_plan_of(&plans, key, sizeof(plan));
}

static int type_of(pd_dtype t) {
    return t == PD_F64 ? LT_R_64F : t == PD_F16 ? LT_R_16F : t == PD_BF16 ? LT_R_16BF : LT_R_32F;
}

static int layout(void **out, pd_dtype t, int64_t inner, int64_t outer, int64_t ld, const pd_gemm *c, int64_t stride) {
    int status = lt.MatrixLayoutCreate(out, type_of(t), (uint64_t)inner, (uint64_t)outer, ld);
    int32_t count = (int32_t)c->batch;
    if (!status && count > 1) {
        status = lt.MatrixLayoutSetAttribute(*out, LT_LAYOUT_BATCH_COUNT, &count, sizeof count);
        if (!status) status = lt.MatrixLayoutSetAttribute(*out, LT_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
    }
    return status;
}

static int describe(const problem *p, plan *q) {
    const pd_gemm *c = p->c;
    int compute = c->t == PD_F64 ? LT_COMPUTE_64F : p->tf32 ? LT_COMPUTE_32F_FAST_TF32 : LT_COMPUTE_32F;
    int32_t ops[2] = {p->a.turned ? LT_OP_T : LT_OP_N, p->b.turned ? LT_OP_T : LT_OP_N};
    uint32_t epilogue = p->sums ? LT_EPILOGUE_BGRADB : p->bias ? LT_EPILOGUE_BIAS : LT_EPILOGUE_DEFAULT;
    int status = lt.MatmulDescCreate(&q->desc, compute, c->t == PD_F64 ? LT_R_64F : LT_R_32F);
    if (!status) status = lt.MatmulDescSetAttribute(q->desc, LT_DESC_TRANSA, &ops[0], sizeof *ops);
    if (!status) status = lt.MatmulDescSetAttribute(q->desc, LT_DESC_TRANSB, &ops[1], sizeof *ops);
    if (!status) status = lt.MatmulDescSetAttribute(q->desc, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    /* Set before the heuristics run, which look at its alignment. */
    if (!status && p->bias) status = lt.MatmulDescSetAttribute(q->desc, LT_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
    if (!status) status = layout(&q->a, c->t, p->a.inner, p->a.outer, p->a.ld, c, c->b_batch);
    if (!status) status = layout(&q->b, c->t, p->b.inner, p->b.outer, p->b.ld, c, c->a_batch);
    if (!status)
        status = layout(&q->c, pd_gemm_result(c), c->N, c->M, c->c_row > c->N ? c->c_row : c->N, c, c->c_batch);
    return status;
}

static int propose(void *handle, const problem *p, plan *q, lt_heuristic *out, int *found) {
    void *preference = NULL;
    uint64_t most = WORKSPACE;
    uint32_t reductions = LT_REDUCTION_COMPUTE_TYPE; /* partial sums of 16-bit products stay in float */
    const void *pointers[] = {p->B, p->A, p->C, p->C};
    *found = 0;
    int status = lt.MatmulPreferenceCreate(&preference);
    if (!status) status = lt.MatmulPreferenceSetAttribute(preference, LT_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    if (!status && pd_dtype_size(pd_gemm_result(p->c)) == 2)
        status =
            lt.MatmulPreferenceSetAttribute(preference, LT_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    for (int i = 0; i < 4 && !status; i++) {
        uint32_t bytes = UINT32_C(1) << alignment(pointers[i]);
        status = lt.MatmulPreferenceSetAttribute(preference, LT_PREF_MIN_ALIGNMENT_A_BYTES + i, &bytes, sizeof bytes);
    }
    if (!status)
        status = lt.MatmulAlgoGetHeuristic(handle, q->desc, q->a, q->b, q->c, q->c, preference, CANDIDATES, out, found);
    if (preference) lt.MatmulPreferenceDestroy(preference);
    return status;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static int run(void *handle, const problem *p, const plan *q, const lt_algo *algo, void *scratch, void *stream) {
    const struct { float f[2]; double d[2]; } scale = {{1, (float)p->c->beta}, {1, (double)p->c->beta}};
    const void *alpha = p->c->t == PD_F64 ? (const void *)&scale.d[0] : &scale.f[0];
    const void *beta = p->c->t == PD_F64 ? (const void *)&scale.d[1] : &scale.f[1];
    return lt.Matmul(handle, q->desc, alpha, p->B, q->a, p->A, q->b, beta, p->C, q->c, p->C, q->c, algo, scratch,
                     WORKSPACE, stream);
}

/* Milliseconds that an algorithm takes; negative: the library refuses it. */
static float time_of(void *handle, const problem *p, const plan *q, const lt_algo *algo, void *scratch,
                     const pd_gpu_timer *timer) {
    bool failed = run(handle, p, q, algo, scratch, timer->stream) || !pd_gpu_timer_begin(timer);
    for (int i = 0; i < RUNS && !failed; i++) failed = run(handle, p, q, algo, scratch, timer->stream) != 0;
    return failed ? -1 : pd_gpu_timer_end(timer);
}

/* Puts the algorithms that the library proposes into the plan; none if it cannot do the product. */
static void make(void *handle, const problem *p, plan *q) {
    lt_heuristic from[CANDIDATES];
    int found = 0;
    q->count = q->at = 0;
    if (!describe(p, q) && !propose(handle, p, q, from, &found))
        for (int i = 0; i < found; i++)
            if (!from[i].status) q->algos[q->count++] = from[i].algo;
    if (!q->count) {
        drop(&q->kept);
        q->refusals = ROUNDS;
    }
}

/* Moves the fastest algorithm to the front of the plan and returns its milliseconds; negative: none can be timed. */
static float sort_by_time(void *handle, const problem *p, plan *q, void *scratch, const pd_gpu_timer *timer) {
    float best = -1;
    for (int i = q->at; i < q->count; i++) {
        float ms = time_of(handle, p, q, &q->algos[i], scratch, timer);
        if (ms < 0 || (best >= 0 && ms >= best)) continue;
        best = ms;
        lt_algo faster = q->algos[i];
        q->algos[i] = q->algos[q->at];
        q->algos[q->at] = faster;
    }
    return best;
}

/* Milliseconds of summing A's rows by our own kernel, which the sums that a product makes in passing save. */
static float time_of_sums(const problem *p, const pd_gpu_timer *timer) {
    const pd_gemm *c = p->c;
    const pd_block b = {.outer = 1, .n = c->K, .inner = c->M};
    if (!pd_gpu_timer_begin(timer)) return -1;
    for (int i = 0; i < RUNS; i++)
        pd_here()->fold(PD_FOLD_SUM, c->t, pd_gemm_result(c), &b, p->A, (void *)(uintptr_t)p->bias);
    return pd_gpu_timer_end(timer);
}

/* Whether the product and then the sums are faster than q, which makes both at once in so many milliseconds. */
static bool sums_are_slower(void *handle, const problem *p, float ms, void *scratch, const pd_gpu_timer *timer) {
    problem product = *p;
    product.bias = NULL;
    product.sums = false;
    plan *plain = plan_of(&product, pd_device_here->index);
    if (!plain) return false;
    if (!plain->desc && plain->refusals < ROUNDS) make(handle, &product, plain);
    float apart = plain->desc ? sort_by_time(handle, &product, plain, scratch, timer) : -1;
    plain->timed = plain->desc != NULL;
    return ms < 0 || (apart >= 0 && apart + time_of_sums(p, timer) < ms);
}

/* Times the algorithms of a plan, in other memory where C is added to; gives up one that makes sums more slowly than a
   kernel of its own. */
static void tune(void *handle, const problem *p, plan *q, void *scratch, void *stream) {
    const pd_device *d = pd_device_here;
    const pd_gemm *c = p->c;
    const size_t bytes =
        (size_t)((c->batch - 1) * c->c_batch + (c->M - 1) * c->c_row + c->N) * pd_dtype_size(pd_gemm_result(c));
    void *other = NULL;
    pd_gpu_timer timer;
    problem trial = *p;
    q->timed = true;
    if (c->beta && d->alloc(d, bytes, &other)) return;
    if (other) trial.C = other;
    if (pd_gpu_timer_open(&timer, stream)) {
        float ms = sort_by_time(handle, &trial, q, scratch, &timer);
        if (p->sums && sums_are_slower(handle, &trial, ms, scratch, &timer)) {
            drop(&q->kept);
            q->refusals = ROUNDS;
        }
    }
    if (other) d->free(d, other, bytes);
    pd_gpu_timer_close(&timer);
    pd_cuda_open()->failed(); /* forgets what an algorithm left behind that could not run */
}

static bool shape_fits(const pd_gemm *c, problem *p) {
    return pd_dtype_is_float(c->t) && !c->relu && c->M > 0 && c->N > 0 && c->K > 0 && c->batch > 0 &&
           c->batch <= INT32_MAX && (c->c_row >= c->N || c->M <= 1) && side_of(c->K, c->N, c->b_row, c->b_col, &p->a) &&
           side_of(c->M, c->K, c->a_row, c->a_col, &p->b);
}

/* Runs the first algorithm that the library does not refuse. False: it refuses all; the next call tries again. */
static bool serve(void *handle, const problem *p, plan *q, void *scratch, void *stream) {
    int failed = 0;
    for (; q->at < q->count; q->at++) {
        failed = run(handle, p, q, &q->algos[q->at], scratch, stream);
        if (!failed) return true;
        pd_cuda_open()->failed(); /* forgets what it left behind */
    }
    pd_log(PD_LOG_WARN,
           "cuBLASLt: all %d algorithms refuse a product of [%lld, %lld] and [%lld, %lld] (the last one with status "
           "%d): our own kernel computes it",
           q->count, (long long)p->c->M, (long long)p->c->K, (long long)p->c->K, (long long)p->c->N, failed);
    drop(&q->kept);
    q->refusals++;
    return false;
}

/* *done: whether it was launched; false: the library has nothing for this product. sums: NULL, or what
   pd_gemm_with_sums writes, if that was found to be faster; then bias is NULL. */
static pd_status try(const pd_gemm *c, const void *A, const void *B, const void *bias, void *sums, void *C,
                     void *scratch, bool *done) {
    problem p = {.c = c, .A = A, .B = B, .bias = sums ? sums : bias, .C = C,
                 .tf32 = c->t == PD_F32 && pd_gpu.matmul_tf32, .sums = sums != NULL};
    const pd_device *d = pd_device_here;
    void *stream = pd_cuda_stream(d);
    plan *q = NULL;
    *done = false;
    if (!shape_fits(c, &p)) return PD_OK;
    pthread_mutex_lock(&lock);
    void *handle = pd_nvidia_handle(&server, pd_flags_get()->CUBLASLT, d);
    pd_status status = handle && !(q = plan_of(&p, d->index)) ? PD_E_MEMORY : PD_OK;
    if (q) {
        if (q->desc && p.bias) lt.MatmulDescSetAttribute(q->desc, LT_DESC_BIAS_POINTER, &p.bias, sizeof p.bias);
        if (!q->desc && q->refusals < ROUNDS) make(handle, &p, q);
        if (q->desc && pd_gpu.matmul_tune && !q->timed && q->kept.uses >= PD_PLAN_TIMED_AT && !pd_cuda_capturing(d))
            tune(handle, &p, q, scratch, stream);
        *done = q->desc && (q->timed || !sums) && serve(handle, &p, q, scratch, stream);
    }
    pthread_mutex_unlock(&lock);
    return PD_TRAIL(status);
}

/* ---- the backend ---- */

static bool takes(const pd_gemm *c, bool bias) {
    problem p;
    return (void)bias, pd_nvidia_ready(&server, pd_flags_get()->CUBLASLT) && shape_fits(c, &p);
}
/* Sums in passing are slower than a kernel of their own for many shapes, which only timing tells. */
static bool makes_sums(const pd_gemm *c) { return pd_gpu.matmul_tune && takes(c, false); }
static size_t scratch_of(const pd_gemm *c) { return (void)c, WORKSPACE; }

static pd_status run_or_own(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch) {
    bool done;
    PD_TRY(try(c, A, B, bias, NULL, C, scratch, &done));
    if (!done) pd_here()->gemm(c, A, B, bias, C, scratch);
    return PD_OK;
}
static pd_status with_sums(const pd_gemm *c, const void *A, const void *B, void *sums, void *C, void *scratch,
                           bool *done) {
    return try(c, A, B, NULL, sums, C, scratch, done);
}

const pd_gemm_backend pd_cublaslt_gemm = {"cuBLASLt", takes, scratch_of, run_or_own, makes_sums, with_sums};
