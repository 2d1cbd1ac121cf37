/* What nodes save, and what a vjp gets of it. */
#include <string.h>

#include "autograd/apply.h"
#include "base/mem.h"

/* ---- saving ------------------------------------------------------------------------------------------------------ */

/* [new] a shell with t's dtype and geometry. */
static pd_status shell_of(const pd_tensor *t, pd_tensor **out) {
    PD_TRY(pd_tensor_shell(out));
    (*out)->dtype = t->dtype;
    (*out)->ndim = t->ndim;
    (*out)->numel = t->numel;
    memcpy((*out)->size, t->size, sizeof *t->size * (size_t)t->ndim);
    memcpy((*out)->stride, t->stride, sizeof *t->stride * (size_t)t->ndim);
    return PD_OK;
}

/* Until there is a replacement: a node whose hook has failed may have become the history of an input by then. */
static pd_status not_packed(void *ctx, void *out) {
    (void)ctx, (void)out;
    return pd_fail(PD_E_RUNTIME, "the pack hook for saved tensors failed in forward (expected it to return a value)");
}

/* Keeps the hook's replacement of t, with t's dtype and geometry. */
static pd_status pack(pd_saved *s, pd_tensor *t, bool is_out) {
    pd_tensor *given = NULL;
    PD_TRY(pd_calloc(sizeof *s->packed, "tape", &s->packed));
    s->packed->call = not_packed;
    PD_TRY(shell_of(t, &s->t));
    s->device = (int8_t)t->storage->device->index;
    if (is_out) PD_TRY(pd_tensor_alias(t, false, &given)); /* the node's own output would make a cycle */
    pd_status status = pd_saved_pack(given ? given : t, s->packed);
    pd_tensor_release(given);
    return status;
}

pd_status pd_node_save(pd_node *n, int slot, pd_tensor *t, bool is_out, int index) {
    pd_saved *s = &n->saved[slot];
    s->index = (int16_t)index;
    s->is_out = is_out;
    if (!t) return PD_OK;
    if (t->storage->inference)
        return pd_fail(PD_E_RUNTIME,
                       "%s: Inference tensors cannot be saved for backward: %s %d, of shape %s, is one (expected "
                       "clone(), or no_grad)",
                       pd_node_name(n), is_out ? "output" : "input", index, pd_tensor_shape(t));
    if (__builtin_expect(pd_saved_hooked, 0) && pd_saved_pack && !(n->def && n->def->op->flags & PD_SAVES_GEOMETRY))
        return pack(s, t, is_out);
    s->version = pd_tensor_version(t);
    bool geometry = n->def && n->def->op->flags & PD_SAVES_GEOMETRY; /* as it is now: `.data =` may change t */
    if (index < 0 || (!is_out && n->edges[index].leaf && !geometry)) pd_tensor_retain(s->t = t);
    else PD_TRY(pd_tensor_alias(t, false, &s->t));
    return PD_OK;
}

bool pd_node_hold(pd_node *n) { return !n->freed && pd_hold(&n->readers); }

void pd_node_drop_saved(pd_node *n) {
    for (int i = 0; i < n->nsaved; i++) {
        pd_saved *s = &n->saved[i];
        pd_tensor_release(s->t);
        s->t = NULL;
        if (!s->packed) continue;
        pd_closure_drop(s->packed);
        pd_free(s->packed);
        s->packed = NULL;
    }
}

void pd_node_let_go(pd_node *n) {
    if (atomic_fetch_sub(&n->readers, 1) == 1) pd_node_drop_saved(n);
}

void pd_node_free_saved(pd_node *n) {
    if (!atomic_exchange(&n->freed, true)) pd_node_let_go(n);
}

/* ---- what a vjp sees --------------------------------------------------------------------------------------------- */

void pd_vjp_end(pd_vjp *v) {
    for (size_t i = 0; i < v->ntemps; i++) pd_tensor_release(v->temps[i]);
    pd_free(v->temps);
    pd_free(v->unpacked);
}

pd_tensor *pd_vjp_keep(pd_vjp *v, pd_status status, pd_tensor *t) {
    if (!v->status) v->status = status;
    if (status) return NULL;
    pd_status grown = pd_grow(&v->temps, &v->cap_temps, v->ntemps + 1, sizeof *v->temps, "tape");
    if (grown) {
        if (!v->status) v->status = grown;
        pd_tensor_release(t);
        return NULL;
    }
    v->temps[v->ntemps++] = t;
    return v->status ? NULL : t;
}

