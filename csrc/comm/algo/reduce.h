/* The order of a reduction and its loops, on plain memory.

   Inputs 0..size-1 are combined elementwise by the tree T(lo, hi), which splits at lo + the largest power of two below
   hi - lo: ((0 1) (2 3)) 4 (docs/internals/design.md, "Order of reduction"). So any rank that combines them gets the
   same bits, in whatever pieces. float16 and bfloat16 are combined in float32 and rounded once at the end. bool has OR
   (SUM, MAX, BOR), AND (PRODUCT, MIN, BAND) and XOR. Integers wrap. MIN and MAX propagate NaN. */
#ifndef PD_COMM_REDUCE_H
#define PD_COMM_REDUCE_H

#include "base/dtype.h"
#include "comm/link/identity.h"

/* Fails, in the name of the collective `name`, unless dtype and op are supported and the scale fits (integers and bool:
   1, and no AVG). */
pd_status pd_reduce_check(const char *name, pd_dtype dtype, pd_reduce op, double scale);

/* out[i] = scale * T(in[0][at + i], ..., in[size - 1][at + i]) for i < count. `out` may be one of the inputs at `at`
   itself. AVG and PREMUL_SUM are SUM here: the caller puts 1/size into the scale, or has multiplied its input.
   split NULL: the tree above. Else another one, for a dtype whose sums are not wider: for each of its size - 1 inner
   nodes, in preorder, how many inputs its left side has. */
void pd_reduce_tree(pd_dtype dtype, pd_reduce op, int size, const int16_t *split, const char *const *in, int64_t at,
                    char *out, int64_t count, double scale);
static inline void pd_reduce_run(pd_dtype dtype, pd_reduce op, int size, const char *const *in, int64_t at, char *out,
                                 int64_t count, double scale) {
    pd_reduce_tree(dtype, op, size, NULL, in, at, out, count, scale);
}

/* The same sum of 16-bit inputs by the tree, not rounded: out[i] is float32. */
void pd_reduce_wide(pd_dtype dtype, pd_reduce op, int size, const char *const *in, int64_t at, float *out,
                    int64_t count, double scale);

/* The dtype of sums before they are rounded: float32 for the 16-bit types, else the dtype itself. */
pd_dtype pd_reduce_partial(pd_dtype dtype);
void pd_reduce_widen(pd_dtype dtype, const char *in, char *out, int64_t count);                /* to partial results */
void pd_reduce_round(pd_dtype dtype, const char *in, char *out, int64_t count, double scale); /* scale * in, back */

#endif
