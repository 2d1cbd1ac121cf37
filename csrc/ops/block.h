/* Kernels that work along one axis take a contiguous block [outer, n, inner]. These functions make one of any
   strides. */
#ifndef PD_OPS_BLOCK_H
#define PD_OPS_BLOCK_H

#include "kernels/kernels.h"
#include "ops/ops.h"

/* The reduced dims as a set of bits; dim.n <= 0 means all. */
pd_status pd_dims_of(const char *op, const pd_ints *dim, int ndim, unsigned *bits);

/* Sets *b to x as a block along the dims in `bits`. True: the block is x's own memory. False: pd_block_pack must first
   pack x, with the reduced dims innermost, into pd_tensor_bytes(x) bytes. */
bool pd_block_of(const pd_tensor *x, unsigned bits, pd_block *b);
void pd_block_pack(pd_tensor *x, unsigned bits, void *to);

/* Bytes of scratch for a call that needs input 0 contiguous; 0 if it is. */
size_t pd_packed_bytes(const pd_call *c);
/* x's data in C order: x's own memory, or a copy in scratch. */
const void *pd_packed(pd_tensor *x, void *scratch);

/* Whether t has 4 dimensions and is channels_last and not also contiguous. */
bool pd_is_nhwc(const pd_tensor *t);
/* The data of t [N, C, H, W] in one of the two layouts: t's own memory, or a copy at *scratch, which is advanced by its
   bytes. */
const void *pd_laid_out(pd_tensor *t, bool nhwc, void **scratch);
size_t pd_laid_out_bytes(const pd_tensor *t, bool nhwc);

#endif
