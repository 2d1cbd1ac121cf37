/* Convolution without oneDNN: im2col and the portable product (kernels/cpu/gemm.c, through pd_cpu()). Any shape, all
   float types; f16 and bf16 are converted whole and computed in float. The same bits for any number of threads. */
#ifndef PD_KERNELS_PORTABLE_H
#define PD_KERNELS_PORTABLE_H

#include "kernels/kernels.h"

size_t pd_portable_conv_scratch(const pd_conv *c);
void pd_portable_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch);
void pd_portable_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch);
void pd_portable_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *gbias,
                                  void *scratch);

/* gbias[K] = sum of gy over N, P, Q. Scratch: pd_conv_bias_scratch. Serves oneDNN's weight gradients too. */
size_t pd_conv_bias_scratch(const pd_conv *c);
void pd_conv_grad_bias(const pd_conv *c, const void *gy, void *gbias, void *scratch);

/* C = A @ B of integers, which wrap around; without bias, relu and beta. */
void pd_portable_gemm_whole(const pd_gemm *s, const void *a, const void *b, void *c);

#endif
