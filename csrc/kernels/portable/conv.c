/* Convolution without oneDNN: im2col and the packed product (kernels/cpu/gemm.c, through pd_cpu()). It takes any shape
   and all float types; f16 and bf16 are converted as a whole and computed in float. The bits are the same for any
   number of threads.

   It processes a block of images and one group at a time. There are P Q output places, and each is a sum of
   red = C / groups * R * S numbers. col holds the windows of all output places, in the order of an image:

       nhwc: col[image][place][red]      a window in the order of a filter (c r s, or r s c where w is nhwc)
       nchw: col[image][red][place]      one row for each number of a filter

       forward       y = col w^T
       grad_input    col' = gy w, then each number of the image is the sum of its places in col'
       grad_weight   a partial gw = gy^T col for each image; these are added in the order of the images

   A 1 x 1 convolution of stride 1 without padding needs no col, since col would be x (or gx). The number of images in a
   block depends on the shape alone. */
#include <string.h>

#include "base/threads.h"
#include "kernels/backend.h"

#define BLOCK_BYTES (4 << 20) /* of col, or of partial gradients; about a second-level cache */
#define BLOCK_IMAGES 16       /* enough to keep threads busy with whole images */

typedef struct shape {
    const pd_conv *c;
    pd_dtype t; /* F32 or F64 */
    int64_t size, Cg, Kg, red, places, block;
    int64_t x_image, y_image;              /* elements of an image, all groups */
    int64_t xc, xh, xw, kc, kr, ks;        /* strides in an image and in a filter */
    int64_t col_image, col_place, col_red; /* strides of col, or of x if it is used as col */
    bool plain;
} shape;

static shape shape_of(const pd_conv *c) {
    shape s = {.c = c, .t = c->t == PD_F64 ? PD_F64 : PD_F32, .places = c->P * c->Q};
    s.Cg = c->C / c->groups, s.Kg = c->K / c->groups;
    s.size = (int64_t)pd_dtype_size(s.t);
    s.red = s.Cg * c->R * c->S;
    s.x_image = c->C * c->H * c->W, s.y_image = c->K * s.places;
    s.xc = c->x_nhwc ? 1 : c->H * c->W;
    s.xh = c->x_nhwc ? c->W * c->C : c->W;
    s.xw = c->x_nhwc ? c->C : 1;
    s.kc = c->w_nhwc ? 1 : c->R * c->S;
    s.kr = c->w_nhwc ? c->S * s.Cg : c->S;
    s.ks = c->w_nhwc ? s.Cg : 1;
    s.plain = c->R == 1 && c->S == 1 && c->stride[0] == 1 && c->stride[1] == 1 && !c->padding[0] && !c->padding[1];
    s.col_image = s.plain ? s.x_image : s.places * s.red;
    s.col_place = s.plain ? s.xw : c->x_nhwc ? s.red : 1;
    s.col_red = s.plain ? s.xc : c->x_nhwc ? 1 : s.places;
    int64_t bytes = s.red * (s.places > s.Kg ? s.places : s.Kg) * s.size, fit = bytes > 0 ? BLOCK_BYTES / bytes : 1;
    int64_t most = c->N < 1 ? 1 : c->N < BLOCK_IMAGES ? c->N : BLOCK_IMAGES;
    s.block = fit < 1 ? 1 : fit > most ? most : fit;
    return s;
}

static size_t up(size_t n) { return (n + 63) & ~(size_t)63; }
static bool is_half(pd_dtype t) { return t == PD_F16 || t == PD_BF16; }

typedef enum product { FORWARD, INPUT, WEIGHT } product;

