/* The end of a gradient's way: hooks and .grad of leaves. */
#include <pthread.h>
#include <string.h>

#include "autograd/apply.h"
#include "autograd/engine_impl.h"

/* Locks for leaves, by address, held while a gradient is added to .grad in place. */
#define LEAF_LOCKS 64
static pthread_mutex_t leaf_locks[LEAF_LOCKS] = {[0 ... LEAF_LOCKS - 1] = PTHREAD_MUTEX_INITIALIZER};

/* Kernels expect a gradient with the dtype and shape of the forward, so a hook, which may also write `.data`, may
   change values only. */
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
                   "register_hook: a hook returned %s of shape %s on %s (expected %s of shape %s on %s, like the "
                   "gradient that it got)",
                   pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name,
                   pd_dtype_name((pd_dtype)dtype), pd_shape_text(ndim, size), device->name);
}

pd_status pd_call_grad_hooks(pd_hook *hooks, int index, pd_tensor **g) {
    for (pd_hook *h = hooks; h; h = h->next)
        if (h->kind == PD_HOOK_GRAD && h->index == index) PD_TRY(call_grad_hook(h, g));
    return PD_OK;
}

static pd_status call_leaf_hooks(pd_tensor *leaf, pd_hook_kind kind, pd_tensor *arg) {
    for (pd_hook *h = leaf->meta ? leaf->meta->hooks : NULL; h; h = h->next)
        if (h->kind == kind) PD_TRY(pd_hook_call(h, arg));
    return PD_OK;
}

static bool has_leaf_hooks(const pd_tensor *leaf) {
    for (const pd_hook *h = leaf->meta ? leaf->meta->hooks : NULL; h; h = h->next)
        if (h->kind == PD_HOOK_LEAF) return true;
    return false;
}

/* Whether g is dense and nobody else holds its memory. A view of a whole tensor counts, if only the view keeps it
   alive. */
static bool is_alone(const pd_tensor *g) {
    if (g->refs > 1 || g->storage->drop || !pd_tensor_is_contiguous(g)) return false;
    if (!g->base) return g->storage->refs == 1;
    return g->base->refs == 1 && g->storage->refs == 2 && g->numel == g->base->numel;
}

/* [new] g in memory that nobody else holds: no copy if that is so already. */
static pd_status apart(pd_tensor *g, pd_tensor **out) {
    return is_alone(g) ? pd_tensor_alias(g, false, out) : pd_engine.clone(g, out);
}

/* Puts g into the destination, unless it was made there. A hook may have made another view of that memory. */
static pd_status put_in_place(pd_grad_destination *d, pd_tensor *g) {
    const bool there = pd_tensor_data(g) == pd_tensor_data(d->view);
    const bool as_it_is = there && pd_tensor_same_layout(g, d->view);
    pd_tensor *copy = NULL;
    PD_TRY(pd_grad_clear(d, g));
    if (as_it_is) return PD_OK;
    if (there) PD_TRY(pd_engine.clone(g, &copy));
    pd_status status = pd_engine.copy_into(d->view, copy ? copy : g);
    pd_tensor_release(copy);
    return status;
}

/* [new] the tensor that becomes .grad of a leaf that has none. */
static pd_status first_grad(pd_meta *m, pd_tensor *g, pd_tensor **out) {
    if (!m->destination.view) return apart(g, out);
    PD_TRY(put_in_place(&m->destination, g));
    pd_tensor_retain(*out = m->destination.view);
    return PD_OK;
}

static bool alike(const pd_tensor *a, const pd_tensor *b) {
    return a->dtype == b->dtype && a->storage->device == b->storage->device && pd_tensor_same_shape(a, b);
}

/* `.data =` may have changed a tensor's dtype or shape since the forward, so that its gradient does not fit. */
static pd_status check_gradient(const char *what, const pd_tensor *t, const pd_tensor *g) {
    if (alike(t, g)) return PD_OK;
    return pd_fail(pd_tensor_same_shape(t, g) ? PD_E_DTYPE : PD_E_SHAPE,
                   "backward: %s is %s of shape %s on %s, but the gradient is %s of shape %s on %s (expected the same: "
                   "was its .data replaced since the forward?)",
                   what, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name,
                   pd_dtype_name((pd_dtype)g->dtype), pd_tensor_shape(g), g->storage->device->name);
}

/* The gradient of a part is a part, too. */
static void mark(const pd_tensor *of, pd_tensor *g) {
    pd_spread *s = pd_spread_of_gradient(of->spread);
    if (g->spread != s) pd_tensor_set_spread(g, s);
}

/* .grad += g, under the leaf's lock, so no Python code may run here. The caller releases *old after the lock. */
static pd_status add_to_grad(pd_tensor *leaf, pd_tensor *g, pd_tensor **old) {
    pd_meta *m = leaf->meta;
    for (;;) { /* again if a .grad = ... of Python was faster */
        pd_tensor *t = NULL;
        if ((*old = pd_meta_grad(m))) {
            PD_TRY(check_gradient(".grad of a leaf", *old, g));
            return pd_engine.add_into(*old, g);
        }
        PD_TRY(first_grad(m, g, &t));
        mark(leaf, t);
        if (pd_meta_swap_grad(m, NULL, t)) return PD_OK;
        pd_tensor_release(t);
    }
}

