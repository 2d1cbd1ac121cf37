/* The rows of pointwise.def for float and double, and the calls that run them. */
#include "kernels/cpu/lib/express.h"
#include "kernels/cpu/lib/rows.h"

#define ELU_TILE 128

/* Row functions: their out and the arguments that the expression names. */
#define START(TYPE)                                                      \
    typedef TYPE T;                                                      \
    const T P[PD_POINTWISE_PARAMS] = {(T)params[0], (T)params[1], (T)params[2]}; \
    (void)P;                                                             \
    T *out = (T *)p[0];
#define ROW1(name, E, TYPE, fwd, grad)                                                  \
    static void name##_##E(int64_t n, const double *params, char *const *p) {           \
        START(TYPE)                                                                     \
        const T *px = (const T *)p[1];                                                  \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                                  \
            T x = px[i];                                                                \
            out[i] = (T)(fwd);                                                          \
        }                                                                               \
    }                                                                                   \
    static void name##_grad_##E(int64_t n, const double *params, char *const *p) {      \
        START(TYPE)                                                                     \
        const T *pg = (const T *)p[1], *px = (const T *)p[2];                           \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                                  \
            T g = pg[i], x = px[i];                                                     \
            out[i] = (T)(grad);                                                         \
        }                                                                               \
    }
#define GRAD2(name, E, TYPE, grad)                                                      \
    static void name##_##E(int64_t n, const double *params, char *const *p) {           \
        START(TYPE)                                                                     \
        const T *pg = (const T *)p[1], *px = (const T *)p[2], *py = (const T *)p[3];    \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                                  \
            T g = pg[i], x = px[i], y = py[i];                                          \
            (void)x, (void)y;                                                           \
            out[i] = (T)(grad);                                                         \
        }                                                                               \
    }
#define ROW2(name, E, TYPE, fwd, gx, gy)                                                \
    static void name##_##E(int64_t n, const double *params, char *const *p) {           \
        START(TYPE)                                                                     \
        const T *px = (const T *)p[1], *py = (const T *)p[2];                           \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                                  \
            T x = px[i], y = py[i];                                                     \
            out[i] = (T)(fwd);                                                          \
        }                                                                               \
    }                                                                                   \
    GRAD2(name##_x, E, TYPE, gx)                                                        \
    GRAD2(name##_y, E, TYPE, gy)

#define PD_POINTWISE1(name, who, count, parameters, fwd, grad, doc) \
    ROW1(name, F32, float, fwd, grad) ROW1(name, F64, double, fwd, grad)
#define PD_POINTWISE2(name, count, parameters, fwd, gx, gy, doc) \
    ROW2(name, F32, float, fwd, gx, gy) ROW2(name, F64, double, fwd, gx, gy)
#include "kernels/pointwise.def"
#undef PD_POINTWISE1
#undef PD_POINTWISE2

/* If all of a tile is positive, there is nothing to compute. */
static void elu_row(int64_t n, const double *params, char *const *p) {
    float *out = (float *)p[0];
    const float *in = (const float *)p[1], scale = (float)params[1];
    for (int64_t i = 0; i < n; i += ELU_TILE, in += ELU_TILE, out += ELU_TILE) {
        const int64_t m = n - i < ELU_TILE ? n - i : ELU_TILE;
        int below = 0;
        for (int64_t k = 0; k < m; k++) below |= !(in[k] > 0);
        if (below) elu_F32(m, params, (char *const[]){(char *)out, (char *)(uintptr_t)in});
        else PD_VECTORIZE for (int64_t k = 0; k < m; k++) out[k] = in[k] * scale;
    }
}

/* [forward, gradient of x, gradient of y][F32, F64] */
static const pd_row_with rows[PD_POINTWISE_COUNT][3][2] = {
#define PD_POINTWISE1(name, ...) {{name##_F32, name##_F64}, {name##_grad_F32, name##_grad_F64}},
#define PD_POINTWISE2(name, ...) {{name##_F32, name##_F64}, {name##_x_F32, name##_x_F64}, {name##_y_F32, name##_y_F64}},
#include "kernels/pointwise.def"
#undef PD_POINTWISE1
#undef PD_POINTWISE2
};

PD_CPU_FUNCTION(void, pointwise, pd_pointwise fn, int which, pd_dtype t, const double *params, const pd_loop *l) {
    pd_rows r = {.loop = l, .with = rows[fn][which][t == PD_F64], .params = params, .grain = PD_GRAIN / 2};
    if (r.with == elu_F32) r.with = elu_row;
    PD_SUFFIXED(pd_rows_convert)(&r, t);
    PD_SUFFIXED(pd_rows_run)(&r);
}
