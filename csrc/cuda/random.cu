/* Random fills, with the same numbers as on the CPU (kernels/cpu/random.c says which draw is for which element). A
   thread has a block of Philox: four elements, or two of float64. */
#include "cuda/sort.h"
#include "cuda/table.h"
#include "kernels/vmath.h"

struct draws { uint32_t u[4]; };

/* The key of a launch. In a graph it starts where the generator is at the time of the replay. */
struct generator {
    pd_rng_key key;
    const uint64_t *past;
    __device__ pd_rng_key now() const {
        pd_rng_key k = key;
        if (past) k.seed += past[0], k.call += past[1];
        return k;
    }
};
static generator of(pd_rng_key key) { return {key, pd_cuda_draws_past}; }

/* Draws block number `block`; above 2^32 it continues in the upper half of the call counter. */
static __device__ draws draw(pd_rng_key key, uint64_t block) {
    pd_philox p = pd_philox_at(key.seed, key.stream, key.call ^ (block >> 32 << 32), (uint32_t)block);
    draws d = {{p.v[0], p.v[1], p.v[2], p.v[3]}};
    return d;
}
static __device__ uint64_t second(const draws &d, int i) { return d.u[2 * i] | (uint64_t)d.u[2 * i + 1] << 32; }

/* Calls fill(first element of the block, its draws, elements left) for each block. */
template <int EACH, class F> static __device__ void each_block(const generator &from, int64_t n, F fill) {
    pd_rng_key key = from.now();
    int64_t step = (int64_t)gridDim.x * blockDim.x, blocks = (n + EACH - 1) / EACH;
    for (int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += step) {
        int64_t left = n - b * EACH;
        fill(b * EACH, draw(key, (uint64_t)b), (int)(left < EACH ? left : EACH));
    }
}

template <class E> static __global__ void uniform_kernel(E *out, int64_t n, double lo, double hi, generator from) {
    if constexpr (sizeof(wide<E>) == 8)
        each_block<2>(from, n, [=](int64_t i, const draws &d, int m) {
            for (int k = 0; k < m; k++) {
                double v = lo + pd_u64_to_f64(second(d, k)) * (hi - lo);
                out[i + k] = v < hi ? v : lo; /* rounding may give the open end */
            }
        });
    else
        each_block<4>(from, n, [=](int64_t i, const draws &d, int m) {
            float low = (float)lo, high = (float)hi, span = high - low;
            for (int k = 0; k < m; k++) {
                float v = low + pd_u32_to_f32(d.u[k]) * span;
                out[i + k] = narrow<E>(v < high ? v : low);
            }
        });
}

template <class E> static __global__ void normal_kernel(E *out, int64_t n, double mean, double std, generator from) {
    if constexpr (sizeof(wide<E>) == 8)
        each_block<2>(from, n, [=](int64_t i, const draws &d, int m) {
            double r = V_SQRT(-2.0 * vm_log(1.0 - pd_u64_to_f64(second(d, 0)))), turn = pd_u64_to_f64(second(d, 1)) * 6.283185307179586;
            out[i] = mean + std * (r * vm_cos(turn));
            if (m > 1) out[i + 1] = mean + std * (r * vm_sin(turn));
        });
    else
        each_block<4>(from, n, [=](int64_t i, const draws &d, int m) {
            float by = (float)std, add = (float)mean;
            for (int k = 0; k < m; k += 2) { /* (u + 1/2) / 2^32, at most 1: the tail ends at 6.8 */
                float r = V_SQRT(-2.0f * vm_logf(((float)d.u[k] + 0.5f) * 0x1p-32f));
                float turn = (float)(int32_t)(d.u[k + 1] >> 8) * (0x1p-24f * 6.2831853f);
                out[i + k] = narrow<E>(add + by * (r * vm_cosf(turn)));
                if (k + 1 < m) out[i + k + 1] = narrow<E>(add + by * (r * vm_sinf(turn)));
            }
        });
}

template <class E> static __global__ void dropout_kernel(const E *x, E *y, int64_t n, double by, uint32_t below, bool all, generator from) {
    typedef wide<E> T;
    each_block<4>(from, n, [=](int64_t i, const draws &d, int m) {
        for (int k = 0; k < m; k++) {
            T v = widen(x[i + k]) * (T)by;
            y[i + k] = narrow<E>(all || d.u[k] < below ? v : (T)0);
        }
    });
}
template <class E> static __global__ void bernoulli_kernel(E *out, int64_t n, uint32_t below, bool all, generator from) {
    each_block<4>(from, n, [=](int64_t i, const draws &d, int m) {
        for (int k = 0; k < m; k++) out[i + k] = narrow<E>((wide<E>)(all || d.u[k] < below));
    });
}

/* The upper 64 bits of u * span: a number below span. */
static __device__ int64_t upper_half(uint64_t u, uint64_t span) {
    uint64_t a = u >> 32, b = (uint32_t)u, high = span >> 32, low = (uint32_t)span;
    uint64_t middle = a * low + (b * low >> 32), rest = b * high + (uint32_t)middle;
    return (int64_t)(a * high + (middle >> 32) + (rest >> 32));
}

