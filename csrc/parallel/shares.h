/* Gradients of which each rank has a summand: of leaves that all ranks have, but use for different parts of what comes
   next (a norm's weight between activations that are cut). They wait until the end of backward, where those of one
   dtype are added over the ranks in one message. */
#ifndef PD_PARALLEL_SHARES_H
#define PD_PARALLEL_SHARES_H

#include "autograd/engine.h"
#include "comm/group/group.h"

enum { PD_SHARES_GROUPS = 4 }; /* dimensions of a mesh along which one gradient may have to be added */

/* Whether a leaf's gradient may wait in the backward that runs v: nobody else looks at it, and it is small. */
bool pd_shares_may_wait(const pd_vjp *v, const pd_tensor *leaf);
/* Keeps g, this rank's summand of the leaf's gradient, which is to be added over the groups, one after the other. At
   the end of the backward of this thread the leaf gets the sum. */
pd_status pd_shares_wait(pd_tensor *leaf, pd_tensor *g, pd_group *const *groups, int ngroups, uint64_t site);

#endif
