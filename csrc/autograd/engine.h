/* Backward: from roots to leaves, in C, without recursion.

   A run is one backward. For every node that the roots reach it counts the edges that lead to the node, then runs nodes
   whose count is zero, the latest first. Gradients of several uses are added in that order, so the result is the same
   in every run. A run keeps its state to itself and keeps alive what it walks, so runs may nest, and several threads
   may run at once, even through the same graph. Leaves have locks. Of two runs through one graph, the second one finds
   the graph freed unless the first one retains it.

   pd_engine_run is a whole backward: open, turn, close. A run that is `fed` also gets gradients from outside, such as
   another process or another stage of a pipeline. Between its turns it sleeps, with no thread in it:
     open -> discover each node that will be fed -> turn, feed, turn, feed ... until pd_run_is_done -> close
   A run that is `split` has two turns (deferred.c): the first one makes the gradients of `inputs` and what leads to
   them, the second one those of all other leaves:
     open -> turn -> ... -> pd_run_second -> turn -> close
   Any thread may make the next turn, one at a time; other runs may turn meanwhile, even through the same graph. A fed
   run keeps the gradients that arrive at a node by edge. Once all are there it adds them in the order of edges, those
   of the latest node first. So the bits do not depend on when a gradient was fed. */
#ifndef PD_AUTOGRAD_ENGINE_H
#define PD_AUTOGRAD_ENGINE_H

#include "autograd/tape.h"

/* The arguments of a run. The caller keeps them, and all that they point to, until the run has ended. */
typedef struct pd_backward {
    pd_tensor *const *roots;
    pd_tensor *const *grads;  /* for each root; NULL, as a whole or for a root of one element: ones */
    int nroots;
    bool retain_graph, create_graph;
    pd_tensor *const *inputs; /* NULL: accumulate into all leaves; else put the gradients of these into `out` */
    int ninputs;
    bool accumulate;          /* with inputs, which are leaves: accumulate into these instead */
    pd_tensor **out;          /* [new] for each input; NULL: not reached */
    bool fed;                 /* pd_run_discover and pd_run_feed will be called; not with create_graph */
    bool split;               /* with inputs, not accumulate, fed or create_graph: two turns */
    /* NULL, or a function that gets each leaf's final gradient in the place of its .grad, in memory that nobody else
       holds. It is not called for leaves with an owner (destination.h). The leaf's gradient hooks have run before; the
       hooks after .grad do not run. */
    pd_status (*sink)(void *ctx, pd_tensor *leaf, pd_tensor *grad);
    void *sink_ctx;
} pd_backward;

pd_status pd_engine_run(const pd_backward *b);

/* Calls c at the end of the outermost backward that this thread is in (a checkpoint's runs inside of another one), if
   it succeeds; several are called in order. */
pd_status pd_engine_at_end(pd_closure c);
/* The number of the innermost backward of this thread; 0: none. *some: whether it is for the gradients of some inputs
   only. */
uint64_t pd_engine_current(bool *some);

/* ---- a run that can sleep ---------------------------------------------------------------------------------------- */

/* Private to the engine; declared here so that it can lie on a stack. */
typedef struct pd_run {
    const pd_backward *b;
    struct pd_run_entry *entries;
    size_t count, cap;
    uint32_t *slots;      /* open addressing: index + 1 */
    size_t nslots;
    uint32_t *heap;       /* ready nodes, the latest on top */
    size_t nheap, cap_heap;
    struct pd_run_capture *captures; /* per input */
    struct pd_run_inbox *boxes;      /* per entry, if the run is fed */
    size_t cap_boxes;
    size_t nroots;        /* the first entries, which are those of roots and inputs */
    int64_t missing;      /* gradients that have not been fed yet */
    pd_closure *at_end;
    size_t nat_end, cap_at_end;
    struct pd_run *outer; /* during a turn: the run of this thread around it */
    uint64_t id;
    double work;
    uint32_t *deferred;   /* of a split run: nodes that the second turn visits, in the order of the first */
    size_t ndeferred, cap_deferred;
    bool second;
    bool started, ended, failed;
    atomic_bool busy;     /* a thread is in it */
} pd_run;

/* All of these return PD_E_RUNTIME and do nothing while another thread is in the run. After any other failure the run
   can only be closed, except after pd_run_feed has refused a gradient. */

/* Initialises *r, puts gradients on the roots and counts what they reach. After a failure there is nothing to close. */
pd_status pd_run_open(pd_run *r, const pd_backward *b);
/* Announces that every output of the node will be fed once. PD_E_RUNTIME: a turn has already passed what it leads
   to. */
pd_status pd_run_discover(pd_run *r, pd_node *node);
/* Gives the node's output `index` a gradient from outside; NULL: there is none. The caller makes sure that g has the
   output's dtype, shape and device. g is retained. */
pd_status pd_run_feed(pd_run *r, pd_node *node, int index, pd_tensor *g);
/* Runs all nodes that are ready, and those that become ready. */
pd_status pd_run_turn(pd_run *r);
/* Makes the next turn of a split run its second one. PD_E_RUNTIME: its first turn has not been made. */
pd_status pd_run_second(pd_run *r);
/* [borrowed from r] number i, below r->count, of what the run reaches, in the order in which it was found: a node, or
   NULL and a leaf. */
pd_node *pd_run_reached(const pd_run *r, size_t i, pd_tensor **leaf);
/* Whether a turn was made (of a split run: both), all gradients were fed, and no node is ready. */
bool pd_run_is_done(const pd_run *r);
/* Ends the run in every case and frees what it kept. No thread may be in it. status: the failure so far, which is
   returned. With PD_OK the run has to be done (else PD_E_RUNTIME names a node that waits), and the functions given to
   pd_engine_at_end are called. */
pd_status pd_run_close(pd_run *r, pd_status status);

/* Adds g to the leaf's .grad, which is its destination's view if it has one. */
pd_status pd_leaf_accumulate(pd_tensor *leaf, pd_tensor *g, bool create_graph);
/* The same for a gradient that the caller has made, whose memory nobody else will use: the leaf's hooks run as in
   backward, and without a .grad so far g becomes it. */
pd_status pd_leaf_give(pd_tensor *leaf, pd_tensor *g);

#endif
