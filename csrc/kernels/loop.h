/* The shape of an elementwise call: up to four operands over one iteration space.

   tensor/iter builds it from tensors: broadcast dims get stride 0, and dims are sorted and merged where strides allow,
   so a contiguous call has ndim 1. Kernels read it. Operand 0 is written. Strides are in bytes. dims[0] is the
   outermost dimension. ndim 0 is one element. An operand that is a cell is one value in the host's memory, on every
   device; its strides are 0. */
#ifndef PD_KERNELS_LOOP_H
#define PD_KERNELS_LOOP_H

#include <stdint.h>

#define PD_MAX_DIMS 16
#define PD_MAX_OPERANDS 4

typedef struct pd_loop {
    int ndim, nop;
    unsigned cells; /* bit k: operand k is a cell */
    int64_t numel;
    int64_t size[PD_MAX_DIMS];
    int64_t stride[PD_MAX_OPERANDS][PD_MAX_DIMS];
    char *ptr[PD_MAX_OPERANDS];
} pd_loop;

#endif
