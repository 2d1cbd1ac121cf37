#include "autograd/tape.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"

_Thread_local bool pd_grad_mode = true;
_Thread_local pd_status (*pd_saved_pack)(pd_tensor *t, pd_closure *out);
atomic_bool pd_saved_hooked;
pd_anomaly_mode pd_anomaly;
pd_engine_ops pd_engine;
static atomic_uint_fast64_t next_seq, next_hook = 1;
static atomic_int_fast64_t live;

int64_t pd_node_live(void) { return live; }

/* ---- meta -------------------------------------------------------------------------------------------------------- */

static void hook_let_go(pd_hook *h) {
    if (atomic_fetch_sub(&h->users, 1) != 1) return;
    pd_closure c = h->closure;
    h->closure = (pd_closure){0};
    pd_closure_drop(&c);
}

static void hooks_free(pd_hook *h) {
    while (h) {
        pd_hook *next = h->next;
        if (h->id) hook_let_go(h);
        pd_free(h);
        h = next;
    }
}

/* Held for a few instructions, over no call: a thread may wait for it with the host's lock. */
static pthread_mutex_t grads = PTHREAD_MUTEX_INITIALIZER;

/* [new] the .grad of *m, read under the lock; *m NULL: none. */
static pd_tensor *read_grad(pd_meta *const *m) {
    pthread_mutex_lock(&grads);
    pd_tensor *g = *m ? (*m)->grad : NULL;
    if (g) pd_tensor_retain(g);
    pthread_mutex_unlock(&grads);
    return g;
}

/* g, or, where *m is NULL by now, nothing. */
static bool swap_grad(pd_meta *const *m, const pd_tensor *was, pd_tensor *g) {
    pthread_mutex_lock(&grads);
    pd_tensor *old = *m ? (*m)->grad : g;
    bool same = !*m || old == was;
    if (*m && same) (*m)->grad = g;
    pthread_mutex_unlock(&grads);
    if (same) pd_tensor_release(old); /* may run code of the host's */
    return same;
}

pd_tensor *pd_meta_grad(pd_meta *m) { return read_grad(&m); }
bool pd_meta_swap_grad(pd_meta *m, const pd_tensor *was, pd_tensor *g) { return swap_grad(&m, was, g); }
void pd_meta_set_grad(pd_meta *m, pd_tensor *g) {
    pthread_mutex_lock(&grads);
    pd_tensor *old = m->grad;
    m->grad = g;
    pthread_mutex_unlock(&grads);
    pd_tensor_release(old);
}

static void drop_retained(void *retained) {
    pd_retained *r = retained;
    if (atomic_fetch_sub(&r->refs, 1) == 1) pd_free(r);
}

/* All but .grad, which is given to the caller: [new] or NULL. */
static pd_tensor *drop_rest(pd_meta *m) {
    if (m->retained) {
        pthread_mutex_lock(&grads);
        m->retained->meta = NULL;
        pthread_mutex_unlock(&grads);
        drop_retained(m->retained);
    }
    pd_tensor *grad = m->grad;
    pd_node_release(m->grad_fn);
    pd_tensor_release(m->destination.view);
    pd_tensor_release(m->low.copy);
    hooks_free(m->hooks);
    pd_free(m);
    return grad;
}

static void drop_meta(pd_meta *m) {
    /* .grad of .grad of ..., hooks that hold tensors with hooks: by a loop, as nodes (pd_node_release). */
    static _Thread_local pd_meta *dying;
    static _Thread_local bool looping;
    if (!m->grad && !m->hooks) {
        drop_rest(m);
        return;
    }
    m->next = dying;
    dying = m;
    if (looping) return;
    looping = true;
    while ((m = dying)) {
        dying = m->next;
        pd_tensor_release(drop_rest(m));
    }
    looping = false;
}

void pd_tensor_forget(pd_tensor *t) {
    pd_meta *m = t->meta;
    t->meta = NULL;
    t->requires_grad = false;
    if (m) drop_meta(m);
}

