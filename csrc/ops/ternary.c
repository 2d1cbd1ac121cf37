/* Elementwise functions of three arguments: descriptors expanded from kernels/ternary.def. */
#include <math.h>

#include "kernels/kernels.h"
#include "ops/express.h"

typedef struct { pd_scalar y, z; } operands;
typedef struct { pd_scalar y, z, value; } scaled;

static pd_status infer(pd_call *c) {
    if (c->in[0]->dtype == PD_BOOL)
        return pd_fail(PD_E_DTYPE, "%s: the input is bool (expected numbers)", c->def->name);
    return pd_infer_elementwise(c, (pd_dtype)c->in[0]->dtype);
}
static pd_status infer_clamp(pd_call *c) {
    const operands *a = c->attrs;
    if (!c->in[1] && !c->in[2] && a->y.cat < 0 && a->z.cat < 0)
        return pd_fail(PD_E_VALUE, "clamp: neither min nor max is given (expected at least one)");
    return pd_infer_elementwise(c, (pd_dtype)c->in[0]->dtype);
}

/* The bound that stands for one that is not given. */
static pd_scalar limit(pd_dtype t, bool least) {
    pd_scalar s = pd_number(least ? -INFINITY : INFINITY);
    if (!pd_dtype_is_float(t)) {
        int bits = 8 * (int)pd_dtype_size(t) - (t != PD_U8);
        int64_t most = bits == 63 ? INT64_MAX : ((int64_t)1 << bits) - 1;
        s = (pd_scalar){.i = !least ? most : t == PD_U8 ? 0 : -most - 1, .cat = PD_CAT_INT};
    }
    return s;
}

static pd_status run(pd_ternary fn, const pd_call *c) {
    const operands *a = c->attrs;
    const pd_scalar *numbers[2] = {&a->y, &a->z};
    pd_dtype t = (pd_dtype)c->in[0]->dtype;
    pd_tensor *operand[4] = {c->out[0], c->in[0], c->in[1], c->in[2]};
    char cells[2][16];
    pd_loop l;
    pd_loop_build(&l, 4, operand);
    for (int i = 0; i < 2; i++) {
        if (operand[2 + i]) continue;
        const pd_scalar s = numbers[i]->cat < 0 ? limit(t, i == 0) : *numbers[i];
        pd_loop_number(&l, 2 + i, &s, t, true, cells[i]);
    }
    pd_here()->ternary(fn, t, c->def->op->attrs == sizeof(scaled) ? ((const scaled *)a)->value.d : 1, &l);
    return PD_OK;
}

static pd_val argument(pd_vjp *v, int i, const pd_scalar *number) {
    pd_tensor *t = pd_vjp_in(v, i);
    if (t) return pd_val_of(t);
    return v->status          ? (pd_val){0}
           : number->cat >= 0 ? pd_val_in(v, i, number)
                              : pd_const(i == 1 ? -INFINITY : INFINITY);
}

#define A (v->node->def->op->attrs == sizeof(scaled) ? ((const scaled *)v->attrs)->value.d : 1)
#define IS(fn, other) (PD_TERNARY_##fn == PD_TERNARY_##other)
#define PD_TERNARY(fn, domain, parameters, fwd, grad_x, grad_y, grad_z, text)                     \
    static pd_status fn##_kernel(const pd_call *c) { return run(PD_TERNARY_##fn, c); }            \
    static void fn##_vjp(pd_vjp *v) {                                                             \
        const operands *o = v->attrs;                                                             \
        pd_val g = pd_val_of(v->g[0]), x = pd_val_of(pd_vjp_in(v, 0)), y = argument(v, 1, &o->y), \
               z = argument(v, 2, &o->z);                                                         \
        (void)x, (void)y, (void)z;                                                                \
        if (pd_vjp_needs(v, 0)) pd_vjp_set(v, 0, (grad_x).t);                                     \
        if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, (grad_y).t);                                     \
        if (pd_vjp_needs(v, 2)) pd_vjp_set(v, 2, (grad_z).t);                                     \
    }                                                                                             \
    static pd_status fn##_infer(pd_call *c) {                                                     \
        if (FLOATS_ONLY_##domain) PD_TRY(pd_check_float(c, 0));                                   \
        return IS(fn, clamp) ? infer_clamp(c) : infer(c);                                         \
    }                                                                                             \
    const pd_op pd_op_##fn = {                                                                    \
        .sig = #fn "(Tensor input" parameters ")",                                                \
        .doc = text ", elementwise; shapes are broadcast.",                                       \
        .promote = PD_ARITH,                                                                      \
        .cast = PD_CAST_WIDEST,                                                                   \
        .save = PD_SAVE_IN(0) | PD_SAVE_IN(1) | PD_SAVE_IN(2),                                    \
        .flags = PD_FUNC | PD_METHOD | PD_INPLACE,                                                \
        .attrs = IS(fn, addcmul) || IS(fn, addcdiv) ? sizeof(scaled) : sizeof(operands),          \
        .infer = fn##_infer,                                                                      \
        .kernel = fn##_kernel,                                                                    \
        .vjp = fn##_vjp,                                                                          \
    };
#define FLOATS_ONLY_ANY 0
#define FLOATS_ONLY_FLOAT 1
#include "kernels/ternary.def"
#undef PD_TERNARY
