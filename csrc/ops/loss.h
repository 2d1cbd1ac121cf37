/* What the losses over classes share: loss.c computes them from logits, linear_loss.c from the input of the last
   layer. */
#ifndef PD_OPS_LOSS_H
#define PD_OPS_LOSS_H

#include "ops/block.h"

typedef struct pd_loss_attrs { int64_t ignore_index, reduction; double smoothing; } pd_loss_attrs;
enum { PD_LOSS_NONE, PD_LOSS_MEAN, PD_LOSS_SUM };

/* Describes rows [rows, C] of logits with their labels. */
pd_xent pd_loss_rows(int64_t rows, int64_t C, const pd_tensor *target, const pd_tensor *weight, const pd_loss_attrs *a);
/* PD_E_INDEX: the first label out of range. *total, unless NULL, becomes the sum of the weights of the labels that
   count. */
pd_status pd_loss_check_labels(const char *op, pd_dtype t, const pd_xent *s, double *total);
/* The gradient of logits x [R, C], by ops: (softmax(x) * sum(Q) - Q) * factor. Q are the weights of -log p in the
   loss. */
pd_tensor *pd_loss_logits_grad(pd_vjp *v, const pd_loss_attrs *a, pd_tensor *x, pd_tensor *target, pd_tensor *weight,
                               pd_val factor);

#endif
