/* The rows of ternary.def for each type, and the call that runs them. */
#include "kernels/cpu/lib/rows.h"
#include "kernels/vmath.h"

#define ROW(name, E, TYPE, expr) \
    PD_ROW(name##_##E, TYPE, PD_MANY(T, py, 2) PD_MANY(T, pz, 3), T y = py[i]; T z = pz[i];, expr)
/* z, or y and z, are one number each. */
#define CELLS(name, expr)                                                                  \
    PD_ROW(name##_cell, float, PD_MANY(T, py, 2) PD_ONE(T, z, 3), T y = py[i];, expr)      \
    PD_ROW(name##_cells, float, PD_ONE(T, y, 2) PD_ONE(T, z, 3), , expr)
#define ROW_FLOAT(name, expr) ROW(name, F32, float, expr) ROW(name, F64, double, expr) CELLS(name, expr)
#define ROW_ANY(name, expr)                                                                       \
    ROW_FLOAT(name, expr) ROW(name, U8, uint8_t, expr) ROW(name, I8, int8_t, expr)                \
    ROW(name, I16, int16_t, expr) ROW(name, I32, int32_t, expr) ROW(name, I64, int64_t, expr)
#define PD_TERNARY(name, domain, parameters, fwd, ...) ROW_##domain(name, fwd)
#include "kernels/ternary.def"
#undef PD_TERNARY

#define SET_FLOAT(name) [PD_F32] = name##_F32, [PD_F64] = name##_F64,
#define SET_ANY(name)                                                                             \
    SET_FLOAT(name) [PD_BOOL] = name##_U8, [PD_U8] = name##_U8, [PD_I8] = name##_I8,              \
    [PD_I16] = name##_I16, [PD_I32] = name##_I32, [PD_I64] = name##_I64,
static const pd_row rows[PD_TERNARY_COUNT][PD_DTYPE_COUNT] = {
#define PD_TERNARY(name, domain, ...) {SET_##domain(name)},
#include "kernels/ternary.def"
#undef PD_TERNARY
};

static const pd_row cells[PD_TERNARY_COUNT][2] = {
#define PD_TERNARY(name, ...) {name##_cell, name##_cells},
#include "kernels/ternary.def"
#undef PD_TERNARY
};

PD_CPU_FUNCTION(void, ternary, pd_ternary fn, pd_dtype t, double a, const pd_loop *l) {
    pd_dtype c = pd_dtype_computed(t);
    pd_rows r = {.loop = l, .row = rows[fn][c], .a = a};
    if (c == PD_F32) r.cell[0].row = cells[fn][0], r.cell[0].scalars = 8, r.cell[1].row = cells[fn][1],
        r.cell[1].scalars = 12;
    PD_SUFFIXED(pd_rows_convert)(&r, t);
    PD_SUFFIXED(pd_rows_run)(&r);
}
