/* Pooling, with a thread for each result. In the gradients there is a thread for each element of the input, which
   gathers from the windows over it in their order. */
#include "cuda/block.h"
#include "cuda/table.h"
#include "kernels/pool_window.h"

enum { NOWHERE = 255 };

/* The place of an element of x or y. */
struct spot { int64_t n, c, h, w; };
static __device__ spot spot_of(const pd_pool &c, int64_t i, int64_t H, int64_t W) {
    if (c.nhwc) return {i / c.C / W / H, i % c.C, i / c.C / W % H, i / c.C % W};
    return {i / W / H / c.C, i / W / H % c.C, i / W % H, i % W};
}
static __device__ int64_t at(const pd_pool &c, const spot &s, int64_t h, int64_t w, int64_t H, int64_t W) {
    return c.nhwc ? ((s.n * H + h) * W + w) * c.C + s.c : ((s.n * c.C + s.c) * H + h) * W + w;
}
static __device__ int64_t place_of(const pd_pool &c, const void *place, int64_t i) {
    if (c.wide) return ((const int32_t *)place)[i];
    uint8_t p = ((const uint8_t *)place)[i];
    return p == NOWHERE ? -1 : p;
}
template <class F> static __device__ void each_element(int64_t count, F f) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) f(i);
}
static int64_t results(const pd_pool *c) { return c->N * c->C * c->P * c->Q; }
static int64_t inputs(const pd_pool *c) { return c->N * c->C * c->H * c->W; }
static int64_t blocks(int64_t count) { return blocks_for(count, THREADS, 1); }

template <class E> static __global__ void max_kernel(const __grid_constant__ pd_pool c, const E *x, E *y, void *place) {
    typedef wide<E> T;
    int64_t dh = c.adaptive ? 1 : c.dilation[0], dw = c.adaptive ? 1 : c.dilation[1];
    each_element(c.N * c.C * c.P * c.Q, [&](int64_t i) {
        spot s = spot_of(c, i, c.P, c.Q);
        pd_span rows = pd_pool_span(&c, 0, s.h), cols = pd_pool_span(&c, 1, s.w);
        T best = limits<T>::low();
        int64_t tap = rows.from < rows.to && cols.from < cols.to ? rows.from * c.kernel[1] + cols.from : -1;
        for (int64_t r = rows.from; r < rows.to; r++)
            for (int64_t q = cols.from; q < cols.to; q++) {
                T v = widen(x[at(c, s, rows.start + r * dh, cols.start + q * dw, c.H, c.W)]);
                if (!(v > best) && v == v) continue;
                best = v;
                tap = r * c.kernel[1] + q;
            }
        y[i] = narrow<E>(best);
        if (c.wide) ((int32_t *)place)[i] = (int32_t)tap;
        else ((uint8_t *)place)[i] = (uint8_t)tap;
    });
}
/* For each window over place s of the input, in their order, calls f(place of its result, the row and column of the
   window that s is in, all rows and columns). */
template <class F> static __device__ void each_window(const pd_pool &c, const spot &s, F f) {
    int64_t p0, p1, q0, q1;
    if (c.P * c.Q <= 0) return;
    pd_pool_covers(&c, 0, s.h, &p0, &p1);
    pd_pool_covers(&c, 1, s.w, &q0, &q1);
    for (int64_t p = p0; p <= p1; p++) {
        pd_span rows = pd_pool_span(&c, 0, p);
        int64_t row = pd_pool_tap_at(&c, 0, rows, s.h);
        for (int64_t q = q0; q <= q1 && row >= 0; q++) {
            pd_span cols = pd_pool_span(&c, 1, q);
            int64_t col = pd_pool_tap_at(&c, 1, cols, s.w);
            if (col >= 0) f(at(c, s, p, q, c.P, c.Q), row, col, rows, cols);
        }
    }
}
template <class E> static __global__ void max_grad_kernel(const __grid_constant__ pd_pool c, const E *g, const void *place, E *gx) {
    each_element(c.N * c.C * c.H * c.W, [&](int64_t i) {
        wide<E> sum = 0;
        each_window(c, spot_of(c, i, c.H, c.W), [&](int64_t from, int64_t row, int64_t col, pd_span, pd_span) {
            if (place_of(c, place, from) == row * c.kernel[1] + col) sum += widen(g[from]);
        });
        gx[i] = narrow<E>(sum);
    });
}

