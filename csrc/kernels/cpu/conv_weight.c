/* The weight gradient of a bf16 convolution, channels last, as products of pairs of bf16 in vectors:

       gw[k, (r, s), c] = sum over pixels of gy[pixel, k] x[input of the pixel's window at (r, s), c]

   Two pixels of a channel must be neighbours, as a pair; gy is interleaved so once, in the order in which it is read. A
   unit of work is a few places (r, s) of the window, WIDTH channels of x and some channels of gy. For each block of
   pixels it interleaves the inputs at each place and adds the product to its sums, which stay in the second-level
   cache. One thread makes a sum, pixel after pixel, so the bits do not depend on the number of threads. */
#include "base/threads.h"
#include "kernels/backend.h"
#include "kernels/cpu/lib/tiles.h"

#ifdef PD_HAVE_TILES
#define PIXELS 256  /* of a block */
#define WIDTH 32    /* channels of x in a unit: two vectors of pairs */
#define ROWS 8      /* channels of gy whose sums are in registers: 16 vectors, 2 for inputs */
#define KERNELS 128 /* channels of gy in a unit, at most */
#define TAPS 3      /* places in a unit; they are neighbours, which have the same inputs */

/* With AMX, oneDNN's own is faster. */
static bool takes(const pd_conv *c, pd_conv_part part) {
    return part == PD_CONV_WEIGHT && c->t == PD_BF16 && c->x_nhwc && c->y_nhwc && c->groups == 1 &&
           c->C % WIDTH == 0 && c->K % WIDTH == 0 && c->C > 0 && c->K > 0 && pd_cpu_has_bf16() && !pd_cpu_has_tiles();
}

static int64_t pixels_of(const pd_conv *c) { return c->N * c->P * c->Q; }
static int64_t blocks_of(const pd_conv *c) { return (pixels_of(c) + PIXELS - 1) / PIXELS; }
static size_t scratch_of(const pd_conv *c, pd_conv_part part) {
    return (void)part, (size_t)(blocks_of(c) * PIXELS * c->K) * sizeof(pd_bf16);
}

typedef struct weight_job {
    const pd_conv *c;
    const uint16_t *gy, *x;
    tile_pair *woven; /* gy as [block][K / ROWS][PIXELS / 2][ROWS] */
    pd_bf16 *gw;
    int64_t cuts; /* into how many parts K is cut; their units share inputs */
} weight_job;

static const uint16_t zeros[WIDTH];

/* Interleaves WIDTH channels of two pixels. */
static inline void weave(const uint16_t *a, const uint16_t *b, tile_pair *to) {
    static const uint16_t low[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_loadu_si512(low), second = _mm512_add_epi16(first, _mm512_set1_epi16(16)),
                  x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(x, first, y));
    _mm512_storeu_si512(to + 16, _mm512_permutex2var_epi16(x, second, y));
}

static void weave_blocks(void *ctx, int64_t begin, int64_t end) {
    const weight_job *j = ctx;
    const int64_t K = j->c->K, all = pixels_of(j->c);
    for (int64_t block = begin; block < end; block++)
        for (int64_t i = 0; i < PIXELS; i += 2) {
            const int64_t pixel = block * PIXELS + i;
            const uint16_t *at = j->gy + pixel * K;
            tile_pair pairs[WIDTH], *to = j->woven + (block * K * PIXELS + i * ROWS) / 2;
            for (int64_t k = 0; k < K; k += WIDTH) {
                weave(pixel < all ? at + k : zeros, pixel + 1 < all ? at + K + k : zeros, pairs);
                for (int64_t m = 0; m < WIDTH; m += ROWS, to += PIXELS / 2 * ROWS) memcpy(to, pairs + m, ROWS * 4);
            }
        }
}

/* at[]: for each pixel of a block the address of its window's input at one place, from channel c0 on; zeros up to
   PIXELS. */
static void find_inputs(const weight_job *j, int64_t tap, int64_t c0, int64_t first, const uint16_t **at) {
    const pd_conv *c = j->c;
    const int64_t r = tap / c->S, s = tap % c->S, rows = c->N * c->P;
    int64_t row = first / c->Q, q = first % c->Q, i = 0;
    for (; i < PIXELS && row < rows; row++, q = 0) {
        const int64_t h = row % c->P * c->stride[0] - c->padding[0] + r * c->dilation[0];
        const int64_t inputs = (row / c->P * c->H + h) * c->W * c->C + c0;
        const bool inside = h >= 0 && h < c->H;
        for (; q < c->Q && i < PIXELS; q++, i++) {
            const int64_t w = q * c->stride[1] - c->padding[1] + s * c->dilation[1];
            at[i] = inside && w >= 0 && w < c->W ? j->x + inputs + w * c->C : zeros;
        }
    }
    for (; i < PIXELS; i++) at[i] = zeros;
}

