/* The inside of the reducer, for reducer.c (its life: buckets, memory, settings) and backward.c (what happens while a
   backward runs). */
#ifndef PD_PARALLEL_REDUCER_IMPL_H
#define PD_PARALLEL_REDUCER_IMPL_H

#include "parallel/reducer.h"

typedef struct slot { /* a parameter */
    struct pd_reducer *r;
    pd_tensor *param;     /* [strong] */
    pd_tensor *home;      /* [strong] its view of the bucket; NULL in a world of one */
    pd_grad_owner owner;  /* of the gradient, once the view is its destination */
    const pd_piece *piece;
    uint64_t hook;
    bool fired;           /* in the backward that runs */
} slot;

typedef struct bucket {
    pd_segment *segment;  /* NULL on a GPU, where the memory is the storage's own */
    char *data;
    int waiting;          /* parameters that have not fired yet, frozen ones left out */
    pd_storage *storage;  /* its views' memory */
    pd_work *work;        /* NULL: not started */
    void *pending;        /* the hook's, between start and finish */
    bool started;         /* with the hook */
} bucket;

struct pd_reducer {
    atomic_int_fast64_t refs; /* the owner's, and one while a backward has it called at its end */
    pd_group *group;
    const pd_device *device; /* the parameters' */
    pd_layout layout;
    int n;
    slot *slots;          /* by parameter */
    bucket *buckets;
    pd_group_memory *flat; /* NULL, or what all buckets lie in */
    size_t flat_used;
    int next;             /* the bucket that starts next */
    int64_t flags_at;     /* elements: where the used flags lie in the last bucket */
    char *flags;          /* these, or what the host has of a GPU's */
    bool sync, running, warned, waits;
    double divisor;
    uint64_t site;
    pd_comm_hook hook;    /* start NULL: the all-reduce of group.h */
    pd_closure begin;
    pd_reducer_times times;
    int64_t prepared, began; /* ns; 0: not yet */
};

static inline bool on_host(const pd_reducer *r) { return r->device->kind == PD_DEVICE_CPU; }

/* The flags, one element a parameter, at the end of the last bucket: which got a gradient. */
static inline pd_dtype flag_type(const pd_reducer *r) { return r->layout.buckets[r->layout.nbuckets - 1].dtype; }
static inline size_t flag_bytes(const pd_reducer *r) { return (size_t)r->n * pd_dtype_size(flag_type(r)); }
static inline char *flags_in_bucket(const pd_reducer *r) {
    return r->buckets[r->layout.nbuckets - 1].data + (size_t)r->flags_at * pd_dtype_size(flag_type(r));
}

/* backward.c */
pd_status pd_reducer_on_ready(void *slot, void *leaf); /* a parameter's gradient is there */
pd_status pd_reducer_bring_home(slot *s);
pd_status pd_reducer_clear(const pd_reducer *r, void *data, int64_t n, pd_dtype t);
void pd_reducer_forget_backward(pd_reducer *r);

/* reducer.c */
void pd_reducer_drop(void *reducer); /* a reference */

#endif
