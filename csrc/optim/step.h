/* Optimizer steps on tensors: checks, then one kernel call for the whole list. */
#ifndef PD_OPTIM_STEP_H
#define PD_OPTIM_STEP_H

#include "autograd/tape.h"
#include "kernels/kernels.h"

/* Parallel lists of count tensors, all of one dtype and, by entry, of one shape. grads come from the parameters. Lists
   that the method does not use are NULL. All may lie in memory in any order: the step runs over the parameter's, with a
   copy of what differs from it. Nothing is written where a check fails. chance: pd_segment_step's. What
   autocast casts is written in 16 bits as well (autocast.h).

   On a GPU the kernel may read numbers where the parameters lie, in each replay of a graph, too: one F32 each, NULL:
   the method's struct has it. */
typedef struct pd_step_lists {
    pd_tensor *const *params, *const *m, *const *v, *const *w;
    int64_t count;
    uint64_t chance;
    pd_tensor *skip;   /* the step changes nothing where this is not 0 (the loss scaler found infinities) */
    pd_tensor *lr;
    pd_tensor *step;   /* the number of steps so far, to which this one adds itself */
    pd_tensor *own[2]; /* NAdam's mu_product, ASGD's eta and mu, which the step brings up to date */
} pd_step_lists;

pd_status pd_step_sgd(const pd_step_lists *l, const pd_sgd *c);
pd_status pd_step_adam(const pd_step_lists *l, const pd_adam *c); /* step counts from 1, in Adagrad and Adamax, too */
pd_status pd_step_adadelta(const pd_step_lists *l, const pd_adadelta *c);
pd_status pd_step_rmsprop(const pd_step_lists *l,
                          const pd_rmsprop *c); /* m where momentum is not 0, w where centered */
pd_status pd_step_adagrad(const pd_step_lists *l, const pd_adagrad *c);
pd_status pd_step_moments(const pd_step_lists *l, const pd_moments *c);
pd_status pd_step_adamax(const pd_step_lists *l, const pd_adamax *c);
pd_status pd_step_asgd(const pd_step_lists *l, const pd_asgd *c);
pd_status pd_step_rprop(const pd_step_lists *l, const pd_rprop *c);
pd_status pd_step_lion(const pd_step_lists *l, const pd_lion *c);

/* [new] float64 [count]: the sum of each one's squares, in a fixed order, where they lie; floating tensors of any
   dtypes, on one device. */
pd_status pd_sums_of_squares(pd_tensor *const *tensors, int64_t count, pd_tensor **out);

/* Multiplies floating tensors in place, one pass over memory; *finite: whether all elements were. */
pd_status pd_scale_tensors(pd_tensor *const *tensors, int64_t count, double by, bool *finite);

/* Floating tensors of a GPU times by's one element; found's becomes 1 where an element was not finite. Both F32,
   of the tensors' device. Nothing is waited for. */
pd_status pd_unscale(pd_tensor *const *tensors, int64_t count, pd_tensor *by, pd_tensor *found);
/* The check before every write (tensor/storage.h), for a parameter if it has a gradient: PD_E_RUNTIME where a step may
   not write it. To be asked of all parameters before the first one is written. */
static inline pd_status pd_step_ask_to_write(const char *op, const pd_tensor *param) {
    return param->meta && param->meta->grad ? pd_storage_before_write(op, param->storage) : PD_OK;
}
/* .grad of each is dropped (set_to_none) or filled with zeros. */
pd_status pd_zero_grads(pd_tensor *const *params, int64_t count, bool set_to_none);

#endif
