/* oneDNN behind the contract of backend.h (pd_onednn_conv, pd_onednn_gemm). Private to kernels/.

   takes says whether the library is there (opening it at the first call), serves this type on this processor, and is
   faster here than the portable kernels. Failures of the library come back as PD_E_RUNTIME. Built without oneDNN's
   headers (PD_HAVE_ONEDNN 0) it takes nothing. */
#ifndef PD_KERNELS_ONEDNN_H
#define PD_KERNELS_ONEDNN_H

#include "kernels/backend.h"

/* PD_E_MEMORY where a plan could not be made since the last call in this thread: then takes said no for that reason
   alone, and the scratch that was asked for may be too small. */
pd_status pd_onednn_check_memory(void);

/* Whether it has all parts of c, or (weight false) all but the weight's gradient: none is taken alone. */
bool pd_onednn_takes_conv(const pd_conv *c, bool weight);

#endif
