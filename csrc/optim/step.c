#include "optim/step.h"

#include <inttypes.h>

#include "autograd/autocast.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/profile.h"
#include "ops/ops.h"

static _Thread_local pd_tensor *unless, *from_lr, *from_step, *from_own[2]; /* pd_step_unless, pd_step_from */

/* Complex numbers are pairs of real ones to all steps, as in PyTorch. */
static pd_dtype part_of(const pd_tensor *t) { return pd_dtype_part((pd_dtype)t->dtype); }
static int64_t parts_of(const pd_tensor *t) {
    return pd_dtype_is_complex((pd_dtype)t->dtype) ? 2 * t->numel : t->numel;
}

/* The state must match its parameter; strides too, since the kernel walks them side by side. */
static pd_status check_like(const char *op, int64_t i, const char *what, const pd_tensor *t, const pd_tensor *p) {
    bool same = pd_tensor_same_shape(t, p) && t->dtype == p->dtype;
    if (t->storage->device != p->storage->device)
        return pd_fail(PD_E_RUNTIME, "%s: %s of parameter %" PRId64 " is on %s (expected %s, as the parameter)", op,
                       what, i, t->storage->device->name, p->storage->device->name);
    for (int d = 0; d < p->ndim && same; d++) same = p->size[d] < 2 || t->stride[d] == p->stride[d];
    if (same) return PD_OK;
    return pd_fail(PD_E_SHAPE,
                   "%s: %s of parameter %" PRId64 " is %s of shape %s (expected %s of shape %s, with the same strides)",
                   op, what, i, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t),
                   pd_dtype_name((pd_dtype)p->dtype), pd_tensor_shape(p));
}

/* Where the number lies, which must be where the parameter is. */
static pd_status number_near(const char *op, int64_t i, const pd_tensor *p, pd_tensor *number, const char *what,
                             void **to) {
    if (number && number->storage->device != p->storage->device)
        return pd_fail(PD_E_RUNTIME, "%s: parameter %" PRId64 " is on %s (expected %s, %s)", op, i,
                       p->storage->device->name, number->storage->device->name, what);
    if (number) *to = pd_tensor_data(number);
    return PD_OK;
}

static pd_status segment(const char *op, const pd_step_lists *l, int64_t i, pd_segment_step *s) {
    pd_tensor *p = l->params[i], *g = p->meta ? p->meta->grad : NULL;
    if (!g) return pd_fail(PD_E_VALUE, "%s: parameter %" PRId64 " has no gradient", op, i);
    if (pd_dtype_category((pd_dtype)p->dtype) < PD_CAT_FLOAT)
        return pd_fail(PD_E_DTYPE, "%s: parameter %" PRId64 " is %s (expected a complex or floating dtype)", op, i,
                       pd_dtype_name((pd_dtype)p->dtype));
    if (p->storage->device != l->params[0]->storage->device)
        return pd_fail(PD_E_RUNTIME,
                       "%s: parameter %" PRId64 " is on %s, parameter 0 on %s (expected one device a call)", op, i,
                       p->storage->device->name, l->params[0]->storage->device->name);
    if (p->dtype != l->params[0]->dtype)
        return pd_fail(PD_E_DTYPE, "%s: parameter %" PRId64 " is %s, parameter 0 %s (expected one dtype a call)", op, i,
                       pd_dtype_name((pd_dtype)p->dtype), pd_dtype_name((pd_dtype)l->params[0]->dtype));
    if (!pd_shape_is_dense(p->ndim, p->size, p->stride) || p->storage->read_only)
        return pd_fail(PD_E_VALUE,
                       "%s: parameter %" PRId64 " of shape %s is a read-only or not dense view (expected contiguous())",
                       op, i, pd_tensor_shape(p));
    PD_TRY(check_like(op, i, "the gradient", g, p));
    *s = (pd_segment_step){.p = pd_tensor_data(p), .g = pd_tensor_data(g), .n = parts_of(p), .chance = l->chance};
    PD_TRY(number_near(op, i, p, unless, "where the scaler found infinities", (void **)(uintptr_t)&s->skip));
    PD_TRY(number_near(op, i, p, from_lr, "as the learning rate", (void **)(uintptr_t)&s->lr));
    PD_TRY(number_near(op, i, p, from_step, "as the number of steps", (void **)&s->step));
    for (int k = 0; k < 2; k++)
        PD_TRY(number_near(op, i, p, from_own[k], "as a number of the step", (void **)&s->own[k]));
    pd_tensor *const *lists[] = {l->m, l->v, l->w};
    void **to[] = {&s->m, &s->v, &s->w};
    for (int k = 0; k < 3; k++) {
        if (!lists[k]) continue;
        PD_TRY(check_like(op, i, "the state", lists[k][i], p));
        *to[k] = pd_tensor_data(lists[k][i]);
    }
    return PD_OK;
}

