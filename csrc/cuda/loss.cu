/* Losses over classes, with a block for each row: negative log likelihood of log-probabilities, or, with LOGITS, of
   logits, and the gradients. The order of sums over rows depends on the number of rows alone; the sums stay on the
   device. */
#include "cuda/block.h"
#include "cuda/table.h"

template <class E> struct labelled {
    int64_t C;
    const int64_t *target;
    const E *weight;
    int64_t ignore;
    double smoothing;
    __device__ bool counts(int64_t r) const { return target[r] != ignore && (uint64_t)target[r] < (uint64_t)C; }
    __device__ double weight_of(int64_t c) const { return weight ? (double)widen(weight[c]) : 1.0; }
};
template <class E> static labelled<E> of(const pd_xent *c) { return {c->C, c->target, (const E *)c->weight, c->ignore_index, c->smoothing}; }

/* Calls f(index, pack) for a row in packs of 16 bytes, from the first aligned place on, and for the elements before and
   after these in packs of one element; one thread calls each. With READ the packs hold the elements. */
template <bool READ, class E, class F> static __device__ void each_pack(const E *row, int64_t C, F f) {
    enum { V = 16 / sizeof(E) };
    int64_t head = (int64_t)((16 - (uintptr_t)row % 16) % 16 / sizeof(E));
    if (head > C) head = C;
    int64_t packs = (C - head) / V, body = head + packs * V;
    auto at = [&](int64_t i, auto p) { f(i, READ ? *(const decltype(p) *)(row + i) : p); };
    if (threadIdx.x < head) at(threadIdx.x, pack<E, 1>{});
    for (int64_t p = threadIdx.x; p < packs; p += THREADS) at(head + p * V, pack<E, V>{});
    if (threadIdx.x < C - body) at(body + threadIdx.x, pack<E, 1>{});
}

/* The largest element so far and the sum of e^(x - top), which is scaled down whenever the top rises. */
template <class T> struct running {
    T top = limits<T>::low(), sum = 0;
    template <class E, int V> __device__ void add(const pack<E, V> &x) {
        T now = top;
        for (int k = 0; k < V; k++) now = larger<T>::of(now, widen(x.e[k]));
        if (now == limits<T>::low()) return; /* e^(-inf + inf) would be NaN */
        if (now != top) sum *= V_EXP(top - now), top = now;
        for (int k = 0; k < V; k++) sum += V_EXP(widen(x.e[k]) - now);
    }
};

/* loss[r] and weight[r] of each row, in double; lse[r] of logits; losses[r], unless NULL. L: the type of losses. */
template <class E, class L, class T, bool LOGITS>
static __global__ void loss_rows(const labelled<E> c, const E *x, T *lse, L *losses, double *loss, double *weight) {
    int64_t r = blockIdx.x;
    const E *row = x + r * c.C;
    double l = 0, value = 0, smooth = 0;
    if (LOGITS) {
        running<T> own;
        each_pack<true>(row, c.C, [&](int64_t, const auto &x) { own.add(x); });
        T top = block_all<larger>(own.top), rest = V_LOG(block_all<plus>(own.sum * V_EXP(own.top - top)));
        l = (double)top + (double)rest;
        if (threadIdx.x == 0) lse[r] = top + rest;
    }
    bool counts = c.counts(r);
    if (c.smoothing != 0) {
        for (int64_t i = threadIdx.x; i < c.C; i += THREADS) smooth += c.weight_of(i) * ((double)widen(row[i]) - l);
        smooth = block_all<plus>(smooth);
    }
    if (threadIdx.x) return;
    double w = counts ? c.weight_of(c.target[r]) : 0;
    if (counts) value = (1.0 - c.smoothing) * w * (l - (double)widen(row[c.target[r]])) - c.smoothing / (double)c.C * smooth;
    loss[r] = value;
    weight[r] = w;
    if (losses) losses[r] = narrow<L>((wide<L>)value);
}

/* Sums in[k], K times n numbers, and for two of them their quotient. A block sums a part of each, EACH numbers a thread,
   into parts[k]; the block that ends last sums the parts. */
enum { EACH = 8 };
template <int K> static __global__ void add_up_kernel(const double *in, double *parts, double *sums, unsigned *counter, int64_t n) {
    const int64_t begin = (int64_t)blockIdx.x * THREADS * EACH, end = begin + THREADS * EACH < n ? begin + THREADS * EACH : n, blocks = gridDim.x;
    double all[K];
    auto add = [&](const double *from, int64_t step, int64_t begin, int64_t end) {
        for (int k = 0; k < K; k++) {
            double v = 0;
            for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) v += from[k * step + i];
            all[k] = block_all<plus>(v);
        }
    };
    add(in, n, begin, end);
    if (blocks > 1) {
        for (int k = 0; k < K && threadIdx.x == 0; k++) parts[k * blocks + blockIdx.x] = all[k];
        if (!is_last(counter, (unsigned)blocks)) return;
        add(parts, blocks, 0, blocks);
    }
    if (threadIdx.x) return;
    for (int k = 0; k < K; k++) sums[k] = all[k];
    if (K == 2) sums[2] = all[0] / all[K - 1];
}
/* Memory for K x n numbers, followed by memory for the sums of their parts. */
template <int K> static double *room_to_add_up(int64_t n) {
    return (double *)pd_cuda_lent->room(sizeof(double) * (size_t)(K * (n + blocks_for(n, THREADS, EACH)) + 1));
}
template <int K> static void add_up(double *in, int64_t n, double *sums) {
    const int64_t blocks = n > 0 ? blocks_for(n, THREADS, EACH) : 1;
    unsigned *counter = pd_cuda_counters(1);
    if (counter) launch(add_up_kernel<K>, blocks, THREADS, (const double *)in, in + K * n, sums, counter, n);
}

