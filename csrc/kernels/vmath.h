/* Branch-free elementary functions that compilers turn into vector code.

   It has exp, log, tanh, sigmoid, erf, sin, cos, pow and others in float and double, and the V_ names that the tables
   of elementwise functions use. The functions have no libm call, no branch and no table, only + - * /, `?:` and integer
   operations on the bits, so compilers vectorise a plain loop over them. Needs -ffp-contract=off: the error terms below
   are exact only without contraction.

   Each function reduces its argument to a small interval with a constant in two or three parts (Cody and Waite),
   evaluates a minimax polynomial (found by Remez' algorithm in 200-bit arithmetic), and puts the exponent back.

   Largest error found, in units in the last place, by comparing with 100-bit results, on AVX-512, AVX2 and plain SSE2;
   float over all 2^32 arguments (pow: 2e7 pairs), double over 2e7 random ones:
                 exp   log   tanh  sigmoid  erf   sin   cos   pow
       float     1.0   0.9   1.3   2.4      1.3   1.6   1.6   0.5   (atan2 2.2)
       double    1.1   0.9   1.4   2.4      1.4   1.7   1.6   1.5
   This holds for all arguments, with infinities, NaN, and subnormal results, which are rounded once; but for sin and
   cos only for |x| up to 1e6 (float: 1e9, within 1e-7). Far beyond that their result is some number in [-1, 1]; for an
   infinity it is NaN. */
#ifndef PD_KERNELS_VMATH_H
#define PD_KERNELS_VMATH_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define VM static __host__ __device__ __forceinline__
#else
#define VM static inline __attribute__((always_inline, unused))
#endif

#ifdef __CUDA_ARCH__
#define VM_HAS_FMA 1
#define VM_FMAF(a, b, c) fmaf(a, b, c)
#define VM_FMA(a, b, c) fma(a, b, c)
#elif defined(__FMA__) || defined(__aarch64__)
#define VM_HAS_FMA 1
#define VM_FMAF(a, b, c) __builtin_fmaf(a, b, c)
#define VM_FMA(a, b, c) __builtin_fma(a, b, c)
#else
#define VM_HAS_FMA 0
#define VM_FMAF(a, b, c) ((a) * (b) + (c))
#define VM_FMA(a, b, c) ((a) * (b) + (c))
#endif
#if VM_HAS_FMA /* in one rounding, anywhere */
#define VM_FMA_ONCE VM_FMA
#else
#define VM_FMA_ONCE __builtin_fma
#endif

#ifdef __CUDA_ARCH__
#define VM_SQRTF sqrtf
#define VM_SQRT sqrt
#else
#define VM_SQRTF __builtin_sqrtf
#define VM_SQRT __builtin_sqrt
#endif
#define VM_INFF __builtin_inff()
#define VM_INF __builtin_inf()
#define VM_NANF __builtin_nanf("")
#define VM_NAN __builtin_nan("")

