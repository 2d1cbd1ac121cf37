#include "autograd/tape.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"

_Thread_local bool pd_grad_mode = true;
_Thread_local pd_status (*pd_saved_pack)(pd_tensor *t, pd_closure *out);
atomic_bool pd_saved_hooked;
pd_anomaly_mode pd_anomaly;
pd_engine_ops pd_engine;
static atomic_uint_fast64_t next_seq;
static atomic_int_fast64_t live;

int64_t pd_node_live(void) { return live; }

/* ---- meta -------------------------------------------------------------------------------------------------------- */

/* Held for a few instructions and over no call, so a thread may wait for it with the host's lock held. */
static pthread_mutex_t grads = PTHREAD_MUTEX_INITIALIZER;

/* [new] the .grad of *m, read under the lock; NULL if *m is NULL. */
static pd_tensor *read_grad(pd_meta *const *m) {
    pthread_mutex_lock(&grads);
    pd_tensor *g = *m ? (*m)->grad : NULL;
    if (g) pd_tensor_retain(g);
    pthread_mutex_unlock(&grads);
    return g;
}

/* Makes g the .grad if that is still `was`. If *m is NULL by now, there is no .grad. */
static bool swap_grad(pd_meta *const *m, const pd_tensor *was, pd_tensor *g) {
    pthread_mutex_lock(&grads);
    pd_tensor *old = *m ? (*m)->grad : g;
    bool same = !*m || old == was;
    if (*m && same) (*m)->grad = g;
    pthread_mutex_unlock(&grads);
    if (same) pd_tensor_release(old); /* may run Python code */
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

static void drop_derived(pd_meta *m) {
    pd_derived *d = m->derived;
    m->derived = NULL;
    if (d) pd_tensor_release(d->made);
    pd_free(d);
}

/* Drops all but .grad, which the caller gets: [new] or NULL. */
static pd_tensor *drop_rest(pd_meta *m) {
    if (m->retained) {
        pthread_mutex_lock(&grads);
        m->retained->meta = NULL;
        pthread_mutex_unlock(&grads);
        drop_retained(m->retained);
    }
    drop_derived(m);
    pd_tensor *grad = m->grad;
    pd_node_release(m->grad_fn);
    pd_tensor_release(m->destination.view);
    pd_tensor_release(m->low.copy);
    pd_tensor_release(m->low.sums);
    pd_hooks_free(m->hooks);
    pd_free(m);
    return grad;
}

static void drop_meta(pd_meta *m) {
    /* A .grad may have a .grad, and a hook may hold tensors with hooks: a loop frees them all, as in
       pd_node_release. */
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
        atomic_store_explicit(&pd_tensor_drop_meta, drop_meta, memory_order_relaxed);
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
    for (;;) { /* again if another thread was faster */
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

/* Makes fn (or NULL) the grad_fn, and moves the hook of retain_grad() to it. */
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
    pd_node_release(old); /* may run Python code */
    return PD_OK;
}

pd_tensor *pd_tensor_derived(pd_tensor *t, const void *how, bool recorded) {
    pd_derived *d = t->meta ? t->meta->derived : NULL;
    if (!d || d->how != how || d->recorded != recorded) return NULL;
    if (d->from != pd_tensor_version(t) || d->to != pd_tensor_version(d->made)) return NULL;
    pd_tensor_retain(d->made);
    return d->made;
}

pd_status pd_tensor_derive(pd_tensor *t, const void *how, pd_tensor *made) {
    pd_meta *m = NULL;
    pd_derived *d;
    PD_TRY(pd_meta_get(t, &m));
    PD_TRY(pd_malloc(sizeof *d, "tape", &d));
    *d = (pd_derived){made, how, pd_tensor_version(t), pd_tensor_version(made), made->requires_grad};
    pd_tensor_retain(made);
    drop_derived(m);
    m->derived = d;
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
        /* The base was written through a view, so t is now a view of that result. */
        pd_tensor *fresh;
        bool mode = pd_grad_mode;
        pd_grad_mode = true;
        pd_status status = pd_engine.as_strided(t->base, t, &fresh);
        pd_grad_mode = mode;
        PD_TRY(status);
        status = pd_meta_get(t, &m);
        PD_THEN(set_grad_fn(m, fresh->meta ? fresh->meta->grad_fn : NULL, 0));
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
    /* One block of memory: node | edges | saved | attrs | sizes of the inputs. */
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
            return PD_TRAIL(status);
        }
        if (fn) pd_node_retain(e->fn = fn);
        else if (t->requires_grad) pd_tensor_retain(e->leaf = t);
    }
    pd_status status = __builtin_expect(pd_anomaly.on, 0) ? pd_anomaly.trace(&n->trace) : PD_OK;
    if (status) {
        pd_node_release(n);
        return PD_TRAIL(status);
    }
    *out = n;
    return PD_OK;
}

void pd_node_release(pd_node *n) {
    /* The first call that drops a last reference runs the loop; nested calls only put their node into its list. */
    static _Thread_local pd_node *dying;
    static _Thread_local bool looping;
    if (!n || atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) != 1) return;
    n->next = dying;
    dying = n;
    if (looping) return;
    looping = true;
    while ((n = dying)) {
        dying = n->next;
        pd_node_drop_saved(n); /* nobody reads it, since readers hold a reference */
        for (int i = 0; i < n->nin; i++) {
            pd_node_release(n->edges[i].fn);
            pd_tensor_release(n->edges[i].leaf);
        }
        if (n->kind->drop) n->kind->drop(n);
        pd_hooks_free(n->hooks);
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
