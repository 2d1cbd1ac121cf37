/* PYDIST_NAN finds the op, forward or backward, that first makes a NaN or an infinity from finite numbers. It is for
   debugging, since it reads every tensor before and after each op. 1 logs one line, 2 makes the op fail. */
#ifndef PD_AUTOGRAD_NAN_H
#define PD_AUTOGRAD_NAN_H

#include "autograd/op.h"

extern bool pd_nan_armed;
void pd_nan_init(void); /* reads the flag */

/* These look at tensors on the CPU only; others count as finite. */
bool pd_nan_has(const pd_tensor *t);    /* whether t has a NaN */
bool pd_nan_finite(const pd_tensor *t); /* true also if t is NULL or not floating */
bool pd_nan_inputs_finite(const pd_call *c);
/* Reports t, which is not finite, as "<op>: <what> <index>, ...": logs a line once, or fails. */
pd_status pd_nan_report(const char *what, const char *op, int index, const pd_tensor *t);

#endif
