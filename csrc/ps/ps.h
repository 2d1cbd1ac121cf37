/* A parameter server in shared memory: values under names, which workers push gradients to and pull.

   Nobody serves. The values, the states of the optimizer and the pushed gradients lie in memory that all workers of the
   store have mapped and whose handles stand in the rendezvous store. A worker that pushes or waits does the server's
   work itself, stripe by stripe, under the stripe's lock. So a push costs what memory costs, and no death takes
   anything along: who finds the lock of a dead worker restores the few elements that it was writing, and finishes its
   push (stripe.c).

   Orders of updates, by mode:
   SYNC     Round r of a key is applied when all workers have pushed r times: the sum of their gradients in the tree
            order of the collectives (comm/algo/reduce.h), times a scale, then one optimizer step. A pull waits for the
            round of this worker's last push, and helps.
   ASYNC    Each push is one step, applied when it comes. All stripes of a key see the same order of pushes. With a
            bound s on staleness, pd_ps_clock lets no worker be more than s clocks ahead of the slowest.
   HOGWILD  Workers step on the values without locks.

   Any thread may call; calls on one store exclude each other. Errors: PD_E_VALUE, PD_E_DTYPE for bad arguments,
   PD_E_TIMEOUT, PD_E_PEER (who has died), PD_E_PYTHON (interrupted). */
#ifndef PD_PS_H
#define PD_PS_H

#include "base/dtype.h"
#include "comm/group/group.h"
#include "ps/rule.h"

#define PD_PS_WORKERS 256
#define PD_PS_BINS 256 /* of a histogram of staleness; the last one has all that is more */

typedef struct pd_ps pd_ps;         /* this worker's view of a store */
typedef struct pd_ps_key pd_ps_key; /* one name in it; lives as long as the store */

typedef enum pd_ps_mode { PD_PS_SYNC, PD_PS_ASYNC, PD_PS_HOGWILD } pd_ps_mode;
typedef enum pd_ps_guard { PD_PS_APPLY, PD_PS_RAISE, PD_PS_SKIP } pd_ps_guard; /* for pushes that are not finite */

typedef struct pd_ps_options {
    pd_ps_mode mode;
    pd_ps_guard guard;
    int64_t staleness; /* clocks; -1: no bound */
    bool mean;         /* a round's sum is divided by the number of pushes */
    bool goes_on;      /* without a worker that has died; else every wait raises PD_E_PEER */
} pd_ps_options;

/* [new] All ranks of the group call it, with equal options, in the same order for several stores. They must share
   memory. */
pd_status pd_ps_open(pd_group *g, const pd_ps_options *o, pd_ps **out);
void pd_ps_retain(pd_ps *ps);
void pd_ps_release(pd_ps *ps);
int pd_ps_rank(const pd_ps *ps);
int pd_ps_workers(const pd_ps *ps);

/* A new name with n elements. Rank 0's value (contiguous) is the first one; the other ranks wait for it and give what
   they expect, which is compared: `is` says dtype and shape in words. rule: rank 0's, as in pd_ps_set_rule; NULL:
   none so far. */
pd_status pd_ps_add(pd_ps *ps, const char *name, const char *is, pd_dtype dtype, int64_t n, const void *value,
                    const pd_ps_rule *rule, double lr, pd_ps_key **out);
void *pd_ps_value(const pd_ps_key *k);          /* its n elements, in the shared memory */
void *pd_ps_slot(const pd_ps_key *k);           /* where this worker's gradient lies, n elements */
/* The step that follows each sum, with its learning rate, and the states that it needs. Rank 0 calls it; before the
   first push. */
pd_status pd_ps_set_rule(pd_ps_key *k, const pd_ps_rule *rule, double lr);
/* State `i` of the rule (kernels.h names m, v, w; before them the float32 copy, if it has one); NULL: there is none. */
pd_status pd_ps_state(pd_ps_key *k, int i, pd_dtype *dtype, void **out);
void pd_ps_set_lr(pd_ps_key *k, double lr); /* every push from now on takes it along */
double pd_ps_lr(const pd_ps_key *k);

/* Adds n gradients (contiguous, each as its key). in[i] may be the key's slot. Sync: waits until this worker's last
   round of the key is applied. */
pd_status pd_ps_push(pd_ps *ps, int n, pd_ps_key *const *keys, const void *const *in, double rescale);
/* Copies n values. Sync: waits for this worker's last push, and applies rounds while it waits. out[i] NULL: only waits.
   consistent: no push is half seen; without it each stripe is whole. */
pd_status pd_ps_pull(pd_ps *ps, int n, pd_ps_key *const *keys, void *const *out, bool consistent);
uint64_t pd_ps_version(const pd_ps_key *k); /* how many updates are applied */
void pd_ps_set_version(pd_ps_key *k, uint64_t steps);

/* This worker has finished n more steps. Returns when it may begin the next one. */
pd_status pd_ps_clock(pd_ps *ps, int64_t n);
uint64_t pd_ps_clock_of(const pd_ps *ps, int worker);
/* By what a push's learning rate is multiplied, by its staleness; the last number holds for all that is more. */
pd_status pd_ps_set_factors(pd_ps *ps, int n, const double *factors);
/* Counts of pushes by staleness, PD_PS_BINS of a worker or of a key: how many updates of others were applied between
   the worker's pull and its push. */
void pd_ps_worker_lags(const pd_ps *ps, int worker, uint64_t *out);
void pd_ps_key_lags(const pd_ps_key *k, uint64_t *out);
uint64_t pd_ps_refused(const pd_ps *ps, int worker); /* pushes that were not finite */
bool pd_ps_is_gone(pd_ps *ps, int worker);
/* Finishes what dead workers have pushed. Waits do it, too. */
pd_status pd_ps_settle(pd_ps *ps);

#endif
