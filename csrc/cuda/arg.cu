/* The place of the largest or smallest element along the middle axis of [outer, n, inner]: of equal ones the first, and
   NaN wins. A row (inner 1) takes a block, a column a thread. */
#include "cuda/block.h"
#include "cuda/table.h"

template <class T> struct champion {
    T v;
    int64_t i; /* -1: none yet */
    __device__ bool nan() const { return v != v; }
    __device__ void meet(const champion &o, bool largest) {
        if (o.i < 0) return;
        bool wins = i < 0 || (o.nan() && !nan()) || (!nan() && (largest ? o.v > v : o.v < v));
        bool same = i >= 0 && !wins && ((o.nan() && nan()) || o.v == v);
        if (wins || (same && o.i < i)) *this = o;
    }
};

template <class E, class T>
static __device__ champion<T> best_of(const E *x, int64_t n, int64_t inner, int64_t first, int64_t step, bool largest) {
    champion<T> best = {0, -1};
    for (int64_t i = first; i < n; i += step) best.meet(champion<T>{widen(x[i * inner]), i}, largest);
    return best;
}
template <class E> static __device__ void put_best(const E *x, int64_t inner, int64_t i, E *value, int64_t *index) {
    *index = i;
    if (value) *value = x[i * inner];
}

template <class E> static __global__ void arg_rows(bool largest, const E *x, E *values, int64_t *index, int64_t n) {
    typedef wide<E> T;
    __shared__ champion<T> all[THREADS];
    int64_t row = blockIdx.x;
    all[threadIdx.x] = best_of<E, T>(x + row * n, n, 1, threadIdx.x, THREADS, largest);
    for (int d = THREADS / 2; d; d /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < d) all[threadIdx.x].meet(all[threadIdx.x + d], largest);
    }
    if (threadIdx.x == 0) put_best(x + row * n, 1, all[0].i, values ? values + row : nullptr, index + row);
}
template <class E>
static __global__ void arg_columns(bool largest, const E *x, E *values, int64_t *index, int64_t outer, int64_t n, int64_t inner) {
    typedef wide<E> T;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < outer * inner; c += step) {
        const E *column = x + c / inner * n * inner + c % inner;
        champion<T> best = best_of<E, T>(column, n, inner, 0, 1, largest);
        put_best(column, inner, best.i, values ? values + c : nullptr, index + c);
    }
}

void pd_cuda_arg(bool largest, pd_dtype t, const pd_block *b, const void *x, void *values, int64_t *index) {
    if (b->n <= 0) return;
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (b->inner == 1 && b->n > 32) launch(arg_rows<E>, b->outer, THREADS, largest, (const E *)x, (E *)values, index, b->n);
        else
            launch(arg_columns<E>, blocks_for(b->outer * b->inner, THREADS, 1), THREADS, largest, (const E *)x, (E *)values, index, b->outer,
                   b->n, b->inner);
    });
}
