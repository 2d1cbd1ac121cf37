#include "parallel/reducer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/cuda.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

typedef struct slot { /* a parameter */
    struct pd_reducer *r;
    pd_tensor *param;     /* [strong] */
    pd_tensor *home;      /* [strong] its view of the bucket; NULL in a world of one */
    const pd_piece *piece;
    char *name;
    uint64_t hook;
    bool fired;           /* in the backward that runs */
} slot;

typedef struct bucket {
    pd_segment *segment;  /* NULL on a GPU, where the memory is the storage's own */
    char *data;
    int waiting;          /* parameters that have not fired yet, frozen ones left out */
    pd_storage *storage;  /* its views' memory */
    pd_work *work;        /* NULL: not started */
    void *pending;        /* the hook's, between start and finish */
    bool started;         /* with the hook */
} bucket;

struct pd_reducer {
    atomic_int_fast64_t refs; /* the owner's, and one while a backward has it called at its end */
    pd_group *group;
    const pd_device *device; /* the parameters' */
    pd_layout layout;
    int n;
    slot *slots;          /* by parameter */
    bucket *buckets;
    pd_group_memory *flat; /* NULL, or what all buckets lie in */
    size_t flat_used;
    int next;             /* the bucket that starts next */
    int64_t flags_at;     /* elements: where the used flags lie in the last bucket */
    char *flags;          /* these, or what the host has of a GPU's */
    bool sync, running, warned, waits;
    double divisor;
    uint64_t site;
    pd_comm_hook hook;    /* start NULL: the all-reduce of group.h */
    pd_closure begin;
    pd_reducer_times times;
    int64_t prepared, began; /* ns; 0: not yet */
};

const pd_layout *pd_reducer_layout(const pd_reducer *r) { return &r->layout; }
void pd_reducer_set_sync(pd_reducer *r, bool sync) { r->sync = sync; }
bool pd_reducer_get_sync(const pd_reducer *r) { return r->sync; }
void pd_reducer_set_waits(pd_reducer *r, bool waits) { r->waits = waits; }
bool pd_reducer_get_waits(const pd_reducer *r) { return r->waits; }

const char *pd_reducer_name(const pd_reducer *r, int param) { return r->slots[param].name; }
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

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void forget_backward(pd_reducer *r) {
    for (int b = 0; b < r->layout.nbuckets; b++) {
        bucket *k = &r->buckets[b];
        if (k->work) pd_work_release(k->work);
        if (k->started) r->hook.abandon(k->pending);
        k->work = NULL;
        k->started = false;
    }
    for (int i = 0; i < r->n; i++) r->slots[i].fired = false;
    r->next = 0;
    r->running = false;
}

const pd_device *pd_reducer_device(const pd_reducer *r) { return r->device; }

static bool on_host(const pd_reducer *r) { return r->device->kind == PD_DEVICE_CPU; }

static pd_status fill_on_device(const pd_reducer *r, void *data, int64_t n, pd_dtype t, double value) {
    char cell[16] = {0};
    const pd_device *was;
    if (!n) return PD_OK;
    pd_scalar v = pd_number(value);
    pd_scalar_store(&v, t, cell);
    pd_loop l = {.ndim = 1, .nop = 1, .numel = n, .size = {n}, .ptr = {data}};
    l.stride[0][0] = (int64_t)pd_dtype_size(t);
    pd_status status = pd_device_enter(r->device, &was);
    if (!status) pd_here()->fill(pd_dtype_size(t), cell, &l);
    pd_device_here = was;
    return status ? status : pd_device_check(r->device, "DistributedDataParallel");
}

static pd_status clear(const pd_reducer *r, void *data, int64_t n, pd_dtype t) {
    if (!on_host(r)) return fill_on_device(r, data, n, t, 0);
    memset(data, 0, (size_t)n * pd_dtype_size(t));
    return PD_OK;
}

/* Sums over the ranks, where the parameters are. */
static pd_status all_reduce(pd_reducer *r, void *data, int64_t count, pd_dtype t, double scale, pd_work **work) {
    const pd_device *was;
    pd_status status = pd_device_enter(r->device, &was);
    if (!status) status = pd_group_all_reduce(r->group, data, count, t, PD_REDUCE_SUM, scale, r->site, work);
    pd_device_here = was;
    return status;
}

/* ---- the flags: one element a parameter, 1/W-scaled like the rest ------------------------------------------------ */