/* The products of `images` images and one group. Each of the three kinds passes its own A and B. */
static pd_gemm gemm_of(const shape *s, product what, int64_t images) {
    const pd_conv *c = s->c;
    const int64_t y_place = c->y_nhwc ? c->K : 1, y_k = c->y_nhwc ? 1 : s->places;
    pd_gemm g = {.t = s->t, .batch = images};
    if (what == FORWARD && c->y_nhwc) { /* col w^T */
        g.M = s->places, g.N = s->Kg, g.K = s->red;
        g.a_batch = s->col_image, g.a_row = s->col_place, g.a_col = s->col_red;
        g.b_row = 1, g.b_col = s->red;
        g.c_batch = s->y_image, g.c_row = c->K;
    } else if (what == FORWARD) { /* w col^T */
        g.M = s->Kg, g.N = s->places, g.K = s->red;
        g.a_row = s->red, g.a_col = 1;
        g.b_batch = s->col_image, g.b_row = s->col_red, g.b_col = s->col_place;
        g.c_batch = s->y_image, g.c_row = s->places;
    } else if (what == INPUT && c->x_nhwc) { /* gy w */
        g.M = s->places, g.N = s->red, g.K = s->Kg;
        g.a_batch = s->y_image, g.a_row = y_place, g.a_col = y_k;
        g.b_row = s->red, g.b_col = 1;
        g.c_batch = s->col_image, g.c_row = s->col_place;
    } else if (what == INPUT) { /* w^T gy^T */
        g.M = s->red, g.N = s->places, g.K = s->Kg;
        g.a_row = 1, g.a_col = s->red;
        g.b_batch = s->y_image, g.b_row = y_k, g.b_col = y_place;
        g.c_batch = s->col_image, g.c_row = s->col_red;
    } else { /* gy^T col */
        g.M = s->Kg, g.N = s->red, g.K = s->places;
        g.a_batch = s->y_image, g.a_row = y_k, g.a_col = y_place;
        g.b_batch = s->col_image, g.b_row = s->col_place, g.b_col = s->col_red;
        g.c_batch = s->Kg * s->red, g.c_row = s->red;
    }
    return g;
}

/* The byte offset of a group of an image. */
static int64_t x_at(const shape *s, int64_t n, int64_t g) { return (n * s->x_image + g * s->Cg * s->xc) * s->size; }
static int64_t y_at(const shape *s, int64_t n, int64_t g) {
    return (n * s->y_image + g * s->Kg * (s->c->y_nhwc ? 1 : s->places)) * s->size;
}
static int64_t w_at(const shape *s, int64_t g) { return g * s->Kg * s->red * s->size; }

/* The block of one group that begins at image n: how many images it has, and the byte offsets of its x, w and y. */
typedef struct piece { int64_t images, x, w, y; } piece;
static piece piece_of(const shape *s, int64_t n, int64_t g) {
    const int64_t left = s->c->N - n;
    return (piece){left < s->block ? left : s->block, x_at(s, n, g), w_at(s, g), y_at(s, n, g)};
}

/* ---- between an image and col ---- */

/* [begin, end) of the output positions q whose input, q * stride + offset, lies in [0, n). */
static void inside(int64_t Q, int64_t n, int64_t stride, int64_t offset, int64_t *begin, int64_t *end) {
    int64_t first = offset < 0 ? (-offset + stride - 1) / stride : 0;
    int64_t last = offset < n ? (n - 1 - offset) / stride + 1 : 0;
    *begin = first < Q ? first : Q;
    *end = last < *begin ? *begin : last < Q ? last : Q;
}

typedef struct col_job {
    const shape *s;
    char *image, *col;
} col_job; /* image: the group's part of the block's first image */
typedef struct add_job { const shape *s; char *partials, *to; int64_t images; bool first; } add_job;

#define T float
#define FN(name) name##_float
#include "kernels/portable/im2col.inc"
#undef T
#undef FN
#define T double
#define FN(name) name##_double
#include "kernels/portable/im2col.inc"
#undef T
#undef FN

