#include "parallel/reducer_impl.h"

#include <string.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"

const pd_layout *pd_reducer_layout(const pd_reducer *r) { return &r->layout; }
void pd_reducer_set_sync(pd_reducer *r, bool sync) { r->sync = sync; }
bool pd_reducer_get_sync(const pd_reducer *r) { return r->sync; }
void pd_reducer_set_waits(pd_reducer *r, bool waits) { r->waits = waits; }
bool pd_reducer_get_waits(const pd_reducer *r) { return r->waits; }

const pd_device *pd_reducer_device(const pd_reducer *r) { return r->device; }
pd_group *pd_reducer_group(const pd_reducer *r) { return r->group; }
pd_tensor *pd_reducer_home(const pd_reducer *r, int param) { return r->slots[param].home; }
const pd_reducer_times *pd_reducer_get_times(const pd_reducer *r) { return &r->times; }

pd_status pd_reducer_bucket_at(const pd_reducer *r, int b, pd_reducer_bucket *out) {
    int n = pd_group_size(r->group) == 1 ? 0 : r->layout.nbuckets;
    if (b < 0 || b >= n) return pd_fail(PD_E_INDEX, "bucket: %d (expected 0 to %d)", b, n - 1);
    const bucket *k = &r->buckets[b];
    *out = (pd_reducer_bucket){.data = k->data, .numel = r->layout.buckets[b].numel,
                               .dtype = r->layout.buckets[b].dtype, .storage = k->storage};
    return PD_OK;
}

void pd_reducer_drop_hooks(pd_reducer *r) {
    if (r->buckets) pd_reducer_forget_backward(r);
    if (r->hook.drop) r->hook.drop(r->hook.ctx);
    r->hook = (pd_comm_hook){0};
    pd_reducer_set_begin(r, (pd_closure){0});
}

pd_status pd_reducer_set_hook(pd_reducer *r, pd_comm_hook hook) {
    const char *why = r->hook.start ? "there is one already" : r->running ? "a backward is under way" : NULL;
    if (why) return pd_fail(PD_E_RUNTIME, "register_comm_hook: %s (expected one hook, before the first step)", why);
    r->hook = hook;
    return PD_OK;
}

void pd_reducer_set_begin(pd_reducer *r, pd_closure begin) {
    pd_closure_drop(&r->begin);
    r->begin = begin;
}

