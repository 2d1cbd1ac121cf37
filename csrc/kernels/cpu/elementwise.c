/* The rows of unary.def, binary.def and compare.def for each type, and the calls that run them.

   A row is one vectorised loop over contiguous memory; rows.h turns every loop into rows. f16 and bf16 have no rows of
   their own: the float rows run on converted tiles. Integer arithmetic wraps (built with -fwrapv). */
#include "kernels/cpu/complex.h"
#include "kernels/cpu/lib/express.h"
#include "kernels/cpu/lib/real.h"
#include "kernels/cpu/lib/rows.h"

#define UNARY_ROW(name, E, TYPE, expr)                                        \
    static void unary_##name##_##E(int64_t n, double scalar, char *const *p) { \
        typedef TYPE T;                                                       \
        (void)scalar;                                                         \
        T *out = (T *)p[0];                                                   \
        const T *in = (const T *)p[1];                                        \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                        \
            T x = in[i];                                                      \
            out[i] = (T)(expr);                                               \
        }                                                                     \
    }
#define UNARY_FLOAT(name, expr) UNARY_ROW(name, F32, float, expr) UNARY_ROW(name, F64, double, expr)
#define UNARY_ANY(name, expr)                                                                                  \
    UNARY_FLOAT(name, expr) UNARY_ROW(name, U8, uint8_t, expr) UNARY_ROW(name, I8, int8_t, expr)                \
    UNARY_ROW(name, I16, int16_t, expr) UNARY_ROW(name, I32, int32_t, expr) UNARY_ROW(name, I64, int64_t, expr)

/* g, and what the row saves, as x or y. */
#define UNARY_GRAD_ROW(name, E, TYPE, saved, expr)                                  \
    static void unary_grad_##name##_##E(int64_t n, double scalar, char *const *p) { \
        typedef TYPE T;                                                             \
        (void)scalar;                                                               \
        T *out = (T *)p[0];                                                         \
        const T *pg = (const T *)p[1], *ps = (const T *)p[2];                       \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                              \
            T g = pg[i], SAVED_##saved = ps[i];                                     \
            (void)SAVED_##saved;                                                    \
            out[i] = (T)(expr);                                                     \
        }                                                                           \
    }
#define SAVED_X x
#define SAVED_Y y
#define SAVED_NONE x

#define PD_UNARY(name, domain, fwd, saved, grad, doc)                       \
    UNARY_##domain(name, fwd) UNARY_GRAD_ROW(name, F32, float, saved, grad) \
        UNARY_GRAD_ROW(name, F64, double, saved, grad)
#include "kernels/unary.def"
#undef PD_UNARY

#define BINARY_ROW(name, E, TYPE, expr) \
    PD_ROW(binary_##name##_##E, TYPE, PD_MANY(T, py, 2), T y = py[i]; (void)y;, expr)
/* y is one number. */
#define BINARY_CELL(name, expr) PD_ROW(binary_cell_##name, float, PD_ONE(T, y, 2), , expr)
#define BINARY_FLOAT(name, expr) \
    BINARY_ROW(name, F32, float, expr) BINARY_ROW(name, F64, double, expr) BINARY_CELL(name, expr)
#define BINARY_ANY(name, expr) BINARY_FLOAT(name, expr) BINARY_INT(name, expr)
#define BINARY_INT(name, expr)                                                                                 \
    BINARY_ROW(name, U8, uint8_t, expr) BINARY_ROW(name, I8, int8_t, expr)             \
    BINARY_ROW(name, I16, int16_t, expr) BINARY_ROW(name, I32, int32_t, expr) BINARY_ROW(name, I64, int64_t, expr)

#define BINARY_GRAD_ROW(name, side, E, TYPE, expr)                                        \
    static void binary_grad_##name##_##side##_##E(int64_t n, double scalar, char *const *p) { \
        typedef TYPE T;                                                                   \
        const T a = (T)scalar;                                                            \
        (void)a;                                                                          \
        T *out = (T *)p[0];                                                               \
        const T *pg = (const T *)p[1], *px = (const T *)p[2], *py = (const T *)p[3];      \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                                    \
            T g = pg[i], x = px[i], y = py[i];                                            \
            (void)x, (void)y;                                                             \
            out[i] = (T)(expr);                                                           \
        }                                                                                 \
    }
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc)                                            \
    BINARY_##domain(name, fwd) BINARY_GRAD_ROW(name, x, F32, float, gx) BINARY_GRAD_ROW(name, x, F64, double, gx) \
    BINARY_GRAD_ROW(name, y, F32, float, gy) BINARY_GRAD_ROW(name, y, F64, double, gy)
