/* Attention of 16-bit elements on tensor cores (Dao, arXiv 2307.08691), for heads of at most 256 elements, 8 or a multiple.
   D is the width of the kernel, the next of 32, 64, 96, 128 and 256; behind a narrower head there are zeros. A warp has 16
   rows: queries in forward and for gq, keys for gk and gv. Scores stay in registers: the result of a product has the
   layout that the next product needs for its first operand.

   The gradient makes scores and probabilities twice, once for gq and once for gk and gv: seven products. One kernel of
   five would have to add gq up over blocks of keys, in a fixed order. For 32 x 12 heads of 64 and 1,024 tokens, causal,
   it saves 52 of 180 GFLOP a layer: 0.25 to 0.32 ms at 160 to 210 TFLOP/s. Its sums of gq are 214 million floats (64 keys
   at a time), written and read: 1.7 GB a layer, 0.46 ms at 3.7 TB/s. In the L2 cache, block after block, that is still
   three times the traffic of today's tiles, beside barriers for a turned ds, a wait for the block before, and 0.04 ms to
   round gq. It does not pay. Heads above 128 take eight products: registers hold only one of gk and gv. */
#include <math.h>

#include "cuda/attention.h"
#include "cuda/mma.h"

/* Rows of D elements in shared memory, padded so that eight rows are in different banks. W: warps of the block. */
template <class E, int R, int D, int W> struct tile {
    alignas(16) E e[R][D + 8];
    /* Starts to copy rows from `first` on. */
    __device__ void fetch(const rows<E> &m, int64_t first) {
        auto copy = [&](int at) {
            int r = at / (D / 8), w = at % (D / 8) * 8;
            bool there = first + r < m.count && w < m.width;
            copy16(&e[r][w], m.x + (there ? (first + r) * m.stride + w : 0), there);
        };
        if constexpr (D <= 128) {
            for (int at = threadIdx.x; at < R * (D / 8); at += W * WARP) copy(at);
        } else { /* the addresses of several copies would not fit into registers */
            ONE_BY_ONE
            for (int at = threadIdx.x; at < R * (D / 8); at += W * WARP) copy(at);
        }
    }
    /* Second operands for rows of the tile as columns n, n + 1, ..., n + 7: depths k..k + 15 and k + 16..k + 31. */
    __device__ void columns(uint32_t (&b)[4], int n, int k) const {
        int lane = threadIdx.x % WARP;
        load_matrices<false>(b, &e[n + lane % 8][k + lane / 8 * 8]);
    }
    /* Second operands for rows k..k + 15 of the tile as depths: columns n..n + 7 and n + 8..n + 15. */
    __device__ void depths(uint32_t (&b)[4], int k, int n) const {
        int lane = threadIdx.x % WARP, m = lane / 8;
        load_matrices<true>(b, &e[k + m % 2 * 8 + lane % 8][n + m / 2 * 8]);
    }
    /* First operand: rows r..r + 15, depths k..k + 15. */
    __device__ void first(uint32_t (&a)[4], int r, int k) const {
        int lane = threadIdx.x % WARP, m = lane / 8;
        load_matrices<false>(a, &e[r + m % 2 * 8 + lane % 8][k + m / 2 * 8]);
    }
};

/* First operands of the block's own rows from `first` on, 16 for each warp: HELD columns in registers, the others in shared memory. */
template <class E, int D, int W, int HELD> struct own_rows {
    typedef tile<E, HELD < D ? 16 * W : 1, D - HELD, W> memory;
    uint32_t a[HELD > 0 ? HELD / 16 : 1][4];
    const memory &others;
    __device__ own_rows(memory &room, const rows<E> &m, int64_t first) : others(room) {
        int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
        UNROLLED
        for (int k = 0; k < HELD / 16; k++)
            UNROLLED
            for (int i = 0; i < 4; i++) {
                int64_t r = first + threadIdx.x / WARP * 16 + g + i % 2 * 8;
                int w = k * 16 + i / 2 * 8; /* eight elements are there together, or not */
                a[k][i] = r < m.count && w < m.width ? *(const uint32_t *)(m.x + r * m.stride + w + 2 * t) : 0;
            }
        if constexpr (HELD < D) room.fetch({m.x + HELD, m.stride, m.count, m.width - HELD}, first);
    }
    /* At depth 16k. */
    __device__ void operator()(uint32_t (&to)[4], int k) const {
        if (16 * k >= HELD) {
            others.first(to, threadIdx.x / WARP * 16, 16 * k - HELD);
            return;
        }
        UNROLLED
        for (int i = 0; i < 4; i++) to[i] = a[k][i];
    }
};

