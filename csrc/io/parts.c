#include "io/parts.h"

#include <string.h>

#include "base/mem.h"
#include "io/crc32.h"

static pd_status lay_out(const char *op, const pd_part *part, int64_t offset, pd_parts *p) {
    size_t n = (size_t)p->count;
    PD_TRY(pd_malloc(n * sizeof *p->part, op, &p->part));
    PD_TRY(pd_malloc((n + 1) * sizeof *p->begin, op, &p->begin));
    PD_TRY(pd_malloc((n + 1) * sizeof *p->block, op, &p->block));
    int64_t end = offset;
    p->begin[0] = p->block[0] = 0;
    for (size_t i = 0; i < n; i++) {
        p->part[i] = part[i];
        if (__builtin_add_overflow(end, part[i].bytes, &end) || end > INT64_MAX - 2 * PD_BLOCK)
            return pd_fail(PD_E_VALUE, "%s: the parts have too many bytes (expected an end below 2^63)", op);
        p->begin[i + 1] = end - offset;
        p->block[i + 1] = p->block[i] + pd_blocks(part[i].bytes);
    }
    p->bytes = p->begin[n];
    PD_TRY(pd_calloc((size_t)p->block[n] * sizeof *p->crc, op, &p->crc));
    return PD_OK;
}

pd_status pd_parts_make(const char *op, const pd_part *part, int64_t count, int64_t offset, pd_parts *out) {
    *out = (pd_parts){.count = count};
    pd_status status = lay_out(op, part, offset, out);
    if (status) pd_parts_free(out);
    return PD_TRAIL(status);
}

void pd_parts_free(pd_parts *parts) {
    pd_free(parts->part);
    pd_free(parts->begin);
    pd_free(parts->block);
    pd_free((void *)parts->crc);
    *parts = (pd_parts){0};
}

pd_walk pd_walk_begin(const pd_parts *parts, int64_t begin, int64_t end) {
    int64_t low = 0, high = parts->count - 1; /* the last part that begins at `begin` or before it */
    while (low < high) {
        int64_t middle = high - (high - low) / 2;
        if (parts->begin[middle] <= begin) low = middle;
        else high = middle - 1;
    }
    return (pd_walk){.parts = parts, .at = begin, .end = end, .part = low};
}

int64_t pd_walk_next(pd_walk *w, int64_t most, const void **data) {
    const pd_parts *p = w->parts;
    if (w->at >= w->end) return 0;
    while (p->begin[w->part + 1] <= w->at) w->part++;
    int64_t within = w->at - p->begin[w->part], n = p->part[w->part].bytes - within;
    if (n > PD_BLOCK - within % PD_BLOCK) n = PD_BLOCK - within % PD_BLOCK;
    if (n > w->end - w->at) n = w->end - w->at;
    *data = (const char *)p->part[w->part].data + within;
    return n < most ? n : most;
}

void pd_walk_past(pd_walk *w, const void *data, int64_t bytes) {
    const pd_parts *p = w->parts;
    int64_t within = w->at - p->begin[w->part], block = within / PD_BLOCK;
    int64_t end = (block + 1) * PD_BLOCK < p->part[w->part].bytes ? (block + 1) * PD_BLOCK : p->part[w->part].bytes;
    w->crc = pd_crc32(w->crc, data, (size_t)bytes);
    w->at += bytes;
    if (within + bytes < end && w->at < w->end) return;
    uint32_t share = pd_crc32_shift(w->crc, (uint64_t)(end - within - bytes));
    atomic_fetch_xor_explicit(&p->crc[p->block[w->part] + block], share, memory_order_relaxed);
    w->crc = 0;
}
