/* Products of bf16 matrices in AMX tiles, or in vectors of pairs (AVX512-BF16), sums in float.

       A  rows      [M][K]
       B  pairs     [K / 2][N][2]    rows 2k and 2k + 1 interleaved
       C  float     [M][N]

   M, N and K are multiples of 32 (PD_TILE_UP), since 2 x 2 tiles of 16 x 16 sums are computed at a time. The functions
   that pack matrices fill up with zeros. Strides are in elements; for pairs, from one pair of rows to the next. */
#ifndef PD_KERNELS_CPU_LIB_TILES_H
#define PD_KERNELS_CPU_LIB_TILES_H

#include "base/cpu.h"
#include "kernels/cpu/lib/real.h"

#if defined(__AVX512F__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define PD_HAVE_TILES 1
#define PD_TILES static __attribute__((noinline, unused, target("amx-tile,amx-bf16")))
#define PD_TILE_UP(n) (((n) + 31) / 32 * 32)
#define PD_TILE_WIDTH 256 /* the largest width of a matrix that is packed */

typedef struct tile_shapes {
    uint8_t palette, start_row, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* A thread calls tiles_product between these two. */
PD_TILES void tiles_begin(void) {
    static const tile_shapes whole = {
        .palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&whole);
}
PD_TILES void tiles_end(void) { _tile_release(); }

/* C = (or +=) A B. It has barriers, because compilers do not know that tiles are loaded from memory. */
PD_TILES void tiles_product(int64_t M, int64_t N, int64_t K, const pd_bf16 *A, int64_t a_row, const pd_bf16 *B,
                            int64_t b_row, bool add, float *C, int64_t c_row) {
    const size_t as = (size_t)a_row * 2, bs = (size_t)b_row * 2, cs = (size_t)c_row * 4;
    __asm__ volatile("" ::: "memory");
    for (int64_t i = 0; i < M; i += 32)
        for (int64_t j = 0; j < N; j += 32) {
            float *c = C + i * c_row + j, *below = c + 16 * c_row;
            const pd_bf16 *a = A + i * a_row, *b = B + 2 * j;
            if (add) {
                _tile_loadd(0, c, cs);
                _tile_loadd(1, c + 16, cs);
                _tile_loadd(2, below, cs);
                _tile_loadd(3, below + 16, cs);
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (int64_t k = 0; k < K; k += 32, a += 32, b += 16 * b_row) {
                _tile_loadd(4, a, as);
                _tile_loadd(6, b, bs);
                _tile_loadd(7, b + 32, bs);
                _tile_loadd(5, a + 16 * a_row, as);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_stored(0, c, cs);
            _tile_stored(1, c + 16, cs);
            _tile_stored(2, below, cs);
            _tile_stored(3, below + 16, cs);
        }
    __asm__ volatile("" ::: "memory");
}

typedef uint32_t __attribute__((may_alias)) tile_pair; /* two bf16, the lower one first */
typedef uint32_t __attribute__((may_alias, aligned(2))) tile_pair_any;

/* The same product with vectors, 8 rows by 32 columns at a time. */
static __attribute__((noinline, unused, target("avx512bf16"))) void pairs_product(
    int64_t M, int64_t N, int64_t K, const pd_bf16 *A, int64_t a_row, const pd_bf16 *B, int64_t b_row, bool add,
    float *C, int64_t c_row) {
    for (int64_t j = 0; j < N; j += 32)
        for (int64_t i = 0; i < M; i += 8) {
            const pd_bf16 *a = A + i * a_row, *b = B + 2 * j;
            float *c = C + i * c_row + j;
            __m512 sum[8][2];
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++) {
                sum[r][0] = add ? _mm512_loadu_ps(c + r * c_row) : _mm512_setzero_ps();
                sum[r][1] = add ? _mm512_loadu_ps(c + r * c_row + 16) : _mm512_setzero_ps();
            }
            for (int64_t k = 0; k < K; k += 2, b += b_row) {
                const __m512bh left = (__m512bh)_mm512_loadu_si512(b), right = (__m512bh)_mm512_loadu_si512(b + 32);
#pragma GCC unroll 8
                for (int r = 0; r < 8; r++) {
                    const __m512bh pair =
                        (__m512bh)_mm512_set1_epi32((int)*(const tile_pair_any *)(const void *)(a + r * a_row + k));
                    sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, left);
                    sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, right);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < 8; r++) {
                _mm512_storeu_ps(c + r * c_row, sum[r][0]);
                _mm512_storeu_ps(c + r * c_row + 16, sum[r][1]);
            }
        }
}

/* Packs n rows of `width` elements as rows: [up(n)][up(width)]. */
static __attribute__((unused)) void tiles_rows(const pd_bf16 *x, int64_t row, int64_t n, int64_t width, pd_bf16 *to) {
    const int64_t wide = PD_TILE_UP(width);
    memset(to, 0, (size_t)(PD_TILE_UP(n) * wide) * 2);
    for (int64_t i = 0; i < n; i++) memcpy(to + i * wide, x + i * row, (size_t)width * 2);
}
/* Packs them as pairs of rows: [up(n) / 2][up(width)][2]. */
static __attribute__((unused)) void tiles_pairs(const pd_bf16 *x, int64_t row, int64_t n, int64_t width, pd_bf16 *to) {
    const int64_t wide = PD_TILE_UP(width);
    memset(to, 0, (size_t)(PD_TILE_UP(n) * wide) * 2);
    for (int64_t i = 0; i < n; i += 2, x += 2 * row) {
        tile_pair *p = (tile_pair *)(void *)to + i / 2 * wide;
        const uint16_t *a = (const uint16_t *)x, *b = a + row;
        if (i + 1 < n) PD_VECTORIZE for (int64_t k = 0; k < width; k++) p[k] = a[k] | (uint32_t)b[k] << 16;
        else PD_VECTORIZE for (int64_t k = 0; k < width; k++) p[k] = a[k];
    }
}
/* Packs them as pairs of rows of the transposed matrix: [up(width) / 2][up(n)][2]; width <= PD_TILE_WIDTH. */
static __attribute__((unused)) void tiles_turned(const pd_bf16 *x, int64_t row, int64_t n, int64_t width, pd_bf16 *to) {
    const int64_t wide = PD_TILE_UP(width), many = PD_TILE_UP(n);
    float lines[16][PD_TILE_WIDTH / 2];
    memset(lines, 0, sizeof lines);
    for (int64_t i = 0; i < many; i += 16) {
        for (int64_t r = 0; r < 16; r++) {
            if (i + r < n) memcpy(lines[r], x + (i + r) * row, (size_t)width * 2);
            else memset(lines[r], 0, (size_t)wide * 2);
        }
        for (int64_t k = 0; k < wide / 2; k += 16)
            transpose_f32(&lines[0][k], PD_TILE_WIDTH / 2, (float *)(void *)to + k * many + i, many);
    }
}
/* Makes the transposed matrix, [up(width)][many], from pairs. */
static __attribute__((unused)) void tiles_unpaired(const pd_bf16 *pairs, int64_t width, int64_t many, pd_bf16 *to) {
    uint16_t *even = (uint16_t *)to;
    const tile_pair *p = (const tile_pair *)(const void *)pairs;
    for (int64_t k = 0; k < PD_TILE_UP(width); k += 2, even += 2 * many, p += many) {
        PD_VECTORIZE for (int64_t i = 0; i < many; i++) even[i] = (uint16_t)p[i];
        PD_VECTORIZE for (int64_t i = 0; i < many; i++) even[many + i] = (uint16_t)(p[i] >> 16);
    }
}

/* Makes a row of pairs of two rows of floats, rounded to bf16. A NaN has to be one that arithmetic makes. */
static __attribute__((unused)) void tiles_weave(const float *x, const float *y, int64_t n, pd_bf16 *pairs) {
    typedef uint32_t __attribute__((may_alias)) bits;
    const bits *a = (const bits *)x, *b = (const bits *)y;
    tile_pair *p = (tile_pair *)(void *)pairs;
    PD_VECTORIZE for (int64_t i = 0; i < n; i++) {
        uint32_t u = a[i] + 0x7fffu + ((a[i] >> 16) & 1u), v = b[i] + 0x7fffu + ((b[i] >> 16) & 1u);
        p[i] = u >> 16 | (v & 0xffff0000u);
    }
}
#endif
#endif
