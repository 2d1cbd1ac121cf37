#include "kernels/exact.h"

#include <math.h>
#include <string.h>

typedef unsigned __int128 wide;

void pd_exact_carry(int64_t *sum) {
    for (int i = 0; i + 1 < PD_EXACT_DIGITS; i++) {
        const int64_t low = (uint32_t)sum[i];
        sum[i + 1] += (sum[i] - low) / (INT64_C(1) << 32);
        sum[i] = low;
    }
}

void pd_exact_add_double(int64_t *sum, double v) {
    int power;
    if (isfinite(v)) {
        const double m = frexp(v, &power);
        pd_exact_add(sum, (int64_t)ldexp(m, 53), power - 53);
    } else sum[isnan(v) ? PD_EXACT_NAN : PD_EXACT_INF]++;
}

/* The double nearest to (top + more / 2) * 2^power, where `more` stands for anything below the last bit of top. The
   highest bit of top is set. */
static double nearest(uint64_t top, bool more, int power) {
    int keep = power + 64 + 1074; /* how many bits are not below the smallest double */
    if (keep < 0) return 0.0;
    if (keep > 53) keep = 53;
    const uint64_t half = UINT64_C(1) << 63, dropped = top << keep;
    uint64_t kept = keep ? top >> (64 - keep) : 0;
    kept += dropped > half || (dropped == half && (more || kept & 1));
    return ldexp((double)kept, power + 64 - keep);
}

/* The largest r with r * r <= u, for u >= 2^126. */
static uint64_t root_of(wide u) {
    const double guess = sqrt((double)u);
    wide r = guess < 0x1p64 ? (uint64_t)guess : UINT64_MAX;
    r = (r + u / r) / 2; /* a step of Newton's method doubles the bits that are right; never below the root */
    if (r > UINT64_MAX) r = UINT64_MAX;
    while (r * r > u) r--;
    return (uint64_t)r;
}

double pd_exact_value(const int64_t *sum, bool root) {
    int64_t d[PD_EXACT_DIGITS];
    int t = PD_EXACT_DIGITS - 1;
    if (sum[PD_EXACT_NAN]) return NAN;
    if (sum[PD_EXACT_INF]) return INFINITY;
    memcpy(d, sum, sizeof d);
    pd_exact_carry(d);
    while (t > 0 && !d[t]) t--;
    if (d[t] == 0) return 0.0;
    wide u = 0;
    bool more = false;
    for (int i = t; i > t - 4; i--) u = u << 32 | (uint64_t)(i >= 0 ? d[i] : 0);
    for (int i = 0; i < t - 3; i++) more |= d[i] != 0;
    int power = 32 * (t - 3) - PD_EXACT_BELOW;
    const uint64_t high = (uint64_t)(u >> 64);
    const int zeros = high ? __builtin_clzll(high) : 64 + __builtin_clzll((uint64_t)u);
    u <<= zeros, power -= zeros;
    if (!root) return nearest((uint64_t)(u >> 64), more || (uint64_t)u, power + 64);
    if (power % 2) {
        more |= u & 1;
        u >>= 1, power++;
    }
    const uint64_t r = root_of(u);
    return nearest(r, more || (wide)r * r != u, power / 2);
}
