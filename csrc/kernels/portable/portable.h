/* Products of integer matrices, which no backend has (backend.h). */
#ifndef PD_KERNELS_PORTABLE_H
#define PD_KERNELS_PORTABLE_H

#include "kernels/kernels.h"

/* C = A @ B of integers, which wrap around. No bias, relu or beta. */
void pd_portable_gemm_whole(const pd_gemm *s, const void *a, const void *b, void *c);

#endif
