/* Faults on purpose, for tests: the N-th operation of a kind fails (PYDIST_FAULT=malloc:N). Of files (io/file.h):
   `write` and `nospace` are writes that fail with EIO and ENOSPC, `fsync` and `rename` fail with EIO, and `kill`
   ends the process before its N-th call that changes the disk; `stripe` ends it between two stores of a parameter
   server's update (ps/stripe.c). */
#ifndef PD_BASE_FAULT_H
#define PD_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum pd_fault {
    PD_FAULT_MALLOC,
    PD_FAULT_SEND,
    PD_FAULT_RECV,
    PD_FAULT_WRITE,
    PD_FAULT_NOSPACE,
    PD_FAULT_FSYNC,
    PD_FAULT_RENAME,
    PD_FAULT_KILL,
    PD_FAULT_STRIPE,
    PD_FAULTS
} pd_fault;

extern const char *const pd_fault_names[PD_FAULTS]; /* "malloc" */
/* Makes the n-th operation of this kind from now on fail (1: the next one); 0: none. Returns how many were counted
   since the last call. */
int64_t pd_fault_set(pd_fault kind, int64_t n);
bool pd_fault_armed(pd_fault kind);
/* Whether this operation has to fail. Costs one relaxed load unless a fault of the kind is set; only then it counts. */
bool pd_fault_now(pd_fault kind);
void pd_fault_end_process(pd_fault kind); /* by SIGKILL, if this operation has to fail */

#endif
