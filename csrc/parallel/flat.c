#include "parallel/flat.h"

#include <string.h>

#include "autograd/tape.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

#define APART ((size_t)512) /* buckets in one block of memory begin at multiples of this */

static void drop_segment(void *segment) { pd_segment_release(segment); }
static void drop_registered(void *memory) { pd_group_memory_release(memory); }

pd_dtype pd_flat_dtype(const pd_flat *f, int b) {
    pd_dtype t = f->layout->buckets[b].dtype;
    return f->kind.wide ? pd_dtype_computed(t) : t;
}

static size_t part_bytes(const pd_flat *f, int b) {
    int64_t tail = b == f->layout->nbuckets - 1 ? f->kind.tail : 0;
    return (size_t)(f->layout->buckets[b].numel + tail) * pd_dtype_size(pd_flat_dtype(f, b));
}

size_t pd_flat_apart(const pd_flat *f, int b) { return pd_whole_lines(part_bytes(f, b)); }

static size_t bucket_bytes(const pd_flat *f, int b) {
    size_t others = f->kind.parts > 1 ? (size_t)(f->kind.parts - 1) : 0;
    return others * pd_flat_apart(f, b) + part_bytes(f, b);
}

int64_t pd_flat_offset(const pd_flat *f, const pd_piece *p, int part) {
    size_t element = pd_dtype_size(pd_flat_dtype(f, p->bucket));
    return p->offset + (int64_t)((size_t)part * pd_flat_apart(f, p->bucket) / element);
}

char *pd_flat_piece(const pd_flat *f, const pd_piece *p, int part) {
    return f->buckets[p->bucket].data +
           (size_t)pd_flat_offset(f, p, part) * pd_dtype_size(pd_flat_dtype(f, p->bucket));
}

/* If NCCL has no such memory, buckets get memory like tensors. */
static void make_registered(pd_flat *f, pd_group *group) {
    size_t bytes = 0;
    if (!group || pd_flat_on_host(f) || !pd_flags_get()->REGISTER) return;
    for (int b = 0; b < f->layout->nbuckets; b++) bytes += (bucket_bytes(f, b) + APART - 1) / APART * APART;
    if (pd_group_memory_new(group, f->device, bytes, &f->registered))
        pd_log(PD_LOG_WARN, "%s: NCCL has not registered the memory of the buckets: %s", f->kind.who,
               pd_error_get()->text);
}

static pd_status make_on_device(pd_flat *f, pd_flat_bucket *own, size_t bytes) {
    if (!f->registered) {
        PD_TRY(pd_storage_new(f->device, bytes, &own->storage));
        own->data = own->storage->data;
        return PD_OK;
    }
    own->data = (char *)pd_group_memory_ptr(f->registered) + f->used;
    PD_TRY(pd_storage_external(f->device, own->data, bytes, drop_registered, f->registered, &own->storage));
    pd_group_memory_retain(f->registered); /* the storage's */
    f->used += (bytes + APART - 1) / APART * APART;
    return PD_OK;
}

static pd_status make_bucket(pd_flat *f, int b, pd_group *group) {
    pd_flat_bucket *own = &f->buckets[b];
    size_t bytes = bucket_bytes(f, b);
    if (!group || !pd_flat_on_host(f)) {
        PD_TRY(make_on_device(f, own, bytes));
        return pd_flat_clear(f, own->data, (int64_t)bytes, PD_U8);
    }
    PD_TRY(pd_group_segment_new(group, bytes, &own->segment));
    own->data = pd_segment_ptr(own->segment);
    PD_TRY(pd_storage_external(&pd_device_cpu, own->data, bytes, drop_segment, own->segment, &own->storage));
    pd_segment_retain(own->segment); /* the storage's */
    return PD_OK;
}

pd_status pd_flat_init(pd_flat *f, const pd_layout *l, pd_flat_kind kind, pd_group *group, const pd_device *device) {
    *f = (pd_flat){.kind = kind, .layout = l, .device = device};
    PD_TRY(pd_calloc(sizeof *f->buckets * (size_t)l->nbuckets, "buckets", &f->buckets));
    make_registered(f, group);
    for (int b = 0; b < l->nbuckets; b++) PD_TRY(make_bucket(f, b, group));
    return PD_OK;
}

