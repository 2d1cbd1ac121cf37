/* Running sums along the middle axis of [outer, n, inner], in double or int64. A row (inner 1) takes a block, with PER
   elements for a thread at a time; a column takes a thread. */
#include "cuda/block.h"
#include "cuda/table.h"

enum { PER = 4, STRIDE = THREADS * PER };

template <class T> struct sum_of { typedef int64_t type; };
template <> struct sum_of<float> { typedef double type; };
template <> struct sum_of<double> { typedef double type; };

template <class E, class O> static __global__ void sum_rows(bool reverse, const E *x, O *out, int64_t n) {
    typedef typename sum_of<wide<E>>::type A;
    A before = 0, all;
    x += blockIdx.x * n;
    out += blockIdx.x * n;
    for (int64_t begin = 0; begin < n; begin += STRIDE) {
        A own[PER], sum = 0;
        int64_t first = begin + threadIdx.x * PER;
        for (int k = 0; k < PER; k++) {
            int64_t i = reverse ? n - 1 - first - k : first + k;
            if (first + k < n) sum += (A)widen(x[i]);
            own[k] = sum;
        }
        A left = before + block_before(sum, &all);
        for (int k = 0; k < PER && first + k < n; k++)
            out[reverse ? n - 1 - first - k : first + k] = narrow<O>((wide<O>)(left + own[k]));
        before += all;
    }
}
template <class E, class O>
static __global__ void sum_columns(bool reverse, const E *x, O *out, int64_t outer, int64_t n, int64_t inner) {
    typedef typename sum_of<wide<E>>::type A;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; c < outer * inner; c += step) {
        int64_t at = c / inner * n * inner + c % inner;
        A sum = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t k = at + (reverse ? n - 1 - i : i) * inner;
            sum += (A)widen(x[k]);
            out[k] = narrow<O>((wide<O>)sum);
        }
    }
}

template <class E, class O> static void run(bool reverse, const pd_block *b, const void *x, void *out) {
    if (b->inner == 1 && b->n > 32) launch(sum_rows<E, O>, b->outer, THREADS, reverse, (const E *)x, (O *)out, b->n);
    else
        launch(sum_columns<E, O>, blocks_for(b->outer * b->inner, THREADS, 1), THREADS, reverse, (const E *)x, (O *)out, b->outer, b->n,
               b->inner);
}
void pd_cuda_cumsum(bool reverse, pd_dtype t, pd_dtype, const pd_block *b, const void *x, void *out) {
    if (b->n <= 0) return;
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if constexpr (is_real<wide<E>>::value) run<E, E>(reverse, b, x, out);
        else run<E, int64_t>(reverse, b, x, out);
    });
}