static void over(int64_t n, int64_t each, pd_range_fn fn, void *ctx) {
    int64_t grain = PD_GRAIN / (each > 0 ? each : 1);
    pd_parallel(n, grain > 0 ? grain : 1, fn, ctx);
}
static void im2col(const shape *s, const char *x, int64_t images, char *col) {
    col_job j = {s, (char *)(uintptr_t)x, col};
    if (s->c->x_nhwc) over(images * s->places, s->red, s->t == PD_F64 ? windows_from_double : windows_from_float, &j);
    else over(images * s->red, s->places, s->t == PD_F64 ? rows_from_double : rows_from_float, &j);
}
static void col2im(const shape *s, char *col, int64_t images, char *gx) {
    col_job j = {s, gx, col};
    if (s->c->x_nhwc)
        over(images * s->c->H * s->c->W, s->red, s->t == PD_F64 ? windows_to_double : windows_to_float, &j);
    else over(images * s->Cg, s->places * s->c->R * s->c->S, s->t == PD_F64 ? rows_to_double : rows_to_float, &j);
}

static size_t gemm_bytes(const shape *s) {
    size_t most = 0;
    for (product p = FORWARD; p <= WEIGHT; p++)
        for (int rest = 0; rest < 2; rest++) { /* a whole block, and a shorter last one */
            int64_t images = rest ? s->c->N % s->block : s->block;
            pd_gemm g = gemm_of(s, p, images ? images : 1);
            size_t b = pd_cpu()->gemm_scratch(&g);
            most = b > most ? b : most;
        }
    return up(most);
}
static size_t col_bytes(const shape *s) { return s->plain ? 0 : up((size_t)(s->block * s->places * s->red * s->size)); }
static size_t partial_bytes(const shape *s) {
    return s->block > 1 ? up((size_t)(s->block * s->Kg * s->red * s->size)) : 0;
}

/* ---- halves: everything converted to float ---- */

static int64_t x_count(const pd_conv *c) { return c->N * c->C * c->H * c->W; }
static int64_t w_count(const pd_conv *c) { return c->K * (c->C / c->groups) * c->R * c->S; }
static int64_t y_count(const pd_conv *c) { return c->N * c->K * c->P * c->Q; }
static size_t half_bytes(const pd_conv *c) {
    return is_half(c->t) ? up((size_t)x_count(c) * 4) + up((size_t)w_count(c) * 4) + up((size_t)y_count(c) * 4) +
                               up((size_t)c->K * 4)
                         : 0;
}
typedef struct floats { pd_conv c; char *x, *w, *y, *bias, *rest; } floats;
static floats floats_at(const pd_conv *c, void *scratch) {
    floats f = {.c = *c, .x = scratch};
    f.c.t = PD_F32;
    f.w = f.x + up((size_t)x_count(c) * 4);
    f.y = f.w + up((size_t)w_count(c) * 4);
    f.bias = f.y + up((size_t)y_count(c) * 4);
    f.rest = f.bias + up((size_t)c->K * 4);
    return f;
}

/* ---- the backend ---- */

static bool takes(const pd_conv *c, pd_conv_part part) { return (void)c, (void)part, true; }

static size_t scratch_of(const pd_conv *c, pd_conv_part part) {
    shape s = shape_of(c);
    return (void)part, half_bytes(c) + gemm_bytes(&s) + col_bytes(&s) + partial_bytes(&s);
}

