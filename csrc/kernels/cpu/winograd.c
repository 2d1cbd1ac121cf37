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
   places. */
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

/* ---- forward, and the gradient of the input -------------------------------------------------------------------- */

typedef struct plane { /* a convolution of images: from, to, padding, rows of tiles */
    const pd_conv *c;
    images from, to;
    int64_t top, left, across, down, rows; /* across: tiles of a row; down: rows of an image; rows: of all images */
    const void *w;
    bool turned; /* the gradient of the input: filters are turned, from K to C */
    const float *bias;
    float *U; /* [place][to.C / NR][from.C][NR] */
    char *slots;
    int64_t slot, count, units; /* slot: bytes of a slot; count: slots; units: of work */
} plane;

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
    return p;
}

/* The parts of a slot: [rows | V | M | results of the tiles]. */
typedef struct parts {
    int64_t tiles, rows, v_ld, m_ld, v, m, out, bytes;
} parts;
static parts parts_of(const plane *p) {
    const int64_t band = (p->rows + p->units - 1) / p->units, C = p->from.C, K = p->to.C;
    parts s = {.tiles = band * p->across, .v_ld = C + LANES, .m_ld = K + LANES};
    s.rows = up((2 * band + 2) * (2 * p->across + 2) * C, 16);
    s.v = up(PLACES * s.tiles * s.v_ld, 16), s.m = up(PLACES * s.tiles * s.m_ld, 16);
    s.out = up(4 * p->across * K * band, 16);
    s.bytes = (s.rows + s.v + s.m + s.out) * (int64_t)sizeof(float);
    return s;
}
static int64_t filters_bytes(int64_t C, int64_t K) { return PLACES * C * up(K, NR) * (int64_t)sizeof(float); }

static void make_filters(void *ctx, int64_t begin, int64_t end) {
    const plane *p = ctx;
    const int64_t C = p->from.C, K = p->to.C, place = C * up(K, NR);
    filters g;
    for (int64_t b = begin; b < end; b++) { /* LANES of the result's channels */
        float *to = p->U + b * LANES / NR * C * NR + b * LANES % NR;
        for (int64_t c0 = 0; c0 < C; c0 += LANES) {
            if (p->turned)
                filters_in(p->c, p->w, c0, b * LANES, false, g);
            else
                filters_in(p->c, p->w, b * LANES, c0, true, g);
            for (int64_t i = 0; i < LANES; i++) {
                vec taps[9], u[PLACES];
                for (int t = 0; t < 9; t++) taps[t] = get(g[p->turned ? 8 - t : t][i]);
                filter_transform(taps, u);
                for (int t = 0; t < PLACES; t++) set(to + t * place + (c0 + i) * NR, u[t]);
            }
        }
    }
}

/* M[place] = V[place] U[place]. */
static void products(const plane *p, const parts *s, int64_t tiles, const float *V, float *M) {
    const int64_t C = p->from.C, K = p->to.C, panels = (tiles + MR - 1) / MR;
    for (int64_t place = 0; place < PLACES; place++)
        for (int64_t k = 0; k < K; k += NR) {
            tile_f32 t = {.K = C,
                          .a_ld = s->v_ld,
                          .b_row = NR,
                          .c_row = s->m_ld,
                          .n = least(NR, K - k),
                          .B = p->U + (place * up(K, NR) + k) * C};
            const micro_fn_f32 *micro = micros_f32[0][t.n > LANES];
            for (int64_t i = 0; i < panels; i++) {
                const int64_t first = tiles * i / panels, m = tiles * (i + 1) / panels - first;
                t.A = V + (place * s->tiles + first) * s->v_ld;
                t.C = M + (place * s->tiles + first) * s->m_ld + k;
                micro[m](&t);
            }
        }
}

static void run_units(void *ctx, int64_t begin, int64_t end) {
    const plane *p = ctx;
    const parts s = parts_of(p);
    const int64_t C = p->from.C, K = p->to.C, width = 2 * p->across + 2, wide = 2 * p->across;
    for (int64_t slot = begin; slot < end; slot++) {
        float *rows = (float *)(void *)(p->slots + slot * p->slot), *V = rows + s.rows, *M = V + s.v, *out = M + s.m;
        for (int64_t u = p->units * slot / p->count; u < p->units * (slot + 1) / p->count; u++) {
            const int64_t first = p->rows * u / p->units, last = p->rows * (u + 1) / p->units;
            int64_t row = first;
            while (row < last) { /* the part in one image */
                const int64_t n = row / p->down, y = row % p->down, some = least(last - row, p->down - y);
                rows_in(&p->from, n, 2 * y - p->top, 2 * some + 2, p->left, width, rows);
                for (int64_t i = 0; i < some; i++)
                    inputs(rows + 2 * i * width * C, width, C, p->across, V + (row - first + i) * p->across * s.v_ld,
                           s.tiles * s.v_ld, s.v_ld);
                row += some;
            }
            products(p, &s, (last - first) * p->across, V, M);
            for (row = first; row < last;) {
                const int64_t n = row / p->down, y = row % p->down, some = least(last - row, p->down - y);
                for (int64_t i = 0; i < some; i++)
                    outputs(M + (row - first + i) * p->across * s.m_ld, s.tiles * s.m_ld, s.m_ld, K, p->across, p->bias,
                            out + 2 * i * wide * K, wide);
                rows_out(&p->to, n, 2 * y, 2 * some, wide, out);
                row += some;
            }
        }
    }
}

