/* Layer and RMS normalisation: each row by its own statistics, after the sum of two tensors if there are two.

   The gradients of weight and bias are sums over rows. Rows are cut into parts, by shape alone, and the parts' sums are
   added as a tree. */
#include <math.h>

#include "kernels/cpu/lib/real.h"

#define ROW_PARTS 16

static int64_t row_norm_part(const pd_row_norm *c) {
    int64_t length = pd_grain(c->rows, c->n, PD_GRAIN), least = (c->rows + ROW_PARTS - 1) / ROW_PARTS;
    return length > least ? length : least;
}

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/row_norm.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, row_norm, const pd_row_norm *c, const void *x, const void *y, const void *w, const void *b,
                void *s, void *out, void *low, void *mean, void *rstd) {
    PD_FLOAT_JOB(c->s, row_norm, row_norm, .c = c, .x = x, .y = y, .w = w, .b = b, .s = s, .out = out, .low = low,
                 .mean = mean, .rstd = rstd);
}
PD_CPU_FUNCTION(size_t, row_norm_scratch, const pd_row_norm *c) { return (size_t)(ROW_PARTS * 2 * c->n) * 8; }
PD_CPU_FUNCTION(void, row_norm_grad, const pd_row_norm *c, const void *g, const void *gs, const void *s, const void *w,
                const void *mean, const void *rstd, void *gx, void *gy, void *gw, void *gb, float *sums,
                void *scratch) {
    (void)sums;
    void *partial = gw || gb ? scratch : NULL;
    PD_FLOAT_JOB(c->s, row_norm_grad, row_norm, .c = c, .g = g, .gs = gs, .s = (void *)(uintptr_t)s, .w = w, .gx = gx,
                 .gy = gy, .gw = gw, .gb = gb, .mean = (void *)(uintptr_t)mean, .rstd = (void *)(uintptr_t)rstd,
                 .partial = partial);
}
