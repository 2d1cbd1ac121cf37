/* Places from indices; gathering and scattering blocks by offset. */
#include "kernels/cpu/lib/real.h"

static int64_t index_at(const pd_chooser *c, int64_t at) {
    return c->narrow ? ((const int32_t *)c->index)[at] : ((const int64_t *)c->index)[at];
}
/* Computes a run of n places along the innermost dimension: chooser c's summand, added to base + i * own, or, if own <
   0, to what is there already. For a bad index the place is -1 - its number in the run. */
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
/* The same without branches, for contiguous int64 indices of which none is skipped. False: an index is bad. */
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
            if (!c->narrow && !c->all && c->skip < 0 && step == 1 &&
                (j      ? choose_dense(c, first, run, 0, -1, out)
                 : !own ? choose_dense(c, first, run, base, 0, out)
                        : choose_dense(c, first, run, base, own, out)))
                continue;
            int64_t good = j ? choose_run(c, first, step, run, 0, -1, out)
                             : choose_run(c, first, step, run, base, own, out);
            if (good >= 0) continue;
            if (job->bad) {
                int64_t value = index_at(c, first + (-1 - good) * step);
                *job->bad = (pd_bad_index){p->op,
                                           p->kind,
                                           {value,
                                            p->kind == PD_BAD_INDEX ? c->dim
                                            : c->all                ? c->all
                                                                    : c->n,
                                            c->n}};
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
    int64_t count, src_stride;
    size_t bytes;
    const int64_t *offset;
    const char *src;
    char *dst;
} index_job;

/* Whether none of four blocks is left out. */
#define ALL_FOUR(o) (((o)[0] | (o)[1] | (o)[2] | (o)[3]) >= 0)

static void take_part(void *ctx, int64_t begin, int64_t end) {
    const index_job *j = ctx;
    const size_t b = j->bytes;
    char *dst = j->dst + (size_t)begin * b;
    const char *src = j->src; /* a copy, since for all that the compiler knows the writes may change *j */
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

/* A thread gets some bytes (or elements) of every block, so that the order among blocks stays the same. */
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
