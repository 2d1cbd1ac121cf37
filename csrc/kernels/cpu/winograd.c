/* Convolutions of 3 x 3, stride 1, by Winograd's minimal filtering, F(2 x 2, 3 x 3) (Lavin and Gray, "Fast Algorithms
   for Convolutional Neural Networks", 2015). A tile has 2 x 2 results and the 4 x 4 inputs on which they depend. For
   each of its 16 places there is one product over the channels:

       forward       y = A^T [ (G w G^T) * (B^T x B) ] A             * : [tiles, C] x [C, K], place by place
       grad_input    the same on gy, with the filters turned by 180 degrees and C, K exchanged
       grad_weight   gw = G^T [ (B^T x B)^T * (A gy A^T) ] G          [C, tiles] x [tiles, K], added over the tiles

   That is 4 products for a result instead of 9, and the transforms, which are additions and halvings. The error is that
   of the definition, up to a small factor.

   The unit of work is a row of tiles. Its input is copied to `rows`, channels last in float with zeros around it. From
   there it becomes V[place][tile][channel], then the products M[place][tile][K], and then y. The result of a tile
   depends neither on the rows that are processed with it nor on the thread. Sums of weights run over blocks of rows
   that the shape alone determines: all threads make V and A gy A^T of a block, then each adds the products of its
   places.

   Transformed filters, U, are 16 / 9 of the filters. Where the tiles are few, U would cost more than the products: then
   each thread transforms the filters of a panel of results, and uses them while they are in its cache. */
#include "kernels/backend.h"
#include "kernels/cpu/lib/real.h"

#define PD_F32_ONLY
#define PD_INCLUDED "kernels/cpu/lib/micro.inc"
#include "kernels/cpu/lib/each_type.h"

#include "kernels/cpu/winograd_parts.h"

#define TILES 48        /* tiles of a unit of work; V and M of 64 channels stay in a second-level cache */
#define BLOCK (1 << 20) /* numbers in V and A gy A^T of a block */
#define GROUP 4         /* rows of tiles whose pixels are read together */
#define BLOCK_TILES 128 /* at least; for each block all sums of the weights are read and written once */
#define FEW 128         /* tiles that are few */
#define CUT 64          /* channels of x of a part of U, about */

/* ---- forward, and the gradient of the input -------------------------------------------------------------------- */

typedef struct plane { /* a convolution of images: from, to, padding, rows of tiles */
    const pd_conv *c;
    images from, to;
    int64_t top, left, across, down, rows; /* across: tiles of a row; down: rows of an image; rows: of all images */
    const void *w;
    bool turned; /* the gradient of the input: filters are turned, from K to C */
    bool few;    /* tiles: U has a panel for each slot, V and M are of all tiles */
    const float *bias;
    float *U; /* [to.C / NR][place][from.C][NR], with a row between places: they would share sets of a cache */
    float *V, *M;
    char *slots;
    int64_t slot, count, units; /* slot: bytes of a slot; count: slots; units: of work */
} plane;

static int64_t panels_of(int64_t channels) { return up(channels, NR) / NR; }

static images of_x(const pd_conv *c, const void *x) {
    return (images){c->t, c->C, c->H, c->W, c->x_nhwc, (char *)(uintptr_t)x};
}
static images of_y(const pd_conv *c, const void *y) {
    return (images){c->t, c->K, c->P, c->Q, c->y_nhwc, (char *)(uintptr_t)y};
}

static plane plane_of(const pd_conv *c, bool turned, const void *from, void *to) {
    plane p = {.c = c,
               .turned = turned,
               .from = turned ? of_y(c, from) : of_x(c, from),
               .to = turned ? of_x(c, to) : of_y(c, to),
               .top = c->padding[0],
               .left = c->padding[1]};
    if (turned) p.top = 2 - p.top, p.left = 2 - p.left;
    p.across = (p.to.W + 1) / 2, p.down = (p.to.H + 1) / 2, p.rows = c->N * p.down;
    p.count = pd_threads_get();
    p.units = up((p.rows + most(TILES / p.across, 1) - 1) / most(TILES / p.across, 1), p.count);
    if (p.units > p.rows) p.units = p.rows;
    p.few = p.rows * p.across <= FEW && panels_of(p.to.C) >= p.count;
    return p;
}