#include "kernels/binary.def"
#undef PD_BINARY

#if VM_HAS_FMA
/* sin and cos, tile by tile; in float if no element is large. */
static void sincos_row(int64_t n, uint32_t turn, char *const *p) {
    typedef uint32_t __attribute__((may_alias)) bits;
    float *out = (float *)p[0];
    const float *in = (const float *)p[1];
    for (int64_t i = 0; i < n; i += PD_TILE, in += PD_TILE, out += PD_TILE) {
        const int64_t m = n - i < PD_TILE ? n - i : PD_TILE;
        uint32_t far = 0;
        for (int64_t k = 0; k < m; k++) far |= (((const bits *)in)[k] & 0x7fffffffu) >= vm_bitsf(VM_NEARF);
        if (far && turn) unary_cos_F32(m, 1, (char *const[]){(char *)out, (char *)(uintptr_t)in});
        else if (far) unary_sin_F32(m, 1, (char *const[]){(char *)out, (char *)(uintptr_t)in});
        else PD_VECTORIZE for (int64_t k = 0; k < m; k++) out[k] = vm_sincos_nearf(in[k], turn);
    }
}
static void sin_row(int64_t n, double a, char *const *p) { (void)a, sincos_row(n, 0, p); }
static void cos_row(int64_t n, double a, char *const *p) { (void)a, sincos_row(n, 1, p); }
#else
#define sin_row unary_sin_F32
#define cos_row unary_cos_F32
#endif

/* x ** 2 and x ** 3, and the gradients of these. */
#define POWER_ROWS(E, TYPE)                        \
    BINARY_ROW(square, E, TYPE, x *x)              \
    BINARY_ROW(cube, E, TYPE, x * x * x)           \
    BINARY_GRAD_ROW(square, x, E, TYPE, g * 2 * x) \
    BINARY_GRAD_ROW(cube, x, E, TYPE, g * 3 * (x * x))
POWER_ROWS(F32, float)
POWER_ROWS(F64, double)

#define COMPARE_ROW(name, E, TYPE, expr)                                        \
    static void compare_##name##_##E(int64_t n, double scalar, char *const *p) { \
        (void)scalar;                                                           \
        uint8_t *out = (uint8_t *)p[0];                                         \
        const TYPE *px = (const TYPE *)p[1], *py = (const TYPE *)p[2];          \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                          \
            TYPE x = px[i], y = py[i];                                          \
            out[i] = (uint8_t)(expr);                                           \
        }                                                                       \
    }
#define PD_COMPARE(name, expr, doc)                                                                          \
    COMPARE_ROW(name, U8, uint8_t, expr) COMPARE_ROW(name, I8, int8_t, expr) COMPARE_ROW(name, I16, int16_t, expr) \
    COMPARE_ROW(name, I32, int32_t, expr) COMPARE_ROW(name, I64, int64_t, expr) COMPARE_ROW(name, F32, float, expr) \
    COMPARE_ROW(name, F64, double, expr)
#include "kernels/compare.def"
#undef PD_COMPARE

/* Functions of BOOL that differ from U8's arithmetic. */
static void bool_or(int64_t n, double a, char *const *p) {
    (void)a;
    PD_VECTORIZE for (int64_t i = 0; i < n; i++) p[0][i] = p[1][i] | p[2][i];
}
static void bool_and(int64_t n, double a, char *const *p) {
    (void)a;
    PD_VECTORIZE for (int64_t i = 0; i < n; i++) p[0][i] = p[1][i] & p[2][i];
}

