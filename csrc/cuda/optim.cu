/* Optimizer steps over a list of segments. One launch does up to LIST of them, with the list among its arguments.
   Formulas and their order are those of kernels/cpu/optim.inc. The 16-bit copy of a float32 parameter is written, too.
   If the learning rate or the number of the step is on the device, another launch, of one thread, first computes the
   rule there. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "cuda/cuda.h"
#include "cuda/table.h"
#include "kernels/step_rules.h"
#include "kernels/vmath.h"

enum { LIST = 160, BLOCK = 256, CHUNK = 4 * BLOCK }; /* elements of a block */

struct segments {
    int count;
    int64_t first[LIST + 1]; /* number of each segment's first block */
    pd_segment_step s[LIST];
};

/* An element of all arrays; a rule reads and writes those that it uses. */
template <class T> struct element { T p, g, m, v, w; };

/* A rule some of whose numbers are on the device, and what the step's number adds to pd_segment_step's chance. */
template <class R> struct told {
    R rule;
    uint64_t chance;
};
template <class C> static __device__ auto tell_lr(C &c, double lr, int) -> decltype((void)(c.lr = lr)) { c.lr = lr; }
template <class C> static __device__ void tell_lr(C &, double, long long) {}
template <class C> static __device__ auto tell_step(C &c, int64_t step, int) -> decltype((void)(c.step = step)) { c.step = step; }
template <class C> static __device__ void tell_step(C &, int64_t, long long) {}
template <class C> static __device__ void tell_own(C &, float *, float *, bool) {}
static __device__ void tell_own(pd_moments &c, float *mu_product, float *, bool whole) {
    if (!mu_product) return;
    c.mu_product = (double)*mu_product;
    if (whole) *mu_product = (float)pd_nadam_product(&c);
}
static __device__ void tell_own(pd_asgd &c, float *eta, float *mu, bool whole) {
    if (!eta || !mu) return;
    c.eta = (double)*eta;
    c.mu = (double)*mu;
    double next_eta, next_mu;
    pd_asgd_next(&c, &next_eta, &next_mu);
    if (whole) *eta = (float)next_eta, *mu = (float)next_mu;
}
template <class R, class C>
static __global__ void tell(C c, const float *skip, const float *lr, float *step, float *own0, float *own1, told<R> *out) {
    bool whole = !skip || *skip == 0;
    if (lr) tell_lr(c, (double)*lr, 0);
    if (step) {
        if (whole) *step += 1;
        tell_step(c, *step < 1 ? 1 : (int64_t)*step, 0); /* less than 1 only before a first step that is skipped */
    }
    tell_own(c, own0, own1, whole);
    *out = told<R>{R(c), step ? (uint64_t)((int64_t)*step - 1) * 0xBF58476D1CE4E5B9u : 0}; /* as in pydist/optim/_fused.py */
}

/* Stores x rounded to the nearest, or a bfloat16 by stochastic rounding; `a`: which array of the element
   (kernels/cpu/optim.c). */
template <class E> static __device__ void put(E *to, wide<E> x, uint64_t, int64_t, uint32_t) { *to = narrow<E>(x); }
static __device__ void put(pd_bf16 *to, float x, uint64_t chance, int64_t index, uint32_t a) {
    uint32_t key = (uint32_t)(chance ^ (chance >> 32)) + a * 0xc2b2ae35u + (uint32_t)((uint64_t)index >> 32) * 0x85ebca6bu;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    *to = chance ? pd_bf16{pd_rounded_by(bits, pd_drawn((uint32_t)index, key))} : pd_f32_to_bf16(x);
}

