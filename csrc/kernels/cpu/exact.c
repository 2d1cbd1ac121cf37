/* Exact sums of squares (kernels/exact.h), so the same bits on every instruction set.

   The square of a float has at most 48 bits: it is exact as a double. Multiples of one power of two add up exactly in
   a double as long as there are few. So the squares of a block, all below 2^top, are cut: adding and subtracting a
   large constant rounds a double to a multiple of some power of two, and what was rounded off is exact, too. One cut is
   enough where no bit of a square is below a second one, 89 bits under the top: no element is smaller than 2^-20 times
   the block's largest. Otherwise what is left under both cuts is cut again until nothing is left. Sizes are found while
   a block is cut, as one that is like the one before; if it was not, it is read again.

   A double's square is the sum of two doubles, which a fused multiply-add finds; each is cut as above. Doubles whose
   squares may leave the range of doubles, and all where the processor has no such instruction, are squared as
   integers. */
#include "kernels/exact.h"

#include <limits.h>

#include "kernels/cpu/lib/real.h"

enum {
    BLOCK = 1024,
    FIRST = 44,  /* bits above the first cut: BLOCK / 2 multiples in a lane stay within 2^53 */
    SECOND = 45, /* between both; one more, as what rounding leaves is at most half of the first cut */
    STEP = 2 * PD_LANES_D, /* floats in a vector */
    AHEAD = 2 * BLOCK,     /* the processor prefetches too little beside so much arithmetic */
    INFINITE = 0x7f800000, /* the size of an infinite float */
    NONE = INT_MIN,
};

typedef uint64_t vbits __attribute__((vector_size(PD_VB)));
typedef uint32_t vsizes __attribute__((vector_size(PD_VB)));

static double power_of_two(int e) { /* -1022 <= e <= 1023 */
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void add_lanes(int64_t *sum, pd_vd v, int power) {
    int64_t all = 0;
    v *= pd_vd_set(power_of_two(-power));
    for (int l = 0; l < PD_LANES_D; l++) all += (int64_t)v[l];
    if (all) pd_exact_add(sum, all, power);
}

/* Adds n <= BLOCK doubles whose sizes are at most 2^top. Changes x. */
static void add_doubles(int64_t *sum, double *x, int64_t n, int top) {
    bool left = true;
    while (n % PD_LANES_D) x[n++] = 0;
    for (; left; top -= FIRST + SECOND) {
        const int first = top - FIRST, second = first - SECOND;
        const pd_vd cut = pd_vd_set(1.5 * power_of_two(first + 52)), cut2 = pd_vd_set(1.5 * power_of_two(second + 52));
        pd_vd high = {0}, low = {0};
        vbits rest = {0};
        for (int64_t i = 0; i < n; i += PD_LANES_D) {
            pd_vd v = pd_vd_load(x + i), part = (v + cut) - cut;
            high += part, v -= part;
            part = (v + cut2) - cut2;
            low += part, v -= part;
            rest |= (vbits)v;
            pd_vd_store(x + i, v);
        }
        add_lanes(sum, high, first);
        add_lanes(sum, low, second);
        left = memcmp(&rest, &(vbits){0}, sizeof rest) != 0;
    }
}

static void add_square(int64_t *sum, double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int exponent = (int)(bits >> 52 & 0x7ff);
    uint64_t m = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent == 0x7ff) {
        sum[m ? PD_EXACT_NAN : PD_EXACT_INF]++;
        return;
    }
    if (exponent) m |= UINT64_C(1) << 52;
    const int power = 2 * ((exponent ? exponent : 1) - 1075);
    const int64_t high = (int64_t)(m >> 27), low = (int64_t)(m & ((1 << 27) - 1));
    pd_exact_add(sum, low * low, power);
    pd_exact_add(sum, 2 * high * low, power + 27);
    pd_exact_add(sum, high * high, power + 54);
}

/* As doubles. gcc 12 takes __builtin_convertvector to pieces. */
PD_INLINE pd_vd wide_from(const float *x) {
#if defined(__AVX512F__)
    return (pd_vd)_mm512_cvtps_pd(_mm256_loadu_ps(x));
#elif defined(__AVX2__)
    return (pd_vd)_mm256_cvtps_pd(_mm_loadu_ps(x));
#else
    return (pd_vd){(double)x[0], (double)x[1]};
#endif
}

PD_INLINE vsizes largest_of(vsizes a, vsizes b) {
#if defined(__AVX512F__)
    return (vsizes)_mm512_max_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vsizes)_mm256_max_epu32((__m256i)a, (__m256i)b);
#else
    const vsizes first = (vsizes)(a > b);
    return (a & first) | (b & ~first);
#endif
}

PD_INLINE vsizes least_of(vsizes a, vsizes b) { return ~largest_of(~a, ~b); }

/* The sizes of floats as numbers. least: of those that are not 0, less 1. */
typedef struct sizes { uint32_t largest, least; } sizes;

/* Every square is below 2^top_of(s) and a multiple of 2^bottom_of(s). */
PD_INLINE int top_of(sizes s) { return 2 * ((int)(s.largest >> 23) - 126); }
PD_INLINE int bottom_of(sizes s) {
    const int exponent = (int)((s.least + 1) >> 23);
    return 2 * ((exponent ? exponent : 1) - 150);
}

/* Adds the squares of n floats, a multiple of STEP, if all are below 2^top and need one cut; otherwise returns false
   and adds nothing. */
