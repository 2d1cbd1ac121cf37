/* The handles of pd_transport_inproc are counted blocks; the hub's store counts those that it keeps and passes on. */
#ifndef PD_COMM_INPROC_H
#define PD_COMM_INPROC_H

#include <stdint.h>

intptr_t pd_inproc_dup(intptr_t handle);
void pd_inproc_drop(intptr_t handle);

#endif
