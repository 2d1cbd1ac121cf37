/* Layer and RMS norm of rows [rows, n], with a block for each row. The gradients of weight and bias are sums over rows:
   first over parts of the rows, whose length depends on shapes alone, then over the parts. */
#include "cuda/block.h"
#include "cuda/table.h"

template <class E, class T>
static __global__ void norm_kernel(const E *x, const E *w, const E *b, E *y, T *mean, T *rstd, int64_t n, T eps, bool rms) {
    int64_t at = blockIdx.x * n;
    T sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < n && !rms; i += THREADS) sum += widen(x[at + i]);
    T m = rms ? (T)0 : block_all<plus>(sum) / (T)n;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        T v = widen(x[at + i]) - m;
        squares += v * v;
    }
    T r = 1 / V_SQRT(block_all<plus>(squares) / (T)n + eps);
    if (threadIdx.x == 0) mean[blockIdx.x] = m, rstd[blockIdx.x] = r;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        T v = (widen(x[at + i]) - m) * r;
        if (w) v *= widen(w[i]);
        if (b) v += widen(b[i]);
        y[at + i] = narrow<E>(v);
    }
}

template <class E, class T>
static __global__ void input_grad_kernel(const E *g, const E *x, const E *w, const T *mean, const T *rstd, E *gx, int64_t n, bool rms) {
    int64_t at = blockIdx.x * n;
    T m = mean[blockIdx.x], r = rstd[blockIdx.x], sum = 0, slope = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        T gh = widen(g[at + i]) * (w ? widen(w[i]) : (T)1);
        sum += gh;
        slope += gh * (widen(x[at + i]) - m);
    }
    sum = block_all<plus>(sum);
    T shift = rms ? (T)0 : sum / (T)n;
    slope = block_all<plus>(slope) / (T)n * r * r;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        T gh = widen(g[at + i]) * (w ? widen(w[i]) : (T)1);
        gx[at + i] = narrow<E>(r * (gh - shift - (widen(x[at + i]) - m) * slope));
    }
}

/* partial[part][2][n]: sums of g hat and g over the part's rows. */
template <class E, class T>
static __global__ void weight_parts_kernel(const E *g, const E *x, const T *mean, const T *rstd, T *partial, int64_t rows, int64_t n, int64_t length) {
    int64_t blocks = (n + THREADS - 1) / THREADS, part = blockIdx.x / blocks, i = blockIdx.x % blocks * THREADS + threadIdx.x;
    int64_t begin = part * length, end = begin + length < rows ? begin + length : rows;
    T gw = 0, gb = 0;
    if (i >= n) return;
    for (int64_t r = begin; r < end; r++) {
        T v = widen(g[r * n + i]);
        gw += v * ((widen(x[r * n + i]) - mean[r]) * rstd[r]);
        gb += v;
    }
    partial[(2 * part) * n + i] = gw;
    partial[(2 * part + 1) * n + i] = gb;
}
template <class E, class T> static __global__ void weight_sum_kernel(const T *partial, E *gw, E *gb, int64_t parts, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    T w = 0, b = 0;
    if (i >= n) return;
    for (int64_t p = 0; p < parts; p++) {
        w += partial[(2 * p) * n + i];
        b += partial[(2 * p + 1) * n + i];
    }
    if (gw) gw[i] = narrow<E>(w);
    if (gb) gb[i] = narrow<E>(b);
}

static int64_t part_length(const pd_row_norm *c) { return c->rows <= 32 * 256 ? 32 : (c->rows + 255) / 256; }
static int64_t parts_of(const pd_row_norm *c) { return (c->rows + part_length(c) - 1) / part_length(c); }

size_t pd_cuda_row_norm_scratch(const pd_row_norm *c) { return (size_t)(2 * parts_of(c) * c->n) * sizeof(double) + 64; }

void pd_cuda_row_norm(pd_dtype t, const pd_row_norm *c, const void *x, const void *w, const void *b, void *y, void *mean, void *rstd) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        if (c->n) launch(norm_kernel<E, T>, c->rows, THREADS, (const E *)x, (const E *)w, (const E *)b, (E *)y, (T *)mean, (T *)rstd, c->n, (T)c->eps, c->rms);
    });
}

void pd_cuda_row_norm_grad(pd_dtype t, const pd_row_norm *c, const void *g, const void *x, const void *w, const void *mean, const void *rstd, void *gx,
                           void *gw, void *gb, void *scratch) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        if (!c->n) return;
        if (gx)
            launch(input_grad_kernel<E, T>, c->rows, THREADS, (const E *)g, (const E *)x, (const E *)w, (const T *)mean, (const T *)rstd, (E *)gx, c->n, c->rms);
        if (!gw && !gb) return;
        int64_t parts = parts_of(c), blocks = (c->n + THREADS - 1) / THREADS;
        launch(weight_parts_kernel<E, T>, parts * blocks, THREADS, (const E *)g, (const E *)x, (const T *)mean, (const T *)rstd, (T *)scratch, c->rows, c->n, part_length(c));
        launch(weight_sum_kernel<E, T>, blocks, THREADS, (const T *)scratch, (E *)gw, (E *)gb, parts, c->n);
    });
}
