/* The tape: what a recorded op leaves behind, and what a tensor knows of it.

   Edges point from an op's node to where its inputs came from: the node that made them, or the leaf itself. Hence
     output.meta -> node -> edge -> node -> ... -> edge -> leaf        (strong, in this direction only)
   and nothing points back: a node saves its inputs and outputs as aliases without autograd, so there is no cycle
   through a saved output; unpacking restores the history from the edges. Freed by a loop, never by recursion. */
#ifndef PD_AUTOGRAD_TAPE_H
#define PD_AUTOGRAD_TAPE_H

#include "autograd/destination.h"
#include "autograd/op.h"
#include "base/host.h"

typedef struct pd_edge {
    struct pd_node *fn;   /* [strong] the producer, or NULL */
    pd_tensor *leaf;      /* [strong] the leaf, or NULL; neither: no gradient wanted */
    int index;            /* which output of fn */
    /* dtype, shape and device (its index) of the input, known also where no gradient is wanted */
    int8_t dtype, ndim;
    int16_t device;
    const int64_t *size;  /* in the node's memory */
} pd_edge;

typedef struct pd_saved {
    /* [strong] an alias without autograd, or a leaf itself; with `packed` a shell: dtype, sizes and strides */
    pd_tensor *t;
    /* [owned] NULL, or what a hook made of it: call(ctx, pd_tensor **) gives [new] the tensor back */
    pd_closure *packed;
    unsigned version;
    int16_t index; /* of the input or output; -1: neither, t is kept itself */
    bool is_out;
    int8_t device; /* its index, with `packed` */
} pd_saved;

typedef enum pd_hook_kind {
    PD_HOOK_GRAD,  /* arg: pd_tensor **grad, which the hook may replace ([new] for the old one) */
    PD_HOOK_POST,  /* of a leaf, after its .grad is written; arg: the leaf */
    PD_HOOK_READY, /* of a leaf, C only, exactly once a backward when its gradient is final; arg: the leaf */
} pd_hook_kind;

typedef struct pd_hook {
    pd_closure closure;
    pd_hook_kind kind;
    int index;        /* of the node's output */
    atomic_int users; /* the list, until the hook is removed, and calls under way; the last one drops closure */
    uint64_t id;      /* 0: removed */
    struct pd_hook *next;
} pd_hook;

/* What retain_grad() leaves: the link from the hook on grad_fn, which may outlive the tensor, to its meta. */
typedef struct pd_retained {
    atomic_int refs;      /* the meta and each hook */
    struct pd_meta *meta; /* NULL once the tensor has gone */
    uint64_t hook;        /* on meta's grad_fn; 0: none */
} pd_retained;

typedef struct pd_node_kind {
    const char *name;                    /* NULL: the op's, or what name_of says */
    const char *(*name_of)(const struct pd_node *n);
    void (*run)(struct pd_vjp *v);
    void (*drop)(struct pd_node *n);     /* what `extra` holds; NULL: nothing */
    struct pd_node *(*inner)(const struct pd_node *n); /* [borrowed] a node that `extra` holds; NULL: none */
} pd_node_kind;

typedef struct pd_node {
    atomic_int_fast64_t refs;
    const pd_node_kind *kind;
    const pd_def *def;   /* NULL where kind is not an op's */
    void *extra;
    uint64_t seq;        /* later nodes run first in backward */
    double work;         /* nanoseconds of the forward call, for the GIL rule */
    int nin, nout, nsaved;
    atomic_bool freed;   /* a backward without retain_graph has passed: nobody may read what is saved */
    atomic_int readers;  /* of what is saved: the graph, until `freed`, and calls under way; the last one frees it */
    pd_edge *edges;
    pd_saved *saved;
    void *attrs;
    pd_hook *hooks;      /* [owned] PD_HOOK_GRAD, on outputs */
    /* of anomaly mode: says where forward made the node, called with its name when its backward fails */
    pd_closure trace;
    /* in a list that some walk keeps: of dying nodes, of those that the host's collector goes through */
    struct pd_node *next;
    pd_seen seen;
} pd_node;

/* The 16-bit copy of a parameter (autocast.h). */
typedef struct pd_low {
    pd_tensor *copy;      /* [strong] laid out like the parameter, or NULL */
    const pd_storage *of; /* whose value it is (only compared), as of so many writes; NULL: nobody's */
    unsigned writes;
    int8_t t;             /* the dtype that autocast wanted, if it asked since the last step */
    bool asked;
    size_t slot;          /* of the parameter's cast in the region */
} pd_low;

