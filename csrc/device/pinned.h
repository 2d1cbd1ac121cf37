/* Pinned memory: memory of the host that GPUs read and write by themselves, so nobody waits for a copy. Freed blocks
   are kept for the next request of their size, and used again only when the copies from and to them are done. */
#ifndef PD_DEVICE_PINNED_H
#define PD_DEVICE_PINNED_H

#include "device/device.h"

typedef struct pd_pinned pd_pinned;

/* [new] PD_E_RUNTIME: there is no GPU. */
pd_status pd_pinned_new(size_t bytes, pd_pinned **out);
void *pd_pinned_data(const pd_pinned *b);
void pd_pinned_drop(void *b);
/* Tells that work which this thread has given to its stream on d, its current device, uses the block. */
pd_status pd_pinned_used(pd_pinned *b, const pd_device *d);

#endif
