/* Cross entropy where each rank has some columns of the logits: what a rank finds in its own, the losses from what all
   ranks found, and the gradient of its columns. */
#include "kernels/cpu/lib/real.h"

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/vocab.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, vocab_rows, pd_dtype t, const pd_vocab *c, const void *x, void *rows) {
    if (t == PD_F64) vocab_rows_f64(t, c, x, rows);
    else vocab_rows_f32(t, c, x, rows);
}
PD_CPU_FUNCTION(void, vocab_loss, pd_dtype t, const pd_vocab *c, const void *all, void *stats, double *losses) {
    if (t == PD_F64) vocab_loss_f64(c, all, stats, losses);
    else vocab_loss_f32(c, all, stats, losses);
}
PD_CPU_FUNCTION(void, vocab_grad, pd_dtype t, const pd_vocab *c, const void *x, const void *stats, const void *g,
                bool each, double scale, void *gx) {
    if (!each) scale *= t == PD_F64 ? *(const double *)g : (double)*(const float *)g;
    if (t == PD_F64) vocab_grad_f64(t, c, x, stats, each ? g : NULL, scale, gx);
    else vocab_grad_f32(t, c, x, stats, each ? g : NULL, scale, gx);
}
