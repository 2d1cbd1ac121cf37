/* Sums, products and extremes along the middle axis of [outer, n, inner], sums of squares.

   A first launch cuts the axis into parts, if it is long, and folds each. A second one folds the parts' results. How
   many parts there are and the order within a part depend on shapes alone, so the bits are the same in every run and
   on every device. A block folds a part of a row (inner 1), or a part of as many columns as its threads load at once. */
#include "cuda/block.h"
#include "cuda/table.h"

enum { ROW_CHUNK = 4096, SHORT = 64, MOST_PARTS = 128, MOST_BLOCKS = 1024 };
static bool by_rows(const pd_block &b) { return b.inner == 1 && b.n > SHORT; }

template <class T> struct fold_of { typedef int64_t type; }; /* the type in which values are folded */
template <> struct fold_of<float> { typedef float type; };
template <> struct fold_of<double> { typedef double type; };

/* What is done with an element before it is folded. */
enum entry { AS_IT_IS, IS_NONZERO, SQUARED };
template <class A, class E> static __device__ A enter(E e, entry how) {
    A v = (A)widen(e);
    return how == SQUARED ? v * v : how == IS_NONZERO ? (A)(widen(e) != 0) : v;
}

/* Where folded values go, and what is done with them before. */
template <class A> struct goal {
    pd_dtype t;
    void *out;
    A divide;
    bool truth;
    template <class O> __device__ void put_as(int64_t i, A v) const { ((O *)out)[i] = narrow<O>((wide<O>)v); }
    __device__ void put(int64_t i, A v) const {
        v = truth ? (A)(v != 0) : divide == 1 ? v : v / divide;
        switch (t) {
        case PD_F32: return put_as<float>(i, v);
        case PD_F64: return put_as<double>(i, v);
        case PD_F16: return put_as<pd_f16>(i, v);
        case PD_BF16: return put_as<pd_bf16>(i, v);
        case PD_I64: return put_as<int64_t>(i, v);
        case PD_I32: return put_as<int32_t>(i, v);
        case PD_I16: return put_as<int16_t>(i, v);
        case PD_I8: return put_as<int8_t>(i, v);
        default: return put_as<uint8_t>(i, v);
        }
    }
};
static goal<float> between(float *out) { return {PD_F32, out, 1, false}; }
static goal<double> between(double *out) { return {PD_F64, out, 1, false}; }
static goal<int64_t> between(int64_t *out) { return {PD_I64, out, 1, false}; }

template <template <class> class Op, class E, class A>
static __global__ void fold_rows(const E *x, int64_t n, int64_t parts, int64_t chunk, entry how, goal<A> to) {
    int64_t part = blockIdx.x % parts, begin = part * chunk, end = begin + chunk < n ? begin + chunk : n;
    const E *row = x + blockIdx.x / parts * n;
    A v = Op<A>::none();
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) v = Op<A>::of(v, enter<A>(row[i], how));
    v = block_all<Op>(v);
    if (threadIdx.x == 0) to.put(blockIdx.x, v);
}

/* A thread folds V columns of every SLICES-th row of a part. count: of vectors in [outer, parts, inner / V]. */
template <template <class> class Op, class E, class A, int V, int SLICES>
static __global__ void fold_columns(const E *x, int64_t count, int64_t n, int64_t inner, int64_t parts, int64_t chunk, entry how, goal<A> to) {
    constexpr int LANES = THREADS / SLICES, COLUMNS = LANES * V;
    const int lane = threadIdx.x % LANES, slice = threadIdx.x / LANES;
    const int64_t first = (int64_t)blockIdx.x * LANES, at = first + lane, vectors = inner / V;
    const int64_t part = at / vectors % parts, begin = part * chunk, end = begin + chunk < n ? begin + chunk : n;
    const E *from = x + at / vectors / parts * n * inner + at % vectors * V;
    A v[V];
    for (int e = 0; e < V; e++) v[e] = Op<A>::none();
    for (int64_t i = begin + slice; i < end && at < count; i += SLICES) {
        pack<E, V> p = *(const pack<E, V> *)(from + i * inner);
        for (int e = 0; e < V; e++) v[e] = Op<A>::of(v[e], enter<A>(p.e[e], how));
    }
    if constexpr (SLICES == 1) {
        for (int e = 0; e < V && at < count; e++) to.put(at * V + e, v[e]);
    } else {
        __shared__ A all[SLICES][COLUMNS];
        for (int e = 0; e < V; e++) all[slice][lane * V + e] = v[e];
        __syncthreads();
        for (int c = threadIdx.x; c < COLUMNS && first + c / V < count; c += THREADS) {
            A sum = all[0][c];
            for (int k = 1; k < SLICES; k++) sum = Op<A>::of(sum, all[k][c]);
            to.put(first * V + c, sum);
        }
    }
}

