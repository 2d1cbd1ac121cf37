/* A view of storage: dtype, sizes, strides, offset. Of autograd and Python it knows nothing but two opaque pointers
   (meta, wrapper) and the hooks that free them.

   pd_tensor_before_write counts writes in pd_tensor_version. Views and detach() share the storage's counter; only
   `.data` has a counter of its own. Every view holds a strong reference to its base, which is never a view itself. */
#ifndef PD_TENSOR_TENSOR_H
#define PD_TENSOR_TENSOR_H

#include "base/dtype.h"
#include "tensor/shape.h"
#include "tensor/spread.h"
#include "tensor/storage.h"

typedef struct pd_version {
    atomic_int_fast64_t refs;
    atomic_uint count;
} pd_version;

/* For Python's cycle collector (py/autograd/collect.c): its pass, and how many references to this object it has met. */
typedef struct pd_seen {
    uint32_t pass, met;
} pd_seen;

typedef struct pd_tensor {
    atomic_int_fast64_t refs;
    pd_storage *storage;
    pd_version *version;      /* NULL: the storage's counter */
    struct pd_tensor *base;   /* [strong] NULL unless this is a view */
    pd_spread *spread;        /* [strong] what it is this rank's part of; NULL: a plain tensor */
    struct pd_meta *meta;     /* autograd/tape.h, NULL where there is nothing to say */
    void *wrapper;            /* py/tensor/tensor.c: the Python object, if there is one */
    atomic_bool wrapper_owned; /* true: this tensor keeps the wrapper alive; false: the other way round */
    bool requires_grad;       /* a leaf that wants a gradient, or the result of a recorded op */
    int8_t dtype, ndim;
    uint32_t mark;            /* autograd/record.c: the number under which the recorder of programs knows it; 0: none */
    pd_seen seen;
    int64_t offset, numel;
    int64_t size[PD_MAX_DIMS], stride[PD_MAX_DIMS];
} pd_tensor;

/* [new] an empty shell: no storage, sizes not set. */
pd_status pd_tensor_shell(pd_tensor **out);
/* [new] contiguous, uninitialised, on pd_device_here. */
pd_status pd_tensor_new(const char *op, pd_dtype dtype, int ndim, const int64_t *size, pd_tensor **out);
/* [new] a tensor of the same storage, geometry and spread without autograd: detach(), or with own_version `.data`. */
pd_status pd_tensor_alias(const pd_tensor *t, bool own_version, pd_tensor **out);
/* [new] a plain tensor of `like`'s dtype and shape, contiguous, in the memory of `flat` from its element `at` on. */
pd_status pd_tensor_within(const pd_tensor *flat, int64_t at, const pd_tensor *like, pd_tensor **out);
/* From now on t is a part of what `of` is a part of (NULL: of nothing). */
void pd_tensor_set_spread(pd_tensor *t, pd_spread *of);
/* Gives the shell `out` a storage: new memory for its dtype, numel and (dense) strides, or the memory of `of`, whose
   view it becomes. */
pd_status pd_tensor_allocate(pd_tensor *out);
void pd_tensor_view_of(pd_tensor *out, pd_tensor *of);

/* held[i]: [new] t[i] with the memory and geometry that it has now. For work without the host's lock, during which
   another thread may change t[i] (`.data =`). NULL stays NULL. After a failure nothing is held. */
pd_status pd_tensor_hold(pd_tensor *const *t, int n, pd_tensor **held);
void pd_tensor_let_go(pd_tensor *const *held, int n);

static inline void pd_tensor_retain(pd_tensor *t) { atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed); }
void pd_tensor_release(pd_tensor *t); /* NULL is fine */

static inline void *pd_tensor_data(const pd_tensor *t) {
    return (char *)t->storage->data + t->offset * (int64_t)pd_dtype_size((pd_dtype)t->dtype);
}
static inline size_t pd_tensor_bytes(const pd_tensor *t) {
    return (size_t)t->numel * pd_dtype_size((pd_dtype)t->dtype);
}
static inline unsigned pd_tensor_version(const pd_tensor *t) {
    return t->version ? t->version->count : t->storage->version;
}
typedef void (*pd_note)(const pd_tensor *t);
extern _Atomic(pd_note) pd_note_write; /* NULL, or wants to know of writes: autograd/record.c */
/* Called before memory that others may see is written, after all other checks: asks the storage (storage.h) and counts
   the write in the version. */
static inline pd_status pd_tensor_before_write(const char *op, pd_tensor *t) {
    PD_TRY(pd_storage_before_write(op, t->storage));
    atomic_fetch_add_explicit(t->version ? &t->version->count : &t->storage->version, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->storage->writes, 1, memory_order_relaxed);
    pd_note note = atomic_load_explicit(&pd_note_write, memory_order_relaxed);
    if (__builtin_expect(note != NULL, 0)) note(t);
    return PD_OK;
}
static inline bool pd_tensor_is_contiguous(const pd_tensor *t) {
    return pd_shape_is_contiguous(t->ndim, t->size, t->stride);
}
static inline const char *pd_tensor_shape(const pd_tensor *t) { return pd_shape_text(t->ndim, t->size); }
static inline bool pd_tensor_same_shape(const pd_tensor *a, const pd_tensor *b) {
    return pd_shape_equal(a->ndim, a->size, b->ndim, b->size);
}
/* The same shape and strides. */
static inline bool pd_tensor_same_layout(const pd_tensor *a, const pd_tensor *b) {
    return pd_tensor_same_shape(a, b) && pd_shape_equal(a->ndim, a->stride, b->ndim, b->stride);
}
/* Whether two elements of t may share memory, as in an expanded tensor. True also for strides that interleave without
   ever meeting. */
bool pd_tensor_overlaps_itself(const pd_tensor *t);
/* Whether the byte ranges of a and b intersect. */
bool pd_tensor_shares(const pd_tensor *a, const pd_tensor *b);

/* Set once by later rooms, called when the last reference goes. A tensor that keeps its wrapper alive is not freed
   then: the wrapper becomes its owner, and drop_wrapper releases the wrapper, which Python code may have found and
   still use. */
extern void (*_Atomic pd_tensor_drop_meta)(struct pd_meta *meta);
extern void (*pd_tensor_drop_wrapper)(void *wrapper);
int64_t pd_tensor_live(void);

#endif
