#include "parallel/compress.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

typedef struct box { /* what is kept for a bucket */
    pd_reducer_bucket in;
    const pd_layout *layout;
    int b, npieces;
    void *rounded;       /* fp16, bf16: the elements, in */
    pd_segment *segment; /* this, or on a GPU in */
    pd_storage *storage;
    float *value;        /* topk, sign: gradient and residual; between steps the residual */
    uint32_t *size;      /* topk: bits of |value| */
    char *mine, *all;    /* our message, and those of all ranks */
    size_t bytes;
    int64_t k;
    pd_work *work;
} box;

typedef struct compressor {
    pd_group *group;
    const pd_device *device;
    pd_compress kind;
    int nboxes;
    box *boxes;
} compressor;

static const pd_piece *piece(const box *x, int p) { return pd_layout_in_bucket(x->layout, x->b, p); }

/* ---- fp16, bf16 -------------------------------------------------------------------------------------------------- */

static pd_dtype half(const compressor *c) { return c->kind == PD_COMPRESS_FP16 ? PD_F16 : PD_BF16; }

static pd_status start_half(compressor *c, box *x) {
    double mean = 1.0 / pd_group_size(c->group);
    if (!x->storage) {
        pd_convert(half(c), x->in.dtype, x->in.numel, x->in.data, x->rounded);
        return pd_group_all_reduce(c->group, x->rounded, x->in.numel, half(c), PD_REDUCE_SUM, mean, 0, &x->work);
    }
    char factor[16];
    pd_scalar v = pd_number(mean);
    pd_scalar_store(&v, pd_dtype_computed(x->in.dtype), factor);
    pd_multiply(x->in.dtype, x->in.numel, factor, x->in.data);
    pd_convert(half(c), x->in.dtype, x->in.numel, x->in.data, x->rounded);
    PD_TRY(pd_device_check(c->device, "register_comm_hook"));
    return pd_group_all_reduce_narrow(c->group, x->rounded, x->in.numel, half(c), &x->work);
}

static void finish_half(compressor *c, box *x) {
    pd_convert(x->in.dtype, half(c), x->in.numel, x->rounded, x->in.data);
}

/* ---- error feedback ---------------------------------------------------------------------------------------------- */

static void add_to_residual(box *x) {
    int64_t n = x->in.numel;
    if (x->in.dtype == PD_F32) {
        const float *g = x->in.data;
        for (int64_t i = 0; i < n; i++) x->value[i] += g[i];
        return;
    }
    float part[1024];
    size_t size = pd_dtype_size(x->in.dtype);
    for (int64_t at = 0; at < n; at += 1024) {
        int64_t m = n - at < 1024 ? n - at : 1024;
        pd_convert(PD_F32, x->in.dtype, m, (const char *)x->in.data + (size_t)at * size, part);
        for (int64_t i = 0; i < m; i++) x->value[at + i] += part[i];
    }
}

static pd_status send(compressor *c, box *x) {
    return pd_group_all_gather(c->group, x->mine, x->all, (int64_t)x->bytes, PD_U8, 0, &x->work);
}

/* ---- topk: k places (int32), k values (float) -------------------------------------------------------------------- */

/* The k-th largest of x->size, found by its upper and then by its lower half. *ties: how many elements equal to it
   belong to the k largest. */
static pd_status kth_largest(const box *x, uint32_t *out, int64_t *ties) {
    int64_t *count, left = x->k;
    PD_TRY(pd_calloc(sizeof *count << 16, "topk", &count));
    uint32_t high = 0xffff, low = 0xffff;
    for (int64_t i = 0; i < x->in.numel; i++) count[x->size[i] >> 16]++;
    for (; count[high] < left; high--) left -= count[high];
    memset(count, 0, sizeof *count << 16);
    for (int64_t i = 0; i < x->in.numel; i++)
        if (x->size[i] >> 16 == high) count[x->size[i] & 0xffff]++;
    for (; count[low] < left; low--) left -= count[low];
    pd_free(count);
    *out = high << 16 | low;
    *ties = left;
    return PD_OK;
}

static pd_status start_topk(compressor *c, box *x) {
    add_to_residual(x);
    for (int64_t i = 0; i < x->in.numel; i++) {
        uint32_t bits;
        memcpy(&bits, &x->value[i], sizeof bits);
        x->size[i] = bits & 0x7fffffff; /* has the order of |value|, with NaN above all */
    }
    uint32_t least;
    int64_t ties, n = 0;
    PD_TRY(kth_largest(x, &least, &ties));
    int32_t *place = (int32_t *)x->mine;
    float *sent = (float *)(place + x->k);
    for (int64_t i = 0; i < x->in.numel; i++) {
        if (x->size[i] < least || (x->size[i] == least && ties-- <= 0)) continue;
        place[n] = (int32_t)i;
        sent[n++] = x->value[i];
        x->value[i] = 0;
    }
    return send(c, x);
}

