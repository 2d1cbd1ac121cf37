/* Switch points: from how many bytes on which algorithm, and in what pieces. Measured defaults, or what `python -m
   pydist.tune` has measured on this machine. The ranks of a group all use its rank 0's, so they always choose alike. */
#ifndef PD_COMM_TUNING_H
#define PD_COMM_TUNING_H

#include "comm/algo/algo.h"

typedef struct pd_tuning { /* bytes, and what they are for; as Python packs it */
    int32_t mesh, world;    /* 0 shared memory, 1 messages; ranks in the group */
    int32_t gather;         /* all_reduce: up to here everybody sums everything, which saves a gate; beyond it segments
                               are summed where they lie */
    int32_t direct;         /* broadcast, reduce_scatter: beyond that segments are read where they lie */
    int32_t piece;          /* of the pipeline; a slot is the most */
    int32_t block;          /* of direct_sum: summed, then copied to the others */
    int32_t fast, fast_from; /* order="fast": 1 ring, 2 halving, from here on; 0: none */
} pd_tuning;

pd_tuning pd_tuning_default(bool mesh, int world);
pd_status pd_tuning_check(const pd_tuning *t);
/* "gather_sum", "scatter_gather", "slot_sum", "hierarchical", and with order="fast" "ring", "halving". NULL or "":
   *out = NULL, by size. */
pd_status pd_tuning_forced(const char *name, bool fast, const pd_algo **out);
/* For all_reduce and reduce of so many bytes, where nothing is forced. hosts: it can be hierarchical. */
const pd_algo *pd_tuning_pick(const pd_tuning *t, bool fast, bool hosts, size_t bytes);

#endif
