#include "tensor/storage.h"

#include "base/mem.h"

static atomic_int_fast64_t live;

static pd_status make(const pd_device *device, size_t bytes, pd_storage **out) {
    pd_storage *s;
    PD_TRY(pd_malloc(sizeof *s, "storage", &s));
    *s = (pd_storage){.refs = 1, .bytes = bytes, .device = device};
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    *out = s;
    return PD_OK;
}

static void unmake(pd_storage *s) {
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    pd_free(s);
}

pd_status pd_storage_new(const pd_device *device, size_t bytes, pd_storage **out) {
    pd_storage *s = NULL;
    PD_TRY(make(device, bytes, &s));
    pd_status status = device->alloc(device, bytes, &s->data);
    if (status) {
        unmake(s);
        return pd_trail(__FILE__, __LINE__, status);
    }
    *out = s;
    return PD_OK;
}

pd_status pd_storage_foreign(const pd_device *device, void *data, size_t bytes, void (*drop)(void *), void *ctx,
                             pd_storage **out) {
    PD_TRY(make(device, bytes, out));
    (*out)->data = data;
    (*out)->drop = drop;
    (*out)->ctx = ctx;
    return PD_OK;
}

void pd_storage_release(pd_storage *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    if (s->drop) s->drop(s->ctx);
    else s->device->free(s->device, s->data, s->bytes);
    unmake(s);
}

int64_t pd_storage_live(void) { return live; }
