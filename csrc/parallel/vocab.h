/* Cross entropy over ranks that have the classes of a vocabulary between them. A rank has columns [first, first +
   columns) of the logits, in the order of the ranks, and all targets and weights.

   A rank finds three numbers for each row in its columns, or four with label smoothing: the largest logit, the sum of
   exp(x - largest), the target's logit, and the weighted sum of all. One all_gather brings them to all ranks, and each
   combines them in the order of the ranks, so all have the same bits. The logits stay where they are. The gradient of a
   rank's columns needs no message. Losses and gradients are computed in float32, or float64 for float64.

   The message also has a hash of the targets and options, and the columns: if they do not fit together, all ranks fail
   with PD_E_VALUE. A target that is out of range is PD_E_INDEX, on all ranks. For the CPU. */
#ifndef PD_PARALLEL_VOCAB_H
#define PD_PARALLEL_VOCAB_H

#include "comm/group/group.h"
#include "ops/loss.h"

typedef struct pd_vocab_loss {
    pd_tensor *logits, *target, *weight; /* [rows, columns], [rows] int64, [classes] or NULL */
    int64_t first, classes;
    pd_loss_attrs loss;
} pd_vocab_loss;

/* *loss: [new] a scalar, or [rows] without a reduction, in the logits' dtype, or float32 where autocast wants that.
   *stats: [new] what the gradient needs. *total: what a mean has divided by. All ranks call it together. */
pd_status pd_vocab_loss_run(const pd_vocab_loss *v, pd_group *g, uint64_t site, pd_tensor **loss, pd_tensor **stats,
                            double *total);
/* *gx: [new] the gradient of the logits, from that of the loss. */
pd_status pd_vocab_loss_grad(const pd_vocab_loss *v, pd_tensor *stats, double total, pd_tensor *g, pd_tensor **gx);

#endif