pd_status pd_meta_get(pd_tensor *t, pd_meta **out) {
    if (!t->meta) {
        pd_tensor_drop_meta = drop_meta;
        PD_TRY(pd_calloc(sizeof *t->meta, "autograd", &t->meta));
    }
    *out = t->meta;
    return PD_OK;
}

bool pd_tensor_wants_grad(const pd_tensor *t) {
    return t->requires_grad || (t->base && t->base->requires_grad && t->base->meta && t->base->meta->rebased);
}

static pd_status keep_grad(void *retained, void *grad) {
    pd_retained *r = retained;
    for (;;) { /* again where another thread was faster */
        pd_tensor *g = *(pd_tensor **)grad, *old = read_grad(&r->meta), *sum = NULL;
        pd_status status = old ? pd_engine.add(old, g, &sum) : pd_engine.clone(g, &sum);
        bool done = !status && swap_grad(&r->meta, old, sum);
        pd_tensor_release(old);
        if (done || status) return status;
        pd_tensor_release(sum);
    }
}

static pd_status hook_retained(pd_retained *r, pd_node *fn, int index) {
    pd_status status;
    r->hook = pd_hook_add(&fn->hooks, PD_HOOK_GRAD, index,
                          (pd_closure){.call = keep_grad, .drop = drop_retained, .ctx = r}, &status);
    if (!status) atomic_fetch_add(&r->refs, 1);
    return status;
}

/* fn, or NULL, and what retain_grad() hung on the old one. */
static pd_status set_grad_fn(pd_meta *m, pd_node *fn, int index) {
    pd_retained *r = m->retained;
    if (r && fn != m->grad_fn) {
        if (m->grad_fn && r->hook) pd_hook_remove(&m->grad_fn->hooks, r->hook);
        r->hook = 0;
        if (fn) PD_TRY(hook_retained(r, fn, index));
    }
    pd_node *old = m->grad_fn;
    if (fn) pd_node_retain(fn);
    m->grad_fn = fn;
    m->index = index;
    pd_node_release(old); /* may run code of the host's */
    return PD_OK;
}

pd_status pd_tensor_apart(pd_tensor *t, bool recorded, pd_tensor **out) {
    if (!recorded) return pd_tensor_alias(t, false, out);
    pd_tensor_retain(*out = t);
    return PD_OK;
}

void pd_tensor_detach(pd_tensor *t) {
    pd_meta *m = t->meta;
    pd_node *old = m ? m->grad_fn : NULL;
    t->requires_grad = false;
    if (m) {
        m->grad_fn = NULL;
        m->index = 0;
    }
    pd_node_release(old);
}

pd_status pd_tensor_history(pd_tensor *t, pd_node **fn, int *index) {
    pd_meta *m = t->meta;
    if (t->base && t->base->meta && t->base->meta->rebased != (m ? m->base_rebased : 0)) {
        /* The base was written through some view: t is now a view of that result. */
        pd_tensor *fresh;
        bool mode = pd_grad_mode;
        pd_grad_mode = true;
        pd_status status = pd_engine.as_strided(t->base, t, &fresh);
        pd_grad_mode = mode;
        PD_TRY(status);
        status = pd_meta_get(t, &m);
        if (!status) status = set_grad_fn(m, fresh->meta ? fresh->meta->grad_fn : NULL, 0);
        if (!status) {
            m->base_rebased = t->base->meta->rebased;
            t->requires_grad = fresh->requires_grad;
        }
        pd_tensor_release(fresh);
        PD_TRY(status);
    }
    *fn = m ? m->grad_fn : NULL;
    *index = m ? m->index : 0;
    return PD_OK;
}

atomic_int pd_hooks_running;

/* Unlinks what was removed, unless some backward may be on its way through a list. */
static void purge(pd_hook **list) {
    if (pd_hooks_running) return;
    while (*list) {
        pd_hook *h = *list;
        if (h->users) {
            list = &h->next;
            continue;
        }
        *list = h->next;
        pd_free(h);
    }
}

