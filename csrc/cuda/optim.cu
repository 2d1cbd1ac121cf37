/* Optimizer steps over a list of segments, one launch for up to LIST of them: the list travels with the launch. Formulas and their
   order are those of kernels/cpu/optim.inc. float32 and float64; a 16-bit copy of a float32 parameter is written along. */
#include "cuda/cuda.h"
#include "cuda/table.h"
#include "kernels/vmath.h"

enum { LIST = 160, BLOCK = 256, CHUNK = 4 * BLOCK }; /* elements of a block */

struct segments {
    int count;
    int64_t first[LIST + 1]; /* number of each segment's first block */
    pd_segment_step s[LIST];
};

/* Element i's arrays; a rule reads and writes those that it uses. */
template <class T> struct element {
    T *p, *m, *v, *w;
    const T *gr;
};

template <class T, class R> static __global__ void step_kernel(R rule, const __grid_constant__ segments l) {
    int low = 0, high = l.count;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (l.first[mid] <= blockIdx.x) low = mid;
        else high = mid;
    }
    const pd_segment_step &s = l.s[low];
    int64_t begin = (blockIdx.x - l.first[low]) * CHUNK, end = s.n - begin < CHUNK ? s.n : begin + CHUNK;
    for (int64_t i = begin + threadIdx.x; i < end; i += BLOCK) {
        element<T> e = {(T *)s.p + i, s.m ? (T *)s.m + i : nullptr, s.v ? (T *)s.v + i : nullptr, s.w ? (T *)s.w + i : nullptr, (const T *)s.g + i};
        if (!s.skip || *s.skip == 0) rule(e);
        if (!s.low) continue;
        if (s.low_t == PD_BF16) ((pd_bf16 *)s.low)[i] = pd_f32_to_bf16((float)*e.p);
        else ((pd_f16 *)s.low)[i] = pd_f32_to_f16((float)*e.p);
    }
}

template <class T, class R> static void step(const R &rule, const pd_segment_step *s, int64_t count) {
    for (int64_t at = 0; at < count; at += LIST) {
        segments l;
        l.count = count - at < LIST ? (int)(count - at) : (int)LIST;
        l.first[0] = 0;
        for (int i = 0; i < l.count; i++) {
            l.s[i] = s[at + i];
            l.first[i + 1] = l.first[i] + (s[at + i].n + CHUNK - 1) / CHUNK;
        }
        launch(step_kernel<T, R>, l.first[l.count], BLOCK, rule, l);
    }
}

/* One struct a method: its numbers in T, made of those of kernels.h, and what it does to an element. */
#define RULE(name) template <class T> struct name##_rule
#define SIGN(c) ((T)((c).maximize ? -1 : 1))