typedef struct pd_meta {
    pd_node *grad_fn;        /* [strong] NULL for a leaf */
    int index;
    bool sealed; /* shares memory in a way that the tape does not know: in-place ops raise (pd_node_custom) */
    pd_tensor *grad;         /* [strong] */
    pd_grad_destination destination; /* of a leaf: where its gradient has to lie */
    pd_hook *hooks;          /* [owned] of a leaf */
    uint32_t rebased;        /* of a base: how often an in-place op on a view gave it a new grad_fn */
    uint32_t base_rebased;   /* of a view: the base's count when grad_fn was last made */
    pd_low low;
    pd_retained *retained;   /* [strong] keeps .grad of a tensor that is no leaf; NULL: nothing does */
    struct pd_meta *next;    /* in a list that some walk keeps: of dying ones, of those that the collector follows */
} pd_meta;

extern _Thread_local bool pd_grad_mode; /* starts true */

/* Anomaly mode, of the process: nodes remember where they were made; with check_nan a NaN in a gradient is a
   failure. */
typedef struct pd_anomaly_mode {
    bool on, check_nan;
    pd_status (*trace)(pd_closure *out); /* set by the host */
} pd_anomaly_mode;
extern pd_anomaly_mode pd_anomaly;

/* What the host's saved-tensor hooks of this thread make of a tensor that is about to be saved (an output: an alias of
   it without autograd); NULL: it is kept as it is. What a hook gives back is checked for dtype and shape, its in-place
   writes are not. */
extern _Thread_local pd_status (*pd_saved_pack)(pd_tensor *t, pd_closure *out);
extern atomic_bool pd_saved_hooked; /* some thread has had hooks: false spares all others the look at pd_saved_pack */

pd_status pd_meta_get(pd_tensor *t, pd_meta **out); /* [borrowed from t] made if there is none */
/* .grad, which threads without the host's lock read and replace: [new] or NULL. */
pd_tensor *pd_meta_grad(pd_meta *m);
/* g, which is taken over, or NULL becomes .grad where that is still `was` (only compared); else false, and g stays the
   caller's. */
bool pd_meta_swap_grad(pd_meta *m, const pd_tensor *was, pd_tensor *g);
void pd_meta_set_grad(pd_meta *m, pd_tensor *g); /* the same, whatever it is */
/* Current history of t, made anew for a view whose base was written: grad_fn [borrowed], NULL for a leaf. */
pd_status pd_tensor_history(pd_tensor *t, pd_node **fn, int *index);
/* Keeps .grad although t is no leaf; goes with t where its grad_fn changes. */
pd_status pd_tensor_retain_grad(pd_tensor *t);
/* [new] a gradient that the host gives or gets: t itself where it is recorded, else an alias, since `.data =` may
   change the host's tensor at any time. */
pd_status pd_tensor_apart(pd_tensor *t, bool recorded, pd_tensor **out);
void pd_tensor_detach(pd_tensor *t);           /* history; a hook of retain_grad() stays with the old graph */
void pd_tensor_forget(pd_tensor *t);           /* history, gradient and hooks */
bool pd_tensor_wants_grad(const pd_tensor *t); /* requires_grad, a view's through its base too */

/* [new] a node with edges to the histories of the inputs; nin edges, attrs copied. */
pd_status pd_node_new(const pd_node_kind *kind, const pd_def *def, const void *attrs, size_t attr_bytes,
                      pd_tensor *const *in, int nin, int nout, int nsaved, pd_node **out);
pd_status pd_node_save(pd_node *n, int slot, pd_tensor *t, bool is_out, int index);
/* [new] what a slot keeps, with its history; NULL for an empty one. PD_E_RUNTIME where it was written in place since,
   or freed. */
pd_status pd_node_unpack(pd_node *n, int slot, pd_tensor **out);
/* [new] a node whose gradient a function of the host gives: c.call(c.ctx, pd_vjp *). `name` is copied. Takes c over,
   also on failure. */
pd_status pd_node_custom(const char *name, pd_closure c, pd_tensor *const *in, int nin, int nout, int nsaved,
                         pd_node **out);
const pd_closure *pd_node_closure(const pd_node *n); /* [borrowed from n] NULL where n is no custom node */
/* Between these what is saved stays, though another backward (of a hook, of a thread) frees it. false: it has been. */
bool pd_node_hold(pd_node *n);
void pd_node_let_go(pd_node *n);
void pd_node_free_saved(pd_node *n);
void pd_node_drop_saved(pd_node *n); /* the same for a node that dies: nobody reads it */
static inline void pd_node_retain(pd_node *n) { atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed); }
void pd_node_release(pd_node *n);
const char *pd_node_name(const pd_node *n);
/* Makes t the index-th output of n. */
pd_status pd_node_own(pd_node *n, int index, pd_tensor *t);
/* t was written in place by the call that n records (t is its input `written` and output `index`): t's history, and
   that of its base, move on. n has one output where t is a view. */
pd_status pd_node_rebase(pd_node *n, pd_tensor *t, int written, int index);

