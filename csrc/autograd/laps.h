/* What the profiler is told of ops and nodes: bytes moved, and shapes where it wants them. Only called while it is
   on. */
#ifndef PD_AUTOGRAD_LAPS_H
#define PD_AUTOGRAD_LAPS_H

#include "autograd/tape.h"
#include "base/profile.h"

void pd_lap_end_op(const pd_lap *s, pd_lap_kind kind, const pd_def *def, pd_tensor *const *in, int nin,
                   pd_tensor *const *out, int nout);
void pd_lap_end_node(const pd_lap *s, const pd_vjp *v); /* after its run */

#endif
