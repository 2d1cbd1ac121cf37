/* Resizing along the middle axis of [outer, n, inner] by tables. In the gradient there is a thread for each element of
   the input, which searches the table for results that depend on it, in order. */
#include "cuda/block.h"
#include "cuda/table.h"

template <class T> static __global__ void forward(const __grid_constant__ pd_resample c, const T *x, T *y) {
    int64_t step = (int64_t)gridDim.x * blockDim.x, count = c.outer * c.to * c.inner;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        int64_t i = at % c.inner, j = at / c.inner % c.to;
        const T *row = x + at / c.inner / c.to * c.from * c.inner + i;
        const int64_t *index = c.index + j * c.taps;
        const double *weight = c.weight + j * c.taps;
        T sum = 0;
        for (int64_t k = 0; k < c.taps; k += 2)
            sum = c.taps == 1 ? row[index[0] * c.inner]
                              : (T)(sum + ((T)weight[k] * row[index[k] * c.inner] + (T)weight[k + 1] * row[index[k + 1] * c.inner]));
        y[at] = sum;
    }
}

/* Indices in tables of neighbours ascend, so the results that depend on element `at` are between two results that a
   binary search finds. */
static __device__ int64_t first_that(const pd_resample &c, int64_t at, bool after) {
    int64_t low = 0, high = c.to;
    while (low < high) {
        int64_t mid = (low + high) / 2, i = c.index[mid * c.taps + (after ? 0 : c.taps - 1)];
        if (after ? i <= at : i < at) low = mid + 1;
        else high = mid;
    }
    return low;
}
template <class T> static __global__ void backward(const __grid_constant__ pd_resample c, const T *x, T *y) {
    int64_t step = (int64_t)gridDim.x * blockDim.x, count = c.outer * c.from * c.inner;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        int64_t i = at % c.inner, here = at / c.inner % c.from, end = first_that(c, here, true);
        const T *row = x + at / c.inner / c.from * c.to * c.inner + i;
        T sum = 0;
        for (int64_t j = first_that(c, here, false); j < end; j++)
            for (int64_t k = 0; k < c.taps; k++)
                if (c.index[j * c.taps + k] == here) sum += (T)c.weight[j * c.taps + k] * row[j * c.inner];
        y[at] = sum;
    }
}

template <class T> static void run(const pd_resample *c, const void *x, void *y) {
    int64_t count = c->outer * c->inner * (c->transposed ? c->from : c->to);
    if (c->transposed) launch(backward<T>, blocks_for(count, THREADS, 1), THREADS, *c, (const T *)x, (T *)y);
    else launch(forward<T>, blocks_for(count, THREADS, 1), THREADS, *c, (const T *)x, (T *)y);
}
void pd_cuda_resample(const pd_resample *c, const void *x, void *y) {
    if (c->t == PD_F64) run<double>(c, x, y);
    else run<float>(c, x, y);
}
