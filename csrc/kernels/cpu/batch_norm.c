/* Batch normalisation.

       [N, C, S]   a channel is N runs of S; one thread does a channel from statistics to result
       [N, S, C]   channels are columns, COLS at a time; rows are cut into parts, by shape alone, and the parts' sums
                   are added as a tree

   Statistics take two passes, the mean first, so that no digits are lost if the mean is large compared with the
   deviation. */
#include "kernels/cpu/norm_loops.h"

#define ROW_PARTS 16

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/batch_norm.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, batch_norm_train, pd_dtype t, const pd_batch_norm *c, const void *x, const void *w, const void *b,
                double momentum, void *running_mean, void *running_var, void *y, void *mean, void *rstd) {
    PD_FLOAT_JOB(t, norm, norm, .t = t, .c = c, .kind = NORM_TRAIN, .x = x, .w = w, .b = b, .momentum = momentum,
                 .running_mean = running_mean, .running_var = running_var, .y = y, .mean = mean, .rstd = rstd);
}
PD_CPU_FUNCTION(void, batch_norm_eval, pd_dtype t, const pd_batch_norm *c, const void *x, const void *w, const void *b,
                const void *mean, const void *var, void *y) {
    PD_FLOAT_JOB(t, norm, norm, .t = t, .c = c, .kind = NORM_EVAL, .x = x, .w = w, .b = b, .y = y,
                 .mean = (void *)(uintptr_t)mean, .var = var);
}
PD_CPU_FUNCTION(void, batch_norm_grad, pd_dtype t, const pd_batch_norm *c, bool training, const void *g, const void *x,
                const void *w, const void *mean, const void *rstd, void *gx, void *gw, void *gb) {
    PD_FLOAT_JOB(t, norm, norm, .t = t, .c = c, .kind = NORM_GRAD, .training = training, .x = x, .g = g, .w = w,
                 .y = gx, .mean = (void *)(uintptr_t)mean, .rstd = (void *)(uintptr_t)rstd, .gw = gw, .gb = gb);
}
