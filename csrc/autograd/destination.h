/* Where a leaf's gradient lies, and who owns that place.

   The owner of a leaf's gradient gives a view. Backward writes the gradient there, and .grad is the view itself. A
   leaf has at most one owner at a time: a bucket of DistributedDataParallel (parallel/) today; partial sums, shards and
   parameter servers may be others. Who wants to be the next one calls pd_grad_take: the owner is asked to hand the
   gradient over, and may refuse. A value that .grad has by then stays in the old view; the new owner brings it along.
   Called with the host's lock, while no backward writes this gradient. */
#ifndef PD_AUTOGRAD_DESTINATION_H
#define PD_AUTOGRAD_DESTINATION_H

#include "tensor/tensor.h"

/* One per leaf, in memory of the owner's that lives until pd_grad_give_up. */
typedef struct pd_grad_owner {
    const char *name; /* of the kind: "DistributedDataParallel" */
    const char *leaf; /* what the owner calls the leaf: "encoder.weight" */
    /* Another owner wants the leaf: PD_OK hands it over (this owner has it no more); NULL: always refused. */
    pd_status (*hand_over)(void *ctx, pd_tensor *leaf);
    void *ctx;
} pd_grad_owner;

typedef struct pd_grad_destination {
    const pd_grad_owner *owner; /* NULL: nobody, .grad has memory of its own */
    pd_tensor *view;            /* [strong] NULL exactly where owner is */
} pd_grad_destination;

/* The gradient of leaf belongs to `owner` from now on, and lies in view, which has the leaf's dtype, device and shape.
   PD_E_VALUE, which names both, where another owner refuses to hand it over; nothing has changed then. */
pd_status pd_grad_take(pd_tensor *leaf, const pd_grad_owner *owner, pd_tensor *view);
/* Ends that; nothing is done where the leaf belongs to somebody else by now. .grad stays as it is. */
void pd_grad_give_up(pd_tensor *leaf, const pd_grad_owner *owner);

#endif
