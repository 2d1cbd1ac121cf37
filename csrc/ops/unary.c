/* Elementwise functions of one argument: descriptors expanded from kernels/unary.def. */
#include "kernels/kernels.h"
#include "ops/express.h"

static bool is_complex(const pd_tensor *t) { return t && pd_dtype_is_complex((pd_dtype)t->dtype); }

static pd_status infer(pd_call *c) { return pd_infer_elementwise(c, (pd_dtype)c->in[0]->dtype); }
static pd_status infer_abs(pd_call *c) { return pd_infer_elementwise(c, pd_dtype_part((pd_dtype)c->in[0]->dtype)); }

static pd_status infer_number(pd_call *c) {
    if (c->in[0]->dtype == PD_BOOL)
        return pd_fail(PD_E_DTYPE, "%s: the input is bool (expected numbers; for a logical not use ~)", c->def->name);
    return infer(c);
}

static pd_status run(pd_unary fn, const pd_call *c) {
    pd_tensor *t[2] = {c->out[0], c->in[0]};
    pd_loop l;
    pd_loop_build(&l, 2, t);
    if (fn == PD_UNARY_abs && is_complex(t[1])) pd_here()->complex_part(PD_COMPLEX_ABS, (pd_dtype)t[1]->dtype, &l);
    else pd_here()->unary(fn, (pd_dtype)c->out[0]->dtype, &l);
    return PD_OK;
}

/* Computes gx from g and the saved tensor in one pass. */
static void fused(pd_vjp *v, pd_unary fn, pd_tensor *saved) {
    pd_tensor *gx = saved ? pd_x_new(v, (pd_dtype)saved->dtype, saved->ndim, saved->size) : NULL, *g = v->g[0];
    if (!gx) return;
    if (!pd_tensor_is_contiguous(saved) && pd_shape_is_dense(saved->ndim, saved->size, saved->stride))
        for (int d = 0; d < saved->ndim; d++) gx->stride[d] = saved->stride[d];
    pd_tensor *t[3] = {gx, g, saved};
    pd_loop l;
    pd_loop_build(&l, 3, t);
    pd_x_sums(v, 0, gx, &l);
    if (v->status) return;
    pd_here()->unary_grad(fn, (pd_dtype)saved->dtype, &l);
    pd_vjp_set(v, 0, gx);
}

/* |x| is not holomorphic: its gradient is g, which is real, times x / |x|. */
static pd_val abs_of_complex(pd_vjp *v, pd_val g, pd_val x) {
    pd_val size = ABS(x);
    return MUL(g, DIV(x, pd_x_where(v, PD_OP_eq, size, C(0), C(1), size)));
}

#define SAVE_X PD_SAVE_IN(0)
#define SAVE_Y PD_SAVE_OUT(0)
#define LOAD_X pd_vjp_in(v, 0)
#define LOAD_Y pd_vjp_out(v, 0)
#define PROMOTE_ANY PD_ARITH
#define PROMOTE_FLOAT PD_INT_TO_FLOAT

#define PD_UNARY(fn, domain, fwd, saved, grad, text)                                 \
    static pd_status fn##_kernel(const pd_call *c) { return run(PD_UNARY_##fn, c); } \
    static void fn##_vjp(pd_vjp *v) {                                                \
        pd_val x = pd_val_of(LOAD_##saved), y = x, g = pd_val_of(v->g[0]);           \
        (void)y;                                                                     \
        if (PD_UNARY_##fn == PD_UNARY_abs && is_complex(x.t)) {                      \
            pd_vjp_set(v, 0, abs_of_complex(v, g, x).t);                             \
            return;                                                                  \
        }                                                                            \
        g = pd_val_of(pd_x_conj(v, g.t));                                            \
        pd_vjp_set(v, 0, pd_x_conj(v, (grad).t));                                    \
    }                                                                                \
    static void fn##_vjp_fast(pd_vjp *v) {                                           \
        pd_tensor *t = LOAD_##saved;                                                 \
        if (is_complex(t)) fn##_vjp(v);                                              \
        else fused(v, PD_UNARY_##fn, t);                                             \
    }                                                                                \
    const pd_op pd_op_##fn = {                                                       \
        .sig = #fn "(Tensor input)",                                                 \
        .doc = text ", elementwise.",                                                \
        .promote = PROMOTE_##domain,                                                 \
        .save = SAVE_##saved,                                                        \
        .flags = PD_FUNC | PD_METHOD | PD_NN | PD_INPLACE,                           \
        .linear = PD_UNARY_##fn == PD_UNARY_neg ? PD_LINEAR_ALL : PD_LINEAR_NOT,     \
        .infer = PD_UNARY_##fn == PD_UNARY_neg   ? infer_number                      \
                 : PD_UNARY_##fn == PD_UNARY_abs ? infer_abs                         \
                                                 : infer,                            \
        .kernel = fn##_kernel,                                                       \
        .vjp = fn##_vjp,                                                             \
        .vjp_fast = fn##_vjp_fast,                                                   \
    };
#include "kernels/unary.def"
#undef PD_UNARY
