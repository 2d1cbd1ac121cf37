/* softmax, log_softmax and their gradient along the middle axis of [outer, n, inner]. A row (inner 1) takes a block, a
   short one a warp, a column takes a thread. */
#include "cuda/block.h"
#include "cuda/table.h"

/* One softmax of n elements, which are `inner` apart. This thread has those from `first` on in steps of `step`; `all`
   combines the values of the threads that share the row. */
template <class E, class Max, class Sum>
static __device__ void softmax_one(bool log, const E *x, E *y, int64_t n, int64_t inner, int64_t first, int64_t step, Max all_max, Sum all_sum) {
    typedef wide<E> T;
    T top = limits<T>::low(), sum = 0;
    for (int64_t i = first; i < n; i += step) top = larger<T>::of(top, widen(x[i * inner]));
    top = all_max(top);
    for (int64_t i = first; i < n; i += step) sum += V_EXP(widen(x[i * inner]) - top);
    sum = all_sum(sum);
    T l = V_LOG(sum), by = 1 / sum;
    for (int64_t i = first; i < n; i += step) {
        T v = widen(x[i * inner]) - top;
        y[i * inner] = narrow<E>(log ? v - l : V_EXP(v) * by);
    }
}

template <class E, class Sum>
static __device__ void grad_one(bool log, const E *g, const E *y, E *gx, int64_t n, int64_t inner, int64_t first, int64_t step, Sum all_sum) {
    typedef wide<E> T;
    T sum = 0;
    for (int64_t i = first; i < n; i += step) sum += log ? widen(g[i * inner]) : widen(g[i * inner]) * widen(y[i * inner]);
    sum = all_sum(sum);
    for (int64_t i = first; i < n; i += step) {
        T gi = widen(g[i * inner]), yi = widen(y[i * inner]);
        gx[i * inner] = narrow<E>(log ? gi - V_EXP(yi) * sum : yi * (gi - sum));
    }
}

/* The row of a group of G threads; -1: there are fewer rows. */
template <int G> static __device__ int64_t own_row(int64_t rows) {
    int64_t row = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G;
    return row < rows ? row : -1;
}
template <class E, int G> static __global__ void softmax_rows(bool log, const E *x, E *y, int64_t rows, int64_t n) {
    typedef wide<E> T;
    const int64_t row = own_row<G>(rows), at = row * n;
    if (row < 0) return; /* a whole warp; with G == THREADS nobody */
    softmax_one(log, x + at, y + at, n, 1, threadIdx.x % G, G, [](T v) { return group_all<G, larger>(v); },
                [](T v) { return group_all<G, plus>(v); });
}
template <class E> static __global__ void softmax_columns(bool log, const E *x, E *y, int64_t outer, int64_t n, int64_t inner) {
    typedef wide<E> T;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < outer * inner; c += step) {
        int64_t at = c / inner * n * inner + c % inner;
        softmax_one(log, x + at, y + at, n, inner, 0, 1, [](T v) { return v; }, [](T v) { return v; });
    }
}
template <class E, int G> static __global__ void grad_rows(bool log, const E *g, const E *y, E *gx, int64_t rows, int64_t n) {
    typedef wide<E> T;
    const int64_t row = own_row<G>(rows), at = row * n;
    if (row < 0) return;
    grad_one(log, g + at, y + at, gx + at, n, 1, threadIdx.x % G, G, [](T v) { return group_all<G, plus>(v); });
}
template <class E> static __global__ void grad_columns(bool log, const E *g, const E *y, E *gx, int64_t outer, int64_t n, int64_t inner) {
    typedef wide<E> T;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < outer * inner; c += step) {
        int64_t at = c / inner * n * inner + c % inner;
        grad_one(log, g + at, y + at, gx + at, n, inner, 0, 1, [](T v) { return v; });
    }
}

enum { SHORT = 1024 }; /* elements of a row that a warp takes */
static int64_t blocks_of(const pd_block *b) { return b->n > SHORT ? b->outer : (b->outer + WARPS - 1) / WARPS; }

void pd_cuda_softmax(bool log, pd_dtype t, const pd_block *b, const void *x, void *y) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (b->n == 0) return;
        auto rows = b->n > SHORT ? softmax_rows<E, THREADS> : softmax_rows<E, WARP>;
        if (b->inner == 1) launch(rows, blocks_of(b), THREADS, log, (const E *)x, (E *)y, b->outer, b->n);
        else launch(softmax_columns<E>, blocks_for(b->outer * b->inner, THREADS, 1), THREADS, log, (const E *)x, (E *)y, b->outer, b->n, b->inner);
    });
}
void pd_cuda_softmax_grad(bool log, pd_dtype t, const pd_block *b, const void *g, const void *y, void *gx) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (b->n == 0) return;
        auto rows = b->n > SHORT ? grad_rows<E, THREADS> : grad_rows<E, WARP>;
        if (b->inner == 1) launch(rows, blocks_of(b), THREADS, log, (const E *)g, (const E *)y, (E *)gx, b->outer, b->n);
        else launch(grad_columns<E>, blocks_for(b->outer * b->inner, THREADS, 1), THREADS, log, (const E *)g, (const E *)y, (E *)gx, b->outer, b->n, b->inner);
    });
}
