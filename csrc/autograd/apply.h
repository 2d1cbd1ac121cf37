/* Running an op: promote, infer, allocate, run, record. Knows no particular op. */
#ifndef PD_AUTOGRAD_APPLY_H
#define PD_AUTOGRAD_APPLY_H

#include "autograd/tape.h"

/* in: nin borrowed tensors by the signature (NULL for a missing optional or an Operand that is a number); attrs: the
   op's struct, NULL for the defaults. out: [new] tensors, *nout of them (NULL where the caller knows). */
pd_status pd_apply(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor **out, int *nout);
/* The same in a vjp; output 0 is made in `destination` (pd_vjp_destination) where that is not NULL and fits. */
pd_status pd_apply_to(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *destination,
                      pd_tensor **out, int *nout);

/* The result is written into `into`: in[0] itself (in place) or another tensor (out=). The dtype must be able to hold
   it. */
pd_status pd_apply_into(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into);

/* Raises unless t may be written: expanded, a leaf that requires grad (in grad mode), a view of one, read-only
   memory. */
pd_status pd_check_writable(const char *op, const pd_tensor *t);

/* The promoted dtype of tensors and scalars (PyTorch's rule: dimensioned tensors, then 0-d tensors, then numbers). */
pd_dtype pd_result_type(pd_tensor *const *in, int nin, const pd_scalar *const *scalars, int nscalars);

extern pd_dtype pd_default_dtype; /* of new floating tensors: F32 */

#endif
