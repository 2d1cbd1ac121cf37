/* Our own C = A @ B + bias, for any strides and types, for calls that cuBLASLt (kernels/cublaslt) does not take. */
#include "cuda/table.h"
#include "cuda/tile.h"

template <class E, class O> struct product {
    typedef wide<E> sum;
    const E *A, *B, *bias;
    O *C;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row;
    bool relu, adds;
    __device__ void enter(int64_t batch) {
        A += batch * a_batch;
        B += batch * b_batch;
        C += batch * c_batch;
    }
    __device__ sum a(int64_t r, int64_t k) const { return widen(A[r * a_row + k * a_col]); }
    __device__ sum b(int64_t k, int64_t q) const { return widen(B[k * b_row + q * b_col]); }
    __device__ void put(int64_t r, int64_t q, sum v) const {
        if (bias) v = (sum)(v + widen(bias[q]));
        if (adds) v = (sum)(v + (sum)widen(C[r * c_row + q]));
        C[r * c_row + q] = narrow<O>((wide<O>)(relu && !(v > 0) && v == v ? (sum)0 : v));
    }
};

size_t pd_cuda_gemm_scratch(const pd_gemm *) { return 0; }

void pd_cuda_gemm(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *) {
    tiles t = {c->batch, c->M, c->N, c->K, c->a_col == 1, c->b_row == 1};
    auto run = [&](auto e, auto o) {
        typedef typename decltype(e)::type E;
        typedef typename decltype(o)::type O;
        by_tiles(product<E, O>{(const E *)A, (const E *)B, (const E *)bias, (O *)C, c->a_batch, c->a_row, c->a_col, c->b_batch, c->b_row, c->b_col,
                               c->c_batch, c->c_row, c->relu, c->beta != 0}, t);
    };
    by_type(c->t, [&](auto e) {
        if (c->wide && sizeof(typename decltype(e)::type) == 2) run(e, tag<float>());
        else run(e, e);
    });
}
