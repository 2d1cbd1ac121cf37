/* Sums, products and extremes along the middle axis of [outer, n, inner], sums of squares, each in one launch. fold.h
   cuts the axis into parts. The block that ends last folds the parts' results, in their order. */
#include "cuda/fold.h"
#include "cuda/table.h"

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

/* Folds V neighbours of the rows begin, begin + by, ... of a matrix, each `inner` behind the other. */
template <template <class> class Op, class E, class A, int V>
static __device__ void add_rows(A (&v)[V], const E *from, int64_t begin, int64_t end, int64_t by, int64_t inner, entry how) {
    for (int e = 0; e < V; e++) v[e] = Op<A>::none();
    for (int64_t i = begin; i < end; i += by) {
        pack<E, V> p = *(const pack<E, V> *)(from + i * inner);
        for (int e = 0; e < V; e++) v[e] = Op<A>::of(v[e], enter<A>(p.e[e], how));
    }
}

/* A thread folds V columns of a short axis. count: of vectors in [outer, inner / V]. */
template <template <class> class Op, class E, class A, int V>
static __global__ void fold_short(const E *x, int64_t count, int64_t n, int64_t inner, entry how, goal<A> to) {
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, vectors = inner / V;
    if (at >= count) return;
    A v[V];
    add_rows<Op>(v, x + at / vectors * n * inner + at % vectors * V, 0, n, 1, inner, how);
    for (int e = 0; e < V; e++) to.put(at * V + e, v[e]);
}

/* folded: [outer, parts], unless there is one part. */
template <template <class> class Op, class E, class A>
static __global__ void fold_rows(const E *x, int64_t n, const cut c, entry how, A *folded, unsigned *counters, goal<A> to) {
    const int64_t row = blockIdx.x / c.parts, begin = blockIdx.x % c.parts * c.chunk, end = begin + c.chunk < n ? begin + c.chunk : n;
    A v[1];
    add_rows<Op>(v, x + row * n, begin + threadIdx.x, end, THREADS, 1, how);
    A all = block_all<Op>(v[0]);
    if (c.parts > 1) {
        if (threadIdx.x == 0) folded[blockIdx.x] = all;
        if (!is_last(&counters[row], (unsigned)c.parts)) return;
        add_rows<Op>(v, folded + row * c.parts, threadIdx.x, c.parts, THREADS, 1, AS_IT_IS);
        all = block_all<Op>(v[0]);
    }
    if (threadIdx.x == 0) to.put(row, all);
}

template <template <class> class Op, class E, class A, int V>
static __global__ void fold_columns(const E *x, int64_t n, int64_t inner, const cut c, entry how, A *folded, unsigned *counters, goal<A> to) {
    const place p(c, V, n, inner);
    A v[V];
    add_rows<Op>(v, x + p.outer * n * inner + p.own, p.begin, p.end, p.slices, inner, how);
    across_parts<Op>(v, c, p, inner, folded, counters, [&](int64_t k, A sum) { to.put(p.outer * inner + k, sum); });
}

template <template <class> class Op, class E, class A, int V>
static void columns(const E *x, const pd_block &b, const cut &c, entry how, A *folded, unsigned *counters, goal<A> to) {
    const int64_t count = b.outer * (b.inner / V);
    if (b.n <= SHORT) launch(fold_short<Op, E, A, V>, (count + THREADS - 1) / THREADS, THREADS, x, count, b.n, b.inner, how, to);
    else launch(fold_columns<Op, E, A, V>, b.outer * c.groups * c.parts, THREADS, x, b.n, b.inner, c, how, folded, counters, to);
}
template <template <class> class Op, class E, class A> static void fold_to(const E *x, const pd_block &b, entry how, goal<A> to) {
    constexpr int V = vector_of(sizeof(E));
    if (b.outer <= 0 || b.inner <= 0) return;
    const cut c = cut_of(&b, (uintptr_t)x % (V * sizeof(E)) == 0, sizeof(E));
    A *folded;
    unsigned *counters;
    if (!room_for_parts(c, b, &folded, &counters)) return;
    if (c.rows && b.n > SHORT) launch(fold_rows<Op, E, A>, b.outer * c.parts, THREADS, x, b.n, c, how, folded, counters, to);
    else if (c.V == V) columns<Op, E, A, V>(x, b, c, how, folded, counters, to);
    else columns<Op, E, A, 1>(x, b, c, how, folded, counters, to);
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
        fold_to<plus>((const E *)x, pd_block{1, n, 1}, SQUARED, goal<double>{PD_F64, sum, 1, false});
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
    settle(); /* as the memory may be what a sum that waits will read */
    cudaMemcpyAsync(flag, &finite, sizeof finite, cudaMemcpyHostToDevice, pd_cuda_stream_now);
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(scale_kernel<E>, blocks_for(n, THREADS, 4), THREADS, (E *)x, n, by, flag);
    });
    cudaMemcpyAsync(&finite, flag, sizeof finite, cudaMemcpyDeviceToHost, pd_cuda_stream_now);
    cudaStreamSynchronize(pd_cuda_stream_now);
    return finite;
}