template <class E, class R> static __global__ void step_kernel(R rule, const told<R> *now, const __grid_constant__ segments l) {
    typedef wide<E> T;
    int low = 0, high = l.count;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (l.first[mid] <= blockIdx.x) low = mid;
        else high = mid;
    }
    const pd_segment_step &s = l.s[low];
    uint64_t chance = sizeof(E) == 2 ? s.chance : 0;
    if (now) {
        rule = now->rule;
        if (chance) chance += now->chance;
    }
    int64_t begin = (blockIdx.x - l.first[low]) * CHUNK, end = s.n - begin < CHUNK ? s.n : begin + CHUNK;
    bool whole = !s.skip || *s.skip == 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += BLOCK) {
        E *p = (E *)s.p + i, *m = (E *)s.m + i, *v = (E *)s.v + i, *w = (E *)s.w + i;
        element<T> e = {widen(*p), 0, 0, 0, 0};
        if (whole) {
            e.g = widen(((const E *)s.g)[i]);
            if (s.m) e.m = widen(*m);
            if (s.v) e.v = widen(*v);
            if (s.w) e.w = widen(*w);
            rule(e);
            int64_t index = chance ? pd_number_of(&s.drawn, i) : 0;
            put(p, e.p, chance, index, 0);
            if (s.m) put(m, e.m, chance, index, 2);
            if (s.v) put(v, e.v, chance, index, 3);
            if (s.w) put(w, e.w, chance, index, 4);
        }
        if (!s.low) continue;
        if (s.low_t == PD_BF16) ((pd_bf16 *)s.low)[i] = pd_f32_to_bf16((float)e.p);
        else ((pd_f16 *)s.low)[i] = pd_f32_to_f16((float)e.p);
    }
}

template <class E, template <class> class R, class C> static void step(const C &c, const pd_segment_step *s, int64_t count) {
    typedef R<wide<E>> rule;
    told<rule> *now = nullptr;
    if (s->lr || s->step) {
        now = (told<rule> *)pd_cuda_lent->room(sizeof *now);
        if (!now) return;
        launch(tell<rule, C>, 1, 1, c, s->skip, s->lr, s->step, s->own[0], s->own[1], now);
    }
    for (int64_t at = 0; at < count; at += LIST) {
        segments l;
        l.count = count - at < LIST ? (int)(count - at) : (int)LIST;
        l.first[0] = 0;
        for (int i = 0; i < l.count; i++) {
            l.s[i] = s[at + i];
            l.first[i + 1] = l.first[i] + (s[at + i].n + CHUNK - 1) / CHUNK;
        }
        launch(step_kernel<E, rule>, l.first[l.count], BLOCK, rule(c), now, l);
    }
}

/* A struct for each method: its numbers in T, computed from those of kernels.h, and its step of an element. */
#define RULE(name) template <class T> struct name##_rule
#define SIGN(c) ((T)((c).maximize ? -1 : 1))

/* Without decay g itself, since 0 times an infinite p is NaN. */
template <class T> static __device__ T decayed(T g, T wd, T p) { return wd != 0 ? g + wd * p : g; }

