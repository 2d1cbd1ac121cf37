#include "autograd/autocast.h"

#include "autograd/engine_impl.h"
#include "autograd/program.h"
#include "base/mem.h"

_Thread_local pd_autocast_state pd_autocast = {PD_NO_DTYPE, false, true, -1};

/* ---- casts of this thread's region ------------------------------------------------------------------------------- */

typedef struct kept {
    pd_tensor *x, *cast; /* [strong] */
    unsigned writes;     /* of x's storage when it was cast */
    bool recorded;
} kept;

static _Thread_local struct { kept *at; size_t count, room; } region;

void pd_autocast_clear(void) {
    for (size_t i = 0; i < region.count; i++) {
        pd_tensor_release(region.at[i].cast);
        pd_tensor_release(region.at[i].x);
    }
    pd_free(region.at);
    region.at = NULL;
    region.count = region.room = 0;
}

static bool is_parameter(const pd_tensor *x) {
    return x->requires_grad && x->dtype == PD_F32 && !x->base && !(x->meta && x->meta->grad_fn);
}

/* The entry of x's cast in this region, by the slot in x's meta; NULL: there is none. */
static kept *find(const pd_tensor *x) {
    size_t slot = x->meta ? x->meta->low.slot : 0;
    return slot < region.count && region.at[slot].x == x ? &region.at[slot] : NULL;
}

static pd_status remember(pd_tensor *x, pd_tensor *cast) {
    kept *k = find(x);
    if (k) pd_tensor_release(k->cast);
    else {
        PD_TRY(pd_grow(&region.at, &region.room, region.count + 1, sizeof *region.at, "autocast"));
        x->meta->low.slot = region.count;
        k = &region.at[region.count++];
        pd_tensor_retain(k->x = x);
    }
    pd_tensor_retain(k->cast = cast);
    k->writes = x->storage->writes;
    k->recorded = pd_grad_mode;
    return PD_OK;
}

/* ---- 16-bit copies that a step writes ---------------------------------------------------------------------------- */

void pd_cast_vjp(pd_vjp *v) {
    const pd_dtype to = (pd_dtype)v->node->edges[0].dtype;
    pd_tensor *g = v->g[0];
    if ((pd_dtype)g->dtype != to && !(v->run && pd_run_reads_low(v->run, &v->node->edges[0]))) {
        pd_status status = pd_engine.cast_to(v->g[0], to, pd_vjp_destination(v, 0), &g);
        g = pd_vjp_keep(v, status, g);
    }
    pd_vjp_set(v, 0, g);
}
static const pd_node_kind kind = {.name = "cast_kept", .run = pd_cast_vjp};

bool pd_autocast_is_cast(const pd_node *n) {
    return n && (n->kind->run == pd_cast_vjp || (n->def && n->def->op->vjp == pd_cast_vjp));
}

/* [new] x's 16-bit copy as the result of a cast. */
static pd_status take_copy(pd_tensor *x, pd_tensor *copy, pd_tensor **out) {
    pd_tensor *t;
    pd_node *n;
    PD_TRY(pd_tensor_alias(copy, false, &t));
    pd_status status = PD_OK;
    if (pd_grad_mode && pd_tensor_wants_grad(x)) {
        status = pd_node_new(&kind, NULL, NULL, 0, &x, 1, 1, 0, &n);
        if (!status) {
            status = pd_node_own(n, 0, t);
            pd_node_release(n);
        }
    }
    if (status) pd_tensor_release(t);
    else *out = t;
    return status;
}
static pd_status cast(pd_tensor *x, pd_dtype t, pd_tensor **out) {
    pd_tensor *copy = pd_beside_copy(x, t);
    return copy ? take_copy(x, copy, out) : pd_engine.cast(x, t, out);
}

pd_status pd_autocast_cast(pd_tensor *x, pd_dtype t, pd_tensor **out) {
    if (!is_parameter(x)) return cast(x, t, out);
    if (!pd_autocast.keep || (t != PD_BF16 && t != PD_F16)) return pd_engine.cast(x, t, out);
    pd_meta *m;
    PD_TRY(pd_meta_get(x, &m));
    kept *k = find(x);
    if (k && k->cast->dtype == (int)t && k->writes == x->storage->writes && k->recorded == pd_grad_mode) {
        pd_tensor_retain(*out = k->cast);
        return PD_OK;
    }
    m->low.asked = true, m->low.t = (int8_t)t;
    PD_TRY(cast(x, t, out));
    pd_status status = remember(x, *out);
    if (status) pd_tensor_release(*out);
    return status;
}

/* [new] a tensor of dtype t on d, with x's shape and strides. */
static pd_status new_copy(const pd_tensor *x, pd_dtype t, const pd_device *d, pd_tensor **out) {
    pd_tensor *c;
    PD_TRY(pd_tensor_shell(&c));
    c->dtype = (int8_t)t, c->ndim = x->ndim, c->numel = x->numel;
    for (int i = 0; i < x->ndim; i++) c->size[i] = x->size[i], c->stride[i] = x->stride[i];
    const pd_device *was;
    pd_status status = pd_device_enter(d, &was);
    PD_THEN(pd_tensor_allocate(c));
    pd_device_here = was;
    if (status) pd_tensor_release(c);
    else *out = c;
    return PD_TRAIL(status);
}

