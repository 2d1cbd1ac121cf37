/* oneDNN behind the contract of kernels.h. Private to kernels/: pick.c asks takes_* and then calls.

   takes_* say whether the library is there (opening it at the first call), serves this type on this processor, and is
   faster here than the portable kernels. Failures of the library come back as PD_E_RUNTIME. Built without oneDNN's
   headers (PD_HAVE_ONEDNN 0) takes_* are false. */
#ifndef PD_KERNELS_ONEDNN_H
#define PD_KERNELS_ONEDNN_H

#include "kernels/kernels.h"

/* PD_E_MEMORY where a plan could not be made since the last call in this thread: then takes_* said no for that reason
   alone, and the scratch that was asked for may be too small. */
pd_status pd_onednn_check_memory(void);

bool pd_onednn_takes_gemm(const pd_gemm *c, bool bias);
size_t pd_onednn_gemm_scratch(const pd_gemm *c);
pd_status pd_onednn_gemm(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch);

/* weight: its gradient, too. */
bool pd_onednn_takes_conv(const pd_conv *c, bool weight);
size_t pd_onednn_conv_scratch(const pd_conv *c, bool weight);
pd_status pd_onednn_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y,
                                 void *scratch);
pd_status pd_onednn_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch);
pd_status pd_onednn_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *gbias,
                                     void *scratch);

#endif
