/* Running sums along the middle axis of a block. */
#include "kernels/cpu/lib/real.h"

#define CUMSUM_COLS 64
typedef struct cumsum_job { bool reverse; pd_dtype t, out_t; const pd_block *b; const void *x; void *out; } cumsum_job;

#define PD_INCLUDED "kernels/cpu/cumsum.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, cumsum, bool reverse, pd_dtype t, pd_dtype out_t, const pd_block *b, const void *x, void *out) {
    switch (pd_compute_of(t)) {
        case PD_IN_F32: cumsum_f32(&(cumsum_job){reverse, t, out_t, b, x, out}); break;
        case PD_IN_F64: cumsum_f64(&(cumsum_job){reverse, t, out_t, b, x, out}); break;
        case PD_IN_I64: cumsum_i64(&(cumsum_job){reverse, t, out_t, b, x, out}); break;
    }
}
