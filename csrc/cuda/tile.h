/* A matrix product by tiles, of anything that can be read as two matrices: [M, K] by a(row, k) and [K, N] by b(k,
   column). The result goes to put(row, column, sum). A block computes a tile of SIDE x SIDE, a thread PER x PER of it.
   Tiles of both matrices pass through shared memory, in the order of K, so the bits are the same in every run. Sums
   have the type P::sum. */
#ifndef PD_CUDA_TILE_H
#define PD_CUDA_TILE_H

#include "cuda/cuda.h"

enum { SIDE = 64, DEPTH = 16, PER = 4, ACROSS = SIDE / PER, TILE_THREADS = ACROSS * ACROSS };

struct tiles {
    int64_t batch, M, N, K;
    bool a_by_k, b_by_k; /* neighbours along K are contiguous, so threads read along K */
    __host__ __device__ int64_t rows() const { return (M + SIDE - 1) / SIDE; }
    __host__ __device__ int64_t columns() const { return (N + SIDE - 1) / SIDE; }
};

/* Loads tile[d][i] = at(first + i, k + d); zero outside. */
template <class T, class F>
static __device__ void load_tile(T (*tile)[SIDE + 1], int64_t first, int64_t size, int64_t k, int64_t K, bool by_k,
                                 F at) {
    for (int n = threadIdx.x; n < SIDE * DEPTH; n += TILE_THREADS) {
        int i = by_k ? n / DEPTH : n % SIDE, d = by_k ? n % DEPTH : n / SIDE;
        tile[d][i] = first + i < size && k + d < K ? at(first + i, k + d) : (T)0;
    }
}

template <class P>
static __global__ void tile_kernel(const __grid_constant__ P given, const __grid_constant__ tiles t) {
    typedef typename P::sum T;
    __shared__ T ta[DEPTH][SIDE + 1], tb[DEPTH][SIDE + 1];
    int64_t columns = t.columns(), all = t.rows() * columns, tile = blockIdx.x % all, row = tile / columns * SIDE,
            column = tile % columns * SIDE;
    int y = threadIdx.x / ACROSS, x = threadIdx.x % ACROSS;
    T sum[PER][PER] = {};
    P p = given;
    p.enter(blockIdx.x / all);
    for (int64_t k = 0; k < t.K; k += DEPTH) {
        load_tile(ta, row, t.M, k, t.K, t.a_by_k, [&](int64_t r, int64_t d) { return p.a(r, d); });
        load_tile(tb, column, t.N, k, t.K, t.b_by_k, [&](int64_t q, int64_t d) { return p.b(d, q); });
        __syncthreads();
        for (int d = 0; d < DEPTH; d++)
            for (int i = 0; i < PER; i++)
                for (int j = 0; j < PER; j++)
                    sum[i][j] = (T)(sum[i][j] + ta[d][y + i * ACROSS] * tb[d][x + j * ACROSS]);
        __syncthreads();
    }
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) {
            int64_t r = row + y + i * ACROSS, q = column + x + j * ACROSS;
            if (r < t.M && q < t.N) p.put(r, q, sum[i][j]);
        }
}

template <class P> static void by_tiles(const P &p, const tiles &t) {
    launch(tile_kernel<P>, t.rows() * t.columns() * t.batch, TILE_THREADS, p, t);
}

#endif
