/* Declares the library's functions for the table of kernels, each in the file that has its name. */
#ifndef PD_CUDA_TABLE_H
#define PD_CUDA_TABLE_H

#include "cuda/cuda.h"

#define PD_KERNEL(devices, result, name, ...) PD_ON_CUDA_##devices(extern result pd_cuda_##name(__VA_ARGS__);)
#include "kernels/kernels.def"
#undef PD_KERNEL

#endif
