/* A device's memory. It takes large segments from the driver, cuts them into blocks and joins those again, because
   every allocation of the driver's stops the device.

   Stream-ordered: a freed block goes to the next tensor of its own stream, whose work runs after all work of that
   stream which used the block. Segments are kept until memory runs out or pd_cache_trim is called. Uses CUDA only
   through pd_cuda_library. Any thread may call; its current device must be this one. */
#ifndef PD_DEVICE_CACHE_H
#define PD_DEVICE_CACHE_H

#include "device/cuda_library.h"

typedef struct pd_cache_stats {
    int64_t allocated, most_allocated; /* bytes of tensors, each rounded up to 512 */
    int64_t reserved, most_reserved;   /* bytes of segments */
    int64_t segments, retries, failures;
} pd_cache_stats;

typedef struct pd_cache pd_cache;

pd_status pd_cache_new(const pd_cuda_library *lib, const char *device, pd_cache **out);
/* PD_E_MEMORY says what was tried and how the memory is used. */
pd_status pd_cache_alloc(pd_cache *c, void *stream, size_t bytes, void **out);
void pd_cache_free(pd_cache *c, void *p);
/* Another stream uses p, too. When p is freed, its memory is not used again until that stream's work so far is done. */
pd_status pd_cache_record(pd_cache *c, const void *p, void *stream);
/* The stream is about to be destroyed: blocks that wait for it wait for its work so far. */
void pd_cache_forget(pd_cache *c, void *stream);

/* Memory of a graph: between begin and end, the memory of `stream` comes from a pool of its own and goes back there.
   Nobody else uses it while the pool lives, since the graph writes there whenever it is launched. *pool 0: a new pool.
   PD_E_RUNTIME: one is open. */
pd_status pd_cache_pool_begin(pd_cache *c, void *stream, int64_t *pool);
void pd_cache_pool_end(pd_cache *c);
void pd_cache_pool_free(pd_cache *c, int64_t pool); /* anybody may use its free memory now */

void pd_cache_trim(pd_cache *c); /* gives unused segments back to the driver */
pd_cache_stats pd_cache_read(pd_cache *c);
void pd_cache_reset_most(pd_cache *c);

#endif
