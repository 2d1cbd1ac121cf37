#include "comm/algo/reduce.h"

#include "base/cpu.h"

#define TILE 512 /* elements: partial results of a tile stay in the first-level cache */
#define DEPTH 24 /* tiles of partial results: two per level of the tree of 4096 ranks */

typedef void (*pair_fn)(const void *l, const void *r, void *o, int64_t n);
typedef struct loops {
    struct { pair_fn leaves, mixed, partials; } pairs[PD_REDUCE_COUNT]; /* by how many sides are partial results */
    void (*last)(const void *x, void *o, int64_t n, double scale);
    void (*widen)(const void *x, void *o, int64_t n); /* 16-bit types only, whose partial results are float32 */
} loops;

/* Conversions without branches, so that the loops vectorise; the same bits as base/dtype.h. */
static inline float f32_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float load_bf16(uint16_t h) { return f32_of((uint32_t)h << 16); }
static inline uint16_t store_bf16(float f) {
    uint32_t u = bits_of(f), nan = (u & 0x7fffffffu) > 0x7f800000u;
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    return (uint16_t)(nan ? quiet : rounded);
}
static inline float load_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t number = bits_of(f32_of(rest) * 0x1p112f), special = rest | 0x7f800000u;
    return f32_of((rest >= 0x7c00u << 13 ? special : number) | sign);
}
static inline uint16_t store_f16(float f) {
    uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    uint32_t nan = 0x7e00u | ((a >> 13) & 0x3ffu);
    uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    uint32_t small = bits_of(f32_of(a) + 0.5f) - 0x3f000000u; /* the adder rounds at 2^-24 */
    uint32_t r = a >= 0x38800000u ? normal : small;
    r = a >= 0x477ff000u ? 0x7c00u : r;
    r = a > 0x7f800000u ? nan : r;
    return (uint16_t)(sign | r);
}

#define PD_LOOPS(name) name##_portable
#include "comm/algo/reduce_loops.h"
#undef PD_LOOPS

#if defined __x86_64__ && defined __GNUC__ && !defined __clang__
#pragma GCC push_options
#pragma GCC target("avx2")
#define PD_LOOPS(name) name##_avx2
#include "comm/algo/reduce_loops.h"
#undef PD_LOOPS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define PD_LOOPS(name) name##_avx512
#include "comm/algo/reduce_loops.h"
#undef PD_LOOPS
#pragma GCC pop_options
static const loops *const tables[PD_ISA_COUNT] = {
    [PD_ISA_PORTABLE] = table_portable, [PD_ISA_AVX2] = table_avx2, [PD_ISA_AVX512] = table_avx512,
};
#else
static const loops *const tables[PD_ISA_COUNT] = {
    [PD_ISA_PORTABLE] = table_portable, [PD_ISA_AVX2] = table_portable, [PD_ISA_AVX512] = table_portable,
};
#endif

typedef struct plan {
    pair_fn leaves, mixed, partials;
    const char *const *in;
} plan;

/* Computes T(lo, hi) of the inputs at byte `at`, as partial results. Only the last pair writes `out`, which may be an
   input. split: the tree (reduce.h), or NULL: the one of so many ranks. */
static void tree(const plan *p, int lo, int hi, const int16_t *split, size_t at, int64_t n, char *out,
                 char (*tiles)[TILE * 8]) {
    int half = 1;
    while (half * 2 < hi - lo) half *= 2;
    const int mid = lo + (split ? *split : half);
    const char *left = tiles[0], *right = tiles[1];
    pair_fn add = p->partials;
    if (mid - lo > 1) tree(p, lo, mid, split ? split + 1 : NULL, at, n, tiles[0], tiles + 1);
    else left = p->in[lo] + at;
    if (hi - mid > 1) tree(p, mid, hi, split ? split + (mid - lo) : NULL, at, n, tiles[1], tiles + 2);
    else right = p->in[mid] + at, add = mid - lo > 1 ? p->mixed : p->leaves;
    add(left, right, out, n);
}

pd_status pd_reduce_check(const char *name, pd_dtype dtype, pd_reduce op, double scale) {
    if (dtype < 0 || dtype >= PD_DTYPE_COUNT || (unsigned)op >= PD_REDUCE_COUNT)
        return pd_fail(PD_E_VALUE,
                       "%s: the dtype or the reduce op is unknown: got dtype %d, op %d (expected numbers of both)",
                       name, (int)dtype, (int)op);
    const loops *l = &table_portable[dtype];
    if (!l->pairs[op].leaves)
        return pd_fail(PD_E_DTYPE, "%s: reduce op %s does not support %s (expected another op or dtype)", name,
                       pd_reduce_names[op], pd_dtype_name(dtype));
    if (scale != 1 && !l->last)
        return pd_fail(PD_E_DTYPE, "%s: scale is %g for %s (expected a floating dtype)", name, scale,
                       pd_dtype_name(dtype));
    return PD_OK;
}

void pd_reduce_tree(pd_dtype dtype, pd_reduce op, int size, const int16_t *split, const char *const *in, int64_t at,
                    char *out, int64_t count, double scale) {
    const loops *l = &tables[pd_cpu_isa()][dtype];
    plan p = {l->pairs[op].leaves, l->pairs[op].mixed, l->pairs[op].partials, in};
    const size_t element = pd_dtype_size(dtype);
    _Alignas(64) char tiles[DEPTH + 1][TILE * 8];
    for (int64_t done = 0; done < count; done += TILE) {
        int64_t n = count - done < TILE ? count - done : TILE;
        size_t from = (size_t)(at + done) * element;
        char *to = out + (size_t)done * element, *sum = l->widen ? tiles[0] : to;
        if (size > 1) tree(&p, 0, size, split, from, n, sum, tiles + 1);
        else if (l->widen) l->widen(in[0] + from, sum, n);
        else memmove(sum, in[0] + from, (size_t)n * element);
        if (l->widen || scale != 1) l->last(sum, to, n, scale);
    }
}

void pd_reduce_wide(pd_dtype dtype, pd_reduce op, int size, const char *const *in, int64_t at, float *out,
                    int64_t count, double scale) {
    const loops *l = &tables[pd_cpu_isa()][dtype], *wide = &tables[pd_cpu_isa()][PD_F32];
    plan p = {l->pairs[op].leaves, l->pairs[op].mixed, l->pairs[op].partials, in};
    _Alignas(64) char tiles[DEPTH][TILE * 8];
    for (int64_t done = 0; done < count; done += TILE) {
        int64_t n = count - done < TILE ? count - done : TILE;
        size_t from = (size_t)(at + done) * pd_dtype_size(dtype);
        if (size > 1) tree(&p, 0, size, NULL, from, n, (char *)(out + done), tiles);
        else l->widen(in[0] + from, out + done, n);
        if (scale != 1) wide->last(out + done, out + done, n, scale);
    }
}

pd_dtype pd_reduce_partial(pd_dtype dtype) { return table_portable[dtype].widen ? PD_F32 : dtype; }

void pd_reduce_widen(pd_dtype dtype, const char *in, char *out, int64_t count) {
    const loops *l = &tables[pd_cpu_isa()][dtype];
    if (l->widen) l->widen(in, out, count);
    else memcpy(out, in, (size_t)count * pd_dtype_size(dtype));
}

void pd_reduce_round(pd_dtype dtype, const char *in, char *out, int64_t count, double scale) {
    const loops *l = &tables[pd_cpu_isa()][dtype];
    if (l->widen || scale != 1) l->last(in, out, count, scale);
    else memcpy(out, in, (size_t)count * pd_dtype_size(dtype));
}
