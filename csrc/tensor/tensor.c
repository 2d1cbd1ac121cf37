#include "tensor/tensor.h"

#include "base/mem.h"

void (*_Atomic pd_tensor_drop_meta)(struct pd_meta *meta);
void (*pd_tensor_drop_wrapper)(void *wrapper);
_Atomic(pd_note) pd_note_write;
static atomic_int_fast64_t live;

int64_t pd_tensor_live(void) { return live; }

pd_status pd_tensor_shell(pd_tensor **out) {
    pd_tensor *t;
    PD_TRY(pd_malloc(sizeof *t, "tensor", &t));
    atomic_init(&t->refs, 1);
    t->storage = NULL;
    t->version = NULL;
    t->base = NULL;
    t->spread = NULL;
    t->meta = NULL;
    t->wrapper = NULL;
    atomic_init(&t->wrapper_owned, false);
    t->requires_grad = false;
    t->mark = 0;
    t->seen.pass = 0;
    t->dtype = PD_F32;
    t->ndim = 0;
    t->offset = 0;
    t->numel = 1; /* sizes and strides past ndim stay unset: clearing 256 bytes would cost more than the rest */
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    *out = t;
    return PD_OK;
}

pd_status pd_tensor_allocate(pd_tensor *t) {
    PD_TRY(pd_storage_new(pd_device_here, pd_tensor_bytes(t), &t->storage));
    return PD_OK;
}

pd_status pd_tensor_new(const char *op, pd_dtype dtype, int ndim, const int64_t *size, pd_tensor **out) {
    int64_t numel;
    PD_TRY(pd_shape_numel(op, ndim, size, &numel));
    pd_tensor *t;
    PD_TRY(pd_tensor_shell(&t));
    t->dtype = (int8_t)dtype;
    t->ndim = (int8_t)ndim;
    t->numel = numel;
    for (int i = 0; i < ndim; i++) t->size[i] = size[i];
    pd_shape_contiguous(ndim, t->size, t->stride);
    pd_status status = pd_tensor_allocate(t);
    if (status) {
        pd_tensor_release(t);
        return PD_TRAIL(status);
    }
    *out = t;
    return PD_OK;
}

static void copy_geometry(pd_tensor *to, const pd_tensor *from) {
    to->dtype = from->dtype;
    to->ndim = from->ndim;
    to->offset = from->offset;
    to->numel = from->numel;
    for (int i = 0; i < from->ndim; i++) {
        to->size[i] = from->size[i];
        to->stride[i] = from->stride[i];
    }
}

static void share_storage(pd_tensor *to, const pd_tensor *from) {
    to->storage = from->storage;
    pd_storage_retain(to->storage);
    to->version = from->version;
    if (to->version) atomic_fetch_add_explicit(&to->version->refs, 1, memory_order_relaxed);
}

pd_status pd_tensor_alias(const pd_tensor *t, bool own_version, pd_tensor **out) {
    pd_version *version = NULL;
    if (own_version) {
        PD_TRY(pd_malloc(sizeof *version, "version", &version));
        atomic_init(&version->refs, 1);
        atomic_init(&version->count, 0);
    }
    pd_tensor *a;
    pd_status status = pd_tensor_shell(&a);
    if (status) {
        pd_free(version);
        return PD_TRAIL(status);
    }
    copy_geometry(a, t);
    if (t->spread) pd_spread_retain(a->spread = t->spread);
    if (own_version) {
        a->storage = t->storage;
        pd_storage_retain(a->storage);
        a->version = version;
    } else {
        share_storage(a, t);
    }
    *out = a;
    return PD_OK;
}

pd_status pd_tensor_within(const pd_tensor *flat, int64_t at, const pd_tensor *like, pd_tensor **out) {
    PD_TRY(pd_tensor_shell(out));
    copy_geometry(*out, like);
    pd_shape_contiguous(like->ndim, (*out)->size, (*out)->stride);
    share_storage(*out, flat);
    (*out)->offset = flat->offset + at;
    return PD_OK;
}

void pd_tensor_set_spread(pd_tensor *t, pd_spread *of) {
    pd_spread *was = t->spread;
    if (of) pd_spread_retain(of);
    t->spread = of;
    pd_spread_release(was);
}

void pd_tensor_let_go(pd_tensor *const *held, int n) {
    for (int i = 0; i < n; i++) pd_tensor_release(held[i]);
}

pd_status pd_tensor_hold(pd_tensor *const *t, int n, pd_tensor **held) {
    for (int i = 0; i < n; i++) {
        held[i] = NULL;
        pd_status status = t[i] ? pd_tensor_alias(t[i], false, &held[i]) : PD_OK;
        if (!status) continue;
        pd_tensor_let_go(held, i);
        return status;
    }
    return PD_OK;
}

void pd_tensor_view_of(pd_tensor *out, pd_tensor *of) {
    share_storage(out, of);
    out->base = of->base ? of->base : of;
    pd_tensor_retain(out->base);
}

void pd_tensor_release(pd_tensor *t) {
    if (!t) return;
    int_fast64_t refs = atomic_load_explicit(&t->refs, memory_order_acquire);
    do {
        if (refs == 1 && t->wrapper_owned) { /* from here on the wrapper owns this reference */
            t->wrapper_owned = false;
            pd_tensor_drop_wrapper(t->wrapper);
            return;
        }
    } while (!atomic_compare_exchange_weak_explicit(&t->refs, &refs, refs - 1, memory_order_acq_rel,
                                                    memory_order_acquire));
    if (refs != 1) return;
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    if (t->meta) atomic_load_explicit(&pd_tensor_drop_meta, memory_order_relaxed)(t->meta);
    if (t->version && atomic_fetch_sub_explicit(&t->version->refs, 1, memory_order_acq_rel) == 1) pd_free(t->version);
    pd_storage_release(t->storage);
    pd_spread_release(t->spread);
    pd_tensor *base = t->base; /* a base has no base: at most one level deep */
    pd_free(t);
    pd_tensor_release(base);
}

bool pd_tensor_overlaps_itself(const pd_tensor *t) {
    /* From the smallest stride up, each stride has to exceed what the smaller ones reach. */
    int64_t reach = 0;
    unsigned done = 0;
    for (int i = 0; i < t->ndim; i++)
        if (t->size[i] == 0) return false;
    for (int k = 0; k < t->ndim; k++) {
        int best = -1;
        for (int i = 0; i < t->ndim; i++)
            if (!(done >> i & 1) && (best < 0 || t->stride[i] < t->stride[best])) best = i;
        done |= 1u << best;
        if (t->size[best] < 2) continue;
        if (t->stride[best] <= reach) return true;
        reach += (t->size[best] - 1) * t->stride[best];
    }
    return false;
}

static void span(const pd_tensor *t, int64_t *lo, int64_t *hi) {
    int64_t size = (int64_t)pd_dtype_size((pd_dtype)t->dtype);
    *lo = *hi = t->offset;
    for (int i = 0; i < t->ndim; i++) *(t->stride[i] < 0 ? lo : hi) += (t->size[i] - 1) * t->stride[i];
    *lo *= size;
    *hi = (*hi + 1) * size;
}

bool pd_tensor_shares(const pd_tensor *a, const pd_tensor *b) {
    if (a->storage != b->storage || !a->numel || !b->numel) return false;
    int64_t al, ah, bl, bh;
    span(a, &al, &ah);
    span(b, &bl, &bh);
    return al < bh && bl < ah;
}