void pd_vjp_set(pd_vjp *v, int i, pd_tensor *t) {
    if (!t || v->status || !pd_vjp_needs(v, i)) return;
    pd_tensor_retain(t);
    v->gin[i] = t;
}

static pd_saved *find_saved(const pd_node *n, bool is_out, int index) {
    for (int i = 0; i < n->nsaved; i++)
        if (n->saved[i].index == index && n->saved[i].is_out == is_out) return &n->saved[i];
    return NULL;
}

const pd_tensor *pd_vjp_geometry(pd_vjp *v, int i) {
    pd_saved *s = v->status ? NULL : find_saved(v->node, false, i);
    return s ? s->t : NULL;
}

static pd_status check_version(const pd_node *n, const pd_saved *s) {
    unsigned version = pd_tensor_version(s->t);
    if (version == s->version) return PD_OK;
    return pd_fail(
        PD_E_RUNTIME,
        "%s: one of the variables needed for gradient computation has been modified by an inplace operation: %s %d, %s "
        "of shape %s, is at version %u (expected version %u, without an in-place op or new .data after forward)",
        pd_node_name(n),
        s->is_out      ? "output"
        : s->index < 0 ? "saved tensor"
                       : "input",
        s->index < 0 ? (int)(s - n->saved) : s->index, pd_dtype_name((pd_dtype)s->t->dtype), pd_tensor_shape(s->t),
        version, s->version);
}

/* [new] t's values with the strides of `as`. */
static pd_status laid_out(pd_tensor *t, const pd_tensor *as, pd_tensor **out) {
    PD_TRY(shell_of(as, out));
    pd_status status = pd_tensor_allocate(*out);
    PD_THEN(pd_engine.copy_into(*out, t));
    if (status) pd_tensor_release(*out);
    return status;
}

/* [new] the tensor that the hook returns for a packed one, with the saved strides if they are dense. */
static pd_status call_unpack(const pd_node *n, const pd_saved *s, pd_tensor **out) {
    pd_tensor *t = NULL, *copy = NULL;
    const bool plain = pd_parts_are_plain;
    pd_parts_are_plain = false; /* the hook may run a part of the forward again */
    pd_status status = s->packed->call(s->packed->ctx, &t);
    pd_parts_are_plain = plain;
    PD_TRY(status);
    if (!pd_tensor_same_shape(t, s->t) || t->dtype != s->t->dtype)
        status = pd_fail(PD_E_SHAPE,
                         "%s: the unpack hook for saved tensors returned %s of shape %s (expected %s of shape %s)",
                         pd_node_name(n), pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t),
                         pd_dtype_name((pd_dtype)s->t->dtype), pd_tensor_shape(s->t));
    else if (t->storage->device->index != s->device)
        status = pd_fail(
            PD_E_RUNTIME,
            "%s: the unpack hook for saved tensors returned a tensor on %s (expected the device of the saved tensor)",
            pd_node_name(n), t->storage->device->name);
    else if (memcmp(t->stride, s->t->stride, sizeof *t->stride * (size_t)t->ndim) &&
             pd_shape_is_dense(t->ndim, t->size, s->t->stride))
        status = laid_out(t, s->t, &copy);
    else if (s->index >= 0) status = pd_tensor_alias(t, false, &copy); /* the node gives it its history */
    else pd_tensor_retain(copy = t);
    pd_tensor_release(t);
    *out = copy;
    return status;
}

/* [new] s->t with its history: this node for an output, the edge's end for an input. */
static pd_status restore(pd_node *n, const pd_saved *s, pd_tensor **out) {
    pd_edge e = s->is_out ? (pd_edge){.fn = n, .index = s->index} : s->index < 0 ? (pd_edge){0} : n->edges[s->index];
    if (e.leaf && (s->packed || s->t->requires_grad)) {
        pd_tensor_retain(*out = e.leaf);
        return PD_OK;
    }
    if (s->packed) PD_TRY(call_unpack(n, s, out));
    else if (s->t->requires_grad || !e.fn) pd_tensor_retain(*out = s->t);
    else PD_TRY(pd_tensor_alias(s->t, false, out));
    if (!e.fn || (*out)->requires_grad) return PD_OK;
    pd_status status = pd_node_own(e.fn, e.index, *out);
    if (status) pd_tensor_release(*out);
    return status;
}

