#include "io/crc32.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/cpu.h"
#include "base/crc_tables.h"

#define POLYNOMIAL 0xedb88320u /* its bits in reverse */

static uint32_t table[8][256]; /* of a byte with k bytes after it */
static uint32_t powers[64];    /* x^(8 * 2^k) modulo the polynomial */
static enum { TABLES, FOLD, WIDE } way;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The product of two polynomials modulo ours; the highest bit is the coefficient of x^0. */
static uint32_t product(uint32_t a, uint32_t b) {
    uint32_t sum = 0;
    for (uint32_t bit = 1u << 31; a; bit >>= 1) {
        if (a & bit) {
            sum ^= b;
            a ^= bit;
        }
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return sum;
}

static void prepare(void) {
    pd_crc_tables_make(table, POLYNOMIAL);
    powers[0] = 1u << 23;
    for (int k = 1; k < 64; k++) powers[k] = product(powers[k - 1], powers[k - 1]);
#if defined(__x86_64__)
    if (pd_cpu_isa() >= PD_ISA_AVX2 && __builtin_cpu_supports("pclmul")) way = FOLD;
    if (way == FOLD && pd_cpu_isa() == PD_ISA_AVX512 && __builtin_cpu_supports("vpclmulqdq")) way = WIDE;
#endif
}

#if defined(__x86_64__)
#define FOLDS __attribute__((target("pclmul,sse4.1")))
#define WIDELY __attribute__((target("pclmul,sse4.1,avx512f,avx512dq,vpclmulqdq")))

FOLDS static inline __m128i load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *)p); }
/* x times x^(128 * lines), plus y; `by` has the remainders of the two powers. */
FOLDS static inline __m128i fold(__m128i x, __m128i by, __m128i y) {
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), y);
}

/* Intel's "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ": the remainder of 128 bits, by Barrett. */
FOLDS static uint32_t reduce(__m128i x) {
    const __m128i one = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0), low = _mm_setr_epi32(~0, 0, ~0, 0);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, one, 0x10));
    __m128i high = _mm_srli_si128(x, 4);
    x = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low), _mm_set_epi64x(0, 0x0163cd6124), 0x00), high);
    __m128i q = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low), barrett, 0x10), low);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, _mm_clmulepi64_si128(q, barrett, 0x00)), 1);
}

/* Four lines of 16 bytes, and whole lines after them, become one line. */
FOLDS static __m128i join(const __m128i x[4], const uint8_t **p, size_t *n) {
    const __m128i one = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i sum = fold(fold(fold(x[0], one, x[1]), one, x[2]), one, x[3]);
    for (; *n >= 16; *n -= 16, *p += 16) sum = fold(sum, one, load(*p));
    return sum;
}

FOLDS static uint32_t by_folding(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 64) return pd_crc_by_tables(table, crc, p, n);
    const __m128i four = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    __m128i x[4] = {_mm_xor_si128(load(p), _mm_cvtsi32_si128((int)crc)), load(p + 16), load(p + 32), load(p + 48)};
    for (p += 64, n -= 64; n >= 64; n -= 64, p += 64)
        for (int k = 0; k < 4; k++) x[k] = fold(x[k], four, load(p + 16 * k));
    uint32_t sum = reduce(join(x, &p, &n));
    return pd_crc_by_tables(table, sum, p, n);
}

/* The same with four lines in each register, and four registers. */
WIDELY static inline __m512i fold_wide(__m512i x, __m512i by, __m512i y) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, by, 0x00), _mm512_clmulepi64_epi128(x, by, 0x11), y,
                                     0x96);
}

WIDELY static uint32_t by_wide_folding(uint32_t crc, const uint8_t *p, size_t n) {
    if (n < 512) return by_folding(crc, p, n);
    const __m512i four = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01c6e41596, 0x0154442bd4));
    const __m512i sixteen = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430, 0x011542778a));
    __m512i x[4];
    for (int k = 0; k < 4; k++) x[k] = _mm512_loadu_si512(p + 64 * k);
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (p += 256, n -= 256; n >= 256; n -= 256, p += 256)
        for (int k = 0; k < 4; k++) x[k] = fold_wide(x[k], sixteen, _mm512_loadu_si512(p + 64 * k));
    __m512i sum = fold_wide(fold_wide(fold_wide(x[0], four, x[1]), four, x[2]), four, x[3]);
    for (; n >= 64; n -= 64, p += 64) sum = fold_wide(sum, four, _mm512_loadu_si512(p));
    __m128i lines[4];
    _mm512_storeu_si512(lines, sum);
    uint32_t rest = reduce(join(lines, &p, &n));
    return pd_crc_by_tables(table, rest, p, n);
}
#endif

uint32_t pd_crc32(uint32_t crc, const void *data, size_t bytes) {
    pthread_once(&once, prepare);
#if defined(__x86_64__)
    if (way == WIDE) return ~by_wide_folding(~crc, data, bytes);
    if (way == FOLD) return ~by_folding(~crc, data, bytes);
#endif
    return ~pd_crc_by_tables(table, ~crc, data, bytes);
}

uint32_t pd_crc32_shift(uint32_t crc, uint64_t bytes) {
    pthread_once(&once, prepare);
    for (int k = 0; bytes; k++, bytes >>= 1)
        if (bytes & 1) crc = product(powers[k], crc);
    return crc;
}
