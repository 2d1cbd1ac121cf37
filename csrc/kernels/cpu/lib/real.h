/* The small loops of row-wise kernels, for the three types in which kernels compute:

       suffix   T        computes for
       f32      float    F32, F16, BF16
       f64      double   F64
       i64      int64_t  BOOL and the integers

   A template (`name.inc`) is included once for each type by each_type.h. T is the type, V its vector (floats only), ACC
   the type of sums, FN(name) the name with the suffix. */
#ifndef PD_KERNELS_CPU_LIB_REAL_H
#define PD_KERNELS_CPU_LIB_REAL_H

#include "kernels/cpu/lib/isa.h"
#include "kernels/vmath.h"


/* Which of the three types computes for dtype t. */
typedef enum pd_compute { PD_IN_F32, PD_IN_F64, PD_IN_I64 } pd_compute;
static inline pd_compute pd_compute_of(pd_dtype t) {
    return t == PD_F64 ? PD_IN_F64 : t == PD_F32 || t == PD_F16 || t == PD_BF16 ? PD_IN_F32 : PD_IN_I64;
}

/* Calls fn_f64 or fn_f32, whichever computes for t, with a job struct of `family` for that type, made of the fields. */
#define PD_FLOAT_JOB(t, fn, family, ...)                                       \
    do {                                                                       \
        if ((t) == PD_F64) fn##_f64(&(family##_job_f64){__VA_ARGS__});         \
        else fn##_f32(&(family##_job_f32){__VA_ARGS__});                       \
    } while (0)

#define PD_INCLUDED "kernels/cpu/lib/real.inc"
#include "kernels/cpu/lib/each_type.h"

#endif