pd_status pd_node_unpack(pd_node *n, int slot, pd_tensor **out) {
    *out = NULL;
    if (!pd_node_hold(n))
        return pd_fail(PD_E_RUNTIME,
                       "%s: Trying to backward through the graph a second time: an earlier backward freed the saved "
                       "tensors (expected retain_graph=True there)",
                       pd_node_name(n));
    const pd_saved *s = &n->saved[slot];
    pd_status status = s->t && !s->packed ? check_version(n, s) : PD_OK;
    if (s->t && !status) status = s->packed && !pd_grad_mode ? call_unpack(n, s, out) : restore(n, s, out);
    pd_node_let_go(n);
    return status;
}

static pd_tensor *find(const pd_vjp *v, const pd_saved *s) {
    return v->unpacked ? v->unpacked[s - v->node->saved] : NULL;
}

/* The tensor of a slot; hooks are called once for a slot, however often it is asked for. */
static pd_tensor *unpack_once(pd_vjp *v, const pd_saved *s) {
    pd_tensor *t = find(v, s);
    if (t) return t;
    if (!v->unpacked && (v->status = pd_calloc((size_t)v->node->nsaved * sizeof *v->unpacked, "tape", &v->unpacked)))
        return NULL;
    pd_status status = v->create_graph ? restore(v->node, s, &t) : call_unpack(v->node, s, &t);
    return v->unpacked[s - v->node->saved] = pd_vjp_keep(v, status, t);
}

static pd_tensor *unpack(pd_vjp *v, bool is_out, int index) {
    pd_saved *s = v->status ? NULL : find_saved(v->node, is_out, index);
    if (!s || !s->t) return NULL;
    if (s->packed) return unpack_once(v, s);
    if ((v->status = check_version(v->node, s))) return NULL;
    if (!v->create_graph || s->t->requires_grad) return s->t;
    pd_tensor *t = NULL;
    pd_status status = restore(v->node, s, &t);
    return pd_vjp_keep(v, status, t);
}

pd_tensor *pd_vjp_in(pd_vjp *v, int i) { return unpack(v, false, i); }
pd_tensor *pd_vjp_out(pd_vjp *v, int i) { return unpack(v, true, i); }

/* How many keep the memory of a tensor that only its node has. */
static int64_t keepers(const pd_node *n, const pd_storage *s) {
    for (int i = 0; i < n->nin; i++) {
        const pd_tensor *leaf = n->edges[i].leaf;
        if (leaf && leaf->meta && leaf->meta->destination.ahead == s) return 2;
    }
    return pd_storage_is_private(s) ? 1 : 0;
}

static pd_tensor *take(pd_vjp *v, bool is_out, int i) {
    pd_node *n = v->node;
    const pd_saved *s = v->status || !v->last ? NULL : find_saved(n, is_out, i);
    pd_tensor *t = s && !s->packed ? s->t : NULL, *out = NULL;
    const bool alone = t && t->refs == 1 && t->storage->refs == keepers(n, t->storage) &&
                       n->readers == 2 - n->freed; /* the graph, until it is freed, and this call */
    if (!alone) return NULL;
    pd_node_free_saved(n);
    pd_status status = pd_tensor_alias(t, false, &out);
    return pd_vjp_keep(v, status, out);
}

pd_tensor *pd_vjp_take(pd_vjp *v, int i) { return take(v, false, i); }
pd_tensor *pd_vjp_take_out(pd_vjp *v, int i) { return take(v, true, i); }

static const pd_device *device_of(const pd_vjp *v) {
    for (int i = 0; i < v->node->nout; i++)
        if (v->g[i]) return v->g[i]->storage->device;
    return pd_device_here;
}

static void run_op(pd_vjp *v) {
    const pd_op *op = v->node->def->op;
    const pd_device *d = device_of(v), *was;
    v->status = pd_device_enter(d, &was);
    if (!v->status && op->vjp_fast && !v->create_graph) op->vjp_fast(v);
    else if (!v->status && op->vjp) op->vjp(v);
    else if (!v->status)
        v->status =
            pd_fail(PD_E_NOTIMPL, "%s: the op's gradient cannot be differentiated again (expected create_graph=False)",
                    v->node->def->name);
    if (!v->status) v->status = pd_device_check(d, v->node->def->name);
    pd_device_here = was;
}
const pd_node_kind pd_node_of_op = {.run = run_op};
