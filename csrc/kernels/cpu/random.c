/* Random fills. Element i of a call is a function of (key, i) alone:

       32-bit draws   word i % 4 of block i / 4                  uniform, normal (but F64), dropout, bernoulli
       64-bit draws   words 2 (i % 2), 2 (i % 2) + 1 of block i / 2    uniform and normal of F64, randint, randperm

   Box-Muller uses draws in pairs: elements i and i + 1, for even i, are r cos and r sin of a pair. A block number above
   2^32 continues in the upper half of the call counter. */
#include "kernels/cpu/lib/real.h"

#define BLOCKS (PD_TILE / 4)

/* Each 64-bit lane has a block; the lower half of its word counts. */
typedef uint64_t pd_vw __attribute__((vector_size(PD_VB)));
#define LANES_W (PD_VB / 8)
#define AT_ONCE 4 /* vectors at a time, since each round waits for its products */

PD_INLINE pd_vw product(pd_vw a, uint32_t b) {
#if defined(__AVX512F__)
    return (pd_vw)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (pd_vw)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
    return (pd_vw)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
    return (a & UINT32_MAX) * b;
#endif
}

/* Draws four words of each of `n` <= BLOCKS blocks, as pd_philox_at does. Also overwrites the rest of u's last AT_ONCE
   vectors. */
static void draw(pd_rng_key key, uint64_t block, int64_t n, uint32_t *u) {
    const uint64_t call = key.call ^ (block >> 32 << 32);
    const pd_vw none = {0};
    pd_vw first = none + block;
    for (int l = 0; l < LANES_W; l++) first[l] += (uint64_t)l;
    for (int64_t i = 0; i < n; i += AT_ONCE * LANES_W) {
        pd_vw c0[AT_ONCE], c1[AT_ONCE], c2[AT_ONCE], c3[AT_ONCE];
        uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
        for (int v = 0; v < AT_ONCE; v++) {
            c0[v] = first + (uint64_t)(i + v * LANES_W);
            c1[v] = none + key.stream;
            c2[v] = none + (call & UINT32_MAX);
            c3[v] = none + (call >> 32);
        }
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
#pragma GCC unroll 4
            for (int v = 0; v < AT_ONCE; v++) {
                pd_vw p0 = product(c0[v], 0xD2511F53u), p1 = product(c2[v], 0xCD9E8D57u);
                c0[v] = (p1 >> 32) ^ c1[v] ^ k0;
                c2[v] = (p0 >> 32) ^ c3[v] ^ k1;
                c1[v] = p1;
                c3[v] = p0;
            }
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
#pragma GCC unroll 4
        for (int v = 0; v < AT_ONCE; v++) {
            pd_vw low = (c0[v] & UINT32_MAX) | c1[v] << 32, high = (c2[v] & UINT32_MAX) | c3[v] << 32;
            uint64_t two[2 * LANES_W];
            for (int l = 0; l < LANES_W; l++) two[2 * l] = low[l], two[2 * l + 1] = high[l];
            memcpy(u + 4 * (i + v * LANES_W), two, sizeof two);
        }
    }
}

typedef struct fill_job {
    pd_dtype t;
    pd_rng_key key;
    double a, b;
    uint32_t below; /* an element is kept if its draw is below; all: always */
    bool all;
    int64_t lo;
    uint64_t span;
    const void *x;
    void *out;
} fill_job;

/* Tiles begin at multiples of PD_TILE, and so with whole blocks. */
#define EACH_TILE(i, n) \
    for (int64_t i = begin, n; n = end - i < PD_TILE ? end - i : PD_TILE, i < end; i += PD_TILE)

static void draw32(const fill_job *j, int64_t i, int64_t n, uint32_t *u) {
    draw(j->key, (uint64_t)i / 4, (n + 3) / 4, u);
}
static void draw64(const fill_job *j, int64_t i, int64_t n, uint64_t *u) {
    uint32_t w[2 * PD_TILE];
    for (int64_t h = 0; h < n; h += PD_TILE / 2) {
        int64_t m = n - h < PD_TILE / 2 ? n - h : PD_TILE / 2;
        draw(j->key, (uint64_t)(i + h) / 2, (m + 1) / 2, w + 2 * h);
    }
    for (int64_t k = 0; k < n; k++) u[k] = w[2 * k] | (uint64_t)w[2 * k + 1] << 32;
}

