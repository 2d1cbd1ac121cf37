/* Fused optimizer steps over a list of segments.

   All segments together are one range of elements, which one parallel loop cuts into some 64 chunks. So a model of a
   hundred small tensors costs one parallel region, and each element is read and written once. Formulas and their order
   are PyTorch's (torch/optim/sgd.py, adam.py, adadelta.py, rmsprop.py, adagrad.py, nadam.py, radam.py, adamax.py,
   asgd.py, rprop.py), the scalars in double; with the flag `keras` they are Keras' (keras/src/optimizers). Lion's are
   its paper's (Chen et al., 2023). */
#include <math.h>
#include <stdatomic.h>

#include "base/rng.h"
#include "kernels/cpu/lib/real.h"
#include "kernels/step_rules.h"

typedef struct moments { const pd_moments *c; pd_moments_rule r; } moments;
typedef struct steps { pd_dtype t; const void *c; const pd_segment_step *s; int64_t count; } steps;
typedef void (*step_fn)(const void *c, const pd_segment_step *part);

#define LOW_BLOCK 4096 /* elements of a parameter that are still in the cache when their 16-bit copy is written */

typedef uint32_t __attribute__((may_alias)) bits32; /* a float's */

/* Of n elements with numbers from `number` on. */
static void put_run(uint16_t *d, const bits32 *s, int64_t n, uint64_t number, uint32_t key) {
    key += (uint32_t)(number >> 32) * 0x85ebca6bu;
    PD_VECTORIZE for (int64_t i = 0; i < n; i++)
        d[i] = pd_rounded_by(s[i], pd_drawn((uint32_t)number + (uint32_t)i, key));
}

/* Of the n elements from `index` on in their segment. */
static void put_by_chance(pd_bf16 *out, const float *x, int64_t n, int64_t index, const pd_numbering *drawn,
                          uint32_t key) {
    for (int64_t i = 0, k; i < n; i += k) {
        k = n - i;
        if (drawn->run && k > drawn->run - (index + i) % drawn->run) k = drawn->run - (index + i) % drawn->run;
        put_run((uint16_t *)out + i, (const bits32 *)x + i, k, (uint64_t)pd_number_of(drawn, index + i), key);
    }
}

/* Runs fn on 16-bit parameters, gradients and states, converted to float a tile at a time. The piece begins at `index`
   of its segment. */
static void halves(const steps *k, step_fn fn, const pd_segment_step *s, int64_t index) {
    enum { ARRAYS = 5, GRADIENT = 1 };
    float tile[ARRAYS][PD_TILE];
    for (int64_t i = 0; i < s->n; i += PD_TILE) {
        void *const from[ARRAYS] = {s->p, s->g, s->m, s->v, s->w};
        float *at[ARRAYS] = {NULL};
        int64_t n = s->n - i < PD_TILE ? s->n - i : PD_TILE;
        for (int a = 0; a < ARRAYS; a++)
            if (from[a]) at[a] = (float *)(uintptr_t)load_f32(k->t, from[a], i, n, tile[a]);
        fn(k->c, &(pd_segment_step){.p = at[0], .g = at[1], .m = at[2], .v = at[3], .w = at[4], .n = n});
        for (int a = 0; a < ARRAYS; a++) {
            if (!from[a] || a == GRADIENT) continue;
            uint32_t key = (uint32_t)(s->chance ^ (s->chance >> 32)) + (uint32_t)a * 0xc2b2ae35u;
            if (s->chance && k->t == PD_BF16)
                put_by_chance((pd_bf16 *)from[a] + i, at[a], n, index + i, &s->drawn, key);
            else put_f32(k->t, from[a], i, n, at[a]);
        }
    }
}

/* Calls fn on the pieces of segments in [begin, end) of the concatenation. */
static void walk(const steps *k, step_fn fn, int64_t begin, int64_t end) {
    int64_t base = 0;
    size_t size = pd_dtype_size(k->t);
    for (int64_t i = 0; i < k->count && base < end; base += k->s[i++].n) {
        const pd_segment_step *s = &k->s[i];
        int64_t from = begin > base ? begin - base : 0, to = end - base < s->n ? end - base : s->n;
        int64_t block = s->low && to - from > LOW_BLOCK ? LOW_BLOCK : to - from;
        for (; from < to; from += block) {
            size_t at = (size_t)from * size;
            int64_t n = to - from < block ? to - from : block;
#define AT(p) ((p) ? (char *)(p) + at : NULL)
            pd_segment_step part = {.p = AT(s->p), .g = AT(s->g), .m = AT(s->m), .v = AT(s->v), .w = AT(s->w), .n = n,
                                    .chance = s->chance, .drawn = s->drawn};
            if (size == 2) halves(k, fn, &part, from);
            else fn(k->c, &part);
            if (s->low) PD_CASTS[s->low_t][k->t](n, 1.0, (char *const[]){(char *)s->low + from * 2, part.p});
        }
    }
}
static int64_t elements(const pd_segment_step *s, int64_t count) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) n += s[i].n;
    return n;
}

