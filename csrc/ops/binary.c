/* Elementwise functions of two arguments: descriptors expanded from kernels/binary.def and compare.def; where. */
#include <string.h>

#include "kernels/kernels.h"
#include "ops/express.h"

typedef struct { pd_scalar x, y; } operands;
typedef struct { pd_scalar x, y, alpha; } scaled;

static pd_dtype computed(const pd_call *c) {
    const pd_tensor *x = c->in[0], *y = c->in[1];
    if (x && y && x->dtype != y->dtype) return pd_result_type(c->in, 2, NULL, 0);
    return (pd_dtype)(x ? x : y)->dtype;
}

/* If one argument is a number of a higher category, apply has decided the dtype and cast the tensor. */
static pd_status infer(pd_call *c) { return pd_infer_elementwise(c, computed(c)); }
static pd_status infer_number(pd_call *c) {
    if (computed(c) == PD_BOOL)
        return pd_fail(PD_E_DTYPE, "%s: both operands are bool (expected numbers; for logical operands use !=)",
                       c->def->name);
    return infer(c);
}
/* alpha must not be of a higher category than the result. */
static pd_status check_alpha(const pd_call *c, int64_t cat) {
    const int64_t most = pd_dtype_category(computed(c));
    if (cat == PD_CAT_FLOAT && most < PD_CAT_FLOAT)
        return pd_fail(PD_E_VALUE,
                       "%s: For integral input tensors, argument alpha must not be a floating point number: the "
                       "operands are %s (expected an integer)",
                       c->def->name, pd_dtype_name(computed(c)));
    if (cat == PD_CAT_COMPLEX)
        return pd_fail(PD_E_VALUE, "%s: alpha is complex (expected a real number; multiply by alpha first)",
                       c->def->name);
    if (cat == PD_CAT_BOOL && most != PD_CAT_BOOL)
        return pd_fail(PD_E_VALUE, "%s: alpha is bool, but the operands are %s (expected a number)", c->def->name,
                       pd_dtype_name(computed(c)));
    return PD_OK;
}
static pd_status infer_scaled(pd_call *c) { /* add and sub; any result may have an integer or 1.0 as alpha */
    const pd_scalar *alpha = &((const scaled *)c->attrs)->alpha;
    if (alpha->cat != PD_CAT_INT && !(alpha->cat == PD_CAT_FLOAT && alpha->d == 1))
        PD_TRY(check_alpha(c, alpha->cat));
    return c->def == PD_DEF(sub) ? infer_number(c) : infer(c);
}
/* pow: the inverse of an integer is no integer, so negative exponents are refused. */
static pd_status infer_power(pd_call *c) {
    const pd_scalar *y = &((const operands *)c->attrs)->y;
    if (!c->in[1] && pd_dtype_category(computed(c)) < PD_CAT_FLOAT && y->i < 0)
        return pd_fail(
            PD_E_VALUE,
            "pow: Integers to negative integer powers are not allowed: got exponent %lld (expected at least 0)",
            (long long)y->i);
    return infer(c);
}
static pd_status infer_int(pd_call *c) {
    if (pd_dtype_category(computed(c)) > PD_CAT_INT)
        return pd_fail(PD_E_DTYPE, "%s: the operands are %s (expected integers or bool)", c->def->name,
                       pd_dtype_name(computed(c)));
    return infer(c);
}
/* Integers cannot be divided by 0. */
static pd_status infer_divisor(pd_call *c) {
    const operands *a = c->attrs;
    pd_tensor *y = c->in[1], *all;
    pd_reduce_attrs over = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_scalar nonzero = {.i = a->y.cat == PD_CAT_FLOAT ? a->y.d != 0 : a->y.i != 0};
    PD_TRY(infer(c));
    if (pd_dtype_is_float(computed(c)) || c->out[0]->numel == 0) return PD_OK;
    if (y && y->storage->device == &pd_device_meta) return PD_OK;
    if (y) {
        PD_TRY(pd_call1(PD_OP_all, y, &over, &all));
        pd_status status = pd_item(c->def->name, all, PD_WAIT, &nonzero);
        pd_tensor_release(all);
        PD_TRY(status);
    }
    return nonzero.i ? PD_OK
                     : pd_fail(PD_E_RUNTIME, "%s: an integer divisor is 0 (expected nonzero integers)", c->def->name);
}
static pd_status infer_bool(pd_call *c) { return pd_infer_elementwise(c, PD_BOOL); }

