/* A sum whose launch waits: if the next launch is a norm of it, both are one pass over memory (row_norm.cu). Whatever
   else any thread gives to a GPU launches the sum first: `launch` and the functions of library.cu see to that, and the
   host where it tells others a stream or an address (pd_device.settle).

   The sum's inputs may be freed meanwhile, since frees follow the order of launches on a stream. The kernel that takes
   the sum may get their memory for its results; where that would do harm, the sum is launched before. */
#ifndef PD_CUDA_LATER_H
#define PD_CUDA_LATER_H

#include "cuda/cuda.h"

/* Memory that a kernel writes. Where it is an input's, from the first to the last byte, the kernel reads each byte
   before it writes it. */
struct result { const void *p; size_t bytes; };

/* Keeps the sum of l, a contiguous loop, for later. t: the dtype of the result. */
void pd_cuda_add_later(pd_dtype t, const pd_loop *l);
/* If a sum waits for this thread's stream that is n elements of type t at `out`, and the caller may write these
   results, makes it the caller's: *sum is its loop, with the types of both operands. */
bool pd_cuda_take_sum(const void *out, pd_dtype t, int64_t n, const result *results, int count, pd_loop *sum);

#endif