uint64_t pd_hook_add(pd_hook **list, pd_hook_kind kind, int index, pd_closure c, pd_status *status) {
    pd_hook *h;
    purge(list);
    if ((*status = pd_malloc(sizeof *h, "hook", &h))) return 0;
    *h = (pd_hook){.closure = c, .kind = kind, .index = index, .users = 1, .id = atomic_fetch_add(&next_hook, 1)};
    while (*list) list = &(*list)->next; /* hooks run in the order they were added */
    *list = h;
    return h->id;
}

void pd_hook_remove(pd_hook **list, uint64_t id) {
    for (pd_hook *h = *list; h; h = h->next)
        if (h->id == id) {
            h->id = 0;
            hook_let_go(h); /* the list is walked, maybe, and this one called */
            break;
        }
    purge(list);
}

pd_status pd_hook_call(pd_hook *h, void *arg) {
    if (!pd_hold(&h->users)) return PD_OK;
    pd_status status = h->closure.call(h->closure.ctx, arg);
    hook_let_go(h);
    return status;
}

pd_status pd_tensor_retain_grad(pd_tensor *t) {
    pd_node *fn;
    int index;
    pd_meta *m = NULL;
    pd_retained *r;
    PD_TRY(pd_tensor_history(t, &fn, &index));
    PD_TRY(pd_meta_get(t, &m));
    if (!fn || m->retained) return PD_OK; /* a leaf keeps its gradient anyway */
    PD_TRY(pd_malloc(sizeof *r, "retain_grad", &r));
    *r = (pd_retained){.refs = 1, .meta = m};
    pd_status status = hook_retained(r, fn, index);
    if (status) drop_retained(r);
    else m->retained = r;
    return status;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

pd_status pd_node_new(const pd_node_kind *kind, const pd_def *def, const void *attrs, size_t attr_bytes,
                      pd_tensor *const *in, int nin, int nout, int nsaved, pd_node **out) {
    /* One block: node | edges | saved | attrs | sizes of the inputs. */
    size_t dims = 0;
    for (int i = 0; i < nin; i++) dims += in[i] ? (size_t)in[i]->ndim : 0;
    size_t edges = sizeof(pd_node), saved = edges + (size_t)nin * sizeof(pd_edge),
           at = saved + (size_t)nsaved * sizeof(pd_saved), sizes = at + ((attr_bytes + 7) & ~(size_t)7);
    pd_node *n;
    PD_TRY(pd_malloc(sizes + dims * 8, "tape", &n));
    *n = (pd_node){.refs = 1, .readers = 1, .kind = kind, .def = def, .nout = nout, .nsaved = nsaved};
    n->seq = atomic_fetch_add_explicit(&next_seq, 1, memory_order_relaxed);
    n->edges = (pd_edge *)((char *)n + edges);
    n->saved = (pd_saved *)((char *)n + saved);
    n->attrs = (char *)n + at;
    if (attr_bytes) memcpy(n->attrs, attrs, attr_bytes);
    memset(n->saved, 0, (size_t)nsaved * sizeof(pd_saved));
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    int64_t *pool = (int64_t *)((char *)n + sizes);
    for (; n->nin < nin; n->nin++) {
        pd_tensor *t = in[n->nin];
        pd_edge *e = &n->edges[n->nin];
        *e = (pd_edge){0};
        if (!t) continue;
        e->dtype = t->dtype;
        e->ndim = t->ndim;
        e->device = (int16_t)t->storage->device->index;
        e->size = pool;
        for (int d = 0; d < t->ndim; d++) *pool++ = t->size[d];
        if (!pd_tensor_wants_grad(t)) continue;
        pd_node *fn;
        pd_status status = pd_tensor_history(t, &fn, &e->index);
        if (status) {
            pd_node_release(n);
            return pd_trail(__FILE__, __LINE__, status);
        }
        if (fn) pd_node_retain(e->fn = fn);
        else if (t->requires_grad) pd_tensor_retain(e->leaf = t);
    }
    pd_status status = __builtin_expect(pd_anomaly.on, 0) ? pd_anomaly.trace(&n->trace) : PD_OK;
    if (status) {
        pd_node_release(n);
        return pd_trail(__FILE__, __LINE__, status);
    }
    *out = n;
    return PD_OK;
}

/* [new] a shell of t's dtype and geometry. */
static pd_status shell_of(const pd_tensor *t, pd_tensor **out) {
    PD_TRY(pd_tensor_shell(out));
    (*out)->dtype = t->dtype;
    (*out)->ndim = t->ndim;
    (*out)->numel = t->numel;
    memcpy((*out)->size, t->size, sizeof *t->size * (size_t)t->ndim);
    memcpy((*out)->stride, t->stride, sizeof *t->stride * (size_t)t->ndim);
    return PD_OK;
}

/* What the hook made of t takes its place; dtype and geometry stay. */
static pd_status pack(pd_saved *s, pd_tensor *t, bool is_out) {
    pd_tensor *given = NULL;
    PD_TRY(shell_of(t, &s->t));
    s->device = (int8_t)t->storage->device->index;
    PD_TRY(pd_calloc(sizeof *s->packed, "tape", &s->packed));
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
        return pd_fail(
            PD_E_RUNTIME,
            "%s: %s %d, of shape %s, is an inference tensor, which cannot be saved for the gradient (expected clone(), "
            "or no_grad)",
            pd_node_name(n), is_out ? "output" : "input", index, pd_tensor_shape(t));
    if (__builtin_expect(pd_saved_hooked, 0) && pd_saved_pack && !(n->def && n->def->op->flags & PD_SAVES_GEOMETRY))
        return pack(s, t, is_out);
    s->version = pd_tensor_version(t);
    bool geometry = n->def && n->def->op->flags & PD_SAVES_GEOMETRY; /* as it is now, whatever `.data =` makes of t */
    if (index < 0 || (!is_out && n->edges[index].leaf && !geometry)) pd_tensor_retain(s->t = t);
    else PD_TRY(pd_tensor_alias(t, false, &s->t));
    return PD_OK;
}

bool pd_node_hold(pd_node *n) { return !n->freed && pd_hold(&n->readers); }

static void drop_saved(pd_node *n) {
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
    if (atomic_fetch_sub(&n->readers, 1) == 1) drop_saved(n);
}

void pd_node_free_saved(pd_node *n) {
    if (!atomic_exchange(&n->freed, true)) pd_node_let_go(n);
}

void pd_node_release(pd_node *n) {
    /* Whoever drops the last reference first becomes the one loop that frees all that follows from it. */
    static _Thread_local pd_node *dying;
    static _Thread_local bool looping;
    if (!n || atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) != 1) return;
    n->next = dying;
    dying = n;
    if (looping) return;
    looping = true;
    while ((n = dying)) {
        dying = n->next;
        drop_saved(n); /* nobody reads it: who does has a reference */
        for (int i = 0; i < n->nin; i++) {
            pd_node_release(n->edges[i].fn);
            pd_tensor_release(n->edges[i].leaf);
        }
        if (n->kind->drop) n->kind->drop(n);
        hooks_free(n->hooks);
        pd_closure_drop(&n->trace);
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
        pd_free(n);
    }
    looping = false;
}

