/* What the losses over classes share: loss.c has them on logits, linear_loss.c on what logits are made of. */
#ifndef PD_OPS_LOSS_H
#define PD_OPS_LOSS_H

#include "ops/block.h"

typedef struct pd_loss_attrs { int64_t ignore_index, reduction; double smoothing; } pd_loss_attrs;
enum { PD_LOSS_NONE, PD_LOSS_MEAN, PD_LOSS_SUM };

/* Rows [rows, C] of logits with their labels. */
pd_xent pd_loss_rows(int64_t rows, int64_t C, const pd_tensor *target, const pd_tensor *weight, const pd_loss_attrs *a);
/* PD_E_INDEX for the first label out of range; *total (or NULL): what the weights of the labels that count add up
   to. */
pd_status pd_loss_check_labels(const char *op, pd_dtype t, const pd_xent *s, double *total);
/* The gradient of logits x [R, C], by ops: (softmax(x) * sum(Q) - Q) * factor, Q being the weights of -log p in the
   loss. */
pd_tensor *pd_loss_logits_grad(pd_vjp *v, const pd_loss_attrs *a, pd_tensor *x, pd_tensor *target, pd_tensor *weight,
                               pd_val factor);

#endif
