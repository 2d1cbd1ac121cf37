/* Refcounted bytes on a device. Owns the memory and the version that all its views share by default.

   Who writes: all writes pass one check, before the first byte changes. It is pd_tensor_before_write (tensor.h) for
   ops, optimizer steps and collectives, and pd_storage_lend, once, where memory is lent to somebody who may write
   unseen; both ask pd_storage_before_write, so what has to be known of a write, or to forbid it, stands there. Memory
   that nobody else has seen yet (a new result, scratch) needs no check.

   Who looks on: a raw address that outlives the call which made it is a loan of the storage, not of a tensor, whose
   storage may be exchanged (`.data =`, resize_). What is lent lives, and does not move, until it is given back. */
#ifndef PD_TENSOR_STORAGE_H
#define PD_TENSOR_STORAGE_H

#include <stdatomic.h>

#include "device/device.h"

/* Who has a loan. */
typedef enum pd_borrower { PD_LENT_ARRAY, PD_LENT_DLPACK, PD_LENT_COLLECTIVE, PD_BORROWERS } pd_borrower;

typedef struct pd_storage {
    atomic_int_fast64_t refs;
    void *data;
    size_t bytes;
    const pd_device *device;
    atomic_uint version;       /* bumped by in-place ops, but for those on `.data` */
    atomic_uint writes;        /* bumped by all of them */
    atomic_uint loans[PD_BORROWERS]; /* not given back yet */
    bool inference;            /* made in inference mode: no version is kept of it, so no gradient can need it */
    bool read_only;            /* memory of somebody who lent it for reading: in-place ops raise */
    void (*drop)(void *ctx);   /* external memory: called instead of freeing data */
    void *ctx;
    int shared;                /* descriptor of the memory that other processes may map, or -1 */
} pd_storage;

extern _Thread_local bool pd_inference_mode;

pd_status pd_storage_new(const pd_device *device, size_t bytes, pd_storage **out);
/* Memory of somebody else, given back by drop(ctx) when the last reference goes (maybe in a thread without the GIL). */
pd_status pd_storage_external(const pd_device *device, void *data, size_t bytes, void (*drop)(void *), void *ctx,
                             pd_storage **out);
/* Moves the bytes to memory that other processes can map by s->shared; PD_E_RUNTIME where they are lent. The old ones
   live as long as the storage (they may be another library's). Nothing is done where it is shared already. */
pd_status pd_storage_share(pd_storage *s);
/* [new] over the memory of another process, or of this one. Takes the descriptor, also on failure. */
pd_status pd_storage_open(int fd, size_t bytes, pd_storage **out);
static inline void pd_storage_retain(pd_storage *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }
void pd_storage_release(pd_storage *s);

/* The check before every write: PD_E_RUNTIME where s is read-only. */
pd_status pd_storage_refuse_write(const char *op, const pd_storage *s);
static inline pd_status pd_storage_before_write(const char *op, const pd_storage *s) {
    return s->read_only ? pd_storage_refuse_write(op, s) : PD_OK;
}

/* A loan: s is retained and counted until it is given back, which any thread may do. written: the borrower writes, or
   may do so unseen. */
pd_status pd_storage_lend(const char *op, pd_storage *s, pd_borrower who, bool written);
void pd_storage_give_back(pd_storage *s, pd_borrower who, bool written);
static inline bool pd_storage_is_lent(const pd_storage *s) {
    return s->loans[PD_LENT_ARRAY] || s->loans[PD_LENT_DLPACK] || s->loans[PD_LENT_COLLECTIVE];
}
/* Before the bytes go elsewhere: PD_E_RUNTIME where they are lent, and to whom. */
pd_status pd_storage_may_move(const char *op, const pd_storage *s);
int64_t pd_storage_live(void);

#endif
