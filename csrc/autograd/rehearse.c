/* Whether a program does what the call did in which it was recorded.

   The call has run. What the call wrote is exchanged with what was there before, the program runs on that, and all bits
   are compared: written memory, gradients, outputs, the state of the random numbers, counts of writes. Then everything
   is put back as the call has left it. */
#include <stdio.h>
#include <string.h>

#include "autograd/program_impl.h"
#include "base/mem.h"

/* Memory that the program writes. */
typedef struct kept {
    pd_storage *s;   /* [strong] */
    pd_tensor *copy; /* [strong] its bytes before the call; during the run those after it */
    unsigned writes, version;
} kept;

typedef struct leaf {
    pd_tensor *t;            /* [strong] a fixed tensor */
    pd_tensor *before, *after; /* [strong] its .grad, or NULL */
    unsigned began, ended;   /* its storage's count of writes before and after the call */
    unsigned version;        /* its own counter's count after the call, if it has one */
    pd_low low;
} leaf;

struct pd_rehearsal {
    kept *kept;
    size_t nkept, cap;
    leaf *leaves;
    size_t nleaves;
    pd_tensor **inputs; /* [strong] */
    int ninputs;
    pd_rng_key before, after;
    char why[160];
};

/* ---- bits -------------------------------------------------------------------------------------------------------- */

/* [new] t where the host can read it, without gaps. */
static pd_status near(pd_tensor *t, pd_tensor **out) {
    pd_tensor *dense;
    if (t->storage->device == &pd_device_cpu && pd_shape_is_dense(t->ndim, t->size, t->stride)) {
        pd_tensor_retain(*out = t);
        return PD_OK;
    }
    PD_TRY(pd_engine.clone(t, &dense));
    pd_status status = PD_OK;
    if (dense->storage->device == &pd_device_cpu) pd_tensor_retain(*out = dense);
    else status = pd_engine.move(dense, &pd_device_cpu, PD_WAIT, out);
    pd_tensor_release(dense);
    return status;
}

pd_status pd_bits_equal(pd_tensor *a, pd_tensor *b, bool *same) {
    pd_tensor *x, *y;
    *same = a == b;
    if (*same) return PD_OK;
    size_t dims = sizeof *a->stride * (size_t)a->ndim;
    bool alike = a->dtype == b->dtype && pd_tensor_same_shape(a, b) && a->storage->device == b->storage->device &&
                 !memcmp(a->stride, b->stride, dims);
    if (!alike || a->storage->device == &pd_device_meta || !a->numel) {
        *same = alike;
        return PD_OK;
    }
    bool mode = pd_grad_mode;
    pd_grad_mode = false;
    pd_status status = near(a, &x);
    if (!status) {
        status = near(b, &y);
        if (!status) {
            *same = !memcmp(pd_tensor_data(x), pd_tensor_data(y), pd_tensor_bytes(x));
            pd_tensor_release(y);
        }
        pd_tensor_release(x);
    }
    pd_grad_mode = mode;
    return status;
}

/* [new] all bytes of a storage as a tensor. */
static pd_status bytes_of(pd_storage *s, pd_tensor **out) {
    PD_TRY(pd_tensor_shell(out));
    pd_tensor *t = *out;
    t->dtype = PD_U8, t->ndim = 1, t->numel = t->size[0] = (int64_t)s->bytes, t->stride[0] = 1;
    pd_storage_retain(t->storage = s);
    return PD_OK;
}

pd_status pd_storage_copy(pd_storage *s, pd_tensor **out) {
    pd_tensor *all;
    bool mode = pd_grad_mode;
    PD_TRY(bytes_of(s, &all));
    pd_grad_mode = false;
    pd_status status = pd_engine.clone(all, out);
    pd_grad_mode = mode;
    pd_tensor_release(all);
    return status;
}

