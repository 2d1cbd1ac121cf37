#include "autograd/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/nan.h"
#include "autograd/laps.h"
#include "base/mem.h"

/* One entry per node or leaf of the run, which keeps them: a hook may drop the graph (detach_(), del) meanwhile. */
typedef struct entry {
    const void *key;      /* pd_node * or pd_tensor * (leaf) */
    pd_node *node;        /* [strong] NULL: a leaf */
    pd_tensor *leaf;      /* [strong] */
    int64_t waiting;      /* edges that have not delivered yet */
    bool needed;          /* leads to something that is asked for */
    bool expanded;
    bool is_root;
    int first_capture;    /* inputs asked for at this node's outputs: chain by captures; -1: none */
    pd_tensor *one;       /* the gradient, where there is one output */
    pd_tensor **many;     /* else an array of them, NULL until the first arrives */
} entry;

typedef struct capture {
    int next;             /* input that is asked for at the same node; -1: none */
    int index;            /* of the node's output: a hook may give the input another history */
} capture;

typedef struct run {
    const pd_backward *b;
    entry *entries;
    size_t count, cap;
    uint32_t *slots;      /* open addressing: index + 1 */
    size_t nslots;
    uint32_t *heap;       /* ready nodes, the latest on top */
    size_t nheap, cap_heap;
    capture *captures;    /* per input */
    pd_closure *at_end;
    size_t nat_end, cap_at_end;
    struct run *outer;
    uint64_t id;
    double work;
} run;

static _Thread_local run *current;
static atomic_uint_fast64_t next_id = 1;

