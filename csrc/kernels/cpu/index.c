/* Where indices lead; gathering and scattering blocks by offset. */
#include "kernels/cpu/lib/real.h"

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
/* The same without branches, for int64 indices that follow each other, where none is skipped; false: one is bad. */
PD_INLINE bool choose_dense(const pd_chooser *c, int64_t first, int64_t n, int64_t base, int64_t own, int64_t *out) {
    const int64_t *index = (const int64_t *)c->index + first, each = c->step, wrap = c->wraps ? c->n : 0;
    const uint64_t most = (uint64_t)c->n;
    uint64_t bad = 0;
    PD_VECTORIZE for (int64_t i = 0; i < n; i++) {
        int64_t v = index[i], had = own < 0 ? out[i] : base + i * own;
        v += v < 0 ? wrap : 0;
        bad |= (uint64_t)((uint64_t)v >= most);
        out[i] = had + v * each;
    }
    return !bad;
}
typedef struct places_job { const pd_places *p; int64_t *out; pd_bad_index *bad; bool failed; } places_job;
static void places_part(void *ctx, int64_t begin, int64_t end) {
    places_job *job = ctx;
    const pd_places *p = job->p;
    int64_t at[PD_PLACE_DIMS] = {0}, run, *out = job->out + begin;
    const int last = p->ndim - 1;
    const int64_t size = last < 0 ? 1 : p->size[last], own = last < 0 ? 0 : p->own[last];
    int64_t before = (p->first + begin) / size, skip = (p->first + begin) % size;
    for (int d = last - 1; d >= 0 && before; d--) {
        at[d] = before % p->size[d];
        before /= p->size[d];
    }
    for (int64_t i = begin; i < end; i += run, out += run, skip = 0) {
        int64_t base = p->base + skip * own;
        run = size - skip < end - i ? size - skip : end - i;
        for (int d = 0; d < last; d++) base += at[d] * p->own[d];
        for (int64_t r = 0; r < run && !p->nby; r++) out[r] = base + r * own;
        for (int j = 0; j < p->nby; j++) {
            const pd_chooser *c = &p->by[j];
            int64_t step = last < 0 ? 0 : c->stride[last], first = skip * step;
            for (int d = 0; d < last; d++) first += at[d] * c->stride[d];
            if (!c->narrow && c->skip < 0 && step == 1 &&
                (j      ? choose_dense(c, first, run, 0, -1, out)
                 : !own ? choose_dense(c, first, run, base, 0, out)
                        : choose_dense(c, first, run, base, own, out)))
                continue;
            int64_t good = j ? choose_run(c, first, step, run, 0, -1, out)
                             : choose_run(c, first, step, run, base, own, out);
            if (good >= 0) continue;
            if (job->bad) {
                int64_t value = index_at(c, first + (-1 - good) * step);
                *job->bad = (pd_bad_index){p->op, p->kind, {value, p->kind == PD_BAD_INDEX ? c->dim : c->n, c->n}};
            }
            __atomic_store_n(&job->failed, true, __ATOMIC_RELAXED);
            return;
        }
        for (int d = last - 1; d >= 0 && ++at[d] == p->size[d]; d--) at[d] = 0;
    }
}
PD_CPU_FUNCTION(bool, places, const pd_places *p, int64_t *out, pd_bad_index *bad) {
    places_job j = {.p = p, .out = out};
    if (p->count > 0) pd_parallel(p->count, PD_GRAIN / 4, places_part, &j);
    if (!j.failed) return true;
    j.bad = bad; /* the first one */
    places_part(&j, 0, p->count);
    return false;
}

typedef struct index_job {
    pd_dtype t;
    int64_t count, n, src_stride;
    size_t bytes;
    const int64_t *offset;
    const char *src;
    char *dst;
} index_job;

/* No block is left out. */
#define ALL_FOUR(o) (((o)[0] | (o)[1] | (o)[2] | (o)[3]) >= 0)

static void take_part(void *ctx, int64_t begin, int64_t end) {
    const index_job *j = ctx;
    const size_t b = j->bytes;
    char *dst = j->dst + (size_t)begin * b;
    const char *src = j->src; /* what is written may lie anywhere, *j too, as far as the compiler knows */
    const int64_t *offset = j->offset;
    int64_t i = begin;
#define TAKE(bytes)                                                        \
    for (; i < end; i++, dst += bytes) {                                   \
        if (offset[i] < 0) memset(dst, 0, bytes);                          \
        else memcpy(dst, src + offset[i], bytes);                          \
    }
#define TAKE_FOUR(bytes)                                                   \
    for (; i + 4 <= end && ALL_FOUR(offset + i); i += 4, dst += 4 * bytes) \
        for (int k = 0; k < 4; k++) memcpy(dst + k * bytes, src + offset[i + k], bytes);
    if (b == 4) {
        TAKE_FOUR(4)
        TAKE(4)
    } else if (b == 8) {
        TAKE_FOUR(8)
        TAKE(8)
    } else TAKE(b)
#undef TAKE
#undef TAKE_FOUR
}
PD_CPU_FUNCTION(void, take, int64_t count, size_t bytes, const int64_t *offset, const char *src, char *dst) {
    index_job j = {.bytes = bytes, .offset = offset, .src = src, .dst = dst};
    if (!bytes) return;
    pd_parallel(count, pd_grain(count, (int64_t)(bytes < 16 ? 4 : bytes / 4), PD_GRAIN), take_part, &j);
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

#define ADD_ONE(TYPE, at)                                                              \
    {                                                                                  \
        TYPE *d = (TYPE *)(void *)(to + (at));                                         \
        *d = (TYPE)(*d + *(const TYPE *)(const void *)from);                           \
    }
#define ADD_PART(TYPE)                                                                 \
    if (end - begin == 1) {                                                            \
        const int64_t *offset = j->offset, count = j->count, step = j->src_stride;     \
        const char *from = j->src + begin * (int64_t)sizeof(TYPE);                     \
        char *to = j->dst + begin * (int64_t)sizeof(TYPE);                             \
        int64_t i = 0;                                                                 \
        for (; i + 4 <= count && ALL_FOUR(offset + i); i += 4)                         \
            for (int k = 0; k < 4; k++, from += step) ADD_ONE(TYPE, offset[i + k])     \
        for (; i < count; i++, from += step)                                           \
            if (offset[i] >= 0) ADD_ONE(TYPE, offset[i])                               \
        break;                                                                         \
    }                                                                                  \
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
