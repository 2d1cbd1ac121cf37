/* Keys with the numbers of what they belong to, put in order: equals stay in the order of the numbers. */
#ifndef PD_CUDA_SORT_H
#define PD_CUDA_SORT_H

#include "cuda/cuda.h"

struct alignas(16) entry {
    uint64_t key;
    int64_t i;
    __device__ bool before(const entry &o) const { return key < o.key || (key == o.key && i < o.i); }
};

/* Room for the entries of rows [rows, n]; NULL: refused already. */
entry *pd_cuda_entries(int64_t rows, int64_t n);
/* Where the rows of e stand in order: e itself, or other room. NULL: refused already. */
entry *pd_cuda_sorted(entry *e, int64_t rows, int64_t n);

#endif
