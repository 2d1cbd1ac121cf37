/* Backward: from roots to leaves, in C, without recursion.

   A run counts, for every node reachable from the roots, the edges that lead to it, then runs nodes whose count is
   zero, the latest first. Gradients of several uses are added in that order, so the result is the same in every run. A
   run keeps all its state to itself, and what it walks alive: reentrant, and threads may run at once, through the same
   graph too (a lock for each leaf; one of those that shared a graph finds it freed, unless it is retained).

   pd_engine_run is a whole backward: open, turn, close. A run that is `fed` gets gradients from outside, too (another
   process, another stage of a pipeline), and sleeps between its turns, while no thread is in it:
     open -> discover each node that will be fed -> turn, feed, turn, feed ... until pd_run_is_done -> close
   Threads may take turns, one at a time; other runs, through the same graph too, may turn meanwhile. Gradients that
   arrive at a node are kept by the edge that they came on, and added in the order of edges (of the latest node first)
   once all are there: the bits do not depend on when they were fed. */
#ifndef PD_AUTOGRAD_ENGINE_H
#define PD_AUTOGRAD_ENGINE_H

#include "autograd/tape.h"

/* Kept by the caller, with all that it points to, until the run has ended. */
typedef struct pd_backward {
    pd_tensor *const *roots;
    pd_tensor *const *grads;  /* NULL, or per root NULL: ones, for a root of one element */
    int nroots;
    bool retain_graph, create_graph;
    pd_tensor *const *inputs; /* NULL: accumulate into all leaves; else give the gradients of these in `out` */
    int ninputs;
    bool accumulate;          /* with inputs: accumulate into these (leaves) instead */
    pd_tensor **out;          /* [new] per input, NULL where it is not reached */
    bool fed;                 /* pd_run_discover and pd_run_feed will be called; not with create_graph */
    /* NULL, or what gets the whole gradient of each leaf in place of its .grad: leaves with an owner (destination.h)
       excepted, which get it as ever. The leaf's gradient hooks have run; those that follow .grad do not. */
    pd_status (*sink)(void *ctx, pd_tensor *leaf, pd_tensor *grad);
    void *sink_ctx;
} pd_backward;

pd_status pd_engine_run(const pd_backward *b);

/* Called at the end of the backward that runs in this thread now (in order, on success only). */
pd_status pd_engine_at_end(pd_closure c);
/* The number of the backward that runs in this thread, innermost; 0: none. *some: it gives or fills the gradients of
   some inputs only. */
uint64_t pd_engine_current(bool *some);

/* ---- a run that can sleep ---------------------------------------------------------------------------------------- */

/* The engine's own; here so that it may lie on a stack. */
typedef struct pd_run {
    const pd_backward *b;
    struct pd_run_entry *entries;
    size_t count, cap;
    uint32_t *slots;      /* open addressing: index + 1 */
    size_t nslots;
    uint32_t *heap;       /* ready nodes, the latest on top */
    size_t nheap, cap_heap;
    struct pd_run_capture *captures; /* per input */
    struct pd_run_inbox *boxes;      /* per entry, where the run is fed */
    size_t cap_boxes;
    size_t nroots;        /* entries of roots and inputs, which come first */
    int64_t missing;      /* gradients that have not been fed yet */
    pd_closure *at_end;
    size_t nat_end, cap_at_end;
    struct pd_run *outer; /* while it is turned: the one around it in this thread */
    uint64_t id;
    double work;
    bool started, ended, failed;
    atomic_bool busy;     /* some thread is in it */
} pd_run;

/* PD_E_RUNTIME, and nothing is done, while another thread is in the run. After any other failure, but a gradient that
   pd_run_feed refuses, the run can only be closed. */

/* Into *r, whatever it held. Seeds the roots and counts what they reach. After a failure nothing is left to close. */
pd_status pd_run_open(pd_run *r, const pd_backward *b);
/* Every output of the node will be fed once. PD_E_RUNTIME where a turn has gone past what it leads to. */
pd_status pd_run_discover(pd_run *r, pd_node *node);
/* The gradient of the node's output `index` from outside; NULL: there is none. g is retained; it has that output's
   dtype, shape and device, which the caller sees to. */
pd_status pd_run_feed(pd_run *r, pd_node *node, int index, pd_tensor *g);
/* Runs what is ready; returns when nothing is. */
pd_status pd_run_turn(pd_run *r);
/* Whether a turn has been made, all gradients have been fed and nothing is ready. */
bool pd_run_is_done(const pd_run *r);
/* Ends the run in every case, and frees what it kept. status: what went wrong so far, which is returned; PD_OK: the run
   is done (else PD_E_RUNTIME names a node that waits), and what pd_engine_at_end was given is called. No thread may be
   in the run. */
pd_status pd_run_close(pd_run *r, pd_status status);

/* Adds g to the leaf's .grad (its destination's view where it has one). */
pd_status pd_leaf_accumulate(pd_tensor *leaf, pd_tensor *g, bool create_graph);

#endif
