/* Builds the pd_loop of an elementwise kernel from tensors. */
#ifndef PD_TENSOR_ITER_H
#define PD_TENSOR_ITER_H

#include "kernels/loop.h"
#include "tensor/tensor.h"

/* The loop runs over t[0]'s shape. The other tensors are broadcast to it; the caller has checked that they can be.
   Dimensions are sorted by t[0]'s strides, and neighbours are merged where the strides of all operands allow it. */
void pd_loop_build(pd_loop *l, int nop, pd_tensor *const *t);
/* Notes the dtypes of the operands of a call for dtype t, if some differ from it (PD_MIXED in autograd/op.h). */
static inline void pd_loop_mix(pd_loop *l, pd_tensor *const *operands, pd_dtype t) {
    for (int k = 1; k < l->nop; k++) {
        l->type[k] = operands[k] ? operands[k]->dtype : (int8_t)t;
        l->mixed |= l->type[k] != (int)t;
    }
}
/* Makes operand k read the one value at `cell`; t[k] was NULL when the loop was built. */
static inline void pd_loop_cell(pd_loop *l, int k, void *cell) {
    l->ptr[k] = (char *)cell;
    l->cells |= 1u << k;
}

#endif
