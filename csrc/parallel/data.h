/* Data parallel gradients: each parameter's .grad lies in a bucket of symmetric memory, and a bucket is all-reduced as
   soon as backward has filled it, while backward goes on. The memory is flat.h's, the order ready.h's.

   Hooks count down; buckets start strictly in order on every rank, so the ready order moves nothing. Frozen parameters
   are not counted. At the end of backward the parameters that did not fire are taken as zero, or as what an earlier
   backward left; the rest of the buckets start, all are waited for, and .grad holds the mean (one multiply by 1/W in
   the all-reduce). Which parameters fired anywhere travels as flags at the end of the last bucket: one that no rank
   used keeps its .grad as it was (None, usually). A world of one does nothing at all.

   Parameters on a GPU have their buckets there; the collectives are NCCL's (comm/nccl/nccl.h), on a stream of their own
   beside backward's, which goes on after the last of them. The host waits only for flags that it needs.

   A communication hook stands in for the all-reduce of the buckets; the flags then travel in a message of their own.
   The calls start(0), start(1), ..., finish(0), finish(1), ... have the same order on every rank. */
#ifndef PD_PARALLEL_DATA_H
#define PD_PARALLEL_DATA_H

#include "autograd/engine.h"
#include "comm/group/group.h"
#include "parallel/layout.h"

typedef struct pd_reducer pd_reducer;

/* start: bucket b is full; *pending is what finish() gets, and consumes also where it fails. finish: waits, and leaves
   in the bucket what .grad will hold. abandon: takes pending back when no finish() will come. Any thread may call. */
typedef struct pd_comm_hook {
    pd_status (*start)(void *ctx, int b, void **pending);
    pd_status (*finish)(void *ctx, int b, void *pending);
    void (*abandon)(void *pending);
    void (*drop)(void *ctx);
    void *ctx;
} pd_comm_hook;

typedef struct pd_reducer_bucket {
    void *data;
    int64_t numel; /* without the flags; gaps between pieces are zero where a hook sees them */
    pd_dtype dtype;
    pd_storage *storage; /* [borrowed] */
} pd_reducer_bucket;

typedef struct pd_reducer_times { /* ns, of the last backward that was reduced; sums over all of them */
    int64_t steps, bytes;  /* bytes: of gradients, a step */
    int64_t forward;       /* prepare() to the first gradient */
    int64_t backward;      /* first gradient to the end, with what follows */
    int64_t inside;        /* spent on communication by the thread of backward before its end */
    int64_t waited;        /* between the last gradient and the last bucket's end */
    int64_t sum_forward, sum_backward, sum_inside, sum_waited;
} pd_reducer_times;

/* Collective. Parameters are leaves that require grad, of floating dtypes; names, for errors and warnings, are
   copied into the layout, whose piece i is parameter i. */
pd_status pd_reducer_new(pd_tensor *const *params, const char *const *names, int n, pd_group *group,
                         size_t first_bytes, size_t cap_bytes, pd_reducer **out);
/* The hooks go; gradients stay where they are (the buckets live as long as a view of them). */
void pd_reducer_free(pd_reducer *r);

/* Before a forward whose backward will reduce: forgets what an unfinished backward left. `site` names the caller. */
pd_status pd_reducer_prepare(pd_reducer *r, uint64_t site);
/* false: backwards only add up on their own rank (no_sync). */
void pd_reducer_set_sync(pd_reducer *r, bool sync);
bool pd_reducer_get_sync(const pd_reducer *r);
/* Whether the end of backward waits until the gradients are there, so that what goes wrong on a GPU is raised before
   the step; else it only has the stream wait. */
void pd_reducer_set_waits(pd_reducer *r, bool waits);
bool pd_reducer_get_waits(const pd_reducer *r);
const pd_layout *pd_reducer_layout(const pd_reducer *r);
pd_group *pd_reducer_group(const pd_reducer *r); /* [borrowed] */
const pd_device *pd_reducer_device(const pd_reducer *r); /* of the parameters */
pd_tensor *pd_reducer_view(const pd_reducer *r, int param); /* [borrowed] NULL in a world of one */
/* PD_E_INDEX: no such bucket, and in a world of one there is none. */
pd_status pd_reducer_bucket_at(const pd_reducer *r, int b, pd_reducer_bucket *out);
const pd_reducer_times *pd_reducer_get_times(const pd_reducer *r);

/* Takes the hook over. PD_E_RUNTIME: there is one already, or a backward is being reduced. */
pd_status pd_reducer_set_hook(pd_reducer *r, pd_comm_hook hook);
/* Drops hook and begin; what the hook has under way ends first. */
void pd_reducer_drop_hooks(pd_reducer *r);
/* Called before the first bucket of every reduced backward; the old one is dropped. */
void pd_reducer_set_begin(pd_reducer *r, pd_closure begin);
/* What sums are divided by (the group's size): fewer where ranks ran out of data. Hooks divide by what they like. */
pd_status pd_reducer_set_divisor(pd_reducer *r, double divisor);
/* Takes part with zeros in the reduction of a backward that the other ranks run; .grad becomes None. */
pd_status pd_reducer_shadow(pd_reducer *r, uint64_t site);

#endif