void pd_flat_fini(pd_flat *f) {
    for (int b = 0; f->buckets && b < f->layout->nbuckets; b++) {
        if (f->buckets[b].storage) pd_storage_release(f->buckets[b].storage);
        if (f->buckets[b].segment) pd_segment_release(f->buckets[b].segment);
    }
    pd_group_memory_release(f->registered);
    pd_free(f->buckets);
    *f = (pd_flat){0};
}

/* ---- tensors in it ----------------------------------------------------------------------------------------------- */

pd_status pd_flat_tensor(const pd_flat *f, const pd_piece *p, int part, const pd_tensor *like, pd_tensor **out) {
    pd_tensor *t;
    PD_TRY(pd_tensor_shell(&t));
    t->dtype = like->dtype; /* only the geometry of `like` */
    t->ndim = like->ndim;
    t->numel = like->numel;
    memcpy(t->size, like->size, sizeof t->size);
    memcpy(t->stride, like->stride, sizeof t->stride);
    pd_storage_retain(t->storage = f->buckets[p->bucket].storage);
    t->offset = pd_flat_offset(f, p, part);
    *out = t;
    return PD_OK;
}

pd_status pd_flat_bring_back(const pd_flat *f, const pd_piece *p, int part, const pd_tensor *like, pd_tensor *t) {
    pd_storage *own = f->buckets[p->bucket].storage;
    pd_tensor *was;
    if (!pd_tensor_same_shape(t, like))
        return pd_fail(PD_E_SHAPE, "%s: .grad of parameter %s has new data of shape %s (expected %s)", f->kind.who,
                       p->name, pd_tensor_shape(t), pd_tensor_shape(like));
    PD_TRY(pd_tensor_alias(t, false, &was));
    pd_storage_retain(own);
    pd_storage_release(t->storage);
    t->storage = own;
    t->offset = pd_flat_offset(f, p, part);
    t->dtype = (int8_t)p->dtype;
    if (pd_shape_is_dense(like->ndim, like->size, like->stride))
        memcpy(t->stride, like->stride, sizeof *t->stride * (size_t)t->ndim);
    else pd_shape_contiguous(t->ndim, t->size, t->stride);
    pd_status status = pd_engine.copy_into(t, was);
    pd_tensor_release(was);
    return status;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

pd_status pd_flat_fill(const pd_flat *f, void *data, int64_t n, pd_dtype t, double value) {
    char cell[16] = {0};
    const pd_device *was;
    if (!n) return PD_OK;
    pd_scalar v = pd_number(value);
    pd_scalar_store(&v, t, cell);
    pd_loop l = {.ndim = 1, .nop = 1, .numel = n, .size = {n}, .ptr = {data}};
    l.stride[0][0] = (int64_t)pd_dtype_size(t);
    pd_status status = pd_device_enter(f->device, &was);
    if (!status) pd_here()->fill(pd_dtype_size(t), cell, &l);
    pd_device_here = was;
    return status ? status : pd_device_check(f->device, f->kind.who);
}

pd_status pd_flat_clear(const pd_flat *f, void *data, int64_t n, pd_dtype t) {
    if (!pd_flat_on_host(f)) return pd_flat_fill(f, data, n, t, 0);
    memset(data, 0, (size_t)n * pd_dtype_size(t));
    return PD_OK;
}

pd_status pd_flat_clear_gaps(const pd_flat *f, int b) {
    const pd_bucket_span *span = &f->layout->buckets[b];
    size_t size = pd_dtype_size(span->dtype);
    for (int k = 0; k < span->count; k++) {
        const pd_piece *p = pd_layout_in_bucket(f->layout, b, k);
        int64_t end = p->offset + p->numel;
        int64_t next = k + 1 < span->count ? pd_layout_in_bucket(f->layout, b, k + 1)->offset : span->numel;
        PD_TRY(pd_flat_clear(f, f->buckets[b].data + (size_t)end * size, next - end, span->dtype));
    }
    return PD_OK;
}
