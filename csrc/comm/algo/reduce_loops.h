/* The loops of reduce.c for one instruction set. It is included once for each set; PD_LOOPS(name) adds a suffix to
   names.

   pair: o[i] = l[i] op r[i], where o may be l or r. For 16-bit types there are three versions: each side is stored (h,
   16 bits) or a partial result (f, float32). The tree never has a stored one on the left and a partial one on the
   right. */

#define PAIR(name, L, R, O, load_l, load_r, A, expr)                              \
    static void PD_LOOPS(name)(const void *lv, const void *rv, void *ov, int64_t n) { \
        const L *l = lv;                                                          \
        const R *r = rv;                                                          \
        O *o = ov;                                                                \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                     \
            A a = load_l(l[i]), b = load_r(r[i]);                                 \
            o[i] = (O)(expr);                                                     \
        }                                                                         \
    }
#define SAME(x) (x)
#define NATIVE(suffix, T, U)                                                       \
    PAIR(sum_##suffix, T, T, T, SAME, SAME, U, a + b)                              \
    PAIR(product_##suffix, T, T, T, SAME, SAME, U, a * b)
#define ORDER(suffix, T)                                                           \
    PAIR(min_##suffix, T, T, T, SAME, SAME, T, ((a < b) | (a != a)) ? a : b)         \
    PAIR(max_##suffix, T, T, T, SAME, SAME, T, ((a > b) | (a != a)) ? a : b)
#define BITS(suffix, T)                                                            \
    PAIR(and_##suffix, T, T, T, SAME, SAME, T, a & b)                              \
    PAIR(or_##suffix, T, T, T, SAME, SAME, T, a | b)                               \
    PAIR(xor_##suffix, T, T, T, SAME, SAME, T, a ^ b)
/* Integers are added and multiplied as unsigned ones, so overflow wraps. */
#define INTEGER(suffix, T, U) NATIVE(suffix, T, U) ORDER(suffix, T) BITS(suffix, T)

NATIVE(f32, float, float) ORDER(f32, float)
NATIVE(f64, double, double) ORDER(f64, double)
INTEGER(u8, uint8_t, unsigned)
INTEGER(i8, int8_t, unsigned)
INTEGER(i16, int16_t, unsigned)
INTEGER(i32, int32_t, uint32_t)
INTEGER(i64, int64_t, uint64_t)

#define HALF(suffix, T, load)                                                      \
    PAIR(sum_hh_##suffix, T, T, float, load, load, float, a + b)                   \
    PAIR(sum_fh_##suffix, float, T, float, SAME, load, float, a + b)               \
    PAIR(product_hh_##suffix, T, T, float, load, load, float, a * b)               \
    PAIR(product_fh_##suffix, float, T, float, SAME, load, float, a * b)           \
    PAIR(min_hh_##suffix, T, T, float, load, load, float, ((a < b) | (a != a)) ? a : b)     \
    PAIR(min_fh_##suffix, float, T, float, SAME, load, float, ((a < b) | (a != a)) ? a : b) \
    PAIR(max_hh_##suffix, T, T, float, load, load, float, ((a > b) | (a != a)) ? a : b)     \
    PAIR(max_fh_##suffix, float, T, float, SAME, load, float, ((a > b) | (a != a)) ? a : b)
HALF(f16, uint16_t, load_f16)
HALF(bf16, uint16_t, load_bf16)

/* last: o[i] = round(scale * x[i]); for the native types x is o. */
static void PD_LOOPS(last_f32)(const void *xv, void *ov, int64_t n, double scale) {
    const float *x = xv;
    float *o = ov, s = (float)scale;
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) o[i] = x[i] * s;
}
static void PD_LOOPS(last_f64)(const void *xv, void *ov, int64_t n, double scale) {
    const double *x = xv;
    double *o = ov;
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) o[i] = x[i] * scale;
}
#define LAST_HALF(suffix, load, store)                                                    \
    static void PD_LOOPS(last_##suffix)(const void *xv, void *ov, int64_t n, double scale) { \
        const float *x = xv;                                                              \
        uint16_t *o = ov;                                                                 \
        float s = (float)scale;                                                           \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) o[i] = store(x[i] * s);       \
    }                                                                                     \
    static void PD_LOOPS(widen_##suffix)(const void *xv, void *ov, int64_t n) {           \
        const uint16_t *x = xv;                                                           \
        float *o = ov;                                                                    \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) o[i] = load(x[i]);            \
    }
LAST_HALF(f16, load_f16, store_f16)
LAST_HALF(bf16, load_bf16, store_bf16)

#define ROW(op, suffix) {PD_LOOPS(op##_##suffix), PD_LOOPS(op##_##suffix), PD_LOOPS(op##_##suffix)}
#define HALF_ROW(op, suffix) {PD_LOOPS(op##_hh_##suffix), PD_LOOPS(op##_fh_##suffix), PD_LOOPS(op##_f32)}
#define FLOAT_ROWS(suffix)                                                                            \
    {.pairs = {[PD_REDUCE_SUM] = ROW(sum, suffix), [PD_REDUCE_AVG] = ROW(sum, suffix),                \
               [PD_REDUCE_PRODUCT] = ROW(product, suffix), [PD_REDUCE_MIN] = ROW(min, suffix),        \
               [PD_REDUCE_MAX] = ROW(max, suffix), [PD_REDUCE_PREMUL_SUM] = ROW(sum, suffix)},        \
     .last = PD_LOOPS(last_##suffix)}
#define INTEGER_ROWS(suffix)                                                                          \
    {.pairs = {[PD_REDUCE_SUM] = ROW(sum, suffix), [PD_REDUCE_PRODUCT] = ROW(product, suffix),        \
               [PD_REDUCE_MIN] = ROW(min, suffix), [PD_REDUCE_MAX] = ROW(max, suffix),                \
               [PD_REDUCE_BAND] = ROW(and, suffix), [PD_REDUCE_BOR] = ROW(or, suffix),                \
               [PD_REDUCE_BXOR] = ROW(xor, suffix)}}
#define HALF_ROWS(suffix)                                                                             \
    {.pairs = {[PD_REDUCE_SUM] = HALF_ROW(sum, suffix), [PD_REDUCE_AVG] = HALF_ROW(sum, suffix),      \
               [PD_REDUCE_PRODUCT] = HALF_ROW(product, suffix), [PD_REDUCE_MIN] = HALF_ROW(min, suffix), \
               [PD_REDUCE_MAX] = HALF_ROW(max, suffix), [PD_REDUCE_PREMUL_SUM] = HALF_ROW(sum, suffix)}, \
     .last = PD_LOOPS(last_##suffix), .widen = PD_LOOPS(widen_##suffix)}

static const loops PD_LOOPS(table)[PD_DTYPE_COUNT] = {
    [PD_BOOL] = {.pairs = {[PD_REDUCE_SUM] = ROW(or, u8), [PD_REDUCE_MAX] = ROW(or, u8), [PD_REDUCE_BOR] = ROW(or, u8),
                           [PD_REDUCE_PRODUCT] = ROW(and, u8), [PD_REDUCE_MIN] = ROW(and, u8),
                           [PD_REDUCE_BAND] = ROW(and, u8), [PD_REDUCE_BXOR] = ROW(xor, u8)}},
    [PD_U8] = INTEGER_ROWS(u8),   [PD_I8] = INTEGER_ROWS(i8),   [PD_I16] = INTEGER_ROWS(i16),
    [PD_I32] = INTEGER_ROWS(i32), [PD_I64] = INTEGER_ROWS(i64), [PD_F16] = HALF_ROWS(f16),
    [PD_BF16] = HALF_ROWS(bf16),  [PD_F32] = FLOAT_ROWS(f32),   [PD_F64] = FLOAT_ROWS(f64),
};

#undef PAIR
#undef SAME
#undef NATIVE
#undef ORDER
#undef BITS
#undef INTEGER
#undef HALF
#undef LAST_HALF
#undef ROW
#undef HALF_ROW
#undef FLOAT_ROWS
#undef INTEGER_ROWS
#undef HALF_ROWS
