/* Batch normalisation of x[N, C, S] or, channels_last, x[N, S, C]. A channel's numbers are cut into chunks whose length
   depends on shapes alone. A block makes the sums of one chunk (of 32 channels, if channels are neighbours). Then one
   thread for each channel combines the chunks in order and computes how each element is normalised. Statistics are each
   chunk's mean and squares about it, combined by the method of Chan, Golub and LeVeque, so that digits are not lost if
   the mean is large compared with the deviation. */
#include "cuda/block.h"
#include "cuda/table.h"

enum { SIDE = 32, LANES = THREADS / SIDE, LEAST = 1024, CHUNKS = 64 };

struct layout {
    int64_t C, S, count, length, chunks; /* count: numbers of a channel */
    bool last;
    __device__ int64_t at(int64_t c, int64_t i) const { return last ? i * C + c : (i / S * C + c) * S + i % S; }
};
static layout layout_of(const pd_batch_norm *c) {
    int64_t count = c->N * c->S, length = (count + CHUNKS - 1) / CHUNKS;
    if (length < LEAST) length = LEAST;
    return {c->C, c->S, count, length, (count + length - 1) / length, c->channels_last && c->C > 1};
}
/* The results for a channel's elements: (x - mean) * scale + shift, or g * scale + (x - mean) * slope + shift. */
template <class T> struct channel { T mean, scale, slope, shift; };

/* The sum over the threads that share this thread's channel: the block, or, channels last, those that are SIDE apart.
   All of them get it. */
template <class T> static __device__ T share_sum(const layout &l, T v) {
    __shared__ T lanes[THREADS];
    if (!l.last) return block_all<plus>(v);
    __syncthreads();
    lanes[threadIdx.x] = v;
    __syncthreads();
    T sum = 0;
    for (int k = 0; k < LANES; k++) sum += lanes[threadIdx.x % SIDE + k * SIDE];
    return sum;
}

/* This thread's part of chunk blockIdx.x; calls f(place) for each of its elements. */
struct part {
    int64_t c, chunk, begin, end, step;
    bool any;
    __device__ explicit part(const layout &l) {
        int64_t first = threadIdx.x;
        chunk = blockIdx.x % l.chunks;
        c = blockIdx.x / l.chunks;
        step = THREADS;
        if (l.last) {
            c = c * SIDE + threadIdx.x % SIDE;
            first = threadIdx.x / SIDE;
            step = LANES;
        }
        end = (chunk + 1) * l.length < l.count ? (chunk + 1) * l.length : l.count;
        begin = chunk * l.length + first;
        any = c < l.C;
    }
    __device__ bool writes(const layout &l) const { return any && (l.last ? threadIdx.x / SIDE : threadIdx.x) == 0; }
};
static int64_t blocks_of(const layout &l) { return (l.last ? (l.C + SIDE - 1) / SIDE : l.C) * l.chunks; }

/* sums[c][chunk]: mean, squares about it. */
template <class E> static __global__ void statistics(const layout l, const E *x, double *sums) {
    typedef wide<E> T;
    part p(l);
    T sum = 0, squares = 0;
    int64_t n = (p.chunk + 1) * l.length < l.count ? l.length : l.count - p.chunk * l.length;
    for (int64_t i = p.begin; i < p.end && p.any; i += p.step) sum += widen(x[l.at(p.c, i)]);
    T mean = (T)(share_sum(l, (double)sum) / (double)n);
    for (int64_t i = p.begin; i < p.end && p.any; i += p.step) {
        T d = widen(x[l.at(p.c, i)]) - mean;
        squares += d * d;
    }
    double all = share_sum(l, (double)squares);
    if (!p.writes(l)) return;
    sums[2 * (p.c * l.chunks + p.chunk)] = (double)mean;
    sums[2 * (p.c * l.chunks + p.chunk) + 1] = all;
}
/* sums[c][chunk]: of g and of g (x - mean). */
template <class E, class T> static __global__ void gradient_sums(const layout l, const E *x, const E *g, const T *mean, double *sums) {
    part p(l);
    T sum = 0, slope = 0, m = p.any ? mean[p.c] : (T)0;
    for (int64_t i = p.begin; i < p.end && p.any; i += p.step) {
        int64_t at = l.at(p.c, i);
        T v = widen(g[at]);
        sum += v;
        slope += v * (widen(x[at]) - m);
    }
    double all = share_sum(l, (double)sum), all_slope = share_sum(l, (double)slope);
    if (!p.writes(l)) return;
    sums[2 * (p.c * l.chunks + p.chunk)] = all;
    sums[2 * (p.c * l.chunks + p.chunk) + 1] = all_slope;
}

