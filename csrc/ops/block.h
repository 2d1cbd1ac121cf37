/* Kernels along one axis see a contiguous tensor as [outer, n, inner]; this brings any strides to that. */
#ifndef PD_OPS_BLOCK_H
#define PD_OPS_BLOCK_H

#include "kernels/kernels.h"
#include "ops/ops.h"

/* The set of reduced dims as bits; dim.n <= 0 means all. */
pd_status pd_dims_of(const char *op, const pd_ints *dim, int ndim, unsigned *bits);

/* x as a block along the dims in `bits`. True: x's own memory serves. False: it must be packed first (pd_block_pack),
   the reduced dims innermost, into pd_tensor_bytes(x) bytes. */
bool pd_block_of(const pd_tensor *x, unsigned bits, pd_block *b);
void pd_block_pack(pd_tensor *x, unsigned bits, void *to);

/* Scratch for a call whose input 0 is read contiguous: 0 where it is already. */
size_t pd_packed_bytes(const pd_call *c);
/* Data of x in C order: its own, or copied to scratch. */
const void *pd_packed(pd_tensor *x, void *scratch);

/* channels_last, and not contiguous as well. */
bool pd_is_nhwc(const pd_tensor *t);
/* Data of t [N, C, H, W] in one of the two layouts: its own, or copied into *scratch, which moves on by as many
   bytes. */
const void *pd_laid_out(pd_tensor *t, bool nhwc, void **scratch);
size_t pd_laid_out_bytes(const pd_tensor *t, bool nhwc);

#endif