static void uniform_part(void *ctx, int64_t begin, int64_t end) {
    const fill_job *j = ctx;
    if (j->t == PD_F64) {
        uint64_t u[PD_TILE];
        double *out = (double *)j->out;
        EACH_TILE(i, n) {
            draw64(j, i, n, u);
            for (int64_t k = 0; k < n; k++) {
                double v = j->a + pd_u64_to_f64(u[k]) * (j->b - j->a);
                out[i + k] = v < j->b ? v : j->a; /* rounding may give the open end */
            }
        }
        return;
    }
    uint32_t u[PD_TILE];
    float buf[PD_TILE], lo = (float)j->a, hi = (float)j->b, span = hi - lo;
    EACH_TILE(i, n) {
        float *out = room_f32(j->t, j->out, i, buf);
        draw32(j, i, n, u);
        for (int64_t k = 0; k < n; k++) {
            float v = lo + (float)(int32_t)(u[k] >> 8) * 0x1p-24f * span;
            out[k] = v < hi ? v : lo;
        }
        put_f32(j->t, j->out, i, n, out);
    }
}

static void normal_part(void *ctx, int64_t begin, int64_t end) {
    const fill_job *j = ctx;
    if (j->t == PD_F64) {
        uint64_t u[PD_TILE];
        double *out = (double *)j->out, z[PD_TILE];
        EACH_TILE(i, n) {
            int64_t pairs = (n + 1) / 2;
            draw64(j, i, 2 * pairs, u);
            for (int64_t k = 0; k < pairs; k++) {
                double r = __builtin_sqrt(-2.0 * vm_log(1.0 - pd_u64_to_f64(u[2 * k])));
                double turn = pd_u64_to_f64(u[2 * k + 1]) * 6.283185307179586;
                z[2 * k] = r * vm_cos(turn);
                z[2 * k + 1] = r * vm_sin(turn);
            }
            for (int64_t k = 0; k < n; k++) out[i + k] = j->a + j->b * z[k];
        }
        return;
    }
    uint32_t u[PD_TILE];
    float buf[PD_TILE], z[PD_TILE], mean = (float)j->a, std = (float)j->b;
    EACH_TILE(i, n) {
        float *out = room_f32(j->t, j->out, i, buf);
        int64_t pairs = (n + 1) / 2;
        draw32(j, i, 2 * pairs, u);
        for (int64_t k = 0; k < pairs; k++) { /* (u + 1/2) / 2^32, at most 1: the tail ends at 6.8 */
            float r = __builtin_sqrtf(-2.0f * vm_logf(((float)u[2 * k] + 0.5f) * 0x1p-32f));
            float turn = (float)(int32_t)(u[2 * k + 1] >> 8) * (0x1p-24f * 6.2831853f);
            z[2 * k] = r * vm_cosf(turn);
            z[2 * k + 1] = r * vm_sinf(turn);
        }
        for (int64_t k = 0; k < n; k++) out[k] = mean + std * z[k];
        put_f32(j->t, j->out, i, n, out);
    }
}

static void dropout_part(void *ctx, int64_t begin, int64_t end) {
    const fill_job *j = ctx;
    uint32_t u[PD_TILE];
    EACH_TILE(i, n) {
        if (!j->all) draw32(j, i, n, u);
        else memset(u, 0, sizeof u);
        uint32_t below = j->all ? 1 : j->below;
        if (j->t == PD_F64) {
            const double *x = (const double *)j->x + i;
            double *y = (double *)j->out + i;
            PD_VECTORIZE for (int64_t k = 0; k < n; k++) {
                double v = x[k] * j->a;
                y[k] = u[k] < below ? v : 0.0;
            }
            continue;
        }
        float in[PD_TILE], buf[PD_TILE], by = (float)j->a;
        const float *x = load_f32(j->t, j->x, i, n, in);
        float *y = room_f32(j->t, j->out, i, buf);
        PD_VECTORIZE for (int64_t k = 0; k < n; k++) {
            float v = x[k] * by;
            y[k] = u[k] < below ? v : 0.0f;
        }
        put_f32(j->t, j->out, i, n, y);
    }
}

