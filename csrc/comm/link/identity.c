#include "comm/link/identity.h"

#include <stdio.h>

const char *const pd_collective_names[PD_COLL_COUNT] = {
    [PD_COLL_ALL_REDUCE] = "all_reduce", [PD_COLL_BROADCAST] = "broadcast", [PD_COLL_BARRIER] = "barrier",
    [PD_COLL_ALL_GATHER] = "all_gather", [PD_COLL_INIT] = "init",           [PD_COLL_SEGMENT] = "segment",
    [PD_COLL_REDUCE] = "reduce",         [PD_COLL_GATHER] = "gather",       [PD_COLL_SCATTER] = "scatter",
    [PD_COLL_ALL_TO_ALL] = "all_to_all",
    [PD_COLL_ALL_GATHER_PARTS] = "all_gather", [PD_COLL_REDUCE_SCATTER_PARTS] = "reduce_scatter",
    [PD_COLL_ALL_TO_ALL_PARTS] = "all_to_all",
    [PD_COLL_REDUCE_SCATTER] = "reduce_scatter", [PD_COLL_SEND] = "send", [PD_COLL_RECV] = "recv",
    [PD_COLL_REDUCE_UNIT] = "reduce_unit", [PD_COLL_READ_SHARDS] = "read_shards",
    [PD_COLL_WRITE_SHARDS] = "write_shards",
};

const char *const pd_reduce_names[PD_REDUCE_COUNT] = {
    [PD_REDUCE_SUM] = "SUM", [PD_REDUCE_AVG] = "AVG",   [PD_REDUCE_PRODUCT] = "PRODUCT", [PD_REDUCE_MIN] = "MIN",
    [PD_REDUCE_MAX] = "MAX", [PD_REDUCE_BAND] = "BAND", [PD_REDUCE_BOR] = "BOR",         [PD_REDUCE_BXOR] = "BXOR",
    [PD_REDUCE_PREMUL_SUM] = "PREMUL_SUM",
};

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9E3779B97F4A7C15u; /* golden ratio; the shift brings high bits down */
    return h ^ (h >> 32);
}

uint64_t pd_identity_hash(const pd_identity *id, uint32_t epoch) {
    uint64_t word[3];
    _Static_assert(sizeof word == sizeof *id, "no padding in pd_identity");
    memcpy(word, id, sizeof word);
    if (id->coll == PD_COLL_ALL_TO_ALL_PARTS) word[1] = 0; /* count */
    return mix(mix(mix(mix(0, epoch), word[0]), word[1]), word[2]);
}

/* Of parts, what PD_ALONG (group.h) says, else "". */
static void along_text(const pd_identity *id, char *text, size_t size) {
    const bool parts = id->coll == PD_COLL_ALL_GATHER_PARTS || id->coll == PD_COLL_REDUCE_SCATTER_PARTS ||
                       id->coll == PD_COLL_ALL_TO_ALL_PARTS;
    const int dim = id->root % 256 - 1, other = id->root / 256 - 1;
    *text = 0;
    if (!parts || !id->root) return;
    if (other < 0) snprintf(text, size, ", along dimension %d", dim);
    else snprintf(text, size, ", from dimension %d to %d", other, dim);
}

int pd_identity_text(const pd_identity *id, char *text, size_t size) {
    const char *name = id->coll < PD_COLL_COUNT ? pd_collective_names[id->coll] : "?";
    const char *dtype = id->dtype < PD_DTYPE_COUNT ? pd_dtype_name((pd_dtype)id->dtype) : "?";
    const char *reduce = id->reduce < PD_REDUCE_COUNT ? pd_reduce_names[id->reduce] : "?";
    long long count = (long long)id->count;
    char more[96] = "", along[64];
    int n;
    switch (id->coll) {
    case PD_COLL_BARRIER: case PD_COLL_READ_SHARDS: case PD_COLL_WRITE_SHARDS:
        return snprintf(text, size, "%s()", name);
    case PD_COLL_SEGMENT: return snprintf(text, size, "%s(%.0f bytes)", name, id->scale);
    case PD_COLL_ALL_TO_ALL_PARTS: snprintf(more, sizeof more, ", the largest part"); break;
    case PD_COLL_ALL_GATHER_PARTS: snprintf(more, sizeof more, ", in parts"); break;
    case PD_COLL_ALL_REDUCE: case PD_COLL_REDUCE_SCATTER: case PD_COLL_REDUCE_SCATTER_PARTS:
        n = snprintf(more, sizeof more, ", %s", reduce);
        if (id->scale != 1) n += snprintf(more + n, sizeof more - (size_t)n, ", scale=%g", id->scale);
        if (id->root && id->coll != PD_COLL_REDUCE_SCATTER_PARTS)
            snprintf(more + n, sizeof more - (size_t)n, ", logical shards %08x", (unsigned)id->root);
        break;
    case PD_COLL_REDUCE: snprintf(more, sizeof more, ", %s, root=%d", reduce, id->root); break;
    case PD_COLL_BROADCAST: case PD_COLL_GATHER: case PD_COLL_SCATTER:
        snprintf(more, sizeof more, ", root=%d", id->root);
        break;
    case PD_COLL_REDUCE_UNIT: snprintf(more, sizeof more, ", unit %d, scale=%g", id->root, id->scale); break;
    case PD_COLL_SEND: snprintf(more, sizeof more, ", dst=%d, tag=%.0f", id->root, id->scale); break;
    case PD_COLL_RECV:
        if (id->root < 0) snprintf(more, sizeof more, ", src=any, tag=%.0f", id->scale);
        else snprintf(more, sizeof more, ", src=%d, tag=%.0f", id->root, id->scale);
        break;
    default: break;
    }
    along_text(id, along, sizeof along);
    const char *captured = id->device & PD_IDENTITY_CAPTURED ? ", captured" : "";
    return snprintf(text, size, "%s(%s[%lld]%s%s%s%s)", name, dtype, count, id->device ? " on cuda" : "", more, along,
                    captured);
}
