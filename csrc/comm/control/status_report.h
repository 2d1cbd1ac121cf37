/* A rank whose process gets SIGUSR1 writes its flight record to stderr. If the process that sent the signal listens at
   "@pydist-doctor-PID" (python -m pydist.doctor --attach), the rank writes a report to it instead: where the rank is,
   for whom it waits, then the record, and what the program has to say (calls by rpc):

       rank 1 of 4
       on 2                                       its wait is for this rank; -1: it waits for nobody, or for anybody
       it has been waiting 3.1 s for rank 2 in all_reduce(float32[4], SUM) at train.py:31 (#5)

   The link's own thread does it, without the host's lock, so a rank that hangs answers, too. */
#ifndef PD_COMM_STATUS_REPORT_H
#define PD_COMM_STATUS_REPORT_H

#include "comm/link/link.h"

void pd_status_report(pd_link *link); /* does nothing without a signal */

#endif
