/* The portable matrix product: packed, register-blocked, in the compiler's vectors.

       C tile of MR x NR = 2 vectors, in registers (micro.inc).

              B panel [kb][NR]          kb <= KC rows, so that a panel stays in the first-level cache
             +--------+--------+
             |        |        |        A block  [mb][kb], mb <= MC: second-level cache
       +-----+--------+--------+        B block  [kb][nb], nb <= NC
       |  A  | C tile |        |
       +-----+--------+--------+        loops from outside: N by NC, K by KC, M by MC, panels of B, panels of A

   A small A is read in place, else it is copied row by row (or column by column); its elements are broadcast, so it
   needs no transposing. B is copied, and transposed if its columns do not have unit stride, unless A has so few rows
   that this would be a waste.

   Threads get rectangles of C; a result does not depend on how C is cut. If C is small and K long, K is cut into chunks
   that depend on the shape alone, and the chunks' products are added as a tree. f16 and bf16 are converted when they
   are copied, and summed in float; C stays in scratch until the end. */
#include "kernels/cpu/lib/real.h"

#define KC 256
#define MC 120
#define NC_BYTES 2048 /* bytes of a row of the B block */
#define SPLIT_K 2048  /* the least number of elements of K in a chunk */
#define SPLIT_MAX 16

/* A task: a rectangle of one product. A, B, C point to its corner. */
typedef struct task {
    const pd_gemm *c;
    int64_t M, N, K;
    const char *A, *B;
    char *C;
    const char *bias;
    int64_t c_row;
    bool relu, add, packed; /* add: adds to C instead of writing it; packed: all of B is in scratch */
    char *scratch;
} task;

/* Whether a task packs all of its B, for products after it. */
static bool keeps(const pd_gemm *c, int64_t N) {
    return c->reuse && N <= NC_BYTES / (int64_t)(c->t == PD_F64 ? 8 : 4);
}

typedef struct grid {
    int64_t tm, tn, split, chunk, slots;
} grid; /* pieces of M, of N, and of K, each `chunk` long; slots of scratch */

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/gemm.inc"
#include "kernels/cpu/lib/each_type.h"

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static bool is_half(pd_dtype t) { return t == PD_F16 || t == PD_BF16; }
static int64_t nr(pd_dtype t) { return 2 * PD_VB / (t == PD_F64 ? 8 : 4); }

static grid plan(const pd_gemm *c) {
    grid g = {1, 1, 1, c->K, 1};
    int64_t rows = (c->M + MR - 1) / MR, cols = (c->N + nr(c->t) - 1) / nr(c->t);
    if (c->batch == 1 && rows * cols < 16 && c->K >= 2 * SPLIT_K) {
        g.split = c->K / SPLIT_K < SPLIT_MAX ? c->K / SPLIT_K : SPLIT_MAX;
        g.chunk = (c->K + g.split - 1) / g.split;
        g.split = (c->K + g.chunk - 1) / g.chunk;
    }
    int threads = pd_threads_get();
    double flops = 2.0 * (double)c->M * (double)c->N * (double)c->K;
    if (threads > 1 && flops * (double)c->batch >= 400e3) { /* a region costs 2 us, about 400 kflop */
        int64_t want =
            flops * (double)c->batch / 200e3 < threads ? (int64_t)(flops * (double)c->batch / 200e3) : threads;
        if (g.split > 1 || c->batch >= 4 * want) g.slots = want;
        else { /* the cut with the most even load; of several the one that copies least */
            double best = -1;
            for (int64_t tn = 1; tn <= want && tn <= cols; tn++) {
                int64_t tm = want / tn < rows ? want / tn : rows;
                double load = (double)((rows + tm - 1) / tm * ((cols + tn - 1) / tn)) * 1.0;
                double copies = (double)c->M / (double)tm * 0.5 + (double)c->N / (double)tn; /* A is cheaper to copy */
                double cost = load * 1e6 + copies;
                if (best < 0 || cost < best) best = cost, g.tm = tm, g.tn = tn;
            }
            g.slots = want;
        }
    }
    int64_t tasks = c->batch * g.tm * g.tn * g.split;
    if (g.slots > tasks) g.slots = tasks > 0 ? tasks : 1;
    return g;
}

/* Bytes of a slot: a block of A, a block of B, and for 16-bit types a rectangle of C in float. */
static int64_t slot_bytes(const pd_gemm *c, const grid *g) {
    int64_t size = c->t == PD_F64 ? 8 : 4,
            n = c->N < NC_BYTES / size ? up(c->N, nr(c->t)) : up(NC_BYTES / size, nr(c->t));
    int64_t k = c->K < KC ? c->K : KC, m = c->M < MC ? c->M : MC;
    int64_t bytes = up(m * (k + 16) * size, 64) + up(n * (c->reuse ? c->K : k) * size, 64);
    if (is_half(c->t) && g->split == 1) {
        int64_t units_m = ((c->M + MR - 1) / MR + g->tm - 1) / g->tm,
                units_n = ((c->N + nr(c->t) - 1) / nr(c->t) + g->tn - 1) / g->tn;
        bytes += up(units_m * MR * units_n * nr(c->t) * 4, 64);
    }
    return bytes;
}

static size_t scratch_of(const pd_gemm *c) {
    grid g = plan(c);
    int64_t size = c->t == PD_F64 ? 8 : 4;
    return (size_t)(g.slots * slot_bytes(c, &g) + (g.split > 1 ? g.split * up(c->M * c->N * size, 64) : 0));
}

typedef struct gemm_job {
    const pd_gemm *c;
    grid g;
    const char *A, *B, *bias;
    char *C, *scratch;
    int64_t slot, per_slot, tasks; /* slot: bytes; tasks: of one chunk */
} gemm_job;

