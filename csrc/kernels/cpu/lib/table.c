/* The table of this instruction set. */
#include "kernels/cpu/lib/table.h"

#include "kernels/cpu/lib/isa.h"

const pd_kernels PD_SUFFIXED(pd_cpu_table) = {
#define PD_KERNEL(devices, result, name, ...) PD_ON_CPU_##devices(.name = PD_SUFFIXED(pd_cpu_##name),)
#include "kernels/kernels.def"
#undef PD_KERNEL
};
