/* Mixed precision: PyTorch's autocast in this thread, and the 16-bit copies of parameters.

   A parameter (a float32 leaf that wants a gradient) is cast once in a region, so that all its uses share one cast on
   the tape; the casts go when the outermost region ends. Where an optimizer's fused step follows, it writes the 16-bit
   copy beside the parameter in the same pass over memory, and the next region takes that: nothing is cast then. The
   copy stands for the parameter as long as nobody has written either; memory that others may write unseen (NumPy, other
   processes) has none. */
#ifndef PD_AUTOGRAD_AUTOCAST_H
#define PD_AUTOGRAD_AUTOCAST_H

#include "autograd/apply.h"

/* dtype PD_NO_DTYPE where it is off; whose list of ops holds (pd_cast in op.h); whether casts of parameters are kept;
   on which kind of device (pd_device_kind), -1: wherever tensors lie. It is off inside the ops that it casts for and in
   backward. */
typedef struct pd_autocast_state { pd_dtype dtype; bool cuda, keep; int kind; } pd_autocast_state;
extern _Thread_local pd_autocast_state pd_autocast;

/* The dtype that the op computes in under autocast; PD_NO_DTYPE: as it is. */
pd_dtype pd_autocast_dtype(const pd_op *op, pd_tensor *const *in, int nin);
/* pd_apply in that dtype. */
pd_status pd_autocast_apply(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor **out,
                            int *nout, pd_dtype t);
/* x in dtype t, recorded; a parameter's from what is kept. [new] */
pd_status pd_autocast_cast(pd_tensor *x, pd_dtype t, pd_tensor **out);
/* The gradient of a cast: in the input's dtype, made where DDP wants it. */
void pd_cast_vjp(pd_vjp *v);
bool pd_autocast_is_cast(const pd_node *n); /* one with that gradient, which takes a gradient of any dtype */
/* Forgets this thread's casts: a region has ended. */
void pd_autocast_clear(void);

/* For a step that writes p: where it may put p's 16-bit copy, and its dtype; *to NULL: nobody has asked since the last
   step. */
pd_status pd_autocast_copy_begin(pd_tensor *p, void **to, pd_dtype *t);
/* The copy is p's value now. */
void pd_autocast_copy_end(pd_tensor *p);

#endif
