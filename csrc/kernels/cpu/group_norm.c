/* Group normalisation. As in batch normalisation, statistics take two passes. */
#include "kernels/cpu/norm_loops.h"

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/group_norm.inc"
#include "kernels/cpu/lib/each_type.h"

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
