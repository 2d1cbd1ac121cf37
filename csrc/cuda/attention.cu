/* Attention without its matrix of scores, forward and gradient (Dao et al., arXiv 2205.14135), for any type, width and
   stride. A block of threads processes the keys tile by tile and scales its sums down when a larger score appears. The
   gradient recomputes the probabilities from lse, once by queries for gq and once by keys for gk and gv, so every sum
   is made by one thread in one order. Wide rows are done WIDE columns at a time, each time with all scores.
   attention_mma.cu is faster for the calls that it takes. */
#include "cuda/attention.h"

#include "cuda/fold.h"
#include "cuda/table.h"

/* 16 x 16 threads; thread (y, x) has rows y, y + 16, ... and columns x, x + 16, ... of a tile. */
enum { ACROSS = 16, DEPTH = 16, QUERIES = 64, KEYS = 32, WIDE = 64 };
static __device__ int own_y() { return threadIdx.x / ACROSS; }
static __device__ int own_x() { return threadIdx.x % ACROSS; }

/* Loads to[r][w] = element w0 + w of row first + r; zero outside. */
template <int R, int W, class E, class T> static __device__ void load(T (*to)[W + 1], const rows<E> &m, int64_t first, int64_t w0) {
    for (int at = threadIdx.x; at < R * W; at += THREADS) {
        int64_t r = first + at / W, w = w0 + at % W;
        to[at / W][at % W] = r < m.count && w < m.width ? widen(m.x[r * m.stride + w]) : (T)0;
    }
}

/* Sums over w of a[a0 + row][w] b[b0 + column][w]. */
template <int A, int B, class E, class T>
static __device__ void dot_rows(T (&s)[A / ACROSS][B / ACROSS], const rows<E> &a, int64_t a0, const rows<E> &b, int64_t b0, T (*ta)[DEPTH + 1],
                                T (*tb)[DEPTH + 1]) {
    for (int i = 0; i < A / ACROSS; i++)
        for (int j = 0; j < B / ACROSS; j++) s[i][j] = 0;
    for (int64_t w = 0; w < a.width; w += DEPTH) {
        __syncthreads();
        load<A, DEPTH>(ta, a, a0, w);
        load<B, DEPTH>(tb, b, b0, w);
        __syncthreads();
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < A / ACROSS; i++)
                for (int j = 0; j < B / ACROSS; j++)                     s[i][j] = fused(ta[own_y() + i * ACROSS][d], tb[own_x() + j * ACROSS][d], s[i][j]);
    }
    __syncthreads();
}
/* o += p m, or with TURNED p^T m. o has R rows, m has K. */
template <int R, int K, bool TURNED, int P, class T> static __device__ void add_product(T (&o)[R / ACROSS][WIDE / ACROSS], T (*p)[P], T (*m)[WIDE + 1]) {
    for (int k = 0; k < K; k++)
        for (int i = 0; i < R / ACROSS; i++) {
            int r = own_y() + i * ACROSS;
            for (int j = 0; j < WIDE / ACROSS; j++) o[i][j] = fused(TURNED ? p[k][r] : p[r][k], m[k][own_x() + j * ACROSS], o[i][j]);
        }
}
template <int R, class E, class T>
static __device__ void store(E *to, int64_t stride, int64_t first, int64_t count, int64_t w0, int64_t width, const T (&o)[R / ACROSS][WIDE / ACROSS]) {
    for (int i = 0; i < R / ACROSS; i++)
        for (int j = 0; j < WIDE / ACROSS; j++) {
            int64_t r = first + own_y() + i * ACROSS, w = w0 + own_x() + j * ACROSS;
            if (r < count && w < width) to[r * stride + w] = narrow<E>(o[i][j]);
        }
}
/* The part of the work that a block has: a head, a tile of rows, and columns. */
struct task {
    int64_t b, h, first, w0;
    bool leads; /* it has the first columns */
    __device__ task(int64_t heads, int64_t tiles, int size, int64_t parts) {
        int64_t at = blockIdx.x;
        w0 = at % parts * WIDE, at /= parts;
        first = at % tiles * size, at /= tiles;
        h = at % heads, b = at / heads;
        leads = w0 == 0;
    }
};
static __host__ __device__ int64_t tiles_of(int64_t n, int size) { return (n + size - 1) / size; }
static __host__ __device__ int64_t parts_of(int64_t width) { return width > WIDE ? tiles_of(width, WIDE) : 1; }

