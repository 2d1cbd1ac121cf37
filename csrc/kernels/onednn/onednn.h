/* oneDNN behind the contract of backend.h (pd_onednn_conv, pd_onednn_gemm). Private to kernels/.

   `takes` says whether the library is there (the first call opens it), supports this type on this processor, and is
   faster than the portable kernels. A failure of the library is PD_E_RUNTIME. A build without oneDNN's headers
   (PD_HAVE_ONEDNN 0) takes nothing. */
#ifndef PD_KERNELS_ONEDNN_H
#define PD_KERNELS_ONEDNN_H

#include "kernels/backend.h"

/* PD_E_MEMORY: since this thread's last call, a plan could not be made for want of memory. Then `takes` may have
   returned false for that reason only, and the scratch may be too small. */
pd_status pd_onednn_check_memory(void);

/* Whether it takes all parts of c, or, if weight is false, all but the weight's gradient. It never takes one part
   alone. */
bool pd_onednn_takes_conv(const pd_conv *c, bool weight);

#endif
