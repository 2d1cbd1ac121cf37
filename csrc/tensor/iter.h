/* From tensors to the pd_loop that elementwise kernels take. */
#ifndef PD_TENSOR_ITER_H
#define PD_TENSOR_ITER_H

#include "kernels/loop.h"
#include "tensor/tensor.h"

/* The iteration space is t[0]'s shape; the others are broadcast to it (the caller has checked that they can be). Dims
   are sorted by t[0]'s strides and merged where all operands allow. */
void pd_loop_build(pd_loop *l, int nop, pd_tensor *const *t);
/* Operand k reads the one value at `cell` instead of a tensor (t[k] was NULL at build). */
static inline void pd_loop_cell(pd_loop *l, int k, void *cell) {
    l->ptr[k] = (char *)cell;
    l->cells |= 1u << k;
}

#endif
