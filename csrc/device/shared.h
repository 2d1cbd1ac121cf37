/* Memory that several processes map: a memfd, without a name, so that a dead process leaves nothing. Zeroed,
   page-aligned; its size is sealed, so that nobody can cut the file under a mapping. */
#ifndef PD_DEVICE_SHARED_H
#define PD_DEVICE_SHARED_H

#include "base/status.h"

/* [new] *ptr, given back by pd_shared_unmap, and *fd, closed by the caller. No room: PD_E_MEMORY now, never a signal
   later. bytes > 0. */
pd_status pd_shared_new(size_t bytes, void **ptr, int *fd);
/* [new] *ptr: what another process made. PD_E_VALUE: fd is no such memory, or shorter than `bytes`. */
pd_status pd_shared_map(int fd, size_t bytes, void **ptr);
void pd_shared_unmap(void *ptr, size_t bytes);

#endif
