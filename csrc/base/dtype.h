/* Element types, their sizes and PyTorch's promotion lattice. */
#ifndef PD_BASE_DTYPE_H
#define PD_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/host_device.h"

typedef struct { uint16_t bits; } pd_f16;
typedef struct { uint16_t bits; } pd_bf16;
typedef struct { float re, im; } pd_c64;
typedef struct { double re, im; } pd_c128;

typedef enum pd_category { PD_CAT_BOOL, PD_CAT_INT, PD_CAT_FLOAT, PD_CAT_COMPLEX } pd_category;

typedef enum pd_dtype {
    PD_NO_DTYPE = -1, /* "not given" */
#define PD_DTYPE(E, name, ctype, bytes, cat) PD_##E,
#include "base/dtype.def"
#undef PD_DTYPE
    PD_DTYPE_COUNT
} pd_dtype;

extern const uint8_t pd_dtype_sizes[PD_DTYPE_COUNT];
extern const uint8_t pd_dtype_categories[PD_DTYPE_COUNT];

static inline size_t pd_dtype_size(pd_dtype t) { return pd_dtype_sizes[t]; }
static inline pd_category pd_dtype_category(pd_dtype t) { return (pd_category)pd_dtype_categories[t]; }
static inline bool pd_dtype_is_float(pd_dtype t) { return pd_dtype_categories[t] == PD_CAT_FLOAT; }
static inline bool pd_dtype_is_complex(pd_dtype t) { return t >= PD_C64; } /* the last rows */
/* The dtype of a complex dtype's real part, and back: float32 and complex64, float64 and complex128. */
static inline pd_dtype pd_dtype_part(pd_dtype t) { return t == PD_C64 ? PD_F32 : t == PD_C128 ? PD_F64 : t; }
static inline pd_dtype pd_dtype_with_parts(pd_dtype t) { return t == PD_F64 || t == PD_C128 ? PD_C128 : PD_C64; }
/* The dtype in which kernels compute with elements of t: float32 for the 16-bit floats. */
static inline pd_dtype pd_dtype_computed(pd_dtype t) { return t == PD_F16 || t == PD_BF16 ? PD_F32 : t; }
const char *pd_dtype_name(pd_dtype t); /* "float32" */

/* The dtype of a result from a and b, by PyTorch's table (uint8 with int8: int16; float16 with bfloat16: float32). */
pd_dtype pd_dtype_promote(pd_dtype a, pd_dtype b);

/* Conversions of one value. They round to the nearest, ties to even; NaN stays NaN. */
PD_BOTH float pd_bf16_to_f32(pd_bf16 h) {
    uint32_t u = (uint32_t)h.bits << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
PD_BOTH pd_bf16 pd_f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t nan = (u & 0x7fffffffu) > 0x7f800000u;
    uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    pd_bf16 h = {(uint16_t)(nan ? ((u >> 16) | 0x40u) : r)};
    return h;
}
PD_BOTH float pd_f16_to_f32(pd_f16 h) {
    /* Shift exponent and mantissa into a float's place, then multiply to mend the exponent: right for subnormals,
       too. */
    uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16, rest = (uint32_t)(h.bits & 0x7fffu) << 13;
    float f;
    if (rest >= 0x7c00u << 13) { /* inf, nan */
        rest |= 0x7f800000u;
        memcpy(&f, &rest, 4);
    } else {
        memcpy(&f, &rest, 4);
        f *= 0x1p112f;
        memcpy(&rest, &f, 4);
    }
    rest |= sign;
    memcpy(&f, &rest, 4);
    return f;
}
PD_BOTH pd_f16 pd_f32_to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu, r;
    if (a > 0x7f800000u) r = 0x7e00u | ((a >> 13) & 0x3ffu);       /* nan */
    else if (a >= 0x477ff000u) r = 0x7c00u;                        /* rounds to infinity */
    else if (a >= 0x38800000u) r = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    else { /* subnormal: let the adder round at 2^-24 */
        float x, magic = 0.5f;
        memcpy(&x, &a, 4);
        x += magic;
        uint32_t b;
        memcpy(&b, &x, 4);
        r = b - 0x3f000000u;
    }
    pd_f16 h = {(uint16_t)(sign | r)};
    return h;
}

#endif
