#include "autograd/engine.h"

#include <inttypes.h>
#include <string.h>

#include "autograd/apply.h"
#include "autograd/autocast.h"
#include "autograd/beside.h"
#include "autograd/engine_impl.h"
#include "autograd/nan.h"
#include "autograd/program.h"
#include "autograd/spans.h"
#include "base/mem.h"

static _Thread_local pd_run *current;
static atomic_uint_fast64_t next_id = 1;

/* Whether the run leaves leaves out. */
static bool only_some(const pd_run *r) { return r->b->inputs && !r->b->split; }

uint64_t pd_engine_current(bool *some) {
    *some = current && only_some(current);
    return current ? current->id : 0;
}

pd_status pd_engine_at_end(pd_closure c) {
    pd_run *r = current;
    while (r && r->outer) r = r->outer;
    if (!r)
        return pd_fail(PD_E_RUNTIME,
                       "backward: no backward is running in this thread (expected a call from within backward)");
    PD_TRY(pd_grow(&r->at_end, &r->cap_at_end, r->nat_end + 1, sizeof c, "backward"));
    r->at_end[r->nat_end++] = c;
    return PD_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static bool is_ours(const pd_tensor *t) { /* nobody else can see t or its memory */
    return t->refs == 1 && t->storage->refs == 1 && !t->base && !t->storage->drop && !t->requires_grad;
}

/* True: t is ours, or was made in a leaf's destination, which nobody reads before it is final. */
bool pd_run_may_grow(const entry *e, const pd_tensor *t) {
    const pd_tensor *place = e->leaf && e->leaf->meta ? e->leaf->meta->destination.view : NULL;
    if (is_ours(t)) return true;
    if (!place || t->refs > 1 || t->base || pd_tensor_data(t) != pd_tensor_data(place)) return false;
    return t->storage == place->storage || !pd_grad_is_ahead(&e->leaf->meta->destination, t);
}

pd_status pd_run_slot(entry *e, int index, pd_tensor ***out) {
    if (e->node && e->node->nout > 1 && !e->many)
        PD_TRY(pd_calloc((size_t)e->node->nout * sizeof *e->many, "backward", &e->many));
    *out = &pd_run_grads(e)[index];
    return PD_OK;
}

pd_status pd_run_add(pd_run *r, entry *e, int index, pd_tensor *g) {
    pd_tensor *sum = NULL, **to = NULL;
    PD_TRY(pd_run_slot(e, index, &to));
    if (!*to) {
        pd_tensor_retain(*to = g);
        return PD_OK;
    }
    if (*to == e->parts.whole) PD_TRY(pd_run_end_parts(&e->parts, to));
    if (!pd_tensor_same_shape(*to, g))
        return pd_fail(PD_E_SHAPE,
                       "backward: two uses of a tensor give gradients of shapes %s and %s (expected one shape: was its "
                       ".data replaced between them?)",
                       pd_tensor_shape(*to), pd_tensor_shape(g));
    if (!r->b->create_graph && pd_run_may_grow(e, *to)) return pd_engine.add_into(*to, g);
    PD_TRY(pd_engine.add(*to, g, &sum));
    pd_tensor_release(*to);
    *to = sum;
    return PD_OK;
}

/* Whether only a cast sees the gradient of e's tensor. It may then have the dtype of the cast's input. */
static bool is_passed(const pd_run *r, const pd_edge *e) {
    return pd_autocast_is_cast(e->fn) && !e->fn->hooks && !only_some(r) && !r->b->create_graph;
}

/* Undoes broadcasting and promotion: *g, which is [new], is replaced by one of the input's shape and dtype. */
static pd_status fit(const pd_run *r, const pd_node *n, int i, pd_tensor **g) {
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
    if ((*g)->dtype != e->dtype && !is_passed(r, e) && !pd_run_reads_low(r, e)) {
        if (!(t = pd_beside_take(*g, (pd_dtype)e->dtype))) PD_TRY(pd_engine.cast(*g, (pd_dtype)e->dtype, &t));
        pd_tensor_release(*g);
        *g = t;
    }
    return PD_OK;
}

static pd_status arrived(pd_run *r, entry *e) {
    if (e->node) return pd_run_push(r, (uint32_t)(e - r->entries));
    if (r->b->fed) PD_TRY(pd_run_settle(r, e));
    return e->needed ? pd_run_finish_leaf(r, e) : PD_OK;
}

/* A gradient, or its absence, has come over one edge into e. */
static pd_status arrive(pd_run *r, const pd_edge *edge) {
    entry *e = pd_run_target(r, edge);
    return --e->waiting ? PD_OK : arrived(r, e);
}

/* NULL unless this will be the first gradient, to which later ones are added, and no other run can write the same place
   before this one wakes. */
pd_tensor *pd_vjp_destination(const pd_vjp *v, int i) {
    const pd_edge *e = &v->node->edges[i];
    const pd_run *r = v->run;
    if (!r || v->status || only_some(r) || r->b->fed || v->create_graph || !pd_vjp_needs(v, i)) return NULL;
    if (is_passed(r, e)) { /* made in the leaf's dtype, it is the leaf's gradient */
        if (pd_run_find(r, e->fn)->one) return NULL;
        e = &e->fn->edges[0];
    }
    const pd_meta *m = e->leaf ? e->leaf->meta : NULL;
    pd_tensor *view = m ? m->destination.view : NULL;
    if (!view || m->grad || pd_run_find(r, e->leaf)->one || pd_grad_is_ahead(&m->destination, NULL)) return NULL;
    for (int k = 0; k < v->node->nin; k++) /* the same leaf may be another input, too */
        if (v->gin[k] && v->gin[k]->storage == view->storage && v->gin[k]->offset == view->offset) return NULL;
    return view;
}

pd_tensor *pd_vjp_sum(pd_vjp *v, int i) {
    const pd_edge *e = &v->node->edges[i];
    const pd_run *r = v->run;
    if (!r || r->b->fed || v->status || v->create_graph || !pd_vjp_needs(v, i)) return NULL;
    entry *to = pd_run_target(r, e);
    pd_tensor **slot = to && to->needed ? pd_run_grads(to) : NULL;
    if (slot && !e->leaf) slot += e->index;
    if (slot && *slot && *slot == to->parts.whole) v->status = pd_run_end_parts(&to->parts, slot);
    pd_tensor *sum = slot && !v->status ? *slot : NULL;
    bool fits = sum && pd_run_may_grow(to, sum) && sum->dtype == e->dtype &&
                pd_shape_equal(sum->ndim, sum->size, e->ndim, e->size);
    if (fits) pd_beside_drop(sum); /* it is about to be written */
    return fits ? sum : NULL;
}

bool pd_vjp_may_widen(const pd_vjp *v, int i) {
    const pd_edge *e = &v->node->edges[i];
    return v->run && is_passed(v->run, e) && e->fn->edges[0].dtype == PD_F32 &&
           !pd_run_reads_low(v->run, &e->fn->edges[0]);
}

/* Calls the node's own function with the gradients that have come. */
static pd_status call_node(pd_run *r, entry *e, pd_tensor **g, const pd_run_half *half, pd_tensor **gin) {
    pd_node *n = e->node;
    if (n->nsaved && !pd_node_hold(n))
        return pd_fail(PD_E_RUNTIME,
                       "backward: Trying to backward through the graph a second time: an earlier backward freed it, at "
                       "%s (expected retain_graph=True there)",
                       pd_node_name(n));
    pd_vjp v = {.node = n, .attrs = n->attrs, .create_graph = r->b->create_graph,
                .last = !r->b->retain_graph && !r->b->create_graph && half->last, .g = g, .gin = gin,
                .skip = half->hide, .run = r};
    bool finite = pd_nan_armed;
    for (int i = 0; i < n->nout && finite; i++) finite = pd_nan_finite(g[i]);
    pd_timespan span = pd_timespan_begin();
    n->kind->run(&v);
    if (pd_timespan_is_on(&span) && !v.status) pd_timespan_end_node(&span, &v);
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

/* All gradients of a node have come: calls its hooks, and fills `out` for inputs of the caller. *any: there is one. */
static pd_status take_gradients(pd_run *r, entry *e, bool *any) {
    pd_node *n = e->node;
    if (r->b->fed) PD_TRY(pd_run_settle(r, e));
    PD_TRY(pd_run_end_parts(&e->parts, NULL));
    pd_tensor **g = pd_run_grads(e);
    for (int i = 0; e->needed && g && i < n->nout; i++) {
        if (!g[i]) continue;
        PD_TRY(pd_call_grad_hooks(n->hooks, i, &g[i]));
        *any = true;
    }
    for (int k = e->first_capture; g && k >= 0; k = r->captures[k].next) {
        int i = r->captures[k].index;
        if (g[i]) pd_tensor_retain(r->b->out[k] = g[i]);
    }
    if (*any || !n->kind->always) return PD_OK;
    pd_tensor **none;
    *any = true;
    return pd_run_slot(e, 0, &none);
}

/* Gives each gradient in gin, which are taken over, to where its edge leads. */
static pd_status give(pd_run *r, const pd_node *n, const pd_run_half *half, pd_tensor **gin) {
    pd_status status = PD_OK;
    for (int i = 0; i < n->nin; i++) {
        const pd_edge *edge = &n->edges[i];
        if (pd_run_skips(half, i)) continue;
        if (gin[i] && !status) status = fit(r, n, i, &gin[i]);
        if (gin[i] && !status) {
            entry *to = pd_run_target(r, edge);
            int index = edge->leaf ? 0 : edge->index;
            if (to->needed)
                status = r->b->fed ? pd_run_keep(r, to, n->seq, i, index, gin[i]) : pd_run_add(r, to, index, gin[i]);
        }
        pd_tensor_release(gin[i]); /* now only the receiver has it, and may keep its memory */
        gin[i] = NULL;
    }
    return status;
}

static void free_gradients(entry *e) {
    pd_tensor **g = pd_run_grads(e);
    for (int i = 0; g && i < e->node->nout; i++) {
        pd_tensor_release(g[i]);
        g[i] = NULL;
    }
}

static pd_status run_node(pd_run *r, uint32_t index) {
    entry *e = &r->entries[index];
    pd_node *n = e->node;
    pd_tensor *few[8] = {0}, **gin = few;
    bool any = false;
    pd_run_half half = pd_run_half_of(r, e);
    if (!e->seen) PD_TRY(take_gradients(r, e, &any));
    for (int i = 0; e->seen && pd_run_grads(e) && i < n->nout; i++) any |= pd_run_grads(e)[i] || n->kind->always;
    if (e->kept) gin = e->kept;
    else if (n->nin > 8) PD_TRY(pd_calloc((size_t)n->nin * sizeof *gin, "backward", &gin));
    e->kept = NULL;
    pd_status status = any && half.calls ? call_node(r, e, pd_run_grads(e), &half, gin) : PD_OK;
    /* Free gradients that have been used before new ones are made. */
    if (half.last) free_gradients(e);
    if (half.last && !r->b->retain_graph && !r->b->create_graph) pd_node_free_saved(n);
    PD_THEN(give(r, n, &half, gin));
    if (half.defer) PD_THEN(pd_run_defer(r, e, &half, gin));
    for (int i = 0; i < n->nin; i++) pd_tensor_release(gin[i]);
    if (gin != few) pd_free(gin);
    for (int i = 0; i < n->nin && !status; i++)
        if ((n->edges[i].fn || n->edges[i].leaf) && !pd_run_skips(&half, i)) status = arrive(r, &n->edges[i]);
    return status;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static pd_status seed(pd_run *r, int i, uint32_t *index) {
    pd_tensor *root = r->b->roots[i], *g = r->b->grads ? r->b->grads[i] : NULL, *own = NULL;
    pd_node *fn;
    int out;
    if (!pd_tensor_wants_grad(root))
        return pd_fail(PD_E_RUNTIME,
                       "backward: element %d of tensors does not require grad and does not have a grad_fn: got %s of "
                       "shape %s (expected requires_grad=True)",
                       i, pd_dtype_name((pd_dtype)root->dtype), pd_tensor_shape(root));
    if (!g && pd_dtype_is_complex((pd_dtype)root->dtype))
        return pd_fail(PD_E_RUNTIME,
                       "backward: grad can be implicitly created only for real scalar outputs: tensor %d is %s "
                       "(expected a real number, or a gradient argument)",
                       i, pd_dtype_name((pd_dtype)root->dtype));
    if (!g && root->numel != 1)
        return pd_fail(PD_E_RUNTIME,
                       "backward: grad can be implicitly created only for scalar outputs: tensor %d has shape %s "
                       "(expected one element, or a gradient argument)",
                       i, pd_tensor_shape(root));
    if (g && !pd_tensor_same_shape(g, root))
        return pd_fail(PD_E_SHAPE,
                       "backward: the gradient has shape %s, tensor %d has shape %s (expected equal shapes)",
                       pd_tensor_shape(g), i, pd_tensor_shape(root));
    if (g && g->storage->device != root->storage->device)
        return pd_fail(PD_E_RUNTIME, "backward: the gradient is on %s, tensor %d is on %s (expected one device)",
                       g->storage->device->name, i, root->storage->device->name);
    if (!g) PD_TRY(pd_engine.ones_like(root, &own));
    else if (g->dtype != root->dtype) PD_TRY(pd_engine.cast(g, (pd_dtype)root->dtype, &own));
    else PD_TRY(pd_tensor_apart(g, r->b->create_graph, &own));
    pd_status status = pd_tensor_history(root, &fn, &out);
    PD_THEN(pd_run_find_or_add(r, fn, fn ? NULL : root, index));
    if (!status) {
        r->entries[*index].is_root = true;
        status = pd_run_add(r, &r->entries[*index], out, own);
    }
    pd_tensor_release(own);
    return status;
}

static pd_status add_captures(pd_run *r) {
    const pd_backward *b = r->b;
    if (!b->inputs) return PD_OK;
    PD_TRY(pd_malloc(sizeof *r->captures * (size_t)(b->ninputs + 1), "backward", &r->captures));
    for (int k = 0; k < b->ninputs; k++) {
        pd_node *fn;
        int out;
        uint32_t index;
        if (!pd_tensor_wants_grad(b->inputs[k]))
            return pd_fail(PD_E_RUNTIME,
                           "grad: input %d, of shape %s, does not require grad (expected requires_grad=True)", k,
                           pd_tensor_shape(b->inputs[k]));
        PD_TRY(pd_tensor_history(b->inputs[k], &fn, &out));
        if (fn && b->accumulate) return pd_fail(PD_E_RUNTIME, "backward: input %d is not a leaf (expected a leaf)", k);
        PD_TRY(pd_run_find_or_add(r, fn, fn ? NULL : b->inputs[k], &index));
        r->captures[k] = (capture){.next = r->entries[index].first_capture, .index = out};
        r->entries[index].first_capture = k;
    }
    return PD_OK;
}

/* The modes of a thread, which a run changes and puts back. */
typedef struct modes { bool grad, inference, plain; pd_autocast_state autocast; } modes;

static modes attach(pd_run *r) {
    modes was = {pd_grad_mode, pd_inference_mode, pd_parts_are_plain, pd_autocast};
    r->outer = current;
    current = r;
    pd_grad_mode = r->b->create_graph;
    pd_autocast.dtype = PD_NO_DTYPE; /* gradients have the dtypes that the forward chose */
    pd_parts_are_plain = true; /* a leaf's gradient gets the leaf's spread in the end */
    pd_inference_mode = false; /* gradients are normal tensors, even if backward is called in inference mode */
    pd_hooks_running++;
    return was;
}

static void detach(pd_run *r, modes was) {
    pd_hooks_running--;
    pd_grad_mode = was.grad;
    pd_inference_mode = was.inference;
    pd_parts_are_plain = was.plain;
    pd_autocast = was.autocast;
    current = r->outer;
}

pd_status pd_run_enter(pd_run *r) {
    if (atomic_exchange_explicit(&r->busy, true, memory_order_acquire))
        return pd_fail(PD_E_RUNTIME, "backward: a thread is in this run already (expected one thread at a time)");
    if (!r->failed) return PD_OK;
    pd_run_leave(r);
    return pd_fail(PD_E_RUNTIME, "backward: this run has failed (expected to be closed)");
}

static void release_all(pd_run *r) {
    const pd_backward *b = r->b;
    for (size_t i = 0; i < r->count; i++) {
        entry *e = &r->entries[i];
        for (int k = 0; e->many && k < e->node->nout; k++) pd_tensor_release(e->many[k]);
        for (int k = 0; e->kept && k < e->node->nin; k++) pd_tensor_release(e->kept[k]);
        pd_tensor_release(e->one);
        pd_tensor_release(e->parts.sums);
        pd_free(e->many);
        pd_free(e->kept);
        pd_node_release(e->node);
        pd_tensor_release(e->leaf);
    }
    for (size_t i = 0; i < r->nat_end; i++) pd_closure_drop(&r->at_end[i]);
    if (r->failed && b->out)
        for (int k = 0; k < b->ninputs; k++) {
            pd_tensor_release(b->out[k]);
            b->out[k] = NULL;
        }
    if (b->fed) pd_run_free_boxes(r);
    pd_free(r->entries);
    pd_free(r->slots);
    pd_free(r->heap);
    pd_free(r->captures);
    pd_free(r->deferred);
    pd_free(r->at_end);
}

static pd_status seed_all(pd_run *r) {
    const pd_backward *b = r->b;
    for (int i = 0; i < b->nroots; i++) {
        uint32_t root;
        PD_TRY(seed(r, i, &root));
    }
    PD_TRY(add_captures(r));
    r->nroots = r->count;
    for (uint32_t i = 0; i < r->nroots; i++)
        if (r->entries[i].is_root && !r->entries[i].expanded) PD_TRY(pd_run_reach(r, i));
    return PD_OK;
}

pd_status pd_run_open(pd_run *r, const pd_backward *b) {
    *r = (pd_run){.b = b, .id = atomic_fetch_add_explicit(&next_id, 1, memory_order_relaxed)};
    for (int k = 0; k < b->ninputs && b->out; k++) b->out[k] = NULL;
    modes was = attach(r);
    pd_status status = seed_all(r);
    detach(r, was);
    r->failed = status;
    if (status) release_all(r);
    return status;
}

static pd_status call_at_end(pd_run *r) {
    r->ended = true;
    for (size_t i = 0; i < r->nat_end; i++) PD_TRY(r->at_end[i].call(r->at_end[i].ctx, NULL));
    return PD_OK;
}

static pd_status run_ready(pd_run *r) {
    for (uint32_t i = 0; i < r->nroots && !r->started; i++) {
        entry *e = &r->entries[i];
        if (e->is_root && !e->waiting) PD_TRY(arrived(r, e));
    }
    r->started = true;
    while (r->nheap) PD_TRY(run_node(r, pd_run_pop(r)));
    return PD_OK;
}

/* last: the run ends with this turn, so what pd_engine_at_end was given is called in it. */
static pd_status turn(pd_run *r, bool last) {
    PD_TRY(pd_run_enter(r));
    modes was = attach(r);
    void *token = 2 * r->work > PD_RELEASE_NS ? pd_host_release() : NULL;
    pd_status status = run_ready(r);
    if (last && !status) status = call_at_end(r);
    if (token) pd_host_acquire(token);
    r->failed = status;
    detach(r, was);
    pd_run_leave(r);
    return status;
}

pd_status pd_run_turn(pd_run *r) {
    pd_timespan span = pd_timespan_begin();
    pd_status status = turn(r, false);
    pd_timespan_end(&span, PD_SPAN_CALL, "backward", 0);
    return status;
}

bool pd_run_is_done(const pd_run *r) {
    return r->started && !r->nheap && !r->missing && r->second == r->b->split;
}

static pd_status not_done(const pd_run *r) {
    for (size_t i = 0; i < r->count; i++)
        if (r->entries[i].node && r->entries[i].waiting)
            return pd_fail(PD_E_RUNTIME,
                           "backward: the run was closed while %s waits for gradients; %" PRId64
                           " have to come from outside the run (expected all to be fed)",
                           pd_node_name(r->entries[i].node), r->missing);
    return pd_fail(PD_E_RUNTIME, "backward: the run was closed while nodes are ready (expected a turn first)");
}

pd_status pd_run_close(pd_run *r, pd_status status) {
    if (!status && !r->ended) {
        modes was = attach(r);
        status = pd_run_is_done(r) ? call_at_end(r) : not_done(r);
        detach(r, was);
    }
    r->failed |= status != PD_OK;
    release_all(r);
    return status;
}

pd_status pd_engine_run(const pd_backward *b) {
    pd_run r;
    pd_timespan span = pd_timespan_begin();
    PD_TRY(pd_run_open(&r, b));
    pd_status status = turn(&r, true);
    pd_timespan_end(&span, PD_SPAN_CALL, "backward", 0);
    status = pd_run_close(&r, status);
    if (pd_timespan_is_on(&span) && !status) pd_record_backward(span.mark, b);
    return status;
}
