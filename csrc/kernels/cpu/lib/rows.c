#include "kernels/cpu/lib/rows.h"

typedef struct cursor { int64_t at[PD_MAX_DIMS], left; } cursor; /* left: elements up to the end of the innermost row */

typedef struct plan {
    const pd_rows *r;
    int ndim;
    int64_t inner;
    bool flat[PD_MAX_OPERANDS], scalar[PD_MAX_OPERANDS];
    bool by_row; /* the innermost axis is long enough to be a row; else tiles gather across rows */
    bool tiled;  /* an operand needs a tile */
    bool plain;  /* only operands with one value need a tile */
    bool direct; /* by_row, and every row is dense in memory */
} plan;

#define TILE_BYTES (PD_TILE * 16)

#define GATHER(T)                                                                                      \
    for (int64_t i = 0; i < n; i++) {                                                                  \
        T v;                                                                                           \
        memcpy(&v, src + i * stride, sizeof v);                                                        \
        memcpy(dst + i * (int64_t)sizeof v, &v, sizeof v);                                             \
    }
static void gather(char *dst, const char *src, int64_t stride, int64_t n, int size) {
    if (stride == size) {
        memcpy(dst, src, (size_t)(n * size));
        return;
    }
    typedef struct { uint64_t v[2]; } two;
    switch (size) {
        case 1: GATHER(uint8_t) break;
        case 2: GATHER(uint16_t) break;
        case 4: GATHER(uint32_t) break;
        case 8: GATHER(uint64_t) break;
        default: GATHER(two)
    }
}

#define SCATTER(T)                                                                                     \
    for (int64_t i = 0; i < n; i++) {                                                                  \
        T v;                                                                                           \
        memcpy(&v, src + i * (int64_t)sizeof v, sizeof v);                                             \
        memcpy(dst + i * stride, &v, sizeof v);                                                        \
    }
static void scatter(char *dst, const char *src, int64_t stride, int64_t n, int size) {
    if (stride == size) {
        memcpy(dst, src, (size_t)(n * size));
        return;
    }
    typedef struct { uint64_t v[2]; } two;
    switch (size) {
        case 1: SCATTER(uint8_t) break;
        case 2: SCATTER(uint16_t) break;
        case 4: SCATTER(uint32_t) break;
        case 8: SCATTER(uint64_t) break;
        default: SCATTER(two)
    }
}

static cursor cursor_at(const pd_loop *l, int64_t i) {
    cursor c;
    for (int d = l->ndim - 1; d >= 0; d--) {
        c.at[d] = i % l->size[d];
        i /= l->size[d];
    }
    c.left = l->ndim ? l->size[l->ndim - 1] - c.at[l->ndim - 1] : 1;
    return c;
}

/* Advances the cursor by n <= left elements. */
static void cursor_step(cursor *c, const pd_loop *l, int64_t n) {
    c->left -= n;
    int d = l->ndim - 1;
    if (d < 0) return;
    c->at[d] += n;
    if (c->left) return;
    for (; d > 0 && c->at[d] == l->size[d]; d--) {
        c->at[d] = 0;
        c->at[d - 1]++;
    }
    c->left = l->size[l->ndim - 1];
}

static char *address(const pd_loop *l, int k, const cursor *c) {
    char *p = l->ptr[k];
    for (int d = 0; d < l->ndim; d++) p += c->at[d] * l->stride[k][d];
    return p;
}

/* Copies n elements of operand k, from c on and across rows, to or from a tile. */
static void move(const pd_loop *l, int k, cursor c, char *tile, int64_t n, int size, bool out) {
    int64_t stride = l->ndim ? l->stride[k][l->ndim - 1] : 0;
    while (n > 0) {
        int64_t piece = n < c.left ? n : c.left;
        char *p = address(l, k, &c);
        if (out) scatter(p, tile, stride, piece, size);
        else gather(tile, p, stride, piece, size);
        tile += piece * size;
        n -= piece;
        cursor_step(&c, l, piece);
    }
}

static void convert(pd_row f, int64_t n, char *to, char *from) { f(n, 1.0, (char *const[]){to, from}); }

