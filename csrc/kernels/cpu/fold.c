/* fold and arg: reductions along the middle axis of [outer, n, inner].

   Work is cut by shape alone: rows (inner 1) into parts of at least PD_GRAIN elements, columns into tiles of COLS
   columns and, if there are few tiles, also into parts of n. Parts are combined as a tree, so the bits do not depend on
   the number of threads. Float sums are kept in vector lanes over at most PD_TILE elements, then in double. */
#include "kernels/cpu/lib/real.h"

#define COLS 128       /* columns of one tile: 512 bytes of a row of floats */
#define COL_PARTS 64   /* parts of n of all tiles together, for few columns */
#define COL_BLOCK 32   /* rows that are added in T before they are added in ACC */

#define PD_INCLUDED "kernels/cpu/fold.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, fold, pd_fold f, pd_dtype t, pd_dtype out_t, const pd_block *b, const void *x, void *out) {
    switch (pd_compute_of(t)) {
        case PD_IN_F32: fold_f32(f, t, out_t, b, x, out); break;
        case PD_IN_F64: fold_f64(f, t, out_t, b, x, out); break;
        case PD_IN_I64: fold_i64(f, t, out_t, b, x, out); break;
    }
}
PD_CPU_FUNCTION(void, arg, bool largest, pd_dtype t, const pd_block *b, const void *x, void *values, int64_t *index) {
    switch (pd_compute_of(t)) {
        case PD_IN_F32: arg_f32(largest, t, b, x, values, index); break;
        case PD_IN_F64: arg_f64(largest, t, b, x, values, index); break;
        case PD_IN_I64: arg_i64(largest, t, b, x, values, index); break;
    }
}
