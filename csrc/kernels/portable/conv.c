#include "kernels/portable/portable.h"

#include <string.h>

#include "base/threads.h"

/* One image and one group at a time, with p q = P Q places and red = C / groups * R * S numbers summed for each:

       col[p q][red]     row: the window of one output place, in the order of a filter (c r s, or r s c where w is nhwc)

       forward       y = col w^T      (or its transpose, where y is [K, P, Q])
       grad_input    col' = gy w,     then each input place adds up what lies on it in col'
       grad_weight   gw += gy^T col

   A 1 x 1 convolution of stride 1 without padding needs no col: x is one. */
typedef struct shape {
    const pd_conv *c;
    pd_dtype t; /* F32 or F64 */
    int64_t size, Cg, Kg, red, places;
    int64_t xc, xh, xw, kc, kr, ks; /* strides in an image and in a row of col */
    bool plain;
} shape;

static shape shape_of(const pd_conv *c) {
    shape s = {.c = c, .t = c->t == PD_F64 ? PD_F64 : PD_F32, .Cg = c->C / c->groups, .Kg = c->K / c->groups, .places = c->P * c->Q};
    s.size = (int64_t)pd_dtype_size(s.t);
    s.red = s.Cg * c->R * c->S;
    s.xc = c->x_nhwc ? 1 : c->H * c->W;
    s.xh = c->x_nhwc ? c->W * c->C : c->W;
    s.xw = c->x_nhwc ? c->C : 1;
    s.kc = c->w_nhwc ? 1 : c->R * c->S;
    s.kr = c->w_nhwc ? c->S * s.Cg : c->S;
    s.ks = c->w_nhwc ? s.Cg : 1;
    s.plain = c->R == 1 && c->S == 1 && c->stride[0] == 1 && c->stride[1] == 1 && !c->padding[0] && !c->padding[1];
    return s;
}

static size_t up(size_t n) { return (n + 63) & ~(size_t)63; }
static bool is_half(pd_dtype t) { return t == PD_F16 || t == PD_BF16; }

typedef enum product { FORWARD, INPUT, WEIGHT } product;

/* The product of one image and group; A and B as in the drawing. */
static pd_gemm gemm_of(const shape *s, product what) {
    const pd_conv *c = s->c;
    int64_t col_row = s->plain ? s->xw : s->red, col_col = s->plain ? s->xc : 1;
    int64_t y_place = c->y_nhwc ? c->K : 1, y_k = c->y_nhwc ? 1 : s->places;
    pd_gemm g = {.t = s->t, .batch = 1};
    if (what == FORWARD && c->y_nhwc) {
        g.M = s->places, g.N = s->Kg, g.K = s->red;
        g.a_row = col_row, g.a_col = col_col, g.b_row = 1, g.b_col = s->red, g.c_row = c->K;
    } else if (what == FORWARD) {
        g.M = s->Kg, g.N = s->places, g.K = s->red;
        g.a_row = s->red, g.a_col = 1, g.b_row = col_col, g.b_col = col_row, g.c_row = s->places;
    } else if (what == INPUT) {
        g.M = s->places, g.N = s->red, g.K = s->Kg;
        g.a_row = y_place, g.a_col = y_k, g.b_row = s->red, g.b_col = 1, g.c_row = s->red;
    } else {
        g.M = s->Kg, g.N = s->red, g.K = s->places;
        g.a_row = y_k, g.a_col = y_place, g.b_row = col_row, g.b_col = col_col, g.c_row = s->red;
    }
    return g;
}

/* Where images and groups begin, in elements. */
static int64_t x_at(const shape *s, int64_t n, int64_t g) { return n * s->c->C * s->c->H * s->c->W + g * s->Cg * s->xc; }
static int64_t y_at(const shape *s, int64_t n, int64_t g) { return n * s->c->K * s->places + g * s->Kg * (s->c->y_nhwc ? 1 : s->places); }

typedef struct col_job { const shape *s; const char *from; char *to; } col_job;

static void im2col_rows(void *ctx, int64_t begin, int64_t end) {
    const col_job *j = ctx;
    const shape *s = j->s;
    const pd_conv *c = s->c;
    const int64_t size = s->size;
    for (int64_t place = begin; place < end; place++) {
        char *row = j->to + place * s->red * size;
        int64_t h0 = place / c->Q * c->stride[0] - c->padding[0], w0 = place % c->Q * c->stride[1] - c->padding[1];
        for (int64_t r = 0; r < c->R; r++)
            for (int64_t q = 0; q < c->S; q++) {
                int64_t h = h0 + r * c->dilation[0], w = w0 + q * c->dilation[1];
                bool inside = h >= 0 && h < c->H && w >= 0 && w < c->W;
                char *to = row + (r * s->kr + q * s->ks) * size;
                const char *from = inside ? j->from + (h * s->xh + w * s->xw) * size : NULL;
                if (s->kc == 1 && (s->xc == 1 || !inside)) {
                    if (inside) memcpy(to, from, (size_t)(s->Cg * size));
                    else memset(to, 0, (size_t)(s->Cg * size));
                } else
                    for (int64_t k = 0; k < s->Cg; k++) {
                        if (inside) memcpy(to + k * s->kc * size, from + k * s->xc * size, (size_t)size);
                        else memset(to + k * s->kc * size, 0, (size_t)size);
                    }
            }
    }
}

