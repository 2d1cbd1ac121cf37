/* Data-parallel gradients. Each parameter's .grad lies in a bucket of symmetric memory, and a bucket is all-reduced as
   soon as backward has filled it, while backward goes on. flat.h has the memory, ready.h the order.

   A READY hook of each parameter counts down. Buckets start strictly in order on every rank, so the order in which
   gradients become ready does not change which collectives are called. Frozen parameters are not counted. At the end of
   backward, a parameter without a gradient counts as zero, or as what an earlier backward has left. Then the remaining
   buckets start, all are waited for, and .grad holds the mean (one multiply by 1/W in the all-reduce). Flags at the end
   of the last bucket say which parameters got a gradient on any rank. A parameter that no rank used keeps its .grad as
   it was, usually None. In a world of one nothing of this is done.

   Parameters on a GPU have their buckets there. NCCL (comm/nccl/nccl.h) reduces them on a stream of its own beside
   backward's stream, which waits for the last of them. The host waits only for flags that it needs.

   A communication hook takes the place of the buckets' all-reduce; the flags then have a message of their own. The
   calls start(0), start(1), ..., finish(0), finish(1), ... have the same order on every rank. */
#ifndef PD_PARALLEL_DATA_H
#define PD_PARALLEL_DATA_H

#include "autograd/engine.h"
#include "comm/group/group.h"
#include "parallel/layout.h"

typedef struct pd_reducer pd_reducer;

/* start: bucket b is full; *pending is for finish(), which frees it even if it fails. finish: waits, and puts into the
   bucket what .grad will hold. abandon: frees pending if finish() will not be called. Any thread may call these. */
typedef struct pd_comm_hook {
    pd_status (*start)(void *ctx, int b, void **pending);
    pd_status (*finish)(void *ctx, int b, void *pending);
    void (*abandon)(void *pending);
    void (*drop)(void *ctx);
    void *ctx;
} pd_comm_hook;

typedef struct pd_reducer_bucket {
    void *data;
    int64_t numel; /* without the flags; gaps between pieces are zero when a hook sees them */
    pd_dtype dtype;
    pd_storage *storage; /* [borrowed] */
} pd_reducer_bucket;

typedef struct pd_reducer_times { /* ns, of the last backward that was reduced, or summed over all of them */
    int64_t steps, bytes;  /* bytes: of the gradients of a step */
    int64_t forward;       /* prepare() to the first gradient */
    int64_t backward;      /* first gradient to the end of backward and reduction */
    int64_t inside;        /* that the thread of backward has spent on communication before the end of backward */
    int64_t waited;        /* last gradient to the end of the last bucket */
    int64_t sum_forward, sum_backward, sum_inside, sum_waited;
} pd_reducer_times;

/* [new] All ranks call it. Parameters are leaves that require grad, of floating dtypes. Their names, for errors and
   warnings, are copied into the layout, whose piece i is parameter i. blocks: logical shards, see below; NULL: none. */
pd_status pd_reducer_new(pd_tensor *const *params, const char *const *names, int n, pd_group *group,
                         size_t first_bytes, size_t cap_bytes, pd_blocks *blocks, pd_reducer **out);
/* Removes the hooks. Gradients stay where they are; buckets live as long as a view of them. */
void pd_reducer_free(pd_reducer *r);

/* ---- logical shards (comm/algo/blocks.h)

   With blocks, a step is the work of all logical shards, and .grad becomes the mean of their gradients, with the same
   bits for any number of ranks. A rank opens its shards one after the other; the last of them reduces. In a shard the
   gradients of any number of backwards accumulate. `last` announces the one that ends the shard, so that its gradients
   are added, and in the last shard reduced, while backward goes on; a shard that ends without it is ended by close. A
   rank without shards only closes. Works in a world of one, and on GPUs, too. */
int pd_reducer_shards(const pd_reducer *r); /* how many this rank has; -1: the reducer was made without blocks */
bool pd_reducer_is_closed(const pd_reducer *r); /* none is open */
/* Opens this rank's shard k: 0, 1, ... in each step. .grad becomes None. PD_E_RUNTIME: shard k - 1 was not closed. */
pd_status pd_reducer_open_shard(pd_reducer *r, int k, uint64_t site);
pd_status pd_reducer_last_backward(pd_reducer *r);
pd_status pd_reducer_close_shard(pd_reducer *r, uint64_t site);
/* From now on float32 gradients of shards are rounded to float16 or bfloat16 before they are added, and so is their
   mean, as by the communication hooks of these names. PD_E_VALUE: another dtype. */
pd_status pd_reducer_round_shards(pd_reducer *r, pd_dtype half);
/* From now on each shard's gradients are hashed (hash.h). hashes: [borrowed] by parameter, those of the shard that was
   closed last; 0: it did not reach the parameter; NULL: they are not hashed. */
pd_status pd_reducer_hash_shards(pd_reducer *r);
const uint64_t *pd_reducer_hashes(const pd_reducer *r);

/* ---- without logical shards: steps */

/* Called before a forward whose backward will reduce: drops what an unfinished backward has left. `site` names the
   caller. */
pd_status pd_reducer_prepare(pd_reducer *r, uint64_t site);
/* false: backward adds gradients up on this rank only (no_sync). */
void pd_reducer_set_sync(pd_reducer *r, bool sync);
bool pd_reducer_get_sync(const pd_reducer *r);
/* waits: the end of backward waits on the host for the gradients, so that errors on a GPU are raised before the step.
   Else only the stream waits. */
void pd_reducer_set_waits(pd_reducer *r, bool waits);
bool pd_reducer_get_waits(const pd_reducer *r);
const pd_layout *pd_reducer_layout(const pd_reducer *r);
pd_group *pd_reducer_group(const pd_reducer *r); /* [borrowed] */
const pd_device *pd_reducer_device(const pd_reducer *r); /* the parameters' device */
pd_tensor *pd_reducer_view(const pd_reducer *r, int param); /* [borrowed] NULL in a world of one */
/* PD_E_INDEX: there is no such bucket; in a world of one there is none. */
pd_status pd_reducer_bucket_at(const pd_reducer *r, int b, pd_reducer_bucket *out);
const pd_reducer_times *pd_reducer_get_times(const pd_reducer *r);

/* Sets the hook and owns it from now on. PD_E_RUNTIME: there is one already, or a backward is being reduced. */
pd_status pd_reducer_set_hook(pd_reducer *r, pd_comm_hook hook);
/* Drops hook and begin, after what the hook has under way. */
void pd_reducer_drop_hooks(pd_reducer *r);
/* Sets a function that is called before the first bucket of every reduced backward, and drops the old one. */
void pd_reducer_set_begin(pd_reducer *r, pd_closure begin);
/* The number by which sums are divided. At first it is the group's size; fewer, if some ranks have no data left. Hooks
   choose their own divisor. */
pd_status pd_reducer_set_divisor(pd_reducer *r, double divisor);
/* How often this rank's gradients count in sums and hooks: W * rows / all rows, where ranks have different numbers of
   rows. At first it is 1. With 0 they count as zeros, even if they are not finite. PD_E_VALUE: it is negative or not
   finite. */
pd_status pd_reducer_set_weight(pd_reducer *r, double weight);
/* Takes part, with zeros, in the reduction of a backward that the other ranks run. .grad becomes None. */
pd_status pd_reducer_shadow(pd_reducer *r, uint64_t site);

#endif
