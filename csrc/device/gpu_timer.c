#include "device/gpu_timer.h"

#include "device/cuda.h"

bool pd_gpu_timer_open(pd_gpu_timer *t, void *stream) {
    const pd_cuda_library *cuda = pd_cuda_open();
    *t = (pd_gpu_timer){.stream = stream};
    return !cuda->event_new(&t->from, true) && !cuda->event_new(&t->to, true);
}
void pd_gpu_timer_close(pd_gpu_timer *t) {
    if (t->from) pd_cuda_open()->event_free(t->from);
    if (t->to) pd_cuda_open()->event_free(t->to);
}

bool pd_gpu_timer_begin(const pd_gpu_timer *t) { return !pd_cuda_open()->event_record(t->from, t->stream); }

float pd_gpu_timer_end(const pd_gpu_timer *t) {
    const pd_cuda_library *cuda = pd_cuda_open();
    float ms;
    bool failed = cuda->event_record(t->to, t->stream) || cuda->event_wait(t->to);
    return failed || cuda->event_between(t->from, t->to, &ms) ? -1 : ms;
}
