/* Collectives of a world of one on a GPU, by the device's own kernels on the caller's stream. An asynchronous one
   records an event, for a wait on another stream. */
#include <string.h>

#include "comm/group/mover.h"
#include "device/cuda.h"
#include "kernels/kernels.h"

void pd_alone_scalar(pd_dtype t, double value, char *out) {
    float f = (float)value;
    pd_f16 half = pd_f32_to_f16(f);
    pd_bf16 brain = pd_f32_to_bf16(f);
    switch (t) {
    case PD_F64: memcpy(out, &value, sizeof value); break;
    case PD_F16: memcpy(out, &half, sizeof half); break;
    case PD_BF16: memcpy(out, &brain, sizeof brain); break;
    default: memcpy(out, &f, sizeof f);
    }
}

pd_status pd_alone_scale(const pd_device *d, const char *op, pd_dtype t, double factor, void *data, int64_t count) {
    const pd_device *was;
    char cell[8];
    if (factor == 1 || !count) return PD_OK;
    pd_alone_scalar(pd_dtype_computed(t), factor, cell);
    pd_status status = pd_device_enter(d, &was);
    if (!status) pd_multiply(t, count, cell, data);
    pd_device_here = was;
    return status ? status : pd_device_check(d, op);
}

static pd_status mark(pd_work *w) {
    const pd_cuda_library *cuda = pd_cuda_open();
    const char *op = pd_collective_names[w->id.coll];
    w->captured = pd_cuda_capturing(w->device);
    PD_TRY(w->device->enter(w->device));
    PD_TRY(pd_cuda_result(op, cuda->event_new(&w->launch, false)));
    pd_status status = pd_cuda_result(op, cuda->event_record(w->launch, pd_cuda_stream(w->device)));
    if (status) pd_mover_alone.release(w);
    return status;
}

static pd_status launch(pd_work *w) {
    const pd_job *j = &w->job;
    const pd_device *d = w->device;
    size_t bytes = pd_job_bytes(j, j->count);
    if (j->from != j->to && bytes)
        PD_TRY(d->copy(d, pd_collective_names[w->id.coll], PD_WITHIN, j->to, j->from, bytes, PD_NO_WAIT));
    PD_TRY(pd_alone_scale(d, pd_collective_names[w->id.coll], j->dtype, j->scale, j->to, j->count));
    return w->waits ? PD_OK : mark(w);
}

static pd_status wait(const pd_work *w, double seconds) {
    const pd_cuda_library *cuda = pd_cuda_open();
    bool within = pd_cuda_capturing(w->device);
    if (w->captured && !within) return PD_OK; /* the program that launches the graph chooses the stream */
    PD_TRY(w->device->enter(w->device));
    if (seconds < 0 || within)
        return pd_cuda_result("wait", cuda->stream_after(pd_cuda_stream(w->device), w->launch));
    void *token = pd_host_release(); /* it waits for no other rank, so it is soon done */
    int error = cuda->event_wait(w->launch);
    pd_host_acquire(token);
    return pd_cuda_result("wait", error);
}

static pd_status test(const pd_work *w, bool *done) {
    *done = w->captured;
    if (*done) return PD_OK;
    PD_TRY(w->device->enter(w->device));
    return pd_cuda_result("wait", pd_cuda_open()->event_done(w->launch, done));
}

static void release(pd_work *w) {
    pd_cuda_open()->event_free(w->launch);
    w->launch = NULL;
}

const pd_mover pd_mover_alone = {.name = "alone", .launch = launch, .wait = wait, .test = test, .release = release};
