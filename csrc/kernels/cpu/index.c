/* Gathering and scattering blocks by offset; topk. */
#include "kernels/cpu/real.h"

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
    if (b == 4) for (int64_t i = begin; i < end; i++, dst += 4) memcpy(dst, j->src + j->offset[i], 4);
    else if (b == 8) for (int64_t i = begin; i < end; i++, dst += 8) memcpy(dst, j->src + j->offset[i], 8);
    else for (int64_t i = begin; i < end; i++, dst += b) memcpy(dst, j->src + j->offset[i], b);
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
        ((TYPE *)(void *)(j->dst + j->offset[i]))[begin] =                             \
            (TYPE)(((TYPE *)(void *)(j->dst + j->offset[i]))[begin] +                  \
                   ((const TYPE *)(const void *)(j->src + i * j->src_stride))[begin]); \
    if (end - begin == 1) break;                                                       \
    for (int64_t i = 0; i < j->count; i++) {                                           \
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
                for (int64_t k = begin; k < end; k++) j->dst[j->offset[i] + k] |= j->src[i * j->src_stride + k];
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
                for (int64_t k = begin; k < end; k += PD_TILE) {
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
