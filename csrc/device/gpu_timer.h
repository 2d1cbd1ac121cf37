/* Times a stream's work on a GPU by two events. */
#ifndef PD_DEVICE_GPU_TIMER_H
#define PD_DEVICE_GPU_TIMER_H

#include <stdbool.h>

typedef struct pd_gpu_timer {
    void *stream, *from, *to;
} pd_gpu_timer;

bool pd_gpu_timer_open(pd_gpu_timer *t, void *stream); /* false: it cannot be used, but must be closed */
void pd_gpu_timer_close(pd_gpu_timer *t);

bool pd_gpu_timer_begin(const pd_gpu_timer *t);
/* Waits for the work since begin. Returns its milliseconds; negative: it failed. */
float pd_gpu_timer_end(const pd_gpu_timer *t);

#endif