pd_status pd_storage_put(pd_storage *s, pd_tensor *bytes) {
    pd_tensor *all;
    if (s->device == &pd_device_cpu) {
        memcpy(s->data, bytes->storage->data, s->bytes);
        return PD_OK;
    }
    PD_TRY(bytes_of(s, &all));
    pd_status status = pd_engine.copy_into(all, bytes);
    pd_tensor_release(all);
    return status;
}

/* ---- effects ----------------------------------------------------------------------------------------------------- */

static _Thread_local struct { const pd_program *p; size_t next; } rehearsing;

bool pd_is_rehearsing(void) { return rehearsing.p != NULL; }

pd_status pd_rehearse_effect(pd_storage *s) {
    const pd_program *p = rehearsing.p;
    const struct pd_effect *e = p && rehearsing.next < p->neffects ? &p->effects[rehearsing.next++] : NULL;
    if (!e || e->s != s) return pd_fail(PD_E_RUNTIME, "replay: the reducer has other buckets than in the step");
    return pd_storage_put(s, e->bytes);
}

/* ---- before the call --------------------------------------------------------------------------------------------- */

static bool is_leaf(const pd_rehearsal *h, const pd_tensor *t) {
    for (size_t k = 0; k < h->nleaves; k++)
        if (h->leaves[k].t == t) return true;
    return false;
}

static bool is_kept(const pd_rehearsal *h, const pd_storage *s) {
    for (size_t k = 0; k < h->nkept; k++)
        if (h->kept[k].s == s) return true;
    return false;
}

static pd_status keep(pd_rehearsal *h, pd_storage *s) {
    if (s->device != &pd_device_cpu && !pd_storage_is_private(s))
        return pd_fail(PD_E_RUNTIME, "replay: a GPU's memory is lent (expected memory of our own)");
    if (is_kept(h, s)) return PD_OK;
    PD_TRY(pd_grow(&h->kept, &h->cap, h->nkept + 1, sizeof *h->kept, "replay"));
    kept *k = &h->kept[h->nkept];
    *k = (kept){.s = s};
    PD_TRY(pd_storage_copy(s, &k->copy));
    pd_storage_retain(s);
    h->nkept++;
    return PD_OK;
}

static pd_status add_leaf(pd_rehearsal *h, pd_tensor *t) {
    if (is_leaf(h, t)) return PD_OK;
    leaf *l = &h->leaves[h->nleaves++];
    pd_tensor_retain(t);
    *l = (leaf){.t = t, .began = t->storage->writes, .before = t->meta ? pd_meta_grad(t->meta) : NULL};
    if (l->before) PD_TRY(keep(h, l->before->storage));
    pd_tensor *view = t->meta ? t->meta->destination.view : NULL;
    return view ? keep(h, view->storage) : PD_OK;
}

static pd_status begin(pd_rehearsal *h, const pd_program *p, pd_tensor *const *in) {
    pd_rng_get(&h->before);
    PD_TRY(pd_calloc(sizeof *h->inputs * (size_t)(p->ninputs + 1), "replay", &h->inputs));
    for (; h->ninputs < p->ninputs; h->ninputs++) pd_tensor_retain(h->inputs[h->ninputs] = in[h->ninputs]);
    for (size_t k = 0; k < p->nwritten; k++) PD_TRY(keep(h, p->written[k]));
    PD_TRY(pd_calloc(sizeof *h->leaves * (p->nfixed + p->nbody_fixed + (size_t)p->ninputs + 1), "replay", &h->leaves));
    for (int k = 0; k < p->ninputs; k++) {
        PD_TRY(add_leaf(h, in[k]));
        if (p->inputs[k].written) PD_TRY(keep(h, in[k]->storage));
    }
    for (size_t k = 0; k < p->nfixed; k++)
        if (!p->fixed[k].constant) PD_TRY(add_leaf(h, p->fixed[k].t));
    for (size_t k = 0; k < p->nbody_fixed; k++) PD_TRY(add_leaf(h, p->body_fixed[k].t));
    return PD_OK;
}

