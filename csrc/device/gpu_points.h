/* Points in the work of a thread's GPU, for the profiler: events of CUDA's, timed, kept until the run's times have been
   read. Knows CUDA by pd_cuda_library alone. Any thread. */
#ifndef PD_DEVICE_GPU_POINTS_H
#define PD_DEVICE_GPU_POINTS_H

#include "device/cuda.h"

/* Gives back the points of the run before; the time of the devices in use counts from now on, when they are idle. */
pd_status pd_gpu_points_start(void);
/* A point's number: after what the current stream has been given so far; 0 where this thread has used no device yet, is
   capturing a graph, or a point cannot be had. */
uint32_t pd_gpu_point(void);
/* The same, behind what began there; 0, and `begin` is used again, where the thread has given the device nothing
   since. */
uint32_t pd_gpu_point_after(uint32_t begin);
pd_status pd_gpu_points_wait(void); /* until all of them have been passed */
/* ns since pd_gpu_points_start, of two points of one device, after the wait; false where they have no time. */
bool pd_gpu_points_times(uint32_t begin, uint32_t end, int *device, int64_t *from, int64_t *to);

#endif
