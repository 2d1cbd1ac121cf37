/* The tables of kernels, one for each instruction set that kernels/cpu is compiled for; pick.c chooses one. */
#ifndef PD_KERNELS_CPU_LIB_TABLE_H
#define PD_KERNELS_CPU_LIB_TABLE_H

#include "kernels/kernels.h"

extern const pd_kernels pd_cpu_table_portable;
#if defined(__x86_64__)
extern const pd_kernels pd_cpu_table_avx2, pd_cpu_table_avx512;
#endif

#endif