pd_status pd_reducer_set_divisor(pd_reducer *r, double divisor) {
    if (!(divisor >= 1 && divisor <= pd_group_size(r->group)))
        return pd_fail(PD_E_VALUE, "divisor: %g (expected 1 to %d)", divisor, pd_group_size(r->group));
    r->divisor = divisor;
    return PD_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

#define APART ((size_t)512) /* buckets in one piece of memory begin at multiples of it */

static void drop_segment(void *segment) { pd_segment_release(segment); }
static void drop_flat(void *flat) { pd_group_memory_release(flat); }

static size_t bucket_bytes(const pd_reducer *r, int b) {
    const pd_bucket_span *span = &r->layout.buckets[b];
    int64_t extra = b == r->layout.nbuckets - 1 ? r->n : 0;
    return (size_t)(span->numel + extra) * pd_dtype_size(span->dtype);
}

/* Where NCCL has no such memory, buckets get that of tensors. */
static void make_flat(pd_reducer *r) {
    size_t bytes = 0;
    if (on_host(r) || !pd_flags_get()->REGISTER) return;
    for (int b = 0; b < r->layout.nbuckets; b++) bytes += (bucket_bytes(r, b) + APART - 1) / APART * APART;
    if (pd_group_memory_new(r->group, r->device, bytes, &r->flat))
        pd_log(PD_LOG_WARN, "DistributedDataParallel: buckets are not registered: %s", pd_error_get()->text);
}

static pd_status make_on_device(pd_reducer *r, bucket *own, size_t bytes) {
    if (!r->flat) {
        PD_TRY(pd_storage_new(r->device, bytes, &own->storage));
        own->data = own->storage->data;
        return PD_OK;
    }
    own->data = (char *)pd_group_memory_ptr(r->flat) + r->flat_used;
    PD_TRY(pd_storage_foreign(r->device, own->data, bytes, drop_flat, r->flat, &own->storage));
    pd_group_memory_retain(r->flat); /* the storage's */
    r->flat_used += (bytes + APART - 1) / APART * APART;
    return PD_OK;
}

/* The bucket's memory as storage that its views share; zeros. */
static pd_status make_memory(pd_reducer *r, int b) {
    bucket *own = &r->buckets[b];
    size_t bytes = bucket_bytes(r, b);
    if (!on_host(r)) {
        PD_TRY(make_on_device(r, own, bytes));
        return pd_reducer_clear(r, own->data, (int64_t)bytes, PD_U8);
    }
    PD_TRY(pd_group_segment_new(r->group, bytes, &own->segment));
    own->data = pd_segment_ptr(own->segment);
    PD_TRY(pd_storage_foreign(&pd_device_cpu, own->data, bytes, drop_segment, own->segment, &own->storage));
    pd_segment_retain(own->segment); /* the storage's */
    return PD_OK;
}

static pd_status make_bucket(pd_reducer *r, int b) {
    const pd_bucket_span *span = &r->layout.buckets[b];
    PD_TRY(make_memory(r, b));
    pd_storage *storage = r->buckets[b].storage;
    pd_status status = PD_OK;
    for (int k = span->first; k < span->first + span->count && !status; k++) {
        slot *s = &r->slots[r->layout.by_bucket[k]];
        status = pd_tensor_shell(&s->home);
        if (status) break;
        s->home->dtype = s->param->dtype; /* the parameter's geometry, and nothing else of it */
        s->home->ndim = s->param->ndim;
        s->home->numel = s->param->numel;
        memcpy(s->home->size, s->param->size, sizeof s->home->size);
        memcpy(s->home->stride, s->param->stride, sizeof s->home->stride);
        pd_storage_retain(s->home->storage = storage);
        s->home->offset = s->piece->offset;
    }
    return status;
}

static pd_status attach(slot *s) {
    pd_meta *m = NULL;
    pd_status status;
    PD_TRY(pd_meta_get(s->param, &m));
    s->owner = (pd_grad_owner){.name = "DistributedDataParallel", .leaf = s->piece->name};
    PD_TRY(pd_grad_take(s->param, &s->owner, s->home));
    s->hook = pd_hook_add(&m->hooks, PD_HOOK_READY, 0, (pd_closure){.call = pd_reducer_on_ready, .ctx = s}, &status);
    if (status) return status;
    return pd_reducer_bring_home(s);
}

static pd_status fill_slots(pd_reducer *r, pd_tensor *const *params, const char *const *names) {
    for (int i = 0; i < r->n; i++) {
        slot *s = &r->slots[i];
        s->r = r;
        pd_tensor_retain(s->param = params[i]);
        const pd_tensor *p = params[i];
        if (p->storage->device != r->device)
            return pd_fail(PD_E_VALUE, "DistributedDataParallel: parameter %s is on %s (expected %s, as the first)",
                           names[i], p->storage->device->name, r->device->name);
        if (!p->requires_grad || (p->meta && p->meta->grad_fn) || !pd_dtype_is_float((pd_dtype)p->dtype))
            return pd_fail(PD_E_VALUE, "DistributedDataParallel: parameter %s is of %s and %s (expected a floating "
                                       "leaf that requires grad)", names[i], pd_dtype_name((pd_dtype)p->dtype),
                           !p->requires_grad ? "does not require grad" : p->meta->grad_fn ? "no leaf" : "a leaf");
        if (!pd_shape_is_dense(params[i]->ndim, params[i]->size, params[i]->stride))
            return pd_fail(PD_E_VALUE, "DistributedDataParallel: parameter %s is not dense (expected contiguous())",
                           names[i]);
    }
    return PD_OK;
}

static pd_status make_layout(pd_reducer *r, const char *const *names, size_t first, size_t cap) {
    pd_piece *pieces;
    PD_TRY(pd_calloc(sizeof *pieces * (size_t)r->n, "reducer", &pieces));
    for (int i = 0; i < r->n; i++) {
        const pd_tensor *p = r->slots[i].param;
        pieces[i] = (pd_piece){.name = names[i], .ndim = p->ndim, .dtype = (pd_dtype)p->dtype, .edges = PD_EDGES_ALL};
        memcpy(pieces[i].size, p->size, sizeof *p->size * (size_t)p->ndim);
    }
    pd_status status = pd_layout_init(&r->layout, r->n, pieces);
    pd_free(pieces);
    if (!status) status = pd_layout_pack(&r->layout, first, cap);
    for (int i = 0; i < r->n && !status; i++) r->slots[i].piece = &r->layout.pieces[i];
    return status;
}

static pd_status build(pd_reducer *r, const char *const *names, size_t first, size_t cap) {
    PD_TRY(make_layout(r, names, first, cap));
    r->flags_at = r->layout.buckets[r->layout.nbuckets - 1].numel;
    PD_TRY(pd_calloc(sizeof *r->buckets * (size_t)r->layout.nbuckets, "reducer", &r->buckets));
    if (pd_group_size(r->group) == 1) return PD_OK; /* nothing to average: gradients stay where the engine puts them */
    make_flat(r);
    for (int b = 0; b < r->layout.nbuckets; b++) {
        PD_TRY(make_bucket(r, b));
        r->times.bytes += r->layout.buckets[b].numel * (int64_t)pd_dtype_size(r->layout.buckets[b].dtype);
    }
    r->flags = flags_in_bucket(r);
    if (!on_host(r)) PD_TRY(pd_calloc(flag_bytes(r), "reducer", &r->flags));
    for (int i = 0; i < r->n; i++) PD_TRY(attach(&r->slots[i]));
    pd_reducer_forget_backward(r);
    return PD_OK;
}

pd_status pd_reducer_new(pd_tensor *const *params, const char *const *names, int n, pd_group *group,
                         size_t first_bytes, size_t cap_bytes, pd_reducer **out) {
    pd_reducer *r;
    if (n < 1) return pd_fail(PD_E_VALUE, "DistributedDataParallel: no parameters");
    PD_TRY(pd_calloc(sizeof *r, "reducer", &r));
    pd_group_retain(r->group = group);
    r->refs = 1;
    r->sync = true;
    r->divisor = pd_group_size(group);
    r->device = params[0]->storage->device;
    pd_status status = pd_calloc(sizeof *r->slots * (size_t)n, "reducer", &r->slots);
    if (!status) {
        r->n = n;
        status = fill_slots(r, params, names);
    }
    if (!status) status = build(r, names, first_bytes, cap_bytes);
    if (status) {
        pd_reducer_free(r);
        return pd_trail(__FILE__, __LINE__, status);
    }
    *out = r;
    return PD_OK;
}

static void destroy(pd_reducer *r) {
    pd_reducer_drop_hooks(r);
    for (int i = 0; i < r->n; i++) {
        pd_tensor_release(r->slots[i].home);
        pd_tensor_release(r->slots[i].param);
    }
    for (int b = 0; r->buckets && b < r->layout.nbuckets; b++) {
        if (r->buckets[b].storage) pd_storage_release(r->buckets[b].storage);
        if (r->buckets[b].segment) pd_segment_release(r->buckets[b].segment);
    }
    pd_group_memory_release(r->flat);
    if (!on_host(r)) pd_free(r->flags);
    pd_layout_fini(&r->layout);
    pd_group_release(r->group);
    pd_free(r->slots);
    pd_free(r->buckets);
    pd_free(r);
}

void pd_reducer_drop(void *reducer) {
    pd_reducer *r = reducer;
    if (--r->refs == 0) destroy(r);
}

void pd_reducer_free(pd_reducer *r) {
    if (!r) return;
    for (int i = 0; i < r->n; i++) {
        slot *s = &r->slots[i];
        pd_meta *m = s->param ? s->param->meta : NULL;
        if (!m) continue;
        pd_grad_give_up(s->param, &s->owner);
        if (s->hook) pd_hook_remove(&m->hooks, s->hook);
        s->hook = 0;
    }
    pd_reducer_drop(r);
}