/* sums[many][WIDTH] += the product of `pairs` pairs of pixels. */
static __attribute__((noinline, target("avx512bf16"))) void add_product(int64_t many, int64_t pairs,
                                                                        const tile_pair *gy, const tile_pair *x,
                                                                        bool add, float *sums) {
    for (int64_t k = 0; k < many; k += ROWS, gy += PIXELS / 2 * ROWS, sums += ROWS * WIDTH) {
        __m512 sum[ROWS][2];
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
            for (int v = 0; v < 2; v++)
                sum[i][v] = add ? _mm512_loadu_ps(sums + i * WIDTH + 16 * v) : _mm512_setzero_ps();
        for (int64_t p = 0; p < pairs; p++) {
            const __m512bh left = (__m512bh)_mm512_loadu_si512(x + p * WIDTH),
                           right = (__m512bh)_mm512_loadu_si512(x + p * WIDTH + 16);
#pragma GCC unroll 8
            for (int i = 0; i < ROWS; i++) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32((int)gy[p * ROWS + i]);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], pair, left);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], pair, right);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++)
            for (int v = 0; v < 2; v++) _mm512_storeu_ps(sums + i * WIDTH + 16 * v, sum[i][v]);
    }
}

/* Rounds the sums of `many` channels of gy at one place of the window and writes them to gw. */
static void put_sums(const weight_job *j, const float *sums, int64_t k0, int64_t many, int64_t tap, int64_t c0) {
    const int64_t C = j->c->C, taps = j->c->R * j->c->S, step = j->c->w_nhwc ? 1 : taps;
    pd_bf16 *to = j->gw + k0 * taps * C + (j->c->w_nhwc ? tap * C : tap) + c0 * step, few[WIDTH];
    for (int64_t k = 0; k < many; k++, sums += WIDTH, to += taps * C) {
        PD_CASTS[PD_BF16][PD_F32](WIDTH, 1.0, (char *const[]){(char *)few, (char *)(uintptr_t)sums});
        for (int64_t i = 0; i < WIDTH; i++) to[i * step] = few[i];
    }
}

static void add_units(void *ctx, int64_t begin, int64_t end) {
    const weight_job *j = ctx;
    const pd_conv *c = j->c;
    const int64_t taps = c->R * c->S, panels = c->C / WIDTH, all = pixels_of(c);
    const uint16_t *at[PIXELS];
    tile_pair pairs[PIXELS / 2 * WIDTH];
    float sums[TAPS][KERNELS * WIDTH];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t tap = unit / (panels * j->cuts) * TAPS, some = taps - tap < TAPS ? taps - tap : TAPS;
        const int64_t c0 = unit / j->cuts % panels * WIDTH, cut = unit % j->cuts;
        const int64_t k0 = c->K / ROWS * cut / j->cuts * ROWS, many = c->K / ROWS * (cut + 1) / j->cuts * ROWS - k0;
        for (int64_t first = 0; first < all; first += PIXELS) {
            const int64_t n = all - first < PIXELS ? (all - first + 1) / 2 : PIXELS / 2;
            const tile_pair *gy = j->woven + (first * c->K + k0 * PIXELS) / 2;
            for (int64_t t = 0; t < some; t++) {
                find_inputs(j, tap + t, c0, first, at);
                for (int64_t i = 0; i < n; i++) weave(at[2 * i], at[2 * i + 1], pairs + i * WIDTH);
                if (t == some - 1) { /* prefetch those of the next block, which may be far apart */
                    find_inputs(j, tap, c0, first + PIXELS, at);
                    for (int64_t i = 0; i < PIXELS; i++) __builtin_prefetch(at[i], 0, 2);
                }
                add_product(many, n, gy, pairs, first > 0, sums[t]);
            }
        }
        for (int64_t t = 0; t < some; t++) put_sums(j, sums[t], k0, many, tap + t, c0);
    }
}

static pd_status grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    weight_job j = {.c = c, .gy = gy, .x = x, .gw = gw, .woven = scratch, .cuts = (c->K + KERNELS - 1) / KERNELS};
    const int64_t units = (c->R * c->S + TAPS - 1) / TAPS * (c->C / WIDTH);
    while (units * j.cuts < 4 * pd_threads_get() && c->K / j.cuts >= 4 * ROWS) j.cuts *= 2;
    if (pixels_of(c) == 0) {
        memset(gw, 0, (size_t)(c->K * c->C * c->R * c->S) * sizeof(pd_bf16));
        return PD_OK;
    }
    pd_parallel(blocks_of(c), 1 + PD_GRAIN / (PIXELS * c->K), weave_blocks, &j);
    pd_parallel(units * j.cuts, 1, add_units, &j);
    return PD_OK;
}

const pd_conv_backend PD_SUFFIXED(pd_conv_weight) = {
    .name = "conv_weight", .takes = takes, .scratch = scratch_of, .grad_weight = grad_weight};
#else
static bool takes(const pd_conv *c, pd_conv_part part) { return (void)c, (void)part, false; }

const pd_conv_backend PD_SUFFIXED(pd_conv_weight) = {.name = "conv_weight", .takes = takes};
#endif
