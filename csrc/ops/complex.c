/* Complex numbers from parts or from size and angle, conjugates, angles. Their arithmetic is in unary.c and binary.c,
   with the kernels of kernels/complex.def. */
#include "kernels/kernels.h"
#include "ops/express.h"
#include "ops/parts.h"

static bool is_complex(const pd_tensor *t) { return pd_dtype_is_complex((pd_dtype)t->dtype); }

static pd_status run_part(const pd_call *c, pd_complex_part part) {
    pd_tensor *t[2] = {c->out[0], c->in[0]};
    pd_loop l;
    pd_loop_build(&l, 2, t);
    pd_here()->complex_part(part, (pd_dtype)t[1]->dtype, &l);
    return PD_OK;
}

/* ---- complex, polar ---------------------------------------------------------------------------------------------- */

static pd_status complex_infer(pd_call *c) {
    pd_dtype t = (pd_dtype)c->in[0]->dtype;
    if (t != PD_F32 && t != PD_F64)
        return pd_fail(PD_E_DTYPE, "complex: real and imag are %s (expected float32 or float64)", pd_dtype_name(t));
    return pd_infer_elementwise(c, pd_dtype_with_parts(t));
}

static pd_status complex_kernel(const pd_call *c) {
    for (int k = 0; k < 2; k++) {
        pd_tensor part = *c->out[0], *t[2] = {&part, c->in[k]}; /* every second float */
        pd_loop l;
        part.dtype = c->in[k]->dtype;
        part.offset = 2 * part.offset + k;
        for (int d = 0; d < part.ndim; d++) part.stride[d] *= 2;
        pd_loop_build(&l, 2, t);
        pd_here()->copy((pd_dtype)part.dtype, (pd_dtype)part.dtype, &l);
    }
    return PD_OK;
}

static void complex_vjp(pd_vjp *v) {
    for (int k = 0; k < 2; k++)
        if (pd_vjp_needs(v, k)) pd_vjp_set(v, k, pd_x_part(v, v->g[0], k));
}

const pd_op pd_op_complex = {
    .sig = "complex(Tensor real, Tensor imag)",
    .doc = "real + i imag; real and imag are both float32 or both float64, and their shapes are broadcast.",
    .promote = PD_SAME,
    .flags = PD_FUNC,
    .infer = complex_infer,
    .kernel = complex_kernel,
    .vjp = complex_vjp,
};

static pd_status polar_compose(pd_call *c) {
    pd_vjp expression = {0}, *v = &expression;
    pd_val size = pd_val_of(c->in[0]), angle = pd_val_of(c->in[1]);
    if (c->in[0]->dtype != c->in[1]->dtype || (c->in[0]->dtype != PD_F32 && c->in[0]->dtype != PD_F64))
        return pd_fail(PD_E_DTYPE, "polar: abs is %s, angle %s (expected both float32 or float64)",
                       pd_dtype_name((pd_dtype)c->in[0]->dtype), pd_dtype_name((pd_dtype)c->in[1]->dtype));
    pd_tensor *re = MUL(size, COS(angle)).t, *im = MUL(size, SIN(angle)).t;
    return pd_x_end(v, pd_x_call2(v, PD_OP_complex, re, im, NULL), &c->out[0]);
}

const pd_op pd_op_polar = {
    .sig = "polar(Tensor abs, Tensor angle)",
    .doc =
        "abs * (cos(angle) + i sin(angle)); abs and angle are both float32 or both float64, and their shapes are "
        "broadcast.",
    .flags = PD_FUNC,
    .compose = polar_compose,
};

/* ---- conj -------------------------------------------------------------------------------------------------------- */

static pd_status conjugate_infer(pd_call *c) { return pd_infer_elementwise(c, (pd_dtype)c->in[0]->dtype); }
static pd_status conjugate_kernel(const pd_call *c) { return run_part(c, PD_COMPLEX_CONJ); }
static void conjugate_vjp(pd_vjp *v) { pd_vjp_set(v, 0, pd_x_conj(v, v->g[0])); }

const pd_op pd_op_conjugate = {
    .sig = "conjugate(Tensor input)",
    .doc = "conj of complex numbers.",
    .infer = conjugate_infer,
    .kernel = conjugate_kernel,
    .vjp = conjugate_vjp,
};

static pd_status conj_compose(pd_call *c) {
    if (is_complex(c->in[0])) return pd_call1(PD_OP_conjugate, c->in[0], NULL, &c->out[0]);
    pd_tensor_retain(c->out[0] = c->in[0]);
    return PD_OK;
}

#define CONJ(name)                                                                                           \
    const pd_op pd_op_##name = {                                                                             \
        .sig = #name "(Tensor input)",                                                                       \
        .doc = "The complex conjugate, real - i imag, in its own memory; of real numbers the input itself.", \
        .flags = PD_FUNC | PD_METHOD,                                                                        \
        .compose = conj_compose,                                                                             \
    };
CONJ(conj)
CONJ(conj_physical)

/* ---- angle ------------------------------------------------------------------------------------------------------- */

static pd_status angle_infer(pd_call *c) { return pd_infer_elementwise(c, pd_dtype_part((pd_dtype)c->in[0]->dtype)); }
static pd_status angle_kernel(const pd_call *c) { return run_part(c, PD_COMPLEX_ANGLE); }
static void angle_vjp(pd_vjp *v) { /* g i x / |x|^2, 0 at 0 */
    pd_val x = pd_val_of(pd_vjp_in(v, 0)), g = pd_val_of(v->g[0]);
    pd_val turned = DIV(pd_x_number(v, 0, 1), pd_val_of(pd_x_conj(v, x.t)));
    pd_vjp_set(v, 0, pd_x_if(v, PD_OP_ne, x, C(0), MUL(g, turned)).t);
}

const pd_op pd_op_complex_angle = {
    .sig = "complex_angle(Tensor input)",
    .doc = "angle of complex numbers.",
    .save = PD_SAVE_IN(0),
    .infer = angle_infer,
    .kernel = angle_kernel,
    .vjp = angle_vjp,
};

static pd_status angle_compose(pd_call *c) {
    pd_tensor *wide = NULL;
    pd_vjp expression = {0}, *v = &expression;
    if (is_complex(c->in[0])) return pd_call1(PD_OP_complex_angle, c->in[0], NULL, &c->out[0]);
    if (pd_dtype_is_float((pd_dtype)c->in[0]->dtype)) pd_tensor_retain(wide = c->in[0]);
    else PD_TRY(pd_engine.cast(c->in[0], pd_default_dtype, &wide));
    pd_val x = pd_val_of(wide), turned = pd_x_where(v, PD_OP_lt, x, C(0), C(3.141592653589793), MULC(SIGN(x), 0));
    pd_status status = pd_x_end(v, pd_x_where(v, PD_OP_ne, x, x, x, turned).t, &c->out[0]); /* of NaN: NaN */
    pd_tensor_release(wide);
    return status;
}

const pd_op pd_op_angle = {
    .sig = "angle(Tensor input)",
    .doc =
        "The angle of complex numbers to the positive real axis, in (-pi, pi]. Of real numbers: pi where they are "
        "negative, otherwise 0.",
    .flags = PD_FUNC | PD_METHOD,
    .compose = angle_compose,
};
