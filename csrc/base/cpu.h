/* Which instruction sets this processor and PYDIST_ISA allow. */
#ifndef PD_BASE_CPU_H
#define PD_BASE_CPU_H

#include <stdbool.h>

typedef enum pd_isa { PD_ISA_PORTABLE, PD_ISA_AVX2, PD_ISA_AVX512, PD_ISA_COUNT } pd_isa;

pd_isa pd_cpu_isa(void); /* the highest usable one; AVX2 means with FMA and F16C, AVX512 means F, BW, DQ, VL */
bool pd_cpu_has_bf16(void);  /* with AVX512 alone: products of pairs of bf16 in vectors (AVX512-BF16) */
bool pd_cpu_has_tiles(void); /* with AVX512 alone: AMX for bf16, and the system lets us use it */
const char *pd_isa_name(pd_isa isa);

#endif
