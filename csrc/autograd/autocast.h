/* Mixed precision: PyTorch's autocast in this thread, and the 16-bit copies of parameters.

   In an autocast region a parameter (a float32 leaf that wants a gradient) is cast once, so that all its uses share one
   cast on the tape. The casts are dropped when the outermost region ends. An optimizer's fused step writes a 16-bit
   copy beside the parameter in the same pass over memory, and the next region takes that copy and casts nothing. So do
   norms with their results (beside.h). */
#ifndef PD_AUTOGRAD_AUTOCAST_H
#define PD_AUTOGRAD_AUTOCAST_H

#include "autograd/apply.h"
#include "autograd/beside.h"

/* dtype: PD_NO_DTYPE if autocast is off, as it is inside the ops that it casts for and in backward. cuda: CUDA's list
   of ops holds, else the CPU's (pd_cast in op.h). keep: casts of parameters are kept. kind: autocast is for this kind
   of device (pd_device_kind); -1: for all. */
typedef struct pd_autocast_state { pd_dtype dtype; bool cuda, keep; int kind; } pd_autocast_state;
extern _Thread_local pd_autocast_state pd_autocast;

/* The dtype in which the op computes under autocast; PD_NO_DTYPE: autocast changes nothing. */
pd_dtype pd_autocast_dtype(const pd_op *op, pd_tensor *const *in, int nin);
/* Autocast's dtype for an op that is on no list and looks after its dtypes itself; PD_NO_DTYPE: autocast is off for the
   device of these tensors. */
pd_dtype pd_autocast_for(pd_tensor *const *in, int nin);
/* Whether an op of PD_CAST_FP32_READ computes in float32 from the 16-bit numbers of its first input, which is its only
   floating one. */
bool pd_autocast_reads(const pd_op *op, pd_tensor *const *in, int nin);
/* pd_apply in the dtype t. */
pd_status pd_autocast_apply(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor **out,
                            int *nout, pd_dtype t);
/* [new] x cast to dtype t, recorded on the tape; for a parameter the cast that is kept. */
pd_status pd_autocast_cast(pd_tensor *x, pd_dtype t, pd_tensor **out);
/* For an op that is about to write t, float32, which products under autocast usually read next: makes t's 16-bit
   copy, which the kernel has to write, too, before it calls pd_beside_renew(t). *copy [borrowed from t]; NULL: autocast
   is off for t's device, d. */
pd_status pd_autocast_beside(pd_tensor *t, const pd_device *d, pd_tensor **copy);
/* The gradient of a cast: in the input's dtype, written into its destination if it has one; or as it is, if the op
   before the cast reads 16 bits. */
void pd_cast_vjp(pd_vjp *v);
bool pd_autocast_is_cast(const pd_node *n); /* whether n is a cast, whose gradient may have any dtype */
/* Drops this thread's casts at the end of a region. */
void pd_autocast_clear(void);

/* For a step that is about to write p: where it has to write p's 16-bit copy, and its dtype. *to NULL: no copy, since
   no cast of p was asked for after the last step. */
pd_status pd_autocast_copy_begin(pd_tensor *p, void **to, pd_dtype *t);
/* The step has written the copy, which equals p from now on. */
void pd_autocast_copy_end(pd_tensor *p);

#endif