template <bool LOGITS> static void run(pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double *sums) {
    int64_t counted = c->C > 0 && c->rows > 0 ? c->rows : 0;
    double *rows = room_to_add_up<2>(counted);
    if (!rows) return;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        if (c->wide)
            launch(loss_rows<E, T, T, LOGITS>, counted, THREADS, of<E>(c), (const E *)x, (T *)lse, (T *)losses, rows, rows + counted);
        else
            launch(loss_rows<E, E, T, LOGITS>, counted, THREADS, of<E>(c), (const E *)x, (T *)lse, (E *)losses, rows, rows + counted);
    });
    add_up<2>(rows, counted, sums);
}
void pd_cuda_nll(pd_dtype t, const pd_xent *c, const void *x, void *losses, double *sums) { run<false>(t, c, x, nullptr, losses, sums); }
void pd_cuda_xent(pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double *sums) { run<true>(t, c, x, lse, losses, sums); }

/* scale g ((q w_t + s W) p_c - q w_t [c = t] - s w_c), q = 1 - smoothing, s = smoothing / C, W the sum of all
   weights. */
template <class E, class L, class T, bool LOGITS>
static __global__ void loss_grad(const labelled<E> c, const E *x, const T *lse, const L *g, bool each, const T *total, double scale, E *gx) {
    int64_t r = blockIdx.x, t = c.target[r];
    bool counts = c.counts(r);
    if (g) scale *= (double)widen(g[each ? r : 0]);
    if (total) scale /= (double)*total;
    double by = counts ? scale : 0, hit = counts ? by * (1.0 - c.smoothing) * c.weight_of(t) : 0, all = 0;
    T l = 0, spread = (T)(by * c.smoothing / (double)c.C), from = 0;
    if (LOGITS) {
        l = lse[r];
        if (c.smoothing != 0) {
            for (int64_t i = threadIdx.x; i < c.C; i += THREADS) all += c.weight_of(i);
            all = block_all<plus>(all);
        }
        T sum = 1;
        if (l > 32 || l < -32) { /* x - lse has lost digits, so divide by the sum of e^ */
            sum = 0;
            each_pack<true>(x + r * c.C, c.C, [&](int64_t, const auto &p) {
                for (const E &v : p.e) sum += V_EXP(widen(v) - l);
            });
            sum = block_all<plus>(sum);
        }
        from = (T)((hit + by * c.smoothing / (double)c.C * all) / (double)sum);
    }
    auto one = [&](int64_t i, E x) {
        T v = 0;
        if (LOGITS && counts) v = V_EXP(widen(x) - l) * from - (c.smoothing != 0 ? spread * (T)c.weight_of(i) : (T)0);
        if (counts && i == t) v -= (T)hit;
        return narrow<E>(v);
    };
    const E *row = LOGITS ? x + r * c.C : gx + r * c.C;
    E *out = gx + r * c.C;
    if (((uintptr_t)row ^ (uintptr_t)out) % 16) { /* they are never aligned at the same place */
        for (int64_t i = threadIdx.x; i < c.C; i += THREADS) out[i] = one(i, LOGITS ? row[i] : E());
        return;
    }
    each_pack<LOGITS>(row, c.C, [&](int64_t i, auto p) {
        int64_t at = i;
        for (E &v : p.e) v = one(at++, v);
        *(decltype(p) *)(out + i) = p;
    });
}
template <bool LOGITS>
static void run_grad(pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g, bool each, const void *total, double scale,
                     void *gx) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        labelled<E> l = of<E>(c);
        if (!LOGITS) l.smoothing = 0;
        if (c->wide)
            launch(loss_grad<E, T, T, LOGITS>, c->rows, THREADS, l, (const E *)x, (const T *)lse, (const T *)g, each, (const T *)total, scale, (E *)gx);
        else
            launch(loss_grad<E, E, T, LOGITS>, c->rows, THREADS, l, (const E *)x, (const T *)lse, (const E *)g, each, (const T *)total, scale, (E *)gx);
    });
}
void pd_cuda_nll_grad(pd_dtype t, const pd_xent *c, const void *g, bool each, const void *total, double scale, void *gx) {
    run_grad<false>(t, c, nullptr, nullptr, g, each, total, scale, gx);
}
void pd_cuda_xent_grad(pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g, bool each, const void *total, double scale,
                       void *gx) {
    run_grad<true>(t, c, x, lse, g, each, total, scale, gx);
}

/* Reports a bad label. weights[r], unless NULL: the weight of a row that counts, else 0. */
template <class E> static __global__ void look_at_labels(const char *op, const labelled<E> c, int64_t rows, double *weights, bad_record *record) {
    for (int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x; r < rows; r += (int64_t)gridDim.x * THREADS) {
        bool counts = c.counts(r);
        if (!counts && c.target[r] != c.ignore) complain(record, pd_bad_index{op, PD_BAD_LABEL, {c.target[r], r, c.C, c.ignore}});
        if (weights) weights[r] = counts ? c.weight_of(c.target[r]) : 0;
    }
}

bool pd_cuda_labels(const char *op, pd_dtype t, const pd_xent *c, double *total, pd_bad_index *) {
    bad_record *record = pd_cuda_bad_record();
    double *weights = total ? room_to_add_up<1>(c->rows) : nullptr;
    if (!record || (total && !weights)) return true;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(look_at_labels<E>, blocks_for(c->rows, THREADS, 1), THREADS, op, of<E>(c), c->rows, weights, record);
    });
    if (total) add_up<1>(weights, c->rows, total);
    return true;
}