static pd_dtype flag_type(const pd_reducer *r) { return r->layout.buckets[r->layout.nbuckets - 1].dtype; }
static size_t flag_bytes(const pd_reducer *r) { return (size_t)r->n * pd_dtype_size(flag_type(r)); }

static char *flags_in_bucket(const pd_reducer *r) {
    return r->buckets[r->layout.nbuckets - 1].data + (size_t)r->flags_at * pd_dtype_size(flag_type(r));
}

static bool all_fired(const pd_reducer *r) {
    for (int i = 0; i < r->n; i++)
        if (!r->slots[i].fired) return false;
    return true;
}

static pd_status write_flags(pd_reducer *r) {
    pd_dtype t = flag_type(r);
    if (!on_host(r) && all_fired(r)) return fill_on_device(r, flags_in_bucket(r), r->n, t, 1);
    if (!on_host(r) && pd_cuda_capturing(r->device))
        return pd_fail(PD_E_RUNTIME, "DistributedDataParallel: a parameter has no gradient in a backward that a CUDA "
                                     "graph captures (expected all to have one, on all ranks)");
    for (int i = 0; i < r->n; i++) {
        pd_scalar v = pd_number(r->slots[i].fired);
        pd_scalar_store(&v, t, r->flags + (size_t)i * pd_dtype_size(t));
    }
    if (on_host(r)) return PD_OK;
    return r->device->copy(r->device, PD_TO_DEVICE, flags_in_bucket(r), r->flags, flag_bytes(r), false);
}

/* Those of all ranks. A GPU is waited for only where this rank's own do not say already that all were used. */
static pd_status read_flags(pd_reducer *r) {
    if (on_host(r) || all_fired(r)) return PD_OK;
    return r->device->copy(r->device, PD_TO_HOST, r->flags, flags_in_bucket(r), flag_bytes(r), true);
}

static bool used_somewhere(const pd_reducer *r, int param) {
    static const char zero[16];
    size_t size = pd_dtype_size(flag_type(r));
    return r->slots[param].fired || memcmp(r->flags + (size_t)param * size, zero, size) != 0;
}

/* ---- during backward --------------------------------------------------------------------------------------------- */

/* The gradient is in the bucket: put there by the engine, or here where the user gave .grad another tensor. */
static pd_status bring_home(slot *s) {
    pd_meta *m = s->param->meta;
    if (!m->grad || m->grad == s->home) return PD_OK;
    if (m->grad->storage != s->home->storage || m->grad->offset != s->home->offset)
        PD_TRY(pd_engine.copy_into(s->home, m->grad));
    pd_tensor_release(m->grad);
    pd_tensor_retain(m->grad = s->home);
    return PD_OK;
}

/* A parameter without a gradient in this backward counts as zero, or as what an earlier one left in .grad. */
static pd_status fill_in(slot *s) {
    if (s->param->meta->grad) return bring_home(s);
    return clear(s->r, pd_tensor_data(s->home), s->home->numel, (pd_dtype)s->home->dtype);
}

/* Alignment leaves them; a hook may have written there. */
static pd_status clear_gaps(pd_reducer *r, int b) {
    const pd_bucket_span *span = &r->layout.buckets[b];
    size_t size = pd_dtype_size(span->dtype);
    char *data = r->buckets[b].data;
    for (int k = span->first; k < span->first + span->count; k++) {
        const pd_piece *p = &r->layout.pieces[k];
        int64_t end = p->offset + p->numel, next = k + 1 < span->first + span->count ? p[1].offset : span->numel;
        PD_TRY(clear(r, data + (size_t)end * size, next - end, span->dtype));
    }
    return PD_OK;
}

static pd_status start_bucket(pd_reducer *r, int b) {
    const pd_bucket_span *span = &r->layout.buckets[b];
    bucket *own = &r->buckets[b];
    bool last = b == r->layout.nbuckets - 1;
    int64_t count = last ? r->flags_at + r->n : span->numel;
    for (int k = span->first; k < span->first + span->count; k++) {
        slot *s = &r->slots[r->layout.pieces[k].param];
        if (!s->fired) PD_TRY(fill_in(s));
    }
    if (last) PD_TRY(write_flags(r));
    if (r->hook.start) {
        PD_TRY(clear_gaps(r, b));
        PD_TRY(r->hook.start(r->hook.ctx, b, &own->pending));
        own->started = true;
        return PD_OK;
    }
    return all_reduce(r, own->data, count, span->dtype, 1.0 / r->divisor, &own->work);
}