/* .grad = .grad + g, recorded. No lock is held, since hooks of Python may run. */
static pd_status record_to_grad(pd_tensor *leaf, pd_tensor *g) {
    pd_meta *m = leaf->meta;
    if (m->destination.view && pd_tensor_wants_grad(g))
        return pd_fail(PD_E_RUNTIME,
                       "backward: create_graph=True needs a .grad with a graph, but this .grad lies in a bucket of "
                       "DistributedDataParallel (expected autograd.grad(..., create_graph=True), then backward of a "
                       "loss made of its result)");
    for (;;) {
        pd_tensor *old = pd_meta_grad(m), *sum = NULL;
        pd_status status = PD_OK;
        if (old) status = check_gradient(".grad of a leaf", old, g);
        if (old && !status) status = pd_engine.add(old, g, &sum);
        else if (old) {}
        else if (m->destination.view) status = first_grad(m, g, &sum);
        else pd_tensor_retain(sum = g);
        if (!status) mark(leaf, sum);
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
    if (create_graph) return record_to_grad(leaf, g);
    pthread_mutex_t *lock = &leaf_locks[((uintptr_t)leaf >> 6) % LEAF_LOCKS];
    pd_host_lock(lock);
    pd_status status = add_to_grad(leaf, g, &old);
    pthread_mutex_unlock(lock);
    pd_tensor_release(old); /* may be the last reference, and then run Python code */
    return status;
}

static pd_status call_hooks_after(pd_tensor *leaf, pd_tensor *g) {
    pd_status status = call_leaf_hooks(leaf, PD_HOOK_POST, leaf);
    if (g && !status) status = call_leaf_hooks(leaf, PD_HOOK_LEAF, g);
    return status;
}

/* Makes g itself .grad, where there is none and no place for it. */
static bool becomes_grad(pd_tensor *leaf, pd_tensor *g) {
    if (!leaf->meta || leaf->meta->destination.view || !alike(leaf, g)) return false;
    if (g->storage->drop || !pd_tensor_is_contiguous(g)) return false;
    mark(leaf, g);
    pd_tensor_retain(g);
    if (pd_meta_swap_grad(leaf->meta, NULL, g)) return true;
    pd_tensor_release(g);
    return false;
}

pd_status pd_leaf_give(pd_tensor *leaf, pd_tensor *g) {
    const bool plain = pd_parts_are_plain;
    const pd_tensor *given = g;
    const int64_t refs = g->refs, held = g->storage->refs;
    pd_status status = PD_OK;
    pd_tensor_retain(g);
    pd_parts_are_plain = true;
    if (leaf->meta) status = pd_call_grad_hooks(leaf->meta->hooks, 0, &g);
    const bool kept = refs > 1 || g != given || g->refs > refs + 1 || g->storage->refs > held; /* by a hook, say */
    if (!status && (kept || !becomes_grad(leaf, g))) status = pd_leaf_accumulate(leaf, g, false);
    PD_THEN(call_hooks_after(leaf, g));
    pd_tensor_release(g);
    PD_THEN(call_leaf_hooks(leaf, PD_HOOK_READY, leaf));
    pd_parts_are_plain = plain;
    return status;
}

static pd_status call_sink(const pd_backward *b, pd_tensor *leaf, pd_tensor *g) {
    pd_tensor *own;
    PD_TRY(check_gradient("a leaf", leaf, g));
    PD_TRY(apart(g, &own));
    pd_status status = b->sink(b->sink_ctx, leaf, own);
    pd_tensor_release(own);
    return status ? status : call_leaf_hooks(leaf, PD_HOOK_LEAF, g);
}

pd_status pd_run_finish_leaf(pd_run *r, entry *e) {
    const pd_backward *b = r->b;
    pd_tensor *leaf = e->leaf;
    if (!e->one) return PD_OK;
    PD_TRY(pd_run_end_parts(&e->parts, NULL));
    if (leaf->meta && leaf->meta->grad_fn)
        return pd_fail(PD_E_RUNTIME,
                       "backward: a leaf, %s of shape %s, has become the result of %s: it was detached and then "
                       "written in place (expected a tensor that is still a leaf)",
                       pd_dtype_name((pd_dtype)leaf->dtype), pd_tensor_shape(leaf), pd_node_name(leaf->meta->grad_fn));
    if (leaf->meta) PD_TRY(pd_call_grad_hooks(leaf->meta->hooks, 0, &e->one));
    if (b->inputs) {
        for (int k = e->first_capture; k >= 0; k = r->captures[k].next)
            if (!b->accumulate) pd_tensor_retain(b->out[k] = e->one);
        if (b->split ? e->first_capture >= 0 : !b->accumulate || e->first_capture < 0) return PD_OK;
    }
    if (b->sink && !(leaf->meta && leaf->meta->destination.owner)) return call_sink(b, leaf, e->one);
    PD_TRY(pd_leaf_accumulate(leaf, e->one, b->create_graph));
    pd_tensor *g = has_leaf_hooks(leaf) ? e->one : NULL;
    if (!g) pd_tensor_release(e->one);
    e->one = NULL;
    pd_status status = call_hooks_after(leaf, g);
    pd_tensor_release(g);
    return status ? status : call_leaf_hooks(leaf, PD_HOOK_READY, leaf);
}
