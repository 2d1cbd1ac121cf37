/* One step of a recurrent layer after its products: from gates to the new state, and the gradient. */
#include <string.h>

#include "kernels/cpu/lib/real.h"

typedef struct cell_job { const pd_cell *c; const pd_cell_step *s; } cell_job;

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/recurrent.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, cell, const pd_cell *c, const pd_cell_step *s) {
    int64_t grain = PD_GRAIN / 8 / (c->H > 0 ? c->H : 1) + 1;
    if (c->t == PD_F64) pd_parallel(c->B, grain, cell_rows_f64, &(cell_job){c, s});
    else pd_parallel(c->B, grain, cell_rows_f32, &(cell_job){c, s});
}
PD_CPU_FUNCTION(void, cell_grad, const pd_cell *c, const pd_cell_step *s) {
    int64_t grain = PD_GRAIN / 8 / (c->H > 0 ? c->H : 1) + 1;
    if (c->t == PD_F64) pd_parallel(c->B, grain, cell_grad_rows_f64, &(cell_job){c, s});
    else pd_parallel(c->B, grain, cell_grad_rows_f32, &(cell_job){c, s});
}