typedef struct { char x[16], y[16]; } cells;

static void build(pd_loop *l, cells *cell, pd_tensor **t, int n, const pd_def *def, const operands *a, pd_dtype dtype) {
    const bool exact = def->op->flags & PD_EXACT;
    pd_loop_build(l, n, t);
    pd_loop_mix(l, t, dtype);
    if (!t[n - 2]) pd_loop_number(l, n - 2, &a->x, dtype, exact, cell->x);
    if (!t[n - 1]) pd_loop_number(l, n - 1, &a->y, dtype, exact, cell->y);
}

static double factor(const pd_call *c) {
    return c->def->op->attrs == sizeof(scaled) ? ((const scaled *)c->attrs)->alpha.d : 1;
}

/* Whether a sum on a GPU may be launched together with a norm of it that comes next: nobody else has its memory, and
   nobody works on that of the inputs by bare addresses. */
static bool may_wait(pd_tensor *const *t) {
    const pd_tensor *out = t[0];
    bool may = out->storage->refs == 1 && !out->wrapper && out->ndim > 1 &&
               pd_dtype_computed((pd_dtype)out->dtype) == PD_F32;
    for (int k = 0; k < 3 && may; k++)
        may = t[k] && pd_storage_is_private(t[k]->storage) && !t[k]->storage->exposed &&
              (k == 0 || (t[k] != out && pd_tensor_same_shape(t[k], out)));
    return may;
}

static pd_status run(pd_binary fn, const pd_call *c) {
    pd_tensor *t[3] = {c->out[0], c->in[0], c->in[1]};
    pd_loop l;
    cells cell;
    const pd_dtype dtype = computed(c);
    build(&l, &cell, t, 3, c->def, c->attrs, dtype);
    if (fn == PD_BINARY_add && pd_device_here->kernels) l.later = factor(c) == 1 && may_wait(t);
    pd_here()->binary(fn, dtype, factor(c), &l);
    return PD_OK;
}

static pd_status run_compare(pd_compare fn, const pd_call *c) {
    pd_tensor *t[3] = {c->out[0], c->in[0], c->in[1]};
    pd_loop l;
    cells cell;
    const pd_dtype dtype = computed(c);
    build(&l, &cell, t, 3, c->def, c->attrs, dtype);
    pd_here()->compare(fn, dtype, &l);
    return PD_OK;
}

/* Computes one gradient in one pass, in the shape of g; the engine undoes broadcasting. */
static void fused(pd_vjp *v, pd_binary fn, int which) {
    pd_tensor *x = pd_vjp_in(v, 0), *y = pd_vjp_in(v, 1), *g = v->g[0], *like = which ? y : x;
    if (v->status || !pd_vjp_needs(v, which)) return;
    if (!like || !pd_tensor_same_shape(like, g)) like = g;
    pd_tensor *gx = pd_x_new(v, (pd_dtype)like->dtype, g->ndim, g->size);
    if (!gx) return;
    if (pd_shape_is_dense(like->ndim, like->size, like->stride))
        memcpy(gx->stride, like->stride, sizeof(int64_t) * (size_t)gx->ndim);
    pd_tensor *t[4] = {gx, g, x, y};
    pd_loop l;
    cells cell;
    build(&l, &cell, t, 4, v->node->def, v->attrs, (pd_dtype)gx->dtype);
    pd_here()->binary_grad(fn, which, (pd_dtype)gx->dtype, 1, &l);
    pd_vjp_set(v, which, gx);
}

static bool add_passes(const void *attrs) { return ((const scaled *)attrs)->alpha.d == 1; }
static pd_val scale_by_alpha(pd_vjp *v, pd_val g) {
    double a = ((const scaled *)v->attrs)->alpha.d;
    return a == 1 ? g : pd_x2(v, PD_OP_mul, g, pd_const(a));
}

static pd_val log_or_zero(pd_vjp *v, pd_val x) {
    if (!x.t) return pd_const(x.c > 0 ? pd_x1(v, PD_OP_log, x).c : 0);
    if (pd_dtype_is_complex((pd_dtype)x.t->dtype)) return pd_x_if(v, PD_OP_ne, x, pd_const(0), pd_x1(v, PD_OP_log, x));
    return pd_x_if(v, PD_OP_gt, x, pd_const(0), pd_x1(v, PD_OP_log, x));
}

