/* Private to the data-parallel reducer: data.c, and turns.c, which runs it over logical shards. */
#ifndef PD_PARALLEL_DATA_IMPL_H
#define PD_PARALLEL_DATA_IMPL_H

#include "parallel/data.h"
#include "parallel/flat.h"
#include "parallel/ready.h"
#include "parallel/stack.h"

typedef struct pd_turns pd_turns;

#define PD_DDP "DistributedDataParallel"

typedef struct pd_slot { /* a parameter */
    struct pd_reducer *r;
    pd_tensor *param;     /* [strong] */
    pd_tensor *view;      /* [strong] its gradient's place in a bucket; NULL in a world of one */
    pd_grad_owner owner;  /* owns the gradient, once view is its destination */
    const pd_piece *piece;
    uint64_t hook;
} pd_slot;

typedef struct pd_sum { /* the reduction of a bucket, under way */
    pd_work *work;        /* NULL: not started, or a hook reduces it */
    void *pending;        /* of the hook, between start and finish */
    bool started;         /* the hook has started it */
} pd_sum;

struct pd_reducer {
    atomic_int_fast64_t refs; /* the owner's, and one while a backward will call it at its end */
    pd_group *group;
    const pd_device *device; /* of the parameters */
    pd_layout layout;     /* piece i is parameter i */
    pd_flat flat;
    pd_ready ready;
    int n;
    pd_slot *slots;       /* by parameter */
    pd_sum *sums;           /* by bucket; NULL in a world of one */
    char *flags;          /* those in the last bucket's tail, or the host's copy of a GPU's */
    bool sync, running, warned, waits;
    double divisor, weight;
    uint64_t site;
    pd_comm_hook hook;    /* start NULL: the all-reduce of group.h */
    pd_closure begin;
    pd_reducer_times times;
    int64_t prepared, began; /* ns; 0: not yet */
    pd_turns *turns;      /* logical shards; NULL: there are none */
};

void pd_reducer_forget(pd_reducer *r); /* ends the backward that is being reduced */

/* ---- turns.c: logical shards. All but the first two need r->turns ------------------------------------------------ */

/* Makes r->turns and r->flat. */
pd_status pd_turns_new(pd_reducer *r, pd_blocks *b);
void pd_turns_free(pd_turns *t);
const pd_flat *pd_turns_sums(const pd_reducer *r);  /* the memory in which the ranks add up */
bool pd_turns_is_last(const pd_reducer *r);         /* the backward under way ends a shard */
bool pd_turns_is_closed(const pd_reducer *r);       /* the shard under way has ended */
bool pd_turns_reduces(const pd_reducer *r);         /* it is the last one of this rank */
bool pd_turns_used(const pd_reducer *r, int param); /* a shard of this rank has reached the parameter in this step */
bool pd_turns_has(const pd_slot *s);                /* this shard's gradient of it was added */
pd_status pd_turns_add(pd_slot *s);                 /* adds it, unless it was added already */
/* Adds what has not been added, and closes the shard. *reduces: the buckets have to be reduced. */
pd_status pd_turns_end(pd_reducer *r, bool *reduces);
pd_status pd_turns_all_reduce(pd_reducer *r, int b, int64_t count, pd_work **work);
pd_status pd_turns_deliver(pd_reducer *r);          /* after it: puts the mean of all shards into r->flat */

#endif