static void finish_topk(compressor *c, box *x) {
    int world = pd_group_size(c->group);
    float *sum = (float *)x->size; /* not needed until the next bucket */
    memset(sum, 0, sizeof *sum * (size_t)x->in.numel);
    for (int r = 0; r < world; r++) {
        const int32_t *place = (const int32_t *)(x->all + (size_t)r * x->bytes);
        const float *sent = (const float *)(place + x->k);
        for (int64_t i = 0; i < x->k; i++)
            if (place[i] >= 0 && place[i] < x->in.numel) sum[place[i]] += sent[i];
    }
    for (int64_t i = 0; i < x->in.numel; i++) sum[i] /= (float)world;
    pd_convert(x->in.dtype, PD_F32, x->in.numel, sum, x->in.data);
}

/* ---- sign: a float a piece, then a bit an element: 1 for below zero ---------------------------------------------- */

static pd_status start_sign(compressor *c, box *x) {
    add_to_residual(x);
    float *scales = (float *)x->mine;
    uint8_t *bits = (uint8_t *)(scales + x->npieces);
    memset(bits, 0, x->bytes - sizeof *scales * (size_t)x->npieces);
    for (int p = 0; p < x->npieces; p++) {
        int64_t at = piece(x, p)->offset, n = piece(x, p)->numel;
        double sum = 0;
        for (int64_t i = at; i < at + n; i++) sum += fabsf(x->value[i]);
        float scale = scales[p] = n ? (float)(sum / (double)n) : 0;
        for (int64_t i = at; i < at + n; i++) {
            bool below = x->value[i] < 0;
            bits[i >> 3] |= (uint8_t)(below << (i & 7));
            x->value[i] -= below ? -scale : scale;
        }
    }
    return send(c, x);
}

static void finish_sign(compressor *c, box *x) {
    int world = pd_group_size(c->group);
    float part[1024];
    size_t size = pd_dtype_size(x->in.dtype);
    for (int p = 0; p < x->npieces; p++) {
        int64_t end = piece(x, p)->offset + piece(x, p)->numel;
        for (int64_t at = piece(x, p)->offset; at < end; at += 1024) {
            int64_t m = end - at < 1024 ? end - at : 1024;
            memset(part, 0, sizeof part);
            for (int r = 0; r < world; r++) {
                const float *scales = (const float *)(x->all + (size_t)r * x->bytes);
                const uint8_t *bits = (const uint8_t *)(scales + x->npieces);
                float scale = scales[p] / (float)world;
                for (int64_t i = 0; i < m; i++)
                    part[i] += bits[(at + i) >> 3] >> ((at + i) & 7) & 1 ? -scale : scale;
            }
            pd_convert(x->in.dtype, PD_F32, m, part, (char *)x->in.data + (size_t)at * size);
        }
    }
}

/* ---- the hook ---------------------------------------------------------------------------------------------------- */

static const struct {
    pd_status (*start)(compressor *c, box *x);
    void (*finish)(compressor *c, box *x);
} ways[] = {
    [PD_COMPRESS_FP16] = {start_half, finish_half},
    [PD_COMPRESS_BF16] = {start_half, finish_half},
    [PD_COMPRESS_TOPK] = {start_topk, finish_topk},
    [PD_COMPRESS_SIGN] = {start_sign, finish_sign},
};

static pd_status start(void *ctx, int b, void **pending) {
    compressor *c = ctx;
    const pd_device *was;
    *pending = &c->boxes[b];
    pd_status status = pd_device_enter(c->device, &was);
    PD_THEN(ways[c->kind].start(c, &c->boxes[b]));
    pd_device_here = was;
    return status;
}

static pd_status wait(box *x) {
    pd_status status = pd_work_wait(x->work, -1);
    pd_work_release(x->work);
    x->work = NULL;
    return status;
}

static pd_status finish(void *ctx, int b, void *pending) {
    compressor *c = ctx;
    (void)b;
    const pd_device *was;
    PD_TRY(wait(pending));
    pd_status status = pd_device_enter(c->device, &was);
    if (!status) ways[c->kind].finish(c, pending);
    pd_device_here = was;
    return status ? status : pd_device_check(c->device, "register_comm_hook");
}

