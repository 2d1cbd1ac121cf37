/* Resizing along the middle axis of [outer, n, inner], by tables. */
#include "kernels/cpu/lib/real.h"

typedef struct resample_job { const pd_resample *c; const void *x; void *y; } resample_job;

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/resample.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, resample, const pd_resample *c, const void *x, void *y) {
    int64_t each = c->inner * (c->to + c->from);
    resample_job job = {c, x, y};
    pd_parallel(c->outer, PD_GRAIN / (each > 0 ? each : 1) + 1, c->t == PD_F64 ? resample_part_f64 : resample_part_f32,
                &job);
}
