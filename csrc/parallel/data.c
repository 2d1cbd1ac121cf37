#include "parallel/data.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/program.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/os.h"
#include "comm/group/mover.h"
#include "device/cuda.h"
#include "ops/ops.h"
#include "parallel/data_impl.h"

static inline bool on_host(const pd_reducer *r) { return r->device->kind == PD_DEVICE_CPU; }
static inline int number_of(const pd_slot *s) { return (int)(s - s->r->slots); }

static inline const pd_flat *sums_of(const pd_reducer *r) { return r->turns ? pd_turns_sums(r) : &r->flat; }
/* Whether this rank has a gradient of the parameter to give. */
static inline bool came_here(const pd_reducer *r, int param) {
    return r->turns ? pd_turns_used(r, param) : r->ready.came[param];
}

/* The dtype of the flags in the last bucket's tail: one element for each parameter, whether it got a gradient. */
static inline pd_dtype flag_type(const pd_reducer *r) {
    return pd_flat_dtype(sums_of(r), r->layout.nbuckets - 1);
}
static inline size_t flag_bytes(const pd_reducer *r) { return (size_t)r->n * pd_dtype_size(flag_type(r)); }

void pd_reducer_forget(pd_reducer *r) {
    for (int b = 0; b < r->layout.nbuckets; b++) {
        pd_sum *k = &r->sums[b];
        if (k->work) pd_work_release(k->work);
        if (k->started) r->hook.abandon(k->pending);
        k->work = NULL;
        k->started = false;
    }
    pd_ready_reset(&r->ready);
    r->running = false;
}

/* Sums over the ranks, on the parameters' device. */
static pd_status all_reduce(pd_reducer *r, void *data, int64_t count, pd_dtype t, double scale, pd_work **work) {
    const pd_device *was;
    pd_status status = pd_device_enter(r->device, &was);
    PD_THEN(pd_group_all_reduce(r->group, data, count, t, PD_REDUCE_SUM, scale, r->site, work));
    pd_device_here = was;
    return status;
}

/* ---- the flags: one element a parameter, 1/W-scaled like the rest ------------------------------------------------ */

static bool all_came_here(const pd_reducer *r) {
    if (!r->turns) return pd_ready_all_came(&r->ready);
    for (int i = 0; i < r->n; i++)
        if (!came_here(r, i)) return false;
    return true;
}

static pd_status write_flags(pd_reducer *r) {
    const pd_flat *sums = sums_of(r);
    pd_dtype t = flag_type(r);
    if (!on_host(r) && all_came_here(r)) return pd_flat_fill(sums, pd_flat_tail(sums), r->n, t, 1);
    if (!on_host(r) && pd_cuda_capturing(r->device))
        return pd_fail(PD_E_RUNTIME,
                       "DistributedDataParallel: a parameter has no gradient in a backward that a CUDA graph captures "
                       "(expected a gradient for every parameter, on all ranks)");
    for (int i = 0; i < r->n; i++) {
        pd_scalar v = pd_number(came_here(r, i));
        pd_scalar_store(&v, t, r->flags + (size_t)i * pd_dtype_size(t));
    }
    if (on_host(r)) return PD_OK;
    return r->device->copy(r->device, "DistributedDataParallel", PD_TO_DEVICE, pd_flat_tail(sums), r->flags,
                           flag_bytes(r), PD_NO_WAIT);
}

/* Reads the flags of all ranks. Waits for a GPU only if, by this rank's own flags, not all parameters were used. */
static pd_status read_flags(pd_reducer *r) {
    if (on_host(r) || all_came_here(r)) return PD_OK;
    return r->device->copy(r->device, "DistributedDataParallel", PD_TO_HOST, r->flags, pd_flat_tail(sums_of(r)),
                           flag_bytes(r), PD_WAIT);
}

static bool used_somewhere(const pd_reducer *r, int param) {
    static const char zero[16];
    size_t size = pd_dtype_size(flag_type(r));
    return came_here(r, param) || memcmp(r->flags + (size_t)param * size, zero, size) != 0;
}

/* ---- during backward --------------------------------------------------------------------------------------------- */

/* The user may have given .grad other memory. */
static pd_status mend_view(pd_slot *s) { return pd_flat_mend(&s->r->flat, s->piece, 0, s->param, s->view); }

/* Makes sure that the gradient is in the bucket. The engine has put it there, unless the user gave .grad another
   tensor. */