pd_status pd_rehearse_begin(const pd_program *p, pd_tensor *const *in, pd_rehearsal **out) {
    pd_rehearsal *h;
    PD_TRY(pd_calloc(sizeof *h, "replay", &h));
    pd_status status = begin(h, p, in);
    if (status) pd_rehearse_drop(h);
    else *out = h;
    return status;
}

void pd_rehearse_drop(pd_rehearsal *h) {
    for (size_t k = 0; k < h->nkept; k++) {
        pd_storage_release(h->kept[k].s);
        pd_tensor_release(h->kept[k].copy);
    }
    for (size_t k = 0; k < h->nleaves; k++) {
        leaf *l = &h->leaves[k];
        pd_tensor_release(l->before);
        pd_tensor_release(l->after);
        pd_tensor_release(l->low.copy);
        pd_tensor_release(l->low.sums);
        pd_tensor_release(l->t);
    }
    for (int k = 0; k < h->ninputs; k++) pd_tensor_release(h->inputs[k]);
    pd_free(h->kept);
    pd_free(h->leaves);
    pd_free(h->inputs);
    pd_free(h);
}

bool pd_rehearsal_covers(const pd_rehearsal *h, const pd_program *p) {
    for (size_t k = 0; k < p->nwritten; k++)
        if (!is_kept(h, p->written[k])) return false;
    for (int k = 0; k < p->ninputs; k++)
        if (p->inputs[k].written && !is_kept(h, h->inputs[k]->storage)) return false;
    for (size_t k = 0; k < p->nfixed; k++)
        if (!p->fixed[k].constant && !is_leaf(h, p->fixed[k].t)) return false;
    for (size_t k = 0; k < p->nbody_fixed; k++)
        if (!is_leaf(h, p->body_fixed[k].t)) return false;
    for (size_t k = 0; k < h->nleaves; k++) { /* whoever has written it */
        const pd_storage *s = h->leaves[k].t->storage;
        if (s->writes != h->leaves[k].began && !is_kept(h, s)) return false;
    }
    return true;
}

/* ---- after the call ---------------------------------------------------------------------------------------------- */

/* Exchanges the storage's bytes with those that were kept. */
static void exchange(const kept *k) {
    pd_storage *own = k->copy->storage;
    char *a = k->s->data, *b = own->data, room[4096];
    if (pd_storage_is_private(k->s)) {
        own->data = a, k->s->data = b;
        return;
    }
    for (size_t at = 0, n; at < own->bytes; at += n) { /* somebody else knows the address */
        n = own->bytes - at < sizeof room ? own->bytes - at : sizeof room;
        memcpy(room, a + at, n);
        memcpy(a + at, b + at, n);
        memcpy(b + at, room, n);
    }
}

static void go_back(pd_rehearsal *h) {
    pd_rng_get(&h->after);
    pd_rng_set(&h->before);
    for (size_t k = 0; k < h->nleaves; k++) {
        leaf *l = &h->leaves[k];
        pd_meta *m = l->t->meta;
        l->ended = l->t->storage->writes;
        l->version = l->t->version ? l->t->version->count : 0;
        if (!m) continue;
        l->after = pd_meta_grad(m);
        if (l->before) pd_tensor_retain(l->before);
        pd_meta_set_grad(m, l->before);
        l->low = m->low; /* with its references */
        m->low = (pd_low){.slot = m->low.slot}; /* else forward takes a copy that equals the tensor after the call */
    }
    for (size_t k = 0; k < h->nkept; k++) {
        h->kept[k].writes = h->kept[k].s->writes;
        h->kept[k].version = h->kept[k].s->version;
        exchange(&h->kept[k]);
    }
}

