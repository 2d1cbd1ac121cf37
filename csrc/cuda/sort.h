/* Sorts keys, each with the number of its element. Equal keys are ordered by number. */
#ifndef PD_CUDA_SORT_H
#define PD_CUDA_SORT_H

#include "cuda/cuda.h"

struct alignas(16) entry {
    uint64_t key;
    int64_t i;
    __device__ bool before(const entry &o) const { return key < o.key || (key == o.key && i < o.i); }
};

/* Memory for the entries of rows [rows, n]. NULL: there is none, and the op has failed. */
entry *pd_cuda_entries(int64_t rows, int64_t n);
/* The sorted rows of e, in e itself or in other memory. NULL: there is none, and the op has failed. */
entry *pd_cuda_sorted(entry *e, int64_t rows, int64_t n);

#endif
