/* nll and cross entropy, with their gradients. Rows are cut into parts by shape; sums of parts are added as a tree. */
#include "kernels/cpu/real.h"

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/loss.inc"
#include "kernels/cpu/each_type.h"

PD_CPU_FUNCTION(int64_t, labels_check, const int64_t *target, int64_t rows, int64_t C, int64_t ignore_index) {
    for (int64_t begin = 0; begin < rows; begin += PD_TILE) {
        int64_t end = rows - begin < PD_TILE ? rows : begin + PD_TILE, bad = 0;
        for (int64_t r = begin; r < end; r++)
            bad |= (int64_t)((uint64_t)target[r] >= (uint64_t)C) & (int64_t)(target[r] != ignore_index);
        for (int64_t r = begin; bad && r < end; r++)
            if ((uint64_t)target[r] >= (uint64_t)C && target[r] != ignore_index) return r;
    }
    return -1;
}
PD_CPU_FUNCTION(double, nll, pd_dtype t, const pd_xent *c, const void *logp, void *losses, double *sum) {
    return t == PD_F64 ? loss_f64(t, c, true, logp, NULL, losses, sum) : loss_f32(t, c, true, logp, NULL, losses, sum);
}
PD_CPU_FUNCTION(void, nll_grad, pd_dtype t, const pd_xent *c, const void *g, double scale, void *gx) {
    if (t == PD_F64) loss_grad_f64(t, c, true, NULL, NULL, g, scale, gx);
    else loss_grad_f32(t, c, true, NULL, NULL, g, scale, gx);
}
PD_CPU_FUNCTION(double, xent, pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double *sum) {
    return t == PD_F64 ? loss_f64(t, c, false, x, lse, losses, sum) : loss_f32(t, c, false, x, lse, losses, sum);
}
PD_CPU_FUNCTION(void, xent_grad, pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g,
                double scale, void *gx) {
    if (t == PD_F64) loss_grad_f64(t, c, false, x, lse, g, scale, gx);
    else loss_grad_f32(t, c, false, x, lse, g, scale, gx);
}
