/* Folds along the middle axis of [outer, n, inner]: how it is cut, and how the parts come together. Cuts depend on
   shapes and on alignment alone, so the bits are the same in every run and on every device. */
#ifndef PD_CUDA_FOLD_H
#define PD_CUDA_FOLD_H

#include "cuda/block.h"

enum { SHORT = 64, ROW_CHUNK = 4096, SLICE_CHUNK = 8, MOST_PARTS = 128, MOST_BLOCKS = 1024 };

/* The axis has `parts` of at most `chunk` elements, each a block's work. rows: the block's threads share a row
   (inner 1). Else `lanes` threads stand side by side, each on V columns, and THREADS / lanes one behind the other;
   `groups` blocks cover all columns. */
struct cut {
    int64_t parts, chunk, groups;
    int lanes, V;
    bool rows;
};

/* The columns that a thread loads at once from aligned memory. */
static inline constexpr int vector_of(size_t size) { return size < 2 ? 8 : (int)(16 / size); }

/* aligned: memory can be read in vectors. size: bytes of an element. */
static inline cut cut_of(const pd_block *b, bool aligned, size_t size) {
    const int V = vector_of(size);
    cut c = {1, b->n > 0 ? b->n : 1, 1, 1, aligned && b->inner % V == 0 ? V : 1, b->inner == 1};
    int64_t across = b->inner / c.V, least = ROW_CHUNK, most = ROW_CHUNK, blocks = b->outer;
    if (blocks <= 0 || across <= 0) return c;
    if (!c.rows) {
        while (c.lanes < WARP && c.lanes < across) c.lanes *= 2;
        c.groups = (across + c.lanes - 1) / c.lanes;
        blocks *= c.groups;
        least = SLICE_CHUNK * (THREADS / c.lanes);
        most = MOST_PARTS;
    }
    if (most > MOST_BLOCKS / blocks) most = MOST_BLOCKS / blocks;
    c.parts = (b->n + least - 1) / least;
    if (c.parts > most) c.parts = most;
    if (c.parts < 1 || b->n <= SHORT) c.parts = 1;
    c.chunk = (b->n + c.parts - 1) / c.parts;
    return c;
}

/* What a thread of such a block has: V columns from `own` on, of every slices-th index from `begin` on. */
struct place {
    int width, slices, slice;
    int64_t outer, part, group, first, own, begin, end; /* first: the block's first column */
    __device__ place(const cut &c, int V, int64_t n, int64_t inner) {
        width = c.lanes * V, slices = THREADS / c.lanes, slice = threadIdx.x / c.lanes;
        group = blockIdx.x % c.groups, part = blockIdx.x / c.groups % c.parts, outer = blockIdx.x / c.groups / c.parts;
        first = group * width, own = first + threadIdx.x % c.lanes * V;
        begin = part * c.chunk + slice, end = (part + 1) * c.chunk < n ? (part + 1) * c.chunk : n;
        if (own >= inner) end = 0;
    }
};

/* Folds v[V] over the threads that have a part of a column, and calls put(column, value). */
template <template <class> class Op, class A, int V, class F>
static __device__ void across_slices(const A (&v)[V], const place &p, int64_t inner, F put) {
    __shared__ A all[THREADS * V];
    __syncthreads(); /* all have read those of the call before */
    for (int e = 0; e < V; e++) all[threadIdx.x * V + e] = v[e];
    __syncthreads();
    for (int k = threadIdx.x; k < p.width && p.first + k < inner; k += THREADS) {
        A sum = all[k];
        for (int at = k + p.width; at < THREADS * V; at += p.width) sum = Op<A>::of(sum, all[at]);
        put(p.first + k, sum);
    }
}

/* The same over all parts: put is called in the block that ends last. folded: [outer, parts, inner], unless there is
   one part. */
template <template <class> class Op, class A, int V, class F>
static __device__ void across_parts(A (&v)[V], const cut &c, const place &p, int64_t inner, A *folded,
                                    unsigned *counters, F put) {
    if (c.parts > 1) {
        A *sums = folded + p.outer * c.parts * inner;
        across_slices<Op>(v, p, inner, [&](int64_t k, A sum) { sums[p.part * inner + k] = sum; });
        if (!is_last(&counters[p.outer * c.groups + p.group], (unsigned)c.parts)) return;
        for (int e = 0; e < V; e++) v[e] = Op<A>::none();
        for (int64_t i = p.slice; i < c.parts && p.own < inner; i += p.slices) {
            pack<A, V> s = *(const pack<A, V> *)(sums + i * inner + p.own);
            for (int e = 0; e < V; e++) v[e] = Op<A>::of(v[e], s.e[e]);
        }
    }
    across_slices<Op>(v, p, inner, put);
}

/* Memory for the parts' results and the counters. False: there is none, and the op has failed. */
template <class A> static bool room_for_parts(const cut &c, const pd_block &b, A **folded, unsigned **counters) {
    *folded = nullptr;
    *counters = nullptr;
    if (c.parts == 1) return true;
    *folded = (A *)pd_cuda_lent->room((size_t)(b.outer * b.inner * c.parts) * sizeof(A));
    *counters = *folded ? pd_cuda_counters(b.outer * c.groups) : nullptr;
    return *counters;
}

#endif
