/* CUDA's devices. Nothing is opened before the first question; on a machine without driver or without pydist/_cuda.so
   the answer is that there are none, and why.

   A thread has a current device, and on each device a current stream (NULL: CUDA's default one): allocations and
   launches of the thread belong to it. After a fork the child has none of this (CUDA does not survive it): its calls
   fail. */
#ifndef PD_DEVICE_CUDA_H
#define PD_DEVICE_CUDA_H

#include "device/cache.h"
#include "device/device.h"

#define PD_CUDA_DEVICES 64

/* Before the first use: what the library's table of kernels has to be like. */
void pd_cuda_expect(uint64_t layout, size_t kernels_bytes);

int pd_cuda_count(void);
const char *pd_cuda_why(void);   /* why there is no device; "" where there are some */
const char *pd_cuda_built(void); /* "CUDA 13.0, sm_80 sm_90a"; "" where there is no library */
/* [borrowed] device `index`, -1: the thread's current one. PD_E_RUNTIME where it is not there, naming what is
   missing. */
pd_status pd_cuda_device(const char *op, int index, const pd_device **out);
pd_status pd_cuda_set_current(int index);
int pd_cuda_in_use(uint64_t *entered); /* the device that this thread used last, -1: none; how often it used some */

/* The rest is for a device that pd_cuda_device has given. */
const pd_cuda_library *pd_cuda_open(void); /* NULL where there is none */
pd_status pd_cuda_result(const char *op, int error); /* PD_OK, or the error by its text */
pd_status pd_cuda_wait(const pd_device *d, const char *op);
void *pd_cuda_stream(const pd_device *d);
void pd_cuda_set_stream(const pd_device *d, void *stream); /* for this thread */
pd_cache *pd_cuda_cache(const pd_device *d);
bool pd_cuda_capturing(const pd_device *d); /* whether work of this thread's stream is written down, not done */
void pd_cuda_trim(void);           /* of all devices that have been used */

#endif
