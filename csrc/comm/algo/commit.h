/* Whether a training step that was under way when a rank died has happened.

   Before a rank changes its parameters it waits at a gate until all ranks have the step's gradient. If a rank dies, the
   survivors tell each other how far they are, and all of them decide the same by this function. No survivor needs
   another one's state: if one of them has passed the gate, all of them have the gradient.

   made: how many steps the rank has made. has: it has the gradient of the next one. Let T be the largest `made`. A
   rank with T - 1 is still at the gate of the step that another one has made, so it has the gradient, and makes the
   step. For ranks with T, the step under way has happened if all ranks have T and its gradient; else none makes it. */
#ifndef PD_COMM_COMMIT_H
#define PD_COMM_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct pd_progress {
    int64_t made;
    bool has;
} pd_progress;

/* *make: the rank with own progress `own` makes its step; else it starts the step again. PD_E_DIST: the ranks' progress
   cannot come from such a gate. */
pd_status pd_commit_decide(const pd_progress *all, int n, pd_progress own, bool *make);

#endif
