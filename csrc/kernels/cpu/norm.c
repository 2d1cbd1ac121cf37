/* Batch normalisation.

       [N, C, S]   a channel is N runs of S: one thread does a channel from statistics to result
       [N, S, C]   channels are columns: COLS at a time, rows cut into parts (by shape), parts added as a tree

   Statistics take two passes, mean first: no digits are lost where the mean is large beside the deviation. */
#include <math.h>

#include "kernels/cpu/real.h"

#define COLS 128
#define ROW_PARTS 16
#define ROW_BLOCK 32 /* rows added in T before they go to double */

typedef enum sum_kind { SUM_X, SUM_SQUARES, SUM_GRADS } sum_kind; /* x; (x - mean)^2; g and g (x - mean) */

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/norm.inc"
#include "kernels/cpu/each_type.h"

PD_CPU_FUNCTION(void, batch_norm_train, pd_dtype t, const pd_batch_norm *c, const void *x, const void *w, const void *b,
                double momentum, void *running_mean, void *running_var, void *y, void *mean, void *rstd) {
    if (t == PD_F64)
        norm_f64(&(norm_job_f64){.t = t,
                                 .c = c,
                                 .kind = NORM_TRAIN,
                                 .x = x,
                                 .w = w,
                                 .b = b,
                                 .momentum = momentum,
                                 .running_mean = running_mean,
                                 .running_var = running_var,
                                 .y = y,
                                 .mean = mean,
                                 .rstd = rstd});
    else
        norm_f32(&(norm_job_f32){.t = t,
                                 .c = c,
                                 .kind = NORM_TRAIN,
                                 .x = x,
                                 .w = w,
                                 .b = b,
                                 .momentum = momentum,
                                 .running_mean = running_mean,
                                 .running_var = running_var,
                                 .y = y,
                                 .mean = mean,
                                 .rstd = rstd});
}
PD_CPU_FUNCTION(void, batch_norm_eval, pd_dtype t, const pd_batch_norm *c, const void *x, const void *w, const void *b,
                const void *mean, const void *var, void *y) {
    if (t == PD_F64)
        norm_f64(&(norm_job_f64){.t = t,
                                 .c = c,
                                 .kind = NORM_EVAL,
                                 .x = x,
                                 .w = w,
                                 .b = b,
                                 .y = y,
                                 .mean = (double *)(uintptr_t)mean,
                                 .var = var});
    else
        norm_f32(&(norm_job_f32){.t = t,
                                 .c = c,
                                 .kind = NORM_EVAL,
                                 .x = x,
                                 .w = w,
                                 .b = b,
                                 .y = y,
                                 .mean = (float *)(uintptr_t)mean,
                                 .var = var});
}
PD_CPU_FUNCTION(void, batch_norm_grad, pd_dtype t, const pd_batch_norm *c, bool training, const void *g, const void *x,
                const void *w, const void *mean, const void *rstd, void *gx, void *gw, void *gb) {
    if (t == PD_F64)
        norm_f64(&(norm_job_f64){.t = t,
                                 .c = c,
                                 .kind = NORM_GRAD,
                                 .training = training,
                                 .x = x,
                                 .g = g,
                                 .w = w,
                                 .y = gx,
                                 .mean = (double *)(uintptr_t)mean,
                                 .rstd = (double *)(uintptr_t)rstd,
                                 .gw = gw,
                                 .gb = gb});
    else
        norm_f32(&(norm_job_f32){.t = t,
                                 .c = c,
                                 .kind = NORM_GRAD,
                                 .training = training,
                                 .x = x,
                                 .g = g,
                                 .w = w,
                                 .y = gx,
                                 .mean = (float *)(uintptr_t)mean,
                                 .rstd = (float *)(uintptr_t)rstd,
                                 .gw = gw,
                                 .gb = gb});
}