#define ROWS_FLOAT(kind, name) [PD_F32] = kind##_##name##_F32, [PD_F64] = kind##_##name##_F64,
#define ROWS_ANY(kind, name) ROWS_FLOAT(kind, name) ROWS_INT(kind, name)
#define ROWS_INT(kind, name)                                                                                     \
    [PD_BOOL] = kind##_##name##_U8, [PD_U8] = kind##_##name##_U8, [PD_I8] = kind##_##name##_I8, \
    [PD_I16] = kind##_##name##_I16, [PD_I32] = kind##_##name##_I32, [PD_I64] = kind##_##name##_I64,

static const pd_row unary_rows[PD_UNARY_COUNT][PD_DTYPE_COUNT] = {
#define PD_UNARY(name, domain, fwd, saved, grad, doc) {ROWS_##domain(unary, name)},
#include "kernels/unary.def"
#undef PD_UNARY
};
static const pd_row unary_grad_rows[PD_UNARY_COUNT][PD_DTYPE_COUNT] = {
#define PD_UNARY(name, domain, fwd, saved, grad, doc) {ROWS_FLOAT(unary_grad, name)},
#include "kernels/unary.def"
#undef PD_UNARY
};
static const pd_row binary_rows[PD_BINARY_COUNT][PD_DTYPE_COUNT] = {
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc) {ROWS_##domain(binary, name)},
#include "kernels/binary.def"
#undef PD_BINARY
};
#define CELL_FLOAT(name) binary_cell_##name
#define CELL_ANY(name) binary_cell_##name
#define CELL_INT(name) NULL
static const pd_row binary_cells[PD_BINARY_COUNT] = {
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc) CELL_##domain(name),
#include "kernels/binary.def"
#undef PD_BINARY
};
static const pd_row binary_grad_rows[2][PD_BINARY_COUNT][PD_DTYPE_COUNT] = {
    {
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc) {ROWS_FLOAT(binary_grad, name##_x)},
#include "kernels/binary.def"
#undef PD_BINARY
    },
    {
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc) {ROWS_FLOAT(binary_grad, name##_y)},
#include "kernels/binary.def"
#undef PD_BINARY
    }};
static const pd_row compare_rows[PD_COMPARE_COUNT][PD_DTYPE_COUNT] = {
#define PD_COMPARE(name, expr, doc) {ROWS_ANY(compare, name)},
#include "kernels/compare.def"
#undef PD_COMPARE
};

/* Runs a row for dtype t. All operands are of type t, or their own if the loop says so, except those in `bools`, which
   are BOOL. cell: the row for a single number as operand 2, or NULL. */
static void run_with(pd_row row, pd_row cell, pd_dtype t, double a, const pd_loop *l, unsigned bools, int64_t grain) {
    pd_rows r = {.loop = l, .row = row, .a = a, .grain = grain, .cell = {{cell, 4}}};
    PD_SUFFIXED(pd_rows_convert)(&r, t);
    for (int k = 0; k < l->nop; k++)
        if (bools >> k & 1u) r.size[k] = r.wide[k] = 1, r.load[k] = NULL;
    PD_SUFFIXED(pd_rows_run)(&r);
}

static void run(pd_row row, pd_dtype t, double a, const pd_loop *l, unsigned bools, int64_t grain) {
    run_with(row, NULL, t, a, l, bools, grain);
}

/* Functions with a polynomial for each element gain from threads at a quarter of the size. */
static int64_t unary_grain(pd_unary fn) {
    switch (fn) {
        case PD_UNARY_exp:
        case PD_UNARY_log:
        case PD_UNARY_sin:
        case PD_UNARY_cos:
        case PD_UNARY_expm1:
        case PD_UNARY_log1p:
        case PD_UNARY_log2:
        case PD_UNARY_log10:
        case PD_UNARY_tanh:
        case PD_UNARY_sigmoid:
        case PD_UNARY_erf:
            return PD_GRAIN / 2;
        default: return PD_GRAIN;
    }
}

/* A row of a table, or of the table in complex.h. */
#define ROW_OF(rows, complex_rows, fn, t) \
    (pd_dtype_is_complex(t) ? PD_SUFFIXED(complex_rows)[fn][t == PD_C128] : rows[fn][pd_dtype_computed(t)])

PD_CPU_FUNCTION(void, unary, pd_unary fn, pd_dtype t, const pd_loop *l) {
    pd_row row = ROW_OF(unary_rows, pd_complex_unary, fn, t);
    if (row == unary_sin_F32) row = sin_row;
    if (row == unary_cos_F32) row = cos_row;
    run(row, t, 1.0, l, 0, unary_grain(fn));
}
PD_CPU_FUNCTION(void, unary_grad, pd_unary fn, pd_dtype t, const pd_loop *l) {
    run(unary_grad_rows[fn][pd_dtype_computed(t)], t, 1.0, l, 0, unary_grain(fn));
}
/* The exponent of x ** y, if it is a single number, 2 or 3; else 0. */
static int power(pd_binary fn, pd_dtype t, const pd_loop *l, int y) {
    if (fn != PD_BINARY_pow || !pd_dtype_is_float(t)) return 0;
    for (int d = 0; d < l->ndim; d++)
        if (l->stride[y][d] != 0 && l->size[d] != 1) return 0;
    double v;
    PD_CASTS[PD_F64][pd_loop_dtype(l, y, t)](1, 1.0, (char *const[]){(char *)&v, l->ptr[y]});
    return v == 2 ? 2 : v == 3 ? 3 : 0;
}

PD_CPU_FUNCTION(void, binary, pd_binary fn, pd_dtype t, double a, const pd_loop *l) {
    pd_row row = ROW_OF(binary_rows, pd_complex_binary, fn, t);
    if (t == PD_BOOL && (fn == PD_BINARY_add || fn == PD_BINARY_maximum))
        row = a != 0.0 ? bool_or : PD_CASTS[PD_BOOL][PD_BOOL];
    if (t == PD_BOOL && (fn == PD_BINARY_mul || fn == PD_BINARY_minimum)) row = bool_and;
    int whole = l->numel > 0 ? power(fn, t, l, 2) : 0;
    if (whole)
        row = t == PD_F64  ? (whole == 2 ? binary_square_F64 : binary_cube_F64)
              : whole == 2 ? binary_square_F32
                           : binary_cube_F32;
    pd_row cell = row == binary_rows[fn][PD_F32] ? binary_cells[fn] : NULL;
    run_with(row, cell, t, a, l, 0, fn == PD_BINARY_pow && !whole ? PD_GRAIN / 4 : PD_GRAIN);
}
PD_CPU_FUNCTION(void, binary_grad, pd_binary fn, int which, pd_dtype t, double a, const pd_loop *l) {
    pd_row row = binary_grad_rows[which][fn][pd_dtype_computed(t)];
    int whole = l->numel > 0 && which == 0 ? power(fn, t, l, 3) : 0;
    if (whole)
        row = t == PD_F64  ? (whole == 2 ? binary_grad_square_x_F64 : binary_grad_cube_x_F64)
              : whole == 2 ? binary_grad_square_x_F32
                           : binary_grad_cube_x_F32;
    run(row, t, a, l, 0, fn == PD_BINARY_pow && !whole ? PD_GRAIN / 4 : PD_GRAIN);
}
PD_CPU_FUNCTION(void, compare, pd_compare fn, pd_dtype t, const pd_loop *l) {
    run(ROW_OF(compare_rows, pd_complex_compare, fn, t), t, 1.0, l, 1u, PD_GRAIN);
}

#define WHERE_ROW(T)                                                          \
    static void where_##T(int64_t n, double a, char *const *p) {              \
        (void)a;                                                              \
        T *out = (T *)p[0];                                                   \
        const uint8_t *c = (const uint8_t *)p[1];                             \
        const T *px = (const T *)p[2], *py = (const T *)p[3];                 \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {                        \
            T x = px[i], y = py[i];                                           \
            out[i] = c[i] ? x : y;                                            \
        }                                                                     \
    }                                                                         \
    static void move_##T(int64_t n, double a, char *const *p) {               \
        (void)a;                                                              \
        if (p[0] != p[1]) memmove(p[0], p[1], (size_t)n * sizeof(T));         \
    }
