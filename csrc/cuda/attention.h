/* Shared by the two kinds of attention: which keys a query may see, and where rows are. */
#ifndef PD_CUDA_ATTENTION_H
#define PD_CUDA_ATTENTION_H

#include "cuda/block.h"

#define LOG2E 1.4426950408889634
#define LN2 0.69314718055994531

static inline __device__ float fused(float a, float b, float c) { return VM_FMAF(a, b, c); }
static inline __device__ double fused(double a, double b, double c) { return VM_FMA(a, b, c); }

/* A head's rows. */
template <class E> struct rows { const E *x; int64_t stride, count, width; };
template <class E>
static __device__ rows<E> rows_of(const void *x, const int64_t (&s)[3], int64_t b, int64_t h, int64_t n, int64_t w) {
    return {(const E *)x + b * s[0] + h * s[1], s[2], n, w};
}

/* The product s of query i and key j after scaling and masking; -inf if the query may not see the key. */
template <class E, class T>
static __device__ T score(const pd_attention &c, const void *mask, int64_t b, int64_t h, int64_t i, int64_t j, T s) {
    s *= (T)c.scale;
    if (i >= c.nq || j >= c.nk || (c.causal && j > i)) return limits<T>::low();
    if (!mask) return s;
    int64_t at = b * c.ms[0] + h * c.ms[1] + i * c.ms[2] + j * c.ms[3];
    if (c.mask_t == PD_BOOL) return ((const uint8_t *)mask)[at] ? s : limits<T>::low();
    return s + widen(((const E *)mask)[at]);
}
/* All keys that any of the queries [i0, i0 + n) may see come before this one. */
static inline __device__ int64_t keys_of(const pd_attention &c, int64_t i0, int64_t n) {
    return c.causal && i0 + n < c.nk ? i0 + n : c.nk;
}

/* The widest heads whose gradients' sums of columns the kernels for tensor cores make. Wider ones leave no registers
   for them. */
enum { PD_ATTENTION_SUMS = 96 };
/* Whether the kernels for tensor cores take a call, and these kernels. D[B, H, nq]: memory for sums of g * out along
   rows. */
bool pd_cuda_attention_fits(const pd_attention *c, const void *q, const void *k, const void *v, const void *g);
bool pd_cuda_attention_grad_fits(const pd_attention *c, const void *out, const void *gq, const void *gk,
                                 const void *gv);
void pd_cuda_attention_mma(const pd_attention *c, const void *q, const void *k, const void *v, const void *mask,
                           void *out, float *lse);
void pd_cuda_attention_mma_grad(const pd_attention *c, const void *g, const void *q, const void *k, const void *v,
                                const void *mask, const void *out, const float *lse, float *D, void *gq, void *gk,
                                void *gv);

#endif