template <class P, class T>
static __global__ void join_statistics(const layout l, const double *sums, const P *w, const P *b, double eps, double momentum, P *running_mean,
                                       P *running_var, T *mean, T *rstd, channel<T> *to) {
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= l.C) return;
    double m = 0, squares = 0, n = 0;
    for (int64_t k = 0; k < l.chunks; k++) {
        const double *s = sums + 2 * (c * l.chunks + k);
        double more = (double)((k + 1) * l.length < l.count ? l.length : l.count - k * l.length), d = s[0] - m, both = n + more;
        m += d * more / both;
        squares += s[1] + d * d * n / both * more;
        n = both;
    }
    double r = 1.0 / V_SQRT(squares / n + eps);
    mean[c] = (T)m;
    rstd[c] = (T)r;
    if (running_mean) running_mean[c] = narrow<P>((T)((1.0 - momentum) * (double)widen(running_mean[c]) + momentum * m));
    if (running_var)
        running_var[c] = narrow<P>((T)((1.0 - momentum) * (double)widen(running_var[c]) + momentum * squares / (n > 1 ? n - 1 : 0)));
    to[c] = channel<T>{(T)m, (T)((w ? (double)widen(w[c]) : 1.0) * r), 0, b ? widen(b[c]) : (T)0};
}
template <class P, class T>
static __global__ void given_statistics(const layout l, const P *w, const P *b, const P *mean, const P *var, double eps, channel<T> *to) {
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= l.C) return;
    double r = 1.0 / V_SQRT((double)widen(var[c]) + eps);
    to[c] = channel<T>{widen(mean[c]), (T)((w ? (double)widen(w[c]) : 1.0) * r), 0, b ? widen(b[c]) : (T)0};
}
template <class P, class T>
static __global__ void join_gradients(const layout l, const double *sums, const P *w, const T *mean, const T *rstd, bool training, P *gw, P *gb,
                                      channel<T> *to) {
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= l.C) return;
    double sum = 0, slope = 0, by = w ? (double)widen(w[c]) : 1.0, r = (double)rstd[c], n = (double)l.count;
    for (int64_t k = 0; k < l.chunks; k++) {
        sum += sums[2 * (c * l.chunks + k)];
        slope += sums[2 * (c * l.chunks + k) + 1];
    }
    if (gw) gw[c] = narrow<P>((T)(slope * r));
    if (gb) gb[c] = narrow<P>((T)sum);
    to[c] = channel<T>{mean[c], (T)(by * r), training ? (T)(-by * r * r * r * slope / n) : (T)0, training ? (T)(-by * r * sum / n) : (T)0};
}

template <class E, class T, int V, bool GRAD>
static __global__ void apply(const layout l, const E *x, const E *g, const channel<T> *how, E *y) {
    int64_t step = (int64_t)gridDim.x * blockDim.x * V, n = l.count * l.C;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; i < n; i += step) {
        pack<E, V> in = *(const pack<E, V> *)(x + i), from = {}, out;
        if (GRAD) from = *(const pack<E, V> *)(g + i);
        int64_t s = l.last ? 0 : i % l.S, c = l.last ? i % l.C : i / l.S % l.C;
        for (int k = 0; k < V; k++) {
            const channel<T> &h = how[c];
            T d = widen(in.e[k]) - h.mean;
            out.e[k] = narrow<E>(GRAD ? widen(from.e[k]) * h.scale + d * h.slope + h.shift : d * h.scale + h.shift);
            if (!l.last && ++s < l.S) continue;
            s = 0;
            if (++c == l.C) c = 0;
        }
        *(pack<E, V> *)(y + i) = out;
    }
}
template <class E, class T, bool GRAD> static void apply_all(const layout &l, const void *x, const void *g, const channel<T> *how, void *y) {
    constexpr int V = 16 / sizeof(E);
    int64_t n = l.count * l.C;
    if (n % V == 0 && ((uintptr_t)x | (uintptr_t)g | (uintptr_t)y) % 16 == 0)
        launch(apply<E, T, V, GRAD>, blocks_for(n, THREADS, V), THREADS, l, (const E *)x, (const E *)g, how, (E *)y);
    else launch(apply<E, T, 1, GRAD>, blocks_for(n, THREADS, 1), THREADS, l, (const E *)x, (const E *)g, how, (E *)y);
}