/* x where cond, both tensors given: the plain kernel below where(). */
#define MULA(a) scale_by_alpha(v, a)
#define LOGOR0(a) log_or_zero(v, a)
#define SAVE_NONE PD_SAVE_NONE
#define SAVE_XY (PD_SAVE_IN(0) | PD_SAVE_IN(1))
#define FAST_NONE(fn) NULL
#define FAST_XY(fn) fn##_vjp_fast
#define IS(fn, other) (PD_BINARY_##fn == PD_BINARY_##other)
#define INFER_ANY(fn)                                                            \
    (IS(fn, add) || IS(fn, sub)                                  ? infer_scaled  \
     : IS(fn, pow)                                               ? infer_power   \
     : IS(fn, remainder) || IS(fn, fmod) || IS(fn, floor_divide) ? infer_divisor \
                                                                 : infer)
#define EXACT(fn) \
    (IS(fn, add) || IS(fn, sub) || IS(fn, mul) || IS(fn, div) || IS(fn, floor_divide) ? PD_EXACT : 0)
#define LINEAR(fn)                                  \
    (IS(fn, add) || IS(fn, sub) ? PD_LINEAR_ALL     \
     : IS(fn, mul)              ? PD_LINEAR_ONE     \
     : IS(fn, div)              ? PD_LINEAR_FIRST   \
                                : PD_LINEAR_NOT)
#define INFER_FLOAT(fn) infer
#define INFER_INT(fn) infer_int
#define PROMOTE_INT PD_ARITH
#define PROMOTE_ANY PD_ARITH
#define PROMOTE_FLOAT PD_INT_TO_FLOAT
#define ATTRS(fn) \
    ((PD_BINARY_##fn == PD_BINARY_add || PD_BINARY_##fn == PD_BINARY_sub) ? sizeof(scaled) : sizeof(operands))
#define SIG(fn) ((PD_BINARY_##fn == PD_BINARY_add || PD_BINARY_##fn == PD_BINARY_sub) \
                     ? #fn "(Operand input, Operand other, Scalar alpha=1)" \
                     : IS(fn, pow) ? "pow(Operand input, Operand exponent)" : #fn "(Operand input, Operand other)")

#define PD_BINARY(fn, domain, fwd, needs, grad_x, grad_y, text)                       \
    static pd_status fn##_kernel(const pd_call *c) { return run(PD_BINARY_##fn, c); } \
    static void fn##_vjp(pd_vjp *v) {                                                 \
        const operands *a = v->attrs;                                                 \
        pd_val g = pd_val_of(pd_x_conj(v, v->g[0])), x = {0}, y = {0};                \
        if (SAVE_##needs) x = pd_val_in(v, 0, &a->x), y = pd_val_in(v, 1, &a->y);     \
        (void)x, (void)y;                                                             \
        if (pd_vjp_needs(v, 0)) pd_vjp_set(v, 0, pd_x_conj(v, (grad_x).t));           \
        if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, pd_x_conj(v, (grad_y).t));           \
    }                                                                                 \
    static void __attribute__((unused)) fn##_vjp_fast(pd_vjp *v) {                    \
        if (pd_dtype_is_complex((pd_dtype)v->g[0]->dtype)) {                          \
            fn##_vjp(v);                                                              \
            return;                                                                   \
        }                                                                             \
        fused(v, PD_BINARY_##fn, 0);                                                  \
        fused(v, PD_BINARY_##fn, 1);                                                  \
    }                                                                                 \
    const pd_op pd_op_##fn = {                                                        \
        .sig = SIG(fn),                                                               \
        .doc = text ", elementwise; shapes are broadcast.",                           \
        .promote = PROMOTE_##domain,                                                  \
        .cast = PD_CAST_WIDEST,                                                       \
        .save = SAVE_##needs,                                                         \
        .flags = PD_FUNC | PD_METHOD | PD_INPLACE | PD_MIXED | EXACT(fn),             \
        .attrs = ATTRS(fn),                                                           \
        .linear = LINEAR(fn),                                                         \
        .infer = INFER_##domain(fn),                                                  \
        .kernel = fn##_kernel,                                                        \
        .vjp = fn##_vjp,                                                              \
        .vjp_fast = FAST_##needs(fn),                                                 \
        .passes = IS(fn, add) ? add_passes : NULL,                                    \
    };
#include "kernels/binary.def"
#undef PD_BINARY

#define PD_COMPARE(fn, expr, text)                                                                          \
    static pd_status fn##_kernel(const pd_call *c) { return run_compare(PD_COMPARE_##fn, c); }              \
    const pd_op pd_op_##fn = {                                                                              \
        .sig = #fn "(Operand input, Operand other)", .doc = text "; shapes are broadcast, the result is bool.",     \
        .promote = PD_BOOL_OUT, .flags = PD_FUNC | PD_METHOD, .attrs = sizeof(operands),                    \
        .infer = infer_bool, .kernel = fn##_kernel,                                                         \
    };
