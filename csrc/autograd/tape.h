/* The tape: what a recorded op leaves behind, and what a tensor knows of it.

   Edges point from an op's node to where its inputs came from: the node that made them, or the leaf itself.
     output.meta -> node -> edge -> node -> ... -> edge -> leaf        (strong, in this direction only)
   Nothing points back. A node saves its inputs and outputs as aliases without autograd, so a saved output makes no
   cycle; unpacking restores the history from the edges. A loop frees the graph, never a recursion. */
#ifndef PD_AUTOGRAD_TAPE_H
#define PD_AUTOGRAD_TAPE_H

#include "autograd/destination.h"
#include "autograd/op.h"
#include "base/host.h"

typedef struct pd_edge {
    struct pd_node *fn;   /* [strong] the producer, or NULL */
    pd_tensor *leaf;      /* [strong] the leaf, or NULL; both NULL: no gradient is wanted */
    int index;            /* which output of fn */
    /* dtype, shape and index of the device of the input; set even if no gradient is wanted */
    int8_t dtype, ndim;
    int16_t device;
    const int64_t *size;  /* in the node's memory */
} pd_edge;

typedef struct pd_saved {
    /* [strong] an alias without autograd, or a leaf itself; with `packed` a shell that has dtype, sizes and strides */
    pd_tensor *t;
    /* [owned] NULL, or a hook's replacement of the tensor: call(ctx, pd_tensor **) returns the tensor, [new] */
    pd_closure *packed;
    unsigned version;
    int16_t index; /* of the input or output; -1: neither, then t itself is kept */
    bool is_out;
    int8_t device; /* with `packed`: the index of the tensor's device */
} pd_saved;

typedef enum pd_hook_kind {
    PD_HOOK_GRAD,  /* arg: pd_tensor **grad, which the hook may replace by a [new] one */
    PD_HOOK_POST,  /* of a leaf, called after .grad is written; arg: the leaf */
    PD_HOOK_LEAF,  /* of a leaf, called after .grad is written or the sink has got the gradient; arg: the gradient */
    PD_HOOK_READY, /* of a leaf, in C only, called once in a backward when its gradient is final; arg: the leaf */
} pd_hook_kind;

typedef struct pd_hook {
    pd_closure closure;
    pd_hook_kind kind;
    int index;        /* of the node's output */
    atomic_int users; /* the list, until the hook is removed, and calls under way; the last user frees closure */
    uint64_t id;      /* 0: removed */
    struct pd_hook *next;
} pd_hook;

/* What retain_grad() leaves: the link to the meta from the hook on grad_fn, which may outlive the tensor. */
typedef struct pd_retained {
    atomic_int refs;      /* of the meta and of each hook */
    struct pd_meta *meta; /* NULL once the tensor has gone */
    uint64_t hook;        /* on meta's grad_fn; 0: none */
} pd_retained;

typedef struct pd_node_kind {
    const char *name;                    /* NULL: the op's name, or the result of name_of */
    const char *(*name_of)(const struct pd_node *n);
    void (*run)(struct pd_vjp *v);
    void (*drop)(struct pd_node *n);     /* frees `extra`; NULL: nothing to free */
    struct pd_node *(*inner)(const struct pd_node *n); /* [borrowed] a node that `extra` holds; NULL: none */
    bool always;                         /* run is called also if no gradient has come */
} pd_node_kind;

typedef struct pd_node {
    atomic_int_fast64_t refs;
    const pd_node_kind *kind;
    const pd_def *def;   /* NULL where kind is not an op's */
    void *extra;
    uint64_t seq;        /* later nodes run first in backward */
    double work;         /* nanoseconds of the forward call, for the GIL rule */
    int nin, nout, nsaved;
    atomic_bool freed;   /* a backward without retain_graph has passed: what was saved must not be read */
    atomic_int readers;  /* of saved tensors: the graph, until `freed`, and calls under way; the last one frees them */
    pd_edge *edges;
    pd_saved *saved;
    void *attrs;
    pd_hook *hooks;      /* [owned] PD_HOOK_GRAD, on outputs */
    /* in anomaly mode: called with the node's name when its backward fails, to say where forward made the node */
    pd_closure trace;
    /* the next in a list of dying nodes, or of those that Python's collector visits */
    struct pd_node *next;
    pd_seen seen;
} pd_node;

