/* Complex numbers, as pairs of floats, for functions of the table that take complex dtypes besides real ones. */
#ifndef PD_CUDA_COMPLEX_H
#define PD_CUDA_COMPLEX_H

#include "cuda/cuda.h"

void pd_cuda_complex_unary(pd_unary fn, pd_dtype t, const pd_loop *l);
void pd_cuda_complex_binary(pd_binary fn, pd_dtype t, double a, const pd_loop *l);
void pd_cuda_complex_compare(pd_compare fn, pd_dtype t, const pd_loop *l);
void pd_cuda_complex_cast(pd_dtype to, pd_dtype from, const pd_loop *l); /* at least one of them complex */

#endif
