/* PYDIST_NAN: which op, forward or backward, was the first to make a NaN or an infinity of finite numbers. For bug
   hunting: every tensor is read once more, before and after each op. 1 writes one line, 2 makes the op fail. */
#ifndef PD_AUTOGRAD_NAN_H
#define PD_AUTOGRAD_NAN_H

#include "autograd/op.h"

extern bool pd_nan_armed;
void pd_nan_init(void); /* reads the flag */

/* Of tensors on the CPU; those on other devices count as finite. */
bool pd_nan_has(const pd_tensor *t);    /* a NaN, infinities left aside */
bool pd_nan_finite(const pd_tensor *t); /* also where t is NULL or not floating */
bool pd_nan_inputs_finite(const pd_call *c);
/* "<op>: <what> <index>, ..." of t, which is not finite: a line, once, or a failure. */
pd_status pd_nan_report(const char *what, const char *op, int index, const pd_tensor *t);

#endif
