/* What a rank tells who asks its process by SIGUSR1: its flight record, to stderr; or to a listener
   "@pydist-doctor-PID" of the process that sent the signal (python -m pydist.doctor --attach), with where it is and for
   whom it waits before the record:

       rank 1 of 4
       on 2                                       its wait is for this rank; -1: it waits for nobody, or for anybody
       it waits since 3.1 s for rank 2 in all_reduce(float32[4], SUM) at train.py:31 (#5)

   On the link's own thread, without the host's lock: a rank that hangs answers too. */
#ifndef PD_COMM_STATUS_REPORT_H
#define PD_COMM_STATUS_REPORT_H

#include "comm/link/link.h"

void pd_status_report(pd_link *link); /* if there was a signal */

#endif