/* The parts of a slot: [rows | results of the tiles | V | M]; V and M of few tiles follow the slots. */
typedef struct parts {
    int64_t tiles, rows, v_ld, m_ld, v, m, out, bytes;
} parts;
static parts parts_of(const plane *p) {
    const int64_t band = p->few ? p->rows : (p->rows + p->units - 1) / p->units, C = p->from.C, K = p->to.C;
    parts s = {.tiles = band * p->across, .v_ld = C + LANES, .m_ld = K + LANES};
    s.rows = up((2 * band + 2) * (2 * p->across + 2) * C, 16);
    s.v = up(PLACES * s.tiles * s.v_ld, 16), s.m = up(PLACES * s.tiles * s.m_ld, 16);
    s.out = up(4 * p->across * K * band, 16);
    s.bytes = (s.rows + s.out + (p->few ? 0 : s.v + s.m)) * (int64_t)sizeof(float);
    return s;
}

static int64_t place_of(int64_t C) { return (C + 1) * NR; } /* numbers from a place of U to the next */
static int64_t u_numbers(const plane *p) {
    return (p->few ? p->count : panels_of(p->to.C)) * PLACES * place_of(p->from.C);
}

/* U[place][from.C][NR] of the panel of the result's channels from k on. */
static void panel_filters(const plane *p, int64_t k, float *U) {
    const int64_t C = p->from.C, place = place_of(C);
    filters g;
    for (int64_t c0 = 0; c0 < C; c0 += LANES)
        for (int64_t half = 0; half < NR && k + half < p->to.C; half += LANES) {
            if (p->turned)
                filters_in(p->c, p->w, c0, k + half, false, g);
            else
                filters_in(p->c, p->w, k + half, c0, true, g);
            for (int64_t i = 0; i < LANES; i++) {
                vec taps[9], u[PLACES];
                for (int t = 0; t < 9; t++) taps[t] = get(g[p->turned ? 8 - t : t][i]);
                filter_transform(taps, u);
                for (int t = 0; t < PLACES; t++) set(U + t * place + (c0 + i) * NR + half, u[t]);
            }
        }
}
static void make_filters(void *ctx, int64_t begin, int64_t end) {
    const plane *p = ctx;
    for (int64_t i = begin; i < end; i++) panel_filters(p, i * NR, p->U + i * PLACES * place_of(p->from.C));
}

/* M[place] = V[place] U[place] of a panel of the result's channels, from k on. */
static void product(const plane *p, const parts *s, int64_t place, int64_t k, int64_t tiles, const float *U,
                    const float *V, float *M) {
    const int64_t C = p->from.C, panels = (tiles + MR - 1) / MR;
    tile_f32 t = {.K = C,
                  .a_ld = s->v_ld,
                  .b_row = NR,
                  .c_row = s->m_ld,
                  .n = least(NR, p->to.C - k),
                  .B = U + place * place_of(C)};
    const micro_fn_f32 *micro = micros_f32[0][t.n > LANES];
    for (int64_t i = 0; i < panels; i++) {
        const int64_t first = tiles * i / panels, m = tiles * (i + 1) / panels - first;
        t.A = V + (place * s->tiles + first) * s->v_ld;
        t.C = M + (place * s->tiles + first) * s->m_ld + k;
        micro[m](&t);
    }
}

/* V of the tiles of the rows [first, last), and their results from M. */
static void tiles_in(const plane *p, const parts *s, int64_t first, int64_t last, float *rows, float *V) {
    const int64_t C = p->from.C, width = 2 * p->across + 2;
    for (int64_t row = first, some; row < last; row += some) { /* the part in one image */
        const int64_t n = row / p->down, y = row % p->down;
        some = least(last - row, p->down - y);
        rows_in(&p->from, n, 2 * y - p->top, 2 * some + 2, p->left, width, rows);
        for (int64_t i = 0; i < some; i++)
            inputs(rows + 2 * i * width * C, width, C, p->across, V + (row - first + i) * p->across * s->v_ld,
                   s->tiles * s->v_ld, s->v_ld);
    }
}
static void tiles_out(const plane *p, const parts *s, int64_t first, int64_t last, const float *M, float *out) {
    const int64_t K = p->to.C, wide = 2 * p->across;
    for (int64_t row = first, some; row < last; row += some) {
        const int64_t n = row / p->down, y = row % p->down;
        some = least(last - row, p->down - y);
        for (int64_t i = 0; i < some; i++)
            outputs(M + (row - first + i) * p->across * s->m_ld, s->tiles * s->m_ld, s->m_ld, K, p->across, p->bias,
                    out + 2 * i * wide * K, wide);
        rows_out(&p->to, n, 2 * y, 2 * some, wide, out);
    }
}

