/* A device's memory. It takes large segments from the driver, cuts them into blocks and joins those again, because
   every allocation of the driver's stops the device.

   Stream-ordered: a freed block goes to the next tensor of its own stream, whose work runs after all work of that
   stream which used the block. Segments are kept until memory runs out or pd_cache_trim is called. Uses CUDA only
   through pd_cuda_library. Any thread may call; to allocate, its current device must be this one.

   A graph has a pool of memory. While a pool is open, streams that are being captured allocate from it, each from its
   own part, and freed blocks go back there. Nobody else uses the pool while it lives, since the graph writes there
   whenever it is launched. While a pool is open the cache never waits for the device, which would break the capture:
   if memory runs out, the allocation fails at once. */
#ifndef PD_DEVICE_CACHE_H
#define PD_DEVICE_CACHE_H

#include "device/cuda_library.h"

typedef struct pd_cache_stats {
    int64_t allocated, most_allocated; /* bytes of tensors, each rounded up to 512 */
    int64_t reserved, most_reserved;   /* bytes of segments */
    int64_t segments, retries, failures;
} pd_cache_stats;

typedef struct pd_cache pd_cache;

/* [borrowed] device: the name of device `index`. */
pd_status pd_cache_new(const pd_cuda_library *lib, int index, const char *device, pd_cache **out);
/* PD_E_MEMORY says what was tried and how the memory is used. */
pd_status pd_cache_alloc(pd_cache *c, void *stream, size_t bytes, void **out);
void pd_cache_free(pd_cache *c, void *p);
/* Another stream uses p, too. When p is freed, its memory is not used again until that stream's work so far is done. */
pd_status pd_cache_record(pd_cache *c, const void *p, void *stream);

/* *pool 0: a new pool. PD_E_RUNTIME: one is open. */
pd_status pd_cache_pool_begin(pd_cache *c, int64_t *pool);
/* After the capture. PD_E_MEMORY: some memory of a pool is lost. */
pd_status pd_cache_pool_end(pd_cache *c);
bool pd_cache_pool_is_open(pd_cache *c);
/* Anybody may use its free memory from now on, after the work so far of `streams`, where its graphs were launched. */
pd_status pd_cache_pool_free(pd_cache *c, int64_t pool, void *const *streams, int n);

void pd_cache_trim(pd_cache *c); /* gives unused segments back to the driver, unless a pool is open */
void pd_cache_lock(pd_cache *c); /* around a fork, so that no other thread is changing the cache */
void pd_cache_unlock(pd_cache *c);
pd_cache_stats pd_cache_read(pd_cache *c);
void pd_cache_reset_most(pd_cache *c);

#endif
