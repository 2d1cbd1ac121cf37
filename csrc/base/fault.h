/* Faults on purpose, for tests: the N-th allocation, send or receive fails (PYDIST_FAULT=malloc:N, send:N, recv:N). */
#ifndef PD_BASE_FAULT_H
#define PD_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum pd_fault { PD_FAULT_MALLOC, PD_FAULT_SEND, PD_FAULT_RECV, PD_FAULTS } pd_fault;

extern const char *const pd_fault_names[PD_FAULTS]; /* "malloc" */
/* Makes the n-th operation of this kind from now on fail (1: the next one); 0: none. Returns how many were counted
   since the last call. */
int64_t pd_fault_set(pd_fault kind, int64_t n);
bool pd_fault_armed(pd_fault kind);
/* Whether this operation has to fail. Costs one relaxed load unless a fault of the kind is set; only then it counts. */
bool pd_fault_now(pd_fault kind);

#endif