template <class E, class T>
static __global__ void forward(const __grid_constant__ pd_attention c, const E *q, const E *k, const E *v, const void *mask, E *out, T *lse) {
    __shared__ T p[QUERIES][KEYS + 1], tile[KEYS][WIDE + 1], fold[QUERIES][THREADS / QUERIES + 1], top[QUERIES], sum[QUERIES], shrink[QUERIES];
    static_assert(KEYS * (WIDE + 1) >= (QUERIES + KEYS) * (DEPTH + 1), "room for both operands of the scores");
    T(*ta)[DEPTH + 1] = (T(*)[DEPTH + 1]) & tile[0][0], (*tb)[DEPTH + 1] = ta + QUERIES, s[QUERIES / ACROSS][KEYS / ACROSS];
    task at(c.H, tiles_of(c.nq, QUERIES), QUERIES, parts_of(c.dv));
    int64_t kv = at.h / (c.H / c.Hkv), keys = keys_of(c, at.first, QUERIES);
    rows<E> of_q = rows_of<E>(q, c.qs, at.b, at.h, c.nq, c.d), of_k = rows_of<E>(k, c.ks, at.b, kv, c.nk, c.d);
    rows<E> of_v = rows_of<E>(v, c.vs, at.b, kv, c.nk, c.dv);
    T o[QUERIES / ACROSS][WIDE / ACROSS] = {};
    int row = threadIdx.x / (THREADS / QUERIES), quarter = threadIdx.x % (THREADS / QUERIES), each = KEYS * QUERIES / THREADS;
    if (threadIdx.x < QUERIES) top[threadIdx.x] = limits<T>::low(), sum[threadIdx.x] = 0;
    for (int64_t j0 = 0; j0 < keys; j0 += KEYS) {
        dot_rows<QUERIES, KEYS>(s, of_q, at.first, of_k, j0, ta, tb);
        for (int i = 0; i < QUERIES / ACROSS; i++)
            for (int j = 0; j < KEYS / ACROSS; j++) {
                int r = own_y() + i * ACROSS, x = own_x() + j * ACROSS;
                p[r][x] = score<E, T>(c, mask, at.b, at.h, at.first + r, j0 + x, s[i][j]);
            }
        load<KEYS, WIDE>(tile, of_v, j0, at.w0);
        __syncthreads();
        T most = limits<T>::low();
        for (int x = quarter * each; x < (quarter + 1) * each; x++) most = larger<T>::of(most, p[row][x]);
        fold[row][quarter] = most;
        __syncthreads();
        most = top[row];
        for (int x = 0; x < THREADS / QUERIES; x++) most = larger<T>::of(most, fold[row][x]);
        T shift = most == limits<T>::low() ? (T)0 : most, part = 0;
        __syncthreads();
        for (int x = quarter * each; x < (quarter + 1) * each; x++) part += p[row][x] = V_EXP(p[row][x] - shift);
        fold[row][quarter] = part;
        if (quarter == 0) shrink[row] = V_EXP(top[row] - shift);
        __syncthreads();
        if (quarter == 0) {
            top[row] = most, sum[row] *= shrink[row];
            for (int x = 0; x < THREADS / QUERIES; x++) sum[row] += fold[row][x];
        }
        for (int i = 0; i < QUERIES / ACROSS; i++)
            for (int j = 0; j < WIDE / ACROSS; j++) o[i][j] *= shrink[own_y() + i * ACROSS];
        add_product<QUERIES, KEYS, false>(o, p, tile);
    }
    __syncthreads();
    for (int i = 0; i < QUERIES / ACROSS; i++) {
        T all = sum[own_y() + i * ACROSS], by = all == 0 ? (T)0 : 1 / all;
        for (int j = 0; j < WIDE / ACROSS; j++) o[i][j] *= by;
    }
    store<QUERIES>(out + at.b * c.os[0] + at.h * c.os[1], c.os[2], at.first, c.nq, at.w0, c.dv, o);
    int64_t i = at.first + threadIdx.x;
    if (at.leads && threadIdx.x < QUERIES && i < c.nq) {
        T all = sum[threadIdx.x];
        lse[(at.b * c.H + at.h) * c.nq + i] = all == 0 ? limits<T>::low() : top[threadIdx.x] + V_LOG(all);
    }
}

enum { SIDE = 32, EACH = THREADS / SIDE }; /* queries and keys of the gradient's tiles; threads for each of them */
/* own[r] = the sum over g * out of row first + r, which the gradient of softmax subtracts. It goes to D, too, if the
   block leads. */
