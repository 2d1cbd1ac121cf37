/* Exact sums of squares. A sum is one large integer, so it does not depend on the order or the parts in which squares
   were added: the parts of several tensors, threads or ranks are added number by number, as int64.

   A sum is PD_EXACT numbers. The first PD_EXACT_DIGITS are digits: digit i counts 2^(32 i - PD_EXACT_BELOW), which
   leaves room for the square of every double. Digits need not be in [0, 2^32): whoever adds leaves carries in them, and
   at least 2^20 sums can be added before one has to be carried. Then come how many elements were NaN and infinite. */
#ifndef PD_KERNELS_EXACT_H
#define PD_KERNELS_EXACT_H

#include <stdbool.h>
#include <stdint.h>

#define PD_EXACT_BELOW 2176
#define PD_EXACT_DIGITS 134
#define PD_EXACT_NAN PD_EXACT_DIGITS
#define PD_EXACT_INF (PD_EXACT_DIGITS + 1)
#define PD_EXACT (PD_EXACT_DIGITS + 2)

/* Adds v * 2^power; power >= -PD_EXACT_BELOW, and the product is below 2^2080. */
static inline void pd_exact_add(int64_t *sum, int64_t v, int power) {
    const unsigned at = (unsigned)(power + PD_EXACT_BELOW);
    const __int128 w = (__int128)v * (INT64_C(1) << at % 32);
    int64_t *d = sum + at / 32;
    d[0] += (uint32_t)w;
    d[1] += (uint32_t)(w >> 32);
    d[2] += (int64_t)(w >> 64);
}

void pd_exact_add_double(int64_t *sum, double v);

/* Brings all digits but the last into [0, 2^32). */
void pd_exact_carry(int64_t *sum);

/* The double nearest to the sum, or to its square root; ties to even. NaN or inf if an element was. */
double pd_exact_value(const int64_t *sum, bool root);

#endif
