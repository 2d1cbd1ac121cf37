/* Batch and group normalisation.

       [N, C, S]   a channel is N runs of S: one thread does a channel from statistics to result
       [N, S, C]   channels are columns: COLS at a time, rows cut into parts (by shape), parts added as a tree

   Statistics take two passes, mean first: no digits are lost where the mean is large beside the deviation. */
#include <math.h>

#include "kernels/cpu/lib/real.h"

#define COLS 128
#define ROW_PARTS 16
#define ROW_BLOCK 32 /* rows added in T before they go to double */

typedef enum sum_kind { SUM_X, SUM_SQUARES, SUM_GRADS } sum_kind; /* x; (x - mean)^2; g and g (x - mean) */

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/norm.inc"
#include "kernels/cpu/lib/each_type.h"

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/group_norm.inc"
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

PD_CPU_FUNCTION(size_t, group_norm_scratch, const pd_group_norm *c) {
    return (size_t)(c->N * c->C) * (2 * sizeof(double) + sizeof(channel_f64));
}
PD_CPU_FUNCTION(void, group_norm, pd_dtype t, const pd_group_norm *c, const void *x, const void *w, const void *b,
                void *y, void *mean, void *rstd, void *scratch) {
    PD_FLOAT_JOB(t, group_norm, group, .n.t = t, .n.kind = NORM_TRAIN, .c = c, .n.x = x, .n.w = w, .n.b = b, .n.y = y,
                 .n.mean = mean, .n.rstd = rstd, .sums = scratch);
}
PD_CPU_FUNCTION(void, group_norm_grad, pd_dtype t, const pd_group_norm *c, const void *g, const void *x, const void *w,
                const void *mean, const void *rstd, void *gx, void *gw, void *gb, void *scratch) {
    PD_FLOAT_JOB(t, group_norm, group, .n.t = t, .n.kind = NORM_GRAD, .c = c, .n.x = x, .n.g = g, .n.w = w, .n.y = gx,
                 .n.mean = (void *)(uintptr_t)mean, .n.rstd = (void *)(uintptr_t)rstd, .n.gw = gw, .n.gb = gb,
                 .sums = scratch);
}
