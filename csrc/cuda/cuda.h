/* What all kernels of the library share: launches, element types, vector loads, and calls of the host.

   nvcc compiles with -fmad=false, so that elementwise functions give the CPU's bits. For tests the files are also
   compiled as plain C++ over tests/emulator/cuda_runtime.h. If a kernel uses __syncthreads or shuffles, all threads of
   the block must do so. */
#ifndef PD_CUDA_CUDA_H
#define PD_CUDA_CUDA_H

#include <cuda_runtime.h>

#include "device/cuda_library.h"
#include "kernels/kernels.h"

#ifdef __CUDACC__
#define UNROLLED _Pragma("unroll")
#define ONE_BY_ONE _Pragma("unroll 1")
#else
#define UNROLLED
#define ONE_BY_ONE
#endif

/* ---- the host's side --------------------------------------------------------------------------------------------- */

extern __thread cudaStream_t pd_cuda_stream_now; /* the stream of this thread's launches */
extern __thread const uint64_t *pd_cuda_draws_past; /* as given to capture_begin, or NULL */
extern const pd_cuda_host *pd_cuda_lent;

extern bool pd_cuda_waits; /* a launch has been put off (later.h), */
void pd_cuda_launch_waiting(); /* which this makes */
/* To be called before anything is given to the GPU. */
static inline void settle() {
    if (__atomic_load_n(&pd_cuda_waits, __ATOMIC_ACQUIRE)) pd_cuda_launch_waiting();
}

template <class... P, class... A> static void launch(void (*kernel)(P...), int64_t blocks, int threads, A... args) {
    if (blocks <= 0) return;
    settle();
#ifdef __CUDACC__
    kernel<<<(unsigned)blocks, threads, 0, pd_cuda_stream_now>>>(static_cast<P>(args)...);
#else
    pd_emulate((unsigned)blocks, (unsigned)threads, pd_cuda_stream_now, [=] { kernel(static_cast<P>(args)...); });
#endif
}

/* Enough blocks of `threads` threads for n elements, `each` of them for a thread. Kernels loop in steps of the grid. */
static inline int64_t blocks_for(int64_t n, int threads, int each) {
    int64_t blocks = (n + (int64_t)threads * each - 1) / ((int64_t)threads * each);
    return blocks < (1 << 20) ? blocks : 1 << 20;
}

static inline void no_kernel_for(pd_dtype) {
    pd_cuda_lent->refuse(PD_E_NOTIMPL, "there is no CUDA kernel for this dtype yet");
}

/* Memory of the host in which kernels store an index that is out of range (device/bad_index.h). The first one stays
   until it is read. NULL: there is none, and the op has failed. */
struct bad_record {
    unsigned taken;
    volatile unsigned ready;
    pd_bad_index what;
};
bad_record *pd_cuda_bad_record();
static inline __device__ void complain(bad_record *r, const pd_bad_index &what) {
    if (atomicCAS(&r->taken, 0u, 1u)) return;
    r->what = what;
    __threadfence_system();
    r->ready = 1;
}

/* `count` counters for a launch on this thread's stream that comes next, by which its blocks find out which of them is
   the last (is_last in block.h). They are zero, and the launch leaves zeros behind. NULL: no memory, and the op has
   failed. */
unsigned *pd_cuda_counters(int64_t count);

template <class T> struct tag { typedef T type; };
/* Calls f(tag<C type>()) for the element type t. */
template <class F> static void by_float(pd_dtype t, F f) {
    switch (t) {
    case PD_F32: return f(tag<float>());
    case PD_F64: return f(tag<double>());
    case PD_F16: return f(tag<pd_f16>());
    case PD_BF16: return f(tag<pd_bf16>());
    default: return no_kernel_for(t);
    }
}
template <class F> static void by_type(pd_dtype t, F f) {
    switch (t) {
    case PD_BOOL: case PD_U8: return f(tag<uint8_t>());
    case PD_I8: return f(tag<int8_t>());
    case PD_I16: return f(tag<int16_t>());
    case PD_I32: return f(tag<int32_t>());
    case PD_I64: return f(tag<int64_t>());
    default: return by_float(t, f);
    }
}
template <class F> static void by_size(size_t size, F f) {
    switch (size) {
    case 1: return f(tag<uint8_t>());
    case 2: return f(tag<uint16_t>());
    case 4: return f(tag<uint32_t>());
    case 16: return f(tag<pd_c128>());
    default: return f(tag<uint64_t>());
    }
}

/* ---- element types ----------------------------------------------------------------------------------------------- */

/* The type in which elements of type E are computed. */
template <class E> struct wide_of { typedef E type; };
template <> struct wide_of<pd_f16> { typedef float type; };
template <> struct wide_of<pd_bf16> { typedef float type; };
template <class E> using wide = typename wide_of<E>::type;

template <class T> struct is_real { static constexpr bool value = false; };
template <> struct is_real<float> { static constexpr bool value = true; };
template <> struct is_real<double> { static constexpr bool value = true; };

template <class E> struct convert {
    static __host__ __device__ E up(E e) { return e; }
    static __host__ __device__ E down(E w) { return w; }
};
template <> struct convert<pd_f16> {
    static __host__ __device__ float up(pd_f16 e) {
#ifdef __CUDA_ARCH__ /* one instruction */
        float w;
        asm("cvt.f32.f16 %0, %1;" : "=f"(w) : "h"(e.bits));
        return w;
#else
        return pd_f16_to_f32(e);
#endif
    }
    static __host__ __device__ pd_f16 down(float w) {
#ifdef __CUDA_ARCH__
        pd_f16 e;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(e.bits) : "f"(w));
        return e;
#else
        return pd_f32_to_f16(w);
#endif
    }
};
template <> struct convert<pd_bf16> {
    static __host__ __device__ float up(pd_bf16 e) { return pd_bf16_to_f32(e); }
    static __host__ __device__ pd_bf16 down(float w) { return pd_f32_to_bf16(w); }
};
template <class E> static inline __host__ __device__ wide<E> widen(E e) { return convert<E>::up(e); }
template <class E> static inline __host__ __device__ E narrow(wide<E> w) { return convert<E>::down(w); }

/* V elements that are loaded and stored at once; aligned as a whole, up to 16 bytes. */
template <class E, int V> struct alignas(sizeof(E) * V < 16 ? sizeof(E) * V : 16) pack { E e[V]; };

#endif
