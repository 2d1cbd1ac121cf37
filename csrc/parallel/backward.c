/* What a reducer does while a backward runs: buckets start as they fill, and all end with it. */
#include "parallel/reducer_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "device/cuda.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

void pd_reducer_forget_backward(pd_reducer *r) {
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

pd_status pd_reducer_clear(const pd_reducer *r, void *data, int64_t n, pd_dtype t) {
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

/* The home is a tensor of the user's, too (.grad), who may have given it other memory (p.grad.data = ..., resize_):
   then it gets its part of the bucket back, and what lay there goes along. */
static pd_status mend_home(slot *s) {
    pd_storage *own = s->r->buckets[s->piece->bucket].storage;
    pd_tensor *home = s->home, *was;
    if (home->storage == own && home->offset == s->piece->offset && home->numel == s->piece->numel) return PD_OK;
    if (!pd_tensor_same_shape(home, s->param))
        return pd_fail(PD_E_SHAPE,
                       "DistributedDataParallel: .grad of parameter %s was given data of shape %s (expected %s)",
                       s->piece->name, pd_tensor_shape(home), pd_tensor_shape(s->param));
    PD_TRY(pd_tensor_alias(home, false, &was));
    pd_storage_retain(own);
    pd_storage_release(home->storage);
    home->storage = own;
    home->offset = s->piece->offset;
    home->dtype = (int8_t)s->piece->dtype;
    if (pd_shape_is_dense(s->param->ndim, s->param->size, s->param->stride))
        memcpy(home->stride, s->param->stride, sizeof *home->stride * (size_t)home->ndim);
    else pd_shape_contiguous(home->ndim, home->size, home->stride);
    pd_status status = pd_engine.copy_into(home, was);
    pd_tensor_release(was);
    return status;
}

/* The gradient is in the bucket: put there by the engine, or here where the user gave .grad another tensor. */
pd_status pd_reducer_bring_home(slot *s) {
    pd_meta *m = s->param->meta;
    PD_TRY(mend_home(s));
    if (!m->grad || m->grad == s->home) return PD_OK;
    if (m->grad->storage != s->home->storage || m->grad->offset != s->home->offset)
        PD_TRY(pd_engine.copy_into(s->home, m->grad));
    pd_tensor_retain(s->home);
    pd_meta_set_grad(m, s->home);
    return PD_OK;
}

/* A parameter without a gradient in this backward counts as zero, or as what an earlier one left in .grad. */
static pd_status fill_in(slot *s) {
    if (s->param->meta->grad) return pd_reducer_bring_home(s);
    return pd_reducer_clear(s->r, pd_tensor_data(s->home), s->home->numel, (pd_dtype)s->home->dtype);
}

/* Alignment leaves them; a hook may have written there. */
static pd_status clear_gaps(pd_reducer *r, int b) {
    const pd_bucket_span *span = &r->layout.buckets[b];
    size_t size = pd_dtype_size(span->dtype);
    char *data = r->buckets[b].data;
    for (int k = 0; k < span->count; k++) {
        const pd_piece *p = pd_layout_in_bucket(&r->layout, b, k);
        int64_t end = p->offset + p->numel;
        int64_t next = k + 1 < span->count ? pd_layout_in_bucket(&r->layout, b, k + 1)->offset : span->numel;
        PD_TRY(pd_reducer_clear(r, data + (size_t)end * size, next - end, span->dtype));
    }
    return PD_OK;
}

static pd_status start_bucket(pd_reducer *r, int b) {
    const pd_bucket_span *span = &r->layout.buckets[b];
    bucket *own = &r->buckets[b];
    bool last = b == r->layout.nbuckets - 1;
    int64_t count = last ? r->flags_at + r->n : span->numel;
    for (int k = span->first; k < span->first + span->count; k++) {
        slot *s = &r->slots[r->layout.by_bucket[k]];
        PD_TRY(mend_home(s));
        PD_TRY(pd_tensor_before_write("DistributedDataParallel", s->home));
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
        if (missing++ < 8) snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                    r->slots[i].piece->name);
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
    int64_t since = pd_os_now();
    void *token = pd_host_release(); /* peers may keep us waiting */
    pd_status status = finish(r);
    pd_host_acquire(token);
    if (!status) note_times(r, since, pd_os_now());
    pd_reducer_forget_backward(r);
    return status;
}

/* Frozen parameters, which requires_grad_(False) may have made after the wrap, hold no bucket back. */
static pd_status begin_backward(pd_reducer *r) {
    PD_TRY(pd_engine_at_end((pd_closure){.call = at_end, .drop = pd_reducer_drop, .ctx = r}));
    r->refs++;
    if (r->begin.call) PD_TRY(r->begin.call(r->begin.ctx, NULL));
    r->running = true;
    r->began = pd_os_now();
    r->times.inside = 0;
    for (int b = 0; b < r->layout.nbuckets; b++) r->buckets[b].waiting = 0;
    for (int i = 0; i < r->n; i++)
        if (r->slots[i].param->requires_grad) r->buckets[r->slots[i].piece->bucket].waiting++;
    return PD_OK;
}

pd_status pd_reducer_on_ready(void *ctx, void *leaf) {
    slot *s = ctx;
    pd_reducer *r = s->r;
    (void)leaf;
    if (!r->sync) return PD_OK;
    if (!r->running) PD_TRY(begin_backward(r));
    if (s->fired)
        return pd_fail(PD_E_DIST, "DistributedDataParallel: parameter %s got a gradient twice before the buckets were "
                                  "reduced", s->piece->name);
    PD_TRY(pd_reducer_bring_home(s));
    s->fired = true;
    r->buckets[s->piece->bucket].waiting--;
    int64_t since = pd_os_now();
    PD_TRY(start_full(r));
    if (r->next) PD_TRY(pd_group_progress(r->group));
    r->times.inside += pd_os_now() - since;
    return PD_OK;
}

pd_status pd_reducer_prepare(pd_reducer *r, uint64_t site) {
    r->site = site;
    r->prepared = pd_os_now();
    if (!r->running) return PD_OK;
    /* A backward failed midway: what has started must end before its memory is written again. */
    pd_status status = PD_OK;
    for (int b = 0; b < r->next && !status; b++) status = finish_bucket(r, b);
    pd_reducer_forget_backward(r);
    return status;
}

pd_status pd_reducer_shadow(pd_reducer *r, uint64_t site) {
    if (pd_group_size(r->group) == 1) return PD_OK;
    PD_TRY(pd_reducer_prepare(r, site));
    for (int i = 0; i < r->n; i++) pd_meta_set_grad(r->slots[i].param->meta, NULL);
    r->running = true;
    pd_status status = finish_buckets(r);
    pd_reducer_forget_backward(r);
    r->prepared = 0;
    return status;
}