static pd_status segments(const char *op, const pd_step_lists *l, pd_segment_step **out, int64_t *total) {
    *total = 0;
    PD_TRY(pd_scratch(sizeof **out * (size_t)l->count, op, (void **)out));
    for (int64_t i = 0; i < l->count; i++) {
        PD_TRY(segment(op, l, i, &(*out)[i]));
        *total += (*out)[i].n;
    }
    for (int64_t i = 0; i < l->count; i++)
        PD_TRY(pd_autocast_copy_begin(l->params[i], &(*out)[i].low, &(*out)[i].low_t));
    return PD_OK;
}

/* Bytes, for the profiler: parameters and states are read and written, gradients read. */
static int64_t moved(const pd_step_lists *l, int64_t total) {
    int streams = 3 + 2 * ((l->m != NULL) + (l->v != NULL) + (l->w != NULL));
    return total * streams * (int64_t)pd_dtype_size(part_of(l->params[0]));
}

/* ns: what the kernel takes for an element; the GIL is given up for what takes long. */
#define STEP(name, ns)                                                                                  \
    pd_status pd_step_##name(const pd_step_lists *l, const pd_##name *c) {                              \
        pd_segment_step *s;                                                                             \
        int64_t total;                                                                                  \
        if (!l->count) return PD_OK;                                                                    \
        PD_TRY(segments(#name, l, &s, &total));                                                         \
        pd_lap lap = pd_lap_begin();                                                                    \
        const pd_device *d = l->params[0]->storage->device, *was;                                       \
        void *token = !d->kernels && (double)total * (ns) > PD_RELEASE_NS ? pd_host_release() : NULL;   \
        pd_status status = pd_device_enter(d, &was);                                                    \
        if (!status) pd_here()->name(part_of(l->params[0]), c, s, l->count);                            \
        if (!status) status = pd_device_check(d, #name);                                                \
        pd_device_here = was;                                                                           \
        pd_host_acquire(token);                                                                         \
        PD_TRY(status);                                                                                 \
        pd_lap_end(&lap, PD_LAP_CALL, #name "_step", moved(l, total));                                  \
        for (int64_t i = 0; i < l->count; i++) {                                                        \
            pd_tensor_bump(l->params[i]);                                                               \
            if (s[i].low) pd_autocast_copy_end(l->params[i]);                                           \
        }                                                                                               \
        return PD_OK;                                                                                   \
    }
STEP(sgd, 1.0)
STEP(adam, 1.5)
STEP(adadelta, 2.0)
STEP(rmsprop, 2.0)
STEP(adagrad, 1.5)
STEP(moments, 1.5)
STEP(adamax, 1.5)
STEP(asgd, 1.0)
STEP(rprop, 1.5)
STEP(lion, 1.0)

/* One dense tensor, where it lies: its sum of squares (*sum lies there too), or (sum NULL) multiplied by `by`, *finite
   saying whether all were finite. */
static pd_status over(pd_tensor *t, const char *op, double *sum, double by, bool *finite) {
    const pd_device *d = t->storage->device, *was;
    void *token = !d->kernels && (double)t->numel > PD_RELEASE_NS ? pd_host_release() : NULL;
    pd_status status = pd_device_enter(d, &was);
    if (!status && sum) pd_here()->sum_squares(part_of(t), parts_of(t), pd_tensor_data(t), sum);
    else if (!status) *finite = pd_here()->scale(part_of(t), parts_of(t), by, pd_tensor_data(t));
    if (!status) status = pd_device_check(d, op);
    pd_device_here = was;
    pd_host_acquire(token);
    return status;
}

static pd_status check_dense_float(const char *op, int64_t i, const pd_tensor *t) {
    if (pd_dtype_category((pd_dtype)t->dtype) < PD_CAT_FLOAT)
        return pd_fail(PD_E_DTYPE, "%s: tensor %" PRId64 " is %s (expected a complex or floating dtype)", op, i,
                       pd_dtype_name((pd_dtype)t->dtype));
    if (pd_shape_is_dense(t->ndim, t->size, t->stride)) return PD_OK;
    return pd_fail(PD_E_VALUE, "%s: tensor %" PRId64 " of shape %s is not dense (expected contiguous())", op, i,
                   pd_tensor_shape(t));
}

pd_status pd_sums_of_squares(pd_tensor *const *tensors, int64_t count, pd_tensor **out) {
    const char *op = "sums_of_squares";
    const pd_device *d = count ? tensors[0]->storage->device : &pd_device_cpu, *was;
    for (int64_t i = 0; i < count; i++) {
        PD_TRY(check_dense_float(op, i, tensors[i]));
        if (tensors[i]->storage->device != d)
            return pd_fail(PD_E_RUNTIME, "%s: tensor %" PRId64 " is on %s (expected %s, as tensor 0)", op, i,
                           tensors[i]->storage->device->name, d->name);
    }
    pd_status status = pd_device_enter(d, &was);
    if (!status) status = pd_tensor_new(op, PD_F64, 1, &count, out);
    pd_device_here = was;
    for (int64_t i = 0; i < count && !status; i++) {
        status = over(tensors[i], op, (double *)pd_tensor_data(*out) + i, 0, NULL);
        if (status) pd_tensor_release(*out);
    }
    return status;
}

pd_status pd_scale_tensors(pd_tensor *const *tensors, int64_t count, double by, bool *finite) {
    *finite = true;
    for (int pass = 0; pass < 2; pass++) /* nothing is written where a check fails */
        for (int64_t i = 0; i < count; i++) {
            pd_tensor *t = tensors[i];
            if (pass) {
                bool all = true;
                PD_TRY(over(t, "scale_tensors", NULL, by, &all));
                *finite &= all;
                pd_tensor_bump(t);
                continue;
            }
            PD_TRY(pd_check_writable("scale_tensors", t));
            PD_TRY(check_dense_float("scale_tensors", i, t));
        }
    return PD_OK;
}

static pd_status check_number(const char *op, const pd_tensor *t) {
    if (t->dtype == PD_F32 && t->numel == 1 && t->storage->device->kernels) return PD_OK;
    return pd_fail(PD_E_VALUE, "%s: %s of shape %s on %s (expected one float32 on a GPU)", op,
                   pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name);
}

pd_status pd_step_unless(pd_tensor *t) {
    if (t) PD_TRY(check_number("step_unless", t));
    unless = t;
    return PD_OK;
}

pd_status pd_step_from(pd_tensor *lr, pd_tensor *step, pd_tensor *const own[2]) {
    pd_tensor *written[] = {step, own[0], own[1]};
    if (lr) PD_TRY(check_number("step_from", lr));
    for (int i = 0; i < 3; i++) {
        if (!written[i]) continue;
        PD_TRY(check_number("step_from", written[i]));
        PD_TRY(pd_check_writable("step_from", written[i]));
    }
    from_lr = lr;
    from_step = step;
    from_own[0] = own[0], from_own[1] = own[1];
    return PD_OK;
}

pd_status pd_unscale(pd_tensor *const *tensors, int64_t count, pd_tensor *by, pd_tensor *found) {
    const pd_device *d = by->storage->device, *was;
    PD_TRY(check_number("unscale", by));
    PD_TRY(check_number("unscale", found));
    for (int64_t i = -1; i < count; i++) {
        pd_tensor *t = i < 0 ? found : tensors[i];
        if (t->storage->device != d)
            return pd_fail(PD_E_RUNTIME, "unscale: tensors on %s and %s (expected one device)", d->name,
                           t->storage->device->name);
        PD_TRY(pd_check_writable("unscale", t));
        PD_TRY(check_dense_float("unscale", i, t));
    }
    pd_status status = pd_device_enter(d, &was);
    for (int64_t i = 0; i < count && !status; i++) {
        pd_here()->unscale(part_of(tensors[i]), parts_of(tensors[i]), pd_tensor_data(by), pd_tensor_data(found),
                           pd_tensor_data(tensors[i]));
        pd_tensor_bump(tensors[i]);
    }
    pd_tensor_bump(found);
    if (!status) status = pd_device_check(d, "unscale");
    pd_device_here = was;
    return status ? pd_trail(__FILE__, __LINE__, status) : PD_OK;
}

pd_status pd_zero_grads(pd_tensor *const *params, int64_t count, bool set_to_none) {
    for (int64_t i = 0; i < count; i++) {
        pd_meta *m = params[i]->meta;
        if (!m || !m->grad) continue;
        if (set_to_none) {
            pd_tensor_release(m->grad);
            m->grad = NULL;
            continue;
        }
        if (m->grad->meta && m->grad->meta->grad_fn) { /* made with create_graph: cut off, as in PyTorch */
            pd_tensor *plain;
            PD_TRY(pd_engine.zeros_like(m->grad, &plain));
            pd_tensor_release(m->grad);
            m->grad = plain;
            continue;
        }
        if (!pd_shape_is_dense(m->grad->ndim, m->grad->size, m->grad->stride))
            return pd_fail(PD_E_VALUE, "zero_grad: a gradient of shape %s is not dense", pd_tensor_shape(m->grad));
        const pd_device *was;
        PD_TRY(pd_device_enter(m->grad->storage->device, &was));
        pd_fill(m->grad, &(pd_scalar){.cat = PD_CAT_INT});
        pd_device_here = was;
        pd_tensor_bump(m->grad);
    }
    return PD_OK;
}