/* The work uses the box's memory, so it has to end first; in a failed group it has ended. */
static void abandon(void *pending) { (void)wait(pending); }

static void drop(void *ctx) {
    compressor *c = ctx;
    for (int b = 0; c->boxes && b < c->nboxes; b++) {
        box *x = &c->boxes[b];
        if (x->segment) pd_segment_release(x->segment);
        if (x->storage) pd_storage_release(x->storage);
        pd_free(x->value);
        pd_free(x->size);
        pd_free(x->mine);
        pd_free(x->all);
    }
    pd_free(c->boxes);
    pd_group_release(c->group);
    pd_free(c);
}

static pd_status make_rounded(compressor *c, box *x) {
    size_t bytes = (size_t)(x->in.numel ? x->in.numel : 1) * pd_dtype_size(half(c));
    if (c->device->kind == PD_DEVICE_CPU) {
        PD_TRY(pd_group_segment_new(c->group, bytes, &x->segment));
        x->rounded = pd_segment_ptr(x->segment);
        return PD_OK;
    }
    PD_TRY(pd_storage_new(c->device, bytes, &x->storage));
    x->rounded = x->storage->data;
    return PD_OK;
}

static pd_status fill_box(compressor *c, box *x, double ratio) {
    size_t n = (size_t)x->in.numel;
    if (c->kind == PD_COMPRESS_FP16 || c->kind == PD_COMPRESS_BF16) return make_rounded(c, x);
    int64_t elements = 0;
    for (int p = 0; p < x->npieces; p++) elements += piece(x, p)->numel;
    if (c->kind == PD_COMPRESS_TOPK) {
        if (x->in.numel > INT32_MAX)
            return pd_fail(PD_E_VALUE, "topk: a bucket has %lld elements (expected at most %d)", (long long)x->in.numel,
                           INT32_MAX);
        x->k = (int64_t)ceil(ratio * (double)elements);
        x->bytes = (size_t)x->k * (sizeof(int32_t) + sizeof(float));
        PD_TRY(pd_malloc(sizeof *x->size * n, "topk", &x->size));
    } else {
        /* So that the messages of all ranks are aligned. */
        x->bytes = (sizeof(float) * (size_t)x->npieces + (n + 7) / 8 + 3) / 4 * 4;
    }
    PD_TRY(pd_calloc(sizeof *x->value * n, "residual", &x->value));
    PD_TRY(pd_malloc(x->bytes, "compressed bucket", &x->mine));
    return pd_malloc(x->bytes * (size_t)pd_group_size(c->group), "compressed buckets", &x->all);
}

pd_status pd_compress_set(pd_reducer *r, pd_compress kind, double ratio) {
    if (kind == PD_COMPRESS_TOPK && !(ratio > 0 && ratio <= 1))
        return pd_fail(PD_E_VALUE, "topk: ratio is %g (expected more than 0 and at most 1)", ratio);
    const pd_device *device = pd_reducer_device(r);
    if (device->kind != PD_DEVICE_CPU && (kind == PD_COMPRESS_TOPK || kind == PD_COMPRESS_SIGN))
        return pd_fail(PD_E_NOTIMPL,
                       "register_comm_hook: the C hooks topk and sign need tensors on the CPU: got %s (expected fp16 "
                       "or bf16 there)",
                       device->name);
    const pd_layout *l = pd_reducer_layout(r);
    compressor *c;
    PD_TRY(pd_calloc(sizeof *c, "compressor", &c));
    c->kind = kind;
    c->device = device;
    pd_group_retain(c->group = pd_reducer_group(r));
    pd_status status = PD_OK;
    if (pd_group_size(c->group) > 1) {
        c->nboxes = l->nbuckets;
        status = pd_calloc(sizeof *c->boxes * (size_t)c->nboxes, "compressor", &c->boxes);
    }
    for (int b = 0; b < c->nboxes && !status; b++) {
        box *x = &c->boxes[b];
        x->layout = l;
        x->b = b;
        x->npieces = l->buckets[b].count;
        status = pd_reducer_bucket_at(r, b, &x->in);
        PD_THEN(fill_box(c, x, ratio));
    }
    pd_comm_hook hook = {.start = start, .finish = finish, .abandon = abandon, .drop = drop, .ctx = c};
    PD_THEN(pd_reducer_set_hook(r, hook));
    if (status) drop(c);
    return status;
}