const char *pd_node_name(const pd_node *n) {
    return n->kind->name_of ? n->kind->name_of(n) : n->kind->name ? n->kind->name : n->def->name;
}

pd_status pd_node_own(pd_node *n, int index, pd_tensor *t) {
    pd_meta *m = NULL;
    PD_TRY(pd_meta_get(t, &m));
    PD_TRY(set_grad_fn(m, n, index));
    if (t->base && t->base->meta) m->base_rebased = t->base->meta->rebased;
    t->requires_grad = true;
    return PD_OK;
}

/* ---- in-place on a view ------------------------------------------------------------------------------------------ */

/* The base after `inner` wrote one of its views: grad of the old base = grad with the view's part replaced by what
   inner passes back. The inputs are inner's, with the old base in the place of the view. */
typedef struct slices {
    int written;         /* which input */
    pd_node *inner;      /* [strong] */
    pd_tensor *view;     /* [strong] geometry only: an alias */
    pd_tensor *base;     /* [strong] likewise */
} slices;

static void slices_drop(pd_node *n) {
    slices *s = n->extra;
    if (!s) return;
    pd_node_release(s->inner);
    pd_tensor_release(s->view);
    pd_tensor_release(s->base);
    pd_free(s);
}

/* inner's own gradients for the part that it wrote; gin has room for its inputs. */
static void run_inner(pd_vjp *v, pd_node *inner, pd_tensor *g, pd_tensor **gin) {
    pd_vjp w = {.node = inner, .attrs = inner->attrs, .g = &g, .gin = gin, .create_graph = v->create_graph};
    inner->kind->run(&w);
    v->status = w.status;
    pd_vjp_end(&w);
}

