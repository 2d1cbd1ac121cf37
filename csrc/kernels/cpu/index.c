/* Where indices lead; gathering and scattering blocks by offset; topk. */
#include "kernels/cpu/real.h"

static int64_t index_at(const pd_chooser *c, int64_t at) {
    return c->narrow ? ((const int32_t *)c->index)[at] : ((const int64_t *)c->index)[at];
}
/* A run of n places along the innermost dimension: what chooser c adds to each, whose own share is base + i * own, or
   (own < 0) stands there already. A bad index is -1 - its number in the run. */
PD_INLINE int64_t choose_run(const pd_chooser *c, int64_t first, int64_t step, int64_t n, int64_t base, int64_t own,
                             int64_t *out) {
    int64_t place = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((step || !i) && !pd_choose(c, index_at(c, first + i * step), &place)) return -1 - i;
        int64_t had = own < 0 ? out[i] : base + i * own;
        out[i] = place < 0 || had < 0 ? -1 : had + place;
    }
    return n;
}
PD_CPU_FUNCTION(bool, places, const pd_places *p, int64_t *out, pd_bad_index *bad) {
    int64_t at[PD_PLACE_DIMS] = {0};
    const int last = p->ndim - 1;
    const int64_t run = last < 0 ? 1 : p->size[last], own = last < 0 ? 0 : p->own[last];
    int64_t before = p->count ? p->first / run : 0;
    for (int d = last - 1; d >= 0 && before; d--) {
        at[d] = before % p->size[d];
        before /= p->size[d];
    }
    for (int64_t i = 0; i < p->count; i += run) {
        int64_t base = p->base;
        for (int d = 0; d < last; d++) base += at[d] * p->own[d];
        for (int64_t r = 0; r < run && !p->nby; r++) out[i + r] = base + r * own;
        for (int j = 0; j < p->nby; j++) {
            const pd_chooser *c = &p->by[j];
            int64_t first = 0, step = last < 0 ? 0 : c->stride[last];
            for (int d = 0; d < last; d++) first += at[d] * c->stride[d];
            int64_t good = j ? choose_run(c, first, step, run, 0, -1, out + i)
                             : choose_run(c, first, step, run, base, own, out + i);
            if (good >= 0) continue;
            int64_t value = index_at(c, first + (-1 - good) * step);
            *bad = (pd_bad_index){p->op, p->kind, {value, p->kind == PD_BAD_INDEX ? c->dim : c->n, c->n}};
            return false;
        }
        for (int d = last - 1; d >= 0 && ++at[d] == p->size[d]; d--) at[d] = 0;
    }
    return true;
}

typedef struct index_job {
    pd_dtype t;
    int64_t count, n, src_stride;
    size_t bytes;
    const int64_t *offset;
    const char *src;
    char *dst;
} index_job;

static void take_part(void *ctx, int64_t begin, int64_t end) {
    const index_job *j = ctx;
    const size_t b = j->bytes;
    char *dst = j->dst + (size_t)begin * b;
#define TAKE(bytes)                                                        \
    for (int64_t i = begin; i < end; i++, dst += bytes) {                  \
        if (j->offset[i] < 0) memset(dst, 0, bytes);                       \
        else memcpy(dst, j->src + j->offset[i], bytes);                    \
    }
    if (b == 4) TAKE(4)
    else if (b == 8) TAKE(8)
    else TAKE(b)
#undef TAKE
}
PD_CPU_FUNCTION(void, take, int64_t count, size_t bytes, const int64_t *offset, const char *src, char *dst) {
    index_job j = {.bytes = bytes, .offset = offset, .src = src, .dst = dst};
    if (!bytes) return;
    int64_t grain = 4 * PD_GRAIN / (int64_t)(bytes < 16 ? 16 : bytes);
    pd_parallel(count, grain > 0 ? grain : 1, take_part, &j);
}

/* Threads get bytes (or elements) of every block, so that the order among blocks stays. */
static void put_part(void *ctx, int64_t begin, int64_t end) {
    const index_job *j = ctx;
    for (int64_t i = 0; i < j->count; i++)
        if (j->offset[i] >= 0)
            memcpy(j->dst + j->offset[i] + begin, j->src + i * j->src_stride + begin, (size_t)(end - begin));
}
PD_CPU_FUNCTION(void, put, int64_t count, size_t bytes, const int64_t *offset, const char *src, int64_t src_stride,
                char *dst) {
    index_job j = {.count = count, .offset = offset, .src = src, .src_stride = src_stride, .dst = dst};
    if (count <= 0) return;
    int64_t grain = 4 * PD_GRAIN / count;
    pd_parallel((int64_t)bytes, grain < 4096 ? 4096 : grain, put_part, &j);
}