/* Input rows h: each place adds the entries of col that were read from it, in the order of r and s. */
#define COL2IM(T)                                                                                                  \
    static void col2im_##T(void *ctx, int64_t begin, int64_t end) {                                                \
        const col_job *j = ctx;                                                                                    \
        const shape *s = j->s;                                                                                     \
        const pd_conv *c = s->c;                                                                                   \
        const T *col = (const T *)(const void *)j->from;                                                           \
        for (int64_t at = begin; at < end; at++) {                                                                 \
            int64_t h = at / c->W, w = at % c->W;                                                                  \
            T *to = (T *)(void *)j->to + h * s->xh + w * s->xw;                                                    \
            for (int64_t k = 0; k < s->Cg; k++) to[k * s->xc] = 0;                                                 \
            for (int64_t r = 0; r < c->R; r++)                                                                     \
                for (int64_t q = 0; q < c->S; q++) {                                                               \
                    int64_t ph = h + c->padding[0] - r * c->dilation[0], pw = w + c->padding[1] - q * c->dilation[1]; \
                    if (ph < 0 || pw < 0 || ph % c->stride[0] || pw % c->stride[1]) continue;                      \
                    ph /= c->stride[0], pw /= c->stride[1];                                                        \
                    if (ph >= c->P || pw >= c->Q) continue;                                                        \
                    const T *from = col + (ph * c->Q + pw) * s->red + r * s->kr + q * s->ks;                       \
                    if (s->xc == 1 && s->kc == 1) for (int64_t k = 0; k < s->Cg; k++) to[k] += from[k];            \
                    else for (int64_t k = 0; k < s->Cg; k++) to[k * s->xc] += from[k * s->kc];                     \
                }                                                                                                  \
        }                                                                                                          \
    }
COL2IM(float)
COL2IM(double)

static void im2col(const shape *s, const char *x, char *col) {
    col_job j = {s, x, col};
    int64_t grain = PD_GRAIN / (s->red > 0 ? s->red : 1);
    pd_parallel(s->places, grain > 0 ? grain : 1, im2col_rows, &j);
}
static void col2im(const shape *s, const char *col, char *gx) {
    col_job j = {s, col, gx};
    int64_t grain = PD_GRAIN / (s->red > 0 ? s->red : 1);
    pd_parallel(s->c->H * s->c->W, grain > 0 ? grain : 1, s->t == PD_F64 ? col2im_double : col2im_float, &j);
}

static size_t gemm_bytes(const shape *s) {
    size_t most = 0;
    for (product p = FORWARD; p <= WEIGHT; p++) {
        pd_gemm g = gemm_of(s, p);
        size_t b = pd_cpu()->gemm_scratch(&g);
        most = b > most ? b : most;
    }
    return up(most);
}
static size_t col_bytes(const shape *s) { return up((size_t)(s->places * s->red * s->size)); }

/* ---- halves: everything converted to float ---- */

