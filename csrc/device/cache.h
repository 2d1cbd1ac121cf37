/* A device's memory: large pieces taken from the driver, cut up and joined again, because taking and giving back stops
   the device.

   Stream-ordered: a block that is freed goes to the next tensor of the stream that it was made in, whose work comes
   after all that used it there. The pieces (segments) stay until memory runs out or pd_cache_trim. Knows CUDA by
   pd_cuda_library alone. Any thread; the device must be the calling thread's current one. */
#ifndef PD_DEVICE_CACHE_H
#define PD_DEVICE_CACHE_H

#include "device/cuda_library.h"

typedef struct pd_cache_stats {
    int64_t allocated, most_allocated; /* bytes of tensors, rounded up to 512 each */
    int64_t reserved, most_reserved;   /* bytes of segments */
    int64_t segments, retries, failures;
} pd_cache_stats;

typedef struct pd_cache pd_cache;

pd_status pd_cache_new(const pd_cuda_library *lib, const char *device, pd_cache **out);
/* PD_E_MEMORY says what was tried, and what is held by whom. */
pd_status pd_cache_alloc(pd_cache *c, void *stream, size_t bytes, void **out);
void pd_cache_free(pd_cache *c, void *p);
/* Work that `stream` has been given by the time p is freed uses p, too: its memory waits for it. */
pd_status pd_cache_record(pd_cache *c, const void *p, void *stream);
/* The stream is about to go: what waits for it waits for the work that it has now. */
void pd_cache_forget(pd_cache *c, void *stream);

/* Memory of a graph: from begin to end, what `stream` asks for comes from a pool of its own, to which it goes back, and
   which nobody else uses while the pool lives: the graph writes there whenever it is launched. *pool 0: a new one.
   PD_E_RUNTIME where one is open. */
pd_status pd_cache_pool_begin(pd_cache *c, void *stream, int64_t *pool);
void pd_cache_pool_end(pd_cache *c);
void pd_cache_pool_free(pd_cache *c, int64_t pool); /* its free memory is everybody's */

void pd_cache_trim(pd_cache *c); /* gives back segments of which nothing is used */
pd_cache_stats pd_cache_read(pd_cache *c);
void pd_cache_reset_most(pd_cache *c);

#endif