RULE(sgd) {
    T sign, wd, lr, mu, fresh, kept;
    bool nesterov, plain, first;
    explicit sgd_rule(const pd_sgd &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), lr((T)c.lr), mu((T)c.momentum), fresh((T)(1.0 - c.dampening)), kept((T)c.momentum),
          nesterov(c.nesterov), plain(c.momentum == 0.0), first(c.first) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr + wd * *e.p;
        if (!plain) {
            T b = first ? g : kept * *e.m + fresh * g; /* the buffer holds nothing yet at first */
            *e.m = b;
            g = nesterov ? g + mu * b : b;
        }
        *e.p -= lr * g;
    }
};
RULE(adam) {
    T sign, wd, shrink, w1, b2, w2, eps, step, root;
    bool amsgrad;
    explicit adam_rule(const pd_adam &c)
        : sign(SIGN(c)), wd((T)(c.decoupled ? 0 : c.weight_decay)), shrink((T)(c.decoupled ? 1.0 - c.lr * c.weight_decay : 1)),
          w1((T)(1.0 - c.beta1)), b2((T)c.beta2), w2((T)(1.0 - c.beta2)), eps((T)c.eps),
          step((T)(c.lr / (1.0 - __builtin_pow(c.beta1, (double)c.step)))), root((T)(1.0 / __builtin_sqrt(1.0 - __builtin_pow(c.beta2, (double)c.step)))),
          amsgrad(c.amsgrad) {}
    __device__ void operator()(const element<T> &e) const {
        T q = *e.p * shrink, g = sign * *e.gr + wd * q, m = *e.m + w1 * (g - *e.m), v = *e.v * b2 + w2 * g * g, top = v;
        *e.m = m;
        *e.v = v;
        if (amsgrad) *e.w = top = *e.w > v ? *e.w : v;
        *e.p = q - step * (m / (V_SQRT(top) * root + eps));
    }
};
RULE(adadelta) {
    T sign, wd, lr, eps, rho, fresh;
    explicit adadelta_rule(const pd_adadelta &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), lr((T)c.lr), eps((T)c.eps), rho((T)c.rho), fresh((T)(1.0 - c.rho)) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr + wd * *e.p, v = rho * *e.v + fresh * g * g, d = V_SQRT(*e.m + eps) / V_SQRT(v + eps) * g;
        *e.v = v;
        *e.m = rho * *e.m + fresh * d * d;
        *e.p -= lr * d;
    }
};
RULE(rmsprop) {
    T sign, wd, lr, eps, alpha, fresh, mu;
    bool centered;
    explicit rmsprop_rule(const pd_rmsprop &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), lr((T)c.lr), eps((T)c.eps), alpha((T)c.alpha), fresh((T)(1.0 - c.alpha)), mu((T)c.momentum), centered(c.centered) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr + wd * *e.p, v = alpha * *e.v + fresh * g * g, spread = v;
        *e.v = v;
        if (centered) {
            T w = *e.w + fresh * (g - *e.w);
            *e.w = w;
            spread = v - w * w;
        }
        T d = g / (V_SQRT(spread) + eps);
        if (e.m) d = *e.m = mu * *e.m + d;
        *e.p -= lr * d;
    }
};
RULE(adagrad) {
    T sign, wd, lr, eps;
    explicit adagrad_rule(const pd_adagrad &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), lr((T)(c.lr / (1.0 + (double)(c.step - 1) * c.lr_decay))), eps((T)c.eps) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr + wd * *e.p, v = *e.v + g * g;
        *e.v = v;
        *e.p -= lr * (g / (V_SQRT(v) + eps));
    }
};
RULE(moments) {
    T sign, wd, shrink, eps, w1, b2, w2, from_grad, from_mean, root;
    bool adaptive;
    explicit moments_rule(const pd_moments &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), shrink((T)c.shrink), eps((T)c.eps), w1((T)(1.0 - c.beta1)), b2((T)c.beta2), w2((T)(1.0 - c.beta2)),
          from_grad((T)c.from_grad), from_mean((T)c.from_mean), root((T)c.root), adaptive(c.adaptive) {}
    __device__ void operator()(const element<T> &e) const {
        T q = *e.p * shrink, g = sign * *e.gr + wd * q, m = *e.m + w1 * (g - *e.m), v = *e.v * b2 + w2 * g * g;
        *e.m = m;
        *e.v = v;
        *e.p = q - (adaptive ? (from_grad * g + from_mean * m) / (V_SQRT(v) * root + eps) : from_mean * m);
    }
};
RULE(adamax) {
    T sign, wd, eps, step, w1, b2;
    explicit adamax_rule(const pd_adamax &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), eps((T)c.eps), step((T)c.step_size), w1((T)(1.0 - c.beta1)), b2((T)c.beta2) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr + wd * *e.p, size = (g < 0 ? -g : g) + eps, faded = *e.v * b2, m = *e.m + w1 * (g - *e.m), v = faded > size ? faded : size;
        *e.m = m;
        *e.v = v;
        *e.p -= step * (m / v);
    }
};
RULE(asgd) {
    T sign, wd, eta, keep, mu;
    bool whole;
    explicit asgd_rule(const pd_asgd &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), eta((T)c.eta), keep((T)(1.0 - c.lambd * c.eta)), mu((T)c.mu), whole(c.mu == 1.0) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr + wd * *e.p, q = *e.p * keep - eta * g;
        *e.p = q;
        *e.m = whole ? q : *e.m + mu * (q - *e.m);
    }
};
RULE(rprop) {
    T sign, minus, plus, low, high;
    explicit rprop_rule(const pd_rprop &c)
        : sign(SIGN(c)), minus((T)c.eta_minus), plus((T)c.eta_plus), low((T)c.step_min), high((T)c.step_max) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr, turn = g * *e.m, step = *e.v * (turn > 0 ? plus : turn < 0 ? minus : (T)1);
        step = step < low ? low : step > high ? high : step;
        g = turn < 0 ? (T)0 : g; /* after a change of sign the parameter rests */
        *e.v = step;
        *e.m = g;
        *e.p -= g > 0 ? step : g < 0 ? -step : (T)0;
    }
};
RULE(lion) {
    T sign, lr, keep, w1, w2;
    explicit lion_rule(const pd_lion &c) : sign(SIGN(c)), lr((T)c.lr), keep((T)(1.0 - c.lr * c.weight_decay)), w1((T)(1.0 - c.beta1)), w2((T)(1.0 - c.beta2)) {}
    __device__ void operator()(const element<T> &e) const {
        T g = sign * *e.gr, d = *e.m + w1 * (g - *e.m);
        *e.m += w2 * (g - *e.m);
        *e.p = *e.p * keep - (d > 0 ? lr : d < 0 ? -lr : (T)0);
    }
};

#define STEP(name)                                                                                        \
    void pd_cuda_##name(pd_dtype t, const pd_##name *c, const pd_segment_step *s, int64_t count) {        \
        if (t == PD_F32) step<float>(name##_rule<float>(*c), s, count);                                   \
        else if (t == PD_F64) step<double>(name##_rule<double>(*c), s, count);                            \
        else no_kernel_for(t);                                                                            \
    }
STEP(sgd) STEP(adam) STEP(adadelta) STEP(rmsprop) STEP(adagrad) STEP(moments) STEP(adamax) STEP(asgd) STEP(rprop) STEP(lion)
