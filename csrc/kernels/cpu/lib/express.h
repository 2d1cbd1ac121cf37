/* Macros that turn the gradient expressions of unary.def, binary.def and pointwise.def into C, in the type T of g. */
#ifndef PD_KERNELS_CPU_LIB_EXPRESS_H
#define PD_KERNELS_CPU_LIB_EXPRESS_H

#include "kernels/vmath.h"

#define MUL(p, q) ((p) * (q))
#define ADD(p, q) ((p) + (q))
#define SUB(p, q) ((p) - (q))
#define DIV(p, q) ((p) / (q))
#define NEG(p) (-(p))
#define C(c) ((T)(c))
#define MULC(p, c) ((p) * (T)(c))
#define ADDC(p, c) ((p) + (T)(c))
#define DIVC(p, c) ((p) / (T)(c))
#define RSUBC(c, p) ((T)(c) - (p))
#define MULA(p) ((p) * a)
#define IFPOS(c, p) ((c) > 0 ? (p) : 0)
#define IFGT(p, q, v) ((p) > (q) ? (v) : 0)
#define IFEQ(p, q, v) ((p) == (q) ? (v) : 0)
#define UNLESS0(p, v) ((p) != 0 ? (v) : 0)
#define WHEREGT(p, q, v, w) ((p) > (q) ? (v) : (w))
#define POW(p, q) V_POW(p, q)
#define LOGOR0(p) ((p) > 0 ? V_LOG(p) : 0)
#define SIGN(p) V_SIGN(p)
#define ABS(p) V_ABS(p)
#define FLOOR(p) V_FLOOR(p)
#define TRUNC(p) V_TRUNC(p)
#define SIN(p) V_SIN(p)
#define COS(p) V_COS(p)
#define SINH(p) V_SINH(p)
#define COSH(p) V_COSH(p)
#define SQRT(p) V_SQRT(p)
#define EXP(p) V_EXP(p)
#define LOG(p) V_LOG(p)
#define LOG1P(p) V_LOG1P(p)
#define ERF(p) V_ERF(p)
#define SIGMOID(p) V_SIGMOID(p)
#define TANHSP(p) V_TANH_SOFTPLUS(p)
#define GELUSLOPE(p) V_GELU_SLOPE(p)
#define GELUT(p) V_TANH((T)0.7978845608028654 * ((p) + (T)0.044715 * ((p) * (p) * (p))))

#endif
