/* Convolutions on a GPU by cuDNN's graph API. Private to kernels/: pick.c asks first, and csrc/cuda/conv.cu serves what
   it does not. Plans are kept by shape; engines whose bits differ from run to run, or that sum in 16 bits, are not
   taken. */
#ifndef PD_KERNELS_CUDNN_H
#define PD_KERNELS_CUDNN_H

#include "kernels/kernels.h"

/* *done: whether it was launched. False where the library is not there, or has nothing for this convolution. */
pd_status pd_cudnn_conv(const pd_conv *c, pd_conv_part part, const void *a, const void *b, const void *bias, void *out,
                        bool *done);

#endif
