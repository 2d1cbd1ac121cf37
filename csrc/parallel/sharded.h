/* A sharded model: units (unit.h) below one outermost module, and what its forwards and backwards do with them.

   A forward of the outermost module begins and ends to read (readers.h). So does a backward, from its first gradient
   on. The gradient of a whole belongs to the unit: a READY hook counts it, and when all of a unit's have come, and the
   units before it in the order of `units` have started, the ranks reduce them. Then each rank has the mean of its part
   as the shard's .grad, added to what is there; the shard's hooks run, which may step an optimizer. The bits are those
   of DistributedDataParallel. A parameter that no rank has used keeps its .grad.

   Where the ranks share memory, backward writes gradients into slots of symmetric memory, and nothing is copied: after
   one gate (the next unit's; the last unit has one of its own) each rank adds up its rows of all slots. Three slots are
   used in turn, so that a unit may be filled while the one before is read; the last unit, which lives from the first
   gradient to the last (tied embeddings), has a slot of its own. Gradients that come while the unit has no slot lie in
   memory of their own until it starts. Elsewhere the ranks reduce by messages (messages.c), which move on while
   backward computes.

     ready(u)   read u-1: its gate is open, so all ranks have read u-2, whose slot goes to u+1
                gate of u: begins; u's gradients are where the others will read them
     end        read the last unit; one more gate

   replicas: a group of ranks that have the same shards, in another mesh dimension (HSDP); the sums of the shard groups
   are added over it, those of one unit while the shard group sums the next.

   A backward that fails leaves nothing behind: the next forward drops what it had begun. */
#ifndef PD_PARALLEL_SHARDED_H
#define PD_PARALLEL_SHARDED_H

#include "autograd/engine.h"
#include "parallel/unit.h"

typedef struct pd_sharded pd_sharded;

/* [new] Units of one group and one kind, in the order in which backward will have their gradients; the outermost
   module's is the last one, with last_is_outer. replicas NULL: none. The units must outlive it only until
   pd_sharded_free. */
pd_status pd_sharded_new(pd_unit *const *units, int n, bool last_is_outer, pd_group *replicas, pd_sharded **out);
void pd_sharded_free(pd_sharded *s); /* removes the hooks; NULL is fine */

/* Around a forward; calls nest. *outermost: no other forward or backward is under way. */
pd_status pd_sharded_enter(pd_sharded *s, uint64_t site, bool *outermost);
void pd_sharded_leave(pd_sharded *s);
/* Takes part in a backward of the other ranks; this rank adds the gradients that it has summed up, or zeros. */
pd_status pd_sharded_shadow(pd_sharded *s, uint64_t site);

typedef struct pd_sharded_options { /* of a unit */
    bool accumulates;   /* backward only adds up gradients of wholes, on this rank, in the dtype of the ranks' sums */
    bool apart;         /* the sums of shard groups are not added over the replicas yet: they add up in .grad */
    bool keeps;         /* gathered wholes keep their memory after backward */
    double divisor;     /* of sums; 0: the number of ranks */
    pd_dtype reduced;   /* sums are rounded to this dtype; PD_NO_DTYPE: to that of the wholes */
} pd_sharded_options;
pd_sharded_options *pd_sharded_options_of(pd_sharded *s, int unit);
/* Called when a backward has ended, before the shards' readers go: for wholes that are in the modules' places. */
void pd_sharded_set_end(pd_sharded *s, pd_closure end);

#endif
