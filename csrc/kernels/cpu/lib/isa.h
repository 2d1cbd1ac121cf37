/* Every file of kernels/cpu starts with this header. It is compiled once for each instruction set, which PD_ISA names.

   A file exports only names with a suffix, so that the copies can be linked together: PD_SUFFIXED(pd_unary_run) is
   pd_unary_run_avx512. Vectors are the compiler's own (vector_size); intrinsics are used only for what C cannot say. */
#ifndef PD_KERNELS_CPU_LIB_ISA_H
#define PD_KERNELS_CPU_LIB_ISA_H

#include <stdint.h>
#include <string.h>

#include "base/threads.h"
#include "kernels/kernels.h"

#if defined(__AVX2__) || defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#ifndef PD_ISA
#define PD_ISA portable
#endif
#define PD_PASTE2(a, b) a##_##b
#define PD_PASTE(a, b) PD_PASTE2(a, b)
#define PD_SUFFIXED(name) PD_PASTE(name, PD_ISA)

/* Stands before a loop whose iterations do not read what other iterations write; output and input may be the same. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* integer pow stays a scalar loop */
#define PD_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define PD_VECTORIZE _Pragma("GCC ivdep")
#endif
#define PD_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#define PD_VB 64
#elif defined(__AVX2__)
#define PD_VB 32
#else
#define PD_VB 16
#endif

typedef float pd_vf __attribute__((vector_size(PD_VB)));
typedef double pd_vd __attribute__((vector_size(PD_VB)));
typedef float pd_vf_any __attribute__((vector_size(PD_VB), aligned(4), may_alias));
typedef double pd_vd_any __attribute__((vector_size(PD_VB), aligned(8), may_alias));
#define PD_LANES_F (PD_VB / 4)
#define PD_LANES_D (PD_VB / 8)

PD_INLINE pd_vf pd_vf_load(const float *p) { return *(const pd_vf_any *)p; }
PD_INLINE pd_vd pd_vd_load(const double *p) { return *(const pd_vd_any *)p; }
PD_INLINE void pd_vf_store(float *p, pd_vf v) { *(pd_vf_any *)p = v; }
PD_INLINE void pd_vd_store(double *p, pd_vd v) { *(pd_vd_any *)p = v; }
PD_INLINE pd_vf pd_vf_set(float x) { return x - (pd_vf){0}; } /* in every lane; gcc leaves the subtraction out */
PD_INLINE pd_vd pd_vd_set(double x) { return x - (pd_vd){0}; }

/* a * b + c, rounded once if the processor can; x > y ? x : y (y if either is NaN). */
#if defined(__AVX512F__)
PD_INLINE pd_vf pd_vf_fma(pd_vf a, pd_vf b, pd_vf c) { return (pd_vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
PD_INLINE pd_vd pd_vd_fma(pd_vd a, pd_vd b, pd_vd c) {
    return (pd_vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
PD_INLINE pd_vf pd_vf_max(pd_vf a, pd_vf b) { return (pd_vf)_mm512_max_ps((__m512)a, (__m512)b); }
PD_INLINE pd_vd pd_vd_max(pd_vd a, pd_vd b) { return (pd_vd)_mm512_max_pd((__m512d)a, (__m512d)b); }
#elif defined(__AVX2__)
PD_INLINE pd_vf pd_vf_fma(pd_vf a, pd_vf b, pd_vf c) { return (pd_vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
PD_INLINE pd_vd pd_vd_fma(pd_vd a, pd_vd b, pd_vd c) {
    return (pd_vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
PD_INLINE pd_vf pd_vf_max(pd_vf a, pd_vf b) { return (pd_vf)_mm256_max_ps((__m256)a, (__m256)b); }
PD_INLINE pd_vd pd_vd_max(pd_vd a, pd_vd b) { return (pd_vd)_mm256_max_pd((__m256d)a, (__m256d)b); }
#else
PD_INLINE pd_vf pd_vf_fma(pd_vf a, pd_vf b, pd_vf c) { return a * b + c; }
PD_INLINE pd_vd pd_vd_fma(pd_vd a, pd_vd b, pd_vd c) { return a * b + c; }
#if defined(__SSE2__)
PD_INLINE pd_vf pd_vf_max(pd_vf a, pd_vf b) { return (pd_vf)_mm_max_ps((__m128)a, (__m128)b); }
PD_INLINE pd_vd pd_vd_max(pd_vd a, pd_vd b) { return (pd_vd)_mm_max_pd((__m128d)a, (__m128d)b); }
#else
PD_INLINE pd_vf pd_vf_max(pd_vf a, pd_vf b) {
    for (int i = 0; i < PD_LANES_F; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
PD_INLINE pd_vd pd_vd_max(pd_vd a, pd_vd b) {
    for (int i = 0; i < PD_LANES_D; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
}
#endif
#endif

/* How many elements are converted or gathered at a time, on the stack. */
#define PD_TILE 512

/* Computes a contiguous row of n elements: writes p[0], reads p[1..]; a is the scalar of binary.def. */
typedef void (*pd_row)(int64_t n, double a, char *const *p);

/* casts[to][from]: converts p[1] to p[0], or copies it if the dtypes are equal. NULL for complex dtypes (complex.h). */
extern const pd_row PD_SUFFIXED(pd_casts)[PD_DTYPE_COUNT][PD_DTYPE_COUNT];
#define PD_CASTS PD_SUFFIXED(pd_casts)

/* Defines a CPU kernel of kernels.def, in the file of its family; table.c collects them. */
#define PD_CPU_FUNCTION(ret, name, ...) ret PD_SUFFIXED(pd_cpu_##name)(__VA_ARGS__)
#define PD_KERNEL(devices, result, name, ...) PD_ON_CPU_##devices(PD_CPU_FUNCTION(result, name, __VA_ARGS__);)
#include "kernels/kernels.def"
#undef PD_KERNEL

/* A range is cut into at most PD_PARTS pieces with a partial result each. Their length depends on n alone. */
#define PD_PARTS 1024
static inline int64_t pd_part_length(int64_t n, int64_t at_least) {
    int64_t len = (n + PD_PARTS - 1) / PD_PARTS;
    return len < at_least ? at_least : len;
}
/* Adds v[0..n) pairwise, from the leaves of the tree T(0, n) up (docs/internals/design.md, "Order of reduction"). */
static inline double pd_tree_sum(double *v, int64_t n) {
    for (int64_t step = 1; step < n; step *= 2)
        for (int64_t i = 0; i + step < n; i += 2 * step) v[i] += v[i + step];
    return n > 0 ? v[0] : 0.0;
}

#endif
