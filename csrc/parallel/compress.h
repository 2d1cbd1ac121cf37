/* Communication hooks in C that send less than the gradients: a bucket goes in, the mean of what all ranks sent comes
   out, the same bits on every rank.

     fp16, bf16   every element rounded; summed and divided in float32, so that no sum overflows. On a GPU divided,
                  rounded, and summed by NCCL, which rounds each partial sum: else float32 would travel
     topk         the share `ratio` of elements that are largest in size, with their places; the others count as zero
     sign         one bit an element and one float32 a parameter, the mean size of its elements (1-bit SGD)

   topk and sign keep what they did not send in a residual (float32) and add it to the next bucket (error feedback), so
   no part of a gradient is lost; they are for the CPU here (on a GPU: pydist/nn/parallel/_compress.py). Of equally
   large elements topk takes the first. NaN counts as largest. */
#ifndef PD_PARALLEL_COMPRESS_H
#define PD_PARALLEL_COMPRESS_H

#include "parallel/data.h"

typedef enum pd_compress { PD_COMPRESS_FP16, PD_COMPRESS_BF16, PD_COMPRESS_TOPK, PD_COMPRESS_SIGN } pd_compress;

/* Collective. Nothing to do in a world of one. PD_E_VALUE: ratio is not over 0 and at most 1 (topk only), or a bucket
   is too large for topk (2^31 elements); PD_E_RUNTIME as pd_reducer_set_hook. */
pd_status pd_compress_set(pd_reducer *r, pd_compress kind, double ratio);

#endif
