#include "ps/rule.h"

#include <math.h>
#include <string.h>

#include "comm/algo/reduce.h"
#include "kernels/step_rules.h"

/* Flags by their place; numbers by theirs. The learning rate is no number of the rule: each push brings it along. */
enum { M = 2, V = 4, W = 8 }; /* states; 1 is the float32 copy */
static const struct row {
    const char *name;
    int numbers, flags; /* flags that the caller may set */
    unsigned states;
} rows[PD_PS_KINDS] = {
    [PD_PS_ASSIGN] = {"assign", 0, 0, 0},
    [PD_PS_ADD] = {"add", 0, 0, 0},
    [PD_PS_SGD] = {"sgd", 3, 3, M},           /* momentum, dampening, weight_decay; nesterov, maximize, keras */
    [PD_PS_ADAM] = {"adam", 4, 4, M | V | W}, /* beta1, beta2, eps, weight_decay; amsgrad, decoupled, maximize, keras */
    [PD_PS_ADADELTA] = {"adadelta", 3, 1, M | V},  /* rho, eps, weight_decay; maximize */
    [PD_PS_RMSPROP] = {"rmsprop", 4, 3, M | V | W}, /* alpha, eps, weight_decay, momentum; centered, maximize, keras */
    [PD_PS_ADAGRAD] = {"adagrad", 3, 2, V},    /* lr_decay, eps, weight_decay; maximize, keras */
    [PD_PS_MOMENTS] = {"moments", 5, 3, M | V}, /* beta1, beta2, eps, weight_decay, momentum_decay; nesterov, decoupled,
                                                   maximize */
    [PD_PS_ADAMAX] = {"adamax", 4, 2, M | V},  /* beta1, beta2, eps, weight_decay; maximize, keras */
    [PD_PS_LION] = {"lion", 3, 1, M},          /* beta1, beta2, weight_decay; maximize */
    [PD_PS_FTRL] = {"ftrl", 3, 0, M | V},      /* lamda1, beta, weight_decay */
};

const char *pd_ps_rule_name(int kind) { return rows[kind].name; }

int pd_ps_rule_find(const char *name) {
    for (int k = 0; k < PD_PS_KINDS; k++)
        if (!strcmp(name, rows[k].name)) return k;
    return -1;
}

int pd_ps_rule_counts(int kind, int *flags) {
    *flags = rows[kind].flags;
    return rows[kind].numbers;
}

static bool flag(const pd_ps_rule *r, int i) { return r->flags >> i & 1; }

pd_status pd_ps_rule_check(const char *op, const pd_ps_rule *r, pd_dtype dtype, unsigned *states) {
    const bool floats = pd_dtype_is_float(dtype), half = floats && pd_dtype_size(dtype) == 2;
    if (r->kind < 0 || r->kind >= PD_PS_KINDS)
        return pd_fail(PD_E_VALUE, "%s: a rule of kind %d (expected less than %d)", op, r->kind, PD_PS_KINDS);
    if (r->kind > PD_PS_ADD && !floats)
        return pd_fail(PD_E_DTYPE, "%s: %s of %s values (expected a floating dtype)", op, rows[r->kind].name,
                       pd_dtype_name(dtype));
    *states = rows[r->kind].states;
    if (r->kind == PD_PS_SGD && r->numbers[0] == 0) *states &= ~(unsigned)M;
    if (r->kind == PD_PS_ADAM && !flag(r, 0)) *states &= ~(unsigned)W;
    if (r->kind == PD_PS_RMSPROP && r->numbers[3] == 0) *states &= ~(unsigned)M;
    if (r->kind == PD_PS_RMSPROP && !flag(r, 0)) *states &= ~(unsigned)W;
    if (r->kind == PD_PS_FTRL && half && !r->wide)
        return pd_fail(PD_E_DTYPE, "%s: ftrl of %s values (expected multi_precision=True, float32 or float64)", op,
                       pd_dtype_name(dtype));
    if (r->wide && !(half && r->kind > PD_PS_ADD))
        return pd_fail(PD_E_DTYPE,
                       "%s: multi_precision for %s values and the rule %s (expected float16 or bfloat16 and "
                       "an optimizer)",
                       op, pd_dtype_name(dtype), rows[r->kind].name);
    if (r->wide) *states |= 1;
    return PD_OK;
}

