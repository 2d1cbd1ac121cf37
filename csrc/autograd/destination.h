/* Where a leaf's gradient lies, and who owns that place.

   The owner of a leaf's gradient gives a view. Backward writes the gradient there, and .grad is the view itself. A leaf
   has at most one owner at a time. Today that is a bucket of DistributedDataParallel (parallel/); partial sums, shards
   and parameter servers may follow. The next owner calls pd_grad_take, which asks the current one to hand the gradient
   over; it may refuse. A value in .grad stays in the old view, and the new owner copies it. These functions are called
   with the host's lock held, while no backward writes this gradient. */
#ifndef PD_AUTOGRAD_DESTINATION_H
#define PD_AUTOGRAD_DESTINATION_H

#include "tensor/tensor.h"

/* One for each leaf, in memory of the owner that lives until pd_grad_give_up. */
typedef struct pd_grad_owner {
    const char *name; /* what kind of owner: "DistributedDataParallel" */
    const char *leaf; /* what the owner calls the leaf: "encoder.weight" */
    /* Another owner wants the leaf. PD_OK: this owner gives it up. NULL: it always refuses. */
    pd_status (*hand_over)(void *ctx, pd_tensor *leaf);
    void *ctx;
    bool elsewhere; /* optimizers step another tensor in the leaf's place: its shard */
    bool lends;     /* on the CPU: while the leaf has no .grad, nobody else reads or writes the view */
} pd_grad_owner;

typedef struct pd_grad_destination {
    const pd_grad_owner *owner; /* NULL: nobody, .grad has memory of its own */
    pd_tensor *view;            /* [strong] NULL: .grad has memory of its own, which the owner may read */
    pd_storage *ahead;          /* [strong] the view's memory for pd_grad_make_ahead; NULL: it was not called */
} pd_grad_destination;

/* From now on the leaf's gradient belongs to `owner` and lies in view, which has the leaf's dtype, device and shape, or
   is NULL: anywhere. The owner may call this again with another view.
   PD_E_VALUE: the current owner refuses; the text names both owners, and nothing has changed. */
pd_status pd_grad_take(pd_tensor *leaf, const pd_grad_owner *owner, pd_tensor *view);
/* Ends the ownership, unless the leaf belongs to another owner by now. .grad stays as it is. */
void pd_grad_give_up(pd_tensor *leaf, const pd_grad_owner *owner);

/* [new] unwritten memory for the gradient of a leaf, which a forward makes: the destination's, so that backward need
   not copy. *out NULL: that is not lent, or an earlier forward has it. */
pd_status pd_grad_make_ahead(pd_tensor *leaf, pd_tensor **out);
/* Whether somebody but g has what pd_grad_make_ahead has made, in the destination's memory. */
bool pd_grad_is_ahead(const pd_grad_destination *d, const pd_tensor *g);
/* Before somebody else writes there: moves what pd_grad_is_ahead tells of to memory of its own, and keeps the view's
   values. */
pd_status pd_grad_clear(pd_grad_destination *d, const pd_tensor *g);

#endif