template <template <class> class Op, class E, class A, int V, int SLICES>
static void columns(const E *x, const pd_block &b, int64_t parts, int64_t chunk, entry how, goal<A> to) {
    const int64_t count = b.outer * parts * (b.inner / V), lanes = THREADS / SLICES;
    launch(fold_columns<Op, E, A, V, SLICES>, (count + lanes - 1) / lanes, THREADS, x, count, b.n, b.inner, parts, chunk, how, to);
}
/* again: x are results of parts. */
template <template <class> class Op, class E, class A>
static void stage(const E *x, const pd_block &b, int64_t parts, entry how, bool rows, bool again, goal<A> to) {
    constexpr int V = sizeof(E) < 2 ? 8 : 16 / sizeof(E);
    const int64_t chunk = b.n ? (b.n + parts - 1) / parts : 1;
    const bool vectors = b.inner % V == 0 && (uintptr_t)x % (V * sizeof(E)) == 0, slices = again || b.n > SHORT;
    if (rows) launch(fold_rows<Op, E, A>, b.outer * parts, THREADS, x, b.n, parts, chunk, how, to);
    else if (vectors && slices) columns<Op, E, A, V, WARPS>(x, b, parts, chunk, how, to);
    else if (vectors) columns<Op, E, A, V, 1>(x, b, parts, chunk, how, to);
    else if (slices) columns<Op, E, A, 1, WARPS>(x, b, parts, chunk, how, to);
    else columns<Op, E, A, 1, 1>(x, b, parts, chunk, how, to);
}

/* A long row has at least 4096 elements a part, columns as many parts as give the device enough blocks. */
static int64_t parts_of(const pd_block &b) {
    const bool rows = by_rows(b);
    const int64_t blocks = (b.outer * b.inner + THREADS - 1) / THREADS, chunk = rows ? +ROW_CHUNK : +SHORT;
    int64_t parts = (b.n + chunk - 1) / chunk, most = rows ? (int64_t)ROW_CHUNK : MOST_BLOCKS / blocks;
    if (!rows && most > MOST_PARTS) most = MOST_PARTS;
    if (parts > most) parts = most;
    return parts < 1 ? 1 : parts;
}

template <template <class> class Op, class E, class A> static void fold_to(const E *x, const pd_block &b, entry how, goal<A> to) {
    const int64_t count = b.outer * b.inner, parts = count ? parts_of(b) : 0;
    const bool rows = by_rows(b);
    if (!count) return;
    if (parts == 1) return stage<Op, E, A>(x, b, 1, how, rows, false, to);
    A *folded = (A *)pd_cuda_lent->room((size_t)(count * parts) * sizeof(A));
    if (!folded) return;
    stage<Op, E, A>(x, b, parts, how, rows, false, between(folded));
    stage<Op, A, A>(folded, pd_block{b.outer, parts, b.inner}, 1, AS_IT_IS, rows, true, to);
}

void pd_cuda_fold(pd_fold f, pd_dtype t, pd_dtype out_t, const pd_block *b, const void *x, void *out) {
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef typename fold_of<wide<E>>::type A;
        const E *from = (const E *)x;
        const bool ask = f == PD_FOLD_ANY || f == PD_FOLD_ALL;
        const goal<A> to = {out_t, out, f == PD_FOLD_MEAN ? (A)b->n : (A)1, ask || out_t == PD_BOOL};
        switch (f) {
        case PD_FOLD_SUM: case PD_FOLD_MEAN: return fold_to<plus>(from, *b, AS_IT_IS, to);
        case PD_FOLD_SQUARES: return fold_to<plus>(from, *b, SQUARED, to);
        case PD_FOLD_PROD: return fold_to<times>(from, *b, AS_IT_IS, to);
        case PD_FOLD_MAX: return fold_to<larger>(from, *b, AS_IT_IS, to);
        case PD_FOLD_MIN: return fold_to<smaller>(from, *b, AS_IT_IS, to);
        case PD_FOLD_ANY: return fold_to<plus>(from, *b, IS_NONZERO, to);
        case PD_FOLD_ALL: return fold_to<times>(from, *b, IS_NONZERO, to);
        }
    });
}

void pd_cuda_sum_squares(pd_dtype t, int64_t n, const void *x, double *sum) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        fold_to<plus>((const E *)x, pd_block{1, n, 1}, SQUARED, between(sum));
    });
}

template <class E> static __global__ void scale_kernel(E *x, int64_t n, double by, int *finite) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        wide<E> v = widen(x[i]);
        if (v - v != 0) *finite = 0; /* all threads that write write this value */
        x[i] = narrow<E>(v * (wide<E>)by);
    }
}
bool pd_cuda_scale(pd_dtype t, int64_t n, double by, void *x) {
    int finite = 1, *flag = (int *)pd_cuda_lent->room(sizeof finite);
    if (!flag) return false;
    cudaMemcpyAsync(flag, &finite, sizeof finite, cudaMemcpyHostToDevice, pd_cuda_stream_now);
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(scale_kernel<E>, blocks_for(n, THREADS, 4), THREADS, (E *)x, n, by, flag);
    });
    cudaMemcpyAsync(&finite, flag, sizeof finite, cudaMemcpyDeviceToHost, pd_cuda_stream_now);
    cudaStreamSynchronize(pd_cuda_stream_now);
    return finite;
}