static float *slot_of(const plane *p, int64_t slot) { return (float *)(void *)(p->slots + slot * p->slot); }

static void run_units(void *ctx, int64_t begin, int64_t end) {
    const plane *p = ctx;
    const parts s = parts_of(p);
    const int64_t panel = PLACES * place_of(p->from.C);
    for (int64_t slot = begin; slot < end; slot++) {
        float *rows = slot_of(p, slot), *out = rows + s.rows, *V = out + s.out, *M = V + s.v;
        for (int64_t u = p->units * slot / p->count; u < p->units * (slot + 1) / p->count; u++) {
            const int64_t first = p->rows * u / p->units, last = p->rows * (u + 1) / p->units;
            tiles_in(p, &s, first, last, rows, V);
            for (int64_t place = 0; place < PLACES; place++)
                for (int64_t k = 0; k < p->to.C; k += NR)
                    product(p, &s, place, k, (last - first) * p->across, p->U + k / NR * panel, V, M);
            tiles_out(p, &s, first, last, M, out);
        }
    }
}

/* Few tiles: V of all, then M by panels of filters, then the results. */
static void few_in(void *ctx, int64_t begin, int64_t end) {
    const plane *p = ctx;
    const parts s = parts_of(p);
    for (int64_t slot = begin; slot < end; slot++) {
        const int64_t first = p->rows * slot / p->count, last = p->rows * (slot + 1) / p->count;
        tiles_in(p, &s, first, last, slot_of(p, slot), p->V + first * p->across * s.v_ld);
    }
}
static void few_products(void *ctx, int64_t begin, int64_t end) {
    const plane *p = ctx;
    const parts s = parts_of(p);
    const int64_t panels = panels_of(p->to.C);
    for (int64_t slot = begin; slot < end; slot++) {
        float *U = p->U + slot * PLACES * place_of(p->from.C);
        for (int64_t i = panels * slot / p->count; i < panels * (slot + 1) / p->count; i++) {
            panel_filters(p, i * NR, U);
            for (int64_t place = 0; place < PLACES; place++) product(p, &s, place, i * NR, s.tiles, U, p->V, p->M);
        }
    }
}
static void few_out(void *ctx, int64_t begin, int64_t end) {
    const plane *p = ctx;
    const parts s = parts_of(p);
    for (int64_t slot = begin; slot < end; slot++) {
        const int64_t first = p->rows * slot / p->count, last = p->rows * (slot + 1) / p->count;
        tiles_out(p, &s, first, last, p->M + first * p->across * s.m_ld, slot_of(p, slot) + s.rows);
    }
}

/* [bias | U | slots | V and M of few tiles] */
static size_t plane_scratch(const pd_conv *c, bool turned) {
    const plane p = plane_of(c, turned, NULL, NULL);
    const parts s = parts_of(&p);
    return (size_t)(up(c->K * 4, 64) + p.count * s.bytes) +
           (size_t)(u_numbers(&p) + (p.few ? s.v + s.m : 0)) * sizeof(float);
}
static void plane_run(plane *p, const void *w, const void *bias, char *scratch) {
    const pd_conv *c = p->c;
    const parts s = parts_of(p);
    if (bias) p->bias = load_f32(c->t, bias, 0, c->K, (float *)(void *)scratch);
    p->w = w;
    p->U = (float *)(void *)(scratch + up(c->K * 4, 64));
    p->slots = (char *)(p->U + u_numbers(p)), p->slot = s.bytes;
    if (p->few) {
        p->V = slot_of(p, p->count), p->M = p->V + s.v;
        pd_parallel(p->count, 1, few_in, p);
        pd_parallel(p->count, 1, few_products, p);
        pd_parallel(p->count, 1, few_out, p);
    } else {
        pd_parallel(panels_of(p->to.C), 1 + PD_GRAIN / (p->from.C * NR * PLACES), make_filters, p);
        pd_parallel(p->count, 1, run_units, p);
    }
}

static pd_status forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    plane p = plane_of(c, false, x, y);
    plane_run(&p, w, bias, scratch);
    return PD_OK;
}
static pd_status grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    plane p = plane_of(c, true, gy, gx);
    plane_run(&p, w, NULL, scratch);
    return PD_OK;
}

/* ---- the gradient of the weights ------------------------------------------------------------------------------- */

