/* Reference-counted bytes on a device. A storage owns its memory and the version counter that its views share.

   Writing: every write passes one check before its first byte changes. Ops, optimizer steps and collectives call
   pd_tensor_before_write (tensor.h). Where memory is lent to somebody who may write unseen, pd_storage_lend checks
   once. Both call pd_storage_before_write, which is the place to notice or forbid a write. Memory that nobody else has
   seen yet (a new result, scratch) needs no check.

   Lending: a raw address that outlives the call which made it is a loan. The storage is lent, not the tensor, since a
   tensor may get another storage (`.data =`, resize_). Lent memory is neither freed nor moved until it is given
   back. */
#ifndef PD_TENSOR_STORAGE_H
#define PD_TENSOR_STORAGE_H

#include <stdatomic.h>

#include "device/device.h"

/* Who a storage is lent to. */
typedef enum pd_borrower { PD_LENT_ARRAY, PD_LENT_DLPACK, PD_LENT_COLLECTIVE, PD_BORROWERS } pd_borrower;

/* Asked before every write of a storage that has one: shards and wholes of parallel/unit.h. */
typedef struct pd_guard {
    pd_status (*before)(struct pd_guard *g, const char *op);
} pd_guard;

typedef struct pd_storage {
    atomic_int_fast64_t refs;
    void *data;
    size_t bytes;
    const pd_device *device;
    atomic_uint version;       /* raised by in-place ops, except those on `.data` */
    atomic_uint writes;        /* raised by all in-place ops */
    atomic_uint loans[PD_BORROWERS]; /* how many are not given back yet */
    bool inference;            /* made in inference mode: has no version, so backward must not save it */
    bool read_only;            /* external memory, lent to us for reading: in-place ops raise */
    bool exposed;              /* somebody has asked for the address: data_ptr() */
    pd_guard *guard;           /* [borrowed] NULL: nobody asks */
    bool blank;                /* made by Module.to_empty: what it holds means nothing until it is written */
    void (*drop)(void *ctx);   /* external memory: called in the place of freeing data */
    void *ctx;
    int shared;                /* the descriptor by which other processes map the memory, or -1 */
} pd_storage;

extern _Thread_local bool pd_inference_mode;

pd_status pd_storage_new(const pd_device *device, size_t bytes, pd_storage **out);
/* [new] over memory that somebody else owns. drop(ctx) gives it back when the last reference goes, perhaps in a thread
   without the GIL. */
pd_status pd_storage_external(const pd_device *device, void *data, size_t bytes, void (*drop)(void *), void *ctx,
                             pd_storage **out);
/* Moves the bytes to memory that other processes can map by s->shared. Does nothing if they are there already.
   PD_E_RUNTIME: they are lent. The old memory lives as long as the storage, since another library may own it. */
pd_status pd_storage_share(pd_storage *s);
/* [new] over shared memory of another process, or of this one. Owns the descriptor from now on, also if it fails. */
pd_status pd_storage_open(int fd, size_t bytes, pd_storage **out);
static inline void pd_storage_retain(pd_storage *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }
void pd_storage_release(pd_storage *s);

/* The check before every write. PD_E_RUNTIME: s is read-only, or its guard refuses. */
pd_status pd_storage_ask(const char *op, const pd_storage *s);
static inline pd_status pd_storage_before_write(const char *op, const pd_storage *s) {
    return s->read_only || s->guard ? pd_storage_ask(op, s) : PD_OK;
}

/* Begins a loan: retains s and counts the loan until any thread gives it back. written: the borrower may write to
   it. */
pd_status pd_storage_lend(const char *op, pd_storage *s, pd_borrower who, bool written);
void pd_storage_give_back(pd_storage *s, pd_borrower who, bool written);
static inline bool pd_storage_is_lent(const pd_storage *s) {
    return s->loans[PD_LENT_ARRAY] || s->loans[PD_LENT_DLPACK] || s->loans[PD_LENT_COLLECTIVE];
}
/* Whether only tensors of this process see the memory, so that reads and writes go through us. */
static inline bool pd_storage_is_private(const pd_storage *s) {
    return !pd_storage_is_lent(s) && !s->drop && s->shared < 0;
}
/* Whether nobody can have written what to_empty made. */
static inline bool pd_storage_is_blank(const pd_storage *s) {
    return s->blank && !s->writes && !s->exposed && (s->guard ? !pd_storage_is_lent(s) : pd_storage_is_private(s));
}
/* The check before the bytes are freed or moved. PD_E_RUNTIME: they are lent, and to whom. */
pd_status pd_storage_may_move(const char *op, const pd_storage *s);
int64_t pd_storage_live(void);

#endif
