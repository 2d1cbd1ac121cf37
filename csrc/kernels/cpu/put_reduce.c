/* Elements put to places where others stand: their sum, product, maximum or minimum. */
#include "kernels/cpu/lib/real.h"

typedef struct put_job {
    pd_fold how;
    pd_dtype t;
    int64_t count, src_stride;
    const int64_t *offset;
    const char *src;
    char *dst;
} put_job;

/* Whether none of four blocks is left out. */
#define ALL_FOUR(o) (((o)[0] | (o)[1] | (o)[2] | (o)[3]) >= 0)

#define IS_NAN(x) ((x) != (x))
#define T float
#define FN(name) name##_f32
#define LOWEST -VM_INFF
#define HIGHEST VM_INFF
#include "kernels/cpu/put_reduce.inc"
#define T double
#define FN(name) name##_f64
#define LOWEST -VM_INF
#define HIGHEST VM_INF
#include "kernels/cpu/put_reduce.inc"
#undef IS_NAN
#define IS_NAN(x) 0
#define T uint8_t
#define FN(name) name##_u8
#define LOWEST 0
#define HIGHEST UINT8_MAX
#include "kernels/cpu/put_reduce.inc"
#define T int8_t
#define FN(name) name##_i8
#define LOWEST INT8_MIN
#define HIGHEST INT8_MAX
#include "kernels/cpu/put_reduce.inc"
#define T int16_t
#define FN(name) name##_i16
#define LOWEST INT16_MIN
#define HIGHEST INT16_MAX
#include "kernels/cpu/put_reduce.inc"
#define T int32_t
#define FN(name) name##_i32
#define LOWEST INT32_MIN
#define HIGHEST INT32_MAX
#include "kernels/cpu/put_reduce.inc"
#define T int64_t
#define FN(name) name##_i64
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#include "kernels/cpu/put_reduce.inc"

/* 16-bit floats, by tiles in float. */
static void reduce_halves(const put_job *j, int64_t begin, int64_t end) {
    const float first = neutral_f32(j->how);
    for (int64_t i = 0; i < j->count; i++)
        for (int64_t k = begin; k < end && j->offset[i] >= 0; k += PD_TILE) {
            float d[PD_TILE], s[PD_TILE];
            const int64_t m = end - k < PD_TILE ? end - k : PD_TILE;
            if (j->src) {
                load_f32(j->t, j->dst + j->offset[i], k, m, d);
                load_f32(j->t, j->src + i * j->src_stride, k, m, s);
                combine_f32(j->how, d, s, m);
            } else
                for (int64_t e = 0; e < m; e++) d[e] = first;
            put_f32(j->t, j->dst + j->offset[i], k, m, d);
        }
}

/* Products of complex numbers; their sums are those of their parts. */
#define COMPLEX_PRODUCTS(C)                                                      \
    for (int64_t i = 0; i < j->count; i++)                                       \
        for (int64_t k = begin; k < end && j->offset[i] >= 0; k++) {             \
            C *d = (C *)(void *)(j->dst + j->offset[i]) + k, x = *d, y = {1, 0}; \
            if (j->src)                                                          \
                y = ((const C *)(const void *)(j->src + i * j->src_stride))[k];  \
            else                                                                 \
                x = y;                                                           \
            *d = (C){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};      \
        }                                                                        \
    break;

static void put_part(void *ctx, int64_t begin, int64_t end) {
    const put_job *j = ctx;
    switch (j->t) {
        case PD_BOOL:
        case PD_U8:
            reduce_u8(j, begin, end);
            break;
        case PD_I8:
            reduce_i8(j, begin, end);
            break;
        case PD_I16:
            reduce_i16(j, begin, end);
            break;
        case PD_I32:
            reduce_i32(j, begin, end);
            break;
        case PD_I64:
            reduce_i64(j, begin, end);
            break;
        case PD_F32:
            reduce_f32(j, begin, end);
            break;
        case PD_F64:
            reduce_f64(j, begin, end);
            break;
        case PD_C64:
            COMPLEX_PRODUCTS(pd_c64)
        case PD_C128:
            COMPLEX_PRODUCTS(pd_c128)
        default:
            reduce_halves(j, begin, end);
    }
}
PD_CPU_FUNCTION(void, put_reduce, pd_fold how, pd_dtype t, int64_t count, int64_t n, const int64_t *offset,
                const char *src, int64_t src_stride, char *dst) {
    if (pd_dtype_is_complex(t) && how == PD_FOLD_SUM) t = pd_dtype_part(t), n *= 2;
    if (t == PD_BOOL) how = how == PD_FOLD_SUM ? PD_FOLD_MAX : how == PD_FOLD_PROD ? PD_FOLD_MIN : how; /* or; and */
    put_job j = {how, t, count, src_stride, offset, src, dst};
    if (count <= 0) return;
    int64_t grain = PD_GRAIN / count;
    pd_parallel(n, grain < 64 ? 64 : grain, put_part, &j);
}