static void slices_run(pd_vjp *v) {
    slices *s = v->node->extra;
    pd_tensor *t = NULL, *gin[PD_MAX_PARAMS] = {0}; /* in-place ops have fixed inputs */
    /* A copy of g in the base's own layout, so that the view's strides address it. Ops throughout: recorded if need be.
     */
    pd_status status = pd_engine.zeros_like(s->base, &t);
    pd_tensor *whole = pd_vjp_keep(v, status, t), *part, *g, *back;
    if (!whole || (v->status = pd_engine.write(whole, v->g[0]))) return;
    status = pd_engine.as_strided(whole, s->view, &t);
    if (!(part = pd_vjp_keep(v, status, t))) return;
    status = pd_engine.clone(part, &t);
    if (!(g = pd_vjp_keep(v, status, t))) return;
    run_inner(v, s->inner, g, gin);
    if (!(back = gin[s->written]) && !v->status) {
        status = pd_engine.zeros_like(part, &t);
        back = pd_vjp_keep(v, status, t);
    }
    if (!v->status) v->status = pd_engine.write(part, back);
    for (int i = 0; i < s->inner->nin; i++) {
        pd_vjp_set(v, i, i == s->written ? whole : gin[i]);
        pd_tensor_release(gin[i]);
    }
}

static pd_node *slices_inner(const pd_node *n) { return n->extra ? ((const slices *)n->extra)->inner : NULL; }

static const pd_node_kind copy_slices = {
    .name = "copy_slices", .run = slices_run, .drop = slices_drop, .inner = slices_inner};

static pd_status rebase_view(pd_node *n, pd_tensor *t, int written) {
    pd_tensor *base = t->base, *in[PD_MAX_PARAMS];
    pd_meta *bm = NULL;
    pd_node *cs;
    slices *s;
    if (n->nin > PD_MAX_PARAMS || n->nout > 1)
        return pd_fail(
            PD_E_NOTIMPL,
            "%s: a view is written in place beside %d inputs and %d outputs (expected at most %d and 1; clone it)",
            pd_node_name(n), n->nin, n->nout, PD_MAX_PARAMS);
    PD_TRY(pd_meta_get(base, &bm));
    for (int i = 0; i < n->nin; i++) in[i] = i == written ? base : NULL;
    PD_TRY(pd_node_new(&copy_slices, NULL, NULL, 0, in, n->nin, 1, 0, &cs));
    pd_status status = pd_calloc(sizeof *s, "tape", &s);
    if (status) goto fail;
    cs->extra = s;
    s->written = written;
    pd_node_retain(s->inner = n);
    PD_TRY_TO(fail, pd_tensor_alias(t, false, &s->view));
    PD_TRY_TO(fail, pd_tensor_alias(base, false, &s->base));
    for (int i = 0; i < n->nin; i++) { /* inner's other edges also become the base's */
        if (i == written) continue;
        cs->edges[i] = n->edges[i];
        if (n->edges[i].fn) pd_node_retain(n->edges[i].fn);
        if (n->edges[i].leaf) pd_tensor_retain(n->edges[i].leaf);
    }
    cs->work = n->work;
    PD_TRY_TO(fail, pd_node_own(cs, 0, base));
    bm->rebased++;
    pd_node_release(cs);
    return PD_OK;
fail:
    pd_node_release(cs);
    return status;
}