static pd_status into_bucket(pd_slot *s) {
    pd_meta *m = s->param->meta;
    PD_TRY(mend_view(s));
    if (!m->grad || m->grad == s->view) return PD_OK;
    if (m->grad->storage != s->view->storage || m->grad->offset != s->view->offset)
        PD_TRY(pd_engine.copy_into(s->view, m->grad));
    pd_tensor_retain(s->view);
    pd_meta_set_grad(m, s->view);
    return PD_OK;
}

/* A parameter without a gradient in this backward counts as zero, or as what an earlier backward has left in .grad. */
static pd_status fill_in(pd_slot *s) {
    if (s->param->meta->grad) return into_bucket(s);
    return pd_flat_clear(&s->r->flat, pd_tensor_data(s->view), s->view->numel, (pd_dtype)s->view->dtype);
}

static pd_status weigh(pd_reducer *r, int b) {
    const pd_bucket_span *span = &r->layout.buckets[b];
    char *data = r->flat.buckets[b].data;
    if (r->weight == 1) return PD_OK;
    if (r->weight == 0) return pd_flat_clear(&r->flat, data, span->numel, span->dtype);
    return pd_alone_scale(r->device, PD_DDP, span->dtype, r->weight, data, span->numel);
}

static pd_status start_bucket(void *reducer, int b) {
    pd_reducer *r = reducer;
    const pd_bucket_span *span = &r->layout.buckets[b];
    pd_sum *own = &r->sums[b];
    bool last = b == r->layout.nbuckets - 1;
    int64_t count = last ? span->numel + r->n : span->numel;
    for (int k = span->first; k < span->first + span->count; k++) {
        int i = r->layout.by_bucket[k];
        pd_slot *s = &r->slots[i];
        PD_TRY(mend_view(s));
        PD_TRY(pd_tensor_before_write(PD_DDP, s->view));
        if (r->turns) PD_TRY(pd_turns_add(s));
        else if (!r->ready.came[i]) PD_TRY(fill_in(s));
    }
    if (pd_is_rehearsing()) return PD_OK; /* the sum is known, and other ranks do not rehearse */
    if (!r->turns) PD_TRY(weigh(r, b));
    if (last) PD_TRY(write_flags(r));
    if (r->hook.start) {
        PD_TRY(pd_flat_clear_gaps(&r->flat, b));
        PD_TRY(r->hook.start(r->hook.ctx, b, &own->pending));
        own->started = true;
        return PD_OK;
    }
    if (r->turns) return pd_turns_all_reduce(r, b, count, &own->work);
    return all_reduce(r, r->flat.buckets[b].data, count, span->dtype, 1.0 / r->divisor, &own->work);
}

static pd_status finish_bucket(pd_reducer *r, int b) {
    pd_sum *own = &r->sums[b];
    if (own->work) return pd_work_wait(own->work, r->waits ? INFINITY : -1);
    if (!own->started) return PD_OK;
    own->started = false;
    return r->hook.finish(r->hook.ctx, b, own->pending);
}

/* Starts the buckets that have not started, and waits for all. */
static pd_status finish_buckets(pd_reducer *r) {
    const bool rehearsing = pd_is_rehearsing();
    PD_TRY(pd_ready_rest(&r->ready));
    for (int b = 0; b < r->layout.nbuckets; b++)
        PD_TRY(rehearsing ? pd_rehearse_effect(r->flat.buckets[b].storage) : finish_bucket(r, b));
    if (r->hook.start && !rehearsing)
        PD_TRY(all_reduce(r, pd_flat_tail(&r->flat), r->n, flag_type(r), 1, NULL));
    for (int b = 0; b < r->layout.nbuckets; b++) pd_record_effect(r->flat.buckets[b].storage);
    return PD_OK;
}

static void warn_unused(pd_reducer *r) {
    char names[512] = "";
    int missing = 0;
    if (r->warned) return;
    for (int i = 0; i < r->n; i++) {
        if (came_here(r, i) || !r->slots[i].param->requires_grad) continue;
        size_t used = strlen(names);
        if (missing++ < 8) snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                    r->slots[i].piece->name);
    }
    if (!missing) return;
    r->warned = true;
    pd_log(PD_LOG_WARN,
           "rank %d: %d of %d parameters got no gradient in this backward; their gradients count as zeros: %s%s",
           pd_group_rank(r->group), missing, r->n, names, missing > 8 ? ", ..." : "");
}

