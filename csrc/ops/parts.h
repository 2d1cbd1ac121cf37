/* Views in another dtype: complex numbers as pairs of their parts, and back. */
#ifndef PD_OPS_PARTS_H
#define PD_OPS_PARTS_H

#include "ops/ops.h"

/* A view of t with dtype and geometry of `like`, a view of the same memory. PD_E_NOTIMPL unless one of the dtypes is
   complex and the other one that of its parts. */
pd_status pd_parts_strided(pd_tensor *t, const pd_tensor *like, pd_tensor **out);
/* A view of part 0 (real) or 1 (imaginary) of complex t; NULL if v has failed. */
pd_tensor *pd_x_part(pd_vjp *v, pd_tensor *t, int64_t part);

#endif
