/* A warp's matrix instructions for 16-bit elements, and copies that run while the threads compute.

   mma: c[16, 8] += a[16, 16] b[16, 8] in float. With g = lane / 4 and t = lane % 4 a thread holds
       c[0..3]   (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
       a[0..3]   pairs of neighbours from (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8) on
       b[0..1]   pairs one below the other from (2t, g), (2t + 8, g) on
   The whole warp must call each of these. tests/emulator has them in C++. */
#ifndef PD_CUDA_MMA_H
#define PD_CUDA_MMA_H

#include "cuda/cuda.h"

template <class E> static __device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
/* Loads four matrices of 8 x 8. Lane l gives the address of row l % 8 of matrix l / 8, 16 bytes in shared memory. r[m]
   gets the thread's pair (g, 2t), (g, 2t + 1) of matrix m; with TURNED the pair (2t, g), (2t + 1, g). */
template <bool TURNED> static __device__ void load_matrices(uint32_t (&r)[4], const void *row);
/* Packs low and high as a pair of elements. */
template <class E> static __device__ uint32_t pair_of(float low, float high);
/* Copies 16 bytes from global to shared memory; zeros unless `there`. wait_for_copies ends this thread's copies. */
static __device__ void copy16(void *shared, const void *global, bool there);
static __device__ void wait_for_copies();

#ifdef __CUDACC__
#define MMA(E, type)                                                                                          \
    template <> __device__ void mma<E>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {     \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                   \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                         \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                         \
    }                                                                                                         \
    template <> __device__ uint32_t pair_of<E>(float low, float high) {                                       \
        uint32_t both;                                                                                        \
        asm("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));                          \
        return both;                                                                                          \
    }
MMA(pd_bf16, "bf16")
MMA(pd_f16, "f16")
#undef MMA

template <bool TURNED> static __device__ void load_matrices(uint32_t (&r)[4], const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static __device__ __forceinline__ void copy16(void *shared, const void *global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#else
template <class E> static uint32_t pair_of(float low, float high) {
    pack<E, 2> both = {{narrow<E>(low), narrow<E>(high)}};
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}
template <class E> static void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    pd_emulated_mma(c, a, b0, b1, [](uint16_t bits) {
        E e;
        memcpy(&e, &bits, sizeof e);
        return widen(e);
    });
}
template <bool TURNED>
static void load_matrices(uint32_t (&r)[4], const void *row) {
    pd_emulated_matrices(r, row, TURNED);
}
static inline void copy16(void *shared, const void *global, bool there) {
    if (there) memcpy(shared, global, 16);
    else memset(shared, 0, 16);
}
static inline void wait_for_copies() {}
#endif

#endif