static pd_status finish_bucket(pd_reducer *r, int b) {
    bucket *own = &r->buckets[b];
    if (own->work) return pd_work_wait(own->work, r->waits ? INFINITY : -1);
    if (!own->started) return PD_OK;
    own->started = false;
    return r->hook.finish(r->hook.ctx, b, own->pending);
}

/* What has not started does, and all end. */
static pd_status finish_buckets(pd_reducer *r) {
    int last = r->layout.nbuckets - 1;
    for (; r->next <= last; r->next++) PD_TRY(start_bucket(r, r->next));
    for (int b = 0; b <= last; b++) PD_TRY(finish_bucket(r, b));
    if (!r->hook.start) return PD_OK;
    return all_reduce(r, flags_in_bucket(r), r->n, flag_type(r), 1, NULL);
}

/* The last bucket carries the flags, so it starts at the end of backward unless everything has fired. */
static pd_status start_full(pd_reducer *r) {
    while (r->next < r->layout.nbuckets && r->buckets[r->next].waiting == 0) {
        PD_TRY(start_bucket(r, r->next));
        r->next++;
    }
    return PD_OK;
}

static void warn_unused(pd_reducer *r) {
    char names[512] = "";
    int missing = 0;
    if (r->warned) return;
    for (int i = 0; i < r->n; i++) {
        if (r->slots[i].fired || !r->slots[i].param->requires_grad) continue;
        size_t used = strlen(names);
        if (missing++ < 8) snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", r->slots[i].name);
    }
    if (!missing) return;
    r->warned = true;
    pd_log(PD_LOG_WARN, "rank %d: %d of %d parameters got no gradient in this backward and count as zero: %s%s",
           pd_group_rank(r->group), missing, r->n, names, missing > 8 ? ", ..." : "");
}

static pd_status finish(pd_reducer *r) {
    warn_unused(r);
    PD_TRY(finish_buckets(r));
    PD_TRY(read_flags(r));
    for (int i = 0; i < r->n; i++) {
        slot *s = &r->slots[i];
        pd_meta *m = s->param->meta;
        if (!m->grad && used_somewhere(r, i)) pd_tensor_retain(m->grad = s->home);
        pd_tensor_bump(s->home);
    }
    return PD_OK;
}

static void note_times(pd_reducer *r, int64_t since, int64_t end) {
    pd_reducer_times *t = &r->times;
    t->steps++;
    t->forward = r->prepared ? r->began - r->prepared : 0;
    t->backward = end - r->began;
    t->waited = end - since;
    t->sum_forward += t->forward;
    t->sum_backward += t->backward;
    t->sum_inside += t->inside;
    t->sum_waited += t->waited;
    r->prepared = 0;
}

static pd_status at_end(void *ctx, void *arg) {
    pd_reducer *r = ctx;
    (void)arg;
    if (!r->running) return PD_OK; /* prepared anew meanwhile */
    int64_t since = now();
    void *token = pd_host_release(); /* peers may keep us waiting */
    pd_status status = finish(r);
    pd_host_acquire(token);
    if (!status) note_times(r, since, now());
    forget_backward(r);
    return status;
}

static void drop(void *reducer);

/* Frozen parameters, which requires_grad_(False) may have made after the wrap, hold no bucket back. */
static pd_status begin_backward(pd_reducer *r) {
    PD_TRY(pd_engine_at_end((pd_closure){.call = at_end, .drop = drop, .ctx = r}));
    r->refs++;
    if (r->begin.call) PD_TRY(r->begin.call(r->begin.ctx, NULL));
    r->running = true;
    r->began = now();
    r->times.inside = 0;
    for (int b = 0; b < r->layout.nbuckets; b++) r->buckets[b].waiting = 0;
    for (int i = 0; i < r->n; i++)
        if (r->slots[i].param->requires_grad) r->buckets[r->slots[i].piece->bucket].waiting++;
    return PD_OK;
}

static pd_status on_ready(void *ctx, void *leaf) {
    slot *s = ctx;
    pd_reducer *r = s->r;
    (void)leaf;
    if (!r->sync) return PD_OK;
    if (!r->running) PD_TRY(begin_backward(r));
    if (s->fired)
        return pd_fail(PD_E_DIST, "DistributedDataParallel: parameter %s got a gradient twice before the buckets were "
                                  "reduced", s->name);
    PD_TRY(bring_home(s));
    s->fired = true;
    r->buckets[s->piece->bucket].waiting--;
    int64_t since = now();
    PD_TRY(start_full(r));
    if (r->next) PD_TRY(pd_group_progress(r->group));
    r->times.inside += now() - since;
    return PD_OK;
}