/* FTRL-proximal (McMahan et al., 2013), MXNet's form: v is the sum of g^2, m is z. */
#define FTRL(T, NAME, SQRT, FABS)                                                                       \
    static void NAME(const pd_ps_rule *r, T lr, T *restrict p, const T *restrict g, T *restrict z,      \
                     T *restrict v, int64_t n) {                                                        \
        const T l1 = (T)r->numbers[0], beta = (T)r->numbers[1], decay = (T)r->numbers[2];               \
        for (int64_t i = 0; i < n; i++) {                                                               \
            T after = v[i] + g[i] * g[i], root = SQRT(after);                                           \
            z[i] += g[i] - (root - SQRT(v[i])) / lr * p[i];                                             \
            v[i] = after;                                                                               \
            T over = FABS(z[i]) - l1;                                                                   \
            p[i] = over > 0 ? (z[i] < 0 ? over : -over) / ((beta + root) / lr + decay) : 0;             \
        }                                                                                               \
    }
FTRL(float, ftrl_f32, sqrtf, fabsf)
FTRL(double, ftrl_f64, sqrt, fabs)

/* The product of mu over the steps before this one, as NAdam keeps it: rounded to float32 after each step. */
static double product_before(const pd_moments *c, pd_ps_past *past) {
    if (!past->step || past->step >= (uint64_t)c->step) *past = (pd_ps_past){0, 1.0};
    while (past->step + 1 < (uint64_t)c->step)
        past->step++, past->mu_product = (float)(past->mu_product * pd_nadam_mu(c, (int64_t)past->step));
    return past->mu_product;
}

static void run_moments(const pd_ps_rule *r, pd_dtype t, double lr, uint64_t step, pd_ps_past *past,
                        const pd_segment_step *s) {
    const double *x = r->numbers;
    pd_moments c = {lr, x[0], x[1], x[2], x[3], x[4], 1.0, (int64_t)step, flag(r, 0), flag(r, 1), flag(r, 2)};
    if (c.nesterov) c.mu_product = product_before(&c, past);
    pd_cpu()->moments(t, &c, s, 1);
}

void pd_ps_rule_run(const pd_ps_rule *r, pd_dtype t, double lr, uint64_t step, pd_ps_past *past,
                    const pd_segment_step *s) {
    const double *x = r->numbers;
    const char *const both[] = {s->p, s->g};
    switch ((pd_ps_kind)r->kind) {
    case PD_PS_ASSIGN: memcpy(s->p, s->g, (size_t)s->n * pd_dtype_size(t)); return;
    case PD_PS_ADD: pd_reduce_run(t, PD_REDUCE_SUM, 2, both, 0, s->p, s->n, 1.0); return;
    case PD_PS_SGD:
        pd_cpu()->sgd(t, &(pd_sgd){lr, x[0], x[1], x[2], flag(r, 0), flag(r, 1), step == 1, flag(r, 2)}, s, 1);
        return;
    case PD_PS_ADAM:
        pd_cpu()->adam(t, &(pd_adam){lr, x[0], x[1], x[2], x[3], (int64_t)step, flag(r, 0), flag(r, 1), flag(r, 2),
                                     flag(r, 3)}, s, 1);
        return;
    case PD_PS_ADADELTA: pd_cpu()->adadelta(t, &(pd_adadelta){lr, x[0], x[1], x[2], flag(r, 0)}, s, 1); return;
    case PD_PS_RMSPROP:
        pd_cpu()->rmsprop(t, &(pd_rmsprop){lr, x[0], x[1], x[2], x[3], flag(r, 0), flag(r, 1), flag(r, 2)}, s, 1);
        return;
    case PD_PS_ADAGRAD:
        pd_cpu()->adagrad(t, &(pd_adagrad){lr, x[0], x[1], x[2], (int64_t)step, flag(r, 0), flag(r, 1)}, s, 1);
        return;
    case PD_PS_MOMENTS: run_moments(r, t, lr, step, past, s); return;
    case PD_PS_ADAMAX:
        pd_cpu()->adamax(t, &(pd_adamax){lr, x[0], x[1], x[2], x[3], (int64_t)step, flag(r, 0), flag(r, 1)}, s, 1);
        return;
    case PD_PS_LION: pd_cpu()->lion(t, &(pd_lion){lr, x[0], x[1], x[2], flag(r, 0)}, s, 1); return;
    case PD_PS_FTRL:
        if (t == PD_F64) ftrl_f64(r, lr, s->p, s->g, s->m, s->v, s->n);
        else ftrl_f32(r, (float)lr, s->p, s->g, s->m, s->v, s->n);
        return;
    case PD_PS_KINDS: return;
    }
}
