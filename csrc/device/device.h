/* Where memory lives and ops run: one table for each device. The CPU and meta are always there.

   An op runs on the device of its inputs. pd_device_here is that device while it runs (autograd/apply.c, tape.c);
   outputs, scratch and temporaries of a gradient are made there, by that device's kernels (pd_here() in
   kernels/kernels.h). Outside of ops it is the CPU. */
#ifndef PD_DEVICE_DEVICE_H
#define PD_DEVICE_DEVICE_H

#include "base/status.h"

typedef enum pd_device_kind { PD_DEVICE_CPU, PD_DEVICE_CUDA, PD_DEVICE_META, PD_DEVICE_KINDS } pd_device_kind;
#define PD_META_INDEX (-2)
typedef enum pd_transfer { PD_TO_DEVICE, PD_TO_HOST, PD_WITHIN } pd_transfer;
/* Whether a copy waits until it is done, and whether the host language's lock is given up meanwhile. In the middle of
   an op it is not: other threads could change what the op holds. */
typedef enum pd_copy_wait { PD_NO_WAIT, PD_WAIT, PD_WAIT_UNLOCKED } pd_copy_wait;

typedef struct pd_device {
    pd_device_kind kind;
    int index;                 /* -1 for the CPU, PD_META_INDEX for meta */
    const char *name;          /* "cpu", "cuda:0" */
    pd_status (*alloc)(const struct pd_device *d, size_t bytes, void **out); /* aligned to 64 */
    void (*free)(const struct pd_device *d, void *p, size_t bytes);
    /* The rest is NULL for the CPU, which has done its work when a call returns. */
    const void *kernels;       /* pd_kernels; NULL: the CPU's, by instruction set */
    pd_status (*enter)(const struct pd_device *d);                 /* this thread's launches go to d from now on */
    pd_status (*check)(const struct pd_device *d,
                       const char *op); /* the errors of the launches since, as far as they are known */
    pd_status (*scratch)(const struct pd_device *d, size_t bytes, const char *op,
                         void **out); /* like pd_scratch, for the launches that follow */
    /* Launches what this device has put off (csrc/cuda/later.h), for somebody who knows memory by its address. */
    void (*settle)(const struct pd_device *d);
    /* Copies bytes between d and the host or within d, in the order of the launches. op: for errors. */
    pd_status (*copy)(const struct pd_device *d, const char *op, pd_transfer way, void *to, const void *from,
                      size_t bytes, pd_copy_wait wait);
} pd_device;

extern const pd_device pd_device_cpu;
extern const pd_device pd_device_meta;                /* kernels/meta.c: shapes without memory */
extern _Thread_local const pd_device *pd_device_here; /* never NULL */

int64_t pd_device_cpu_bytes(void);  /* held by CPU tensors now */
int64_t pd_device_cpu_cached(void); /* bytes of freed blocks that are kept for the next tensor (PYDIST_CACHE) */
void pd_device_cpu_trim(void);      /* gives them back to the system */

/* Makes d the device of what runs next, unless it fails. The caller puts *was back into pd_device_here in either
   case. */
static inline pd_status pd_device_enter(const pd_device *d, const pd_device **was) {
    *was = pd_device_here;
    if (d->enter) PD_TRY(d->enter(d));
    pd_device_here = d;
    return PD_OK;
}
/* Fails where an op would read a tensor's numbers on meta, which has none; names the op. */
pd_status pd_meta_refuse(const char *op);
static inline pd_status pd_check_data(const char *op, const pd_device *d) {
    return d == &pd_device_meta ? pd_meta_refuse(op) : PD_OK;
}
static inline void pd_device_settle(const pd_device *d) {
    if (d->settle) d->settle(d);
}
static inline pd_status pd_device_check(const pd_device *d, const char *op) {
    return d->check ? d->check(d, op) : PD_OK;
}

#endif