template <class E> static __global__ void randint_kernel(E *out, int64_t n, int64_t lo, uint64_t span, generator from) {
    each_block<2>(from, n, [=](int64_t i, const draws &d, int m) {
        for (int k = 0; k < m; k++) {
            int64_t v = (int64_t)((uint64_t)lo + (uint64_t)upper_half(second(d, k), span));
            out[i + k] = narrow<E>((wide<E>)v);
        }
    });
}

/* Turns p into a bound on 32 bits; p = 1 has none. */
static uint32_t bound(double p, bool *all) {
    *all = p >= 1.0;
    return p <= 0.0 || p >= 1.0 ? 0 : (uint32_t)(p * 0x1p32);
}

void pd_cuda_uniform(pd_dtype t, int64_t n, double lo, double hi, pd_rng_key key, void *out) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(uniform_kernel<E>, blocks_for(n, 256, 4), 256, (E *)out, n, lo, hi, of(key));
    });
}
void pd_cuda_normal(pd_dtype t, int64_t n, double mean, double std, pd_rng_key key, void *out) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(normal_kernel<E>, blocks_for(n, 256, 4), 256, (E *)out, n, mean, std, of(key));
    });
}
void pd_cuda_dropout(pd_dtype t, int64_t n, double p, pd_rng_key key, const void *x, void *y) {
    bool all;
    uint32_t below = bound(1.0 - p, &all);
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(dropout_kernel<E>, blocks_for(n, 256, 4), 256, (const E *)x, (E *)y, n, p >= 1.0 ? 0.0 : 1.0 / (1.0 - p), below, all, of(key));
    });
}
void pd_cuda_bernoulli(pd_dtype t, int64_t n, double p, pd_rng_key key, void *out) {
    bool all;
    uint32_t below = bound(p, &all);
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(bernoulli_kernel<E>, blocks_for(n, 256, 4), 256, (E *)out, n, below, all, of(key));
    });
}
void pd_cuda_randint(pd_dtype t, int64_t n, int64_t lo, int64_t hi, pd_rng_key key, void *out) {
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(randint_kernel<E>, blocks_for(n, 256, 2), 256, (E *)out, n, lo, (uint64_t)hi - (uint64_t)lo, of(key));
    });
}

/* ---- permutations ------------------------------------------------------------------------------------------------ */

/* The permutation of the CPU's Fisher-Yates (kernels/cpu/random.c), computed in parallel. Its step i exchanges places i
   and t(i) >= i, so place i is final after step i, which puts there what t(i) held. A place p holds p until a step j <
   p has t(j) = p. Then it holds what place j held just before step j; that was put there by the last step j' < j with
   t(j') = j, and so on. last[j] is this j', or j itself if there is none. When steps are sorted by t, then by i, steps
   with the same target are neighbours, so the step before i that met t(i) is i's neighbour. n - j' is n - j divided by
   a uniform number, so a chain has ln(n / (n - j)) links on average: one, over all j. */
static __global__ void draw_targets(entry *e, int64_t *last, int64_t n, generator from) {
    each_block<2>(from, n, [=](int64_t i, const draws &d, int m) {
        for (int k = 0; k < m; k++) {
            e[i + k] = entry{(uint64_t)(i + k + upper_half(second(d, k), (uint64_t)(n - i - k))), i + k};
            last[i + k] = i + k;
        }
    });
}
/* last[p]: the largest of the steps that met p, except p's own step, which is the last of them. */
static __global__ void link_steps(const entry *e, int64_t *last, int64_t n) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t s = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; s < n; s += step) {
        int64_t p = (int64_t)e[s].key, i = e[s].i;
        bool ends = s + 1 == n || (int64_t)e[s + 1].key != p || e[s + 1].i == p;
        if (ends && i != p) last[p] = i;
    }
}
static __global__ void follow_steps(const entry *e, const int64_t *last, int64_t n, int64_t *out) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t s = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; s < n; s += step) {
        int64_t held = (int64_t)e[s].key;
        if (s && e[s - 1].key == e[s].key)
            for (held = e[s - 1].i; last[held] != held;) held = last[held];
        out[e[s].i] = held;
    }
}
void pd_cuda_randperm(int64_t n, pd_rng_key key, int64_t *out) {
    if (n <= 0) return;
    int64_t *last = (int64_t *)pd_cuda_lent->room((size_t)n * sizeof *last), blocks = blocks_for(n, 256, 1);
    entry *e = last ? pd_cuda_entries(1, n) : nullptr;
    if (!e) return;
    launch(draw_targets, blocks_for(n, 256, 2), 256, e, last, n, of(key));
    e = pd_cuda_sorted(e, 1, n);
    if (!e) return;
    launch(link_steps, blocks, 256, (const entry *)e, last, n);
    launch(follow_steps, blocks, 256, (const entry *)e, (const int64_t *)last, n, out);
}
