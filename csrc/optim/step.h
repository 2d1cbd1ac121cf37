/* Optimizer steps on lists of tensors: checks, then one kernel call for the whole list. */
#ifndef PD_OPTIM_STEP_H
#define PD_OPTIM_STEP_H

#include "autograd/tape.h"
#include "kernels/exact.h"
#include "kernels/kernels.h"

/* Lists of `count` tensors each. All have one dtype, and those at one index have one shape. A list
   that the method does not use is NULL. Any strides will do: the step walks the parameter's memory and copies tensors
   whose order differs. If a check fails, nothing is written. chance: as in pd_segment_step. numbers: how each
   parameter's elements count; NULL: through the list. The step also writes the 16-bit copies of parameters that
   autocast wants (autocast.h).

   On a GPU the kernel may read some numbers from the GPU's memory, so that each replay of a graph sees their new
   values: F32 tensors of one element; NULL: the method's struct has the number. */
typedef struct pd_step_lists {
    pd_tensor *const *params, *const *m, *const *v, *const *w;
    pd_tensor *const *grads; /* NULL: those of the parameters */
    int64_t count;
    uint64_t chance;
    const pd_numbering *numbers;
    pd_tensor *skip;   /* if not 0, the step changes nothing (the loss scaler found infinities) */
    pd_tensor *lr;
    pd_tensor *step;   /* the number of earlier steps; this one adds 1 */
    pd_tensor *own[2]; /* NAdam's mu_product, ASGD's eta and mu; the step updates them */
    /* Tensors of one element that the host reads when the step begins, in the place of the method's numbers: the
       learning rate, the number of earlier steps, NAdam's mu_product. NULL: the struct has it. */
    pd_tensor *now[3];
} pd_step_lists;

pd_status pd_step_sgd(const pd_step_lists *l, const pd_sgd *c);
pd_status pd_step_adam(const pd_step_lists *l, const pd_adam *c); /* steps count from 1 */
pd_status pd_step_adadelta(const pd_step_lists *l, const pd_adadelta *c);
pd_status pd_step_rmsprop(const pd_step_lists *l,
                          const pd_rmsprop *c); /* m if momentum is not 0, w if centered */
pd_status pd_step_adagrad(const pd_step_lists *l, const pd_adagrad *c);
pd_status pd_step_moments(const pd_step_lists *l, const pd_moments *c);
pd_status pd_step_adamax(const pd_step_lists *l, const pd_adamax *c);
pd_status pd_step_asgd(const pd_step_lists *l, const pd_asgd *c);
pd_status pd_step_rprop(const pd_step_lists *l, const pd_rprop *c);
pd_status pd_step_lion(const pd_step_lists *l, const pd_lion *c);

/* [new] float64 [count] on the tensors' device: the sum of each tensor's squares, on a CPU rounded once, on a GPU added
   in a fixed order. The tensors are floating, of any dtypes, on one device. */
pd_status pd_sums_of_squares(pd_tensor *const *tensors, int64_t count, pd_tensor **out);

/* [new] int64 [PD_EXACT]: the exact sum of `more` and all tensors' squares (kernels/exact.h). The tensors are floating,
   of any dtypes, on the CPU. */
pd_status pd_exact_squares(pd_tensor *const *tensors, int64_t count, double more, pd_tensor **out);

/* Multiplies floating tensors in place in one pass over memory. *finite: whether all elements were finite. */
pd_status pd_scale_tensors(pd_tensor *const *tensors, int64_t count, double by, bool *finite);

/* Multiplies floating tensors of a GPU by by's one element. found's element becomes 1 if an element was not finite.
   Both are F32 on the tensors' device. Does not wait. */
pd_status pd_unscale(pd_tensor *const *tensors, int64_t count, pd_tensor *by, pd_tensor *found);
/* The check before every write (tensor/storage.h) for a parameter, if it has a gradient. PD_E_RUNTIME: a step must not
   write it. Call it for all parameters before the first one is written. */
static inline pd_status pd_step_ask_to_write(const char *op, const pd_tensor *param) {
    const pd_meta *m = param->meta;
    if (m && m->destination.owner && m->destination.owner->elsewhere)
        return pd_fail(PD_E_RUNTIME,
                       "%s: parameter %s is sharded now, and the optimizer has what it was before (expected an "
                       "optimizer that is made after fully_shard)",
                       op, m->destination.owner->leaf);
    return m && m->grad ? pd_storage_before_write(op, param->storage) : PD_OK;
}
/* Drops .grad of each parameter (set_to_none) or fills it with zeros. */
pd_status pd_zero_grads(pd_tensor *const *params, int64_t count, bool set_to_none);

#endif