typedef struct weights {
    const pd_conv *c;
    images x, gy;
    int64_t across, down, rows, block; /* as in a plane; rows of a block */
    int64_t first, some;               /* rows of this block */
    int64_t v_ld, cuts;                /* cuts: parts of C that a place's products are made in */
    bool few;                          /* rows, of one block: U has a part for each slot */
    int64_t count;                     /* slots of U, where rows are few */
    void *gw;
    float *V, *D, *U; /* V[place][tile][v_ld], D[place][K / NR][tile][NR], U[K / NR][cut][place][C / cuts][NR] */
    char *slots;
    int64_t slot;
} weights;

static weights weights_of(const pd_conv *c, const void *gy, const void *x) {
    weights s = {.c = c, .x = of_x(c, x), .gy = of_y(c, gy), .across = (c->Q + 1) / 2, .down = (c->P + 1) / 2};
    s.rows = c->N * s.down, s.v_ld = c->C + LANES, s.cuts = most(c->C / CUT, 1), s.count = pd_threads_get();
    s.block = least(s.rows, most(1, most(BLOCK / (PLACES * (c->C + c->K)), BLOCK_TILES) / s.across));
    s.few = s.block == s.rows && s.cuts * panels_of(c->K) >= s.count;
    s.slot = up((2 * GROUP + 2) * (2 * s.across + 2) * most(c->C, c->K) * (int64_t)sizeof(float), 64);
    return s;
}
static int64_t v_numbers(const weights *s) { return up(PLACES * s->block * s->across * s->v_ld, 16); }
static int64_t d_numbers(const weights *s) { return up(PLACES * s->block * s->across * up(s->c->K, NR), 16); }

/* Part `cut` of the channels of x: [first, last), and numbers from a place of its U to the next, and of all places. */
typedef struct cut_of_x {
    int64_t first, last, place, all;
} cut_of_x;
static cut_of_x cut_at(const weights *s, int64_t cut) {
    const int64_t vectors = s->c->C / LANES;
    cut_of_x x = {.first = vectors * cut / s->cuts * LANES, .last = vectors * (cut + 1) / s->cuts * LANES};
    x.place = place_of((vectors + s->cuts - 1) / s->cuts * LANES), x.all = PLACES * x.place;
    return x;
}
static int64_t weight_sums(const weights *s) { /* numbers of U */
    return (s->few ? s->count : panels_of(s->c->K) * s->cuts) * cut_at(s, 0).all;
}
static float *sums_of(const weights *s, int64_t panel, int64_t cut) {
    return s->U + (panel * s->cuts + cut) * cut_at(s, cut).all;
}

/* V and D of groups [begin, end) of rows of the block. */
static void transform_rows(void *ctx, int64_t begin, int64_t end) {
    const weights *s = ctx;
    const pd_conv *c = s->c;
    const int64_t tiles = s->some * s->across, width = 2 * s->across + 2, wide = 2 * s->across;
    for (int64_t group = begin; group < end; group++) {
        float *rows = (float *)(void *)(s->slots + group * s->slot);
        const int64_t last = least((group + 1) * GROUP, s->some);
        for (int64_t i = group * GROUP, many; i < last; i += many) { /* the part in one image */
            const int64_t n = (s->first + i) / s->down, y = (s->first + i) % s->down;
            many = least(last - i, s->down - y);
            float *V = s->V + i * s->across * s->v_ld, *D = s->D + i * s->across * NR;
            rows_in(&s->x, n, 2 * y - c->padding[0], 2 * many + 2, c->padding[1], width, rows);
            for (int64_t r = 0; r < many; r++)
                inputs(rows + 2 * r * width * c->C, width, c->C, s->across, V + r * s->across * s->v_ld,
                       tiles * s->v_ld, s->v_ld);
            rows_in(&s->gy, n, 2 * y, 2 * many, 0, wide, rows);
            for (int64_t r = 0; r < many; r++)
                gradients(rows + 2 * r * wide * c->K, wide, c->K, s->across, tiles, D + r * s->across * NR,
                          tiles * up(c->K, NR));
        }
    }
}