static void run_row(const pd_rows *r, int64_t n, char *const *at) {
    if (r->with) r->with(n, r->params, at);
    else r->row(n, r->a, at);
}

/* Fills a tile with n copies of the value at `from`, converted if need be. */
static void spread(const pd_rows *r, int k, const char *from, int64_t n, char *tile) {
    char one[16];
    if (r->load[k]) convert(r->load[k], 1, one, (char *)(uintptr_t)from), from = one;
    gather(tile, from, 0, n, r->wide[k]);
}

/* All operands are flat, or have one value, for which a single tile is filled. */
static void run_plain(const plan *p, int64_t begin, int64_t end) {
    const pd_rows *r = p->r;
    const pd_loop *l = r->loop;
    char tiles[PD_MAX_OPERANDS][TILE_BYTES] __attribute__((aligned(64))), *at[PD_MAX_OPERANDS];
    int64_t step[PD_MAX_OPERANDS], most = end - begin < PD_TILE ? end - begin : PD_TILE, copies = most;
    unsigned scalars = 0;
    pd_row row = NULL;
    for (int k = 0; k < l->nop; k++) scalars |= (unsigned)p->scalar[k] << k;
    for (int i = 0; i < 2; i++)
        if (r->cell[i].row && r->cell[i].scalars == scalars) row = r->cell[i].row, most = end - begin, copies = 1;
    for (int k = 0; k < l->nop; k++) {
        step[k] = p->scalar[k] ? 0 : r->size[k];
        at[k] = p->scalar[k] ? tiles[k] : l->ptr[k] + begin * r->size[k];
        if (p->scalar[k]) spread(r, k, l->ptr[k], copies, tiles[k]);
    }
    for (int64_t i = begin; i < end; i += most) {
        const int64_t n = end - i < most ? end - i : most;
        if (row) row(n, r->a, at);
        else run_row(r, n, at);
        for (int k = 0; k < l->nop; k++) at[k] += step[k] * most;
    }
}

/* The rows are dense in all operands. */
static void run_direct(const plan *p, int64_t begin, int64_t end) {
    const pd_loop *l = p->r->loop;
    char *at[PD_MAX_OPERANDS];
    cursor c = cursor_at(l, begin);
    for (int64_t i = begin, n; i < end; i += n) {
        n = c.left < end - i ? c.left : end - i;
        for (int k = 0; k < l->nop; k++) at[k] = address(l, k, &c);
        run_row(p->r, n, at);
        cursor_step(&c, l, n);
    }
}

