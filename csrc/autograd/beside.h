/* What a pass over memory that writes a tensor has made of it besides: a copy in 16 bits, and of a gradient the sums of
   its columns. Who needs one of them next takes it, and saves a pass. They are the tensor's (pd_low in tape.h) and are
   valid until the tensor or the copy is written, which the counters of writes show. Memory that others may write unseen
   (NumPy, other processes) has none. */
#ifndef PD_AUTOGRAD_BESIDE_H
#define PD_AUTOGRAD_BESIDE_H

#include "autograd/tape.h"

/* Keeps a copy of x, or sums (float32 [n] of x [..., n]), or both; NULL: none. Both are borrowed. They equal x now. */
pd_status pd_beside_set(pd_tensor *x, pd_tensor *copy, pd_tensor *sums);
void pd_beside_drop(pd_tensor *x);
/* Says that the copy, which has been there, equals x from now on. */
void pd_beside_renew(pd_tensor *x);
/* [borrowed from x] NULL: there is none that is valid. */
pd_tensor *pd_beside_copy(const pd_tensor *x, pd_dtype t);
pd_tensor *pd_beside_sums(const pd_tensor *x);
/* [new] the copy, which x no longer has. NULL: as above. */
pd_tensor *pd_beside_take(pd_tensor *x, pd_dtype t);

#endif