/* U[place] += V[place]^T D[place] of a cut of x and a panel of gy. */
static void weight_product(const weights *s, int64_t place, cut_of_x x, int64_t panel, float *U) {
    const int64_t tiles = s->some * s->across, channels = x.last - x.first, panels = (channels + MR - 1) / MR;
    tile_f32 t = {.K = tiles,
                  .a_ld = s->v_ld,
                  .b_row = NR,
                  .c_row = NR,
                  .n = least(NR, s->c->K - panel * NR),
                  .add = s->first > 0,
                  .B = s->D + (place * panels_of(s->c->K) + panel) * NR * tiles};
    const micro_fn_f32 *micro = micros_f32[1][t.n > LANES];
    for (int64_t i = 0; i < panels; i++) {
        const int64_t first = channels * i / panels, m = channels * (i + 1) / panels - first;
        t.A = s->V + place * tiles * s->v_ld + x.first + first;
        t.C = U + place * x.place + first * NR;
        micro[m](&t);
    }
}

/* gw of a cut of x and a panel of gy. */
static void gather_filters(const weights *s, cut_of_x x, int64_t panel, const float *U) {
    filters out;
    for (int64_t k = panel * NR; k < least(s->c->K, (panel + 1) * NR); k += LANES)
        for (int64_t c = x.first; c < x.last; c += LANES) {
            for (int64_t i = 0; i < LANES; i++) {
                const float *from = U + (c - x.first + i) * NR + k % NR;
                vec u[PLACES], g[9];
                for (int p = 0; p < PLACES; p++) u[p] = get(from + p * x.place);
                filter_gather(u, g);
                for (int t = 0; t < 9; t++) set(out[t][i], g[t]);
            }
            filters_out(s->c, s->gw, k, c, out);
        }
}

static void add_products(void *ctx, int64_t begin, int64_t end) { /* by (place, cut) */
    const weights *s = ctx;
    for (int64_t i = begin; i < end; i++)
        for (int64_t panel = 0; panel < panels_of(s->c->K); panel++)
            weight_product(s, i / s->cuts, cut_at(s, i % s->cuts), panel, sums_of(s, panel, i % s->cuts));
}
static void gather_all(void *ctx, int64_t begin, int64_t end) { /* by (panel, cut) */
    const weights *s = ctx;
    for (int64_t i = begin; i < end; i++)
        gather_filters(s, cut_at(s, i % s->cuts), i / s->cuts, sums_of(s, i / s->cuts, i % s->cuts));
}
static void few_weights(void *ctx, int64_t begin, int64_t end) { /* by slots: parts (cut, panel) one after the other */
    const weights *s = ctx;
    const int64_t panels = panels_of(s->c->K), parts = s->cuts * panels;
    for (int64_t slot = begin; slot < end; slot++)
        for (int64_t i = parts * slot / s->count; i < parts * (slot + 1) / s->count; i++) {
            const cut_of_x x = cut_at(s, i / panels);
            float *U = s->U + slot * x.all;
            for (int64_t place = 0; place < PLACES; place++) weight_product(s, place, x, i % panels, U);
            gather_filters(s, x, i % panels, U);
        }
}

/* [V | D | U | a slot for each group of rows of a block] */
static size_t weights_scratch(const pd_conv *c) {
    weights s = weights_of(c, NULL, NULL);
    const int64_t numbers = v_numbers(&s) + d_numbers(&s) + weight_sums(&s), groups = (s.block + GROUP - 1) / GROUP;
    return (size_t)numbers * sizeof(float) + (size_t)(groups * s.slot);
}

static pd_status grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    weights s = weights_of(c, gy, x);
    s.gw = gw;
    s.V = scratch, s.D = s.V + v_numbers(&s), s.U = s.D + d_numbers(&s), s.slots = (char *)(s.U + weight_sums(&s));
    for (s.first = 0; s.first < s.rows; s.first += s.some) {
        s.some = least(s.block, s.rows - s.first);
        pd_parallel((s.some + GROUP - 1) / GROUP, 1, transform_rows, &s);
        if (s.few)
            pd_parallel(s.count, 1, few_weights, &s);
        else
            pd_parallel(PLACES * s.cuts, 1, add_products, &s);
    }
    if (!s.few) pd_parallel(panels_of(c->K) * s.cuts, 1 + PD_GRAIN / (CUT * NR * PLACES), gather_all, &s);
    return PD_OK;
}

static size_t scratch_of(const pd_conv *c, pd_conv_part part) {
    return part == PD_CONV_WEIGHT ? weights_scratch(c) : plane_scratch(c, part == PD_CONV_INPUT);
}

const pd_conv_backend PD_SUFFIXED(pd_winograd) = {"winograd", pd_winograd_takes, scratch_of, forward, grad_input,
                                                  grad_weight};
