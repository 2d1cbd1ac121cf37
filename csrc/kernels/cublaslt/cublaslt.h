/* Products on a GPU by cuBLASLt, behind the contract of pd_gemm_run. Private to kernels/: pick.c asks first, and our
   own tiles (csrc/cuda/gemm.cu) serve what it does not.

   What was found out about a shape is kept: descriptors, and the fastest of the algorithms that the library proposes,
   timed at the first call that overwrites C (PYDIST_CUDA_TUNE). */
#ifndef PD_KERNELS_CUBLASLT_H
#define PD_KERNELS_CUBLASLT_H

#include "kernels/kernels.h"

size_t pd_cublaslt_scratch(const pd_gemm *c);
/* *done: whether it was launched. False where the library is not there, or has nothing for this product. sums (or NULL,
   as bias is then): what pd_gemm_with_sums writes. */
pd_status pd_cublaslt_gemm(const pd_gemm *c, const void *A, const void *B, const void *bias, void *sums, void *C,
                           void *scratch, bool *done);

#endif
