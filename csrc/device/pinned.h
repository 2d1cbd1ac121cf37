/* Memory of the host that GPUs read by themselves, so that a copy to them need not be waited for. Blocks that are freed
   are kept for the next one of their size, and come back only when the copies out of them are through. */
#ifndef PD_DEVICE_PINNED_H
#define PD_DEVICE_PINNED_H

#include "device/device.h"

typedef struct pd_pinned pd_pinned;

/* [new] PD_E_RUNTIME where there is no GPU. */
pd_status pd_pinned_new(size_t bytes, pd_pinned **out);
void *pd_pinned_data(const pd_pinned *b);
void pd_pinned_drop(void *b);
/* The calling thread's stream on d reads the block by what it has been given so far. */
pd_status pd_pinned_used(pd_pinned *b, const pd_device *d);

#endif
