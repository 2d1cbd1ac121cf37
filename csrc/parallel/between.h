/* Carries a group's works on between the kernels of this thread, until none is left. They move only when their ranks
   call in, and a rank that computes for long would keep its peers waiting. */
#ifndef PD_PARALLEL_BETWEEN_H
#define PD_PARALLEL_BETWEEN_H

#include "comm/group/group.h"

void pd_between_begin(pd_group *g); /* works have been queued */
void pd_between_end(void);          /* some have been waited for */

#endif
