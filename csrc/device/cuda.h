/* CUDA devices. The first call that asks for them opens the library. On a machine without a driver or without
   pydist/_cuda.so there are no devices, and pd_cuda_why says why.

   A thread has a current device, and on each device a current stream (NULL: CUDA's default one), to which its
   allocations and launches go. CUDA does not survive a fork, so in a forked child all these calls fail, and what it
   frees is not freed. */
#ifndef PD_DEVICE_CUDA_H
#define PD_DEVICE_CUDA_H

#include "device/cache.h"
#include "device/device.h"

#define PD_CUDA_DEVICES 64

/* Called before the first use: which table of kernels the library must have. */
void pd_cuda_expect(uint64_t layout, size_t kernels_bytes);

int pd_cuda_count(void);
const char *pd_cuda_why(void);   /* why there is no device; "" if there are some */
const char *pd_cuda_built(void); /* "CUDA 13.0, sm_80 sm_90a"; "" without a library */
/* [borrowed] device `index`; -1: the thread's current one. PD_E_RUNTIME: there is no such device; the text names what
   is missing. */
pd_status pd_cuda_device(const char *op, int index, const pd_device **out);
pd_status pd_cuda_set_current(int index);
int pd_cuda_in_use(uint64_t *entered); /* the one that this thread used last; -1: none */

/* The following is for devices that pd_cuda_device has returned. */
const pd_cuda_library *pd_cuda_open(void); /* NULL: there is none */
pd_status pd_cuda_result(const char *op, int error); /* PD_OK, or fails with the text of CUDA's error */
/* Waits until d has done all its work. PD_E_RUNTIME while a graph is being captured on d, which that would break. */
pd_status pd_cuda_wait(const pd_device *d, const char *op);
void *pd_cuda_stream(const pd_device *d);
void pd_cuda_set_stream(const pd_device *d, void *stream); /* for this thread */
/* Streams are pooled and never destroyed, since memory, events and graphs know them by address. The work of a stream's
   next owner runs after that of the last one. */
pd_status pd_cuda_stream_take(const char *op, const pd_device *d, int priority, void **out);
void pd_cuda_stream_back(void *stream);
/* The device of a stream, and whether it has an owner; false: there is no stream with this address. */
bool pd_cuda_stream_known(const void *stream, int *device, bool *taken);
bool pd_cuda_forked(void); /* whether this process is a child of one that used CUDA */
pd_cache *pd_cuda_cache(const pd_device *d);
bool pd_cuda_capturing(const pd_device *d); /* whether this thread's stream is capturing a graph */
void pd_cuda_trim(void);           /* trims the caches of all devices in use */

#endif
