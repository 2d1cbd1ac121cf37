/* softmax, log_softmax and their gradients along the middle axis of [outer, n, inner].

   Rows (inner 1) go through tiles that stay in the first-level cache. Several rows that are shorter than a tile go
   together, so that exp runs over full vectors even with few classes. */
#include "kernels/cpu/lib/real.h"

#define COLS 64

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/softmax.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, softmax, bool log, pd_dtype t, const pd_block *b, const void *x, void *y) {
    if (t == PD_F64) softmax_f64(log, t, b, x, NULL, y);
    else softmax_f32(log, t, b, x, NULL, y);
}
PD_CPU_FUNCTION(void, softmax_grad, bool log, pd_dtype t, const pd_block *b, const void *g, const void *y, void *gx) {
    if (t == PD_F64) softmax_f64(log, t, b, y, g, gx);
    else softmax_f32(log, t, b, y, g, gx);
}
