/* Runs a row function over a pd_loop.

   The row functions know one contiguous row and nothing else. Everything a loop can be besides (broadcast scalars,
   strides, half floats that compute in float, a last axis too short to be a row) is brought to that form here, through
   tiles of PD_TILE elements on the stack:

       operand          the row function gets
       flat             its own memory
       scalar           a tile filled once with the value; or, of a form for that (cell), the value
       broadcast axis   a tile filled once per row
       strided          a tile gathered, or scattered after the call
       load[k] given    a tile converted (f16, bf16 -> f32)

   In parallel over the linear index; a loop of one tile costs no region. */
#ifndef PD_KERNELS_CPU_LIB_ROWS_H
#define PD_KERNELS_CPU_LIB_ROWS_H

#include "kernels/cpu/lib/isa.h"

/* A row with several numbers: pointwise.def's. */
typedef void (*pd_row_with)(int64_t n, const double *params, char *const *p);

typedef struct pd_rows {
    const pd_loop *loop;
    pd_row row;                       /* or, with parameters: */
    pd_row_with with;
    const double *params;
    struct { pd_row row; unsigned scalars; } cell[2]; /* forms of row for operands (bits) of one value each */
    double a;
    bool moves;                       /* the row only copies: an input without unit stride goes straight to its place */
    int64_t grain;                    /* elements under which it stays serial; 0: PD_GRAIN */
    uint8_t size[PD_MAX_OPERANDS];    /* bytes of an element in memory */
    uint8_t wide[PD_MAX_OPERANDS];    /* and in the row function */
    pd_row load[PD_MAX_OPERANDS];     /* memory -> row function, [0] the other way; NULL: the same */
} pd_rows;

/* A row function of x and others: `before` takes these from p, many or one number (PD_MANY, PD_ONE), `each` element i
   of the many; expr is of a, x and them. */
#define PD_MANY(T, name, k) const T *name = (const T *)p[k];
#define PD_ONE(T, name, k) const T name = *(const T *)p[k]; (void)name;
#define PD_ROW(fn, TYPE, before, each, expr)                    \
    static void fn(int64_t n, double scalar, char *const *p) {  \
        typedef TYPE T;                                         \
        const T a = (T)scalar, *px = (const T *)p[1];           \
        (void)a;                                                \
        T *out = (T *)p[0];                                     \
        before                                                  \
        PD_VECTORIZE for (int64_t i = 0; i < n; i++) {          \
            T x = px[i];                                        \
            each                                                \
            out[i] = (T)(expr);                                 \
        }                                                       \
    }

void PD_SUFFIXED(pd_rows_run)(const pd_rows *r);

#endif