VM uint32_t vm_bitsf(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
VM float vm_floatf(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
VM uint64_t vm_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
VM double vm_float(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }
VM float vm_absf(float x) { return vm_floatf(vm_bitsf(x) & 0x7fffffffu); }
VM double vm_abs(double x) { return vm_float(vm_bits(x) & 0x7fffffffffffffffu); }
VM float vm_signedf(float x, float s) { return vm_floatf(vm_bitsf(x) | (vm_bitsf(s) & 0x80000000u)); } /* x >= 0 */
VM double vm_signed(double x, double s) { return vm_float(vm_bits(x) | (vm_bits(s) & 0x8000000000000000u)); }

/* Adding and subtracting 1.5 * 2^23 rounds to an integer, whose bits are the lowest ones of the sum. */
#define VM_MAGICF 0x1.8p23f
#define VM_MAGIC 0x1.8p52

/* p * 2^n in two steps, since n may leave the normal range: the second multiplication overflows or rounds to a
   subnormal. With the exponent's bias added to the magic number the low bits of the sum are the biased exponent. */
VM float vm_scalef(float p, float n) {
    float half = VM_FMAF(n, 0.5f, VM_MAGICF + 127.0f),
          rest = (n - (half - (VM_MAGICF + 127.0f))) + (VM_MAGICF + 127.0f);
    return p * vm_floatf(vm_bitsf(half) << 23) * vm_floatf(vm_bitsf(rest) << 23);
}
VM double vm_scale(double p, double n) {
    double half = VM_FMA(n, 0.5, VM_MAGIC + 1023.0), rest = (n - (half - (VM_MAGIC + 1023.0))) + (VM_MAGIC + 1023.0);
    return p * vm_float(vm_bits(half) << 52) * vm_float(vm_bits(rest) << 52);
}

/* ---- exp: e^x = 2^n e^r, |r| <= log(2) / 2 ----
   n is clamped as the integer that stands in the sum's bits: one instruction where gcc makes four of a float's `?:`.
   Above, r grows with x and the result is infinite; below, p is made zero (a product that underflows costs 150
   cycles). */

/* e^r - 1 for r = x - n log(2) */
VM float vm_exp_restf(float x, float n) {
    float r = VM_FMAF(n, -0x1.63p-1f, x); /* 355 / 512: n times it is exact */
    r = VM_FMAF(n, 0x1.bd0106p-13f, r);
    float p = VM_FMAF(0x1.6a2464p-10f, r, 0x1.1239e2p-7f);
    p = VM_FMAF(p, r, 0x1.5558f2p-5f);
    p = VM_FMAF(p, r, 0x1.555492p-3f);
    p = VM_FMAF(p, r, 0x1.fffffcp-2f);
    return VM_FMAF(p, r * r, r);
}
VM float vm_expf(float x) {
    int32_t i = (int32_t)vm_bitsf(VM_FMAF(x, 0x1.715476p+0f, VM_MAGICF));
    i = i > 0x4b400000 + 129 ? 0x4b400000 + 129 : i;
    i = i < 0x4b400000 - 151 ? 0x4b400000 - 151 : i;
    float n = vm_floatf((uint32_t)i) - VM_MAGICF;
    float p = vm_exp_restf(x, n) + 1.0f;
    return vm_scalef(x < -104.0f ? 0.0f : p, n);
}
/* The same bits for |x| < 87, where 2^n is normal. */
VM float vm_exp_boundedf(float x) {
    float t = VM_FMAF(x, 0x1.715476p+0f, VM_MAGICF + 127.0f);
    return (vm_exp_restf(x, t - (VM_MAGICF + 127.0f)) + 1.0f) * vm_floatf(vm_bitsf(t) << 23);
}

/* For x <= 0, or a little above, as in a softmax: two thirds of the work. The same bits down to -87, and 0 below. */
VM float vm_exp_fallingf(float x) {
    float r = vm_exp_boundedf(x < -87.0f ? -87.0f : x);
    return x < -87.0f ? 0.0f : r;
}

/* e^x - 1 = 2 (2^(n-1) (e^r - 1) + 2^(n-1) - 1/2): 2^n alone would be too large for the largest x. */
VM float vm_expm1f(float x) {
    int32_t i = (int32_t)vm_bitsf(VM_FMAF(x, 0x1.715476p+0f, VM_MAGICF));
    i = i > 0x4b400000 + 129 ? 0x4b400000 + 129 : i;
    i = i < 0x4b400000 - 60 ? 0x4b400000 - 60 : i;
    float n = vm_floatf((uint32_t)i) - VM_MAGICF, half = vm_floatf((uint32_t)(i - 0x4b400000 + 126) << 23);
    float r = 2.0f * VM_FMAF(vm_exp_restf(x, n), half, half - 0.5f);
    r = x < -20.0f ? -1.0f : r;
    r = x > 89.0f ? VM_INFF : r;
    return x == 0.0f ? x : r;
}

/* e^r - 1 for r = x + low - n log(2) */
VM double vm_exp_rest(double x, double low, double n) {
    double r = VM_FMA(n, -0x1.62e42fee00000p-1, x); /* 33 bits: n times it is exact */
    r = VM_FMA(n, -0x1.a39ef35793c76p-33, r) + low;
    double p = VM_FMA(0x1.ad7f88b9dd914p-26, r, 0x1.28ad731740566p-22);
    p = VM_FMA(p, r, 0x1.71df253f8af97p-19);
    p = VM_FMA(p, r, 0x1.a0199a0c19ccfp-16);
    p = VM_FMA(p, r, 0x1.a01a012a61a12p-13);
    p = VM_FMA(p, r, 0x1.6c16c1842a2ddp-10);
    p = VM_FMA(p, r, 0x1.1111111127bc1p-7);
    p = VM_FMA(p, r, 0x1.555555555087cp-5);
    p = VM_FMA(p, r, 0x1.55555555554fap-3);
    p = VM_FMA(p, r, 0x1.000000000000ap-1);
    return VM_FMA(p, r * r, r);
}
/* e^(x + low) for a small `low`: pow needs more bits of the exponent than a double has */
VM double vm_exp2parts(double x, double low) {
    int64_t i = (int64_t)vm_bits(VM_FMA(x, 0x1.71547652b82fep+0, VM_MAGIC));
    i = i > 0x4338000000000000 + 1025 ? 0x4338000000000000 + 1025 : i;
    i = i < 0x4338000000000000 - 1077 ? 0x4338000000000000 - 1077 : i;
    double n = vm_float((uint64_t)i) - VM_MAGIC;
    double p = vm_exp_rest(x, low, n) + 1.0;
    return vm_scale(x < -746.0 ? 0.0 : p, n);
}
VM double vm_exp(double x) { return vm_exp2parts(x, 0.0); }
VM double vm_exp_falling(double x) { return vm_exp(x); }

VM double vm_expm1(double x) {
    int64_t i = (int64_t)vm_bits(VM_FMA(x, 0x1.71547652b82fep+0, VM_MAGIC));
    i = i > 0x4338000000000000 + 1025 ? 0x4338000000000000 + 1025 : i;
    i = i < 0x4338000000000000 - 100 ? 0x4338000000000000 - 100 : i;
    double n = vm_float((uint64_t)i) - VM_MAGIC, half = vm_float((uint64_t)(i - 0x4338000000000000 + 1022) << 52);
    double r = 2.0 * VM_FMA(vm_exp_rest(x, 0.0, n), half, half - 0.5);
    r = x < -40.0 ? -1.0 : r;
    r = x > 710.0 ? VM_INF : r;
    return x == 0.0 ? x : r;
}

/* ---- log: x = 2^k m, m in [sqrt(1/2), sqrt(2)) ---- */

VM float vm_logf(float x) {
    float up = x < 0x1p-126f ? x * 0x1p23f : x; /* subnormals become normal */
    float less = x < 0x1p-126f ? -23.0f : 0.0f;
    uint32_t i = vm_bitsf(up) + (0x3f800000u - 0x3f3504f3u);
    float k = (float)((int32_t)(i >> 23) - 127) + less;
    float f = vm_floatf((i & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = VM_FMAF(0x1.145780p-4f, f, -0x1.de3bdep-4f);
    p = VM_FMAF(p, f, 0x1.e6f052p-4f);
    p = VM_FMAF(p, f, -0x1.fc220ap-4f);
    p = VM_FMAF(p, f, 0x1.23376ap-3f);
    p = VM_FMAF(p, f, -0x1.555c4ep-3f);
    p = VM_FMAF(p, f, 0x1.99a4b6p-3f);
    p = VM_FMAF(p, f, -0x1.000006p-2f);
    p = VM_FMAF(p, f, 0x1.555548p-2f);
    float z = f * f;
    p = VM_FMAF(p * z, f, k * -0x1.bd0106p-13f);
    p = VM_FMAF(z, -0.5f, p) + f;
    p = VM_FMAF(k, 0x1.63p-1f, p);
    p = x < VM_INFF ? p : x;
    return x > 0.0f ? p : (x == 0.0f ? -VM_INFF : VM_NANF);
}

/* k (as a double) and f = m - 1 */
VM double vm_log_split(double x, double *f) {
    double up = x < 0x1p-1022 ? x * 0x1p52 : x;
    double less = x < 0x1p-1022 ? 0x1p52 + 1023.0 + 52.0 : 0x1p52 + 1023.0;
    uint64_t i = vm_bits(up) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    *f = vm_float((i & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    return vm_float((i >> 52) | 0x4330000000000000u) - less; /* 2^52 + integer, read as a double */
}
VM double vm_log_special(double x, double r) {
    r = x < VM_INF ? r : x;
    return x > 0.0 ? r : (x == 0.0 ? -VM_INF : VM_NAN);
}

VM double vm_log(double x) {
    double f, k = vm_log_split(x, &f);
    double s = f / (2.0 + f), z = s * s, h = 0.5 * f * f; /* log(1 + f) = 2 atanh(s) */
    double p = VM_FMA(0x1.2f0563e28e748p-3, z, 0x1.39a1bad676fe0p-3);
    p = VM_FMA(p, z, 0x1.74663ee58004cp-3);
    p = VM_FMA(p, z, 0x1.c71c520974956p-3);
    p = VM_FMA(p, z, 0x1.24924941f0fb3p-2);
    p = VM_FMA(p, z, 0x1.999999997fdbcp-2);
    p = VM_FMA(p, z, 0x1.5555555555592p-1);
    p = VM_FMA(s, VM_FMA(p, z, h), k * 0x1.a39ef35793c76p-33);
    return vm_log_special(x, VM_FMA(k, 0x1.62e42fee00000p-1, f - (h - p)));
}

/* log(1 + x): adds the rounding error of 1 + x back, to first order. */
VM float vm_log1pf(float x) {
    float u = 1.0f + x, lost = (x - (u - 1.0f)) / u;
    lost = u > 0.0f ? (u < VM_INFF ? lost : 0.0f) : 0.0f;
    return x == 0.0f ? x : vm_logf(u) + lost;
}
VM double vm_log1p(double x) {
    double u = 1.0 + x, lost = (x - (u - 1.0)) / u;
    lost = u > 0.0 ? (u < VM_INF ? lost : 0.0) : 0.0;
    return x == 0.0 ? x : vm_log(u) + lost;
}
/* Exact for powers of two. */
VM double vm_log2(double x) {
    double f, k = vm_log_split(x, &f);
    return vm_log_special(x, VM_FMA(vm_log(1.0 + f), 0x1.71547652b82fep+0, k));
}
VM float vm_log2f(float x) {
    float up = x < 0x1p-126f ? x * 0x1p23f : x, less = x < 0x1p-126f ? -23.0f : 0.0f;
    uint32_t i = vm_bitsf(up) + (0x3f800000u - 0x3f3504f3u);
    float k = (float)((int32_t)(i >> 23) - 127) + less;
    float r = VM_FMAF(vm_logf(vm_floatf((i & 0x7fffffu) + 0x3f3504f3u)), 0x1.715476p+0f, k);
    r = x < VM_INFF ? r : x;
    return x > 0.0f ? r : (x == 0.0f ? -VM_INFF : VM_NANF);
}
VM double vm_log10(double x) { return vm_log(x) * 0x1.bcb7b1526e50ep-2; }
VM float vm_log10f(float x) { return vm_logf(x) * 0x1.bcb7b2p-2f; }

/* ---- tanh, sigmoid ---- */

VM float vm_tanhf(float x) {
    float a = vm_absf(x), z = x * x;
    float p = VM_FMAF(-0x1.76ac26p-8f, z, 0x1.5256dcp-6f);
    p = VM_FMAF(p, z, -0x1.b8444ap-5f);
    p = VM_FMAF(p, z, 0x1.110768p-3f);
    p = VM_FMAF(p, z, -0x1.555534p-2f);
    p = VM_FMAF(p * z, a, a);
    float q = 1.0f - 2.0f / (vm_exp_boundedf(a > 40.0f ? 80.0f : a + a) + 1.0f);
    return vm_signedf(a < 0.625f ? p : q, x);
}
VM double vm_tanh(double x) {
    double a = vm_abs(x), z = x * x;
    double p = VM_FMA(0x1.966361d50eb13p-18, z, -0x1.faf964a09daa7p-16);
    p = VM_FMA(p, z, 0x1.8027da504abb6p-14);
    p = VM_FMA(p, z, -0x1.f116977607643p-13);
    p = VM_FMA(p, z, 0x1.350bcc5c4ff1dp-11);
    p = VM_FMA(p, z, -0x1.7d9c3a0f76a95p-10);
    p = VM_FMA(p, z, 0x1.d6d35aa3e3fc7p-9);
    p = VM_FMA(p, z, -0x1.226e32d11c475p-7);
    p = VM_FMA(p, z, 0x1.664f4870bff25p-6);
    p = VM_FMA(p, z, -0x1.ba1ba1b9d10edp-5);
    p = VM_FMA(p, z, 0x1.1111111110c38p-3);
    p = VM_FMA(p, z, -0x1.5555555555552p-2);
    p = VM_FMA(p * z, a, a);
    double q = 1.0 - 2.0 / (vm_exp(a + a) + 1.0);
    return vm_signed(a < 0.625 ? p : q, x);
}

/* Uses e^-|x|, which cannot overflow and keeps subnormal results for very negative x. */
VM float vm_sigmoidf(float x) {
    float e = vm_expf(-vm_absf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
VM double vm_sigmoid(double x) {
    double e = vm_exp(-vm_abs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* tanh(log(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); 1 beyond 20 */
VM float vm_tanh_softplusf(float x) {
    float e = vm_expf(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);
    return n / (n + 2.0f);
}
VM double vm_tanh_softplus(double x) {
    double e = vm_exp(x > 20.0 ? 20.0 : x), n = e * (e + 2.0);
    return n / (n + 2.0);
}

/* ---- erf: x + x P(x^2) near zero, 1 - exp(-Q(|x|)) beyond ---- */

VM float vm_erff(float x) {
    float a = vm_absf(x), z = x * x, t = a > 4.0f ? 4.0f : a;
    float p = VM_FMAF(0x1.4ae484p-14f, z, -0x1.a485d0p-11f);
    p = VM_FMAF(p, z, 0x1.5419f2p-8f);
    p = VM_FMAF(p, z, -0x1.b7fbb4p-6f);
    p = VM_FMAF(p, z, 0x1.ce2d20p-4f);
    p = VM_FMAF(p, z, -0x1.81273ep-2f);
    p = VM_FMAF(p, z, 0x1.06eba8p-3f);
    p = VM_FMAF(p, a, a);
    float q = VM_FMAF(-0x1.98d37cp-13f, t, 0x1.8da0dap-9f);
    q = VM_FMAF(q, t, -0x1.6b8e3ap-6f);
    q = VM_FMAF(q, t, 0x1.a96518p-4f);
    q = VM_FMAF(q, t, 0x1.4647bap-1f);
    q = VM_FMAF(q, t, 0x1.20ac2ep+0f);
    q = VM_FMAF(q, t, 0x1.b22da6p-13f);
    return vm_signedf(a < 0.95f ? p : 1.0f - vm_exp_boundedf(-q), x);
}
VM double vm_erf(double x) {
    double a = vm_abs(x), z = x * x, t = a > 6.0 ? 6.0 : a;
    double p = VM_FMA(0x1.062759c5be8ecp-34, z, -0x1.38ac2290d3965p-30);
    p = VM_FMA(p, z, 0x1.f7b99d7c8709ap-27);
    p = VM_FMA(p, z, -0x1.5f1f40faeea79p-23);
    p = VM_FMA(p, z, 0x1.b9df305cad6f7p-20);
    p = VM_FMA(p, z, -0x1.f4d1e434bc0cfp-17);
    p = VM_FMA(p, z, 0x1.f9a321e4b84f9p-14);
    p = VM_FMA(p, z, -0x1.c02db3db49762p-11);
    p = VM_FMA(p, z, 0x1.565bcd0dbd921p-8);
    p = VM_FMA(p, z, -0x1.b82ce31284f38p-6);
    p = VM_FMA(p, z, 0x1.ce2f21a042b34p-4);
    p = VM_FMA(p, z, -0x1.812746b0379e6p-2);
    p = VM_FMA(p, z, 0x1.06eba8214db69p-3);
    p = VM_FMA(p, a, a);
    double q = VM_FMA(-0x1.2475c82bfba98p-40, t, 0x1.a1f537802eb96p-35);
    q = VM_FMA(q, t, -0x1.178f8533039f6p-30);
    q = VM_FMA(q, t, 0x1.d09dd51b1c8bbp-27);
    q = VM_FMA(q, t, -0x1.0c121bff36ccfp-23);
    q = VM_FMA(q, t, 0x1.c5c1f9ec2fc65p-21);
    q = VM_FMA(q, t, -0x1.20afcae02e2bdp-18);
    q = VM_FMA(q, t, 0x1.138185c957b01p-16);
    q = VM_FMA(q, t, -0x1.778e522ea65a2p-15);
    q = VM_FMA(q, t, 0x1.248d7b4b7770dp-14);
    q = VM_FMA(q, t, 0x1.8183c877fb83fp-15);
    q = VM_FMA(q, t, -0x1.5107e6a892420p-11);
    q = VM_FMA(q, t, 0x1.d03cee8748605p-10);
    q = VM_FMA(q, t, -0x1.27f0aec8c3e77p-12);
    q = VM_FMA(q, t, -0x1.388e8b81d6cadp-6);
    q = VM_FMA(q, t, 0x1.a4d9a9b627ddap-4);
    q = VM_FMA(q, t, 0x1.45f4328dd95f5p-1);
    q = VM_FMA(q, t, 0x1.20dd5565508e6p+0);
    q = VM_FMA(q, t, 0x1.8bf84ae9cebb9p-23);
    return vm_signed(a < 1.0 ? p : 1.0 - vm_exp(-q), x);
}

/* ---- the normal distribution's Phi, and the slope of x Phi(x), Phi(x) + x Phi'(x): 1/2 + x P(x^2) / Q(x^2), one
   division in place of erf and exp. In float at most 1.8e-7 and 2.2e-7 off. ---- */

VM float vm_phif(float x) {
    float z = x * x;
    float p = VM_FMAF(0x1.86d4a2p-26f, z, 0x1.aa48dp-18f);
    p = VM_FMAF(p, z, 0x1.620e5cp-13f);
    p = VM_FMAF(p, z, 0x1.32878ep-8f);
    p = VM_FMAF(p, z, 0x1.15526ep-5f);
    p = VM_FMAF(p, z, 0x1.98845p-2f);
    float q = VM_FMAF(0x1.4173dcp-20f, z, 0x1.34e6ecp-14f);
    q = VM_FMAF(q, z, 0x1.edff7ep-10f);
    q = VM_FMAF(q, z, 0x1.d555d2p-6f);
    q = VM_FMAF(q, z, 0x1.018f0cp-2f);
    q = VM_FMAF(q, z, 1.0f);
    return z < 30.25f ? VM_FMAF(x, p / q, 0.5f) : x < 0.0f ? 0.0f : 1.0f;
}
VM double vm_phi(double x) { return 0.5 * (1.0 + vm_erf(x * 0.7071067811865476)); }
VM float vm_gelu_slopef(float x) {
    float z = x * x;
    float p = VM_FMAF(0x1.323e86p-26f, z, 0x1.11b30cp-20f);
    p = VM_FMAF(p, z, 0x1.1e3a72p-15f);
    p = VM_FMAF(p, z, 0x1.f4d99ap-13f);
    p = VM_FMAF(p, z, 0x1.c38e6ap-7f);
    p = VM_FMAF(p, z, -0x1.4dd75cp-6f);
    p = VM_FMAF(p, z, 0x1.988452p-1f);
    float q = VM_FMAF(0x1.70a51ap-30f, z, 0x1.892aep-22f);
    q = VM_FMAF(q, z, 0x1.69dd8ap-17f);
    q = VM_FMAF(q, z, 0x1.0ad034p-12f);
    q = VM_FMAF(q, z, 0x1.0b093cp-8f);
    q = VM_FMAF(q, z, 0x1.6f953p-5f);
    q = VM_FMAF(q, z, 0x1.3b2ebp-2f);
    q = VM_FMAF(q, z, 1.0f);
    return z < 37.21f ? VM_FMAF(x, p / q, 0.5f) : x < 0.0f ? 0.0f : x > 0.0f ? 1.0f : x;
}
VM double vm_gelu_slope(double x) { return vm_phi(x) + x * 0.3989422804014327 * vm_exp(-0.5 * (x * x)); }

/* ---- sin, cos: x = n pi/2 + r; the quadrant n mod 4 picks the polynomial and the sign ---- */

VM double vm_clamp_quadrant(double r) {
    r = r > 0.8 ? 0.8 : r;
    return r < -0.8 ? -0.8 : r;
}

VM float vm_quadrantf(float r, uint32_t q) {
    float z = r * r;
    float s = VM_FMAF(0x1.6cd738p-19f, z, -0x1.a00f98p-13f);
    s = VM_FMAF(s, z, 0x1.111108p-7f);
    s = VM_FMAF(s, z, -0x1.555556p-3f);
    s = VM_FMAF(s * z, r, r);
    float c = VM_FMAF(-0x1.2429fep-22f, z, 0x1.a0111cp-16f);
    c = VM_FMAF(c, z, -0x1.6c16b8p-10f);
    c = VM_FMAF(c, z, 0x1.555556p-5f);
    c = VM_FMAF(c, z * z, VM_FMAF(z, -0.5f, 1.0f));
    float v = q & 1u ? c : s;
    return vm_floatf(vm_bitsf(v) ^ ((q & 2u) << 30));
}
/* turn: 0 for sin, 1 for cos. The reduction is in double. */
VM float vm_sincosf(float x, uint32_t turn) {
    double d = (double)x, t = d * 0x1.45f306dc9c883p-1 + VM_MAGIC, n = t - VM_MAGIC;
    double rd = (d - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a626331p-34;
    return vm_quadrantf((float)vm_clamp_quadrant(rd), (uint32_t)vm_bits(t) + turn);
}
/* For |x| < VM_NEARF in float, with half the work. With FMA the first part is subtracted exactly, since n has 15
   bits. */
#define VM_NEARF 32768.0f
VM float vm_sincos_nearf(float x, uint32_t turn) {
    float t = VM_FMAF(x, 0x1.45f306p-1f, VM_MAGICF), n = t - VM_MAGICF;
    float r = VM_FMAF(n, -0x1.921fb6p+0f, x);
    r = VM_FMAF(n, 0x1.777a5cp-25f, r);
    r = VM_FMAF(n, 0x1.ee59dap-50f, r);
    r = vm_quadrantf(r, vm_bitsf(t) + turn);
    return x == 0.0f && !turn ? x : r;
}
VM double vm_sincos(double x, uint64_t turn) {
    double t = x * 0x1.45f306dc9c883p-1 + VM_MAGIC, n = t - VM_MAGIC;
    double w = x - n * 0x1.921fb54400000p+0; /* 33 bits each: exact for n < 2^20 */
    double m = n * 0x1.0b4611a600000p-34, r = w - m;
    double low = ((w - r) - m) - n * 0x1.3198a2e037073p-69;
    r = vm_clamp_quadrant(r);
    low = vm_abs(low) < 1e-8 ? low : 0.0; /* out of range or NaN: r says it all */
    double z = r * r;
    uint64_t q = vm_bits(t) + turn;
    double s = VM_FMA(0x1.5d92461d942a5p-33, z, -0x1.ae5e63cb99183p-26);
    s = VM_FMA(s, z, 0x1.71de3574b8bbdp-19);
    s = VM_FMA(s, z, -0x1.a01a019c0e4bdp-13);
    s = VM_FMA(s, z, 0x1.111111110f861p-7);
    s = VM_FMA(s, z, -0x1.5555555555549p-3);
    s = VM_FMA(s * z, r, low * (1.0 - 0.5 * z)) + r;
    double c = VM_FMA(-0x1.8fadd085d8478p-37, z, 0x1.1ee9ea6d23553p-29);
    c = VM_FMA(c, z, -0x1.27e4f807d708fp-22);
    c = VM_FMA(c, z, 0x1.a01a019caef52p-16);
    c = VM_FMA(c, z, -0x1.6c16c16c15162p-10);
    c = VM_FMA(c, z, 0x1.555555555554cp-5);
    double h = 0.5 * z, top = 1.0 - h;
    c = VM_FMA(c, z * z, ((1.0 - top) - h) - r * low) + top;
    double v = q & 1u ? c : s;
    return vm_float(vm_bits(v) ^ ((q & 2u) << 62));
}
VM float vm_sinf(float x) { return x == 0.0f ? x : vm_sincosf(x, 0); }
VM float vm_cosf(float x) { return vm_sincosf(x, 1); }
VM double vm_sin(double x) { return x == 0.0 ? x : vm_sincos(x, 0); }
VM double vm_cos(double x) { return vm_sincos(x, 1); }

/* ---- the inverse functions by one arctangent, the hyperbolic ones by expm1 and log1p; float goes through double where
   that is simpler ---- */

/* Reduces |x| below tan(pi / 8) by pi / 2 - atan(1 / x) and pi / 4 + atan((x - 1) / (x + 1)), then evaluates
   x + x z P(z) / Q(z), z = x^2 (Moshier, Methods and Programs for Mathematical Functions, 1989). */
VM double vm_atan(double x) {
    double a = vm_abs(x), big = a > 2.414213562373095 ? 1.0 : 0.0, mid = a > 0.66 ? 1.0 - big : 0.0;
    double t = a > 2.414213562373095 ? -1.0 / a : a > 0.66 ? (a - 1.0) / (a + 1.0) : a, z = t * t;
    double p = VM_FMA(-8.750608600031904122785e-1, z, -1.615753718733365076637e1);
    p = VM_FMA(p, z, -7.500855792314704667340e1);
    p = VM_FMA(p, z, -1.228866684490136173410e2);
    p = VM_FMA(p, z, -6.485021904942025371773e1);
    double q = z + 2.485846490142306297962e1;
    q = VM_FMA(q, z, 1.650270098316988542046e2);
    q = VM_FMA(q, z, 4.328810604912902668951e2);
    q = VM_FMA(q, z, 4.853903996359136964868e2);
    q = VM_FMA(q, z, 1.945506571482613964425e2);
    double r = VM_FMA(t, z * p / q, t) + 6.123233995736765886130e-17 * (big + 0.5 * mid);
    r += big * 1.5707963267948966 + mid * 0.7853981633974483;
    return vm_signed(a != a ? a : r, x);
}
VM double vm_asin(double x) { return 2.0 * vm_atan(x / (1.0 + VM_SQRT((1.0 - x) * (1.0 + x)))); }
VM double vm_acos(double x) { return 2.0 * vm_atan(VM_SQRT((1.0 - x) / (1.0 + x))); }
VM double vm_sinh(double x) {
    double a = vm_abs(x), e = vm_expm1(a), h = vm_exp(0.5 * a);
    return vm_signed(a > 30.0 ? 0.5 * h * h : 0.5 * (e + e / (e + 1.0)), x);
}
VM double vm_cosh(double x) {
    double a = vm_abs(x), e = vm_exp(a), h = vm_exp(0.5 * a);
    return a > 30.0 ? 0.5 * h * h : 0.5 * (e + 1.0 / e);
}
VM double vm_asinh(double x) {
    double a = vm_abs(x), z = a * a;
    return vm_signed(a > 1e9 ? vm_log(a) + 0.6931471805599453 : vm_log1p(a + z / (1.0 + VM_SQRT(1.0 + z))), x);
}
VM double vm_acosh(double x) {
    double t = x - 1.0;
    double r = x > 1e9 ? vm_log(x) + 0.6931471805599453 : vm_log1p(t + VM_SQRT(t * (t + 2.0)));
    return x < 1.0 ? VM_NAN : r;
}
VM double vm_atanh(double x) {
    double a = vm_abs(x);
    return vm_signed(0.5 * vm_log1p(2.0 * a / (1.0 - a)), x);
}
VM double vm_tan(double x) { return x == 0.0 ? x : vm_sincos(x, 0) / vm_sincos(x, 1); }
/* The angle of the point (x, y), y first. */
VM double vm_atan2(double y, double x) {
    double ax = vm_abs(x), ay = vm_abs(y), r = ax == ay ? 0.7853981633974483 : vm_atan(ay / ax);
    r = ay == 0.0 ? 0.0 : r;
    r = vm_bits(x) >> 63 ? 3.141592653589793 - r : r;
    r = vm_signed(r, y);
    return x != x ? x : y != y ? y : r;
}
/* log(e^x + e^y) */
VM double vm_logaddexp(double x, double y) {
    double top = x > y ? x : y, r = top + vm_log1p(vm_exp(-vm_abs(x - y)));
    return x != x ? x : y != y ? y : vm_abs(top) == VM_INF ? top : r;
}
#define VM_BY_DOUBLE(name) VM float vm_##name##f(float x) { return (float)vm_##name((double)x); }
VM_BY_DOUBLE(atan)
VM_BY_DOUBLE(asin)
VM_BY_DOUBLE(acos)
VM_BY_DOUBLE(sinh)
VM_BY_DOUBLE(cosh)
VM_BY_DOUBLE(asinh)
VM_BY_DOUBLE(acosh)
VM_BY_DOUBLE(atanh)
VM_BY_DOUBLE(tan)
/* One division: the smaller by the larger, after a turn by pi / 4 if the quotient would be above tan(pi / 8). */
VM float vm_atan2f(float y, float x) {
    float ax = vm_absf(x), ay = vm_absf(y), more = ax > ay ? ax : ay, less = ax > ay ? ay : ax;
    float by = more > 0x1p126f ? 0.5f : 1.0f; /* no sum overflows */
    less *= by, more *= by;
    uint32_t turned = less > 0.41421356f * more ? 1u : 0u;
    float t = (turned ? less - more : less) / (turned ? less + more : more), z = t * t;
    float p = VM_FMAF(-0x1.f2566ep-5f, z, 0x1.b20238p-4f);
    p = VM_FMAF(p, z, -0x1.23b6bcp-3f);
    p = VM_FMAF(p, z, 0x1.9991aep-3f);
    p = VM_FMAF(p, z, -0x1.55554ap-2f);
    float r = VM_FMAF(p * z, t, t);
    r = turned ? (r - 0x1.777a5cp-26f) + 0x1.921fb6p-1f : r;
    r = ax == ay ? 0x1.921fb6p-1f : r;
    r = ay > ax ? (-0x1.777a5cp-25f - r) + 0x1.921fb6p+0f : r;
    r = ay == 0.0f ? 0.0f : r;
    r = vm_bitsf(x) >> 31 ? (-0x1.777a5cp-24f - r) + 0x1.921fb6p+1f : r;
    r = vm_signedf(r, y);
    return x != x ? x : y != y ? y : r;
}
VM float vm_logaddexpf(float x, float y) { return (float)vm_logaddexp((double)x, (double)y); }

/* ---- pow: e^(y log|x|), the logarithm in two doubles for double ---- */

/* a * b = result + *e exactly */
VM double vm_mul2(double a, double b, double *e) {
    double p = a * b;
#if VM_HAS_FMA
    *e = VM_FMA(a, b, -p);
#else
    double ta = a * 0x1.000002p27, tb = b * 0x1.000002p27; /* Veltkamp's split */
    double ah = ta - (ta - a), al = a - ah, bh = tb - (tb - b), bl = b - bh;
    *e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
    return p;
}

/* Signs and special values of x^y, given r = |x|^y, for a float type T with suffix f and bits U. BIG: from this number
   on all numbers are integers. */
#define VM_POW_SPECIAL(T, f, U, SIGN, BIG, INFINITE, NONE)                                      \
    VM T vm_pow_special##f(T x, T y, T r) {                                                     \
        T ax = vm_abs##f(x), ay = vm_abs##f(y), h = ay * (T)0.5;                                \
        T ry = ay < BIG ? (ay + BIG) - BIG : ay, rh = h < BIG ? (h + BIG) - BIG : h;            \
        U whole = ry == ay ? 1u : 0u, even = rh == h ? 1u : 0u;                                 \
        U negative = vm_bits##f(x) >> SIGN;                                                     \
        r = ax == 1 ? (y == y ? 1 : y) : r; /* not 0 * infinity */                              \
        r = x < 0 ? (ax < INFINITE ? (whole ? r : NONE) : r) : r;                               \
        r = vm_float##f(vm_bits##f(r) ^ ((negative & whole & (1u - even)) << SIGN));            \
        r = x == 1 ? 1 : r;                                                                     \
        return y == 0 ? 1 : r;                                                                  \
    }
VM_POW_SPECIAL(double, , uint64_t, 63, 0x1p52, VM_INF, VM_NAN)
VM_POW_SPECIAL(float, f, uint32_t, 31, 0x1p23f, VM_INFF, VM_NANF)

/* x^y in float needs a logarithm and an exponential of about 40 bits. */
VM float vm_powf(float x, float y) {
    double ax = vm_abs((double)x);
    uint64_t i = vm_bits(ax) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
    double f = vm_float((i & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
    double k = vm_float((i >> 52) | 0x4330000000000000u) - (0x1p52 + 1023.0);
    double s = f / (2.0 + f), z = s * s; /* log(1 + f) = 2 atanh(s) */
    double p = VM_FMA(0x1.9115a99c25509p-3, z, 0x1.c62b12d1b5e56p-3);
    p = VM_FMA(p, z, 0x1.249411f3eb9b2p-2);
    p = VM_FMA(p, z, 0x1.999996a93b595p-2);
    p = VM_FMA(p, z, 0x1.555555561e486p-1);
    double t = (double)y * vm_log_special(ax, VM_FMA(k, 0x1.62e42fefa39efp-1, VM_FMA(s * z, p, s + s)));
    t = t > 200.0 ? 200.0 : t; /* beyond float's range either way */
    t = t < -200.0 ? -200.0 : t;
    double m = VM_FMA(t, 0x1.71547652b82fep+0, VM_MAGIC + 1023.0);
    double r = VM_FMA(m - (VM_MAGIC + 1023.0), -0x1.62e42fefa39efp-1, t);
    double q = VM_FMA(0x1.9f08a34e52007p-13, r, 0x1.6d8cf79b2dceap-10);
    q = VM_FMA(q, r, 0x1.11127094cadc5p-7);
    q = VM_FMA(q, r, 0x1.55548dd4b2beap-5);
    q = VM_FMA(q, r, 0x1.555554435e910p-3);
    q = VM_FMA(q, r, 0x1.0000003a1c869p-1);
    return vm_pow_specialf(x, y, (float)((VM_FMA(q, r * r, r) + 1.0) * vm_float(vm_bits(m) << 52)));
}

VM double vm_pow(double x, double y) {
    double ax = vm_abs(x), f, k = vm_log_split(ax, &f), e;
    /* s = f / (2 + f) = sh + sl */
    double dh = 2.0 + f, dl = f - (dh - 2.0), sh = f / dh;
    double back = vm_mul2(sh, dh, &e), sl = (((f - back) - e) - sh * dl) / dh;
    /* log m = 2 s + s z (2/3 + z P(z)), z = s^2 */
    double zh = vm_mul2(sh, sh, &e), zl = e + 2.0 * sh * sl;
    double p = VM_FMA(0x1.0e4a305927202p-3, zh, 0x1.0f7f209a37f65p-3);
    p = VM_FMA(p, zh, 0x1.3b1ef462e293bp-3);
    p = VM_FMA(p, zh, 0x1.745ce9b6b4f82p-3);
    p = VM_FMA(p, zh, 0x1.c71c722de39ebp-3);
    p = VM_FMA(p, zh, 0x1.2492492457802p-2);
    p = VM_FMA(p, zh, 0x1.9999999999b33p-2);
    double uh = vm_mul2(zh, 0x1.5555555555555p-1, &e);
    double ul = e + zh * 0x1.5555555555555p-55 + zl * 0x1.5555555555555p-1 + zh * zh * p;
    double th = vm_mul2(sh, uh, &e), tl = e + sh * ul + sl * uh;
    /* k log 2 + 2 s + t, largest first */
    double a = k * 0x1.62e42fee00000p-1, b = 2.0 * sh, sum = a + b, v = sum - a;
    double low = (a - (sum - v)) + (b - v);
    double sum2 = sum + th, v2 = sum2 - sum;
    low += (sum - (sum2 - v2)) + (th - v2);
    low += tl + 2.0 * sl + k * 0x1.a39ef35793c76p-33;
    double lh = sum2 + low, ll = (sum2 - lh) + low;
    lh = vm_log_special(ax, lh);
    /* times y; if that is infinite, the low part is NaN and not used */
    double wh = vm_mul2(lh, y, &e), wl = e + ll * y;
    wl = vm_abs(wl) < 1.0 ? wl : 0.0;
    return vm_pow_special(x, y, vm_exp2parts(wh, wl));
}

/* ---- the names of unary.def and binary.def ---- */

VM float vm_signf(float x) { return (float)(x > 0.0f) - (float)(x < 0.0f); }
VM double vm_sign(double x) { return (double)(x > 0.0) - (double)(x < 0.0); }
VM float vm_reluf(float x) { return x <= 0.0f ? 0.0f : x; } /* NaN stays */
VM double vm_relu(double x) { return x <= 0.0 ? 0.0 : x; }
VM float vm_maxf(float x, float y) { return x != x ? x : (x > y ? x : y); } /* NaN of either */
VM double vm_max(double x, double y) { return x != x ? x : (x > y ? x : y); }
VM float vm_minf(float x, float y) { return x != x ? x : (x < y ? x : y); }
VM double vm_min(double x, double y) { return x != x ? x : (x < y ? x : y); }

/* Rounds to an integer, ties to even. Numbers beyond 2^23 (double: 2^52) are integers. A zero keeps the sign of x. */
VM float vm_roundf(float x) {
    float a = vm_absf(x), r = (a + 0x1p23f) - 0x1p23f;
    return vm_signedf(a < 0x1p23f ? r : a, x);
}
VM double vm_round(double x) {
    double a = vm_abs(x), r = (a + 0x1p52) - 0x1p52;
    return vm_signed(a < 0x1p52 ? r : a, x);
}
VM float vm_floorf(float x) { float r = vm_roundf(x); return r > x ? r - 1.0f : r; }
VM double vm_floor(double x) { double r = vm_round(x); return r > x ? r - 1.0 : r; }
VM float vm_ceilf(float x) { return -vm_floorf(-x); }
VM double vm_ceil(double x) { return -vm_floor(-x); }
VM float vm_truncf(float x) { return vm_signedf(vm_floorf(vm_absf(x)), x); }
#if defined(__SSE4_1__) && !defined(__CUDACC__) /* one instruction */
VM double vm_trunc(double x) { return __builtin_trunc(x); }
#else
VM double vm_trunc(double x) { return vm_signed(vm_floor(vm_abs(x)), x); }
#endif
VM int64_t vm_whole(int64_t x) { return x; }

#define VM_SIGNED_INT(T, s)                                                   \
    VM T vm_abs_##s(T x) { return (T)(x < 0 ? -x : x); }                      \
    VM T vm_sign_##s(T x) { return (T)((x > 0) - (x < 0)); }                  \
    VM T vm_relu_##s(T x) { return (T)(x > 0 ? x : 0); }
VM_SIGNED_INT(int8_t, i8)
VM_SIGNED_INT(int16_t, i16)
VM_SIGNED_INT(int32_t, i32)
VM_SIGNED_INT(int64_t, i64)
VM uint8_t vm_abs_u8(uint8_t x) { return x; }
VM uint8_t vm_sign_u8(uint8_t x) { return x != 0; }
VM uint8_t vm_relu_u8(uint8_t x) { return x; }
VM int64_t vm_max_int(int64_t x, int64_t y) { return x > y ? x : y; }
VM int64_t vm_min_int(int64_t x, int64_t y) { return x < y ? x : y; }
/* By squaring, modulo 2^64. A negative exponent gives 0, or +-1 for the bases 1 and -1, as in PyTorch. */
VM int64_t vm_pow_int(int64_t x, int64_t y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
    uint64_t r = 1, b = (uint64_t)x;
    for (; y; y >>= 1, b *= b) r *= y & 1 ? b : 1;
    return (int64_t)r;
}

/* The remainder x - q y, rounded once, for an integer q. Exact while q is below 2^53 (float computes in double), 0
   beyond. A zero has the sign of x. */
VM double vm_fmod(double x, double y) {
    double t = x / y, r = VM_FMA_ONCE(-vm_trunc(t), y, x), ax = vm_abs(x), ay = vm_abs(y);
    r = vm_abs(r) >= ay ? r - vm_signed(ay, r) : r; /* the quotient was rounded to the next whole number */
    r = r * x < 0.0 ? r + vm_signed(ay, x) : r;
    r = vm_abs(t) < 0x1p53 ? r : 0.0;
    r = ay < VM_INF ? r : x;
    r = y == 0.0 ? VM_NAN : r;
    r = ax < VM_INF ? r : VM_NAN;
    r = r == 0.0 ? vm_signed(0.0, x) : r;
    return y == y ? r : y;
}
VM double vm_mod(double x, double y) {
    double r = vm_fmod(x, y);
    return r * y < 0.0 ? r + y : r;
}
VM double vm_floordiv(double x, double y) {
    double t = x / y, m = vm_fmod(x, y), q = (x - m) / y;
    q = vm_round(m * y < 0.0 ? q - 1.0 : q);
    q = q == 0.0 ? vm_signed(0.0, t) : q;
    return y == 0.0 ? t : q;
}
VM float vm_fmodf(float x, float y) { return (float)vm_fmod((double)x, (double)y); }
VM float vm_modf(float x, float y) { return (float)vm_mod((double)x, (double)y); }
VM float vm_floordivf(float x, float y) { return (float)vm_floordiv((double)x, (double)y); }
/* The remainder of integers. A divisor 0, which ops/ refuses, gives 0. */
VM int64_t vm_fmod_int(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }
VM int64_t vm_mod_int(int64_t x, int64_t y) {
    int64_t r = vm_fmod_int(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
VM int64_t vm_floordiv_int(int64_t x, int64_t y) {
    if (y == 0) return 0;
    if (y == -1) return -x;
    return x / y - (x % y != 0 && (x < 0) != (y < 0));
}
VM int64_t vm_shl(int64_t x, int64_t y, int bits) { return y < 0 || y >= bits ? 0 : (int64_t)((uint64_t)x << y); }
VM int64_t vm_shr(int64_t x, int64_t y, int bits) { return x >> (y < 0 || y >= bits ? bits - 1 : y); }

#ifdef __cplusplus /* CUDA's: overloads where C has _Generic */
#define VM_OVERLOAD1(fn)                        \
    VM float fn##_of(float x) { return fn##f(x); } \
    VM double fn##_of(double x) { return fn(x); }
#define VM_OVERLOAD2(fn)                                          \
    VM float fn##_of(float x, float y) { return fn##f(x, y); }    \
    VM double fn##_of(double x, double y) { return fn(x, y); }
#define VM_OVERLOAD_INTS1(fn)                             \
    VM uint8_t fn##_of(uint8_t x) { return fn##_u8(x); }  \
    VM int8_t fn##_of(int8_t x) { return fn##_i8(x); }    \
    VM int16_t fn##_of(int16_t x) { return fn##_i16(x); } \
    VM int32_t fn##_of(int32_t x) { return fn##_i32(x); } \
    VM int64_t fn##_of(int64_t x) { return fn##_i64(x); }
#define VM_OVERLOAD_INTS2(fn)                                                \
    template <class I, class J> VM int64_t fn##_of(I x, J y) {               \
        static_assert((I)0.5 == 0 && (J)0.5 == 0, "floats of one type have overloads of their own"); \
        return fn##_int(x, y);                                               \
    }
#define VM_OVERLOAD_WHOLE(fn) \
    template <class I> VM int64_t fn##_of(I x) { return vm_whole(x); }
VM_OVERLOAD1(vm_exp)
VM_OVERLOAD1(vm_log) VM_OVERLOAD1(vm_tanh) VM_OVERLOAD1(vm_sigmoid) VM_OVERLOAD1(vm_erf) VM_OVERLOAD1(vm_sin)
    VM_OVERLOAD1(vm_cos) VM_OVERLOAD1(vm_tan) VM_OVERLOAD1(vm_asin) VM_OVERLOAD1(vm_acos) VM_OVERLOAD1(vm_atan)
        VM_OVERLOAD1(vm_sinh) VM_OVERLOAD1(vm_cosh) VM_OVERLOAD1(vm_asinh) VM_OVERLOAD1(vm_acosh) VM_OVERLOAD1(vm_atanh)
            VM_OVERLOAD1(vm_expm1) VM_OVERLOAD1(vm_log1p) VM_OVERLOAD1(vm_log2) VM_OVERLOAD1(vm_log10)
                VM_OVERLOAD1(vm_tanh_softplus) VM_OVERLOAD1(vm_phi) VM_OVERLOAD1(vm_gelu_slope)
                VM_OVERLOAD2(vm_atan2) VM_OVERLOAD2(vm_logaddexp) VM_OVERLOAD1(vm_floor)
                    VM_OVERLOAD_WHOLE(vm_floor) VM_OVERLOAD1(vm_ceil) VM_OVERLOAD_WHOLE(vm_ceil) VM_OVERLOAD1(vm_trunc)
                        VM_OVERLOAD_WHOLE(vm_trunc) VM_OVERLOAD1(vm_round) VM_OVERLOAD_WHOLE(vm_round)
                            VM_OVERLOAD1(vm_abs) VM_OVERLOAD_INTS1(vm_abs) VM_OVERLOAD1(vm_sign)
                                VM_OVERLOAD_INTS1(vm_sign) VM_OVERLOAD1(vm_relu) VM_OVERLOAD_INTS1(vm_relu)
                                    VM_OVERLOAD2(vm_pow) VM_OVERLOAD_INTS2(vm_pow) VM_OVERLOAD2(vm_max)
                                        VM_OVERLOAD_INTS2(vm_max) VM_OVERLOAD2(vm_min) VM_OVERLOAD_INTS2(vm_min)
                                            VM_OVERLOAD2(vm_mod) VM_OVERLOAD_INTS2(vm_mod) VM_OVERLOAD2(vm_fmod)
                                                VM_OVERLOAD_INTS2(vm_fmod) VM_OVERLOAD2(vm_floordiv)
                                                    VM_OVERLOAD_INTS2(vm_floordiv) VM float vm_sqrt_of(float x) {
    return VM_SQRTF(x);
}
VM double vm_sqrt_of(double x) { return VM_SQRT(x); }
#define VM_FLOAT1(fn, x) fn##_of(x)
#define VM_FLOAT2(fn, x, y) fn##_of(x, y)
#define VM_ANY1(fn, x) fn##_of(x)
#define VM_WHOLE(fn, x) fn##_of(x)
#define VM_ANY2(fn, x, y) fn##_of(x, y)
#define V_SQRT(x) vm_sqrt_of(x)
#else
#define VM_FLOAT1(fn, x) _Generic((x), float: fn##f, double: fn)(x)
#define VM_FLOAT2(fn, x, y) _Generic((x), float: fn##f, double: fn)(x, y)
#define VM_ANY1(fn, x)                                                                                            \
    _Generic((x), float: fn##f, double: fn, uint8_t: fn##_u8, int8_t: fn##_i8, int16_t: fn##_i16,                \
             int32_t: fn##_i32, int64_t: fn##_i64)(x)
#define VM_WHOLE(fn, x) _Generic((x), float: fn##f, double: fn, default: vm_whole)(x)
#define VM_ANY2(fn, x, y) _Generic((x), float: fn##f, double: fn, default: fn##_int)(x, y)
#define V_SQRT(x) _Generic((x), float: VM_SQRTF, double: VM_SQRT)(x)
#endif

#define V_EXP(x) VM_FLOAT1(vm_exp, x)
#define V_LOG(x) VM_FLOAT1(vm_log, x)
#define V_TANH(x) VM_FLOAT1(vm_tanh, x)
#define V_SIGMOID(x) VM_FLOAT1(vm_sigmoid, x)
#define V_ERF(x) VM_FLOAT1(vm_erf, x)
#define V_PHI(x) VM_FLOAT1(vm_phi, x)
#define V_GELU_SLOPE(x) VM_FLOAT1(vm_gelu_slope, x)
#define V_SIN(x) VM_FLOAT1(vm_sin, x)
#define V_COS(x) VM_FLOAT1(vm_cos, x)
#define V_TAN(x) VM_FLOAT1(vm_tan, x)
#define V_ASIN(x) VM_FLOAT1(vm_asin, x)
#define V_ACOS(x) VM_FLOAT1(vm_acos, x)
#define V_ATAN(x) VM_FLOAT1(vm_atan, x)
#define V_SINH(x) VM_FLOAT1(vm_sinh, x)
#define V_COSH(x) VM_FLOAT1(vm_cosh, x)
#define V_ASINH(x) VM_FLOAT1(vm_asinh, x)
#define V_ACOSH(x) VM_FLOAT1(vm_acosh, x)
#define V_ATANH(x) VM_FLOAT1(vm_atanh, x)
#define V_ATAN2(x, y) VM_FLOAT2(vm_atan2, x, y)
#define V_LOGADDEXP(x, y) VM_FLOAT2(vm_logaddexp, x, y)
#define V_EXPM1(x) VM_FLOAT1(vm_expm1, x)
#define V_LOG1P(x) VM_FLOAT1(vm_log1p, x)
#define V_LOG2(x) VM_FLOAT1(vm_log2, x)
#define V_LOG10(x) VM_FLOAT1(vm_log10, x)
#define V_TANH_SOFTPLUS(x) VM_FLOAT1(vm_tanh_softplus, x)
#define V_FLOOR(x) VM_WHOLE(vm_floor, x)
#define V_CEIL(x) VM_WHOLE(vm_ceil, x)
#define V_TRUNC(x) VM_WHOLE(vm_trunc, x)
#define V_ROUND(x) VM_WHOLE(vm_round, x)
#define V_ABS(x) VM_ANY1(vm_abs, x)
#define V_SIGN(x) VM_ANY1(vm_sign, x)
#define V_RELU(x) VM_ANY1(vm_relu, x)
#define V_POW(x, y) VM_ANY2(vm_pow, x, y)
#define V_MAX(x, y) VM_ANY2(vm_max, x, y)
/* NaN if any argument is. Made of selections only, so that loops over it are vectorised. */
#define V_CLAMP(x, y, z) V_AT_MOST(V_AT_LEAST(x, y), z)
#define V_AT_LEAST(x, y) ((((x) < (y)) | ((y) != (y))) ? (y) : (x))
#define V_AT_MOST(x, z) ((((x) > (z)) | ((z) != (z))) ? (z) : (x))
#define V_MOD(x, y) VM_ANY2(vm_mod, x, y)
#define V_FMOD(x, y) VM_ANY2(vm_fmod, x, y)
#define V_FLOORDIV(x, y) VM_ANY2(vm_floordiv, x, y)
#define V_SHL(x, y) vm_shl(x, y, 8 * (int)sizeof(x))
#define V_SHR(x, y) vm_shr(x, y, 8 * (int)sizeof(x))
#define V_MIN(x, y) VM_ANY2(vm_min, x, y)

#endif