/* s[n] = the products of 16 rows with the tile's rows 8n..8n + 7. `of` returns the first operand at depth 16k. */
template <int N, class E, int R, int D, int W, class F>
static __device__ void scores(float (&s)[N][4], const tile<E, R, D, W> &of_keys, const F &of) {
    UNROLLED
    for (int n = 0; n < N; n++)
        UNROLLED
        for (int i = 0; i < 4; i++) s[n][i] = 0;
    UNROLLED
    for (int k = 0; k < D / 16; k += 2) {
        uint32_t a0[4], a1[4];
        of(a0, k);
        of(a1, k + 1);
        UNROLLED
        for (int n = 0; n < N; n++) {
            uint32_t b[4];
            of_keys.columns(b, 8 * n, 16 * k);
            mma<E>(s[n], a0, b[0], b[1]);
            mma<E>(s[n], a1, b[2], b[3]);
        }
    }
}
/* o += p m. p has 16 rows in the layout that `scores` leaves; its columns are m's rows. */
template <int N, class E, int R, int D, int W>
static __device__ void add_weighted(float (&o)[D / 8][4], const float (&p)[N][4], const tile<E, R, D, W> &m) {
    UNROLLED
    for (int k = 0; k < N / 2; k++) {
        const float *low = p[2 * k], *high = p[2 * k + 1];
        uint32_t a[4] = {pair_of<E>(low[0], low[1]), pair_of<E>(low[2], low[3]), pair_of<E>(high[0], high[1]), pair_of<E>(high[2], high[3])};
        UNROLLED
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            m.depths(b, 16 * k, 16 * n);
            mma<E>(o[2 * n], a, b[0], b[1]);
            mma<E>(o[2 * n + 1], a, b[2], b[3]);
        }
    }
}
/* Stores rows g and g + 8 of o, multiplied by by[0] and by[1], as far as a row is wide. */
template <class E, int D>
static __device__ void store(E *to, int64_t stride, int64_t row, int64_t count, int64_t width, const float (&o)[D / 8][4], const float (&by)[2]) {
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    UNROLLED
    for (int n = 0; n < D / 8; n++)
        UNROLLED
        for (int i = 0; i < 2; i++) {
            int64_t r = row + g + 8 * i;
            if (r < count && 8 * n < width) *(uint32_t *)(to + r * stride + 8 * n + 2 * t) = pair_of<E>(o[n][2 * i] * by[i], o[n][2 * i + 1] * by[i]);
        }
}
/* The sums of columns of a gradient, [heads, width], where they are wanted; parts: of all blocks, behind each other by
   heads. */
