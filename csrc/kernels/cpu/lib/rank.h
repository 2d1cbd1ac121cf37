/* Sorting keys, and the sorting of short rows: an element's place is the number of elements before it, which is counted
   with vectors. */
#ifndef PD_KERNELS_CPU_LIB_RANK_H
#define PD_KERNELS_CPU_LIB_RANK_H

#include "kernels/cpu/lib/real.h"
#include "kernels/sort_key.h"

#define PD_RANKED 128 /* up to so many elements that is faster than sorting */

static inline int pd_key_bytes(pd_dtype t) {
    return t == PD_F64 || t == PD_I64 ? 8 : pd_dtype_is_float(t) ? 4 : (int)pd_dtype_size(t);
}
/* The key of element i. Keys have the order of the values, with NaN above all; inverted for descending order. */
PD_INLINE uint64_t pd_key_of(pd_dtype t, const char *x, int64_t i, bool descending) {
    const int bits = 8 * pd_key_bytes(t);
    const uint64_t mask = bits == 64 ? ~0ull : (1ull << bits) - 1;
    const uint64_t sign = t == PD_U8 || t == PD_BOOL ? 0 : 1ull << (bits - 1);
    uint64_t key = t == PD_F64            ? pd_sort_key_f64(((const double *)(const void *)x)[i])
                   : pd_dtype_is_float(t) ? pd_sort_key_f32(get_f32(t, x, i))
                                          : (((uint64_t)get_i64(t, x, i) & mask) ^ sign);
    return key ^ (descending ? mask : 0);
}

static inline bool pd_can_rank(pd_dtype t, int64_t n) { return n <= PD_RANKED && pd_key_bytes(t) <= 4; }
/* place[i]: how many of the n elements come before element i. Equal elements keep their order. */
static inline void pd_rank(pd_dtype t, const char *x, int64_t n, bool descending, int64_t *place) {
    int64_t key[PD_RANKED]; /* includes the index, so that no two are equal */
    if (t == PD_F32) /* a loop of its own for the usual dtype */
        for (int64_t i = 0; i < n; i++) key[i] = (int64_t)(pd_key_of(PD_F32, x, i, descending) << 31) | i;
    else for (int64_t i = 0; i < n; i++) key[i] = (int64_t)(pd_key_of(t, x, i, descending) << 31) | i;
    for (int64_t i = 0; i < n; i++) {
        int64_t before = 0, own = key[i];
        for (int64_t k = 0; k < n; k++) before += key[k] < own;
        place[i] = before;
    }
}

#endif
