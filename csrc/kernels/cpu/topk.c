/* The k largest or smallest of each row, by a heap of k, or for short rows by counting (rank.h). */
#include "kernels/cpu/lib/rank.h"

/* How many rows are processed at a time; each needs memory for a heap of n entries of 16 bytes. */
static int64_t topk_slots(const pd_block *b) {
    int64_t n = b->n > 0 ? b->n : 1, most = (1 << 20) / n, slots = b->outer;
    if (slots > most) slots = most;
    if (slots > 64) slots = 64;
    return slots > 0 ? slots : 1;
}

#define PD_INCLUDED "kernels/cpu/topk.inc"
#include "kernels/cpu/lib/each_type.h"

PD_CPU_FUNCTION(void, topk, bool largest, pd_dtype t, const pd_block *b, int64_t k, const void *x, void *values,
                int64_t *index, void *scratch) {
    switch (pd_compute_of(t)) {
        case PD_IN_F32: topk_f32(largest, t, b, k, x, values, index, scratch); break;
        case PD_IN_F64: topk_f64(largest, t, b, k, x, values, index, scratch); break;
        case PD_IN_I64: topk_i64(largest, t, b, k, x, values, index, scratch); break;
    }
}
PD_CPU_FUNCTION(size_t, topk_scratch, const pd_block *b) {
    return (size_t)(topk_slots(b) * (b->n > 0 ? b->n : 1) * 16);
}
