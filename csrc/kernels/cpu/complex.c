/* Complex numbers, as pairs of floats: the rows of complex.def, parts, and conversions. */
#include "kernels/cpu/complex.h"

#include "kernels/vmath.h"

#define EACH_REAL(M) M(BOOL) M(U8) M(I8) M(I16) M(I32) M(I64) M(F16) M(BF16) M(F32) M(F64)

#define T float
#define Z pd_c64
#define ZF(name) c64_##name
#define PART PD_F32
#define MOST 0x1.fffffep127f
#include "kernels/cpu/complex.inc"
#undef T
#undef Z
#undef ZF
#undef PART
#undef MOST

#define T double
#define Z pd_c128
#define ZF(name) c128_##name
#define PART PD_F64
#define MOST 0x1.fffffffffffffp1023
#include "kernels/cpu/complex.inc"

static void c64_wide(int64_t n, double a, char *const *p) {
    PD_CASTS[PD_F64][PD_F32](2 * n, a, p);
}
static void c128_narrow(int64_t n, double a, char *const *p) {
    PD_CASTS[PD_F32][PD_F64](2 * n, a, p);
}

#define PAIR(kind, name) {c64_##kind##_##name, c128_##kind##_##name}
#define PD_COMPLEX_UNARY(name, result) [PD_UNARY_##name] = PAIR(unary, name),
#define PD_COMPLEX_BINARY(name, result)
#define PD_COMPLEX_COMPARE(name, result)
const pd_row PD_SUFFIXED(pd_complex_unary)[PD_UNARY_COUNT][2] = {
#include "kernels/complex.def"
};
#undef PD_COMPLEX_UNARY
#undef PD_COMPLEX_BINARY
#define PD_COMPLEX_UNARY(name, result)
#define PD_COMPLEX_BINARY(name, result) [PD_BINARY_##name] = PAIR(binary, name),
const pd_row PD_SUFFIXED(pd_complex_binary)[PD_BINARY_COUNT][2] = {
#include "kernels/complex.def"
};
#undef PD_COMPLEX_BINARY
#undef PD_COMPLEX_COMPARE
#define PD_COMPLEX_BINARY(name, result)
#define PD_COMPLEX_COMPARE(name, result) [PD_COMPARE_##name] = PAIR(compare, name),
const pd_row PD_SUFFIXED(pd_complex_compare)[PD_COMPARE_COUNT][2] = {
#include "kernels/complex.def"
};

#define FROM(t) [PD_##t] = PAIR(from, t),
#define TO(t) [PD_##t] = PAIR(to, t),
static const pd_row from_real[PD_DTYPE_COUNT][2] = {EACH_REAL(FROM)}, to_real[PD_DTYPE_COUNT][2] = {EACH_REAL(TO)};

pd_row PD_SUFFIXED(pd_complex_cast)(pd_dtype to, pd_dtype from) {
    if (!pd_dtype_is_complex(from)) return from_real[from][to == PD_C128];
    if (!pd_dtype_is_complex(to)) return to_real[to][from == PD_C128];
    return to == PD_C128 ? c64_wide : c128_narrow;
}

PD_CPU_FUNCTION(void, complex_part, pd_complex_part part, pd_dtype t, const pd_loop *l) {
    static const pd_row rows[][2] = {[PD_COMPLEX_ABS] = PAIR(part, abs), [PD_COMPLEX_ANGLE] = PAIR(part, angle),
                                     [PD_COMPLEX_CONJ] = PAIR(part, conj)};
    uint8_t size = (uint8_t)pd_dtype_size(t), out = part == PD_COMPLEX_CONJ ? size : size / 2;
    pd_rows r = {.loop = l, .row = rows[part][t == PD_C128], .size = {out, size}, .wide = {out, size}};
    PD_SUFFIXED(pd_rows_run)(&r);
}