static void bernoulli_part(void *ctx, int64_t begin, int64_t end) {
    const fill_job *j = ctx;
    uint32_t u[PD_TILE];
    uint8_t one[PD_TILE];
    int64_t size = (int64_t)pd_dtype_size(j->t);
    EACH_TILE(i, n) {
        draw32(j, i, n, u);
        for (int64_t k = 0; k < n; k++) one[k] = (uint8_t)(j->all | (u[k] < j->below));
        PD_CASTS[j->t][PD_U8](n, 1.0, (char *const[]){(char *)j->out + i * size, (char *)one});
    }
}

/* The upper 64 bits of a * b. */
static uint64_t mul_high(uint64_t a, uint64_t b) { return (uint64_t)(((unsigned __int128)a * b) >> 64); }

static void randint_part(void *ctx, int64_t begin, int64_t end) {
    const fill_job *j = ctx;
    uint64_t u[PD_TILE];
    int64_t v[PD_TILE], size = (int64_t)pd_dtype_size(j->t);
    EACH_TILE(i, n) {
        draw64(j, i, n, u);
        for (int64_t k = 0; k < n; k++) v[k] = (int64_t)((uint64_t)j->lo + mul_high(u[k], j->span));
        PD_CASTS[j->t][PD_I64](n, 1.0, (char *const[]){(char *)j->out + i * size, (char *)v});
    }
}

#define RANDOM_GRAIN (PD_GRAIN / 4) /* a multiple of PD_TILE */

PD_CPU_FUNCTION(void, uniform, pd_dtype t, int64_t n, double lo, double hi, pd_rng_key key, void *out) {
    fill_job j = {.t = t, .key = key, .a = lo, .b = hi, .out = out};
    pd_parallel(n, RANDOM_GRAIN, uniform_part, &j);
}
PD_CPU_FUNCTION(void, normal, pd_dtype t, int64_t n, double mean, double std, pd_rng_key key, void *out) {
    fill_job j = {.t = t, .key = key, .a = mean, .b = std, .out = out};
    pd_parallel(n, RANDOM_GRAIN, normal_part, &j);
}
/* Turns p into a bound on 32 bits; p = 1 has none. */
static void set_probability(fill_job *j, double p) {
    j->all = p >= 1.0;
    j->below = p <= 0.0 || p >= 1.0 ? 0 : (uint32_t)(p * 0x1p32);
}
PD_CPU_FUNCTION(void, dropout, pd_dtype t, int64_t n, double p, pd_rng_key key, const void *x, void *y) {
    fill_job j = {.t = t, .key = key, .a = p >= 1.0 ? 0.0 : 1.0 / (1.0 - p), .x = x, .out = y};
    set_probability(&j, 1.0 - p);
    pd_parallel(n, RANDOM_GRAIN, dropout_part, &j);
}
PD_CPU_FUNCTION(void, bernoulli, pd_dtype t, int64_t n, double p, pd_rng_key key, void *out) {
    fill_job j = {.t = t, .key = key, .out = out};
    set_probability(&j, p);
    pd_parallel(n, RANDOM_GRAIN, bernoulli_part, &j);
}
PD_CPU_FUNCTION(void, randint, pd_dtype t, int64_t n, int64_t lo, int64_t hi, pd_rng_key key, void *out) {
    fill_job j = {.t = t, .key = key, .lo = lo, .span = (uint64_t)hi - (uint64_t)lo, .out = out};
    pd_parallel(n, RANDOM_GRAIN, randint_part, &j);
}
PD_CPU_FUNCTION(void, randperm, int64_t n, pd_rng_key key, int64_t *out) {
    fill_job j = {.key = key};
    uint64_t u[PD_TILE];
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = 0; i < n - 1; i++) {
        if (i % PD_TILE == 0) draw64(&j, i, PD_TILE, u);
        int64_t k = i + (int64_t)mul_high(u[i % PD_TILE], (uint64_t)(n - i)), was = out[i];
        out[i] = out[k];
        out[k] = was;
    }
}