/* Chunks are few, since each searches its segment from the start of the list; at least 2048 elements, 1 us. */
static int64_t chunk(int64_t n) {
    int64_t len = (n / 64 + 1023) / 1024 * 1024;
    return len < 2048 ? 2048 : len;
}

#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/optim.inc"
#include "kernels/cpu/lib/each_type.h"

static void run(pd_dtype t, const void *c, const pd_segment_step *s, int64_t count, pd_range_fn f32, pd_range_fn f64) {
    steps k = {t, c, s, count};
    int64_t n = elements(s, count);
    pd_parallel(n, chunk(n), t == PD_F64 ? f64 : f32, &k);
}

PD_CPU_FUNCTION(void, sgd, pd_dtype t, const pd_sgd *c, const pd_segment_step *s, int64_t count) {
    run(t, c, s, count, sgd_range_f32, sgd_range_f64);
}

PD_CPU_FUNCTION(void, adadelta, pd_dtype t, const pd_adadelta *c, const pd_segment_step *s, int64_t count) {
    run(t, c, s, count, adadelta_range_f32, adadelta_range_f64);
}

PD_CPU_FUNCTION(void, rmsprop, pd_dtype t, const pd_rmsprop *c, const pd_segment_step *s, int64_t count) {
    run(t, c, s, count, rmsprop_range_f32, rmsprop_range_f64);
}

PD_CPU_FUNCTION(void, moments, pd_dtype t, const pd_moments *c, const pd_segment_step *s, int64_t count) {
    moments now = {c, pd_moments_now(c)};
    run(t, &now, s, count, moments_range_f32, moments_range_f64);
}

PD_CPU_FUNCTION(void, adamax, pd_dtype t, const pd_adamax *c, const pd_segment_step *s, int64_t count) {
    pd_adamax now = *c;
    now.lr = c->lr / (1.0 - pow(c->beta1, (double)c->step));
    run(t, &now, s, count, adamax_range_f32, adamax_range_f64);
}

PD_CPU_FUNCTION(void, asgd, pd_dtype t, const pd_asgd *c, const pd_segment_step *s, int64_t count) {
    run(t, c, s, count, asgd_range_f32, asgd_range_f64);
}

PD_CPU_FUNCTION(void, rprop, pd_dtype t, const pd_rprop *c, const pd_segment_step *s, int64_t count) {
    run(t, c, s, count, rprop_range_f32, rprop_range_f64);
}

PD_CPU_FUNCTION(void, lion, pd_dtype t, const pd_lion *c, const pd_segment_step *s, int64_t count) {
    run(t, c, s, count, lion_range_f32, lion_range_f64);
}

PD_CPU_FUNCTION(void, adagrad, pd_dtype t, const pd_adagrad *c, const pd_segment_step *s, int64_t count) {
    pd_adagrad now = *c;
    now.lr = c->lr / (1.0 + (double)(c->step - 1) * c->lr_decay);
    run(t, &now, s, count, adagrad_range_f32, adagrad_range_f64);
}

PD_CPU_FUNCTION(void, adam, pd_dtype t, const pd_adam *c, const pd_segment_step *s, int64_t count) {
    adam_plan plan = {.c = *c};
    double bias1 = 1.0 - pow(c->beta1, (double)c->step), bias2 = 1.0 - pow(c->beta2, (double)c->step);
    plan.step = c->lr / bias1;
    plan.root = 1.0 / sqrt(bias2);
    if (c->keras) plan.c.eps *= plan.root; /* eps stands beside the mean of squares before that is corrected */
    run(t, &plan, s, count, adam_range_f32, adam_range_f64);
}

typedef struct scale_job { pd_dtype t; double by; void *x; atomic_int broken; } scale_job;
#define SCALE(T, n, x, by, bad)                              \
    PD_VECTORIZE for (int64_t k = 0; k < (n); k++) {         \
        T v = (x)[k];                                        \
        bad |= !(v - v == 0); /* v - v is NaN for inf and NaN */ \
        (x)[k] = v * (by);                                   \
    }
static void scale_part(void *ctx, int64_t begin, int64_t end) {
    scale_job *j = ctx;
    int bad = 0;
    float buf[PD_TILE], by = (float)j->by;
    if (j->t == PD_F64) {
        double *x = (double *)j->x + begin;
        SCALE(double, end - begin, x, j->by, bad)
    }
    for (int64_t i = begin; i < end && j->t != PD_F64; i += PD_TILE) {
        int64_t n = end - i < PD_TILE ? end - i : PD_TILE;
        float *x = (float *)(uintptr_t)load_f32(j->t, j->x, i, n, buf);
        SCALE(float, n, x, by, bad)
        put_f32(j->t, j->x, i, n, x);
    }
    if (bad) atomic_store_explicit(&j->broken, 1, memory_order_relaxed);
}
PD_CPU_FUNCTION(bool, scale, pd_dtype t, int64_t n, double by, void *x) {
    scale_job j = {.t = t, .by = by, .x = x};
    pd_parallel(n, PD_GRAIN, scale_part, &j);
    return !j.broken;
}