RULE(sgd) {
    T sign, wd, lr, mu, fresh, kept;
    bool nesterov, plain, first, keras;
    __host__ __device__ explicit sgd_rule(const pd_sgd &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), lr((T)c.lr), mu((T)c.momentum), fresh((T)(1.0 - c.dampening)), kept((T)c.momentum),
          nesterov(c.nesterov), plain(c.momentum == 0.0), first(c.first), keras(c.keras) {}
    __device__ void operator()(element<T> &e) const {
        T g = decayed(sign * e.g, wd, e.p);
        if (keras && !plain) {
            g *= lr;
            e.m = mu * e.m - g;
            e.p += nesterov ? mu * e.m - g : e.m;
            return;
        }
        if (!plain) {
            T b = first ? g : kept * e.m + fresh * g; /* at first the buffer is not initialised */
            e.m = b;
            g = nesterov ? g + mu * b : b;
        }
        e.p -= lr * g;
    }
};
RULE(adam) {
    T sign, wd, shrink, w1, b2, w2, eps, step, root;
    bool amsgrad;
    __host__ __device__ explicit adam_rule(const pd_adam &c)
        : sign(SIGN(c)), wd((T)(c.decoupled ? 0 : c.weight_decay)), shrink((T)(c.decoupled ? 1.0 - c.lr * c.weight_decay : 1)),
          w1((T)(1.0 - c.beta1)), b2((T)c.beta2), w2((T)(1.0 - c.beta2)),
          eps((T)(c.keras ? c.eps / sqrt(1.0 - pow(c.beta2, (double)c.step)) : c.eps)),
          step((T)(c.lr / (1.0 - pow(c.beta1, (double)c.step)))), root((T)(1.0 / sqrt(1.0 - pow(c.beta2, (double)c.step)))),
          amsgrad(c.amsgrad) {}
    __device__ void operator()(element<T> &e) const {
        T q = e.p * shrink, g = decayed(sign * e.g, wd, q), m = e.m + w1 * (g - e.m), v = e.v * b2 + w2 * g * g, top = v;
        e.m = m;
        e.v = v;
        if (amsgrad) e.w = top = e.w > v ? e.w : v;
        e.p = q - step * (m / (V_SQRT(top) * root + eps));
    }
};
RULE(adadelta) {
    T sign, wd, lr, eps, rho, fresh;
    __host__ __device__ explicit adadelta_rule(const pd_adadelta &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), lr((T)c.lr), eps((T)c.eps), rho((T)c.rho), fresh((T)(1.0 - c.rho)) {}
    __device__ void operator()(element<T> &e) const {
        T g = decayed(sign * e.g, wd, e.p), v = rho * e.v + fresh * g * g, d = V_SQRT(e.m + eps) / V_SQRT(v + eps) * g;
        e.v = v;
        e.m = rho * e.m + fresh * d * d;
        e.p -= lr * d;
    }
};
RULE(rmsprop) {
    T sign, wd, inside, beside, early, late, alpha, fresh, mu;
    bool centered, momentum;
    __host__ __device__ explicit rmsprop_rule(const pd_rmsprop &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), inside((T)(c.keras ? c.eps : 0)), beside((T)(c.keras ? 0 : c.eps)), early((T)(c.keras ? c.lr : 1)), late((T)(c.keras ? 1 : c.lr)),
          alpha((T)c.alpha), fresh((T)(1.0 - c.alpha)), mu((T)c.momentum), centered(c.centered), momentum(c.momentum != 0) {}
    __device__ void operator()(element<T> &e) const {
        T g = decayed(sign * e.g, wd, e.p), v = alpha * e.v + fresh * g * g, spread = v;
        e.v = v;
        if (centered) {
            T w = e.w + fresh * (g - e.w);
            e.w = w;
            spread = v - w * w;
        }
        T d = early * g / (V_SQRT(spread + inside) + beside);
        if (momentum) d = e.m = mu * e.m + d;
        e.p -= late * d;
    }
};
RULE(adagrad) {
    T sign, wd, lr, inside, beside;
    __host__ __device__ explicit adagrad_rule(const pd_adagrad &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), lr((T)(c.lr / (1.0 + (double)(c.step - 1) * c.lr_decay))),
          inside((T)(c.keras ? c.eps : 0)), beside((T)(c.keras ? 0 : c.eps)) {}
    __device__ void operator()(element<T> &e) const {
        T g = decayed(sign * e.g, wd, e.p), v = e.v + g * g;
        e.v = v;
        e.p -= lr * (g / (V_SQRT(v + inside) + beside));
    }
};
RULE(moments) {
    T sign, wd, shrink, eps, w1, b2, w2, from_grad, from_mean, root;
    bool adaptive;
    __host__ __device__ explicit moments_rule(const pd_moments &c) : moments_rule(c, pd_moments_now(&c)) {}
    __host__ __device__ moments_rule(const pd_moments &c, const pd_moments_rule &r)
        : sign(SIGN(c)), wd((T)r.weight_decay), shrink((T)r.shrink), eps((T)c.eps), w1((T)(1.0 - c.beta1)), b2((T)c.beta2), w2((T)(1.0 - c.beta2)),
          from_grad((T)r.from_grad), from_mean((T)r.from_mean), root((T)r.root), adaptive(r.adaptive) {}
    __device__ void operator()(element<T> &e) const {
        T q = e.p * shrink, g = decayed(sign * e.g, wd, q), m = e.m + w1 * (g - e.m), v = e.v * b2 + w2 * g * g;
        e.m = m;
        e.v = v;
        e.p = q - (adaptive ? (from_grad * g + from_mean * m) / (V_SQRT(v) * root + eps) : from_mean * m);
    }
};
RULE(adamax) {
    T sign, wd, early, late, step, w1, b2;
    __host__ __device__ explicit adamax_rule(const pd_adamax &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), early((T)(c.keras ? 0 : c.eps)), late((T)(c.keras ? c.eps : 0)), step((T)(c.lr / (1.0 - pow(c.beta1, (double)c.step)))), w1((T)(1.0 - c.beta1)), b2((T)c.beta2) {}
    __device__ void operator()(element<T> &e) const {
        T g = decayed(sign * e.g, wd, e.p), size = (g < 0 ? -g : g) + early, faded = e.v * b2, m = e.m + w1 * (g - e.m), v = faded > size ? faded : size;
        e.m = m;
        e.v = v;
        e.p -= step * (m / (v + late));
    }
};
RULE(asgd) {
    T sign, wd, eta, keep, mu;
    bool whole;
    __host__ __device__ explicit asgd_rule(const pd_asgd &c)
        : sign(SIGN(c)), wd((T)c.weight_decay), eta((T)c.eta), keep((T)(1.0 - c.lambd * c.eta)), mu((T)c.mu), whole(c.mu == 1.0) {}
    __device__ void operator()(element<T> &e) const {
        T g = decayed(sign * e.g, wd, e.p), q = e.p * keep - eta * g;
        e.p = q;
        e.m = whole ? q : e.m + mu * (q - e.m);
    }
};
RULE(rprop) {
    T sign, minus, plus, low, high;
    __host__ __device__ explicit rprop_rule(const pd_rprop &c)
        : sign(SIGN(c)), minus((T)c.eta_minus), plus((T)c.eta_plus), low((T)c.step_min), high((T)c.step_max) {}
    __device__ void operator()(element<T> &e) const {
        T g = sign * e.g, turn = g * e.m, step = e.v * (turn > 0 ? plus : turn < 0 ? minus : (T)1);
        step = step < low ? low : step > high ? high : step;
        g = turn < 0 ? (T)0 : g; /* after a change of sign the parameter does not move */
        e.v = step;
        e.m = g;
        e.p -= g > 0 ? step : g < 0 ? -step : (T)0;
    }
};
RULE(lion) {
    T sign, lr, keep, w1, w2;
    __host__ __device__ explicit lion_rule(const pd_lion &c) : sign(SIGN(c)), lr((T)c.lr), keep((T)(1.0 - c.lr * c.weight_decay)), w1((T)(1.0 - c.beta1)), w2((T)(1.0 - c.beta2)) {}
    __device__ void operator()(element<T> &e) const {
        T g = sign * e.g, d = e.m + w1 * (g - e.m);
        e.m += w2 * (g - e.m);
        e.p = e.p * keep - (d > 0 ? lr : d < 0 ? -lr : (T)0);
    }
};

#define STEP(name)                                                                                 \
    void pd_cuda_##name(pd_dtype t, const pd_##name *c, const pd_segment_step *s, int64_t count) { \
        by_float(t, [&](auto e) { step<typename decltype(e)::type, name##_rule>(*c, s, count); });  \
    }
STEP(sgd) STEP(adam) STEP(adadelta) STEP(rmsprop) STEP(adagrad) STEP(moments) STEP(adamax) STEP(asgd) STEP(rprop) STEP(lion)
