/* nll and cross entropy, and their gradients. Rows are cut into parts by shape alone, whose sums are added as a
   tree. */
#include "kernels/cpu/lib/real.h"

static pd_dtype loss_type(pd_dtype t, const pd_xent *c) { return c->wide ? PD_F32 : t; }

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/loss.inc"
#include "kernels/cpu/lib/each_type.h"

/* The first bad label among [begin, end); -1: none is. */
static int64_t first_bad(const pd_xent *c, int64_t begin, int64_t end) {
    int64_t bad = 0;
    for (int64_t r = begin; r < end; r++)
        bad |= (int64_t)((uint64_t)c->target[r] >= (uint64_t)c->C) & (int64_t)(c->target[r] != c->ignore_index);
    for (int64_t r = begin; bad && r < end; r++)
        if ((uint64_t)c->target[r] >= (uint64_t)c->C && c->target[r] != c->ignore_index) return r;
    return -1;
}
PD_CPU_FUNCTION(bool, labels, const char *op, pd_dtype t, const pd_xent *c, double *total, pd_bad_index *bad) {
    double sum = 0;
    for (int64_t begin = 0; begin < c->rows; begin += PD_TILE) {
        int64_t end = c->rows - begin < PD_TILE ? c->rows : begin + PD_TILE, r = first_bad(c, begin, end);
        if (r >= 0) {
            *bad = (pd_bad_index){op, PD_BAD_LABEL, {c->target[r], r, c->C, c->ignore_index}};
            return false;
        }
        for (r = begin; r < end && total; r++) {
            if (c->target[r] == c->ignore_index) continue;
            sum += !c->weight    ? 1
                   : t == PD_F64 ? get_f64(t, c->weight, c->target[r])
                                 : (double)get_f32(t, c->weight, c->target[r]);
        }
    }
    if (total) *total = sum;
    return true;
}
PD_CPU_FUNCTION(void, nll, pd_dtype t, const pd_xent *c, const void *logp, void *losses, double sums[3]) {
    if (t == PD_F64) loss_f64(t, c, true, logp, NULL, losses, sums);
    else loss_f32(t, c, true, logp, NULL, losses, sums);
}
PD_CPU_FUNCTION(void, xent, pd_dtype t, const pd_xent *c, const void *x, void *lse, void *losses, double sums[3]) {
    if (t == PD_F64) loss_f64(t, c, false, x, lse, losses, sums);
    else loss_f32(t, c, false, x, lse, losses, sums);
}

/* The factor that is the same for all rows. */
static double factor_of(pd_dtype t, const void *g, bool each, const void *total, double scale) {
    if (g && !each) scale *= t == PD_F64 ? *(const double *)g : (double)get_f32(t, g, 0);
    if (total) scale /= t == PD_F64 ? *(const double *)total : (double)*(const float *)total;
    return scale;
}
PD_CPU_FUNCTION(void, nll_grad, pd_dtype t, const pd_xent *c, const void *g, bool each, const void *total, double scale,
                void *gx) {
    scale = factor_of(loss_type(t, c), g, each, total, scale);
    if (t == PD_F64) loss_grad_f64(t, c, true, NULL, NULL, each ? g : NULL, scale, gx);
    else loss_grad_f32(t, c, true, NULL, NULL, each ? g : NULL, scale, gx);
}
PD_CPU_FUNCTION(void, xent_grad, pd_dtype t, const pd_xent *c, const void *x, const void *lse, const void *g, bool each,
                const void *total, double scale, void *gx) {
    scale = factor_of(loss_type(t, c), g, each, total, scale);
    if (t == PD_F64) loss_grad_f64(t, c, false, x, lse, each ? g : NULL, scale, gx);
    else loss_grad_f32(t, c, false, x, lse, each ? g : NULL, scale, gx);
}
