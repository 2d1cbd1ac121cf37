/* PD_BOTH marks functions that CPU and GPU kernels share: CUDA's compiler compiles them for both, other compilers see
   inline functions. */
#ifndef PD_BASE_HOST_DEVICE_H
#define PD_BASE_HOST_DEVICE_H

#ifdef __CUDACC__
#define PD_BOTH static __host__ __device__ inline
#else
#define PD_BOTH static inline
#endif

#endif
