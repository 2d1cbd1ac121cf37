/* Points in the work of a thread's GPU, for the profiler: CUDA events with times, kept until the recording's times have
   been read. Uses CUDA only through pd_cuda_library. Any thread may call. */
#ifndef PD_DEVICE_GPU_POINTS_H
#define PD_DEVICE_GPU_POINTS_H

#include "device/cuda.h"

/* Frees the points of the recording before. Times of the devices in use count from now; they are idle. */
pd_status pd_gpu_points_start(void);
/* Puts a point behind the work so far of the current stream and returns its number. 0: this thread has used no device
   yet or is capturing a graph, or no point could be made. */
uint32_t pd_gpu_point(void);
/* Puts a point behind the work since `begin`. 0 if this thread has given the device no work since; `begin` is then free
   again. */
uint32_t pd_gpu_point_after(uint32_t begin);
pd_status pd_gpu_points_wait(void); /* until the devices have passed all points */
/* Nanoseconds from pd_gpu_points_start to two points of one device, after the wait. False: they have no time. */
bool pd_gpu_points_times(uint32_t begin, uint32_t end, int *device, int64_t *from, int64_t *to);

#endif