template <class E, class T> static __device__ void sum_rows(T *own, const rows<E> &g, const rows<E> &out, int64_t first, T *D, bool leads) {
    const int64_t r = threadIdx.x / EACH, i = first + r;
    T sum = 0;
    for (int64_t w = threadIdx.x % EACH; w < g.width && i < g.count; w += EACH) sum += widen(g.x[i * g.stride + w]) * widen(out.x[i * out.stride + w]);
    for (int d = EACH / 2; d; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x % EACH == 0) own[r] = sum;
    if (threadIdx.x % EACH == 0 && leads && i < g.count) D[i] = sum;
    __syncthreads();
}
/* Recomputes p and ds of queries from i0 and keys from j0 on. lse, D: of query i0 and those behind it. */
template <class E, class T> struct again {
    T p[SIDE][SIDE + 1], ds[SIDE][SIDE + 1], ta[SIDE][DEPTH + 1], tb[SIDE][DEPTH + 1];
    __device__ void make(const pd_attention &c, const void *mask, const task &at, int64_t h, const rows<E> &q, const rows<E> &k, const rows<E> &g,
                         const rows<E> &v, const T *lse, const T *D, int64_t i0, int64_t j0) {
        T s[SIDE / ACROSS][SIDE / ACROSS], gp[SIDE / ACROSS][SIDE / ACROSS];
        dot_rows<SIDE, SIDE>(s, q, i0, k, j0, ta, tb);
        dot_rows<SIDE, SIDE>(gp, g, i0, v, j0, ta, tb);
        for (int i = 0; i < SIDE / ACROSS; i++) {
            int r = own_y() + i * ACROSS;
            T shift = i0 + r < c.nq ? lse[r] : (T)0, less = i0 + r < c.nq ? D[r] : (T)0;
            if (shift == limits<T>::low()) shift = 0;
            for (int j = 0; j < SIDE / ACROSS; j++) {
                int x = own_x() + j * ACROSS;
                T seen = score<E, T>(c, mask, at.b, h, i0 + r, j0 + x, s[i][j]), e = V_EXP(seen - shift);
                p[r][x] = e;
                ds[r][x] = e * (gp[i][j] - less) * (T)c.scale;
            }
        }
        __syncthreads();
    }
};

template <class E, class T>
static __global__ void query_grad(const __grid_constant__ pd_attention c, const E *g, const E *q, const E *k, const E *v, const void *mask,
                                  const E *out, const T *lse, T *D, E *gq) {
    __shared__ again<E, T> a;
    __shared__ T tile[SIDE][WIDE + 1], less[SIDE];
    task at(c.H, tiles_of(c.nq, SIDE), SIDE, parts_of(c.d));
    int64_t kv = at.h / (c.H / c.Hkv), keys = keys_of(c, at.first, SIDE);
    rows<E> of_q = rows_of<E>(q, c.qs, at.b, at.h, c.nq, c.d), of_k = rows_of<E>(k, c.ks, at.b, kv, c.nk, c.d);
    rows<E> of_v = rows_of<E>(v, c.vs, at.b, kv, c.nk, c.dv), of_g = rows_of<E>(g, c.gs, at.b, at.h, c.nq, c.dv);
    const int64_t row = (at.b * c.H + at.h) * c.nq;
    sum_rows<E>(less, of_g, rows_of<E>(out, c.os, at.b, at.h, c.nq, c.dv), at.first, D + row, at.leads);
    T o[SIDE / ACROSS][WIDE / ACROSS] = {};
    for (int64_t j0 = 0; j0 < keys; j0 += SIDE) {
        a.make(c, mask, at, at.h, of_q, of_k, of_g, of_v, lse + row + at.first, less, at.first, j0);
        load<SIDE, WIDE>(tile, of_k, j0, at.w0);
        __syncthreads();
        add_product<SIDE, SIDE, false>(o, a.ds, tile);
    }
    store<SIDE>(gq + at.b * c.gqs[0] + at.h * c.gqs[1], c.gqs[2], at.first, c.nq, at.w0, c.d, o);
}
template <class E, class T>
static __global__ void key_grad(const __grid_constant__ pd_attention c, const E *g, const E *q, const E *k, const E *v, const void *mask,
                                const T *lse, const T *D, E *gk, E *gv) {
    __shared__ again<E, T> a;
    __shared__ T tile[SIDE][WIDE + 1];
    int64_t group = c.H / c.Hkv;
    task at(c.Hkv, tiles_of(c.nk, SIDE), SIDE, parts_of(c.d > c.dv ? c.d : c.dv));
    rows<E> of_k = rows_of<E>(k, c.ks, at.b, at.h, c.nk, c.d), of_v = rows_of<E>(v, c.vs, at.b, at.h, c.nk, c.dv);
    T ok[SIDE / ACROSS][WIDE / ACROSS] = {}, ov[SIDE / ACROSS][WIDE / ACROSS] = {};
    for (int64_t h = at.h * group; h < (at.h + 1) * group; h++) {
        rows<E> of_q = rows_of<E>(q, c.qs, at.b, h, c.nq, c.d), of_g = rows_of<E>(g, c.gs, at.b, h, c.nq, c.dv);
        for (int64_t i0 = c.causal ? at.first : 0; i0 < c.nq; i0 += SIDE) {
            const int64_t row = (at.b * c.H + h) * c.nq + i0;
            a.make(c, mask, at, h, of_q, of_k, of_g, of_v, lse + row, D + row, i0, at.first);
            load<SIDE, WIDE>(tile, of_g, i0, at.w0);
            __syncthreads();
            add_product<SIDE, SIDE, true>(ov, a.p, tile);
            __syncthreads();
            load<SIDE, WIDE>(tile, of_q, i0, at.w0);
            __syncthreads();
            add_product<SIDE, SIDE, true>(ok, a.ds, tile);
        }
    }
    store<SIDE>(gk + at.b * c.gks[0] + at.h * c.gks[1], c.gks[2], at.first, c.nk, at.w0, c.d, ok);
    store<SIDE>(gv + at.b * c.gvs[0] + at.h * c.gvs[1], c.gvs[2], at.first, c.nk, at.w0, c.dv, ov);
}