static void go_forth(pd_rehearsal *h) {
    for (size_t k = 0; k < h->nkept; k++) {
        exchange(&h->kept[k]);
        h->kept[k].s->writes = h->kept[k].writes;
        h->kept[k].s->version = h->kept[k].version;
    }
    for (size_t k = 0; k < h->nleaves; k++) {
        leaf *l = &h->leaves[k];
        pd_meta *m = l->t->meta;
        l->t->storage->writes = l->ended;
        if (l->t->version) l->t->version->count = l->version;
        if (!m) continue;
        pd_meta_set_grad(m, l->after);
        l->after = NULL;
        pd_beside_drop(l->t);
        m->low = l->low;
        l->low = (pd_low){0};
    }
    pd_rng_set(&h->after);
}

static pd_status differ(pd_rehearsal *h, pd_tensor *a, pd_tensor *b, const char *what) {
    bool same = a == b;
    if (a && b) PD_TRY(pd_bits_equal(a, b, &same));
    if (!same && !*h->why)
        snprintf(h->why, sizeof h->why, "%s of shape %s has other bits", what, pd_tensor_shape(a ? a : b));
    return PD_OK;
}

/* Whether a host call wrote it that was not repeated. */
static bool is_put(const pd_program *p, const pd_storage *s) {
    for (size_t k = 0; k < p->count; k++)
        if (p->instrs[k].kind == &pd_instr_put && ((const struct pd_effect *)p->instrs[k].attrs)->s == s) return true;
    return false;
}

/* Compares what the run has left, and gave, with what the call had left. */
static pd_status compare(pd_rehearsal *h, const pd_program *p, pd_tensor *const *a, pd_tensor *const *b) {
    pd_rng_key now;
    for (int k = 0; k < p->noutputs; k++) {
        PD_TRY(differ(h, a[k], b[k], "a result"));
        if (a[k] && b[k] && a[k]->requires_grad != b[k]->requires_grad)
            snprintf(h->why, sizeof h->why, "a result has another history");
    }
    for (size_t k = 0; k < h->nleaves; k++) {
        leaf *l = &h->leaves[k];
        pd_tensor *grad = l->t->meta ? pd_meta_grad(l->t->meta) : NULL;
        pd_status status = differ(h, grad, l->after, "a gradient");
        pd_tensor_release(grad);
        PD_TRY(status);
        if (l->t->storage->writes - l->ended != l->ended - l->began && !*h->why && !is_put(p, l->t->storage))
            snprintf(h->why, sizeof h->why, "a tensor of shape %s is written %u times (expected %u)",
                     pd_tensor_shape(l->t), l->t->storage->writes - l->ended, l->ended - l->began);
    }
    for (size_t k = 0; k < h->nkept; k++) {
        pd_tensor *all;
        PD_TRY(bytes_of(h->kept[k].s, &all));
        pd_status status = differ(h, all, h->kept[k].copy, "written memory");
        pd_tensor_release(all);
        PD_TRY(status);
    }
    pd_rng_get(&now);
    if (memcmp(&now.call, &h->after.call, sizeof now.call) && !*h->why)
        snprintf(h->why, sizeof h->why, "it draws other random numbers");
    return PD_OK;
}

pd_status pd_rehearse_end(pd_rehearsal *h, const pd_program *p, pd_tensor *const *outputs, const char **why) {
    static _Thread_local char text[sizeof h->why];
    pd_tensor **out;
    pd_status status = pd_calloc(sizeof *out * (size_t)(p->noutputs + 1), "replay", &out);
    if (!status) {
        go_back(h);
        rehearsing.p = p, rehearsing.next = 0;
        status = pd_program_execute(p, h->inputs, out, true);
        rehearsing.p = NULL;
        PD_THEN(compare(h, p, out, outputs));
        go_forth(h);
        for (int k = 0; k < p->noutputs; k++) pd_tensor_release(out[k]);
        pd_free(out);
    }
    memcpy(text, h->why, sizeof text);
    *why = *text ? text : NULL;
    pd_rehearse_drop(h);
    return status;
}
