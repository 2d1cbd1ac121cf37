/* Numbers of an optimizer's step that depend on the step's number, by PyTorch's formulas (torch/optim/nadam.py,
   radam.py, asgd.py). For the host, and for a GPU that counts steps by itself. */
#ifndef PD_KERNELS_STEP_RULES_H
#define PD_KERNELS_STEP_RULES_H

#include <math.h>

#include "base/host_device.h"
#include "kernels/kernels.h"

/* p = shrink p - (from_grad g + from_mean m) / (root sqrt(v) + eps); if not adaptive, p = shrink p - from_mean m */
typedef struct pd_moments_rule {
    double weight_decay, shrink, from_grad, from_mean, root;
    bool adaptive;
} pd_moments_rule;

PD_BOTH double pd_nadam_mu(const pd_moments *c, int64_t step) {
    return c->beta1 * (1.0 - 0.5 * pow(0.96, (double)step * c->momentum_decay));
}
/* The product of mu over this step and all before it. */
PD_BOTH double pd_nadam_product(const pd_moments *c) { return c->mu_product * pd_nadam_mu(c, c->step); }

PD_BOTH pd_moments_rule pd_moments_now(const pd_moments *c) {
    pd_moments_rule r = {c->weight_decay, 1.0, 0.0, 0.0, 1.0, true};
    double faded = pow(c->beta2, (double)c->step), bias = 1.0 - faded;
    if (c->decoupled) r.weight_decay = 0.0, r.shrink = 1.0 - c->lr * c->weight_decay;
    if (c->nesterov) {
        double next = pd_nadam_mu(c, c->step + 1), product = pd_nadam_product(c);
        r.from_grad = c->lr * (1.0 - pd_nadam_mu(c, c->step)) / (1.0 - product);
        r.from_mean = c->lr * next / (1.0 - product * next);
        r.root = 1.0 / sqrt(bias);
        return r;
    }
    double most = 2.0 / (1.0 - c->beta2) - 1.0, length = most - 2.0 * (double)c->step * faded / bias;
    r.from_mean = c->lr / (1.0 - pow(c->beta1, (double)c->step));
    r.adaptive = length > 5.0;
    if (r.adaptive)
        r.from_mean *= sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) * sqrt(bias);
    return r;
}

/* eta and mu of the step after this one. */
PD_BOTH void pd_asgd_next(const pd_asgd *c, double *eta, double *mu) {
    double past = (double)c->step - c->t0;
    *eta = c->lr / pow(1.0 + c->lambd * c->lr * (double)c->step, c->alpha);
    *mu = 1.0 / (past > 1.0 ? past : 1.0);
}

#endif
