/* Layer and RMS norm of rows [rows, n], after the sum of two tensors if there are two, or if a sum waits to be launched. A
   group of G threads has a row: a warp a short one, a block a long one. Each thread keeps the first elements that it reads
   of a row in registers.

   The gradient is one pass over the rows. A block has a part of them, whose length depends on shapes alone, and also
   sums the gradients of weight and bias over its part, and with SUMS the columns of what it stores for y, or for x. Of
   every FAN parts, and then of all, the block that ends last adds
   up the sums, in the order of the parts. */
#include "cuda/block.h"
#include "cuda/later.h"
#include "cuda/table.h"

/* Steps of V elements of a row that each thread keeps. */
enum { STEPS = 4 };

/* ---- V elements of any dtype that is computed in T, from `at` on -------------------------------------------------- */

template <class E, int V> static __device__ void get_as(const void *p, int64_t at, wide<E> (&v)[V]) {
    pack<E, V> e = *(const pack<E, V> *)((const E *)p + at);
    for (int k = 0; k < V; k++) v[k] = widen(e.e[k]);
}
template <int V> static __device__ void get(pd_dtype t, const void *p, int64_t at, float (&v)[V]) {
    if (t == PD_F32) get_as<float>(p, at, v);
    else if (t == PD_BF16) get_as<pd_bf16>(p, at, v);
    else get_as<pd_f16>(p, at, v);
}
template <int V> static __device__ void get(pd_dtype, const void *p, int64_t at, double (&v)[V]) { get_as<double>(p, at, v); }

template <class E, int V> static __device__ void put_as(void *p, int64_t at, const wide<E> (&v)[V]) {
    pack<E, V> e;
    for (int k = 0; k < V; k++) e.e[k] = narrow<E>(v[k]);
    *(pack<E, V> *)((E *)p + at) = e;
}
template <int V> static __device__ void put(pd_dtype t, void *p, int64_t at, const float (&v)[V]) {
    if (t == PD_F32) put_as<float>(p, at, v);
    else if (t == PD_BF16) put_as<pd_bf16>(p, at, v);
    else put_as<pd_f16>(p, at, v);
}
template <int V> static __device__ void put(pd_dtype, void *p, int64_t at, const double (&v)[V]) { put_as<double>(p, at, v); }

static __device__ float rounded(pd_dtype t, float v) {
    return t == PD_F32 ? v : t == PD_BF16 ? widen(narrow<pd_bf16>(v)) : widen(narrow<pd_f16>(v));
}
static __device__ double rounded(pd_dtype, double v) { return v; }

