/* Random ops. The key of each draw is an attribute, so a gradient or a replay draws the same numbers. */
#include "ops/block.h"

typedef struct { double p; pd_rng_key key; } mask_attrs;

static pd_status mask_infer(pd_call *c) {
    PD_TRY(pd_check_float(c, 0));
    return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]);
}

static pd_status mask_kernel(const pd_call *c) {
    const mask_attrs *a = c->attrs;
    pd_tensor *x = c->in[0];
    pd_here()->dropout((pd_dtype)x->dtype, x->numel, a->p, a->key, pd_packed(x, c->scratch), pd_tensor_data(c->out[0]));
    return PD_OK;
}

static void mask_vjp(pd_vjp *v) { pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_dropout_mask, v->g[0], v->attrs)); }

const pd_op pd_op_dropout_mask = {
    .sig = "dropout_mask(Tensor input, float p, rng key)",
    .doc = "input * keep / (1 - p), where keep is drawn by key.",
    .flags = PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(mask_attrs),
    .infer = mask_infer,
    .kernel = mask_kernel,
    .scratch = pd_packed_bytes,
    .vjp = mask_vjp,
};

typedef struct { double p; int64_t training; } dropout_attrs;

static pd_status dropout_compose(pd_call *c) {
    const dropout_attrs *a = c->attrs;
    if (!(a->p >= 0 && a->p <= 1)) return pd_fail(PD_E_VALUE, "dropout: p is %g (expected 0 to 1)", a->p);
    if (!a->training || a->p == 0) {
        pd_tensor_retain(c->out[0] = c->in[0]);
        return PD_OK;
    }
    mask_attrs m = {.p = a->p};
    if (pd_device_here != &pd_device_meta) m.key = pd_rng_next_of_shard(); /* replicas drop different elements */
    return pd_call1(PD_OP_dropout_mask, c->in[0], &m, c->out);
}

const pd_op pd_op_dropout = {
    .sig = "dropout(Tensor input, float p=0.5, bool training=True)",
    .doc =
        "In training, sets each element to 0 with probability p and divides the others by 1 - p; otherwise the input "
        "itself.",
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(dropout_attrs),
    .compose = dropout_compose,
};

/* ---- filling in place -------------------------------------------------------------------------------------------- */

typedef struct { double a, b; pd_rng_key key; } draw_attrs;

static pd_status draw_infer(pd_call *c) {
    PD_TRY(pd_check_float(c, 0));
    return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]);
}

static pd_status uniform_kernel(const pd_call *c) {
    const draw_attrs *a = c->attrs;
    if (!(a->a <= a->b)) return pd_fail(PD_E_VALUE, "uniform_: from is %g, to is %g (expected from <= to)", a->a, a->b);
    pd_here()->uniform((pd_dtype)c->out[0]->dtype, c->out[0]->numel, a->a, a->b, a->key, pd_tensor_data(c->out[0]));
    return PD_OK;
}

static pd_status normal_kernel(const pd_call *c) {
    const draw_attrs *a = c->attrs;
    if (!(a->b >= 0)) return pd_fail(PD_E_VALUE, "normal_: std is %g (expected at least 0)", a->b);
    pd_here()->normal((pd_dtype)c->out[0]->dtype, c->out[0]->numel, a->a, a->b, a->key, pd_tensor_data(c->out[0]));
    return PD_OK;
}

static void nothing(pd_vjp *v) { (void)v; }

const pd_op pd_op_uniform = {
    .sig = "uniform(Tensor input, float from=0, float to=1, rng key)",
    .doc = "uniform_: random numbers, uniform in [from, to).",
    .flags = PD_METHOD | PD_INPLACE | PD_CONTIGUOUS,
    .attrs = sizeof(draw_attrs),
    .infer = draw_infer,
    .kernel = uniform_kernel,
    .vjp = nothing,
};
const pd_op pd_op_normal = {
    .sig = "normal(Tensor input, float mean=0, float std=1, rng key)",
    .doc = "normal_: random numbers of the normal distribution.",
    .flags = PD_METHOD | PD_INPLACE | PD_CONTIGUOUS,
    .attrs = sizeof(draw_attrs),
    .infer = draw_infer,
    .kernel = normal_kernel,
    .vjp = nothing,
};

static pd_status bernoulli_infer(pd_call *c) { return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]); }

static pd_status bernoulli_kernel(const pd_call *c) {
    const mask_attrs *a = c->attrs;
    if (!(a->p >= 0 && a->p <= 1)) return pd_fail(PD_E_VALUE, "bernoulli_: p is %g (expected 0 to 1)", a->p);
    pd_here()->bernoulli((pd_dtype)c->out[0]->dtype, c->out[0]->numel, a->p, a->key, pd_tensor_data(c->out[0]));
    return PD_OK;
}

const pd_op pd_op_bernoulli = {
    .sig = "bernoulli(Tensor input, float p=0.5, rng key)",
    .doc = "bernoulli_: 1 with probability p, else 0.",
    .flags = PD_METHOD | PD_INPLACE | PD_CONTIGUOUS,
    .attrs = sizeof(mask_attrs),
    .infer = bernoulli_infer,
    .kernel = bernoulli_kernel,
    .vjp = nothing,
};
