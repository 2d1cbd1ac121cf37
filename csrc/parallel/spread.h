/* Ops on parts of spread tensors (tensor/spread.h). How an op runs on parts, its plan, depends on the op, its
   attributes and the spreads of its inputs, but not on values. The host makes plans; they are kept, so that a call
   finds its plan by one look into a table. */
#ifndef PD_PARALLEL_SPREAD_H
#define PD_PARALLEL_SPREAD_H

#include "autograd/apply.h"
#include "parallel/move.h"

typedef struct pd_plan {
    atomic_int_fast64_t refs;
    int nin;
    pd_moves **moves;            /* [owned], each [strong]: what each input goes through before; NULL: nothing */
    pd_spread *out[PD_MAX_OUTS]; /* [strong] what the results are parts of; NULL: plain tensors */
    const pd_def *runs; /* the op that runs in the place of the one that was called, with the same parameters */
    bool changed;       /* `attrs` take the place of those of the call, but for numbers and random keys */
    uint64_t attrs[PD_MAX_ATTRS / 8];
    void *host; /* [strong] a function of the host computes the results instead; NULL: the op does */
    void (*drop)(void *host);
} pd_plan;

pd_status pd_plan_new(int nin, pd_plan **out); /* [new] one that moves nothing, and gives plain tensors */
void pd_plan_release(pd_plan *p);

/* Set by the host. */
typedef struct pd_spread_host {
    /* *out [new]: the plan of a call; `into`: the tensor that the result is written to, perhaps in[0] itself, or NULL.
       wants: gradients flow through an input. *keep: it is the same for each such call. */
    pd_status (*plan)(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into, bool wants,
                      pd_plan **out, bool *keep);
    /* Runs a plan that has `host`. */
    pd_status (*call)(const pd_plan *p, const pd_def *def, pd_tensor *const *in, int nin, const void *attrs,
                      pd_tensor *into, pd_tensor **out, int *nout);
    uint64_t (*site)(void); /* the caller's line */
} pd_spread_host;
extern pd_spread_host pd_spread_hosted;

void pd_spread_init(void);   /* from now on ops on parts go through plans */
void pd_spread_forget(void); /* drops all plans */
int pd_spread_plans(void);   /* how many are kept; at most 4096 */

#endif
