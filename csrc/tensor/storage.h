/* Refcounted bytes on a device. Owns the memory and the version that all its views share by default. */
#ifndef PD_TENSOR_STORAGE_H
#define PD_TENSOR_STORAGE_H

#include <stdatomic.h>

#include "device/device.h"

typedef struct pd_storage {
    atomic_int_fast64_t refs;
    void *data;
    size_t bytes;
    const pd_device *device;
    atomic_uint version;       /* bumped by in-place ops, but for those on `.data` */
    atomic_uint writes;        /* bumped by all of them */
    bool lent;                 /* a buffer or DLPack capsule was given out: others may write unseen */
    bool inference;            /* made in inference mode: no version is kept of it, so no gradient can need it */
    bool read_only;            /* memory of somebody who lent it for reading: in-place ops raise */
    void (*drop)(void *ctx);   /* foreign memory: called instead of freeing data */
    void *ctx;
    int shared;                /* descriptor of the memory that other processes may map, or -1 */
} pd_storage;

extern _Thread_local bool pd_inference_mode;

pd_status pd_storage_new(const pd_device *device, size_t bytes, pd_storage **out);
/* Memory of somebody else, given back by drop(ctx) when the last reference goes (maybe in a thread without the GIL). */
pd_status pd_storage_foreign(const pd_device *device, void *data, size_t bytes, void (*drop)(void *), void *ctx,
                             pd_storage **out);
/* Moves the bytes to memory that other processes can map by s->shared. What pointed to the old bytes (a NumPy array,
   say) keeps them as they were: they live as long as the storage. Nothing is done where it is shared already. */
pd_status pd_storage_share(pd_storage *s);
/* [new] over the memory of another process, or of this one. Takes the descriptor, also on failure. */
pd_status pd_storage_open(int fd, size_t bytes, pd_storage **out);
static inline void pd_storage_retain(pd_storage *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }
void pd_storage_release(pd_storage *s);
int64_t pd_storage_live(void);

#endif
