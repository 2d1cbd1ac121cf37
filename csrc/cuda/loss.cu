/* Losses over classes, a block a row: negative log likelihood of log-probabilities or (LOGITS) of logits, and the gradients. Sums over
   rows are made by one block in a fixed order, and stay on the device. */
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

/* sums: of the losses, of the weights, and their quotient. */
static __global__ void sum_rows(const double *in, double *sums, int64_t rows) {
    double all[2];
    for (int k = 0; k < 2; k++) {
        double v = 0;
        for (int64_t r = threadIdx.x; r < rows; r += THREADS) v += in[k * rows + r];
        all[k] = block_all<plus>(v);
    }
    if (threadIdx.x == 0) sums[0] = all[0], sums[1] = all[1], sums[2] = all[0] / all[1];
}

template <bool LOGITS> static void run(pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double *sums) {
    int64_t counted = c->C > 0 && c->rows > 0 ? c->rows : 0;
    double *rows = (double *)pd_cuda_lent->room(sizeof(double) * (size_t)(2 * counted + 1));
    if (!rows) return;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        launch(loss_rows<E, T, LOGITS>, counted, THREADS, of<E>(c), (const E *)x, (T *)lse, (E *)losses, rows, rows + counted);
    });
    launch(sum_rows, 1, THREADS, (const double *)rows, sums, counted);
}
void pd_cuda_nll(pd_dtype t, const pd_xent *c, const void *x, void *losses, double *sums) { run<false>(t, c, x, nullptr, losses, sums); }
void pd_cuda_xent(pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double *sums) { run<true>(t, c, x, lse, losses, sums); }

/* scale g ((q w_t + s W) p_c - q w_t [c = t] - s w_c), q = 1 - smoothing, s = smoothing / C, W the sum of all weights. */
template <class E, class T, bool LOGITS>
static __global__ void loss_grad(const labelled<E> c, const E *x, const T *lse, const E *g, bool each, const T *total, double scale, E *gx) {
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
template <bool LOGITS>
static void run_grad(pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g, bool each, const void *total, double scale,
                     void *gx) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        labelled<E> l = of<E>(c);
        if (!LOGITS) l.smoothing = 0;
        launch(loss_grad<E, T, LOGITS>, c->rows, THREADS, l, (const E *)x, (const T *)lse, (const E *)g, each, (const T *)total, scale, (E *)gx);
    });
}
void pd_cuda_nll_grad(pd_dtype t, const pd_xent *c, const void *g, bool each, const void *total, double scale, void *gx) {
    run_grad<false>(t, c, nullptr, nullptr, g, each, total, scale, gx);
}
void pd_cuda_xent_grad(pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g, bool each, const void *total, double scale,
                       void *gx) {
    run_grad<true>(t, c, x, lse, g, each, total, scale, gx);
}

/* One block: complains of the first bad label and, unless total is NULL, adds up the weights of those that count. */
template <class E> static __global__ void look_at_labels(const char *op, const labelled<E> c, int64_t rows, double *total, bad_record *record) {
    int64_t bad = INT64_MAX;
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += THREADS)
        if (c.counts(r)) sum += total ? c.weight_of(c.target[r]) : 0;
        else if (c.target[r] != c.ignore && bad == INT64_MAX) bad = r;
    bad = block_all<smaller>(bad);
    sum = block_all<plus>(sum);
    if (threadIdx.x) return;
    if (bad != INT64_MAX) complain(record, pd_bad_index{op, PD_BAD_LABEL, {c.target[bad], bad, c.C, c.ignore}});
    if (total) *total = sum;
}
bool pd_cuda_labels(const char *op, pd_dtype t, const pd_xent *c, double *total, pd_bad_index *) {
    bad_record *record = pd_cuda_bad_record();
    if (!record) return true;
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(look_at_labels<E>, 1, THREADS, op, of<E>(c), c->rows, total, record);
    });
    return true;
}
