/* Which instruction sets this processor and PYDIST_ISA allow. */
#ifndef PD_BASE_CPU_H
#define PD_BASE_CPU_H

#include <stdbool.h>

typedef enum pd_isa { PD_ISA_PORTABLE, PD_ISA_AVX2, PD_ISA_AVX512, PD_ISA_COUNT } pd_isa;

pd_isa pd_cpu_isa(void); /* the best one; AVX2 includes FMA and F16C, AVX512 means F, BW, DQ, VL */
bool pd_cpu_has_bf16(void);  /* AVX512-BF16: products of pairs of bf16; implies AVX512 */
bool pd_cpu_has_tiles(void); /* AMX for bf16, and Linux lets this process use it; implies AVX512 */
const char *pd_isa_name(pd_isa isa);

#endif
