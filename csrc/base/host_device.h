/* Functions that kernels of the CPU and of the GPU share: compiled for both by CUDA's compiler, inline as any other
   elsewhere. */
#ifndef PD_BASE_HOST_DEVICE_H
#define PD_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define PD_BOTH static __host__ __device__ inline
#else
#define PD_BOTH static inline
#endif

#endif
