/* The parts of winograd.c: images as rows of pixels, filters as squares, and the transforms of both. All in float, with
   channels last and LANES channels in a vector. */
#ifndef PD_KERNELS_CPU_WINOGRAD_PARTS_H
#define PD_KERNELS_CPU_WINOGRAD_PARTS_H

#include "kernels/cpu/lib/real.h"

#define LANES PD_LANES_F
#define PLACES 16
#define PANEL (2 * LANES) /* channels of a panel: the columns that a product's tile in registers has (micro.inc) */
#define RUN 256           /* pixels whose layout is changed at a time */

typedef pd_vf vec;
PD_INLINE vec get(const float *p) { return pd_vf_load(p); }
PD_INLINE void set(float *p, vec v) { pd_vf_store(p, v); }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Images [N, C, H, W]. */
typedef struct images {
    pd_dtype t;
    int64_t C, H, W;
    bool nhwc;
    char *at;
} images;
static char *pixel(const images *im, int64_t n, int64_t c, int64_t h, int64_t w) {
    int64_t i = im->nhwc ? ((n * im->H + h) * im->W + w) * im->C + c : ((n * im->C + c) * im->H + h) * im->W + w;
    return im->at + i * (int64_t)pd_dtype_size(im->t);
}

/* ---- between images and rows of pixels, channels last, in float ------------------------------------------------ */

/* LANES channels of `run` neighbouring pixels, in planes that are `plane` apart, as float rows of pixels, `ld`
   apart. */
static const float *planes_in(const images *im, const char *from, int64_t plane, int64_t run, float *buffer,
                              int64_t *ld) {
    const int64_t size = (int64_t)pd_dtype_size(im->t);
    *ld = im->t == PD_F32 ? plane : RUN;
    if (im->t == PD_F32) return (const float *)(const void *)from;
    for (int c = 0; c < LANES; c++) load_f32(im->t, from + c * plane * size, 0, run, buffer + c * RUN);
    return buffer;
}

/* Rows [h, h + count) of image n, from column -left on: to[count][width][C]; zeros outside of the image. */
static void rows_in(const images *im, int64_t n, int64_t h, int64_t count, int64_t left, int64_t width, float *to) {
    const int64_t C = im->C, begin = most(h, 0), end = least(h + count, im->H), right = width - left - im->W;
    for (int64_t i = 0; i < count; i++) {
        float *row = to + i * width * C;
        if (h + i < begin || h + i >= end) {
            memset(row, 0, (size_t)(width * C) * sizeof *row);
            continue;
        }
        memset(row, 0, (size_t)(left * C) * sizeof *row);
        if (right > 0) memset(row + (left + im->W) * C, 0, (size_t)(right * C) * sizeof *row);
        if (!im->nhwc) continue;
        if (im->t == PD_F32)
            memcpy(row + left * C, pixel(im, n, 0, h + i, 0), (size_t)(im->W * C) * sizeof *row);
        else
            load_f32(im->t, pixel(im, n, 0, h + i, 0), 0, im->W * C, row + left * C);
    }
    if (im->nhwc || end <= begin) return;
    const int64_t plane = im->H * im->W, pixels = (end - begin) * im->W;
    float buffer[LANES * RUN], turned[LANES * LANES];
    for (int64_t p0 = 0; p0 < pixels; p0 += RUN) {
        const int64_t run = least(RUN, pixels - p0);
        for (int64_t c = 0; c < C; c += LANES) {
            int64_t ld, p = 0;
            const float *x =
                planes_in(im, pixel(im, n, c, begin, 0) + p0 * (int64_t)pd_dtype_size(im->t), plane, run, buffer, &ld);
            for (; p < run; p += LANES) {
                const int64_t w = least(LANES, run - p), ahead = p + 2 * LANES;
                for (int i = 0; i < LANES && im->t == PD_F32; i++) /* these planes, or the next LANES */
                    __builtin_prefetch(x + (ahead < run ? ahead : LANES * ld + ahead - up(run, LANES)) + i * ld);
                if (w == LANES)
                    transpose_f32(x + p, ld, turned, LANES);
                else
                    for (int64_t i = 0; i < w * LANES; i++) turned[i] = x[i % LANES * ld + p + i / LANES];
                int64_t row = (p0 + p) / im->W, column = (p0 + p) % im->W;
                for (int64_t i = 0; i < w; i++) {
                    set(to + ((begin - h + row) * width + left + column) * C + c, get(turned + i * LANES));
                    if (++column == im->W) column = 0, row++;
                }
            }
        }
    }
}

