/* Losses over classes, a block a row: negative log likelihood of log-probabilities or (LOGITS) of logits, and the gradients. Sums over
   rows are made by one block in a fixed order. */
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

/* loss[r] and weight[r] of each row, in double; lse[r] of logits; losses[r], unless NULL. */
template <class E, class T, bool LOGITS>
static __global__ void loss_rows(const labelled<E> c, const E *x, T *lse, E *losses, double *loss, double *weight) {
    int64_t r = blockIdx.x;
    const E *row = x + r * c.C;
    T top = limits<T>::low(), sum = 0;
    double l = 0, value = 0, smooth = 0;
    if (LOGITS) {
        for (int64_t i = threadIdx.x; i < c.C; i += THREADS) top = larger<T>::of(top, widen(row[i]));
        top = block_all<larger>(top);
        for (int64_t i = threadIdx.x; i < c.C; i += THREADS) sum += V_EXP(widen(row[i]) - top);
        T rest = V_LOG(block_all<plus>(sum));
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
    if (losses) losses[r] = narrow<E>((T)value);
}

/* out[k]: the sum of in[k][rows], k < 2. */
static __global__ void sum_rows(const double *in, double *out, int64_t rows) {
    for (int k = 0; k < 2; k++) {
        double v = 0;
        for (int64_t r = threadIdx.x; r < rows; r += THREADS) v += in[k * rows + r];
        v = block_all<plus>(v);
        if (threadIdx.x == 0) out[k] = v;
    }
}

template <bool LOGITS> static double run(pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double *sum) {
    double both[2] = {0, 0};
    *sum = 0;
    if (c->rows <= 0 || c->C <= 0) return 0;
    double *rows = (double *)pd_cuda_lent->room(sizeof(double) * (size_t)(2 * c->rows + 2)), *out = rows + 2 * c->rows;
    if (!rows) return 0;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        launch(loss_rows<E, T, LOGITS>, c->rows, THREADS, of<E>(c), (const E *)x, (T *)lse, (E *)losses, rows, rows + c->rows);
    });
    launch(sum_rows, 1, THREADS, (const double *)rows, out, c->rows);
    cudaMemcpyAsync(both, out, sizeof both, cudaMemcpyDeviceToHost, pd_cuda_stream_now);
    cudaStreamSynchronize(pd_cuda_stream_now);
    *sum = both[0];
    return both[1];
}
double pd_cuda_nll(pd_dtype t, const pd_xent *c, const void *x, void *losses, double *sum) { return run<false>(t, c, x, nullptr, losses, sum); }
double pd_cuda_xent(pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double *sum) { return run<true>(t, c, x, lse, losses, sum); }

/* scale g ((q w_t + s W) p_c - q w_t [c = t] - s w_c), q = 1 - smoothing, s = smoothing / C, W the sum of all weights. */
template <class E, class T, bool LOGITS>
static __global__ void loss_grad(const labelled<E> c, const E *x, const T *lse, const E *g, double scale, E *gx) {
    int64_t r = blockIdx.x, t = c.target[r];
    bool counts = c.counts(r);
    double by = counts ? scale * (g ? (double)widen(g[r]) : 1.0) : 0, hit = counts ? by * (1.0 - c.smoothing) * c.weight_of(t) : 0, all = 0;
    T l = 0, spread = (T)(by * c.smoothing / (double)c.C), from = 0;
    if (LOGITS) {
        l = lse[r];
        if (c.smoothing != 0) {
            for (int64_t i = threadIdx.x; i < c.C; i += THREADS) all += c.weight_of(i);
            all = block_all<plus>(all);
        }
        T sum = 1;
        if (l > 32 || l < -32) { /* x - lse has lost digits: divide by what the e^ add up to */
            sum = 0;
            for (int64_t i = threadIdx.x; i < c.C; i += THREADS) sum += V_EXP(widen(x[r * c.C + i]) - l);
            sum = block_all<plus>(sum);
        }
        from = (T)((hit + by * c.smoothing / (double)c.C * all) / (double)sum);
    }
    for (int64_t i = threadIdx.x; i < c.C; i += THREADS) {
        T v = 0;
        if (LOGITS && counts) v = V_EXP(widen(x[r * c.C + i]) - l) * from - (c.smoothing != 0 ? spread * (T)c.weight_of(i) : (T)0);
        if (counts && i == t) v -= (T)hit;
        gx[r * c.C + i] = narrow<E>(v);
    }
}
template <bool LOGITS> static void run_grad(pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g, double scale, void *gx) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        labelled<E> l = of<E>(c);
        if (!LOGITS) l.smoothing = 0;
        launch(loss_grad<E, T, LOGITS>, c->rows, THREADS, l, (const E *)x, (const T *)lse, (const E *)g, scale, (E *)gx);
    });
}
void pd_cuda_nll_grad(pd_dtype t, const pd_xent *c, const void *g, double scale, void *gx) { run_grad<false>(t, c, nullptr, nullptr, g, scale, gx); }
void pd_cuda_xent_grad(pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g, double scale, void *gx) {
    run_grad<true>(t, c, x, lse, g, scale, gx);
}

static __global__ void first_bad(const int64_t *target, int64_t rows, int64_t C, int64_t ignore, int64_t *out) {
    int64_t bad = INT64_MAX;
    for (int64_t r = threadIdx.x; r < rows && bad == INT64_MAX; r += THREADS)
        if (target[r] != ignore && (uint64_t)target[r] >= (uint64_t)C) bad = r;
    bad = block_all<smaller>(bad);
    if (threadIdx.x == 0) out[0] = bad;
}
int64_t pd_cuda_labels_check(const int64_t *target, int64_t rows, int64_t C, int64_t ignore) {
    int64_t bad = INT64_MAX, *out = (int64_t *)pd_cuda_lent->room(sizeof bad);
    if (!out) return -1;
    launch(first_bad, 1, THREADS, target, rows, C, ignore, out);
    cudaMemcpyAsync(&bad, out, sizeof bad, cudaMemcpyDeviceToHost, pd_cuda_stream_now);
    cudaStreamSynchronize(pd_cuda_stream_now);
    return bad == INT64_MAX ? -1 : bad;
}