/* Memory for the sums of all chunks and for the channels' results; false: there is none, and the op has failed. */
template <class T> struct scratch {
    double *sums;
    channel<T> *how;
    explicit scratch(const layout &l) {
        sums = (double *)pd_cuda_lent->room((size_t)(2 * l.C * l.chunks) * sizeof(double));
        how = (channel<T> *)pd_cuda_lent->room((size_t)l.C * sizeof(channel<T>));
    }
    bool is_there() const { return sums && how; }
};
static int64_t threads_of(const layout &l) { return (l.C + THREADS - 1) / THREADS; }

/* Calls f(tag of the parameters' type). */
template <class E, class F> static void by_params(pd_dtype t, const pd_batch_norm *c, F f) {
    if (c->params == t) f(tag<E>());
    else f(tag<wide<E>>());
}

void pd_cuda_batch_norm_train(pd_dtype t, const pd_batch_norm *c, const void *x, const void *w, const void *b, double momentum,
                              void *running_mean, void *running_var, void *y, void *mean, void *rstd) {
    layout l = layout_of(c);
    if (l.count <= 0 || l.C <= 0) return;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        scratch<T> s(l);
        if (!s.is_there()) return;
        launch(statistics<E>, blocks_of(l), THREADS, l, (const E *)x, s.sums);
        by_params<E>(t, c, [&](auto p) {
            typedef typename decltype(p)::type P;
            launch(join_statistics<P, T>, threads_of(l), THREADS, l, (const double *)s.sums, (const P *)w, (const P *)b, c->eps, momentum,
                   (P *)running_mean, (P *)running_var, (T *)mean, (T *)rstd, s.how);
        });
        apply_all<E, T, false>(l, x, nullptr, s.how, y);
    });
}
void pd_cuda_batch_norm_eval(pd_dtype t, const pd_batch_norm *c, const void *x, const void *w, const void *b, const void *mean, const void *var,
                             void *y) {
    layout l = layout_of(c);
    if (l.count <= 0 || l.C <= 0) return;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        scratch<T> s(l);
        if (!s.is_there()) return;
        by_params<E>(t, c, [&](auto p) {
            typedef typename decltype(p)::type P;
            launch(given_statistics<P, T>, threads_of(l), THREADS, l, (const P *)w, (const P *)b, (const P *)mean, (const P *)var, c->eps, s.how);
        });
        apply_all<E, T, false>(l, x, nullptr, s.how, y);
    });
}
void pd_cuda_batch_norm_grad(pd_dtype t, const pd_batch_norm *c, bool training, const void *g, const void *x, const void *w, const void *mean,
                             const void *rstd, void *gx, void *gw, void *gb) {
    layout l = layout_of(c);
    if (l.C <= 0) return;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        scratch<T> s(l);
        if (!s.is_there()) return;
        launch(gradient_sums<E, T>, blocks_of(l), THREADS, l, (const E *)x, (const E *)g, (const T *)mean, s.sums);
        by_params<E>(t, c, [&](auto p) {
            typedef typename decltype(p)::type P;
            launch(join_gradients<P, T>, threads_of(l), THREADS, l, (const double *)s.sums, (const P *)w, (const T *)mean, (const T *)rstd,
                   training, (P *)gw, (P *)gb, s.how);
        });
        if (gx && l.count > 0) apply_all<E, T, true>(l, x, g, s.how, gx);
    });
}