/* Calls f(i, k) for the kept elements of a thread, V from i on in step k, and rest(i) for the others. */
template <int V, int G, class F, class R> static __device__ void each_of_row(int64_t n, F f, R rest) {
    const int64_t lane = threadIdx.x % G;
    UNROLLED for (int k = 0; k < STEPS; k++)
        if ((k * G + lane) * V < n) f((k * G + lane) * V, k);
    if constexpr (G == THREADS)
        for (int64_t i = (STEPS * G + lane) * V; i < n; i += G * V) rest(i);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <class T, int V, int G>
static __global__ void norm_kernel(const pd_row_norm c, const void *x, const void *y, const void *w, const void *b, void *s, void *out, void *low,
                                   T *mean, T *rstd) {
    const int64_t row = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G, at = row * c.n, n = row < c.rows ? c.n : 0;
    T kept[STEPS][V], sum = 0, squares = 0;
    auto read = [&](int64_t i, T (&v)[V]) {
        get(c.x, x, at + i, v);
        if (y) {
            T u[V];
            get(c.y, y, at + i, u);
            for (int e = 0; e < V; e++) v[e] = rounded(c.s, v[e] + u[e]);
            put(c.s, s, at + i, v);
        }
        for (int e = 0; e < V; e++) sum += v[e];
    };
    auto again = [&](int64_t i, T (&v)[V]) { get(c.s, y ? s : x, at + i, v); };
    each_of_row<V, G>(n, [&](int64_t i, int k) { read(i, kept[k]); }, [&](int64_t i) { T v[V]; read(i, v); });
    const T m = c.rms ? (T)0 : group_all<G, plus>(sum) / (T)c.n;
    auto square = [&](const T (&v)[V]) {
        for (int e = 0; e < V; e++) squares += (v[e] - m) * (v[e] - m);
    };
    each_of_row<V, G>(n, [&](int64_t, int k) { square(kept[k]); }, [&](int64_t i) { T v[V]; again(i, v); square(v); });
    const T variance = group_all<G, plus>(squares) / (T)c.n, r = 1 / V_SQRT(variance + (T)c.eps);
    if (threadIdx.x % G == 0 && n) mean[row] = m, rstd[row] = r;
    auto write = [&](int64_t i, T (&v)[V]) {
        T u[V];
        for (int e = 0; e < V; e++) v[e] = (v[e] - m) * r;
        if (w) {
            get(c.w, w, i, u);
            for (int e = 0; e < V; e++) v[e] *= u[e];
        }
        if (b) {
            get(c.w, b, i, u);
            for (int e = 0; e < V; e++) v[e] += u[e];
        }
        put(c.out, out, at + i, v);
        if (low) put(c.low, low, at + i, v);
    };
    each_of_row<V, G>(n, [&](int64_t i, int k) { write(i, kept[k]); }, [&](int64_t i) { T v[V]; again(i, v); write(i, v); });
}

/* ---- the gradient ------------------------------------------------------------------------------------------------ */

/* V elements of partial[part][2 + SUMS][n], the sums of g hat and g over the part's rows. */
template <class T, int V> static __device__ void put_sums(T *to, int64_t i, int64_t n, const T (&gw)[V], const T (&gb)[V], bool first) {
    for (int e = 0; e < V; e++) {
        to[i + e] = first ? gw[e] : to[i + e] + gw[e];
        to[n + i + e] = first ? gb[e] : to[n + i + e] + gb[e];
    }
}

/* Where the sums over all rows go; each may be NULL. parts: of blocks, [2 + SUMS][n] each, or NULL if there are no sums. */
template <class T> struct totals {
    void *w, *b;
    float *columns;
    T *parts;
    unsigned *counters;
    template <bool SUMS> __device__ void put_all(const pd_row_norm &c) const {
        for (int64_t i = threadIdx.x; i < c.n; i += THREADS) {
            const T of_w[1] = {parts[i]}, of_b[1] = {parts[c.n + i]};
            if (w) put(c.w, w, i, of_w);
            if (b) put(c.w, b, i, of_b);
            if (SUMS) columns[i] = (float)parts[2 * c.n + i];
        }
    }
};

/* What the threads of a block have of the sums of columns: each what it keeps of its rows, side by side with the others, so
   that banks do not collide. */
template <class T, int V, int G> struct own_columns {
    enum { W = V > 4 ? 4 : V, PACKS = V / W };
    pack<T, W> e[STEPS * PACKS * THREADS];
    __device__ void clear() {
        for (int k = 0; k < STEPS * PACKS; k++) e[k * THREADS + threadIdx.x] = {};
    }
    __device__ void add(int k, const T (&v)[V]) {
        for (int i = 0; i < V; i++) e[(k * PACKS + i / W) * THREADS + threadIdx.x].e[i % W] += v[i];
    }
    /* The sum of column i over the rows that the block has at a time. */
    __device__ T sum(int64_t i) const {
        const int step = (int)(i / V), at = (step / G * PACKS + (int)(i % V) / W) * THREADS + step % G;
        T all = 0;
        for (int row = 0; row < THREADS / G; row++) all += e[at + row * G].e[i % W];
        return all;
    }
};

/* Adds up what the threads of a block have summed, for the elements that they keep, into its part. */
template <class T, int V, int G>
static __device__ void end_part(const pd_row_norm &c, const T (&gw)[STEPS][V], const T (&gb)[STEPS][V], T *to) {
    constexpr int KEPT = STEPS * G * V;
    __shared__ T block[G == WARP ? 2 * KEPT : 1];
    T *all = G == WARP ? block : to;
    for (int group = 0; group < THREADS / G; group++) { /* one after the other */
        auto put_own = [&](int64_t i, int k) { put_sums(all, i, c.n, gw[k], gb[k], group == 0); };
        if ((int)threadIdx.x / G == group) each_of_row<V, G>(c.n < KEPT ? c.n : +KEPT, put_own, [](int64_t) {});
        __syncthreads();
    }
    for (int64_t i = threadIdx.x; i < 2 * c.n && G == WARP; i += THREADS) to[i] = block[i];
}

/* One block a multiprocessor is enough: else sm_100a gets 64 registers and spills. */
template <class T, int V, int G, bool SUMS>
static __global__ void __launch_bounds__(THREADS, 1)
grad_kernel(const pd_row_norm c, const void *g, const void *gs, const void *s, const void *w, const T *mean, const T *rstd, void *gx, void *gy,
            const totals<T> sums, int64_t length) {
    constexpr int ROWS = THREADS / G, KEPT = STEPS * G * V;
    const int64_t begin = blockIdx.x * length, end = begin + length < c.rows ? begin + length : c.rows, width = (2 + SUMS) * c.n;
    T *to = sums.parts + width * blockIdx.x, gw[STEPS][V] = {}, gb[STEPS][V] = {};
    __shared__ pack<float, 4> room[SUMS ? sizeof(own_columns<T, V, G>) / 16 : 1];
    auto &columns = *(own_columns<T, V, G> *)room;
    if (SUMS) columns.clear();
    for (int64_t first = begin; first < end; first += ROWS) {
        const int64_t row = first + threadIdx.x / G, at = row * c.n, n = row < end ? c.n : 0;
        const T m = n ? mean[row] : 0, r = n ? rstd[row] : 0;
        T gh[STEPS][V], x[STEPS][V], sum = 0, slope = 0;
        /* gi: the gradient of the normalised rows, then of those without weights; xi: s - mean */
        auto load = [&](int64_t i, T (&gi)[V], T (&xi)[V]) {
            get(c.out, g, at + i, gi);
            get(c.s, s, at + i, xi);
            for (int e = 0; e < V; e++) xi[e] -= m;
        };
        auto weigh = [&](int64_t i, T (&gi)[V]) {
            T wi[V];
            if (!w) return;
            get(c.w, w, i, wi);
            for (int e = 0; e < V; e++) gi[e] *= wi[e];
        };
        auto add = [&](int64_t i, T (&gi)[V], T (&xi)[V], T (&gwi)[V], T (&gbi)[V]) {
            load(i, gi, xi);
            for (int e = 0; e < V; e++) {
                gwi[e] += gi[e] * (xi[e] * r);
                gbi[e] += gi[e];
            }
            weigh(i, gi);
            for (int e = 0; e < V; e++) {
                sum += gi[e];
                slope += gi[e] * xi[e];
            }
        };
        auto add_rest = [&](int64_t i) {
            T gi[V], xi[V], gwi[V] = {}, gbi[V] = {};
            add(i, gi, xi, gwi, gbi);
            if (sums.parts) put_sums(to, i, c.n, gwi, gbi, row == begin);
        };
        each_of_row<V, G>(n, [&](int64_t i, int k) { add(i, gh[k], x[k], gw[k], gb[k]); }, add_rest);
        if (!gx) continue;
        const T shift = c.rms ? (T)0 : group_all<G, plus>(sum) / (T)c.n;
        slope = group_all<G, plus>(slope) / (T)c.n * r * r;
        auto write = [&](int64_t i, T (&gi)[V], T (&xi)[V]) {
            for (int e = 0; e < V; e++) gi[e] = r * (gi[e] - shift - xi[e] * slope);
            if (gs) {
                get(c.s, gs, at + i, xi);
                for (int e = 0; e < V; e++) gi[e] = xi[e] + rounded(c.s, gi[e]);
            }
            put(c.x, gx, at + i, gi);
            if (gy) put(c.y, gy, at + i, gi);
            for (int e = 0; e < V && SUMS; e++) gi[e] = rounded(gy ? c.y : c.x, gi[e]);
        };
        auto write_kept = [&](int64_t i, int k) {
            write(i, gh[k], x[k]);
            if (SUMS) columns.add(k, gh[k]);
        };
        auto write_rest = [&](int64_t i) {
            T gi[V], xi[V];
            load(i, gi, xi);
            weigh(i, gi);
            write(i, gi, xi);
            for (int e = 0; e < V && SUMS; e++) to[2 * c.n + i + e] = (row == begin ? 0 : to[2 * c.n + i + e]) + gi[e];
        };
        each_of_row<V, G>(n, write_kept, write_rest);
    }
    if (!sums.parts) return;
    end_part<T, V, G>(c, gw, gb, to);
    for (int64_t i = threadIdx.x; i < (c.n < KEPT ? c.n : +KEPT) && SUMS; i += THREADS) to[2 * c.n + i] = columns.sum(i);
    if (add_all_parts<(V > 4 ? 4 : V)>(sums.parts, width, blockIdx.x, gridDim.x, sums.counters)) sums.template put_all<SUMS>(c);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static int64_t part_length(const pd_row_norm *c) {
    const int64_t most = 256; /* parts */
    return c->rows <= 8 * most ? 8 : (c->rows + most - 1) / most;
}
/* One without rows, too: its block writes the zeros that are the sums then. */
static int64_t parts_of(const pd_row_norm *c) { return c->rows ? (c->rows + part_length(c) - 1) / part_length(c) : 1; }

/* Whether rows of these tensors can be read in whole vectors of 16 bytes. */
template <int N> static bool in_vectors(const pd_row_norm *c, const void *const (&p)[N]) {
    bool fits = c->n % 8 == 0;
    for (int k = 0; k < N; k++) fits = fits && (uintptr_t)p[k] % 16 == 0;
    return fits;
}
/* Calls f(tag<T>(), V, G) for the computing type, the length of vectors, and the threads of a row. */
template <int N> struct number { static constexpr int value = N; };
template <class F> static void by_rows(const pd_row_norm *c, bool vectors, F f) {
    if (c->s == PD_F64) f(tag<double>(), number<1>(), number<THREADS>());
    else if (!vectors && c->n <= STEPS * WARP) f(tag<float>(), number<1>(), number<WARP>());
    else if (!vectors) f(tag<float>(), number<1>(), number<THREADS>());
    else if (c->n <= STEPS * WARP * 8) f(tag<float>(), number<8>(), number<WARP>());
    else f(tag<float>(), number<8>(), number<THREADS>());
}

size_t pd_cuda_row_norm_scratch(const pd_row_norm *c) { return (size_t)(3 * parts_of(c) * c->n) * sizeof(double) + 64; }

void pd_cuda_row_norm(const pd_row_norm *c, const void *x, const void *y, const void *w, const void *b, void *s, void *out, void *low, void *mean,
                      void *rstd) {
    const size_t all = (size_t)(c->rows * c->n), stats = (size_t)c->rows * sizeof(float);
    const result results[] = {{out, all * (c->out == PD_F32 ? 4 : 2)}, {low, all * 2}, {mean, stats}, {rstd, stats}};
    pd_row_norm own = *c;
    pd_loop sum;
    if (!c->n) return;
    if (!y && pd_cuda_take_sum(x, c->x, (int64_t)all, results, 4, &sum)) {
        own.x = (pd_dtype)sum.type[1], own.y = (pd_dtype)sum.type[2];
        s = sum.ptr[0], x = sum.ptr[1], y = sum.ptr[2];
    }
    by_rows(c, in_vectors(c, {x, y, w, b, s, out, low}), [&](auto t, auto v, auto g) {
        typedef typename decltype(t)::type T;
        constexpr int V = decltype(v)::value, G = decltype(g)::value, ROWS = THREADS / G;
        launch(norm_kernel<T, V, G>, (c->rows + ROWS - 1) / ROWS, THREADS, own, x, y, w, b, s, out, low, (T *)mean, (T *)rstd);
    });
}

void pd_cuda_row_norm_grad(const pd_row_norm *c, const void *g, const void *gs, const void *s, const void *w, const void *mean, const void *rstd, void *gx,
                           void *gy, void *gw, void *gb, float *sums, void *scratch) {
    if (!c->n) return;
    by_rows(c, in_vectors(c, {g, gs, s, w, gx, gy}), [&](auto t, auto v, auto group) {
        typedef typename decltype(t)::type T;
        constexpr int V = decltype(v)::value, G = decltype(group)::value;
        const bool parts = gw || gb || sums;
        unsigned *counters = parts ? pd_cuda_counters(counters_of(parts_of(c)) + 1) : nullptr;
        if (parts && !counters) return;
        auto run = [&](auto kernel) {
            const totals<T> to = {gw, gb, sums, parts ? (T *)scratch : nullptr, counters};
            launch(kernel, parts_of(c), THREADS, *c, g, gs, s, w, (const T *)mean, (const T *)rstd, gx, gy, to, part_length(c));
        };
        if constexpr (sizeof(T) == 4)
            if (sums) return run(grad_kernel<T, V, G, true>);
        run(grad_kernel<T, V, G, false>);
    });
}
