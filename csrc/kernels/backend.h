/* Who computes convolutions and products. A device has an array of backends in order of preference (pick.c): the first
   one that takes a call computes it, and the last one takes all. Private to kernels/; kernels.h has what ops call.

       CPU   conv2d   winograd, conv_weight (bf16 weight gradients), oneDNN, portable
             matmul   oneDNN, own (the table's gemm)
       GPU   conv2d   cuDNN, own (the table's conv)
             matmul   cuBLASLt, own

   `takes` is called before `scratch` and again before the run, and gives the same answer both times. It may open a
   library and make plans. A library that refuses a call after taking it hands the call to the device's own kernel. */
#ifndef PD_KERNELS_BACKEND_H
#define PD_KERNELS_BACKEND_H

#include "kernels/kernels.h"

typedef struct pd_conv_backend {
    const char *name;
    bool (*takes)(const pd_conv *c, pd_conv_part part);
    size_t (*scratch)(const pd_conv *c, pd_conv_part part); /* bytes, for a part that the backend takes */
    pd_status (*forward)(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch);
    pd_status (*grad_input)(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch);
    pd_status (*grad_weight)(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch);
} pd_conv_backend;

typedef struct pd_gemm_backend {
    const char *name;
    bool (*takes)(const pd_gemm *c, bool bias);
    size_t (*scratch)(const pd_gemm *c); /* bytes, with and without bias */
    pd_status (*run)(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch);
    /* Whether pd_gemm_with_sums should try this backend, and how it does so. NULL: it makes no sums on its way. */
    bool (*makes_sums)(const pd_gemm *c);
    pd_status (*with_sums)(const pd_gemm *c, const void *A, const void *B, void *sums, void *C, void *scratch,
                           bool *done);
} pd_gemm_backend;

extern const pd_conv_backend pd_onednn_conv, pd_portable_conv, pd_cudnn_conv;
extern const pd_conv_backend pd_winograd_portable, pd_conv_weight_portable;
#if defined(__x86_64__)
extern const pd_conv_backend pd_winograd_avx2, pd_winograd_avx512, pd_conv_weight_avx2, pd_conv_weight_avx512;
#endif
extern const pd_gemm_backend pd_onednn_gemm, pd_cublaslt_gemm;

/* For the chosen instruction set (pick.c): whether Winograd's algorithm takes all parts of c, and whether conv_weight
   takes the weight's gradient. */
bool pd_winograd_takes(const pd_conv *c, pd_conv_part part);
bool pd_conv_weight_takes(const pd_conv *c);

#endif