template <class T> static __device__ T share_of(const pd_pool &c, pd_span rows, pd_span cols) {
    double d = pd_pool_size(&c, pd_pool_share(&c, 0, rows), pd_pool_share(&c, 1, cols));
    return d != 0 ? (T)(1.0 / d) : (T)0;
}
template <class E> static __global__ void avg_kernel(const __grid_constant__ pd_pool c, const E *x, E *y) {
    typedef wide<E> T;
    int64_t dh = c.adaptive ? 1 : c.dilation[0], dw = c.adaptive ? 1 : c.dilation[1];
    each_element(c.N * c.C * c.P * c.Q, [&](int64_t i) {
        spot s = spot_of(c, i, c.P, c.Q);
        pd_span rows = pd_pool_span(&c, 0, s.h), cols = pd_pool_span(&c, 1, s.w);
        T sum = 0;
        for (int64_t r = rows.from; r < rows.to; r++)
            for (int64_t q = cols.from; q < cols.to; q++)
                sum += widen(x[at(c, s, rows.start + r * dh, cols.start + q * dw, c.H, c.W)]);
        T d = (T)pd_pool_size(&c, pd_pool_share(&c, 0, rows), pd_pool_share(&c, 1, cols));
        y[i] = narrow<E>(d != 0 ? sum / d : (T)0);
    });
}
template <class E> static __global__ void avg_grad_kernel(const __grid_constant__ pd_pool c, const E *g, E *gx) {
    typedef wide<E> T;
    each_element(c.N * c.C * c.H * c.W, [&](int64_t i) {
        T sum = 0;
        each_window(c, spot_of(c, i, c.H, c.W), [&](int64_t from, int64_t, int64_t, pd_span rows, pd_span cols) {
            sum += widen(g[from]) * share_of<T>(c, rows, cols);
        });
        gx[i] = narrow<E>(sum);
    });
}

/* y = x at the places, or (x NULL) index the places as positions in their planes. */
template <class W>
static __global__ void take_kernel(const __grid_constant__ pd_pool c, const W *x, const void *place, W *y, int64_t *index) {
    each_element(c.N * c.C * c.P * c.Q, [&](int64_t i) {
        spot s = spot_of(c, i, c.P, c.Q);
        int64_t to = pd_pool_position(&c, place_of(c, place, i), s.h, s.w);
        if (!x) index[i] = to < 0 ? 0 : to;
        else y[i] = to < 0 ? W{} : x[at(c, s, to / c.W, to % c.W, c.H, c.W)];
    });
}

void pd_cuda_max_pool(const pd_pool *c, const void *x, void *y, void *place) {
    by_type(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(max_kernel<E>, blocks(results(c)), THREADS, *c, (const E *)x, (E *)y, place);
    });
}
void pd_cuda_max_pool_grad(const pd_pool *c, const void *g, const void *place, void *gx) {
    by_float(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(max_grad_kernel<E>, blocks(inputs(c)), THREADS, *c, (const E *)g, place, (E *)gx);
    });
}
void pd_cuda_avg_pool(const pd_pool *c, const void *x, void *y) {
    by_float(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(avg_kernel<E>, blocks(results(c)), THREADS, *c, (const E *)x, (E *)y);
    });
}
void pd_cuda_avg_pool_grad(const pd_pool *c, const void *g, void *gx) {
    by_float(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(avg_grad_kernel<E>, blocks(inputs(c)), THREADS, *c, (const E *)g, (E *)gx);
    });
}
void pd_cuda_max_pool_take(const pd_pool *c, const void *x, const void *place, void *y) {
    by_type(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        by_size(sizeof(E), [&](auto word) {
            typedef typename decltype(word)::type W;
            launch(take_kernel<W>, blocks(results(c)), THREADS, *c, (const W *)x, place, (W *)y, nullptr);
        });
    });
}
void pd_cuda_max_pool_index(const pd_pool *c, const void *place, int64_t *index) {
    launch(take_kernel<uint8_t>, blocks(results(c)), THREADS, *c, nullptr, place, nullptr, index);
}