WHERE_ROW(uint8_t)
WHERE_ROW(uint16_t)
WHERE_ROW(uint32_t)
WHERE_ROW(uint64_t)
WHERE_ROW(pd_c128)

#define BY_SIZE(kind, size) \
    (size == 1   ? kind##_uint8_t \
     : size == 2 ? kind##_uint16_t \
     : size == 4 ? kind##_uint32_t \
     : size == 8 ? kind##_uint64_t \
                 : kind##_pd_c128)

PD_CPU_FUNCTION(void, where, size_t size, const pd_loop *l) {
    uint8_t s = (uint8_t)size;
    pd_rows r = {.loop = l, .row = BY_SIZE(where, size), .size = {s, 1, s, s}, .wide = {s, 1, s, s}};
    PD_SUFFIXED(pd_rows_run)(&r);
}

/* Copies without conversion in which the input's unit stride is not along the output's innermost dimension. They go by
   squares of SQUARE x SQUARE elements, so that cache lines of both stay in the first-level cache. The other dimensions
   are the outer loops. */
#define SQUARE 32
typedef struct turn_job { const pd_loop *l; int64_t bands; int dim, size; } turn_job;
#define TURN(T)                                                 \
    for (int64_t i = i0; i < i1; i++)                           \
        for (int64_t j = j0; j < j1; j++)                       \
            ((T *)(void *)(to + i * l->stride[0][t->dim]))[j] = \
                ((const T *)(const void *)(from + j * l->stride[1][last]))[i];
static void turn_part(void *ctx, int64_t begin, int64_t end) {
    const turn_job *t = ctx;
    const pd_loop *l = t->l;
    const int last = l->ndim - 1;
    for (int64_t b = begin; b < end; b++) {
        char *to = l->ptr[0], *from = l->ptr[1];
        int64_t rest = b / t->bands, i0 = b % t->bands * SQUARE,
                i1 = l->size[t->dim] - i0 < SQUARE ? l->size[t->dim] : i0 + SQUARE;
        for (int d = last - 1; d >= 0; d--) {
            if (d == t->dim) continue;
            to += rest % l->size[d] * l->stride[0][d];
            from += rest % l->size[d] * l->stride[1][d];
            rest /= l->size[d];
        }
        for (int64_t j0 = 0; j0 < l->size[last]; j0 += SQUARE) {
            int64_t j1 = l->size[last] - j0 < SQUARE ? l->size[last] : j0 + SQUARE;
#if PD_LANES_F > 4
            if (t->size == 4 && i1 - i0 == SQUARE && j1 - j0 == SQUARE) {
                for (int64_t i = i0; i < i1; i += PD_LANES_F)
                    for (int64_t j = j0; j < j1; j += PD_LANES_F)
                        transpose_f32((const float *)(const void *)(from + j * l->stride[1][last]) + i,
                                      l->stride[1][last] / 4, (float *)(void *)(to + i * l->stride[0][t->dim]) + j,
                                      l->stride[0][t->dim] / 4);
                continue;
            }
#endif
            if (t->size == 1) TURN(uint8_t)
            else if (t->size == 2) TURN(uint16_t)
            else if (t->size == 4) TURN(uint32_t)
            else TURN(uint64_t)
        }
    }
}

/* The dimension of the input's unit stride, if it is not the output's; -1: none. */
static int turned(const pd_loop *l, int64_t size) {
    int last = l->ndim - 1;
    if (size > 8 || last < 1 || l->stride[0][last] != size || l->stride[1][last] <= 4 * size ||
        l->stride[1][last] % size)
        return -1;
    for (int d = 0; d < last; d++)
        if (l->stride[1][d] == size && l->size[d] >= 8 && l->stride[0][d] % size == 0) return d;
    return -1;
}

/* Copies without conversion of rows that are dense, or reversed, in the input and dense in the output. */
typedef struct move_job { const pd_loop *l; int size; } move_job;
#define REVERSE(T)                                                   \
    {                                                                \
        T *d = (T *)(void *)to;                                      \
        const T *s = (const T *)(const void *)from;                  \
        PD_VECTORIZE for (int64_t k = 0; k < n; k++) d[k] = s[-k];   \
    }
/* memcpy for a few bytes, without a call: two copies of a fixed size, which may overlap. */
PD_INLINE void move_bytes(char *to, const char *from, size_t n) {
#define TWICE(size)                                                       \
    {                                                                     \
        char head[size], tail[size];                                      \
        memcpy(head, from, size), memcpy(tail, from + n - (size), size);  \
        memcpy(to, head, size), memcpy(to + n - (size), tail, size);      \
    }
    if (n > 64 || n < 8) memcpy(to, from, n);
    else if (n >= 32) TWICE(32)
    else if (n >= 16) TWICE(16)
    else TWICE(8)
#undef TWICE
}
static void move_rows(void *ctx, int64_t begin, int64_t end) {
    const move_job *m = ctx;
    const pd_loop *l = m->l;
    const int last = l->ndim - 1;
    const int64_t n = l->size[last], step0 = last ? l->stride[0][last - 1] : 0,
                  step1 = last ? l->stride[1][last - 1] : 0;
    for (int64_t r = begin; r < end;) { /* rows along the second innermost dimension */
        char *to = l->ptr[0], *from = l->ptr[1];
        int64_t rest = r, run = last ? l->size[last - 1] - r % l->size[last - 1] : 1;
        for (int d = last - 1; d >= 0; d--) {
            to += rest % l->size[d] * l->stride[0][d];
            from += rest % l->size[d] * l->stride[1][d];
            rest /= l->size[d];
        }
        if (run > end - r) run = end - r;
        r += run;
        for (; run > 0; run--, to += step0, from += step1) {
            if (l->stride[1][last] == m->size) move_bytes(to, from, (size_t)(n * m->size));
            else if (m->size == 4) REVERSE(uint32_t)
            else if (m->size == 8) REVERSE(uint64_t)
            else if (m->size == 2) REVERSE(uint16_t)
            else REVERSE(uint8_t)
        }
    }
}

/* Reverses one dimension. */
static void reverse_part(void *ctx, int64_t begin, int64_t end) {
    const move_job *m = ctx;
    const int64_t n = end - begin;
    char *to = m->l->ptr[0] + begin * m->size, *from = m->l->ptr[1] - begin * m->size;
    if (m->size == 4) REVERSE(uint32_t)
    else if (m->size == 8) REVERSE(uint64_t)
    else if (m->size == 2) REVERSE(uint16_t)
    else REVERSE(uint8_t)
}

/* One call of memmove for each thread: glibc's form for MiBs suffers less where the low bits of both addresses are
   nearly equal. */
static void flat_part(void *ctx, int64_t begin, int64_t end) {
    const pd_loop *l = ctx;
    memmove(l->ptr[0] + begin, l->ptr[1] + begin, (size_t)(end - begin));
}
static void copy_flat(const pd_loop *l, int64_t size) {
    int64_t threads = l->numel > PD_GRAIN ? pd_threads_get() : 1, each = (l->numel / threads / 64 + 1) * 64;
    if (l->ptr[0] != l->ptr[1]) pd_parallel(l->numel * size, each * size, flat_part, (void *)(uintptr_t)l);
}

PD_CPU_FUNCTION(void, copy, pd_dtype to, pd_dtype from, const pd_loop *l) {
    int64_t size = (int64_t)pd_dtype_size(to);
    int dim = to == from && l->numel > 0 ? turned(l, size) : -1;
    if (dim >= 0) {
        turn_job t = {l, (l->size[dim] + SQUARE - 1) / SQUARE, dim, (int)size};
        int64_t squares = t.bands * (l->numel / l->size[dim] / l->size[l->ndim - 1]);
        pd_parallel(squares, pd_grain(squares, SQUARE * l->size[l->ndim - 1], PD_GRAIN), turn_part, &t);
        return;
    }
    int last = l->ndim - 1;
    if (to == from && last > 0 && l->numel > 0 && l->size[last] * size >= 16 && size <= 8 &&
        l->stride[0][last] == size &&
        (l->stride[1][last] == size || l->stride[1][last] == -size)) {
        move_job m = {l, (int)size};
        int64_t rows = l->numel / l->size[last];
        pd_parallel(rows, pd_grain(rows, l->size[last], PD_GRAIN), move_rows, &m);
        return;
    }
    if (to == from && last == 0 && l->stride[0][0] == size && l->stride[1][0] == size) {
        copy_flat(l, size);
        return;
    }
    if (to == from && last == 0 && size <= 8 && l->stride[0][0] == size && l->stride[1][0] == -size) {
        move_job m = {l, (int)size};
        pd_parallel(l->numel, PD_GRAIN, reverse_part, &m);
        return;
    }
    uint8_t d = (uint8_t)pd_dtype_size(to), s = (uint8_t)pd_dtype_size(from);
    pd_row row = to == from ? BY_SIZE(move, d)
                 : pd_dtype_is_complex(to) || pd_dtype_is_complex(from) ? PD_SUFFIXED(pd_complex_cast)(to, from)
                                                                        : PD_CASTS[to][from];
    pd_rows r = {.loop = l, .row = row, .size = {d, s}, .wide = {d, s}, .moves = to == from};
    PD_SUFFIXED(pd_rows_run)(&r);
}

PD_CPU_FUNCTION(void, fill, size_t size, const void *value, const pd_loop *l) {
    uint8_t s = (uint8_t)size;
    pd_loop with = *l;
    with.nop = 2;
    with.ptr[1] = (char *)(uintptr_t)value;
    memset(with.stride[1], 0, sizeof with.stride[1]);
    pd_rows r = {.loop = &with, .row = BY_SIZE(move, s), .size = {s, s}, .wide = {s, s}};
    PD_SUFFIXED(pd_rows_run)(&r);
}

typedef struct range_job { pd_dtype t; char *out; double start, step; } range_job;
static void range_part(void *ctx, int64_t begin, int64_t end) {
    const range_job *j = ctx;
    bool whole = !pd_dtype_is_float(j->t);
    int64_t start = whole ? (int64_t)j->start : 0, step = whole ? (int64_t)j->step : 0;
    union { double d[PD_TILE]; int64_t i[PD_TILE]; } tile;
    pd_row cast = PD_CASTS[j->t][whole ? PD_I64 : PD_F64];
    for (int64_t at = begin; at < end; at += PD_TILE) {
        int64_t n = end - at < PD_TILE ? end - at : PD_TILE;
        if (whole) for (int64_t i = 0; i < n; i++) tile.i[i] = start + (at + i) * step;
        else for (int64_t i = 0; i < n; i++) tile.d[i] = j->start + (double)(at + i) * j->step;
        cast(n, 1.0, (char *const[]){j->out + at * (int64_t)pd_dtype_size(j->t), (char *)&tile});
    }
}
PD_CPU_FUNCTION(void, range, pd_dtype t, void *out, int64_t n, double start, double step) {
    range_job j = {t, out, start, step};
    pd_parallel(n, PD_GRAIN, range_part, &j);
}
