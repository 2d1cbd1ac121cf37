/* Tells the profiler about ops and nodes (bytes moved, and shapes if it wants them), and the recorder of programs about
   ops. Only called while one of them is on. */
#ifndef PD_AUTOGRAD_SPANS_H
#define PD_AUTOGRAD_SPANS_H

#include "autograd/tape.h"
#include "base/profile.h"

/* kind: PD_SPAN_OP, or PD_SPAN_INPLACE if the op has written out[0], which was there before. */
void pd_timespan_end_op(const pd_timespan *s, pd_timespan_kind kind, const pd_def *def, const void *attrs,
                        pd_tensor *const *in, int nin, pd_tensor *const *out, int nout);
void pd_timespan_end_node(const pd_timespan *s, const pd_vjp *v); /* after its run */

#endif
