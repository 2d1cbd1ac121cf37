/* Runs a row function over a pd_loop.

   A row function takes one contiguous row and knows nothing else. This file turns everything else that a loop can be
   (broadcast scalars, strides, 16-bit floats that compute in float, a last axis too short for a row) into such rows,
   through tiles of PD_TILE elements on the stack:

       operand          the row function gets
       flat             its own memory
       scalar           a tile filled once with the value; or the value, if the row has a form for it (cell)
       broadcast axis   a tile filled once per row
       strided          a tile gathered, or scattered after the call
       load[k] given    a converted tile (f16, bf16 -> f32)

   The loop runs in parallel over the linear index; a loop of one tile starts no parallel region. */
#ifndef PD_KERNELS_CPU_LIB_ROWS_H
#define PD_KERNELS_CPU_LIB_ROWS_H

#include "kernels/cpu/lib/isa.h"

/* A row function with several numbers, for pointwise.def. */
typedef void (*pd_row_with)(int64_t n, const double *params, char *const *p);

typedef struct pd_rows {
    const pd_loop *loop;
    pd_row row;                       /* or, with parameters: */
    pd_row_with with;
    const double *params;
    struct { pd_row row; unsigned scalars; } cell[2]; /* forms of row in which these operands (bits) are one value */
    double a;
    bool moves;                       /* the row only copies, so a strided input is copied directly */
    int64_t grain;                    /* a loop over fewer elements is serial; 0: PD_GRAIN */
    uint8_t size[PD_MAX_OPERANDS];    /* bytes of an element in memory */
    uint8_t wide[PD_MAX_OPERANDS];    /* bytes of an element in the row function */
    pd_row load[PD_MAX_OPERANDS];     /* converts from memory to the row's type, [0] back; NULL: the types are equal */
} pd_rows;

/* Defines a row function of x and other operands. `before` declares the others from p, an array (PD_MANY) or one value
   (PD_ONE); `each` takes element i of the arrays; expr is an expression of a, x and the others. */
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

/* Sets size, wide and load for rows that compute a call for dtype t. */
void PD_SUFFIXED(pd_rows_convert)(pd_rows *r, pd_dtype t);
void PD_SUFFIXED(pd_rows_run)(const pd_rows *r);

#endif
