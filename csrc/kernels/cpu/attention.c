/* Attention without its T x S matrix, forwards and back (Dao et al., arXiv 2205.14135; Rabe and Staats, 2112.05682).

   A block of queries meets the keys block by block: scores, exp by the largest score so far, and what was summed before
   shrinks where a larger one appears. lse = log of the sum of exp(scores) of each query is all that the gradient needs
   to make the probabilities again. Its tasks are key heads, so every sum has one owner and one order: the same bits for
   any number of threads. f16 and bf16 are converted block by block and computed in float, but for bf16 in AMX tiles. */
#include "kernels/cpu/lib/real.h"
#include "kernels/cpu/lib/tiles.h"

#define BQ 64  /* queries and keys of a block: its scores stay in the second-level cache */
#define BK 128

extern __typeof__(*((pd_kernels *)0)->gemm) PD_SUFFIXED(pd_cpu_gemm);
extern __typeof__(*((pd_kernels *)0)->gemm_scratch) PD_SUFFIXED(pd_cpu_gemm_scratch);

static int64_t up64(int64_t n) { return (n + 63) / 64 * 64; }

/* Scratch for any product of blocks. */
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

/* Query heads that share a key head; there may be no heads at all. */
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

/* Of the n queries from query i on, those that meet the keys before `end` at once: few where causality lets only some
   of them see all, so that little is computed for nothing; and how many of m keys from k0 on those before `end` see. */
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