static bool add_cut_once(int64_t *sum, const float *x, int64_t n, int top) {
    const int first = top - FIRST;
    const pd_vd cut = pd_vd_set(1.5 * power_of_two(first + 52));
    pd_vd high = {0}, low = {0}, high2 = {0}, low2 = {0};
    vsizes largest = {0}, least = ~largest;
    for (int64_t i = 0; i < n; i += STEP) { /* the product within a sum is exact, so fused or not it is the same */
        const pd_vd v = wide_from(x + i), v2 = wide_from(x + i + PD_LANES_D);
        const pd_vd part = pd_vd_fma(v, v, cut) - cut, part2 = pd_vd_fma(v2, v2, cut) - cut;
        vsizes size;
        __builtin_prefetch(x + i + AHEAD);
        memcpy(&size, x + i, sizeof size);
        size &= 0x7fffffff;
        largest = largest_of(largest, size), least = least_of(least, size - 1);
        high += part, high2 += part2;
        low += pd_vd_fma(v, v, -part), low2 += pd_vd_fma(v2, v2, -part2);
    }
    sizes s = {0, UINT32_MAX};
    for (int l = 0; l < STEP; l++) {
        s.largest = largest[l] > s.largest ? largest[l] : s.largest;
        s.least = least[l] < s.least ? least[l] : s.least;
    }
    if (!s.largest) return true;
    if (s.largest >= INFINITE || top_of(s) > top || bottom_of(s) < top - FIRST - SECOND) return false;
    add_lanes(sum, high + high2, first);
    add_lanes(sum, low + low2, first - SECOND);
    return true;
}

/* *guess: of the block before, if one cut was enough, the power of two above its squares, with some room; else NONE. */
static void add_floats(int64_t *sum, const float *x, int64_t n, int *guess) {
    typedef uint32_t __attribute__((may_alias)) word;
    const word *bits = (const word *)x;
    double squares[BLOCK];
    float padded[BLOCK];
    sizes s = {0, UINT32_MAX};
    if (*guess != NONE && n % STEP == 0 && add_cut_once(sum, x, n, *guess)) return;
    *guess = NONE;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t size = bits[i] & 0x7fffffff;
        s.largest = size > s.largest ? size : s.largest;
        s.least = size - 1 < s.least ? size - 1 : s.least;
    }
    if (!s.largest) return;
    if (s.largest >= INFINITE) {
        for (int64_t i = 0; i < n; i++) add_square(sum, (double)x[i]);
        return;
    }
    const int top = top_of(s);
    if (bottom_of(s) < top - FIRST - SECOND) {
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) squares[i] = (double)x[i] * (double)x[i];
        add_doubles(sum, squares, n, top);
        return;
    }
    *guess = top + 2;
    if (n % STEP) {
        memcpy(padded, x, sizeof *x * (size_t)n);
        while (n % STEP) padded[n++] = 0;
        x = padded;
    }
    add_cut_once(sum, x, n, top);
}

static void add_double_squares(int64_t *sum, const double *x, int64_t n) {
#if defined(__AVX2__) || defined(__AVX512F__)
    typedef uint64_t __attribute__((may_alias)) word;
    const word *bits = (const word *)x;
    double squares[BLOCK], errors[BLOCK];
    uint64_t largest = 0, least = UINT64_MAX; /* least: of those that are not 0, less 1 */
    for (int64_t i = 0; i < n; i++) {
        const uint64_t size = bits[i] & INT64_MAX;
        largest = size > largest ? size : largest;
        least = size - 1 < least ? size - 1 : least;
    }
    if (!largest) return;
    const int top = (int)(largest >> 52) - 1022, bottom = (int)(least >> 52) - 1023;
    if (top <= 500 && bottom >= -400) { /* below, a square's last bits and their cuts come near the smallest double */
        for (int64_t i = 0; i < n; i++) {
            squares[i] = x[i] * x[i];
            errors[i] = __builtin_fma(x[i], x[i], -squares[i]);
        }
        add_doubles(sum, squares, n, 2 * top);
        add_doubles(sum, errors, n, 2 * top - 53);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++) add_square(sum, x[i]);
}

typedef struct square_job { pd_dtype t; const void *x; int64_t *sum; } square_job;

static void add_range(const square_job *j, int64_t *sum, int64_t begin, int64_t end) {
    float buf[BLOCK];
    int guess = NONE;
    for (int64_t i = begin; i < end; i += BLOCK) {
        const int64_t n = end - i < BLOCK ? end - i : BLOCK;
        if (j->t == PD_F64) {
            add_double_squares(sum, (const double *)j->x + i, n);
            continue;
        }
        for (int64_t k = 0; k < n && j->t != PD_F32; k += PD_TILE)
            load_f32(j->t, j->x, i + k, n - k < PD_TILE ? n - k : PD_TILE, buf + k);
        add_floats(sum, j->t == PD_F32 ? (const float *)j->x + i : buf, n, &guess);
    }
}

static void add_part(void *ctx, int64_t begin, int64_t end) {
    const square_job *j = ctx;
    int64_t own[PD_EXACT] = {0};
    add_range(j, own, begin, end);
    pd_exact_carry(own);
    for (int i = 0; i < PD_EXACT; i++)
        if (own[i]) __atomic_fetch_add(&j->sum[i], own[i], __ATOMIC_RELAXED);
}

PD_CPU_FUNCTION(void, exact_squares, pd_dtype t, int64_t n, const void *x, int64_t *sum) {
    const square_job j = {t, x, sum};
    const int64_t length = pd_part_length(n, PD_GRAIN);
    if (n <= length) add_range(&j, sum, 0, n);
    else pd_parallel(n, length, add_part, (void *)&j);
}
