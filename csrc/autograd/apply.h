/* Runs an op: promotes dtypes, infers shapes, allocates, calls the kernel, records a node. Knows no particular op. */
#ifndef PD_AUTOGRAD_APPLY_H
#define PD_AUTOGRAD_APPLY_H

#include "autograd/tape.h"

/* in: nin borrowed tensors in the order of the signature; NULL for an optional one that is missing and for an Operand
   that is a number. attrs: the op's struct, or NULL for the defaults. out: [new] tensors; *nout: how many, or NULL if
   the caller knows. */
pd_status pd_apply(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor **out, int *nout);
/* pd_apply for a vjp: makes output 0 in `destination` (pd_vjp_destination) if that is not NULL and fits. */
pd_status pd_apply_to(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *destination,
                      pd_tensor **out, int *nout);

/* pd_apply that writes the result into `into`, which is in[0] itself (in place) or another tensor (out=). The dtype of
   `into` must be able to hold it. */
pd_status pd_apply_into(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into);

/* Fails if t must not be written: t is expanded, is a leaf that requires grad (in grad mode) or a view of one, or its
   memory is read-only. */
pd_status pd_check_writable(const char *op, const pd_tensor *t);

/* The promoted dtype of tensors and scalars (PyTorch's rule: dimensioned tensors, then 0-d tensors, then numbers). */
pd_dtype pd_result_type(pd_tensor *const *in, int nin, const pd_scalar *const *scalars, int nscalars);

/* Runs an op that has parts of spread tensors (tensor/spread.h) among its inputs: parallel/spread.h. `into`: as in
   pd_apply_into, or NULL. While pd_parts_are_plain is true in a thread, parts are plain tensors for its ops: in
   backward, and where the host works on parts. */
extern pd_status (*pd_spread_call)(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into,
                                   pd_tensor **out, int *nout);
extern _Thread_local bool pd_parts_are_plain;

/* This thread's selective checkpoint (py/autograd/selected.c); NULL: there is none. Called for an op with a kernel:
   once its results have their shapes, where it may set the storages of all and *have, and the kernel does not run; and
   after the kernel, with have NULL. */
extern _Thread_local pd_status (*pd_selecting)(pd_call *c, bool *have);

/* NULL, or is called before each kernel of this thread, for what moves only when its ranks call in
   (parallel/between.h). */
extern _Thread_local void (*pd_between_kernels)(void);

extern pd_dtype pd_default_dtype; /* of new floating tensors: F32 */

#endif
