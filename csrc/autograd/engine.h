/* Backward: from roots to leaves, in C, without recursion.

   A run counts, for every node reachable from the roots, the edges that lead to it, then runs nodes whose count is
   zero, the latest first. Gradients of several uses are added in that order, so the result is the same in every run. A
   run keeps all its state to itself, and what it walks alive: reentrant, and threads may run at once, through the same
   graph too (a lock for each leaf; one of those that shared a graph finds it freed, unless it is retained). */
#ifndef PD_AUTOGRAD_ENGINE_H
#define PD_AUTOGRAD_ENGINE_H

#include "autograd/tape.h"

typedef struct pd_backward {
    pd_tensor *const *roots;
    pd_tensor *const *grads;  /* NULL, or per root NULL: ones, for a root of one element */
    int nroots;
    bool retain_graph, create_graph;
    pd_tensor *const *inputs; /* NULL: accumulate into all leaves; else give the gradients of these in `out` */
    int ninputs;
    bool accumulate;          /* with inputs: accumulate into these (leaves) instead */
    pd_tensor **out;          /* [new] per input, NULL where it is not reached */
} pd_backward;

pd_status pd_engine_run(const pd_backward *b);

/* Called at the end of the backward that runs in this thread now (in order, on success only). */
pd_status pd_engine_at_end(pd_closure c);
bool pd_engine_is_running(void);
/* The number of the backward that runs in this thread, innermost; 0: none. *some: it gives or fills the gradients of
   some inputs only. */
uint64_t pd_engine_current(bool *some);

/* Adds g to the leaf's .grad (a gradient bucket's view where the leaf has a home). may_steal: g is the caller's own. */
pd_status pd_leaf_accumulate(pd_tensor *leaf, pd_tensor *g, bool create_graph);

#endif