static int64_t x_count(const pd_conv *c) { return c->N * c->C * c->H * c->W; }
static int64_t w_count(const pd_conv *c) { return c->K * (c->C / c->groups) * c->R * c->S; }
static int64_t y_count(const pd_conv *c) { return c->N * c->K * c->P * c->Q; }
static size_t half_bytes(const pd_conv *c) {
    return is_half(c->t) ? up((size_t)x_count(c) * 4) + up((size_t)w_count(c) * 4) + up((size_t)y_count(c) * 4) + up((size_t)c->K * 4) : 0;
}
static void convert(pd_dtype to, pd_dtype from, int64_t n, const void *x, void *out) {
    pd_loop l = {.ndim = 1, .nop = 2, .numel = n, .size = {n}, .ptr = {out, (char *)(uintptr_t)x}};
    l.stride[0][0] = (int64_t)pd_dtype_size(to);
    l.stride[1][0] = (int64_t)pd_dtype_size(from);
    pd_cpu()->copy(to, from, &l);
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

/* ---- the four functions ---- */

size_t pd_portable_conv_scratch(const pd_conv *c) {
    shape s = shape_of(c);
    size_t work = gemm_bytes(&s) + col_bytes(&s), bias = pd_conv_bias_scratch(c);
    return half_bytes(c) + (work > bias ? work : bias);
}

void pd_portable_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    if (is_half(c->t)) {
        floats f = floats_at(c, scratch);
        convert(PD_F32, c->t, x_count(c), x, f.x);
        convert(PD_F32, c->t, w_count(c), w, f.w);
        if (bias) convert(PD_F32, c->t, c->K, bias, f.bias);
        pd_portable_conv_forward(&f.c, f.x, f.w, bias ? f.bias : NULL, f.y, f.rest);
        convert(c->t, PD_F32, y_count(c), f.y, y);
        return;
    }
    shape s = shape_of(c);
    char *col = (char *)scratch + gemm_bytes(&s);
    pd_gemm gemm = gemm_of(&s, FORWARD);
    for (int64_t n = 0; n < c->N; n++)
        for (int64_t g = 0; g < c->groups; g++) {
            const char *from = (const char *)x + x_at(&s, n, g) * s.size, *filter = (const char *)w + g * s.Kg * s.red * s.size;
            const char *b = bias ? (const char *)bias + g * s.Kg * s.size : NULL;
            char *to = (char *)y + y_at(&s, n, g) * s.size;
            if (!s.plain) im2col(&s, from, col);
            const char *a = s.plain ? from : col;
            if (c->y_nhwc) {
                pd_cpu()->gemm(&gemm, a, filter, b, to, scratch);
                continue;
            }
            for (int64_t k = 0; b && k < s.Kg; k++) { /* a bias per row: laid down first */
                pd_loop l = {.ndim = 1, .nop = 1, .numel = s.places, .size = {s.places}, .ptr = {to + k * s.places * s.size}};
                l.stride[0][0] = s.size;
                pd_cpu()->fill((size_t)s.size, b + k * s.size, &l);
            }
            gemm.beta = b != NULL;
            pd_cpu()->gemm(&gemm, filter, a, NULL, to, scratch);
        }
}

void pd_portable_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    if (is_half(c->t)) {
        floats f = floats_at(c, scratch);
        convert(PD_F32, c->t, y_count(c), gy, f.y);
        convert(PD_F32, c->t, w_count(c), w, f.w);
        pd_portable_conv_grad_input(&f.c, f.y, f.w, f.x, f.rest);
        convert(c->t, PD_F32, x_count(c), f.x, gx);
        return;
    }
    shape s = shape_of(c);
    char *col = (char *)scratch + gemm_bytes(&s);
    pd_gemm gemm = gemm_of(&s, INPUT);
    for (int64_t n = 0; n < c->N; n++)
        for (int64_t g = 0; g < c->groups; g++) {
            pd_cpu()->gemm(&gemm, (const char *)gy + y_at(&s, n, g) * s.size, (const char *)w + g * s.Kg * s.red * s.size, NULL, col, scratch);
            col2im(&s, col, (char *)gx + x_at(&s, n, g) * s.size);
        }
}

void pd_portable_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *gbias, void *scratch) {
    if (gbias) pd_conv_grad_bias(c, gy, gbias, (char *)scratch + half_bytes(c));
    if (!gw) return;
    if (is_half(c->t)) {
        floats f = floats_at(c, scratch);
        convert(PD_F32, c->t, y_count(c), gy, f.y);
        convert(PD_F32, c->t, x_count(c), x, f.x);
        pd_portable_conv_grad_weight(&f.c, f.y, f.x, f.w, NULL, f.rest);
        convert(c->t, PD_F32, w_count(c), f.w, gw);
        return;
    }
    shape s = shape_of(c);
    char *col = (char *)scratch + gemm_bytes(&s);
    pd_gemm gemm = gemm_of(&s, WEIGHT);
    if (c->N == 0) memset(gw, 0, (size_t)(w_count(c) * s.size));
    for (int64_t n = 0; n < c->N; n++)
        for (int64_t g = 0; g < c->groups; g++) {
            const char *from = (const char *)x + x_at(&s, n, g) * s.size;
            if (!s.plain) im2col(&s, from, col);
            gemm.beta = n > 0;
            pd_cpu()->gemm(&gemm, (const char *)gy + y_at(&s, n, g) * s.size, s.plain ? from : col, NULL, (char *)gw + g * s.Kg * s.red * s.size, scratch);
        }
}

size_t pd_conv_bias_scratch(const pd_conv *c) { return up((size_t)(c->N * c->K * 8)); }

void pd_conv_grad_bias(const pd_conv *c, const void *gy, void *gbias, void *scratch) {
    int64_t places = c->P * c->Q;
    if (c->y_nhwc) {
        pd_cpu()->fold(PD_FOLD_SUM, c->t, c->t, &(pd_block){1, c->N * places, c->K}, gy, gbias);
        return;
    }
    pd_cpu()->fold(PD_FOLD_SUM, c->t, PD_F64, &(pd_block){c->N * c->K, places, 1}, gy, scratch);
    pd_cpu()->fold(PD_FOLD_SUM, PD_F64, c->t, &(pd_block){1, c->N, c->K}, scratch, gbias);
}
