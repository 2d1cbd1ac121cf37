/* Communication hooks in C that send less than the gradients. A bucket goes in; the mean of what all ranks have sent
   comes out, with the same bits on every rank.

     fp16, bf16   round every element, then sum and divide in float32, so that no sum overflows. On a GPU they divide
                  and round, and NCCL sums and rounds each partial sum; otherwise float32 would be sent
     topk         sends the fraction `ratio` of elements with the largest absolute values, and their indices; the others
                  count as zero
     sign         sends one bit for each element and one float32 for each parameter, the mean of its elements' absolute
                  values (1-bit SGD)

   topk and sign keep what they have not sent in a residual (float32) and add it to the next bucket (error feedback), so
   no part of a gradient is lost. These two are for the CPU; pydist/nn/parallel/_compress.py has them for GPUs. Of
   equally large elements topk takes the first. NaN counts as largest. */
#ifndef PD_PARALLEL_COMPRESS_H
#define PD_PARALLEL_COMPRESS_H

#include "parallel/data.h"

typedef enum pd_compress { PD_COMPRESS_FP16, PD_COMPRESS_BF16, PD_COMPRESS_TOPK, PD_COMPRESS_SIGN } pd_compress;

/* Sets the hook; all ranks call it. Does nothing in a world of one. PD_E_VALUE: ratio is not in (0, 1] (topk only), or
   a bucket is too large for topk (2^31 elements). PD_E_RUNTIME: as in pd_reducer_set_hook. */
pd_status pd_compress_set(pd_reducer *r, pd_compress kind, double ratio);

#endif