pd_status pd_node_rebase(pd_node *n, pd_tensor *t, int written, int index) {
    if (!t->base) {
        PD_TRY(pd_node_own(n, index, t));
        t->meta->rebased++; /* views of t are made anew when asked for */
        return PD_OK;
    }
    pd_node *fn;
    PD_TRY(rebase_view(n, t, written));
    PD_TRY(pd_tensor_history(t, &fn, &index)); /* t's own grad_fn: now a view of the new base */
    return PD_OK;
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
    return pd_fail(PD_E_RUNTIME,
                   "%s: %s %d, %s of shape %s, is needed for the gradient but was modified by an in-place op, or given "
                   "other .data: it is at version %u (expected %u)",
                   pd_node_name(n),
                   s->is_out      ? "output"
                   : s->index < 0 ? "saved tensor"
                                  : "input",
                   s->index < 0 ? (int)(s - n->saved) : s->index, pd_dtype_name((pd_dtype)s->t->dtype),
                   pd_tensor_shape(s->t), version, s->version);
}

/* [new] t's values, laid out like `as`. */
static pd_status laid_out(pd_tensor *t, const pd_tensor *as, pd_tensor **out) {
    PD_TRY(shell_of(as, out));
    pd_status status = pd_tensor_allocate(*out);
    if (!status) status = pd_engine.copy_into(*out, t);
    if (status) pd_tensor_release(*out);
    return status;
}

/* [new] what the hooks give back for a packed tensor: as it was, and laid out so where that is dense. */
static pd_status call_unpack(const pd_node *n, const pd_saved *s, pd_tensor **out) {
    pd_tensor *t = NULL, *copy = NULL;
    PD_TRY(s->packed->call(s->packed->ctx, &t));
    pd_status status = PD_OK;
    if (!pd_tensor_same_shape(t, s->t) || t->dtype != s->t->dtype)
        status =
            pd_fail(PD_E_SHAPE, "%s: the hook for saved tensors gave back %s of shape %s (expected %s of shape %s)",
                    pd_node_name(n), pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t),
                    pd_dtype_name((pd_dtype)s->t->dtype), pd_tensor_shape(s->t));
    else if (t->storage->device->index != s->device)
        status = pd_fail(PD_E_RUNTIME, "%s: the hook for saved tensors gave a tensor back on %s (expected the device "
                                       "that it was on)", pd_node_name(n), t->storage->device->name);
    else if (memcmp(t->stride, s->t->stride, sizeof *t->stride * (size_t)t->ndim) &&
             pd_shape_is_dense(t->ndim, t->size, s->t->stride))
        status = laid_out(t, s->t, &copy);
    else if (s->index >= 0) status = pd_tensor_alias(t, false, &copy); /* its history is the node's to give */
    else pd_tensor_retain(copy = t);
    pd_tensor_release(t);
    *out = copy;
    return status;
}

/* [new] s->t with its history: of an output this node, of an input where the edge leads. */
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
                       "%s: the saved tensors were freed by an earlier backward (expected retain_graph=True there)",
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

/* The same for each vjp that asks: hooks are called once for a slot. */
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
            pd_fail(PD_E_NOTIMPL, "%s: its gradient cannot be differentiated again (create_graph)", v->node->def->name);
    if (!v->status) v->status = pd_device_check(d, v->node->def->name);
    pd_device_here = was;
}
const pd_node_kind pd_node_of_op = {.run = run_op};