/* What else is known of a tensor's values (beside.h), and of a parameter's casts (autocast.h). */
typedef struct pd_low {
    pd_tensor *copy;      /* [strong] in 16 bits, with the tensor's strides, or NULL */
    pd_tensor *sums;      /* [strong] of a gradient's columns, or NULL */
    const pd_storage *of; /* the storage of which both are true (only compared); NULL: none */
    unsigned writes;      /* of that storage and of the copy's: both are true while this is their sum */
    int8_t t;             /* the dtype that autocast wanted of a parameter, if it asked since the last step */
    bool asked;
    size_t slot;          /* of the parameter's cast in the autocast region */
} pd_low;

/* What was last made of a tensor, for the next one who wants the same. */
typedef struct pd_derived {
    pd_tensor *made;      /* [strong] */
    const void *how;      /* only compared */
    unsigned from, to;    /* the versions of the tensor and of what was made of it */
    bool recorded;
} pd_derived;

typedef struct pd_meta {
    pd_node *grad_fn;        /* [strong] NULL for a leaf */
    int index;
    bool sealed; /* shares memory in a way unknown to the tape, so in-place ops raise (pd_node_custom) */
    pd_tensor *grad;         /* [strong] */
    pd_grad_destination destination; /* of a leaf: where its gradient must lie */
    pd_hook *hooks;          /* [owned] of a leaf */
    uint32_t rebased;        /* of a base: how often an in-place op on a view gave it a new grad_fn */
    uint32_t base_rebased;   /* of a view: the base's count when grad_fn was last made */
    pd_low low;
    pd_retained *retained;   /* [strong] of a tensor that is no leaf and keeps .grad, else NULL */
    pd_derived *derived;     /* [owned] NULL: nothing */
    struct pd_meta *next;    /* the next in a list of dying ones, or of those that Python's collector visits */
} pd_meta;

extern _Thread_local bool pd_grad_mode; /* starts true */

/* Anomaly mode of the process: nodes remember where they were made; with check_nan a NaN in a gradient is an error. */
typedef struct pd_anomaly_mode {
    bool on, check_nan;
    pd_status (*trace)(pd_closure *out); /* set by the host */
} pd_anomaly_mode;
extern pd_anomaly_mode pd_anomaly;

/* Calls this thread's saved-tensor hooks of Python for a tensor that is about to be saved (for an output: an alias
   without autograd). NULL: no hooks, the tensor is kept as it is. The dtype and shape of what a hook returns are
   checked; whether a hook writes the tensor in place is not. */
extern _Thread_local pd_status (*pd_saved_pack)(pd_tensor *t, pd_closure *out);
extern atomic_bool pd_saved_hooked; /* a thread has had hooks; while false, nobody needs to read pd_saved_pack */

pd_status pd_meta_get(pd_tensor *t, pd_meta **out); /* [borrowed from t] made if t has none, by one thread at a time */
/* [new] .grad, or NULL. Threads without the host's lock may read and replace it at the same time. */
pd_tensor *pd_meta_grad(pd_meta *m);
/* If .grad is still `was` (only compared), replaces it by g (or NULL) and takes ownership of g. Else returns false, and
   g stays the caller's. */
bool pd_meta_swap_grad(pd_meta *m, const pd_tensor *was, pd_tensor *g);
void pd_meta_set_grad(pd_meta *m, pd_tensor *g); /* replaces .grad in every case */
/* [new] what was last made of t, if it was made in the same way (`how`), recorded or not as asked, and neither has been
   written since; else NULL. t keeps it, so whether it is there does not depend on what is freed when. */
pd_tensor *pd_tensor_derived(pd_tensor *t, const void *how, bool recorded);
pd_status pd_tensor_derive(pd_tensor *t, const void *how, pd_tensor *made); /* t is no leaf of a graph */
/* The current history of t: grad_fn [borrowed], NULL for a leaf. For a view whose base was written it is made anew. */
pd_status pd_tensor_history(pd_tensor *t, pd_node **fn, int *index);
/* Keeps .grad of t although t is no leaf, also after its grad_fn changes. */
pd_status pd_tensor_retain_grad(pd_tensor *t);
/* [new] for a gradient that Python gives or gets: t itself if it is recorded, else an alias, since `.data =` may change
   Python's tensor at any time. */
