/* What the threads of a block compute together. Results do not depend on the grid: shapes alone fix the order of each
   sum. */
#ifndef PD_CUDA_BLOCK_H
#define PD_CUDA_BLOCK_H

#include "cuda/cuda.h"
#include "kernels/vmath.h"

enum { WARP = 32, THREADS = 256, WARPS = THREADS / WARP };

/* Operations: the neutral element, and the combination of two values. */
template <class T> struct plus {
    static __device__ T none() { return 0; }
    static __device__ T of(T a, T b) { return a + b; }
};
template <class T> struct times {
    static __device__ T none() { return 1; }
    static __device__ T of(T a, T b) { return a * b; }
};
template <class T> struct limits { /* of integers */
    static __device__ T low() { return (T)((T)-1 < 0 ? -(INT64_C(1) << (8 * sizeof(T) - 1)) : 0); }
    static __device__ T high() { return (T)~low(); }
};
template <> struct limits<float> {
    static __device__ float low() { return -VM_INFF; }
    static __device__ float high() { return VM_INFF; }
};
template <> struct limits<double> {
    static __device__ double low() { return -VM_INF; }
    static __device__ double high() { return VM_INF; }
};
template <> struct limits<int64_t> {
    static __device__ int64_t low() { return INT64_MIN; }
    static __device__ int64_t high() { return INT64_MAX; }
};
template <class T> struct larger { /* NaN if either is */
    static __device__ T none() { return limits<T>::low(); }
    static __device__ T of(T a, T b) { return a != a ? a : a > b ? a : b; }
};
template <class T> struct smaller {
    static __device__ T none() { return limits<T>::high(); }
    static __device__ T of(T a, T b) { return a != a ? a : a < b ? a : b; }
};

/* Combines the values of all THREADS threads; all get the result. The whole block must call it. */
template <template <class> class Op, class T> static __device__ T block_all(T v) {
    __shared__ T warps[WARPS];
    for (int d = WARP / 2; d; d /= 2) v = Op<T>::of(v, __shfl_xor_sync(0xffffffffu, v, d));
    __syncthreads(); /* all have read warps[] of the call before */
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = v;
    __syncthreads();
    v = warps[0];
    for (int w = 1; w < WARPS; w++) v = Op<T>::of(v, warps[w]);
    return v;
}

/* Combines the values of a group of G threads, a warp or the block; all of the group call it and get the result. */
template <int G, template <class> class Op, class T> static __device__ T group_all(T v) {
    static_assert(G == WARP || G == THREADS, "a warp or a block");
    if constexpr (G == THREADS) v = block_all<Op>(v);
    else
        for (int d = WARP / 2; d; d /= 2) v = Op<T>::of(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

/* The sum of the values of all threads before this one; *all: the sum over the whole block. The whole block must call
   it. */
template <class T> static __device__ T block_before(T v, T *all) {
    __shared__ T sums[2][THREADS];
    int now = 0;
    __syncthreads(); /* all have read sums[] of the call before */
    sums[0][threadIdx.x] = v;
    for (unsigned d = 1; d < THREADS; d *= 2, now ^= 1) { /* each thread's sum becomes that of all threads up to it */
        __syncthreads();
        T own = sums[now][threadIdx.x];
        sums[now ^ 1][threadIdx.x] = threadIdx.x < d ? own : sums[now][threadIdx.x - d] + own;
    }
    __syncthreads();
    *all = sums[now][THREADS - 1];
    return threadIdx.x ? sums[now][threadIdx.x - 1] : (T)0;
}

/* Whether this block is the last one of `count` blocks that call this with the counter. It then sees what the others
   have written before. The whole block must call it. */
static inline __device__ bool is_last(unsigned *counter, unsigned count) {
    __shared__ bool last;
    __threadfence();
    __syncthreads(); /* all threads of the block have written */
    if (threadIdx.x == 0) last = atomicInc(counter, count - 1) == count - 1; /* the last one leaves 0 behind */
    __syncthreads();
    if (last) __threadfence();
    return last;
}

enum { FAN = 16 };
/* Adds up to FAN rows of `width` elements, `step` apart, into the first one, W elements a thread at a time. */
template <int W, class T> static __device__ void add_up(T *to, int64_t width, int64_t step, int count) {
    for (int64_t i = threadIdx.x * W; i < width; i += blockDim.x * W) {
        pack<T, W> v[FAN];
        UNROLLED
        for (int k = 0; k < FAN; k++)
            if (k < count) v[k] = *(const pack<T, W> *)(to + k * step + i);
        UNROLLED
        for (int k = 1; k < FAN; k++)
            for (int e = 0; e < W && k < count; e++) v[0].e[e] += v[k].e[e];
        *(pack<T, W> *)(to + i) = v[0];
    }
    __syncthreads();
}
/* Adds up what `count` blocks have written, `width` elements each, one part behind the other: of every FAN parts the
   block that ends last does so, then of every FAN of these, and so on. True in one block, which then finds the sums in
   the first part. `part` is this block's; there are counters_of(count) counters. The whole block must call it. */
template <int W, class T>
static __device__ bool add_all_parts(T *parts, int64_t width, unsigned part, unsigned count, unsigned *counters) {
    __syncthreads();
    for (int64_t step = width; count > 1; step *= FAN) {
        const unsigned group = part / FAN, left = count - group * FAN, groups = (count + FAN - 1) / FAN;
        if (!is_last(&counters[group], left < FAN ? left : +FAN)) return false;
        add_up<W>(parts + group * FAN * step, width, step, (int)(left < FAN ? left : +FAN));
        counters += groups, part = group, count = groups;
    }
    return true;
}
static inline __host__ __device__ int64_t counters_of(int64_t count) {
    int64_t all = 0;
    while (count > 1) all += count = (count + FAN - 1) / FAN;
    return all;
}

#endif