#define ADD_PART(TYPE)                                                                 \
    for (int64_t i = 0; end - begin == 1 && i < j->count; i++)                         \
        if (j->offset[i] >= 0)                                                         \
            ((TYPE *)(void *)(j->dst + j->offset[i]))[begin] =                         \
                (TYPE)(((TYPE *)(void *)(j->dst + j->offset[i]))[begin] +              \
                       ((const TYPE *)(const void *)(j->src + i * j->src_stride))[begin]); \
    if (end - begin == 1) break;                                                       \
    for (int64_t i = 0; i < j->count; i++) {                                           \
        if (j->offset[i] < 0) continue;                                                \
        TYPE *d = (TYPE *)(void *)(j->dst + j->offset[i]);                             \
        const TYPE *s = (const TYPE *)(const void *)(j->src + i * j->src_stride);      \
        PD_VECTORIZE for (int64_t k = begin; k < end; k++) d[k] = (TYPE)(d[k] + s[k]); \
    }                                                                                  \
    break;

static void put_add_part(void *ctx, int64_t begin, int64_t end) {
    const index_job *j = ctx;
    switch (j->t) {
        case PD_BOOL:
            for (int64_t i = 0; i < j->count; i++)
                for (int64_t k = begin; k < end && j->offset[i] >= 0; k++)
                    j->dst[j->offset[i] + k] |= j->src[i * j->src_stride + k];
            break;
        case PD_U8: ADD_PART(uint8_t)
        case PD_I8: ADD_PART(int8_t)
        case PD_I16: ADD_PART(int16_t)
        case PD_I32: ADD_PART(int32_t)
        case PD_I64: ADD_PART(int64_t)
        case PD_F32: ADD_PART(float)
        case PD_F64: ADD_PART(double)
        default:
            for (int64_t i = 0; i < j->count; i++)
                for (int64_t k = begin; k < end && j->offset[i] >= 0; k += PD_TILE) {
                    float d[PD_TILE], s[PD_TILE];
                    int64_t m = end - k < PD_TILE ? end - k : PD_TILE;
                    load_f32(j->t, j->dst + j->offset[i], k, m, d);
                    load_f32(j->t, j->src + i * j->src_stride, k, m, s);
                    for (int64_t e = 0; e < m; e++) d[e] += s[e];
                    put_f32(j->t, j->dst + j->offset[i], k, m, d);
                }
    }
}
PD_CPU_FUNCTION(void, put_add, pd_dtype t, int64_t count, int64_t n, const int64_t *offset, const char *src,
                int64_t src_stride, char *dst) {
    if (pd_dtype_is_complex(t)) t = pd_dtype_part(t), n *= 2;
    index_job j = {.t = t, .count = count, .offset = offset, .src = src, .src_stride = src_stride, .dst = dst};
    if (count <= 0) return;
    int64_t grain = PD_GRAIN / count;
    pd_parallel(n, grain < 64 ? 64 : grain, put_add_part, &j);
}

/* ---- topk ---- */

/* Rows worked on at a time: each needs room for a heap of n entries of 16 bytes. */
static int64_t topk_slots(const pd_block *b) {
    int64_t n = b->n > 0 ? b->n : 1, most = (1 << 20) / n, slots = b->outer;
    if (slots > most) slots = most;
    if (slots > 64) slots = 64;
    return slots > 0 ? slots : 1;
}

#define PD_INCLUDED "kernels/cpu/topk.inc"
#include "kernels/cpu/each_type.h"

PD_CPU_FUNCTION(void, topk, bool largest, pd_dtype t, const pd_block *b, int64_t k, const void *x, void *values,
                int64_t *index, void *scratch) {
    switch (pd_compute_of(t)) {
        case PD_IN_F32: topk_f32(largest, t, b, k, x, values, index, scratch); break;
        case PD_IN_F64: topk_f64(largest, t, b, k, x, values, index, scratch); break;
        case PD_IN_I64: topk_i64(largest, t, b, k, x, values, index, scratch); break;
    }
}
PD_CPU_FUNCTION(size_t, topk_scratch, const pd_block *b) {
    return (size_t)(topk_slots(b) * (b->n > 0 ? b->n : 1) * 16);
}
