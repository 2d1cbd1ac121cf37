/* Sums, products and extremes along the middle axis of [outer, n, inner], sums of squares.

   The axis is cut into chunks whose length depends on shapes alone. The chunks' results are folded again until one is
   left, so the bits are the same in every run and on every device. A block folds a chunk of a row (inner 1); a thread
   folds a chunk of a column, or of a row that is one short chunk. */
#include "cuda/block.h"
#include "cuda/table.h"

enum { ROW_CHUNK = 4096, COLUMN_CHUNK = 64 };
static bool by_rows(const pd_block &b) { return b.inner == 1 && b.n > COLUMN_CHUNK; }

template <class T> struct fold_of { typedef int64_t type; }; /* the type in which values are folded */
template <> struct fold_of<float> { typedef float type; };
template <> struct fold_of<double> { typedef double type; };

/* What is done with an element before it is folded. */
enum entry { AS_IT_IS, IS_NONZERO, SQUARED };
template <class A, class E> static __device__ A enter(E e, entry how) {
    A v = (A)widen(e);
    return how == SQUARED ? v * v : how == IS_NONZERO ? (A)(widen(e) != 0) : v;
}

template <template <class> class Op, class E, class A>
static __global__ void fold_rows(const E *x, A *out, int64_t n, int64_t parts, int64_t chunk, entry how) {
    int64_t part = blockIdx.x % parts, begin = part * chunk, end = begin + chunk < n ? begin + chunk : n;
    const E *row = x + blockIdx.x / parts * n;
    A v = Op<A>::none();
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) v = Op<A>::of(v, enter<A>(row[i], how));
    v = block_all<Op>(v);
    if (threadIdx.x == 0) out[blockIdx.x] = v;
}

template <template <class> class Op, class E, class A>
static __global__ void fold_columns(const E *x, A *out, int64_t count, int64_t n, int64_t inner, int64_t parts, int64_t chunk, entry how) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    /* at: [outer, parts, inner] */
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        int64_t k = at % inner, part = at / inner % parts, o = at / inner / parts;
        int64_t begin = part * chunk, end = begin + chunk < n ? begin + chunk : n;
        A v = Op<A>::none();
        for (int64_t i = begin; i < end; i++) v = Op<A>::of(v, enter<A>(x[(o * n + i) * inner + k], how));
        out[at] = v;
    }
}

/* Converts `count` folded values to elements of type E. */
template <class A, class E> static __global__ void finish(const A *x, E *out, int64_t count, A divide, bool truth) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        A v = divide == 1 ? x[i] : x[i] / divide;
        out[i] = narrow<E>((wide<E>)(truth ? (A)(v != 0) : v));
    }
}

template <template <class> class Op, class E, class A> static void stage(const E *x, const pd_block &b, A *out, int64_t chunk, entry how) {
    int64_t parts = b.n ? (b.n + chunk - 1) / chunk : 1, count = b.outer * parts * b.inner;
    if (by_rows(b)) launch(fold_rows<Op, E, A>, count, THREADS, x, out, b.n, parts, chunk, how);
    else launch(fold_columns<Op, E, A>, blocks_for(count, THREADS, 1), THREADS, x, out, count, b.n, b.inner, parts, chunk, how);
}

/* Returns [outer, inner] of type A; NULL: no memory. */
template <template <class> class Op, class E, class A> static A *fold_all(const E *x, pd_block b, entry how) {
    int64_t chunk = by_rows(b) ? ROW_CHUNK : COLUMN_CHUNK;
    if (by_rows(b) && b.n > ROW_CHUNK * (int64_t)ROW_CHUNK) chunk = (b.n + ROW_CHUNK - 1) / ROW_CHUNK;
    const A *from = nullptr;
    for (;;) {
        int64_t parts = b.n ? (b.n + chunk - 1) / chunk : 1;
        A *to = (A *)pd_cuda_lent->room((size_t)(b.outer * parts * b.inner) * sizeof(A));
        if (!to) return nullptr;
        if (from) stage<Op, A, A>(from, b, to, chunk, AS_IT_IS);
        else stage<Op, E, A>(x, b, to, chunk, how);
        if (parts == 1) return to;
        from = to;
        b.n = parts;
    }
}

template <template <class> class Op, class E> static void fold_to(const E *x, const pd_block *b, pd_dtype out_t, void *out, entry how, bool mean) {
    typedef typename fold_of<wide<E>>::type A;
    int64_t count = b->outer * b->inner;
    if (!count) return;
    A *folded = fold_all<Op, E, A>(x, *b, how);
    if (!folded) return;
    by_type(out_t, [&](auto e) {
        typedef typename decltype(e)::type O;
        launch(finish<A, O>, blocks_for(count, THREADS, 1), THREADS, (const A *)folded, (O *)out, count, mean ? (A)b->n : (A)1, how == IS_NONZERO || out_t == PD_BOOL);
    });
}

void pd_cuda_fold(pd_fold f, pd_dtype t, pd_dtype out_t, const pd_block *b, const void *x, void *out) {
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        const E *from = (const E *)x;
        switch (f) {
        case PD_FOLD_SUM: case PD_FOLD_MEAN: return fold_to<plus, E>(from, b, out_t, out, AS_IT_IS, f == PD_FOLD_MEAN);
        case PD_FOLD_SQUARES: return fold_to<plus, E>(from, b, out_t, out, SQUARED, false);
        case PD_FOLD_PROD: return fold_to<times, E>(from, b, out_t, out, AS_IT_IS, false);
        case PD_FOLD_MAX: return fold_to<larger, E>(from, b, out_t, out, AS_IT_IS, false);
        case PD_FOLD_MIN: return fold_to<smaller, E>(from, b, out_t, out, AS_IT_IS, false);
        case PD_FOLD_ANY: return fold_to<plus, E>(from, b, out_t, out, IS_NONZERO, false);
        case PD_FOLD_ALL: return fold_to<times, E>(from, b, out_t, out, IS_NONZERO, false);
        }
    });
}

void pd_cuda_sum_squares(pd_dtype t, int64_t n, const void *x, double *sum) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        double *folded = fold_all<plus, E, double>((const E *)x, pd_block{1, n, 1}, SQUARED);
        if (folded) launch(finish<double, double>, 1, THREADS, (const double *)folded, sum, (int64_t)1, 1.0, false);
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
