/* softmax, log_softmax and their gradient along the middle axis of [outer, n, inner]. A row (inner 1) takes a block, a
   column a thread. */
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

template <class E> static __global__ void softmax_rows(bool log, const E *x, E *y, int64_t n) {
    typedef wide<E> T;
    int64_t at = blockIdx.x * n;
    softmax_one(log, x + at, y + at, n, 1, threadIdx.x, THREADS, [](T v) { return block_all<larger>(v); }, [](T v) { return block_all<plus>(v); });
}
template <class E> static __global__ void softmax_columns(bool log, const E *x, E *y, int64_t outer, int64_t n, int64_t inner) {
    typedef wide<E> T;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < outer * inner; c += step) {
        int64_t at = c / inner * n * inner + c % inner;
        softmax_one(log, x + at, y + at, n, inner, 0, 1, [](T v) { return v; }, [](T v) { return v; });
    }
}
template <class E> static __global__ void grad_rows(bool log, const E *g, const E *y, E *gx, int64_t n) {
    typedef wide<E> T;
    int64_t at = blockIdx.x * n;
    grad_one(log, g + at, y + at, gx + at, n, 1, threadIdx.x, THREADS, [](T v) { return block_all<plus>(v); });
}
template <class E> static __global__ void grad_columns(bool log, const E *g, const E *y, E *gx, int64_t outer, int64_t n, int64_t inner) {
    typedef wide<E> T;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < outer * inner; c += step) {
        int64_t at = c / inner * n * inner + c % inner;
        grad_one(log, g + at, y + at, gx + at, n, inner, 0, 1, [](T v) { return v; });
    }
}

void pd_cuda_softmax(bool log, pd_dtype t, const pd_block *b, const void *x, void *y) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (b->n == 0) return;
        if (b->inner == 1) launch(softmax_rows<E>, b->outer, THREADS, log, (const E *)x, (E *)y, b->n);
        else launch(softmax_columns<E>, blocks_for(b->outer * b->inner, THREADS, 1), THREADS, log, (const E *)x, (E *)y, b->outer, b->n, b->inner);
    });
}
void pd_cuda_softmax_grad(bool log, pd_dtype t, const pd_block *b, const void *g, const void *y, void *gx) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (b->n == 0) return;
        if (b->inner == 1) launch(grad_rows<E>, b->outer, THREADS, log, (const E *)g, (const E *)y, (E *)gx, b->n);
        else launch(grad_columns<E>, blocks_for(b->outer * b->inner, THREADS, 1), THREADS, log, (const E *)g, (const E *)y, (E *)gx, b->outer, b->n, b->inner);
    });
}
