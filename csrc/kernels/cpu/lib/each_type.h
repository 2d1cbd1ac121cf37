/* Includes PD_INCLUDED once for each computing type (real.h); with PD_FLOATS_ONLY only for the two float types, with
   PD_F32_ONLY only for float. */
#define T float
#define V pd_vf
#define ACC double
#define OWN PD_F32
#define LANES PD_LANES_F
#define IS_FLOAT 1
#define IS_NAN(x) ((x) != (x))
#define NOT_A_NUMBER VM_NAN
#define FN(name) name##_f32
#define VN(name) pd_vf_##name
#define MATH(name) vm_##name##f
#define INFINITE VM_INFF
#include PD_INCLUDED
#undef T
#undef V
#undef OWN
#undef LANES
#undef FN
#undef VN
#undef MATH
#undef INFINITE

#ifndef PD_F32_ONLY
#define T double
#define V pd_vd
#define OWN PD_F64
#define LANES PD_LANES_D
#define FN(name) name##_f64
#define VN(name) pd_vd_##name
#define MATH(name) vm_##name
#define INFINITE VM_INF
#include PD_INCLUDED
#undef T
#undef V
#undef OWN
#undef LANES
#undef FN
#undef VN
#undef MATH
#undef INFINITE
#endif
#undef ACC
#undef IS_FLOAT
#undef IS_NAN
#undef NOT_A_NUMBER

#if !defined(PD_FLOATS_ONLY) && !defined(PD_F32_ONLY)
#define T int64_t
#define ACC int64_t
#define OWN PD_I64
#define IS_FLOAT 0
#define IS_NAN(x) 0
#define NOT_A_NUMBER 0
#define FN(name) name##_i64
#define INFINITE INT64_MAX
#include PD_INCLUDED
#undef T
#undef ACC
#undef OWN
#undef IS_FLOAT
#undef IS_NAN
#undef NOT_A_NUMBER
#undef FN
#undef INFINITE
#endif
#undef PD_FLOATS_ONLY
#undef PD_F32_ONLY
#undef PD_INCLUDED