/* One more of some users, unless the last one has gone: what they use stays until they let go. */
static inline bool pd_hold(atomic_int *users) {
    int n = atomic_load(users);
    while (n && !atomic_compare_exchange_weak(users, &n, n + 1)) {}
    return n;
}

/* The hook's id; 0 on failure. */
uint64_t pd_hook_add(pd_hook **list, pd_hook_kind kind, int index, pd_closure c, pd_status *status);
pd_status pd_hook_call(pd_hook *h, void *arg); /* unless it was removed */
void pd_hook_remove(pd_hook **list, uint64_t id);
void pd_hooks_free(pd_hook *list); /* all of a list that dies */
extern atomic_int pd_hooks_running; /* backwards under way in the process: lists keep their links meanwhile */
int64_t pd_node_live(void);

extern const pd_node_kind pd_node_of_op;

/* The view ops that tape and engine need, registered by ops/: all recordable. */
typedef struct pd_engine_ops {
    pd_status (*add)(pd_tensor *a, pd_tensor *b, pd_tensor **out);
    pd_status (*add_into)(pd_tensor *a, pd_tensor *b);                     /* a += b, not recorded */
    pd_status (*sum_to)(pd_tensor *g, int ndim, const int64_t *size, pd_tensor **out);
    pd_status (*cast)(pd_tensor *t, pd_dtype dtype, pd_tensor **out);
    pd_status (*cast_to)(pd_tensor *t, pd_dtype dtype, pd_tensor *destination, pd_tensor **out); /* pd_apply_to */
    pd_status (*copy_into)(pd_tensor *to, pd_tensor *from);                /* not recorded */
    pd_status (*write)(pd_tensor *to, pd_tensor *from);                    /* copy_, recorded */
    pd_status (*clone)(pd_tensor *t, pd_tensor **out);                     /* keeps dense strides */
    pd_status (*ones_like)(pd_tensor *t, pd_tensor **out);
    pd_status (*zeros_like)(pd_tensor *t, pd_tensor **out);
    /* to another device, dense strides kept: recordable */
    pd_status (*move)(pd_tensor *t, const pd_device *to, bool wait, pd_tensor **out);
    /* view of t's storage with the geometry of `like`: recordable */
    pd_status (*as_strided)(pd_tensor *t, const pd_tensor *like, pd_tensor **out);
} pd_engine_ops;
extern pd_engine_ops pd_engine;

/* --- what a vjp sees ---------------------------------------------------------------------------------------------- */

typedef struct pd_vjp {
    pd_node *node;
    const void *attrs;
    pd_tensor **g;    /* [borrowed] gradients of the outputs; NULL: zero (never for a single output) */
    pd_tensor **gin;  /* [new] to be set by pd_vjp_set */
    void *run;        /* the engine's */
    bool create_graph;
    pd_status status; /* first failure: later steps do nothing */
    pd_tensor **temps;
    size_t ntemps, cap_temps;
    pd_tensor **unpacked; /* NULL, or by slot what hooks gave back, kept among temps */
} pd_vjp;

static inline bool pd_vjp_needs(const pd_vjp *v, int i) {
    return v->node->edges[i].fn || v->node->edges[i].leaf;
}
/* [borrowed from v] saved input or output i, its version checked; NULL once v has failed or where it was not given. */
pd_tensor *pd_vjp_in(pd_vjp *v, int i);
pd_tensor *pd_vjp_out(pd_vjp *v, int i);
/* [borrowed from v] saved input i for its sizes and strides only: its values may have changed since. */
const pd_tensor *pd_vjp_geometry(pd_vjp *v, int i);
/* Releases what v keeps; gin stays. */
void pd_vjp_end(pd_vjp *v);
/* Takes a [new] tensor into v's keeping (and the status of the call that made it); returns it, NULL on failure. */
pd_tensor *pd_vjp_keep(pd_vjp *v, pd_status status, pd_tensor *t);
/* The gradient of input i; t is borrowed, NULL does nothing. */
void pd_vjp_set(pd_vjp *v, int i, pd_tensor *t);
/* [borrowed] where the gradient of input i will lie, if that is known: the op that makes it is given this (pd_x_to),
   which saves a copy of what is large. NULL: anywhere. */
pd_tensor *pd_vjp_destination(const pd_vjp *v, int i);
/* [borrowed] what has arrived so far of input i's gradient, where it may be added to in place of pd_vjp_set: for
   gradients that are zero but in a part. Else NULL. */
pd_tensor *pd_vjp_sum(pd_vjp *v, int i);
/* Whether the gradient of input i may be given in float32 though the input is of 16 bits: it was cast from float32, and
   nobody else sees that gradient. */
bool pd_vjp_may_widen(const pd_vjp *v, int i);

#endif