static void run_range(void *ctx, int64_t begin, int64_t end) {
    const plan *p = ctx;
    if (p->plain || p->direct) {
        (p->plain ? run_plain : run_direct)(p, begin, end);
        return;
    }
    const pd_rows *r = p->r;
    const pd_loop *l = r->loop;
    char *at[PD_MAX_OPERANDS];
    if (!p->tiled) {
        for (int k = 0; k < l->nop; k++) at[k] = l->ptr[k] + begin * r->size[k];
        run_row(r, end - begin, at);
        return;
    }
    char tiles[PD_MAX_OPERANDS][PD_TILE * 8 + TILE_BYTES] __attribute__((aligned(64))); /* [converted | as in memory] */
    const char *filled[PD_MAX_OPERANDS] = {0}; /* the address of the value that fills tiles[k] */
    int64_t copies[PD_MAX_OPERANDS] = {0};
    cursor c = cursor_at(l, begin);
    for (int64_t i = begin; i < end;) {
        int64_t n = end - i < PD_TILE ? end - i : PD_TILE;
        if (p->by_row && c.left < n) n = c.left;
        char *raw[PD_MAX_OPERANDS] = {0};
        for (int k = 0; k < l->nop; k++) {
            char *tile = tiles[k] + (r->load[k] ? PD_TILE * 8 : 0), *wide = tiles[k];
            int64_t stride = l->ndim ? l->stride[k][l->ndim - 1] : 0;
            char *here = p->flat[k] ? l->ptr[k] + i * r->size[k] : p->scalar[k] ? l->ptr[k] : address(l, k, &c);
            bool direct = p->flat[k] || (p->by_row && stride == r->size[k]);
            bool repeat = !direct && k > 0 && (p->scalar[k] || (p->by_row && stride == 0));
            if (repeat && filled[k] == here && copies[k] >= n) {
                at[k] = wide;
                continue;
            }
            if (k == 0) { /* written below */
                raw[0] = direct ? here : tile;
                at[0] = r->load[0] ? wide : raw[0];
                continue;
            }
            if (r->moves && !direct && !repeat && raw[0] != tiles[0]) {
                move(l, k, c, raw[0], n, r->size[k], false);
                at[k] = raw[0];
                continue;
            }
            int64_t many = repeat && p->scalar[k] ? (l->numel < PD_TILE ? l->numel : PD_TILE) : n;
            if (direct) raw[k] = here;
            else {
                raw[k] = tile;
                if (repeat) gather(tile, here, 0, many, r->size[k]);
                else move(l, k, c, tile, n, r->size[k], false);
            }
            at[k] = raw[k];
            if (r->load[k]) convert(r->load[k], many, at[k] = wide, raw[k]);
            filled[k] = repeat ? here : NULL;
            copies[k] = many;
        }
        run_row(r, n, at);
        if (r->load[0]) convert(r->load[0], n, raw[0], at[0]);
        if (raw[0] == tiles[0] + (r->load[0] ? PD_TILE * 8 : 0)) move(l, 0, c, raw[0], n, r->size[0], true);
        i += n;
        for (int64_t left = n; left > 0;) {
            int64_t piece = left < c.left ? left : c.left;
            cursor_step(&c, l, piece);
            left -= piece;
        }
    }
}

void PD_SUFFIXED(pd_rows_convert)(pd_rows *r, pd_dtype t) {
    const pd_dtype c = pd_dtype_computed(t);
    const uint8_t size = (uint8_t)pd_dtype_size(t);
    if (c == t && !r->loop->mixed) { /* the usual case: nothing is converted */
        memset(r->size, size, sizeof r->size), memset(r->wide, size, sizeof r->wide);
        return;
    }
    for (int k = 0; k < r->loop->nop; k++) {
        const pd_dtype own = k ? pd_loop_dtype(r->loop, k, t) : t;
        r->size[k] = (uint8_t)pd_dtype_size(own);
        r->wide[k] = (uint8_t)pd_dtype_size(c);
        if (c != own) r->load[k] = k ? PD_CASTS[c][own] : PD_CASTS[own][c];
    }
}

void PD_SUFFIXED(pd_rows_run)(const pd_rows *r) {
    const pd_loop *l = r->loop;
    if (l->numel <= 0) return;
    plan p = {.r = r, .inner = l->ndim ? l->size[l->ndim - 1] : 1, .plain = true, .direct = true};
    for (int k = 0; k < l->nop; k++) {
        int64_t expect = r->size[k];
        p.flat[k] = p.scalar[k] = true;
        for (int d = l->ndim - 1; d >= 0; d--) {
            if (l->size[d] != 1 && l->stride[k][d] != expect) p.flat[k] = false;
            if (l->size[d] != 1 && l->stride[k][d] != 0) p.scalar[k] = false;
            expect *= l->size[d];
        }
        if (p.scalar[k] && l->numel > 1) p.flat[k] = false;
        if (k == 0) p.scalar[0] = false;
        if (!p.flat[k] || r->load[k]) p.tiled = true;
        if (!p.scalar[k] && (!p.flat[k] || r->load[k])) p.plain = false;
        if (r->load[k] || (!p.flat[k] && l->ndim && l->stride[k][l->ndim - 1] != r->size[k])) p.direct = false;
    }
    p.by_row = p.inner >= 64;
    p.plain = p.plain && p.tiled;
    p.direct = p.direct && p.by_row && p.tiled;
    pd_parallel(l->numel, pd_grain(l->numel, 1, r->grain ? r->grain : PD_GRAIN), run_range, &p);
}
