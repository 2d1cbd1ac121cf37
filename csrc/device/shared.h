/* Memory that several processes map: a memfd, which has no name, so a dead process leaves nothing behind. It is zeroed
   and page-aligned. Its size is sealed, so that nobody can truncate the file under a mapping. */
#ifndef PD_DEVICE_SHARED_H
#define PD_DEVICE_SHARED_H

#include "base/status.h"

/* [new] *ptr, freed by pd_shared_unmap, and *fd, which the caller closes. bytes > 0. If there is not enough memory, it
   is PD_E_MEMORY now and never a signal later. */
pd_status pd_shared_new(size_t bytes, void **ptr, int *fd);
/* The same, of which only what is touched takes memory. If there is none then, the kernel ends a process. */
pd_status pd_shared_new_sparse(size_t bytes, void **ptr, int *fd);
/* [new] *ptr: maps memory that another process has made. PD_E_VALUE: fd is no such memory, or has fewer than
   `bytes`. */
pd_status pd_shared_map(int fd, size_t bytes, void **ptr);
void pd_shared_unmap(void *ptr, size_t bytes);

#endif