struct sums_of_columns { float *to, *parts; unsigned *counters; };
/* Sums the columns of what `store` stores for this block's 16 W rows, and of all blocks of the head, which are `count`. */
template <class E, int D, int W>
static __device__ void sum_columns(const float (&o)[D / 8][4], int64_t row, int64_t rows, int64_t width, int64_t head, int64_t part, int64_t count,
                                   const sums_of_columns &s) {
    __shared__ float all[W][D];
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float *parts = s.parts + head * count * width;
    if (!s.to) return;
    __syncthreads(); /* all have read those of the call before */
    UNROLLED
    for (int n = 0; n < D / 8; n++)
        UNROLLED
        for (int x = 0; x < 2; x++) {
            float v = 0;
            UNROLLED
            for (int i = 0; i < 2; i++)
                if (row + g + 8 * i < rows) v += widen(narrow<E>(o[n][2 * i + x]));
            UNROLLED
            for (int d = 4; d < WARP; d *= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
            if (g == 0) all[threadIdx.x / WARP][8 * n + 2 * t + x] = v;
        }
    __syncthreads();
    for (int64_t w = threadIdx.x; w < width; w += W * WARP) {
        float v = all[0][w];
        for (int k = 1; k < W; k++) v += all[k][w];
        parts[part * width + w] = v;
    }
    if (!add_all_parts<4>(parts, width, (unsigned)part, (unsigned)count, s.counters + head * counters_of(count))) return;
    for (int64_t w = threadIdx.x; w < width; w += W * WARP) s.to[head * width + w] = parts[w];
}
/* Combines the values of the four threads that share a row. */
template <template <class> class Op> static __device__ float across(float v) {
    v = Op<float>::of(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return Op<float>::of(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

template <class E, int D, int KEYS, int W>
static __global__ void __launch_bounds__(W * WARP, 2) forward(const __grid_constant__ pd_attention c, const E *q, const E *k, const E *v, const void *mask,
                                                       E *out, float *lse) {
    enum { ROWS = 16 * W };
    __shared__ tile<E, KEYS, D, W> tk, tv;
    int64_t tiles = (c.nq + ROWS - 1) / ROWS, i0 = (tiles - 1 - blockIdx.x % tiles) * ROWS; /* the longest first */
    int64_t h = blockIdx.x / tiles % c.H, b = blockIdx.x / tiles / c.H, kv = h / (c.H / c.Hkv), keys = keys_of(c, i0, ROWS);
    rows<E> of_k = rows_of<E>(k, c.ks, b, kv, c.nk, c.d), of_v = rows_of<E>(v, c.vs, b, kv, c.nk, c.d);
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int64_t row = i0 + threadIdx.x / WARP * 16;
    typedef own_rows<E, D, W, D> own_q;
    __shared__ typename own_q::memory room;
    own_q own(room, rows_of<E>(q, c.qs, b, h, c.nq, c.d), i0);
    float o[D / 8][4] = {}, top[2] = {-VM_INFF, -VM_INFF}, sum[2] = {0, 0};
    if (keys > 0) tk.fetch(of_k, 0);
    for (int64_t j0 = 0; j0 < keys; j0 += KEYS) {
        float s[KEYS / 8][4], shrink[2];
        wait_for_copies();
        __syncthreads();
        tv.fetch(of_v, j0); /* arrives while the scores are computed */
        scores(s, tk, own);
        wait_for_copies();
        __syncthreads();
        if (j0 + KEYS < keys) tk.fetch(of_k, j0 + KEYS);
        bool plain = !mask && j0 + KEYS <= c.nk && (!c.causal || j0 + KEYS <= i0);
        UNROLLED
        for (int i = 0; i < 2; i++) {
            float most = -VM_INFF, part = 0;
            UNROLLED
            for (int n = 0; n < KEYS / 8; n++)
                UNROLLED
                for (int x = 0; x < 2; x++) {
                    float &e = s[n][2 * i + x];
                    e = plain ? e * (float)c.scale : score<E>(c, mask, b, h, row + g + 8 * i, j0 + 8 * n + 2 * t + x, e);
                    most = larger<float>::of(most, e);
                }
            most = larger<float>::of(top[i], across<larger>(most));
            float shift = most == -VM_INFF ? 0 : most * (float)LOG2E;
            shrink[i] = exp2f(fused(top[i], (float)LOG2E, -shift));
            UNROLLED
            for (int n = 0; n < KEYS / 8; n++)
                UNROLLED
                for (int x = 0; x < 2; x++) part += s[n][2 * i + x] = exp2f(fused(s[n][2 * i + x], (float)LOG2E, -shift));
            top[i] = most;
            sum[i] = sum[i] * shrink[i] + part;
        }
        UNROLLED
        for (int n = 0; n < D / 8; n++)
            UNROLLED
            for (int i = 0; i < 4; i++) o[n][i] *= shrink[i / 2];
        add_weighted(o, s, tv);
    }
    float by[2];
    UNROLLED
    for (int i = 0; i < 2; i++) {
        int64_t r = row + g + 8 * i;
        sum[i] = across<plus>(sum[i]);
        by[i] = sum[i] == 0 ? 0 : 1 / sum[i];
        if (t == 0 && r < c.nq) lse[(b * c.H + h) * c.nq + r] = sum[i] == 0 ? -VM_INFF : top[i] + V_LOG(sum[i]);
    }
    store<E, D>(out + b * c.os[0] + h * c.os[1], c.os[2], row, c.nq, c.d, o, by);
}

/* Replaces s and gp of one query and one key by p and ds. plain: the query may see the key, there is no mask. */
template <class E>
static __device__ void again(const pd_attention &c, bool plain, const void *mask, int64_t b, int64_t h, int64_t i, int64_t j, float lse, float less,
                             float &s, float &gp) {
    s = plain ? s * (float)c.scale : score<E>(c, mask, b, h, i, j, s);
    s = exp2f(fused(s, (float)LOG2E, -lse));
    gp = s * (gp - less) * (float)c.scale;
}
/* lse of a row to base 2; 0 if the row may see no key, or does not exist. */
static __device__ float shift_of(const float *lse, int64_t i, int64_t n) { return i < n && lse[i] != -VM_INFF ? lse[i] * (float)LOG2E : 0; }

/* The sum over g * out of a row, which the gradient of softmax subtracts, by the four threads of the row. */
template <class E> static __device__ float row_sum(const rows<E> &g, const rows<E> &out, int64_t r) {
    float sum = 0;
    for (int64_t w = threadIdx.x % 4 * 8; w < g.width && r < g.count; w += 32) {
        const pack<E, 8> a = *(const pack<E, 8> *)(g.x + r * g.stride + w), b = *(const pack<E, 8> *)(out.x + r * out.stride + w);
        for (int e = 0; e < 8; e++) sum += widen(a.e[e]) * widen(b.e[e]);
    }
    return across<plus>(sum);
}

/* less: [B, H, nq], written for key_grad. */
template <class E, int D, int N, int BUFFERS, int W>
static __global__ void __launch_bounds__(W * WARP, 2) query_grad(const __grid_constant__ pd_attention c, const E *g_, const E *q, const E *k, const E *v,
                                                          const void *mask, const E *out, const float *lse, float *less, E *gq, const sums_of_columns sums) {
    enum { ROWS = 16 * W };
    typedef own_rows<E, D, W, D <= 128 ? D : 128> own_q;
    typedef own_rows<E, D, W, D <= 128 ? D : 0> own_g;
    __shared__ tile<E, N, D, W> tk[BUFFERS], tv[BUFFERS]; /* of two one is read while the other one is filled */
    __shared__ typename own_q::memory room_q;
    __shared__ typename own_g::memory room_g;
    int64_t tiles = (c.nq + ROWS - 1) / ROWS, i0 = (tiles - 1 - blockIdx.x % tiles) * ROWS;
    int64_t h = blockIdx.x / tiles % c.H, b = blockIdx.x / tiles / c.H, kv = h / (c.H / c.Hkv), keys = keys_of(c, i0, ROWS);
    rows<E> of_k = rows_of<E>(k, c.ks, b, kv, c.nk, c.d), of_v = rows_of<E>(v, c.vs, b, kv, c.nk, c.d);
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int64_t row = i0 + threadIdx.x / WARP * 16;
    own_q mine(room_q, rows_of<E>(q, c.qs, b, h, c.nq, c.d), i0);
    own_g mine_g(room_g, rows_of<E>(g_, c.gs, b, h, c.nq, c.d), i0);
    float o[D / 8][4] = {}, shift[2], minus[2];
    lse += (b * c.H + h) * c.nq;
    less += (b * c.H + h) * c.nq;
    UNROLLED
    for (int i = 0; i < 2; i++) {
        int64_t r = row + g + 8 * i;
        shift[i] = shift_of(lse, r, c.nq);
        minus[i] = row_sum<E>(rows_of<E>(g_, c.gs, b, h, c.nq, c.d), rows_of<E>(out, c.os, b, h, c.nq, c.d), r);
        if (t == 0 && r < c.nq) less[r] = minus[i];
    }
    if (keys > 0) tk[0].fetch(of_k, 0), tv[0].fetch(of_v, 0);
    for (int64_t j0 = 0, now = 0; j0 < keys; j0 += N, now = (now + 1) % BUFFERS) {
        float s[N / 8][4], gp[N / 8][4];
        bool plain = !mask && j0 + N <= c.nk && (!c.causal || j0 + N <= i0 + 1);
        wait_for_copies();
        __syncthreads(); /* these tiles are there, and all have read the other ones */
        if (BUFFERS == 2 && j0 + N < keys) tk[now ^ 1].fetch(of_k, j0 + N), tv[now ^ 1].fetch(of_v, j0 + N);
        scores(s, tk[now], mine);
        scores(gp, tv[now], mine_g);
        UNROLLED
        for (int n = 0; n < N / 8; n++)
            UNROLLED
            for (int i = 0; i < 4; i++)
                again<E>(c, plain, mask, b, h, row + g + i / 2 * 8, j0 + 8 * n + 2 * t + i % 2, shift[i / 2], minus[i / 2], s[n][i], gp[n][i]);
        add_weighted(o, gp, tk[now]);
        if (BUFFERS == 1 && j0 + N < keys) {
            __syncthreads();
            tk[0].fetch(of_k, j0 + N), tv[0].fetch(of_v, j0 + N);
        }
    }
    const float one[2] = {1, 1};
    store<E, D>(gq + b * c.gqs[0] + h * c.gqs[1], c.gqs[2], row, c.nq, c.d, o, one);
    if constexpr (D <= PD_ATTENTION_SUMS) sum_columns<E, D, W>(o, row, c.nq, c.d, h, b * tiles + i0 / ROWS, c.B * tiles, sums);
}

/* Here all is transposed: rows are keys, columns are queries. The kernel makes gk, or gv, or both. */
template <class E, int D, int N, int BUFFERS, int W, bool FOR_K, bool FOR_V>
static __global__ void __launch_bounds__(W * WARP, 2) key_grad(const __grid_constant__ pd_attention c, const E *g_, const E *q, const E *k, const E *v,
                                                        const void *mask, const float *lse, const float *less, E *gk, E *gv,
                                                        const sums_of_columns sums_k, const sums_of_columns sums_v) {
    enum { ROWS = 16 * W };
    typedef own_rows<E, D, W, FOR_V ? 0 : 128> own_k;
    typedef own_rows<E, D, W, FOR_K ? 0 : D> own_v; /* for gv alone nobody reads it */
    __shared__ tile<E, N, D, W> tq[BUFFERS], tg[BUFFERS];
    __shared__ typename own_k::memory room_k;
    __shared__ typename own_v::memory room_v;
    __shared__ float shift[BUFFERS][N], minus[BUFFERS][N];
    int64_t tiles = (c.nk + ROWS - 1) / ROWS, j0 = blockIdx.x % tiles * ROWS, group = c.H / c.Hkv;
    int64_t kv = blockIdx.x / tiles % c.Hkv, b = blockIdx.x / tiles / c.Hkv;
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, own = threadIdx.x / WARP * 16;
    float ok[D / 8][4] = {}, ov[D / 8][4] = {};
    own_k mine(room_k, rows_of<E>(k, c.ks, b, kv, c.nk, c.d), j0);
    own_v mine_v(room_v, rows_of<E>(v, c.vs, b, kv, c.nk, c.d), j0);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        rows<E> of_q = rows_of<E>(q, c.qs, b, h, c.nq, c.d), of_g = rows_of<E>(g_, c.gs, b, h, c.nq, c.d);
        const float *of_lse = lse + (b * c.H + h) * c.nq, *of_less = less + (b * c.H + h) * c.nq;
        const int64_t begin = c.causal ? j0 : 0;
        auto fetch = [&](int to, int64_t i0) {
            tq[to].fetch(of_q, i0);
            tg[to].fetch(of_g, i0);
            if (threadIdx.x >= N) return;
            int64_t i = i0 + threadIdx.x;
            shift[to][threadIdx.x] = shift_of(of_lse, i, c.nq);
            minus[to][threadIdx.x] = i < c.nq ? of_less[i] : 0;
        };
        __syncthreads(); /* all have read the tiles of the head before */
        if (begin < c.nq) fetch(0, begin);
        for (int64_t i0 = begin, now = 0; i0 < c.nq; i0 += N, now = (now + 1) % BUFFERS) {
            float s[N / 8][4], gp[N / 8][4];
            bool plain = !mask && i0 + N <= c.nq && (!c.causal || j0 + ROWS <= i0 + 1);
            wait_for_copies();
            __syncthreads(); /* these tiles are there, and all have read the other ones */
            if (BUFFERS == 2 && i0 + N < c.nq) fetch((int)now ^ 1, i0 + N);
            scores(s, tq[now], mine);
            if (FOR_K) scores(gp, tg[now], mine_v);
            UNROLLED
            for (int n = 0; n < N / 8; n++)
                UNROLLED
                for (int i = 0; i < 4; i++) {
                    int x = 8 * n + 2 * t + i % 2;
                    again<E>(c, plain, mask, b, h, i0 + x, j0 + own + g + i / 2 * 8, shift[now][x], minus[now][x], s[n][i], gp[n][i]);
                }
            if (FOR_V) add_weighted(ov, s, tg[now]);
            if (FOR_K) add_weighted(ok, gp, tq[now]);
            if (BUFFERS == 1 && i0 + N < c.nq) {
                __syncthreads();
                fetch(0, i0 + N);
            }
        }
    }
    const float one[2] = {1, 1};
    if (FOR_K) store<E, D>(gk + b * c.gks[0] + kv * c.gks[1], c.gks[2], j0 + own, c.nk, c.d, ok, one);
    if (FOR_V) store<E, D>(gv + b * c.gvs[0] + kv * c.gvs[1], c.gvs[2], j0 + own, c.nk, c.d, ov, one);
    if constexpr (D <= PD_ATTENTION_SUMS) {
        sum_columns<E, D, W>(ok, j0 + own, c.nk, c.d, kv, b * tiles + j0 / ROWS, c.B * tiles, sums_k);
        sum_columns<E, D, W>(ov, j0 + own, c.nk, c.d, kv, b * tiles + j0 / ROWS, c.B * tiles, sums_v);
    }
}

/* ---- the host's side --------------------------------------------------------------------------------------------- */

static bool lies_well(const void *p, const int64_t (&stride)[3]) {
    return (uintptr_t)p % 16 == 0 && (stride[0] | stride[1] | stride[2]) % 8 == 0;
}
bool pd_cuda_attention_grad_fits(const pd_attention *c, const void *out, const void *gq, const void *gk, const void *gv) {
    return lies_well(out, c->os) && lies_well(gq, c->gqs) && lies_well(gk, c->gks) && lies_well(gv, c->gvs);
}
bool pd_cuda_attention_fits(const pd_attention *c, const void *q, const void *k, const void *v, const void *g) {
    bool given = g == q || lies_well(g, c->gs);
    return (c->t == PD_BF16 || c->t == PD_F16) && c->d == c->dv && c->d % 8 == 0 && c->d > 0 && c->d <= 256 && lies_well(q, c->qs) && lies_well(k, c->ks) &&
           lies_well(v, c->vs) && given && (c->os[0] | c->os[1] | c->os[2]) % 8 == 0;
}

template <class E, class F> static void by_width(int64_t d, F f) {
    if (d <= 32) f(tag<E[32]>());
    else if (d <= 64) f(tag<E[64]>());
    else if (d <= 96) f(tag<E[96]>());
    else if (d <= 128) f(tag<E[128]>());
    else f(tag<E[256]>());
}
template <class F> static void by_shape(const pd_attention *c, F f) {
    if (c->t == PD_BF16) by_width<pd_bf16>(c->d, f);
    else by_width<pd_f16>(c->d, f);
}
template <class S> struct shape_of;
template <class E, int N> struct shape_of<E[N]> {
    typedef E type;
    /* keys: of a tile in forward; few: columns of the gradient at a time, as many as fit into registers (of 32, sm_120 spills for 32);
       buffers: two where 48 KiB hold them */
    static constexpr int width = N, few = N == 64 ? 32 : 16, buffers = N <= 96 ? 2 : 1;
    static constexpr int keys = N <= 128 ? 64 : 16, warps = 4, warps_grad = N <= 128 ? 4 : 2;
};

void pd_cuda_attention_mma(const pd_attention *c, const void *q, const void *k, const void *v, const void *mask, void *out, float *lse) {
    by_shape(c, [&](auto s) {
        typedef shape_of<typename decltype(s)::type> S;
        typedef typename S::type E;
        const int many = S::warps * WARP, rows = 16 * S::warps;
        launch(forward<E, S::width, S::keys, S::warps>, c->B * c->H * ((c->nq + rows - 1) / rows), many, *c, (const E *)q, (const E *)k,
               (const E *)v, mask, (E *)out, lse);
    });
}
void pd_cuda_attention_mma_grad(const pd_attention *c, const void *g, const void *q, const void *k, const void *v, const void *mask,
                                const void *out, const float *lse, float *D, void *gq, void *gk, void *gv) {
    by_shape(c, [&](auto s) {
        typedef shape_of<typename decltype(s)::type> S;
        typedef typename S::type E;
        const int many = S::warps_grad * WARP, rows = 16 * S::warps_grad;
        const int64_t parts_q = c->B * ((c->nq + rows - 1) / rows), parts_k = c->B * ((c->nk + rows - 1) / rows);
        const int64_t of_q = c->H * counters_of(parts_q), of_k = c->Hkv * counters_of(parts_k);
        const bool here = S::width <= PD_ATTENTION_SUMS, any_q = here && c->sums[0], any_k = here && (c->sums[1] || c->sums[2]);
        const int64_t floats = (any_q ? c->H * parts_q * c->d : 0) + (any_k ? 2 * c->Hkv * parts_k * c->d : 0);
        float *parts = floats ? (float *)pd_cuda_lent->room((size_t)floats * sizeof(float)) : nullptr;
        unsigned *counters = parts ? pd_cuda_counters((of_q > 2 * of_k ? of_q : 2 * of_k) + 1) : nullptr;
        if (floats && !counters) return;
        float *own_k = any_q ? parts + c->H * parts_q * c->d : parts;
        const sums_of_columns sq = {c->sums[0], parts, counters}, sk = {c->sums[1], own_k, counters},
                              sv = {c->sums[2], own_k + (any_k ? c->Hkv * parts_k * c->d : 0), counters + of_k};
        launch(query_grad<E, S::width, S::few, S::width <= 128 ? 2 : 1, S::warps_grad>, c->B * c->H * ((c->nq + rows - 1) / rows), many, *c,
               (const E *)g, (const E *)q, (const E *)k, (const E *)v, mask, (const E *)out, lse, D, (E *)gq, sq);
        auto keys = [&](auto kernel) {
            launch(kernel, c->Hkv * parts_k, many, *c, (const E *)g, (const E *)q, (const E *)k, (const E *)v, mask, lse, (const float *)D, (E *)gk,
                   (E *)gv, sk, sv);
        };
        if constexpr (S::width <= 128) {
            keys(key_grad<E, S::width, S::few, S::buffers, S::warps_grad, true, true>);
        } else { /* registers hold one of them */
            keys(key_grad<E, S::width, S::few, S::buffers, S::warps_grad, true, false>);
            keys(key_grad<E, S::width, S::few, S::buffers, S::warps_grad, false, true>);
        }
    });
}