/* Writes rows[..][width][C] to the rows [h, h + count) of image n that are inside the image. */
static void rows_out(const images *im, int64_t n, int64_t h, int64_t count, int64_t width, float *rows) {
    const int64_t C = im->C, plane = im->H * im->W, size = (int64_t)pd_dtype_size(im->t);
    count = least(count, im->H - h);
    if (im->nhwc) {
        for (int64_t i = 0; i < count; i++)
            if (im->t == PD_F32)
                memcpy(pixel(im, n, 0, h + i, 0), rows + i * width * C, (size_t)(im->W * C) * sizeof *rows);
            else
                put_f32(im->t, pixel(im, n, 0, h + i, 0), 0, im->W * C, rows + i * width * C);
        return;
    }
    float buffer[LANES * RUN], turned[LANES * LANES];
    for (int64_t p0 = 0; p0 < count * im->W; p0 += RUN) {
        const int64_t run = least(RUN, count * im->W - p0);
        for (int64_t c = 0; c < C; c += LANES) {
            char *to = pixel(im, n, c, h, 0) + p0 * size;
            const bool own = im->t == PD_F32;
            float *y = own ? (float *)(void *)to : buffer;
            const int64_t ld = own ? plane : RUN;
            for (int64_t p = 0; p < run; p += LANES) {
                const int64_t w = least(LANES, run - p);
                int64_t row = (p0 + p) / im->W, column = (p0 + p) % im->W;
                for (int64_t i = 0; i < w; i++) {
                    set(turned + i * LANES, get(rows + (row * width + column) * C + c));
                    if (++column == im->W) column = 0, row++;
                }
                if (w == LANES)
                    transpose_f32(turned, LANES, y + p, ld);
                else
                    for (int64_t i = 0; i < w * LANES; i++) y[i % LANES * ld + p + i / LANES] = turned[i];
            }
            for (int i = 0; i < LANES && !own; i++) put_f32(im->t, to + i * plane * size, 0, run, buffer + i * RUN);
        }
    }
}

/* ---- transforms ------------------------------------------------------------------------------------------------ */

/* A column of B^T d: pixels d, `row` apart. */
PD_INLINE void column(const float *d, int64_t row, vec t[4]) {
    vec d0 = get(d), d1 = get(d + row), d2 = get(d + 2 * row), d3 = get(d + 3 * row);
    t[0] = d0 - d2, t[1] = d1 + d2, t[2] = d2 - d1, t[3] = d1 - d3;
}

/* V[place][tile] = B^T d B of the tiles of a row, whose pixels d begin at rows[4][width][C]. */
static void inputs(const float *rows, int64_t width, int64_t C, int64_t tiles, float *V, int64_t place, int64_t ld) {
    for (int64_t c = 0; c < C; c += LANES) {
        vec a[4], b[4], next[4], last[4]; /* B^T d of the four columns; two of them are also the next tile's */
        const float *d = rows + c;
        float *v = V + c;
        column(d, width * C, a);
        column(d + C, width * C, b);
        for (int64_t i = 0; i < tiles; i++, v += ld) {
            d += 2 * C;
            column(d, width * C, next);
            column(d + C, width * C, last);
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                float *to = v + r * 4 * place;
                set(to, a[r] - next[r]);
                set(to + place, b[r] + next[r]);
                set(to + 2 * place, next[r] - b[r]);
                set(to + 3 * place, b[r] - last[r]);
                a[r] = next[r], b[r] = last[r];
            }
        }
    }
}

/* rows[2][width][K] = A^T m A + bias of the tiles of a row, m = M[place][tile][K]. */
static void outputs(const float *M, int64_t place, int64_t ld, int64_t K, int64_t tiles, const float *bias, float *rows,
                    int64_t width) {
    for (int64_t i = 0; i < tiles; i++)
        for (int64_t k = 0; k < K; k += LANES) {
            const float *m = M + i * ld + k;
            float *y = rows + 2 * i * K + k;
            vec s[2][4], b = bias ? get(bias + k) : (vec){0};
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                vec m0 = get(m + j * place), m1 = get(m + (4 + j) * place), m2 = get(m + (8 + j) * place),
                    m3 = get(m + (12 + j) * place);
                s[0][j] = m0 + m1 + m2, s[1][j] = m1 - m2 - m3;
            }
            for (int r = 0; r < 2; r++, y += width * K) {
                set(y, s[r][0] + s[r][1] + s[r][2] + b);
                set(y + K, s[r][1] - s[r][2] - s[r][3] + b);
            }
        }
}

/* Panels of A g A^T of the tiles of a row, g = rows[2][width][K]: to[place][K / PANEL][tile of `all`][PANEL]. */
static void gradients(const float *rows, int64_t width, int64_t K, int64_t tiles, int64_t all, float *to,
                      int64_t place) {
    for (int64_t i = 0; i < tiles; i++)
        for (int64_t k = 0; k < K; k += LANES) {
            const float *g = rows + 2 * i * K + k;
            float *v = to + (k / PANEL * all + i) * PANEL + k % PANEL;
            vec t[4][2];
            for (int j = 0; j < 2; j++) {
                vec g0 = get(g + j * K), g1 = get(g + (width + j) * K);
                t[0][j] = g0, t[1][j] = g0 + g1, t[2][j] = g0 - g1, t[3][j] = -g1;
            }
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++, v += 4 * place) {
                set(v, t[r][0]);
                set(v + place, t[r][0] + t[r][1]);
                set(v + 2 * place, t[r][0] - t[r][1]);
                set(v + 3 * place, -t[r][1]);
            }
        }
}