pd_status pd_tensor_apart(pd_tensor *t, bool recorded, pd_tensor **out);
void pd_tensor_detach(pd_tensor *t);           /* drops the history; a hook of retain_grad() stays with the old graph */
void pd_tensor_forget(pd_tensor *t);           /* drops history, gradient and hooks */
bool pd_tensor_wants_grad(const pd_tensor *t); /* requires_grad of t, or of the base of a view */

/* [new] a node with nin edges, to the histories of the inputs. attrs are copied. */
pd_status pd_node_new(const pd_node_kind *kind, const pd_def *def, const void *attrs, size_t attr_bytes,
                      pd_tensor *const *in, int nin, int nout, int nsaved, pd_node **out);
pd_status pd_node_save(pd_node *n, int slot, pd_tensor *t, bool is_out, int index);
/* [new] the tensor that a slot keeps, with its history; NULL if the slot is empty. PD_E_RUNTIME: it was freed, or
   written in place since it was saved. */
pd_status pd_node_unpack(pd_node *n, int slot, pd_tensor **out);
/* [new] a node whose gradient a Python function computes: c.call(c.ctx, pd_vjp *). `name` is copied. Owns c from now
   on, also if it fails. */
pd_status pd_node_custom(const char *name, pd_closure c, pd_tensor *const *in, int nin, int nout, int nsaved,
                         pd_node **out);
const pd_closure *pd_node_closure(const pd_node *n); /* [borrowed from n] NULL if n is no custom node */
/* Between these two calls the saved tensors stay, even if another backward (in a hook or thread) frees them. False:
   they are freed already. */
bool pd_node_hold(pd_node *n);
void pd_node_let_go(pd_node *n);
void pd_node_free_saved(pd_node *n);
void pd_node_drop_saved(pd_node *n); /* frees what a dying node has saved; nobody reads it */
static inline void pd_node_retain(pd_node *n) { atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed); }
void pd_node_release(pd_node *n);
const char *pd_node_name(const pd_node *n);
/* Makes t the index-th output of n. */
pd_status pd_node_own(pd_node *n, int index, pd_tensor *t);
/* The call that n records has written t in place: t is its input `written` and its output `index`. Updates the history
   of t and of its base. If t is a view, n has one output. */
pd_status pd_node_rebase(pd_node *n, pd_tensor *t, int written, int index);

/* Adds a user, unless the last one has gone. What they use stays until the last one lets go. */
static inline bool pd_hold(atomic_int *users) {
    int n = atomic_load(users);
    while (n && !atomic_compare_exchange_weak(users, &n, n + 1)) {}
    return n;
}

/* The hook's id; 0 on failure. */
uint64_t pd_hook_add(pd_hook **list, pd_hook_kind kind, int index, pd_closure c, pd_status *status);
pd_status pd_hook_call(pd_hook *h, void *arg); /* does nothing if it was removed */
void pd_hook_remove(pd_hook **list, uint64_t id);
void pd_hooks_free(pd_hook *list); /* frees all hooks of a list */
extern atomic_int pd_hooks_running; /* backwards under way in the process; meanwhile lists keep their links */
int64_t pd_node_live(void);

extern const pd_node_kind pd_node_of_op;

/* The ops that tape and engine need, registered by ops/. */
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
    /* copies to another device and keeps dense strides; recorded */
    pd_status (*move)(pd_tensor *t, const pd_device *to, pd_copy_wait wait, pd_tensor **out);
    /* a view of t's storage with the geometry of `like`; recorded */
    pd_status (*as_strided)(pd_tensor *t, const pd_tensor *like, pd_tensor **out);
} pd_engine_ops;
extern pd_engine_ops pd_engine;

/* --- what a vjp sees ---------------------------------------------------------------------------------------------- */

