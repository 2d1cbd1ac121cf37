/* C = A @ B + bias by our own hands: for any strides and types, where no library serves. A block makes a tile of SIDE x SIDE of C, a
   thread PER x PER of it; tiles of A and B pass through shared memory, K in order, so the bits are the same in every run. */
#include "cuda/cuda.h"
#include "cuda/table.h"

enum { SIDE = 64, DEPTH = 16, PER = 4, ACROSS = SIDE / PER, GEMM_THREADS = ACROSS * ACROSS };

struct product {
    int64_t M, N, K, a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row, rows, columns; /* tiles */
    bool relu, adds;
};

/* tile[d][i]: element (first + i, k + d) of a matrix, zero outside. by_k: neighbours along K lie together, so threads read along it. */
template <class E, class T>
static __device__ void load_tile(T (*tile)[SIDE + 1], const E *m, int64_t first, int64_t size, int64_t k, int64_t K, int64_t stride, int64_t k_stride, bool by_k) {
    for (int at = threadIdx.x; at < SIDE * DEPTH; at += GEMM_THREADS) {
        int i = by_k ? at / DEPTH : at % SIDE, d = by_k ? at % DEPTH : at / SIDE;
        bool inside = first + i < size && k + d < K;
        tile[d][i] = inside ? (T)widen(m[(first + i) * stride + (k + d) * k_stride]) : (T)0;
    }
}

template <class E, class O> static __global__ void gemm_kernel(const E *a, const E *b, const E *bias, O *c, const __grid_constant__ product p) {
    typedef wide<E> T;
    __shared__ T ta[DEPTH][SIDE + 1], tb[DEPTH][SIDE + 1];
    int64_t tile = blockIdx.x % (p.rows * p.columns), batch = blockIdx.x / (p.rows * p.columns);
    int64_t row = tile / p.columns * SIDE, column = tile % p.columns * SIDE;
    int y = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS;
    T sum[PER][PER] = {};
    a += batch * p.a_batch;
    b += batch * p.b_batch;
    c += batch * p.c_batch;
    for (int64_t k = 0; k < p.K; k += DEPTH) {
        load_tile<E, T>(ta, a, row, p.M, k, p.K, p.a_row, p.a_col, p.a_col == 1);
        load_tile<E, T>(tb, b, column, p.N, k, p.K, p.b_col, p.b_row, p.b_row == 1);
        __syncthreads();
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < PER; i++)
                for (int j = 0; j < PER; j++) sum[i][j] = (T)(sum[i][j] + ta[d][y + i * ACROSS] * tb[d][x + j * ACROSS]);
        __syncthreads();
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            int64_t r = row + y + i * ACROSS, q = column + x + j * ACROSS;
            if (r >= p.M || q >= p.N) continue;
            T v = (T)(sum[i][j] + (bias ? widen(bias[q]) : (T)0));
            if (p.adds) v = (T)(v + (T)widen(c[r * p.c_row + q]));
            c[r * p.c_row + q] = narrow<O>((wide<O>)(p.relu && !(v > 0) && v == v ? (T)0 : v));
        }
}

size_t pd_cuda_gemm_scratch(const pd_gemm *) { return 0; }

void pd_cuda_gemm(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *) {
    product p = {c->M, c->N, c->K, c->a_batch, c->a_row, c->a_col, c->b_batch, c->b_row, c->b_col, c->c_batch, c->c_row,
                 (c->M + SIDE - 1) / SIDE, (c->N + SIDE - 1) / SIDE, c->relu, c->beta != 0};
    int64_t blocks = p.rows * p.columns * c->batch;
    by_type(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (c->wide && sizeof(E) == 2) launch(gemm_kernel<E, float>, blocks, GEMM_THREADS, (const E *)A, (const E *)B, (const E *)bias, (float *)C, p);
        else launch(gemm_kernel<E, E>, blocks, GEMM_THREADS, (const E *)A, (const E *)B, (const E *)bias, (E *)C, p);
    });
}
