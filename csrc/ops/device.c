/* Copies between devices: tensor.to, cuda, cpu. The bytes keep their order, so the copy has the original's strides. */
#include <string.h>

#include "device/cuda.h"
#include "device/pinned.h"
#include "ops/ops.h"

typedef struct {
    int64_t from, to, wait;
} move_attrs; /* indices of devices; -1: the CPU, PD_META_INDEX: meta */

static pd_status device_at(int64_t index, const pd_device **out) {
    *out = index == PD_META_INDEX ? &pd_device_meta : &pd_device_cpu;
    return index < 0 ? PD_OK : pd_cuda_device("to", (int)index, out);
}

static pd_status pinned_storage(size_t bytes, pd_storage **out) {
    pd_pinned *memory;
    PD_TRY(pd_pinned_new(bytes ? bytes : 1, &memory));
    pd_status status = pd_storage_external(&pd_device_cpu, pd_pinned_data(memory), bytes, pd_pinned_drop, memory, out);
    if (status) pd_pinned_drop(memory);
    return PD_TRAIL(status);
}

static pd_status infer(pd_call *c) {
    const pd_tensor *x = c->in[0];
    const pd_device *d;
    const move_attrs *a = c->attrs;
    PD_TRY(device_at(a->to, &d));
    PD_TRY(pd_check_data("to", x->storage->device));
    PD_TRY(pd_out_like(c, 0, (pd_dtype)x->dtype, x));
    memcpy(c->out[0]->stride, x->stride, sizeof *x->stride * (size_t)x->ndim);
    if (a->wait == PD_NO_WAIT && !d->copy && x->storage->device->copy)
        return pinned_storage(pd_tensor_bytes(x), &c->out[0]->storage);
    return pd_storage_new(d, pd_tensor_bytes(x), &c->out[0]->storage);
}

static pd_status kernel(const pd_call *c) {
    const pd_tensor *x = c->in[0], *o = c->out[0];
    const pd_device *from = x->storage->device, *to = o->storage->device;
    pd_copy_wait wait = (pd_copy_wait)((const move_attrs *)c->attrs)->wait;
    PD_TRY(pd_check_data("to", from));
    if (to == &pd_device_meta) return PD_OK;
    if (from->copy && to->copy && !wait) wait = PD_WAIT; /* another device may read it next */
    const pd_device *d = from->copy ? from : to;
    const pd_storage *host = from->copy ? o->storage : x->storage;
    pd_status status = d->copy(d, "to",
                               !from->copy ? PD_TO_DEVICE
                               : !to->copy ? PD_TO_HOST
                                           : PD_WITHIN,
                               pd_tensor_data(o), pd_tensor_data(x), pd_tensor_bytes(x), wait);
    if (!status && !wait && host->drop == pd_pinned_drop) status = pd_pinned_used(host->ctx, d);
    return status || !pd_device_here->enter ? status : pd_device_here->enter(pd_device_here);
}

static void vjp(pd_vjp *v) {
    const move_attrs *a = v->attrs;
    const pd_device *d;
    pd_tensor *back = NULL;
    pd_status status = device_at(a->from, &d);
    PD_THEN(pd_move(v->g[0], d, PD_WAIT, &back));
    pd_vjp_set(v, 0, pd_vjp_keep(v, status, back));
}

const pd_op pd_op_to_device = {
    .sig = "to_device(Tensor input, int from, int to, int wait)",
    .doc =
        "A dense tensor's copy on another device (-1: the CPU, -2: meta); wait: 0 no, 1 yes, 2 yes and other threads "
        "go on.",
    .flags = PD_ANY_DEVICE,
    .attrs = sizeof(move_attrs),
    .infer = infer,
    .kernel = kernel,
    .vjp = vjp,
};

pd_status pd_move(pd_tensor *t, const pd_device *to, pd_copy_wait wait, pd_tensor **out) {
    const pd_device *from = t->storage->device;
    move_attrs a = {from->index, to->index, wait};
    pd_tensor *dense = t;
    if (from == to) {
        pd_tensor_retain(*out = t);
        return PD_OK;
    }
    if (!pd_shape_is_dense(t->ndim, t->size, t->stride)) PD_TRY(pd_call1(PD_OP_clone, t, &(int64_t){1}, &dense));
    pd_status status = pd_call1(PD_OP_to_device, dense, &a, out);
    if (dense != t) pd_tensor_release(dense);
    return status;
}

/* ---- memory that GPUs read by themselves ------------------------------------------------------------------------- */

bool pd_is_pinned(const pd_tensor *t) { return t->storage->drop == pd_pinned_drop; }

pd_status pd_pin(pd_tensor *t, pd_tensor **out) {
    pd_tensor *dense = t;
    pd_storage *storage;
    if (t->storage->device != &pd_device_cpu)
        return pd_fail(PD_E_RUNTIME, "pin_memory: the tensor is on %s (expected the CPU)", t->storage->device->name);
    if (pd_is_pinned(t)) {
        pd_tensor_retain(*out = t);
        return PD_OK;
    }
    if (!pd_shape_is_dense(t->ndim, t->size, t->stride)) PD_TRY(pd_call1(PD_OP_clone, t, &(int64_t){1}, &dense));
    pd_status status = pd_tensor_alias(dense, false, out);
    if (!status && (status = pinned_storage(pd_tensor_bytes(dense), &storage))) pd_tensor_release(*out);
    if (!status) {
        memcpy(storage->data, pd_tensor_data(dense), pd_tensor_bytes(dense));
        pd_storage_release((*out)->storage);
        (*out)->storage = storage;
        (*out)->offset = 0;
    }
    if (dense != t) pd_tensor_release(dense);
    return PD_TRAIL(status);
}