/* Boundary i if n is cut into `parts` at multiples of `unit`. */
static int64_t cut(int64_t n, int64_t parts, int64_t i, int64_t unit) {
    int64_t units = (n + unit - 1) / unit, at = (units * i / parts) * unit;
    return at < n ? at : n;
}

static void run_tasks(void *ctx, int64_t begin, int64_t end) {
    const gemm_job *j = ctx;
    const pd_gemm *c = j->c;
    const grid *g = &j->g;
    int64_t size = (int64_t)pd_dtype_size(c->t), wide = c->t == PD_F64 ? 8 : 4,
            result = (int64_t)pd_dtype_size(pd_gemm_result(c));
    char *partials = j->scratch + g->slots * j->slot;
    const bool apart = j->per_slot == 1; /* each task has a slot, whoever runs it */
    for (int64_t k = begin; k < end; k++) {
        int64_t s = k % g->split, tn = k / g->split % g->tn, tm = k / g->split / g->tn % g->tm,
                b = k / g->split / g->tn / g->tm;
        int64_t m0 = cut(c->M, g->tm, tm, MR), m1 = cut(c->M, g->tm, tm + 1, MR);
        int64_t n0 = cut(c->N, g->tn, tn, nr(c->t)), n1 = cut(c->N, g->tn, tn + 1, nr(c->t)), k0 = s * g->chunk;
        task t = {.c = c,
                  .M = m1 - m0,
                  .N = n1 - n0,
                  .K = c->K - k0 < g->chunk ? c->K - k0 : g->chunk,
                  .c_row = c->c_row,
                  .packed = c->reuse == PD_GEMM_AGAIN && apart && g->split == 1 && keeps(c, n1 - n0),
                  .scratch = j->scratch + (apart ? k : begin / j->per_slot) * j->slot};
        t.A = j->A + (b * c->a_batch + m0 * c->a_row + k0 * c->a_col) * size;
        t.B = j->B + (b * c->b_batch + n0 * c->b_col + k0 * c->b_row) * size;
        if (g->split > 1) {
            t.C = partials + s * up(c->M * c->N * wide, 64);
            t.c_row = c->N;
        } else {
            t.C = j->C + (b * c->c_batch + m0 * c->c_row + n0) * result;
            t.bias = j->bias ? j->bias + n0 * size : NULL;
            t.relu = c->relu;
            t.add = c->beta != 0;
        }
        if (t.M <= 0 || t.N <= 0) continue;
        if (c->t == PD_F64) run_f64(&t);
        else if (is_half(c->t) && g->split == 1 && !c->wide) run_half_f32(&t);
        else run_f32(&t);
    }
}

/* Makes rows of C from the chunks' products. */
static void join_rows(void *ctx, int64_t begin, int64_t end) {
    const gemm_job *j = ctx;
    const pd_gemm *c = j->c;
    int64_t wide = c->t == PD_F64 ? 8 : 4, size = (int64_t)pd_dtype_size(pd_gemm_result(c));
    char *partials = j->scratch + j->g.slots * j->slot;
    int64_t stride = up(c->M * c->N * wide, 64);
    for (int64_t i = begin; i < end; i++) {
        for (int64_t step = 1; step < j->g.split; step *= 2)
            for (int64_t p = 0; p + step < j->g.split; p += 2 * step) {
                char *to = partials + p * stride + i * c->N * wide, *from = to + step * stride;
                if (c->t == PD_F64) add_row_f64((double *)to, (const double *)from, c->N);
                else add_row_f32((float *)to, (const float *)from, c->N);
            }
        char *sum = partials + i * c->N * wide, *to = j->C + i * c->c_row * size;
        if (c->t == PD_F64) finish_row_f64(PD_F64, (double *)sum, c->N, j->bias, c->relu, c->beta != 0, to);
        else finish_row_f32(pd_gemm_result(c), (float *)sum, c->N, j->bias, c->relu, c->beta != 0, to);
    }
}

/* y = A^T x with contiguous columns of A is computed as the product of a row by A, with vectors along the columns. */
static bool turned(const pd_gemm *c, pd_gemm *to) {
    if (c->N != 1 || c->M < 4 || c->c_row != 1 || c->a_row != 1 || c->a_col == 1) return false;
    *to = *c;
    to->M = 1, to->N = c->M, to->reuse = PD_GEMM_ONCE; /* B is what was A */
    to->a_batch = c->b_batch, to->a_row = 1, to->a_col = c->b_row;
    to->b_batch = c->a_batch, to->b_row = c->a_col, to->b_col = c->a_row;
    to->c_row = c->M;
    return true;
}

PD_CPU_FUNCTION(size_t, gemm_scratch, const pd_gemm *c) {
    pd_gemm row;
    size_t most = scratch_of(c), turn = turned(c, &row) ? scratch_of(&row) : 0;
    return most > turn ? most : turn;
}

PD_CPU_FUNCTION(void, gemm, const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch) {
    if (c->batch <= 0 || c->M <= 0 || c->N <= 0) return;
    pd_gemm row;
    if (!bias && turned(c, &row)) {
        const void *was = A;
        c = &row, A = B, B = was;
    }
    gemm_job j = {.c = c, .g = plan(c), .A = A, .B = B, .bias = bias, .C = C, .scratch = scratch};
    j.slot = slot_bytes(c, &j.g);
    int64_t tasks = c->batch * j.g.tm * j.g.tn * j.g.split;
    j.per_slot = (tasks + j.g.slots - 1) / j.g.slots;
    pd_parallel(tasks, j.per_slot, run_tasks, &j);
    if (j.g.split > 1) pd_parallel(c->M, 1 + PD_GRAIN / (c->N * j.g.split), join_rows, &j);
}