/* [bias | U | slots] */
static size_t plane_scratch(const pd_conv *c, bool turned) {
    plane p = plane_of(c, turned, NULL, NULL);
    parts s = parts_of(&p);
    return (size_t)(up(c->K * 4, 64) + filters_bytes(p.from.C, p.to.C) + p.count * s.bytes);
}
static void plane_run(plane *p, const void *w, const void *bias, char *scratch) {
    const pd_conv *c = p->c;
    if (bias) p->bias = load_f32(c->t, bias, 0, c->K, (float *)(void *)scratch);
    p->w = w;
    p->U = (float *)(void *)(scratch + up(c->K * 4, 64));
    p->slots = (char *)p->U + filters_bytes(p->from.C, p->to.C);
    p->slot = parts_of(p).bytes;
    pd_parallel(p->to.C / LANES, 1 + PD_GRAIN / (p->from.C * LANES * PLACES), make_filters, p);
    pd_parallel(p->count, 1, run_units, p);
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
    void *gw;
    float *V, *D, *U; /* V[place][tile][v_ld], D[place][K / NR][tile][NR], U[place][C][K] */
    char *slots;
    int64_t slot;
} weights;

static weights weights_of(const pd_conv *c, const void *gy, const void *x) {
    weights s = {.c = c, .x = of_x(c, x), .gy = of_y(c, gy), .across = (c->Q + 1) / 2, .down = (c->P + 1) / 2};
    s.rows = c->N * s.down, s.v_ld = c->C + LANES, s.cuts = most(c->C / 64, 1);
    s.block = least(s.rows, most(1, most(BLOCK / (PLACES * (c->C + c->K)), BLOCK_TILES) / s.across));
    s.slot = up((2 * GROUP + 2) * (2 * s.across + 2) * most(c->C, c->K) * (int64_t)sizeof(float), 64);
    return s;
}
static int64_t v_numbers(const weights *s) { return up(PLACES * s->block * s->across * s->v_ld, 16); }
static int64_t d_numbers(const weights *s) { return up(PLACES * s->block * s->across * up(s->c->K, NR), 16); }
static int64_t u_numbers(const weights *s) { return PLACES * s->c->C * s->c->K; }

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

/* U[place] += V[place]^T D[place], of parts [begin, end) of (place, a cut of C). */
static void add_products(void *ctx, int64_t begin, int64_t end) {
    const weights *s = ctx;
    const int64_t C = s->c->C, K = s->c->K, tiles = s->some * s->across;
    for (int64_t part = begin; part < end; part++) {
        const int64_t place = part / s->cuts, cut = part % s->cuts, c0 = C * cut / s->cuts,
                      channels = C * (cut + 1) / s->cuts - c0, panels = (channels + MR - 1) / MR;
        for (int64_t k = 0; k < K; k += NR) {
            tile_f32 t = {.K = tiles,
                          .a_ld = s->v_ld,
                          .b_row = NR,
                          .c_row = K,
                          .n = least(NR, K - k),
                          .add = s->first > 0,
                          .B = s->D + (place * up(K, NR) + k) * tiles};
            const micro_fn_f32 *micro = micros_f32[1][t.n > LANES];
            for (int64_t i = 0; i < panels; i++) {
                const int64_t first = c0 + channels * i / panels, m = c0 + channels * (i + 1) / panels - first;
                t.A = s->V + place * tiles * s->v_ld + first;
                t.C = s->U + (place * C + first) * K + k;
                micro[m](&t);
            }
        }
    }
}

/* gw of LANES k each. */
static void gather_filters(void *ctx, int64_t begin, int64_t end) {
    const weights *s = ctx;
    const int64_t C = s->c->C, K = s->c->K;
    filters out;
    for (int64_t k = begin * LANES; k < end * LANES; k += LANES)
        for (int64_t c = 0; c < C; c += LANES) {
            for (int64_t i = 0; i < LANES; i++) {
                vec u[PLACES], g[9];
                for (int p = 0; p < PLACES; p++) u[p] = get(s->U + (p * C + c + i) * K + k);
                filter_gather(u, g);
                for (int t = 0; t < 9; t++) set(out[t][i], g[t]);
            }
            filters_out(s->c, s->gw, k, c, out);
        }
}

/* [V | D | U | a slot for each group of rows of a block] */
static size_t weights_scratch(const pd_conv *c) {
    weights s = weights_of(c, NULL, NULL);
    const int64_t numbers = v_numbers(&s) + d_numbers(&s) + u_numbers(&s), groups = (s.block + GROUP - 1) / GROUP;
    return (size_t)numbers * sizeof(float) + (size_t)(groups * s.slot);
}

static pd_status grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    weights s = weights_of(c, gy, x);
    s.gw = gw;
    s.V = scratch, s.D = s.V + v_numbers(&s), s.U = s.D + d_numbers(&s), s.slots = (char *)(s.U + u_numbers(&s));
    for (s.first = 0; s.first < s.rows; s.first += s.some) {
        s.some = least(s.block, s.rows - s.first);
        pd_parallel((s.some + GROUP - 1) / GROUP, 1, transform_rows, &s);
        pd_parallel(PLACES * s.cuts, 1, add_products, &s);
    }
    pd_parallel(c->K / LANES, 1 + PD_GRAIN / (c->C * LANES * PLACES), gather_filters, &s);
    return PD_OK;
}

static size_t scratch_of(const pd_conv *c, pd_conv_part part) {
    return part == PD_CONV_WEIGHT ? weights_scratch(c) : plane_scratch(c, part == PD_CONV_INPUT);
}

const pd_conv_backend PD_SUFFIXED(pd_winograd) = {"winograd", pd_winograd_takes, scratch_of, forward, grad_input,
                                                  grad_weight};