#include "kernels/compare.def"
#undef PD_COMPARE

/* ---- where ------------------------------------------------------------------------------------------------------- */

static pd_status where_infer(pd_call *c) {
    if (c->in[0]->dtype != PD_BOOL)
        return pd_fail(PD_E_DTYPE, "where: the condition is %s (expected bool)",
                       pd_dtype_name((pd_dtype)c->in[0]->dtype));
    if (c->in[1]->dtype != c->in[2]->dtype)
        return pd_fail(PD_E_DTYPE, "where: x is %s, y is %s (expected one dtype)",
                       pd_dtype_name((pd_dtype)c->in[1]->dtype), pd_dtype_name((pd_dtype)c->in[2]->dtype));
    return pd_infer_elementwise(c, (pd_dtype)c->in[1]->dtype);
}

static pd_status where_kernel(const pd_call *c) {
    pd_tensor *t[4] = {c->out[0], c->in[0], c->in[1], c->in[2]};
    pd_loop l;
    pd_loop_build(&l, 4, t);
    pd_here()->where(pd_dtype_size((pd_dtype)c->out[0]->dtype), &l);
    return PD_OK;
}

static void where_vjp(pd_vjp *v) {
    pd_tensor *cond = pd_vjp_in(v, 0), *g = v->g[0];
    operands gx = {{.cat = -1}, {.cat = PD_CAT_INT}}, gy = {{.cat = PD_CAT_INT}, {.cat = -1}};
    if (!cond) return;
    pd_tensor *in_x[3] = {cond, g, NULL}, *in_y[3] = {cond, NULL, g};
    if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, pd_x(v, PD_OP_where, &gx, 3, in_x));
    if (pd_vjp_needs(v, 2)) pd_vjp_set(v, 2, pd_x(v, PD_OP_where, &gy, 3, in_y));
}

const pd_op pd_op_where_same = {
    .sig = "where_same(Tensor cond, Tensor x, Tensor y)",
    .doc = "where on tensors of one dtype.",
    .save = PD_SAVE_IN(0),
    .infer = where_infer,
    .kernel = where_kernel,
    .vjp = where_vjp,
};

static pd_status where_compose(pd_call *c) {
    const operands *a = c->attrs;
    if (c->in[0]->dtype == PD_U8) { /* PyTorch's old masks */
        pd_tensor *mask, *in[3] = {NULL, c->in[1], c->in[2]};
        PD_TRY(pd_engine.cast(c->in[0], PD_BOOL, &mask));
        in[0] = mask;
        pd_status done = pd_apply(c->def, in, 3, a, c->out, NULL);
        pd_tensor_release(mask);
        return done;
    }
    const pd_scalar *numbers[2] = {&a->x, &a->y};
    pd_tensor *in[3] = {c->in[0], NULL, NULL}, *own[2] = {0};
    pd_dtype t = pd_result_type(c->in + 1, 2, numbers, 2);
    pd_status status = PD_OK;
    for (int i = 0; i < 2 && !status; i++) {
        pd_tensor *x = c->in[1 + i];
        if (x && x->dtype == (int)t) {
            in[1 + i] = x;
            continue;
        }
        status = x ? pd_engine.cast(x, t, &own[i]) : pd_scalar_tensor(numbers[i], t, &own[i]);
        in[1 + i] = own[i];
    }
    PD_THEN(pd_apply(PD_DEF(where_same), in, 3, NULL, c->out, NULL));
    pd_tensor_release(own[0]);
    pd_tensor_release(own[1]);
    return status;
}

const pd_op pd_op_where = {
    .sig = "where(Tensor condition, Operand input, Operand other)",
    .doc = "x where cond (bool) is true, else y; shapes are broadcast, dtypes promoted.",
    .flags = PD_FUNC, .attrs = sizeof(operands), .compose = where_compose,
};
