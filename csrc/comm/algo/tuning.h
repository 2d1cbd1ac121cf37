/* Switch points: from which size on which algorithm is used, and with what pieces. They are defaults that we measured,
   or what `python -m pydist.tune` has measured on this machine. All ranks of a group use those of its rank 0, so they
   always choose the same. */
#ifndef PD_COMM_TUNING_H
#define PD_COMM_TUNING_H

#include "comm/algo/algo.h"

typedef struct pd_tuning { /* sizes in bytes, and what they are for; Python packs this struct */
    int32_t mesh, world;    /* mesh: 0 for shared memory, 1 for messages; world: ranks in the group */
    int32_t gather;         /* all_reduce: up to this size each rank sums everything, which saves a gate; above it data
                               in segments is summed in place */
    int32_t direct;         /* broadcast, reduce_scatter: above this size data in segments is read in place */
    int32_t piece;          /* of the pipeline; at most a slot */
    int32_t block;          /* of direct_sum: summed at a time, then copied to the others */
    int32_t fast, fast_from; /* order="fast": 1 ring, 2 halving, 0 none; from this size on */
} pd_tuning;

pd_tuning pd_tuning_default(bool mesh, int world);
pd_status pd_tuning_check(const pd_tuning *t);
/* The algorithm of a name: "gather_sum", "scatter_gather", "slot_sum", "hierarchical", and with order="fast" "ring",
   "halving". NULL or "": *out = NULL, which means by size. */
pd_status pd_tuning_forced(const char *name, bool fast, const pd_algo **out);
/* The algorithm for an all_reduce or reduce of so many bytes, if none is forced. hosts: hierarchical is possible. */
const pd_algo *pd_tuning_pick(const pd_tuning *t, bool fast, bool hosts, size_t bytes);

#endif
