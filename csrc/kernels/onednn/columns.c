#if defined(PD_HAVE_ONEDNN) && PD_HAVE_ONEDNN
/* The weight gradient of a bf16 convolution as one product, for few pixels and many channels. The library's own takes
   five times as long there (512 channels, 32 images of 4 x 4: 26 ms on a thread).

       gw[K, R S C] = gy[pixels, K]^T columns[pixels, R S C]       a pixel's columns: the inputs in its window

   It sums in float; the product has the same bits for any number of threads. */
#include <string.h>

#include "base/threads.h"
#include "kernels/onednn/lib.h"
#include "kernels/onednn/onednn.h"

#define PIXELS_MAX 1024
#define CHANNELS_MIN 128

static size_t up(size_t n) { return (n + 63) & ~(size_t)63; }
static int64_t pixels_of(const pd_conv *c) { return c->N * c->P * c->Q; }
static int64_t width_of(const pd_conv *c) { return c->R * c->S * c->C; }
static pd_gemm product_of(const pd_conv *c) {
    pd_gemm g = pd_gemm_dense(c->t, c->K, width_of(c), pixels_of(c), true, false);
    g.wide = true;
    return g;
}

bool pd_dnn_columns_serve(const pd_conv *c) {
    if (c->t != PD_BF16 || c->groups != 1 || !c->x_nhwc || !c->y_nhwc || pixels_of(c) > PIXELS_MAX ||
        c->C < CHANNELS_MIN || c->K < CHANNELS_MIN)
        return false;
    pd_gemm g = product_of(c);
    return pd_onednn_gemm.takes(&g, false);
}

/* [columns | their product | its scratch] */
static size_t columns_bytes(const pd_conv *c) { return up((size_t)(pixels_of(c) * width_of(c)) * 2); }
static size_t sums_bytes(const pd_conv *c) { return up((size_t)(c->K * width_of(c)) * 4); }
size_t pd_dnn_columns_scratch(const pd_conv *c) {
    pd_gemm g = product_of(c);
    return columns_bytes(c) + sums_bytes(c) + pd_onednn_gemm.scratch(&g);
}

typedef struct columns_job {
    const pd_conv *c;
    const pd_bf16 *x;
    pd_bf16 *columns, *gw;
    const float *sums;
} columns_job;

static void fill_columns(void *ctx, int64_t begin, int64_t end) {
    const columns_job *j = ctx;
    const pd_conv *c = j->c;
    pd_bf16 *to = j->columns + begin * width_of(c);
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = i / (c->P * c->Q), p = i / c->Q % c->P, q = i % c->Q;
        for (int64_t r = 0; r < c->R; r++)
            for (int64_t s = 0; s < c->S; s++, to += c->C) {
                const int64_t h = p * c->stride[0] - c->padding[0] + r * c->dilation[0],
                              w = q * c->stride[1] - c->padding[1] + s * c->dilation[1];
                const bool inside = h >= 0 && h < c->H && w >= 0 && w < c->W;
                if (inside) memcpy(to, j->x + ((n * c->H + h) * c->W + w) * c->C, (size_t)c->C * 2);
                else memset(to, 0, (size_t)c->C * 2);
            }
    }
}

/* Copies filters [begin, end) from [R S, C] to the weight's layout. */
static void put_filters(void *ctx, int64_t begin, int64_t end) {
    const columns_job *j = ctx;
    const int64_t C = j->c->C, taps = j->c->R * j->c->S;
    const int64_t tap_step = j->c->w_nhwc ? C : 1, channel_step = j->c->w_nhwc ? 1 : taps;
    for (int64_t k = begin; k < end; k++) {
        const float *from = j->sums + k * taps * C;
        pd_bf16 *to = j->gw + k * taps * C;
        for (int64_t i = 0; i < C; i++)
            for (int64_t t = 0; t < taps; t++) to[t * tap_step + i * channel_step] = pd_f32_to_bf16(from[t * C + i]);
    }
}

pd_status pd_dnn_columns_run(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    char *sums = (char *)scratch + columns_bytes(c);
    columns_job j = {.c = c, .x = x, .columns = scratch, .gw = gw, .sums = (float *)(void *)sums};
    pd_gemm g = product_of(c);
    pd_parallel(pixels_of(c), 1 + PD_GRAIN / width_of(c), fill_columns, &j);
    PD_TRY(pd_onednn_gemm.run(&g, gy, scratch, NULL, sums, sums + sums_bytes(c)));
    pd_parallel(c->K, 1 + PD_GRAIN / width_of(c), put_filters, &j);
    return PD_OK;
}
#endif
