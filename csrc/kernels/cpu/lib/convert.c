/* Rows that convert between dtypes: f16 and bf16 through float, others directly. */
#include "kernels/cpu/lib/isa.h"

#define NATIVE(M, to)                                                                              \
    M(to, BOOL) M(to, U8) M(to, I8) M(to, I16) M(to, I32) M(to, I64) M(to, F32) M(to, F64)
#define ALL_NATIVE(M) \
    NATIVE(M, BOOL)   \
    NATIVE(M, U8) NATIVE(M, I8) NATIVE(M, I16) NATIVE(M, I32) NATIVE(M, I64) NATIVE(M, F32) NATIVE(M, F64)

typedef uint8_t t_BOOL, t_U8;
typedef int8_t t_I8;
typedef int16_t t_I16;
typedef int32_t t_I32;
typedef int64_t t_I64;
typedef float t_F32;
typedef double t_F64;
#define PUT_BOOL(x) ((x) != 0)
#define PUT_U8(x) (x)
#define PUT_I8(x) (x)
#define PUT_I16(x) (x)
#define PUT_I32(x) (x)
#define PUT_I64(x) (x)
#define PUT_F32(x) (x)
#define PUT_F64(x) (x)

#define CAST(to, from)                                                       \
    static void from##_to_##to(int64_t n, double a, char *const *p) {        \
        (void)a;                                                             \
        t_##to *d = (t_##to *)p[0];                                          \
        const t_##from *s = (const t_##from *)p[1];                          \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) d[i] = (t_##to)PUT_##to(s[i]); \
    }
ALL_NATIVE(CAST)

static void copy2(int64_t n, double a, char *const *p) {
    (void)a;
    if (p[0] != p[1]) memcpy(p[0], p[1], (size_t)n * 2);
}

static void F16_to_F32(int64_t n, double a, char *const *p) {
    (void)a;
    float *d = (float *)p[0];
    const pd_f16 *s = (const pd_f16 *)p[1];
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(d + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(s + i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(s + i))));
#endif
    for (; i < n; i++) d[i] = pd_f16_to_f32(s[i]);
}
static void F32_to_F16(int64_t n, double a, char *const *p) {
    (void)a;
    pd_f16 *d = (pd_f16 *)p[0];
    const float *s = (const float *)p[1];
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((__m256i *)(d + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(d + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
    for (; i < n; i++) d[i] = pd_f32_to_f16(s[i]);
}
typedef uint32_t __attribute__((may_alias)) bits32; /* a float's */
static void BF16_to_F32(int64_t n, double a, char *const *p) {
    (void)a;
    bits32 *d = (bits32 *)p[0];
    const uint16_t *s = (const uint16_t *)p[1];
    PD_VECTORIZE for (int64_t i = 0; i < n; i++) d[i] = (uint32_t)s[i] << 16;
}
static void F32_to_BF16(int64_t n, double a, char *const *p) {
    (void)a;
    uint16_t *d = (uint16_t *)p[0];
    const bits32 *s = (const bits32 *)p[1];
    PD_VECTORIZE for (int64_t i = 0; i < n; i++) {
        uint32_t u = s[i], r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        d[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : r);
    }
}

/* `from` -> float -> `to`, a tile at a time. */
#define VIA_FLOAT(to, from, to_size, from_size)                                                        \
    static void from##_to_##to(int64_t n, double a, char *const *p) {                                  \
        float tile[PD_TILE];                                                                           \
        for (int64_t i = 0; i < n; i += PD_TILE) {                                                     \
            int64_t m = n - i < PD_TILE ? n - i : PD_TILE;                                             \
            from##_to_F32(m, a, (char *const[]){(char *)tile, p[1] + i * from_size});                  \
            F32_to_##to(m, a, (char *const[]){p[0] + i * to_size, (char *)tile});                      \
        }                                                                                              \
    }
#define HALF_BOTH_WAYS(half, T, size) VIA_FLOAT(T, half, size, 2) VIA_FLOAT(half, T, 2, size)
#define HALF(half)                                                                                     \
    HALF_BOTH_WAYS(half, BOOL, 1) HALF_BOTH_WAYS(half, U8, 1) HALF_BOTH_WAYS(half, I8, 1)               \
    HALF_BOTH_WAYS(half, I16, 2) HALF_BOTH_WAYS(half, I32, 4) HALF_BOTH_WAYS(half, I64, 8) HALF_BOTH_WAYS(half, F64, 8)
HALF(F16)
HALF(BF16)
VIA_FLOAT(BF16, F16, 2, 2)
VIA_FLOAT(F16, BF16, 2, 2)

#define ENTRY(to, from) [PD_##to][PD_##from] = from##_to_##to,
#define HALF_ENTRY(half, T) ENTRY(T, half) ENTRY(half, T)
#define HALF_ENTRIES(half) NATIVE(HALF_ENTRY, half) [PD_##half][PD_##half] = copy2,
const pd_row PD_SUFFIXED(pd_casts)[PD_DTYPE_COUNT][PD_DTYPE_COUNT] = {
    ALL_NATIVE(ENTRY) HALF_ENTRIES(F16) HALF_ENTRIES(BF16) ENTRY(BF16, F16) ENTRY(F16, BF16)};
