/* The inside of a run: engine.c (nodes and turns), reach.c (what a run reaches, which node is next), feed.c (gradients
   from outside), deferred.c (two turns), parts.c (gradients of slices), ahead.c (what a gradient will be used for),
   leaf.c (what happens where a gradient ends). */
#ifndef PD_AUTOGRAD_ENGINE_IMPL_H
#define PD_AUTOGRAD_ENGINE_IMPL_H

#include "autograd/engine.h"

/* A gradient of which only the indices [from, to) of one dimension have been written. */
typedef struct pd_run_parts {
    pd_tensor *whole; /* the gradient, which the entry keeps; NULL: none is made of parts */
    int dim, nplaced;
    int64_t from, to;
    const pd_node *placed[4]; /* slices whose gradients lie in their places, but have not come yet */
    bool with_sums[4];        /* and whose columns have been summed */
    pd_tensor *sums;          /* [strong] float32, of the whole's columns; NULL: nobody wants them, or has them all */
    int64_t summed;           /* columns whose gradients have come */
} parts;

/* One for each node or leaf of the run. It keeps them alive, since a hook may drop the graph (detach_(), del). */
typedef struct pd_run_entry {
    const void *key;      /* pd_node * or pd_tensor * (leaf) */
    pd_node *node;        /* [strong] NULL: a leaf */
    pd_tensor *leaf;      /* [strong] */
    int64_t waiting;      /* edges and gradients from outside that have not come yet */
    bool needed;          /* leads to an input or leaf whose gradient is wanted */
    bool early;           /* in a split run: leads to one of the inputs; or is a node, if there are no inputs */
    bool seen, whole;     /* in a split run: the first turn has put the node off to the second; and has called it */
    bool expanded;
    bool is_root;
    int first_capture;    /* first of a chain of wanted inputs that are this node's outputs; -1: none */
    pd_tensor *one;       /* the gradient, if the node has one output */
    pd_tensor **many;     /* for several outputs an array; NULL until the first arrives */
    pd_tensor **kept;     /* in a split run: gradients for the second turn, by edge, of a node that runs once */
    parts parts;          /* of one of them */
} entry;

typedef struct pd_run_capture {
    int next;             /* the next wanted input of the same node; -1: none */
    int index;            /* which output of the node; kept, since a hook may change the input's history */
} capture;

/* A gradient that has arrived in a fed run. */
typedef struct pd_run_part {
    pd_tensor *g;         /* [strong] NULL: there is none */
    uint64_t seq;         /* of the node that gave it; UINT64_MAX: from outside */
    int edge, index;      /* the edge of that node (from outside: the index), and the receiver's output */
} part;

typedef struct pd_run_inbox {
    part *parts;
    size_t n, cap;
    int expected;         /* outputs that have not been fed yet */
} inbox;

/* ---- reach.c */

static inline size_t pd_run_hash(const void *key) {
    return (size_t)(((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15u >> 20);
}

/* The entry of a node or leaf; NULL: not in the run. The run has at least one entry. */
static inline entry *pd_run_find(const pd_run *r, const void *key) {
    for (size_t i = pd_run_hash(key);; i++) {
        uint32_t s = r->slots[i & (r->nslots - 1)];
        if (!s) return NULL;
        if (r->entries[s - 1].key == key) return &r->entries[s - 1];
    }
}
static inline entry *pd_run_target(const pd_run *r, const pd_edge *e) {
    return pd_run_find(r, e->fn ? (const void *)e->fn : e->leaf);
}
pd_status pd_run_find_or_add(pd_run *r, pd_node *node, pd_tensor *leaf, uint32_t *index);
/* Counts the edges of all that an entry leads to. The entry has not been expanded yet. */
pd_status pd_run_reach(pd_run *r, uint32_t root);
/* Puts a node on the heap of ready ones. */
pd_status pd_run_push(pd_run *r, uint32_t index);
uint32_t pd_run_pop(pd_run *r);

/* ---- engine.c */

/* The gradients of e's outputs. NULL if the node has several outputs and none has arrived. */
static inline pd_tensor **pd_run_grads(entry *e) { return e->node && e->node->nout > 1 ? e->many : &e->one; }
/* Where the gradient of e's output `index` lies. */
pd_status pd_run_slot(entry *e, int index, pd_tensor ***out);
/* Whether another gradient may be added to t, a gradient of e, in place. */
bool pd_run_may_grow(const entry *e, const pd_tensor *t);
/* e's gradient += g; g is borrowed. */
pd_status pd_run_add(pd_run *r, entry *e, int index, pd_tensor *g);
/* From enter to leave this thread is alone in the run. PD_E_RUNTIME: another thread is in it. */
pd_status pd_run_enter(pd_run *r);
static inline void pd_run_leave(pd_run *r) { atomic_store_explicit(&r->busy, false, memory_order_release); }

/* ---- deferred.c */

/* What a turn does with a node. */
typedef struct pd_run_half {
    uint64_t skip;   /* bits of edges that are the other turn's */
    uint64_t hide;   /* bits of edges whose gradients the node's function must not make */
    bool skips_rest; /* edges from the 64th on are the other turn's */
    bool calls;      /* the node's function is called in this turn */
    bool last;       /* it is not called in a later one */
    bool defer;      /* the other turn visits the node, too */
} pd_run_half;
pd_run_half pd_run_half_of(const pd_run *r, const entry *e);
static inline bool pd_run_skips(const pd_run_half *s, int i) { return i < 64 ? s->skip >> i & 1 : s->skips_rest; }
/* Puts the node off to the second turn. It takes over the gradients in gin that belong to that turn. */
pd_status pd_run_defer(pd_run *r, entry *e, const pd_run_half *s, pd_tensor **gin);

/* ---- parts.c

   Slices of one tensor write their gradients next to each other into one whole. It is not filled with zeros before, so
   the gradients of a split are copied, and nothing is added. An op may also make the gradient of a part in its place,
   then nothing is copied. */

/* Makes the gradient of parts in *slot a normal one: fills the rest with zeros. What lies in its place, but has not
   come yet, is taken out; it will be added when it comes, so that the order of sums stays the same. slot may be NULL
   where all have come. */
pd_status pd_run_end_parts(parts *p, pd_tensor **slot);

/* ---- ahead.c */

/* Whether the sums of the columns of e's gradient are wanted: of an op with a bias, and nobody else sees it. */
bool pd_run_wants_sums(const entry *e);
/* Whether the op behind e reads a gradient in 16 bits that comes now: the only one, which nobody else sees. */
bool pd_run_reads_low(const pd_run *r, const pd_edge *e);

/* ---- leaf.c */

/* A leaf's gradient is final: calls its hooks, writes .grad (or calls the sink), and calls the hooks after that. */
pd_status pd_run_finish_leaf(pd_run *r, entry *e);
pd_status pd_call_grad_hooks(pd_hook *hooks, int index, pd_tensor **g);

/* ---- feed.c */

/* Keeps a gradient for e until all have come. It came on this edge of the node with this seq. */
pd_status pd_run_keep(pd_run *r, const entry *e, uint64_t seq, int edge, int index, pd_tensor *g);
/* Adds e's gradients in the order of edges, once all have come. */
pd_status pd_run_settle(pd_run *r, entry *e);
void pd_run_free_boxes(pd_run *r);

#endif
