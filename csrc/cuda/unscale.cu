/* What a loss scaler does to gradients. All that it reads and writes stays on the device, so the host does not wait. */
#include "cuda/block.h"
#include "cuda/table.h"

template <class E> static __global__ void unscale_kernel(E *x, int64_t n, const float *by, float *found) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    wide<E> factor = (wide<E>)*by;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        wide<E> v = widen(x[i]);
        if (v - v != 0) *found = 1; /* all threads that write write this value */
        x[i] = narrow<E>(v * factor);
    }
}
void pd_cuda_unscale(pd_dtype t, int64_t n, const float *by, float *found, void *x) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(unscale_kernel<E>, blocks_for(n, THREADS, 4), THREADS, (E *)x, n, by, found);
    });
}
