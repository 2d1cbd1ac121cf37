/* Attention without its T x S matrix, forward and gradient (Dao et al., arXiv 2205.14135; Rabe and Staats, 2112.05682).

   For a block of queries the keys are processed block by block: scores, then exp relative to the largest score so far.
   If a larger score appears, the earlier sums are scaled down. The gradient recomputes the probabilities from lse, the
   log of the sum of exp(scores) of each query. The gradient's tasks are key heads, so one thread makes each sum, in one
   order, and the bits are the same for any number of threads. f16 and bf16 are converted block by block and computed in
   float; bf16 may also run in AMX tiles. */
#include "kernels/cpu/lib/real.h"
#include "kernels/cpu/lib/tiles.h"

#define BQ 64  /* queries, and keys, of a block, whose scores stay in the second-level cache */
#define BK 128

extern __typeof__(*((pd_kernels *)0)->gemm) PD_SUFFIXED(pd_cpu_gemm);
extern __typeof__(*((pd_kernels *)0)->gemm_scratch) PD_SUFFIXED(pd_cpu_gemm_scratch);

static int64_t up64(int64_t n) { return (n + 63) / 64 * 64; }

/* Bytes of scratch for any product of blocks. */
static int64_t gemm_bytes(const pd_attention *c, pd_dtype t) {
    int64_t w = c->d > c->dv ? c->d : c->dv, most = 0;
    const int64_t shapes[][3] = {{BQ, BK, w}, {BQ, w, BK}, {BK, w, BQ}};
    for (int i = 0; i < 3; i++) {
        pd_gemm g = {
            .t = t, .batch = 1, .M = shapes[i][0], .N = shapes[i][1], .K = shapes[i][2], .a_col = 1, .b_col = 1};
        int64_t bytes = (int64_t)PD_SUFFIXED(pd_cpu_gemm_scratch)(&g);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* How many query heads share a key head; there may be no heads at all. */
static int64_t sharers(const pd_attention *c) { return c->Hkv ? c->H / c->Hkv : 0; }

static int64_t attention_tasks(const pd_attention *c, bool grad) {
    return grad ? c->B * c->Hkv : c->B * c->H * ((c->nq + BQ - 1) / BQ);
}

static int64_t attention_slots(const pd_attention *c, bool grad) {
    int64_t tasks = attention_tasks(c, grad), threads = pd_threads_get();
    double flops = 4.0 * (double)c->B * (double)c->H * (double)c->nq * (double)c->nk * (double)c->d;
    if (threads > tasks) threads = tasks;
    return flops < 400e3 || threads < 1 ? 1 : threads; /* a region costs 2 us */
}

/* How many of the n queries from i on are computed together with the keys before `end`. With causality these are few
   near the diagonal, where only some see all keys, so that little is computed in vain. And how many of m keys from k0
   on queries before `end` see. */
static int64_t rows_at_once(const pd_attention *c, int64_t i, int64_t n, int64_t end) {
    return c->causal && i + 1 < end && n > BQ / 2 ? BQ / 2 : n;
}
static int64_t keys_seen(const pd_attention *c, int64_t end, int64_t k0, int64_t m) {
    return c->causal && end - k0 < m ? end - k0 : m;
}

static int64_t slot_bytes(const pd_attention *c, bool grad);
static pd_range_fn tasks_of(const pd_attention *c, bool grad);

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/attention.inc"
#include "kernels/cpu/lib/each_type.h"

#ifdef PD_HAVE_TILES
#include "kernels/cpu/attention_tiles.inc"
#endif

static int64_t slot_bytes(const pd_attention *c, bool grad) {
#ifdef PD_HAVE_TILES
    if (tiles_serve(c)) return tile_lay(c, grad, NULL, &(tile_room){0});
#endif
    return c->t == PD_F64 ? attention_lay_f64(c, grad, NULL, &(attention_room_f64){0})
                          : attention_lay_f32(c, grad, NULL, &(attention_room_f32){0});
}
static pd_range_fn tasks_of(const pd_attention *c, bool grad) {
#ifdef PD_HAVE_TILES
    if (tiles_serve(c)) return grad ? tile_attend_grad_tasks : tile_attend_tasks;
#endif
    if (c->t == PD_F64) return grad ? attend_grad_tasks_f64 : attend_tasks_f64;
    return grad ? attend_grad_tasks_f32 : attend_tasks_f32;
}

PD_CPU_FUNCTION(size_t, attention_scratch, const pd_attention *c, bool grad) {
    return (size_t)(attention_slots(c, grad) * slot_bytes(c, grad));
}

PD_CPU_FUNCTION(void, attention, const pd_attention *c, const void *q, const void *k, const void *v, const void *mask,
                void *out, void *lse, void *scratch) {
    PD_FLOAT_JOB(c->t, attention_run, attention, .c = c, .q = q, .k = k, .v = v, .mask = mask, .out = out, .lse = lse,
                 .scratch = scratch);
}

PD_CPU_FUNCTION(void, attention_grad, const pd_attention *c, const void *g, const void *q, const void *k, const void *v,
                const void *mask, const void *out, const void *lse, void *gq, void *gk, void *gv, void *scratch) {
    PD_FLOAT_JOB(c->t, attention_run, attention, .c = c, .grad = true, .q = q, .k = k, .v = v, .mask = mask, .g = g,
                 .out = (void *)(uintptr_t)out, .lse = (void *)(uintptr_t)lse, .gq = gq, .gk = gk, .gv = gv,
                 .scratch = scratch);
}
