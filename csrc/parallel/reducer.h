/* Data parallel gradients: each parameter's .grad lies in a bucket of symmetric memory, and a bucket is all-reduced as
   soon as backward has filled it, while backward goes on.

   Hooks count down; buckets start strictly in order on every rank, so the ready order moves nothing. Frozen parameters
   are not counted. At the end of backward the parameters that did not fire are taken as zero, or as what an earlier
   backward left; the rest of the buckets start, all are waited for, and .grad holds the mean (one multiply by 1/W in
   the all-reduce). Which parameters fired anywhere travels as flags at the end of the last bucket: one that no rank
   used keeps its .grad as it was (None, usually). A world of one does nothing at all. */
#ifndef PD_PARALLEL_REDUCER_H
#define PD_PARALLEL_REDUCER_H

#include "autograd/engine.h"
#include "comm/group.h"
#include "parallel/layout.h"

typedef struct pd_reducer pd_reducer;

/* Collective. Parameters are leaves that require grad, of floating dtypes; names are copied. */
pd_status pd_reducer_new(pd_tensor *const *params, const char *const *names, int n, pd_group *group,
                         size_t first_bytes, size_t cap_bytes, pd_reducer **out);
/* The hooks go; gradients stay where they are (the buckets live as long as a view of them). */
void pd_reducer_free(pd_reducer *r);

/* Before a forward whose backward will reduce: forgets what an unfinished backward left. `site` names the caller. */
pd_status pd_reducer_prepare(pd_reducer *r, uint64_t site);
/* false: backwards only add up on their own rank (no_sync). */
void pd_reducer_set_sync(pd_reducer *r, bool sync);
bool pd_reducer_get_sync(const pd_reducer *r);
const pd_layout *pd_reducer_layout(const pd_reducer *r);

#endif