/* Ends a backward that is reduced: starts what has not started, waits, and gives each parameter its .grad. */
static pd_status finish(pd_reducer *r) {
    if (r->turns) {
        bool reduces;
        PD_TRY(pd_turns_end(r, &reduces));
        if (!reduces) return PD_OK;
    }
    warn_unused(r);
    PD_TRY(finish_buckets(r));
    PD_TRY(read_flags(r));
    if (r->turns) PD_TRY(pd_turns_deliver(r));
    for (int i = 0; i < r->n; i++) {
        pd_slot *s = &r->slots[i];
        pd_meta *m = s->param->meta;
        if (!m->grad && used_somewhere(r, i)) pd_tensor_retain(m->grad = s->view);
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
    if (!r->running) return PD_OK; /* another forward was prepared meanwhile */
    int64_t since = pd_os_now();
    void *token = pd_host_release(); /* this may wait for peers */
    pd_status status = finish(r);
    pd_host_acquire(token);
    if (!status) note_times(r, since, pd_os_now());
    pd_reducer_forget(r);
    return status;
}

static void drop(void *reducer);

/* Parameters that are frozen now, perhaps by a requires_grad_(False) after the reducer was made, hold no bucket
   back. */
static pd_status begin_backward(pd_reducer *r) {
    PD_TRY(pd_engine_at_end((pd_closure){.call = at_end, .drop = drop, .ctx = r}));
    r->refs++;
    if (r->begin.call && !pd_is_rehearsing()) PD_TRY(r->begin.call(r->begin.ctx, NULL));
    r->running = true;
    r->began = pd_os_now();
    r->times.inside = 0;
    pd_ready_begin(&r->ready);
    for (int i = 0; i < r->n; i++)
        if (r->slots[i].param->requires_grad) pd_ready_expect(&r->ready, i);
    return PD_OK;
}

static pd_status on_ready(void *ctx, void *leaf) {
    pd_slot *s = ctx;
    pd_reducer *r = s->r;
    (void)leaf;
    if (r->turns && r->sync && pd_turns_is_closed(r))
        return pd_fail(PD_E_RUNTIME,
                       "DistributedDataParallel: parameter %s got a gradient outside of a logical shard, or after the "
                       "backward that ended it (expected a backward inside `for shard in step:`, and overlap=False for "
                       "several backwards in a micro-batch)",
                       s->piece->name);
    if (r->turns ? !pd_turns_is_last(r) : !r->sync) return PD_OK;
    if (!r->running) PD_TRY(begin_backward(r));
    if (r->turns ? pd_turns_has(s) : r->ready.came[number_of(s)])
        return pd_fail(PD_E_DIST,
                       "DistributedDataParallel: parameter %s got a gradient twice before the buckets were reduced "
                       "(expected one gradient in each backward)",
                       s->piece->name);
    PD_TRY(r->turns ? pd_turns_add(s) : into_bucket(s));
    if (r->turns && !pd_turns_reduces(r)) return PD_OK;
    int64_t since = pd_os_now();
    PD_TRY(pd_ready_came(&r->ready, number_of(s)));
    if (r->ready.next) PD_TRY(pd_group_progress(r->group));
    r->times.inside += pd_os_now() - since;
    return PD_OK;
}

pd_status pd_reducer_prepare(pd_reducer *r, uint64_t site) {
    r->site = site;
    r->prepared = pd_os_now();
    if (!r->running) return PD_OK;
    /* A backward has failed midway. What has started must end before its memory is written again. */
    pd_status status = PD_OK;
    for (int b = 0; b < r->ready.next && !status; b++) status = finish_bucket(r, b);
    pd_reducer_forget(r);
    return status;
}

pd_status pd_reducer_close_shard(pd_reducer *r, uint64_t site) {
    r->site = site;
    if (pd_turns_is_closed(r)) return PD_OK;
    r->running = true;
    pd_status status = finish(r);
    pd_reducer_forget(r);
    r->prepared = 0;
    return status;
}

pd_status pd_reducer_shadow(pd_reducer *r, uint64_t site) {
    if (pd_group_size(r->group) == 1) return PD_OK;
    PD_TRY(pd_reducer_prepare(r, site));
    for (int i = 0; i < r->n; i++) pd_meta_set_grad(r->slots[i].param->meta, NULL);
    r->running = true;
    pd_status status = finish_buckets(r);
    pd_reducer_forget(r);
    r->prepared = 0;
    return status;
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */

const pd_layout *pd_reducer_layout(const pd_reducer *r) { return &r->layout; }
void pd_reducer_set_sync(pd_reducer *r, bool sync) { r->sync = sync; }
bool pd_reducer_get_sync(const pd_reducer *r) { return r->sync; }
void pd_reducer_set_waits(pd_reducer *r, bool waits) { r->waits = waits; }
bool pd_reducer_get_waits(const pd_reducer *r) { return r->waits; }

const pd_device *pd_reducer_device(const pd_reducer *r) { return r->device; }
pd_group *pd_reducer_group(const pd_reducer *r) { return r->group; }
pd_tensor *pd_reducer_view(const pd_reducer *r, int param) { return r->slots[param].view; }
const pd_reducer_times *pd_reducer_get_times(const pd_reducer *r) { return &r->times; }

pd_status pd_reducer_bucket_at(const pd_reducer *r, int b, pd_reducer_bucket *out) {
    int n = r->sums ? r->layout.nbuckets : 0;
    if (b < 0 || b >= n) return pd_fail(PD_E_INDEX, "bucket: b is %d (expected 0 to %d)", b, n - 1);
    const pd_bucket_span *span = &r->layout.buckets[b];
    *out = (pd_reducer_bucket){.data = r->flat.buckets[b].data, .numel = span->numel, .dtype = span->dtype,
                               .storage = r->flat.buckets[b].storage};
    return PD_OK;
}

void pd_reducer_drop_hooks(pd_reducer *r) {
    if (r->sums) pd_reducer_forget(r);
    if (r->hook.drop) r->hook.drop(r->hook.ctx);
    r->hook = (pd_comm_hook){0};
    pd_reducer_set_begin(r, (pd_closure){0});
}

pd_status pd_reducer_set_hook(pd_reducer *r, pd_comm_hook hook) {
    if (r->turns)
        return pd_fail(PD_E_NOTIMPL,
                       "register_comm_hook: a communication hook with logical shards (expected none: its sums depend "
                       "on the number of ranks)");
    const char *why = r->hook.start ? "there is a hook already" : r->running ? "a backward is under way" : NULL;
    if (why) return pd_fail(PD_E_RUNTIME, "register_comm_hook: %s (expected one hook, before the first step)", why);
    r->hook = hook;
    return PD_OK;
}

void pd_reducer_set_begin(pd_reducer *r, pd_closure begin) {
    pd_closure_drop(&r->begin);
    r->begin = begin;
}

pd_status pd_reducer_set_divisor(pd_reducer *r, double divisor) {
    if (r->turns)
        return pd_fail(PD_E_NOTIMPL, "divisor: n is %g with logical shards (expected their number, %g)", divisor,
                       r->divisor);
    if (!(divisor >= 1 && divisor <= pd_group_size(r->group)))
        return pd_fail(PD_E_VALUE, "divisor: n is %g (expected 1 to %d)", divisor, pd_group_size(r->group));
    r->divisor = divisor;
    return PD_OK;
}

pd_status pd_reducer_set_weight(pd_reducer *r, double weight) {
    if (!(weight >= 0 && weight < INFINITY))
        return pd_fail(PD_E_VALUE, "weight: got %g (expected a finite number, 0 or more)", weight);
    if (r->turns && weight != 1)
        return pd_fail(PD_E_NOTIMPL, "weight: got %g with logical shards (expected 1: weigh the loss)", weight);
    r->weight = weight;
    return PD_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static pd_status attach(pd_slot *s) {
    pd_meta *m = NULL;
    pd_status status;
    PD_TRY(pd_meta_get(s->param, &m));
    PD_TRY(pd_flat_tensor(&s->r->flat, s->piece, 0, s->param, &s->view));
    s->owner = (pd_grad_owner){.name = PD_DDP, .leaf = s->piece->name};
    PD_TRY(pd_grad_take(s->param, &s->owner, s->view));
    s->hook = pd_hook_add(&m->hooks, PD_HOOK_READY, 0, (pd_closure){.call = on_ready, .ctx = s}, &status);
    if (status) return status;
    return into_bucket(s);
}

static pd_status fill_slots(pd_reducer *r, pd_tensor *const *params, const char *const *names) {
    for (int i = 0; i < r->n; i++) {
        pd_slot *s = &r->slots[i];
        s->r = r;
        pd_tensor_retain(s->param = params[i]);
        const pd_tensor *p = params[i];
        if (p->storage->device != r->device)
            return pd_fail(PD_E_VALUE,
                           "DistributedDataParallel: parameter %s is on %s (expected %s, like the first parameter)",
                           names[i], p->storage->device->name, r->device->name);
        if (!p->requires_grad || (p->meta && p->meta->grad_fn) || !pd_dtype_is_float((pd_dtype)p->dtype))
            return pd_fail(PD_E_VALUE,
                           "DistributedDataParallel: parameter %s is %s and %s (expected a leaf with a floating dtype "
                           "that requires grad)",
                           names[i], pd_dtype_name((pd_dtype)p->dtype),
                           !p->requires_grad  ? "does not require grad"
                           : p->meta->grad_fn ? "is not a leaf"
                                              : "is a leaf");
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
    PD_THEN(pd_layout_pack(&r->layout, first, cap));
    for (int i = 0; i < r->n && !status; i++) r->slots[i].piece = &r->layout.pieces[i];
    return status;
}

static pd_status build(pd_reducer *r, const char *const *names, size_t first, size_t cap, pd_blocks *blocks) {
    PD_TRY(make_layout(r, names, first, cap));
    if (pd_group_size(r->group) == 1 && !blocks) return PD_OK; /* nothing to average */
    if (blocks) PD_TRY(pd_turns_new(r, blocks));
    else PD_TRY(pd_flat_init(&r->flat, &r->layout, (pd_flat_kind){PD_DDP, r->n, 1, false}, r->group, r->device));
    PD_TRY(pd_ready_init(&r->ready, &r->layout, start_bucket, r));
    PD_TRY(pd_calloc(sizeof *r->sums * (size_t)r->layout.nbuckets, "reducer", &r->sums));
    for (int b = 0; b < r->layout.nbuckets; b++)
        r->times.bytes += r->layout.buckets[b].numel * (int64_t)pd_dtype_size(r->layout.buckets[b].dtype);
    r->flags = pd_flat_tail(sums_of(r));
    if (!on_host(r)) PD_TRY(pd_calloc(flag_bytes(r), "reducer", &r->flags));
    for (int i = 0; i < r->n; i++) PD_TRY(attach(&r->slots[i]));
    return PD_OK;
}

pd_status pd_reducer_new(pd_tensor *const *params, const char *const *names, int n, pd_group *group,
                         size_t first_bytes, size_t cap_bytes, pd_blocks *blocks, pd_reducer **out) {
    pd_reducer *r;
    if (n < 1)
        return pd_fail(
            PD_E_VALUE,
            "DistributedDataParallel: the module has no parameters that require grad (expected at least one)");
    PD_TRY(pd_check_data("DistributedDataParallel", params[0]->storage->device));
    PD_TRY(pd_calloc(sizeof *r, "reducer", &r));
    pd_group_retain(r->group = group);
    r->refs = 1;
    r->sync = true;
    r->divisor = pd_group_size(group);
    r->weight = 1;
    r->device = params[0]->storage->device;
    pd_status status = pd_calloc(sizeof *r->slots * (size_t)n, "reducer", &r->slots);
    if (!status) {
        r->n = n;
        status = fill_slots(r, params, names);
    }
    PD_THEN(build(r, names, first_bytes, cap_bytes, blocks));
    if (status) {
        pd_reducer_free(r);
        return PD_TRAIL(status);
    }
    *out = r;
    return PD_OK;
}

static void destroy(pd_reducer *r) {
    pd_reducer_drop_hooks(r);
    pd_turns_free(r->turns);
    for (int i = 0; i < r->n; i++) {
        pd_tensor_release(r->slots[i].view);
        pd_tensor_release(r->slots[i].param);
    }
    if (!on_host(r)) pd_free(r->flags);
    pd_flat_fini(&r->flat);
    pd_ready_fini(&r->ready);
    pd_layout_fini(&r->layout);
    pd_group_release(r->group);
    pd_free(r->slots);
    pd_free(r->sums);
    pd_free(r);
}

static void drop(void *reducer) {
    pd_reducer *r = reducer;
    if (--r->refs == 0) destroy(r);
}

void pd_reducer_free(pd_reducer *r) {
    if (!r) return;
    for (int i = 0; i < r->n; i++) {
        pd_slot *s = &r->slots[i];
        pd_meta *m = s->param ? s->param->meta : NULL;
        if (!m) continue;
        pd_grad_give_up(s->param, &s->owner);
        if (s->hook) pd_hook_remove(&m->hooks, s->hook);
        s->hook = 0;
    }
    drop(r);
}
