/* Macros by which the gradient expressions of unary.def, binary.def and pointwise.def call ops, inside a vjp `v`. */
#ifndef PD_OPS_EXPRESS_H
#define PD_OPS_EXPRESS_H

#include "ops/ops.h"

#define MUL(p, q) pd_x2(v, PD_OP_mul, p, q)
#define ADD(p, q) pd_x2(v, PD_OP_add, p, q)
#define SUB(p, q) pd_x2(v, PD_OP_sub, p, q)
#define DIV(p, q) pd_x2(v, PD_OP_div, p, q)
#define NEG(p) pd_x1(v, PD_OP_neg, p)
#define C(c) pd_const(c)
#define MULC(p, c) pd_x2(v, PD_OP_mul, p, pd_const(c))
#define ADDC(p, c) pd_x2(v, PD_OP_add, p, pd_const(c))
#define DIVC(p, c) pd_x2(v, PD_OP_div, p, pd_const(c))
#define RSUBC(c, p) pd_x2(v, PD_OP_sub, pd_const(c), p)
#define IFPOS(c, p) pd_x_if(v, PD_OP_gt, c, pd_const(0), p)
#define IFGT(p, q, w) pd_x_if(v, PD_OP_gt, p, q, w)
#define IFEQ(p, q, w) pd_x_if(v, PD_OP_eq, p, q, w)
#define UNLESS0(p, a) ((p).t ? pd_x_if(v, PD_OP_ne, p, pd_const(0), a) : (p).c != 0 ? (a) : MULC(g, 0))
#define WHEREGT(p, q, a, b) pd_x_where(v, PD_OP_gt, p, q, a, b)
#define POW(p, q) pd_x2(v, PD_OP_pow, p, q)
#define SIGN(p) pd_x1(v, PD_OP_sign, p)
#define ABS(p) pd_x1(v, PD_OP_abs, p)
#define FLOOR(p) pd_x1(v, PD_OP_floor, p)
#define TRUNC(p) pd_x1(v, PD_OP_trunc, p)
#define SIN(p) pd_x1(v, PD_OP_sin, p)
#define COS(p) pd_x1(v, PD_OP_cos, p)
#define SINH(p) pd_x1(v, PD_OP_sinh, p)
#define COSH(p) pd_x1(v, PD_OP_cosh, p)
#define SQRT(p) pd_x1(v, PD_OP_sqrt, p)
#define EXP(p) pd_x1(v, PD_OP_exp, p)
#define LOG(p) pd_x1(v, PD_OP_log, p)
#define LOG1P(p) pd_x1(v, PD_OP_log1p, p)
#define ERF(p) pd_x1(v, PD_OP_erf, p)
#define TANH(p) pd_x1(v, PD_OP_tanh, p)
#define SIGMOID(p) pd_x1(v, PD_OP_sigmoid, p)
#define TANHSP(p) TANH(pd_x1(v, PD_OP_softplus, p))
#define GELUSLOPE(p) \
    ADD(MULC(ADDC(ERF(MULC(p, 0.7071067811865476)), 1), 0.5), \
        MUL(MULC(p, 0.3989422804014327), EXP(MULC(MUL(p, p), -0.5))))
#define GELUT(p) TANH(MULC(ADD(p, MULC(MUL(p, MUL(p, p)), 0.044715)), 0.7978845608028654))

#endif