/* ---- filters --------------------------------------------------------------------------------------------------- */

typedef float filters[9][LANES][LANES]; /* [tap][..][..]: a square of filters with vectors along k or along c */

/* The filters of LANES k and c, from k and c on. along_k: vectors along k. */
static void filters_in(const pd_conv *s, const void *w, int64_t k, int64_t c, bool along_k, filters g) {
    const int64_t C = s->C, taps = 9;
    float buffer[9 * LANES * LANES], turned[9 * LANES * LANES];
    if (s->w_nhwc) { /* [k][tap][c] */
        for (int64_t i = 0; i < LANES; i++)
            for (int64_t t = 0; t < taps; t++) {
                float *one = buffer + (t * LANES + i) * LANES;
                set(one, get(load_f32(s->t, w, ((k + i) * taps + t) * C + c, LANES, one)));
            }
        for (int64_t t = 0; t < taps; t++)
            if (along_k)
                transpose_f32(buffer + t * LANES * LANES, LANES, g[t][0], LANES);
            else
                memcpy(g[t], buffer + t * LANES * LANES, sizeof g[t]);
        return;
    }
    const bool own = s->t == PD_F32; /* [k][c][tap] */
    const float *from = own ? (const float *)w + (k * C + c) * taps : buffer;
    const int64_t ld = own ? C * taps : taps * LANES;
    for (int64_t i = 0; i < LANES && !own; i++)
        load_f32(s->t, w, ((k + i) * C + c) * taps, taps * LANES, buffer + i * taps * LANES);
    for (int64_t j = 0; j < taps; j++) transpose_f32(from + j * LANES, ld, turned + j * LANES * LANES, LANES);
    for (int64_t t = 0; t < taps; t++)
        if (!along_k)
            transpose_f32(turned + t * LANES, taps * LANES, g[t][0], LANES);
        else
            for (int64_t i = 0; i < LANES; i++) set(g[t][i], get(turned + (i * taps + t) * LANES));
}

/* The inverse, vectors along k. */
static void filters_out(const pd_conv *s, void *w, int64_t k, int64_t c, filters g) {
    const int64_t C = s->C, taps = 9;
    float buffer[9 * LANES * LANES], turned[9 * LANES * LANES];
    if (s->w_nhwc) {
        for (int64_t t = 0; t < taps; t++) {
            transpose_f32(g[t][0], LANES, turned, LANES);
            for (int64_t i = 0; i < LANES; i++) {
                const int64_t at = ((k + i) * taps + t) * C + c;
                if (s->t == PD_F32)
                    set((float *)w + at, get(turned + i * LANES));
                else
                    put_f32(s->t, w, at, LANES, turned + i * LANES);
            }
        }
        return;
    }
    for (int64_t t = 0; t < taps; t++)
        for (int64_t i = 0; i < LANES; i++) set(turned + (i * taps + t) * LANES, get(g[t][i]));
    const bool own = s->t == PD_F32;
    float *to = own ? (float *)w + (k * C + c) * taps : buffer;
    const int64_t ld = own ? C * taps : taps * LANES;
    for (int64_t j = 0; j < taps; j++) transpose_f32(turned + j * LANES * LANES, LANES, to + j * LANES, ld);
    for (int64_t i = 0; i < LANES && !own; i++)
        put_f32(s->t, w, ((k + i) * C + c) * taps, taps * LANES, buffer + i * taps * LANES);
}

/* u[place] = G g G^T, of vectors. */
static void filter_transform(const vec g[9], vec u[PLACES]) {
    vec t[4][3], half = pd_vf_set(0.5f);
    for (int j = 0; j < 3; j++) {
        vec sum = half * (g[j] + g[6 + j]), mid = half * g[3 + j];
        t[0][j] = g[j], t[1][j] = sum + mid, t[2][j] = sum - mid, t[3][j] = g[6 + j];
    }
    for (int r = 0; r < 4; r++) {
        vec sum = half * (t[r][0] + t[r][2]), mid = half * t[r][1];
        u[4 * r] = t[r][0], u[4 * r + 1] = sum + mid, u[4 * r + 2] = sum - mid, u[4 * r + 3] = t[r][2];
    }
}
/* g = G^T u G. */
static void filter_gather(const vec u[PLACES], vec g[9]) {
    vec t[3][4], half = pd_vf_set(0.5f);
    for (int j = 0; j < 4; j++) {
        vec sum = half * (u[4 + j] + u[8 + j]), gap = half * (u[4 + j] - u[8 + j]);
        t[0][j] = u[j] + sum, t[1][j] = gap, t[2][j] = sum + u[12 + j];
    }
    for (int r = 0; r < 3; r++) {
        vec sum = half * (t[r][1] + t[r][2]), gap = half * (t[r][1] - t[r][2]);
        g[3 * r] = t[r][0] + sum, g[3 * r + 1] = gap, g[3 * r + 2] = sum + t[r][3];
    }
}

#endif