typedef struct pd_vjp {
    pd_node *node;
    const void *attrs;
    pd_tensor **g;    /* [borrowed] gradients of the outputs; NULL: zero (a single output always has one) */
    pd_tensor **gin;  /* [new] set by pd_vjp_set */
    uint64_t skip;    /* bits of inputs, of the first 64, whose gradients another turn makes */
    void *run;        /* the engine's */
    bool create_graph;
    bool last;        /* the node's saved tensors are freed after this call */
    pd_status status; /* first failure: later steps do nothing */
    pd_tensor **temps;
    size_t ntemps, cap_temps;
    pd_tensor **unpacked; /* NULL, or for each slot what hooks have returned, which is among temps, too */
} pd_vjp;

static inline bool pd_vjp_needs(const pd_vjp *v, int i) {
    return (v->node->edges[i].fn || v->node->edges[i].leaf) && !(i < 64 && (v->skip >> i & 1));
}
/* [borrowed from v] saved input or output i, after a check of its version. NULL if v has failed or it was not given. */
pd_tensor *pd_vjp_in(pd_vjp *v, int i);
pd_tensor *pd_vjp_out(pd_vjp *v, int i);
/* [borrowed from v] saved input i, for its sizes and strides only: its values may have changed. */
const pd_tensor *pd_vjp_geometry(pd_vjp *v, int i);
/* [borrowed from v] saved input or output i's memory, to write the gradient over it, if nobody else can see it or will
   read it again; else NULL. After that no other backward can use the node. */
pd_tensor *pd_vjp_take(pd_vjp *v, int i);
pd_tensor *pd_vjp_take_out(pd_vjp *v, int i);
/* Releases what v keeps, except gin. */
void pd_vjp_end(pd_vjp *v);
/* Gives v a [new] tensor to keep, and the status of the call that made it. Returns t, or NULL after a failure. */
pd_tensor *pd_vjp_keep(pd_vjp *v, pd_status status, pd_tensor *t);
/* Sets the gradient of input i. t is borrowed; NULL does nothing. */
void pd_vjp_set(pd_vjp *v, int i, pd_tensor *t);
/* [borrowed] where the gradient of input i will lie, if that is known; else NULL. Give it to the op that makes a large
   gradient (pd_x_to), which saves a copy. */
pd_tensor *pd_vjp_destination(const pd_vjp *v, int i);
/* [borrowed] the sum of input i's gradients so far, if this vjp may add to it in the place of calling pd_vjp_set; else
   NULL. For gradients that are zero in all but a small part. */
pd_tensor *pd_vjp_sum(pd_vjp *v, int i);
/* Of an op that has `part`: puts the gradient of output 0 into that part of input 0's, which the gradients of other
   parts share. The engine fills what nobody has written with zeros. False: the vjp sets a whole gradient. */
bool pd_vjp_put_part(pd_vjp *v);
/* [borrowed from v] where the gradient of input i will lie, if input i is a part of a tensor, seen through views that
   nobody else uses; else NULL. The vjp has to write all of it and to set it. It may have any strides. */
pd_tensor *pd_vjp_place(pd_vjp *v, int i);
/* [borrowed from v] for the place that pd_vjp_place has just given, a part of `width` columns: where the vjp has to
   write their sums, float32. NULL: they are not wanted, or the part has other columns. */
pd_tensor *pd_vjp_place_sums(pd_vjp *v, int i, int64_t width);
/* Whether the gradient of the 16-bit input i may be float32: the input was cast from float32, nobody else sees its
   gradient, and no op before the cast would read it as it is (pd_op.reads_low). */
bool pd_vjp_may_widen(const pd_vjp *v, int i);

/* What the next gradient of input i will be used for, if it is the last one and no hook sees it. */
typedef struct pd_ahead {
    pd_dtype low; /* it will be passed on in this 16-bit dtype, too; PD_NO_DTYPE: no */
    bool sums;    /* the sums of its columns are wanted; where `low` is given, those of the 16-bit copy */
} pd_ahead;
/* A vjp that makes these besides gives them to pd_beside_set. `first`: no other gradient has come before; else the vjp
   adds to pd_vjp_sum. Nothing is wanted on the CPU. */
pd_ahead pd_vjp_ahead(const pd_vjp *v, int i, bool first);

#endif