/* The sums of columns of gradients that the kernels for tensor cores do not make, of rows [B, n] with these strides. */
template <class E>
static __global__ void sum_columns(const E *x, int64_t batch, int64_t row, int64_t n, int64_t all, int64_t columns, const cut c, float *folded,
                                   unsigned *counters, float *to) {
    const place p(c, 1, all, columns);
    float v[1] = {};
    for (int64_t i = p.begin; i < p.end; i += p.slices) v[0] += (float)widen(x[i / n * batch + i % n * row + p.own]);
    across_parts<plus>(v, c, p, columns, folded, counters, [&](int64_t k, float sum) { to[k] = sum; });
}
template <class E> static void sum_columns_of(const E *x, const int64_t (&strides)[3], int64_t B, int64_t n, int64_t columns, float *to) {
    const pd_block b = {1, B * n, columns};
    const cut c = cut_of(&b, false, sizeof(E));
    float *folded;
    unsigned *counters;
    if (to && room_for_parts(c, b, &folded, &counters))
        launch(sum_columns<E>, c.groups * c.parts, THREADS, x, strides[0], strides[2], n, B * n, columns, c, folded, counters, to);
}

size_t pd_cuda_attention_scratch(const pd_attention *c, bool grad) {
    return grad ? (size_t)(c->B * c->H * c->nq) * (c->t == PD_F64 ? 8 : 4) : 0;
}
void pd_cuda_attention(const pd_attention *c, const void *q, const void *k, const void *v, const void *mask, void *out, void *lse, void *) {
    if (pd_cuda_attention_fits(c, q, k, v, q)) {
        pd_cuda_attention_mma(c, q, k, v, mask, out, (float *)lse);
        return;
    }
    by_float(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        launch(forward<E, T>, c->B * c->H * tiles_of(c->nq, QUERIES) * parts_of(c->dv), THREADS, *c, (const E *)q, (const E *)k, (const E *)v,
               mask, (E *)out, (T *)lse);
    });
}
void pd_cuda_attention_grad(const pd_attention *c, const void *g, const void *q, const void *k, const void *v, const void *mask, const void *out,
                            const void *lse, void *gq, void *gk, void *gv, void *scratch) {
    const bool cores = pd_cuda_attention_fits(c, q, k, v, g) && pd_cuda_attention_grad_fits(c, out, gq, gk, gv);
    if (cores) pd_cuda_attention_mma_grad(c, g, q, k, v, mask, out, (const float *)lse, (float *)scratch, gq, gk, gv);
    if (cores && c->d <= PD_ATTENTION_SUMS) return;
    by_float(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        typedef wide<E> T;
        if (!cores) {
            T *D = (T *)scratch;
            launch(query_grad<E, T>, c->B * c->H * tiles_of(c->nq, SIDE) * parts_of(c->d), THREADS, *c, (const E *)g, (const E *)q, (const E *)k,
                   (const E *)v, mask, (const E *)out, (const T *)lse, D, (E *)gq);
            launch(key_grad<E, T>, c->B * c->Hkv * tiles_of(c->nk, SIDE) * parts_of(c->d > c->dv ? c->d : c->dv), THREADS, *c, (const E *)g,
                   (const E *)q, (const E *)k, (const E *)v, mask, (const T *)lse, (const T *)D, (E *)gk, (E *)gv);
        }
        sum_columns_of((const E *)gq, c->gqs, c->B, c->nq, c->H * c->d, c->sums[0]);
        sum_columns_of((const E *)gk, c->gks, c->B, c->nk, c->Hkv * c->d, c->sums[1]);
        sum_columns_of((const E *)gv, c->gvs, c->B, c->nk, c->Hkv * c->dv, c->sums[2]);
    });
}
