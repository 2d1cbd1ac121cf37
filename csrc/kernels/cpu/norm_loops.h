/* The loops of batch and group normalisation: sums of elements about a mean, and the normalisation of each element,
   along a run of one channel (run_*) or down columns that are channels (rows_*). */
#ifndef PD_KERNELS_CPU_NORM_LOOPS_H
#define PD_KERNELS_CPU_NORM_LOOPS_H

#include <math.h>

#include "kernels/cpu/lib/real.h"

#define COLS 128
#define ROW_BLOCK 32 /* rows that are added in T before they are added in double */

typedef enum sum_kind { SUM_X, SUM_SQUARES, SUM_GRADS } sum_kind; /* x; (x - mean)^2; g and g (x - mean) */
typedef enum norm_kind { NORM_TRAIN, NORM_EVAL, NORM_GRAD } norm_kind;

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/norm_loops.inc"
#include "kernels/cpu/lib/each_type.h"

#endif
