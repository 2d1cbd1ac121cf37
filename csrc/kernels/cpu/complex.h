/* The rows of complex.c that elementwise.c uses: for C64 [0] and C128 [1]; NULL: complex.def has no such row. */
#ifndef PD_KERNELS_CPU_COMPLEX_H
#define PD_KERNELS_CPU_COMPLEX_H

#include "kernels/cpu/lib/rows.h"

extern const pd_row PD_SUFFIXED(pd_complex_unary)[PD_UNARY_COUNT][2];
extern const pd_row PD_SUFFIXED(pd_complex_binary)[PD_BINARY_COUNT][2];
extern const pd_row PD_SUFFIXED(pd_complex_compare)[PD_COMPARE_COUNT][2];
/* Casts between a complex dtype and another dtype. */
pd_row PD_SUFFIXED(pd_complex_cast)(pd_dtype to, pd_dtype from);

#endif