static pd_status forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    if (is_half(c->t)) {
        floats f = floats_at(c, scratch);
        pd_convert(PD_F32, c->t, x_count(c), x, f.x);
        pd_convert(PD_F32, c->t, w_count(c), w, f.w);
        if (bias) pd_convert(PD_F32, c->t, c->K, bias, f.bias);
        PD_TRY(forward(&f.c, f.x, f.w, bias ? f.bias : NULL, f.y, f.rest));
        pd_convert(c->t, PD_F32, y_count(c), f.y, y);
        return PD_OK;
    }
    shape s = shape_of(c);
    char *col = (char *)scratch + gemm_bytes(&s);
    for (int64_t n = 0; n < c->N; n += s.block)
        for (int64_t g = 0; g < c->groups; g++) {
            const piece p = piece_of(&s, n, g);
            const char *from = (const char *)x + p.x, *filter = (const char *)w + p.w;
            const char *b = bias ? (const char *)bias + g * s.Kg * s.size : NULL;
            char *to = (char *)y + p.y;
            pd_gemm gemm = gemm_of(&s, FORWARD, p.images);
            if (!s.plain) im2col(&s, from, p.images, col);
            const char *windows = s.plain ? from : col;
            if (c->y_nhwc) {
                pd_cpu()->gemm(&gemm, windows, filter, b, to, scratch);
                continue;
            }
            if (b) { /* a bias for each row is written first */
                pd_loop l = {.ndim = 3,
                             .nop = 2,
                             .numel = p.images * s.Kg * s.places,
                             .size = {p.images, s.Kg, s.places},
                             .ptr = {to, (char *)(uintptr_t)b}};
                l.stride[0][0] = s.y_image * s.size, l.stride[0][1] = s.places * s.size, l.stride[0][2] = s.size;
                l.stride[1][1] = s.size;
                pd_cpu()->copy(s.t, s.t, &l);
                gemm.beta = 1;
            }
            pd_cpu()->gemm(&gemm, filter, windows, NULL, to, scratch);
        }
    return PD_OK;
}

static pd_status grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    if (is_half(c->t)) {
        floats f = floats_at(c, scratch);
        pd_convert(PD_F32, c->t, y_count(c), gy, f.y);
        pd_convert(PD_F32, c->t, w_count(c), w, f.w);
        PD_TRY(grad_input(&f.c, f.y, f.w, f.x, f.rest));
        pd_convert(c->t, PD_F32, x_count(c), f.x, gx);
        return PD_OK;
    }
    shape s = shape_of(c);
    char *col = (char *)scratch + gemm_bytes(&s);
    for (int64_t n = 0; n < c->N; n += s.block)
        for (int64_t g = 0; g < c->groups; g++) {
            const piece p = piece_of(&s, n, g);
            const char *from = (const char *)gy + p.y, *filter = (const char *)w + p.w;
            char *image = (char *)gx + p.x, *to = s.plain ? image : col;
            pd_gemm gemm = gemm_of(&s, INPUT, p.images);
            pd_cpu()->gemm(&gemm, c->x_nhwc ? from : filter, c->x_nhwc ? filter : from, NULL, to, scratch);
            if (!s.plain) col2im(&s, col, p.images, image);
        }
    return PD_OK;
}

static pd_status grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    if (is_half(c->t)) {
        floats f = floats_at(c, scratch);
        pd_convert(PD_F32, c->t, y_count(c), gy, f.y);
        pd_convert(PD_F32, c->t, x_count(c), x, f.x);
        PD_TRY(grad_weight(&f.c, f.y, f.x, f.w, f.rest));
        pd_convert(c->t, PD_F32, w_count(c), f.w, gw);
        return PD_OK;
    }
    shape s = shape_of(c);
    char *col = (char *)scratch + gemm_bytes(&s), *partials = col + col_bytes(&s);
    if (c->N == 0) memset(gw, 0, (size_t)(w_count(c) * s.size));
    for (int64_t n = 0; n < c->N; n += s.block)
        for (int64_t g = 0; g < c->groups; g++) {
            const piece p = piece_of(&s, n, g);
            const char *from = (const char *)x + p.x, *gradient = (const char *)gy + p.y;
            char *to = (char *)gw + p.w;
            pd_gemm gemm = gemm_of(&s, WEIGHT, p.images);
            if (!s.plain) im2col(&s, from, p.images, col);
            gemm.beta = s.block == 1 && n > 0;
            pd_cpu()->gemm(&gemm, gradient, s.plain ? from : col, NULL, s.block == 1 ? to : partials, scratch);
            add_job j = {&s, partials, to, p.images, n == 0};
            if (s.block > 1) over(s.Kg * s.red, p.images, s.t == PD_F64 ? add_double : add_float, &j);
        }
    return PD_OK;
}

const pd_conv_backend pd_portable_conv = {"portable", takes, scratch_of, forward, grad_input, grad_weight};