pd_status pd_autocast_beside(pd_tensor *t, const pd_device *d, pd_tensor **copy) {
    const pd_dtype low = pd_autocast.dtype;
    const bool on = (low == PD_BF16 || low == PD_F16) && (pd_autocast.kind < 0 || (int)d->kind == pd_autocast.kind);
    pd_meta *m;
    *copy = NULL;
    if (!on || t->dtype != PD_F32 || d == &pd_device_meta) return PD_OK;
    PD_TRY(pd_meta_get(t, &m));
    PD_TRY(new_copy(t, low, d, &m->low.copy));
    *copy = m->low.copy;
    return PD_OK;
}

pd_status pd_autocast_copy_begin(pd_tensor *p, void **to, pd_dtype *t) {
    pd_low *l = p->meta ? &p->meta->low : NULL;
    *to = NULL;
    if (!l) return PD_OK;
    l->of = NULL; /* the step writes p, so the copy is no longer equal */
    bool again = l->asked && is_parameter(p) && pd_storage_is_private(p->storage),
         serves = again && l->copy && l->copy->dtype == l->t && pd_tensor_same_layout(l->copy, p) &&
                  l->copy->storage->refs == 1; /* else a graph still reads it */
    l->asked = false;
    if (!serves) {
        pd_tensor_release(l->copy);
        l->copy = NULL;
    }
    if (!again) return PD_OK;
    if (!serves) PD_TRY(new_copy(p, (pd_dtype)l->t, p->storage->device, &l->copy));
    *to = pd_tensor_data(l->copy);
    *t = (pd_dtype)l->t;
    return PD_OK;
}

void pd_autocast_copy_end(pd_tensor *p) { pd_beside_renew(p); }

/* ---- ops --------------------------------------------------------------------------------------------------------- */

static void release_all(pd_tensor **t, int n) {
    for (int i = 0; i < n; i++) pd_tensor_release(t[i]);
}

static bool may_cast(const pd_tensor *t) {
    return t && t->dtype != PD_F64 && pd_dtype_category((pd_dtype)t->dtype) == PD_CAT_FLOAT;
}

/* Whether autocast is for the device of these tensors. Shapes on meta follow any. */
static bool is_for(pd_tensor *const *in, int nin) {
    for (int i = 0; i < nin && pd_autocast.kind >= 0; i++) {
        const pd_device *d = in[i] && in[i]->ndim ? in[i]->storage->device : &pd_device_meta;
        if (d != &pd_device_meta && (int)d->kind != pd_autocast.kind) return false;
    }
    return true;
}

pd_dtype pd_autocast_for(pd_tensor *const *in, int nin) { return is_for(in, nin) ? pd_autocast.dtype : PD_NO_DTYPE; }

bool pd_autocast_reads(const pd_op *op, pd_tensor *const *in, int nin) {
    if (op->cast != PD_CAST_FP32_READ || pd_autocast.dtype == PD_NO_DTYPE || !is_for(in, nin)) return false;
    for (int i = 1; i < nin; i++)
        if (may_cast(in[i])) return false;
    return may_cast(in[0]) && pd_dtype_size((pd_dtype)in[0]->dtype) == 2;
}

pd_dtype pd_autocast_dtype(const pd_op *op, pd_tensor *const *in, int nin) {
    pd_dtype t = PD_NO_DTYPE;
    if (op->cast == PD_CAST_LOW) t = pd_autocast.dtype;
    if (op->cast == PD_CAST_FP32 || op->cast == PD_CAST_BACK || (op->cast == PD_CAST_FP32_CUDA && pd_autocast.cuda) ||
        (op->cast == PD_CAST_FP32_READ && !pd_autocast_reads(op, in, nin)))
        t = PD_F32;
    if (!is_for(in, nin)) return PD_NO_DTYPE;
    for (int i = 0; i < nin && t != PD_NO_DTYPE; i++)
        if (may_cast(in[i]) && in[i]->dtype != (int)t) return t;
    return PD_NO_DTYPE;
}

pd_status pd_autocast_apply(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor **out,
                            int *nout, pd_dtype t) {
    pd_tensor *few[2 * PD_MAX_PARAMS], **cast = few;
    pd_autocast_state was = pd_autocast;
    int back = def->op->cast == PD_CAST_BACK && !was.cuda && may_cast(in[0]) ? in[0]->dtype : PD_NO_DTYPE, count = 0;
    if (nin > PD_MAX_PARAMS) PD_TRY(pd_malloc(sizeof *cast * 2 * (size_t)nin, def->name, &cast));
    pd_tensor **own = cast + nin;
    uint32_t mark = pd_timespan_mark;
    pd_status status = PD_OK;
    for (int i = 0; i < nin; i++) own[i] = NULL;
    for (int i = 0; i < nin && !status; i++) {
        cast[i] = in[i];
        if (!may_cast(in[i]) || in[i]->dtype == (int)t) continue;
        status = pd_autocast_cast(in[i], t, &own[i]);
        cast[i] = own[i];
    }
    pd_autocast.dtype = PD_NO_DTYPE;
    PD_THEN(pd_apply(def, cast, nin, attrs, out, &count));
    if (!status && back != PD_NO_DTYPE && out[0]->dtype != back) {
        pd_tensor *wide = out[0];
        status = pd_engine.cast(wide, (pd_dtype)back, &out[0]);
        pd_tensor_release(wide);
        if (status) release_all(out + 1, count - 1);
    }
    pd_autocast = was;
    if (!status && pd_is_recording()) pd_record_op(mark, def, attrs, in, nin, out, count);
    if (nout) *nout = count;
    release_all(own, nin);
    if (cast != few) pd_free(cast);
    return status;
}
