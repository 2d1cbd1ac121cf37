/* The shape of an elementwise call: up to four operands over one iteration space.

   tensor/iter builds it from tensors: broadcast dims get stride 0, and dims are sorted and merged where strides allow,
   so a contiguous call has ndim 1. Kernels read it. Operand 0 is written. Strides are in bytes. dims[0] is the
   outermost dimension. ndim 0 is one element. An operand that is a cell is one value in the host's memory, on every
   device; its strides are 0. A cell has the dtype in which kernels compute (pd_dtype_computed), so a number beside
   16-bit floats is a float32. Only a GPU's kernels unary_grad and pointwise make `sums`, of a contiguous call. */
#ifndef PD_KERNELS_LOOP_H
#define PD_KERNELS_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

#define PD_MAX_DIMS 16
#define PD_MAX_OPERANDS 4

typedef struct pd_loop {
    int ndim, nop;
    unsigned cells; /* bit k: operand k is a cell */
    bool later;     /* the launch may wait (csrc/cuda/later.h) */
    bool mixed;     /* operand k > 0 has dtype type[k], one of F32, F16 and BF16, and not that of the call */
    int8_t type[PD_MAX_OPERANDS];
    float *sums;    /* NULL, or memory for the sums of the columns of operand 0, seen as [numel / columns, columns] */
    int64_t columns;
    int64_t numel;
    int64_t size[PD_MAX_DIMS];
    int64_t stride[PD_MAX_OPERANDS][PD_MAX_DIMS];
    char *ptr[PD_MAX_OPERANDS];
} pd_loop;

/* The dtype of operand k > 0 in a call for dtype t. */
static inline pd_dtype pd_loop_dtype(const pd_loop *l, int k, pd_dtype t) {
    return l->cells >> k & 1 ? pd_dtype_computed(t) : l->mixed ? (pd_dtype)l->type[k] : t;
}

#endif