pd_status pd_reducer_prepare(pd_reducer *r, uint64_t site) {
    r->site = site;
    r->prepared = now();
    if (!r->running) return PD_OK;
    /* A backward failed midway: what has started must end before its memory is written again. */
    pd_status status = PD_OK;
    for (int b = 0; b < r->next && !status; b++) status = finish_bucket(r, b);
    forget_backward(r);
    return status;
}

pd_status pd_reducer_shadow(pd_reducer *r, uint64_t site) {
    if (pd_group_size(r->group) == 1) return PD_OK;
    PD_TRY(pd_reducer_prepare(r, site));
    for (int i = 0; i < r->n; i++) {
        pd_meta *m = r->slots[i].param->meta;
        if (m->grad) pd_tensor_release(m->grad);
        m->grad = NULL;
    }
    r->running = true;
    pd_status status = finish_buckets(r);
    forget_backward(r);
    r->prepared = 0;
    return status;
}

void pd_reducer_drop_hooks(pd_reducer *r) {
    if (r->buckets) forget_backward(r);
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
        return clear(r, own->data, (int64_t)bytes, PD_U8);
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
        const pd_piece *piece = &r->layout.pieces[k];
        slot *s = &r->slots[piece->param];
        s->piece = piece;
        status = pd_tensor_shell(&s->home);
        if (status) break;
        s->home->dtype = s->param->dtype; /* the parameter's geometry, and nothing else of it */
        s->home->ndim = s->param->ndim;
        s->home->numel = s->param->numel;
        memcpy(s->home->size, s->param->size, sizeof s->home->size);
        memcpy(s->home->stride, s->param->stride, sizeof s->home->stride);
        pd_storage_retain(s->home->storage = storage);
        s->home->offset = piece->offset;
    }
    return status;
}

static pd_status attach(slot *s) {
    pd_meta *m = NULL;
    pd_status status;
    PD_TRY(pd_meta_get(s->param, &m));
    if (m->home)
        return pd_fail(PD_E_VALUE, "DistributedDataParallel: parameter %s already belongs to another one", s->name);
    s->hook = pd_hook_add(&m->hooks, PD_HOOK_READY, 0, (pd_closure){.call = on_ready, .ctx = s}, &status);
    if (status) return status;
    pd_tensor_retain(m->home = s->home);
    return bring_home(s);
}

static pd_status fill_slots(pd_reducer *r, pd_tensor *const *params, const char *const *names) {
    for (int i = 0; i < r->n; i++) {
        slot *s = &r->slots[i];
        s->r = r;
        pd_tensor_retain(s->param = params[i]);
        PD_TRY(pd_malloc(strlen(names[i]) + 1, "reducer", &s->name));
        strcpy(s->name, names[i]);
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

static pd_status build(pd_reducer *r, size_t first, size_t cap) {
    int64_t *numel;
    pd_dtype *dtype;
    PD_TRY(pd_malloc((sizeof *numel + sizeof *dtype) * (size_t)r->n, "reducer", &numel));
    dtype = (pd_dtype *)(numel + r->n);
    for (int i = 0; i < r->n; i++) {
        numel[i] = r->slots[i].param->numel;
        dtype[i] = (pd_dtype)r->slots[i].param->dtype;
    }
    pd_status status = pd_layout_init(&r->layout, r->n, numel, dtype, first, cap);
    pd_free(numel);
    if (status) return status;
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
    forget_backward(r);
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
    if (!status) status = build(r, first_bytes, cap_bytes);
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
        pd_free(r->slots[i].name);
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

static void drop(void *reducer) {
    pd_reducer *r = reducer;
    if (--r->refs == 0) destroy(r);
}

void pd_reducer_free(pd_reducer *r) {
    if (!r) return;
    for (int i = 0; i < r->n; i++) {
        slot *s = &r->slots[i];
        pd_meta *m = s->param ? s->param->meta : NULL;
        if (!m || !s->hook) continue;
        pd_hook_remove(&m->hooks, s->hook);
        s->hook = 0;
        if (m->home == s->home) {
            pd_tensor_release(m->home);
            m->home = NULL;
        }
    }
    drop(r);
}