/* Of leaves, by address: taken while a gradient is added to .grad where it lies. */
#define LEAF_LOCKS 64
static pthread_mutex_t leaf_locks[LEAF_LOCKS] = {[0 ... LEAF_LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER};

bool pd_engine_is_running(void) { return current != NULL; }

uint64_t pd_engine_current(bool *some) {
    *some = current && current->b->inputs;
    return current ? current->id : 0;
}

pd_status pd_engine_at_end(pd_closure c) {
    if (!current) return pd_fail(PD_E_RUNTIME, "no backward is running in this thread");
    PD_TRY(pd_grow(&current->at_end, &current->cap_at_end, current->nat_end + 1, sizeof c, "backward"));
    current->at_end[current->nat_end++] = c;
    return PD_OK;
}

/* ---- the map ----------------------------------------------------------------------------------------------------- */

static size_t hash(const void *key) { return (size_t)(((uintptr_t)key >> 4) * 0x9E3779B97F4A7C15u >> 20); }

static entry *find(const run *r, const void *key) {
    for (size_t i = hash(key);; i++) {
        uint32_t s = r->slots[i & (r->nslots - 1)];
        if (!s) return NULL;
        if (r->entries[s - 1].key == key) return &r->entries[s - 1];
    }
}

static void insert_slot(run *r, uint32_t index) {
    size_t i = hash(r->entries[index].key);
    while (r->slots[i & (r->nslots - 1)]) i++;
    r->slots[i & (r->nslots - 1)] = index + 1;
}

static pd_status find_or_add(run *r, pd_node *node, pd_tensor *leaf, uint32_t *index, bool *added) {
    const void *key = node ? (const void *)node : leaf;
    entry *e = r->nslots ? find(r, key) : NULL;
    *added = !e;
    if (e) {
        *index = (uint32_t)(e - r->entries);
        return PD_OK;
    }
    if (2 * (r->count + 1) > r->nslots) {
        size_t n = r->nslots ? 2 * r->nslots : 64;
        uint32_t *slots;
        PD_TRY(pd_calloc(n * sizeof *slots, "backward", &slots));
        pd_free(r->slots);
        r->slots = slots;
        r->nslots = n;
        for (uint32_t i = 0; i < r->count; i++) insert_slot(r, i);
    }
    PD_TRY(pd_grow(&r->entries, &r->cap, r->count + 1, sizeof(entry), "backward"));
    e = &r->entries[r->count];
    *e = (entry){.key = key, .node = node, .leaf = leaf, .first_capture = -1};
    if (node) pd_node_retain(node);
    else pd_tensor_retain(leaf);
    *index = (uint32_t)r->count++;
    insert_slot(r, *index);
    return PD_OK;
}

/* ---- discovery --------------------------------------------------------------------------------------------------- */

/* Depth first with a stack of our own; `needed` is known when all that follows from a node is. */
typedef struct frame { uint32_t index; int edge; } frame;

static pd_status discover(run *r, uint32_t root) {
    frame *stack = NULL;
    size_t depth = 0, cap = 0;
    bool all = !r->b->inputs;
    pd_status status = pd_grow(&stack, &cap, 1, sizeof *stack, "backward");
    if (status) return status;
    r->entries[root].expanded = true;
    stack[depth++] = (frame){root, 0};
    while (depth) {
        frame *f = &stack[depth - 1];
        pd_node *n = r->entries[f->index].node;
        if (!n || f->edge == n->nin) {
            entry *e = &r->entries[f->index];
            e->needed |= all || e->first_capture >= 0;
            if (n) r->work += n->work;
            depth--;
            if (depth && e->needed) r->entries[stack[depth - 1].index].needed = true;
            continue;
        }
        const pd_edge *edge = &n->edges[f->edge++];
        if (!edge->fn && !edge->leaf) continue;
        uint32_t child;
        bool added;
        PD_TRY_TO(done, find_or_add(r, edge->fn, edge->leaf, &child, &added));
        r->entries[child].waiting++;
        if (r->entries[child].expanded) {
            if (r->entries[child].needed) r->entries[stack[depth - 1].index].needed = true;
            continue;
        }
        r->entries[child].expanded = true;
        PD_TRY_TO(done, pd_grow(&stack, &cap, depth + 1, sizeof *stack, "backward"));
        stack[depth++] = (frame){child, 0};
    }
done:
    pd_free(stack);
    return status;
}

/* ---- the ready heap ---------------------------------------------------------------------------------------------- */

static bool later(const run *r, uint32_t a, uint32_t b) { return r->entries[a].node->seq > r->entries[b].node->seq; }

static pd_status push(run *r, uint32_t index) {
    PD_TRY(pd_grow(&r->heap, &r->cap_heap, r->nheap + 1, sizeof *r->heap, "backward"));
    size_t i = r->nheap++;
    for (; i && later(r, index, r->heap[(i - 1) / 2]); i = (i - 1) / 2) r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = index;
    return PD_OK;
}

static uint32_t pop(run *r) {
    uint32_t top = r->heap[0], last = r->heap[--r->nheap];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < r->nheap; i = c) {
        if (c + 1 < r->nheap && later(r, r->heap[c + 1], r->heap[c])) c++;
        if (!later(r, r->heap[c], last)) break;
        r->heap[i] = r->heap[c];
    }
    r->heap[i] = last;
    return top;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* The gradients of e's outputs; NULL where none has arrived at a node of several outputs. */
static pd_tensor **grads_of(entry *e) { return e->node && e->node->nout > 1 ? e->many : &e->one; }

static bool is_ours(const pd_tensor *t) { /* nobody else can see it or its memory */
    return t->refs == 1 && t->storage->refs == 1 && !t->base && !t->storage->drop && !t->requires_grad;
}

/* Whether t, a gradient of e, may be added to where it lies: ours, or made in a leaf's destination, which nobody reads
   before it is whole. */
static bool may_grow(const entry *e, const pd_tensor *t) {
    const pd_tensor *home = e->leaf && e->leaf->meta ? e->leaf->meta->destination.view : NULL;
    return is_ours(t) ||
           (home && t->refs == 1 && !t->base && t->storage == home->storage && t->offset == home->offset);
}

/* e's gradient += g; g is borrowed. */
static pd_status add_grad(run *r, entry *e, int index, pd_tensor *g) {
    pd_tensor *sum = NULL;
    if (e->node && e->node->nout > 1 && !e->many)
        PD_TRY(pd_calloc((size_t)e->node->nout * sizeof *e->many, "backward", &e->many));
    pd_tensor **to = &grads_of(e)[index];
    if (!*to) {
        pd_tensor_retain(*to = g);
        return PD_OK;
    }
    if (!pd_tensor_same_shape(*to, g))
        return pd_fail(PD_E_SHAPE,
                       "backward: two uses of a tensor give gradients of shapes %s and %s (expected one: was its .data "
                       "replaced between them?)",
                       pd_tensor_shape(*to), pd_tensor_shape(g));
    if (!r->b->create_graph && may_grow(e, *to)) return pd_engine.add_into(*to, g);
    PD_TRY(pd_engine.add(*to, g, &sum));
    pd_tensor_release(*to);
    *to = sum;
    return PD_OK;
}

/* Whether nobody but a cast sees the gradient of e's tensor: it may have another dtype then, the cast's input's. */
static bool is_passed(const run *r, const pd_edge *e) {
    return pd_autocast_is_cast(e->fn) && !e->fn->hooks && !r->b->inputs && !r->b->create_graph;
}

/* The shape and dtype of the input again: undoes broadcasting and promotion. g is [new] and replaced. */
static pd_status fit(const run *r, const pd_node *n, int i, pd_tensor **g) {
    const pd_edge *e = &n->edges[i];
    pd_tensor *t;
    if ((*g)->storage->device->index != e->device)
        return pd_fail(PD_E_RUNTIME, "%s: the gradient of input %d is on %s (expected the device of that input)",
                       pd_node_name(n), i, (*g)->storage->device->name);
    if (!pd_shape_equal((*g)->ndim, (*g)->size, e->ndim, e->size)) {
        if (n->def && (n->def->op->flags & PD_NO_BROADCAST_GRAD))
            return pd_fail(PD_E_RUNTIME, "%s: the gradient of input %d has shape %s (expected %s): a bug of this op",
                           pd_node_name(n), i, pd_tensor_shape(*g), pd_shape_text(e->ndim, e->size));
        PD_TRY(pd_engine.sum_to(*g, e->ndim, e->size, &t));
        pd_tensor_release(*g);
        *g = t;
    }
    if ((*g)->dtype != e->dtype && !is_passed(r, e)) {
        PD_TRY(pd_engine.cast(*g, (pd_dtype)e->dtype, &t));
        pd_tensor_release(*g);
        *g = t;
    }
    return PD_OK;
}

/* Kernels take a gradient to be what the forward said: a hook, which may also write `.data`, changes values only. */
static pd_status call_grad_hook(pd_hook *h, pd_tensor **g) {
    const pd_device *device = (*g)->storage->device;
    int dtype = (*g)->dtype, ndim = (*g)->ndim;
    int64_t size[PD_MAX_DIMS];
    memcpy(size, (*g)->size, sizeof *size * (size_t)ndim);
    PD_TRY(pd_hook_call(h, g));
    const pd_tensor *t = *g;
    bool shape = pd_shape_equal(t->ndim, t->size, ndim, size);
    if (shape && t->dtype == dtype && t->storage->device == device) return PD_OK;
    return pd_fail(shape ? PD_E_DTYPE : PD_E_SHAPE,
                   "a gradient hook returned %s of shape %s on %s (expected %s of shape %s on %s, as it was given)",
                   pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name,
                   pd_dtype_name((pd_dtype)dtype), pd_shape_text(ndim, size), device->name);
}

static pd_status call_grad_hooks(pd_hook *hooks, int index, pd_tensor **g) {
    for (pd_hook *h = hooks; h; h = h->next)
        if (h->kind == PD_HOOK_GRAD && h->index == index) PD_TRY(call_grad_hook(h, g));
    return PD_OK;
}

static pd_status call_leaf_hooks(pd_tensor *leaf, pd_hook_kind kind) {
    for (pd_hook *h = leaf->meta ? leaf->meta->hooks : NULL; h; h = h->next)
        if (h->kind == kind) PD_TRY(pd_hook_call(h, leaf));
    return PD_OK;
}

/* Dense, and memory that nobody else holds; so is a view of all of a tensor that lives by this view alone. */
static bool is_alone(const pd_tensor *g) {
    if (g->refs > 1 || g->storage->drop || !pd_tensor_is_contiguous(g)) return false;
    if (!g->base) return g->storage->refs == 1;
    return g->base->refs == 1 && g->storage->refs == 2 && g->numel == g->base->numel;
}

/* [new] what becomes .grad of a leaf that has none. */
static pd_status first_grad(const pd_meta *m, pd_tensor *g, pd_tensor **out) {
    pd_tensor *view = m->destination.view;
    if (view) {
        if (g->storage != view->storage || g->offset != view->offset) /* else made there */
            PD_TRY(pd_engine.copy_into(view, g));
        pd_tensor_retain(*out = view);
        return PD_OK;
    }
    /* Ours alone: taken as it is. Else a copy, so that .grad shares memory with nothing. */
    return is_alone(g) ? pd_tensor_alias(g, false, out) : pd_engine.clone(g, out);
}

static bool alike(const pd_tensor *a, const pd_tensor *b) {
    return a->dtype == b->dtype && a->storage->device == b->storage->device && pd_tensor_same_shape(a, b);
}

/* `.data =` may have changed what a tensor is since the forward: its gradient fits no more. */
static pd_status check_gradient(const char *what, const pd_tensor *t, const pd_tensor *g) {
    if (alike(t, g)) return PD_OK;
    return pd_fail(pd_tensor_same_shape(t, g) ? PD_E_DTYPE : PD_E_SHAPE,
                   "backward: %s is %s of shape %s on %s, but the gradient is %s of shape %s on %s (expected the same: "
                   "was its .data replaced since the forward?)",
                   what, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name,
                   pd_dtype_name((pd_dtype)g->dtype), pd_tensor_shape(g), g->storage->device->name);
}

/* .grad += g; under the leaf's lock, and no code of the host's runs. *old is to be released after it. */
static pd_status add_to_grad(pd_meta *m, pd_tensor *g, pd_tensor **old) {
    for (;;) { /* again where the host's .grad = ... was faster */
        pd_tensor *t = NULL;
        if ((*old = pd_meta_grad(m))) {
            PD_TRY(check_gradient(".grad of a leaf", *old, g));
            return pd_engine.add_into(*old, g);
        }
        PD_TRY(first_grad(m, g, &t));
        if (pd_meta_swap_grad(m, NULL, t)) return PD_OK;
        pd_tensor_release(t);
    }
}

/* .grad = .grad + g, recorded: the host's hooks may run, so no lock is held. */
static pd_status record_to_grad(pd_meta *m, pd_tensor *g) {
    if (m->destination.view && pd_tensor_wants_grad(g))
        return pd_fail(PD_E_RUNTIME, "backward: create_graph=True needs a .grad with a graph, and this one lies in a "
                                     "bucket of DistributedDataParallel (expected autograd.grad(..., "
                                     "create_graph=True), and backward of what is made of it)");
    for (;;) {
        pd_tensor *old = pd_meta_grad(m), *sum = NULL;
        pd_status status = PD_OK;
        if (old) status = check_gradient(".grad of a leaf", old, g);
        if (old && !status) status = pd_engine.add(old, g, &sum);
        else if (old) {}
        else if (m->destination.view) status = first_grad(m, g, &sum);
        else pd_tensor_retain(sum = g);
        bool done = !status && pd_meta_swap_grad(m, old, sum);
        pd_tensor_release(old);
        if (done || status) return status;
        pd_tensor_release(sum);
    }
}

pd_status pd_leaf_accumulate(pd_tensor *leaf, pd_tensor *g, bool create_graph) {
    pd_meta *m = NULL;
    pd_tensor *old = NULL;
    PD_TRY(check_gradient("a leaf", leaf, g));
    PD_TRY(pd_meta_get(leaf, &m));
    if (create_graph) return record_to_grad(m, g);
    pthread_mutex_t *lock = &leaf_locks[((uintptr_t)leaf >> 6) % LEAF_LOCKS];
    pd_host_lock(lock);
    pd_status status = add_to_grad(m, g, &old);
    pthread_mutex_unlock(lock);
    pd_tensor_release(old); /* maybe the last one, whose end runs code of the host's */
    return status;
}

static pd_status finish_leaf(run *r, uint32_t index) {
    entry *e = &r->entries[index];
    pd_tensor *leaf = e->leaf;
    if (!e->one) return PD_OK;
    if (leaf->meta && leaf->meta->grad_fn)
        return pd_fail(PD_E_RUNTIME,
                       "backward: a leaf, %s of shape %s, has become the result of %s: it was detached, and written in "
                       "place (expected a tensor that is a leaf still)",
                       pd_dtype_name((pd_dtype)leaf->dtype), pd_tensor_shape(leaf), pd_node_name(leaf->meta->grad_fn));
    if (leaf->meta) PD_TRY(call_grad_hooks(leaf->meta->hooks, 0, &e->one));
    if (r->b->inputs) {
        for (int k = e->first_capture; k >= 0; k = r->captures[k].next)
            if (!r->b->accumulate) pd_tensor_retain(r->b->out[k] = e->one);
        if (!r->b->accumulate || e->first_capture < 0) return PD_OK;
    }
    PD_TRY(pd_leaf_accumulate(leaf, e->one, r->b->create_graph));
    pd_tensor_release(e->one);
    e->one = NULL;
    PD_TRY(call_leaf_hooks(leaf, PD_HOOK_POST));
    return call_leaf_hooks(leaf, PD_HOOK_READY);
}

/* One edge into e has been served. */
static pd_status arrive(run *r, const pd_edge *edge) {
    entry *e = find(r, edge->fn ? (const void *)edge->fn : edge->leaf);
    uint32_t index = (uint32_t)(e - r->entries);
    if (--e->waiting) return PD_OK;
    return e->node ? push(r, index) : e->needed ? finish_leaf(r, index) : PD_OK;
}

/* Only where it will be the first and only gradient: what comes later is added to it. */
pd_tensor *pd_vjp_destination(const pd_vjp *v, int i) {
    const pd_edge *e = &v->node->edges[i];
    const run *r = v->run;
    if (!r || v->status || r->b->inputs || v->create_graph) return NULL;
    if (is_passed(r, e)) { /* made in the leaf's dtype, it is the leaf's */
        if (find(r, e->fn)->one) return NULL;
        e = &e->fn->edges[0];
    }
    const pd_meta *m = e->leaf ? e->leaf->meta : NULL;
    pd_tensor *view = m ? m->destination.view : NULL;
    if (!view || m->grad || find(r, e->leaf)->one) return NULL;
    for (int k = 0; k < v->node->nin; k++) /* the same leaf may be another input, too */
        if (v->gin[k] && v->gin[k]->storage == view->storage && v->gin[k]->offset == view->offset) return NULL;
    return view;
}

pd_tensor *pd_vjp_sum(pd_vjp *v, int i) {
    const pd_edge *e = &v->node->edges[i];
    if (!v->run || v->status || v->create_graph || !(e->fn || e->leaf)) return NULL;
    entry *to = find(v->run, e->fn ? (const void *)e->fn : e->leaf);
    pd_tensor *sum = !to || !to->needed          ? NULL
                     : e->leaf || e->fn->nout == 1 ? to->one
                     : to->many                    ? to->many[e->index]
                                                   : NULL;
    bool fits = sum && may_grow(to, sum) && sum->dtype == e->dtype &&
                pd_shape_equal(sum->ndim, sum->size, e->ndim, e->size);
    return fits ? sum : NULL;
}

bool pd_vjp_may_widen(const pd_vjp *v, int i) {
    const pd_edge *e = &v->node->edges[i];
    return v->run && is_passed(v->run, e) && e->fn->edges[0].dtype == PD_F32;
}

/* The node's own function on the gradients that arrived. */
static pd_status call_node(run *r, entry *e, pd_tensor **g, pd_tensor **gin) {
    pd_node *n = e->node;
    if (n->nsaved && !pd_node_hold(n))
        return pd_fail(PD_E_RUNTIME,
                       "backward: the graph was freed by an earlier backward, at %s (expected retain_graph=True there)",
                       pd_node_name(n));
    pd_vjp v = {.node = n, .attrs = n->attrs, .create_graph = r->b->create_graph, .g = g, .gin = gin, .run = r};
    bool finite = pd_nan_armed;
    for (int i = 0; i < n->nout && finite; i++) finite = pd_nan_finite(g[i]);
    pd_lap lap = pd_lap_begin();
    n->kind->run(&v);
    if (pd_lap_is_on(&lap) && !v.status) pd_lap_end_node(&lap, &v);
    for (int i = 0; finite && i < n->nin && !v.status; i++)
        if (!pd_nan_finite(gin[i])) v.status = pd_nan_report("the gradient of input", pd_node_name(n), i, gin[i]);
    for (int i = 0; pd_anomaly.check_nan && i < n->nin && !v.status; i++)
        if (pd_nan_has(gin[i]))
            v.status =
                pd_fail(PD_E_RUNTIME, "%s: its gradient has NaN values for input %d, %s of shape %s (anomaly mode)",
                        pd_node_name(n), i, pd_dtype_name((pd_dtype)gin[i]->dtype), pd_tensor_shape(gin[i]));
    if (v.status && n->trace.call) {
        pd_error error;
        pd_error_save(&error);
        n->trace.call(n->trace.ctx, (void *)(uintptr_t)pd_node_name(n));
        v.status = pd_error_restore(&error);
    }
    pd_vjp_end(&v);
    if (n->nsaved) pd_node_let_go(n);
    return v.status;
}

static pd_status run_node(run *r, uint32_t index) {
    entry *e = &r->entries[index];
    pd_node *n = e->node;
    pd_tensor *few[8] = {0}, **gin = few, **g = grads_of(e);
    bool any = false;
    for (int i = 0; e->needed && g && i < n->nout; i++) {
        if (!g[i]) continue;
        PD_TRY(call_grad_hooks(n->hooks, i, &g[i]));
        any = true;
    }
    for (int k = e->first_capture; g && k >= 0; k = r->captures[k].next) {
        int i = r->captures[k].index;
        if (g[i]) pd_tensor_retain(r->b->out[k] = g[i]);
    }
    if (n->nin > 8) PD_TRY(pd_calloc((size_t)n->nin * sizeof *gin, "backward", &gin));
    pd_status status = any ? call_node(r, e, g, gin) : PD_OK;
    /* What has served goes before more is made. */
    for (int i = 0; g && i < n->nout; i++) {
        pd_tensor_release(g[i]);
        g[i] = NULL;
    }
    if (!r->b->retain_graph && !r->b->create_graph) pd_node_free_saved(n);
    for (int i = 0; i < n->nin; i++) {
        const pd_edge *edge = &n->edges[i];
        if (gin[i] && !status) status = fit(r, n, i, &gin[i]);
        if (gin[i] && !status) {
            entry *to = find(r, edge->fn ? (const void *)edge->fn : edge->leaf);
            if (to->needed) status = add_grad(r, to, edge->leaf ? 0 : edge->index, gin[i]);
        }
        pd_tensor_release(gin[i]); /* now the receiver's alone, who may keep its memory */
    }
    if (gin != few) pd_free(gin);
    for (int i = 0; i < n->nin && !status; i++)
        if (n->edges[i].fn || n->edges[i].leaf) status = arrive(r, &n->edges[i]);
    return status;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static pd_status seed(run *r, int i, uint32_t *index) {
    pd_tensor *root = r->b->roots[i], *g = r->b->grads ? r->b->grads[i] : NULL, *own = NULL;
    pd_node *fn;
    int out;
    bool added;
    if (!pd_tensor_wants_grad(root))
        return pd_fail(PD_E_RUNTIME, "backward: root %d, %s of shape %s, does not require grad", i,
                       pd_dtype_name((pd_dtype)root->dtype), pd_tensor_shape(root));
    if (!g && pd_dtype_is_complex((pd_dtype)root->dtype))
        return pd_fail(PD_E_RUNTIME, "backward: root %d is %s (expected a real number, or a gradient argument)", i,
                       pd_dtype_name((pd_dtype)root->dtype));
    if (!g && root->numel != 1)
        return pd_fail(PD_E_RUNTIME, "backward: root %d has shape %s (expected one element, or a gradient argument)", i,
                       pd_tensor_shape(root));
    if (g && !pd_tensor_same_shape(g, root))
        return pd_fail(PD_E_SHAPE, "backward: the gradient has shape %s, root %d %s", pd_tensor_shape(g), i,
                       pd_tensor_shape(root));
    if (g && g->storage->device != root->storage->device)
        return pd_fail(PD_E_RUNTIME, "backward: the gradient is on %s, root %d on %s (expected one device)",
                       g->storage->device->name, i, root->storage->device->name);
    if (!g) PD_TRY(pd_engine.ones_like(root, &own));
    else if (g->dtype != root->dtype) PD_TRY(pd_engine.cast(g, (pd_dtype)root->dtype, &own));
    else PD_TRY(pd_tensor_apart(g, r->b->create_graph, &own));
    pd_status status = pd_tensor_history(root, &fn, &out);
    if (!status) status = find_or_add(r, fn, fn ? NULL : root, index, &added);
    if (!status) {
        r->entries[*index].is_root = true;
        status = add_grad(r, &r->entries[*index], out, own);
    }
    pd_tensor_release(own);
    return status;
}

static pd_status add_captures(run *r) {
    const pd_backward *b = r->b;
    if (!b->inputs) return PD_OK;
    PD_TRY(pd_malloc(sizeof *r->captures * (size_t)(b->ninputs + 1), "backward", &r->captures));
    for (int k = 0; k < b->ninputs; k++) {
        pd_node *fn;
        int out;
        uint32_t index;
        bool added;
        if (!pd_tensor_wants_grad(b->inputs[k]))
            return pd_fail(PD_E_RUNTIME, "grad: input %d, of shape %s, does not require grad", k,
                           pd_tensor_shape(b->inputs[k]));
        PD_TRY(pd_tensor_history(b->inputs[k], &fn, &out));
        if (fn && b->accumulate)
            return pd_fail(PD_E_RUNTIME, "backward: input %d is not a leaf", k);
        PD_TRY(find_or_add(r, fn, fn ? NULL : b->inputs[k], &index, &added));
        r->captures[k] = (capture){.next = r->entries[index].first_capture, .index = out};
        r->entries[index].first_capture = k;
    }
    return PD_OK;
}

static pd_status walk(run *r) {
    const pd_backward *b = r->b;
    for (int i = 0; i < b->nroots; i++) {
        uint32_t root;
        PD_TRY(seed(r, i, &root));
    }
    PD_TRY(add_captures(r));
    size_t nroots = r->count;
    for (uint32_t i = 0; i < nroots; i++)
        if (r->entries[i].is_root && !r->entries[i].expanded) PD_TRY(discover(r, i));
    void *token = 2 * r->work > PD_RELEASE_NS ? pd_host_release() : NULL;
    pd_status status = PD_OK;
    for (uint32_t i = 0; i < nroots && !status; i++) {
        entry *e = &r->entries[i];
        if (!e->is_root || e->waiting) continue;
        if (e->node) status = push(r, i);
        else if (e->needed) status = finish_leaf(r, i);
    }
    while (r->nheap && !status) status = run_node(r, pop(r));
    for (size_t i = 0; i < r->nat_end && !status; i++) status = r->at_end[i].call(r->at_end[i].ctx, NULL);
    if (token) pd_host_acquire(token);
    return status;
}

pd_status pd_engine_run(const pd_backward *b) {
    run r = {.b = b, .outer = current, .id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed)};
    bool mode = pd_grad_mode, inference = pd_inference_mode;
    pd_autocast_state autocast = pd_autocast;
    current = &r;
    pd_grad_mode = b->create_graph;
    pd_autocast.dtype = PD_NO_DTYPE; /* gradients have the dtypes that the forward chose */
    pd_inference_mode = false; /* gradients are normal tensors, wherever backward is called */
    for (int k = 0; k < b->ninputs && b->out; k++) b->out[k] = NULL;
    pd_hooks_running++;
    pd_lap lap = pd_lap_begin();
    pd_status status = walk(&r);
    pd_lap_end(&lap, PD_LAP_CALL, "backward", 0);
    pd_hooks_running--;
    pd_grad_mode = mode;
    pd_inference_mode = inference;
    pd_autocast = autocast;
    current = r.outer;
    for (size_t i = 0; i < r.count; i++) {
        entry *e = &r.entries[i];
        for (int k = 0; e->many && k < e->node->nout; k++) pd_tensor_release(e->many[k]);
        pd_tensor_release(e->one);
        pd_free(e->many);
        pd_node_release(e->node);
        pd_tensor_release(e->leaf);
    }
    for (size_t i = 0; i < r.nat_end; i++) pd_closure_drop(&r.at_end[i]);
    if (status && b->out)
        for (int k = 0; k < b->ninputs; k++) {
            pd_tensor_release(b->out[k]);
            b->out[k] = NULL;
        }
    pd_free(r.entries);
    pd_free(r.slots);
    pd_free(r.heap);
    pd_free(r.captures);
    pd_free(r.at_end);
    return status;
}
