/* The inside of a run: engine.c (nodes and turns), reach.c (what a run reaches, which node is next), feed.c (gradients
   from outside), leaf.c (what happens where a gradient ends). */
#ifndef PD_AUTOGRAD_ENGINE_IMPL_H
#define PD_AUTOGRAD_ENGINE_IMPL_H

#include "autograd/engine.h"

/* One per node or leaf of the run, which keeps them: a hook may drop the graph (detach_(), del) meanwhile. */
typedef struct pd_run_entry {
    const void *key;      /* pd_node * or pd_tensor * (leaf) */
    pd_node *node;        /* [strong] NULL: a leaf */
    pd_tensor *leaf;      /* [strong] */
    int64_t waiting;      /* edges, and gradients from outside, that have not delivered yet */
    bool needed;          /* leads to something that is asked for */
    bool expanded;
    bool is_root;
    int first_capture;    /* inputs asked for at this node's outputs: chain by captures; -1: none */
    pd_tensor *one;       /* the gradient, where there is one output */
    pd_tensor **many;     /* else an array of them, NULL until the first arrives */
} entry;

typedef struct pd_run_capture {
    int next;             /* input that is asked for at the same node; -1: none */
    int index;            /* of the node's output: a hook may give the input another history */
} capture;

/* One gradient that arrived in a run that is fed. */
typedef struct pd_run_part {
    pd_tensor *g;         /* [strong] NULL: fed as none */
    uint64_t seq;         /* of the node that gave it; UINT64_MAX: from outside */
    int edge, index;      /* of that node (from outside: index); of the receiver's output */
} part;

typedef struct pd_run_inbox {
    part *parts;
    size_t n, cap;
    int expected;         /* outputs that are still to be fed */
} inbox;

/* ---- reach.c */

static inline size_t pd_run_hash(const void *key) {
    return (size_t)(((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15u >> 20);
}

/* NULL: not in the run, whose map has an entry. */
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
/* Counts the edges of all that follows from an entry, which is not expanded yet. */
pd_status pd_run_reach(pd_run *r, uint32_t root);
/* The ready heap. */
pd_status pd_run_push(pd_run *r, uint32_t index);
uint32_t pd_run_pop(pd_run *r);

/* ---- engine.c */

/* The gradients of e's outputs; NULL where none has arrived at a node of several outputs. */
static inline pd_tensor **pd_run_grads(entry *e) { return e->node && e->node->nout > 1 ? e->many : &e->one; }
/* e's gradient += g; g is borrowed. */
pd_status pd_run_add(pd_run *r, entry *e, int index, pd_tensor *g);
/* A thread is in the run alone from enter to leave; PD_E_RUNTIME where another one is. */
pd_status pd_run_enter(pd_run *r);
static inline void pd_run_leave(pd_run *r) { atomic_store_explicit(&r->busy, false, memory_order_release); }

/* ---- leaf.c */

/* The gradient of a leaf is whole: its hooks, .grad (or what takes its place), the hooks that follow. */
pd_status pd_run_finish_leaf(pd_run *r, entry *e);
pd_status pd_call_grad_hooks(pd_hook *hooks, int index, pd_tensor **g);

/* ---- feed.c */

/* Keeps a gradient that came on an edge of the node of that seq, until e has all of them. */
pd_status pd_run_keep(pd_run *r, const entry *e, uint64_t seq, int edge, int index, pd_tensor *g);
/* All of e's have come: they are added, in the order of edges. */
pd_status pd_run_settle(pd_run *r, entry *e);
void pd_run_free_boxes(pd_run *r);

#endif
