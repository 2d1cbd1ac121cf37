#include "parallel/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/shape.h"

const char *const pd_edges_name[PD_EDGES_COUNT] = {
    [PD_EDGES_ALL] = "all", [PD_EDGES_ROWS] = "rows", [PD_EDGES_FLAT] = "flat", [PD_EDGES_WHOLE] = "whole",
};

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

static pd_status copy_piece(pd_piece *to, const pd_piece *from) {
    char *name, what[96];
    *to = *from;
    to->name = NULL;
    if ((unsigned)from->edges >= PD_EDGES_COUNT)
        return pd_fail(PD_E_VALUE, "layout: edges of piece %s is %d (expected 0 to %d)", from->name, (int)from->edges,
                       PD_EDGES_COUNT - 1);
    snprintf(what, sizeof what, "layout: piece %.64s", from->name);
    PD_TRY(pd_shape_numel(what, from->ndim, from->size, &to->numel));
    PD_TRY(pd_malloc(strlen(from->name) + 1, "layout", &name));
    to->name = strcpy(name, from->name);
    return PD_OK;
}

pd_status pd_layout_init(pd_layout *l, int n, const pd_piece *pieces) {
    *l = (pd_layout){0};
    PD_TRY(pd_calloc(sizeof *l->pieces * (size_t)n, "layout", &l->pieces));
    l->npieces = n;
    pd_status status = PD_OK;
    for (int i = 0; i < n && !status; i++) status = copy_piece(&l->pieces[i], &pieces[i]);
    if (status) pd_layout_fini(l);
    return status;
}

/* ---- who has what ------------------------------------------------------------------------------------------------ */

typedef struct pd_deal {
    struct pd_deal *next;
    int world;
    int owner[]; /* by piece */
} pd_deal;

typedef struct sized {
    int64_t numel;
    int piece;
} sized;

static int larger_first(const void *a, const void *b) {
    const sized *x = a, *y = b;
    if (x->numel != y->numel) return x->numel > y->numel ? -1 : 1;
    return x->piece < y->piece ? -1 : 1;
}

/* The lowest rank with the fewest elements is among the first `npieces` ranks, so no more are looked at. */
static int ranks_dealt_to(const pd_layout *l, int world) { return world < l->npieces ? world : l->npieces; }

static void deal_out(const pd_layout *l, pd_deal *d, sized *order, int64_t *load) {
    int n = 0, ranks = ranks_dealt_to(l, d->world);
    for (int i = 0; i < l->npieces; i++)
        if (l->pieces[i].edges == PD_EDGES_WHOLE) order[n++] = (sized){l->pieces[i].numel, i};
    qsort(order, (size_t)n, sizeof *order, larger_first);
    for (int i = 0; i < n; i++) {
        int least = 0;
        for (int r = 1; r < ranks; r++)
            if (load[r] < load[least]) least = r;
        d->owner[order[i].piece] = least;
        load[least] += order[i].numel;
    }
}

static pd_status deal_for(pd_layout *l, int world, const pd_deal **out) {
    for (pd_deal *d = l->deals; d; d = d->next)
        if (d->world == world) {
            *out = d;
            return PD_OK;
        }
    pd_deal *d;
    sized *order;
    int64_t *load = NULL;
    size_t n = (size_t)l->npieces;
    PD_TRY(pd_calloc(sizeof *d + sizeof *d->owner * n, "layout", &d));
    d->world = world;
    pd_status status = pd_malloc(sizeof *order * n, "layout", &order);
    if (!status) {
        status = pd_calloc(sizeof *load * (size_t)ranks_dealt_to(l, world), "layout", &load);
        if (!status) deal_out(l, d, order, load);
        pd_free(load);
        pd_free(order);
    }
    if (status) {
        pd_free(d);
        return PD_TRAIL(status);
    }
    d->next = l->deals;
    *out = l->deals = d;
    return PD_OK;
}

/* Cuts n elements into equal shares of whole units of `unit` elements. No number here exceeds n. */
static void cut(int64_t n, int64_t unit, int64_t units, int rank, int world, int64_t *lo, int64_t *hi) {
    int64_t each = units / world + (units % world != 0); /* units a rank; each * rank < units + world */
    int64_t first = each * rank;
    *lo = first >= units ? n : first * unit;
    *hi = first + each >= units ? n : (first + each) * unit;
}

pd_status pd_layout_range(pd_layout *l, int piece, int rank, int world, int64_t *lo, int64_t *hi) {
    if (piece < 0 || piece >= l->npieces)
        return pd_fail(PD_E_INDEX, "layout: the piece's number is %d (expected 0 to %d)", piece, l->npieces - 1);
    if (world < 1) return pd_fail(PD_E_VALUE, "layout: world is %d (expected at least 1)", world);
    if (rank < 0 || rank >= world) return pd_fail(PD_E_VALUE, "layout: rank is %d (expected 0 to %d)", rank, world - 1);
    const pd_piece *p = &l->pieces[piece];
    const pd_deal *d = NULL;
    int64_t rows = p->ndim ? p->size[0] : 1;
    *lo = 0;
    *hi = p->numel;
    switch (p->edges) {
    case PD_EDGES_ALL: break;
    case PD_EDGES_ROWS:
        if (p->numel) cut(p->numel, p->numel / rows, rows, rank, world, lo, hi);
        break;
    case PD_EDGES_FLAT: cut(p->numel, 64, p->numel / 64 + (p->numel % 64 != 0), rank, world, lo, hi); break;
    case PD_EDGES_WHOLE:
        PD_TRY(deal_for(l, world, &d));
        if (d->owner[piece] != rank) *hi = 0;
        break;
    }
    return PD_OK;
}

/* ---- buckets ----------------------------------------------------------------------------------------------------- */

static int64_t aligned(int64_t n, pd_dtype t) { /* to 64 bytes, in elements */
    int64_t unit = 64 / (int64_t)pd_dtype_size(t);
    return (n + unit - 1) / unit * unit;
}

static void fill_buckets(pd_layout *l, size_t first, size_t cap) {
    int open[PD_DTYPE_COUNT]; /* the bucket that is being filled, by dtype */
    for (int t = 0; t < PD_DTYPE_COUNT; t++) open[t] = -1;
    for (int i = l->npieces - 1; i >= 0; i--) {
        pd_piece *p = &l->pieces[i];
        int64_t limit = (int64_t)((open[p->dtype] == 0 || l->nbuckets == 0 ? first : cap) / pd_dtype_size(p->dtype));
        int b = open[p->dtype];
        if (b < 0 || l->buckets[b].numel + p->numel > limit) {
            b = open[p->dtype] = l->nbuckets++;
            l->buckets[b].dtype = p->dtype;
        }
        p->bucket = b;
        p->offset = l->buckets[b].numel;
        l->buckets[b].numel = aligned(p->offset + p->numel, p->dtype);
        l->buckets[b].count++;
    }
}

pd_status pd_layout_pack(pd_layout *l, size_t first, size_t cap) {
    PD_TRY(pd_calloc(sizeof *l->buckets * (size_t)l->npieces, "layout", &l->buckets));
    PD_TRY(pd_calloc(sizeof *l->by_bucket * (size_t)l->npieces, "layout", &l->by_bucket));
    fill_buckets(l, first, cap);
    for (int b = 0, at = 0; b < l->nbuckets; at += l->buckets[b++].count) l->buckets[b].first = at;
    for (int b = 0; b < l->nbuckets; b++) l->buckets[b].count = 0;
    for (int i = l->npieces - 1; i >= 0; i--) {
        pd_bucket_span *span = &l->buckets[l->pieces[i].bucket];
        l->by_bucket[span->first + span->count++] = i;
    }
    return PD_OK;
}

pd_status pd_layout_group(pd_layout *l, int n, const int *bucket) {
    PD_TRY(pd_calloc(sizeof *l->buckets * (size_t)n, "layout", &l->buckets));
    PD_TRY(pd_calloc(sizeof *l->by_bucket * (size_t)l->npieces, "layout", &l->by_bucket));
    l->nbuckets = n;
    for (int i = 0; i < l->npieces; i++) {
        pd_bucket_span *span = &l->buckets[bucket[i]];
        if (!span->count++) span->first = i;
        span->numel += l->pieces[i].numel;
        l->pieces[i].bucket = bucket[i];
        l->by_bucket[i] = i;
    }
    return PD_OK;
}

void pd_layout_fini(pd_layout *l) {
    for (int i = 0; i < l->npieces; i++) pd_free((void *)(uintptr_t)l->pieces[i].name);
    for (pd_deal *d = l->deals, *next; d; d = next) {
        next = d->next;
        pd_free(d);
    }
    pd_free(l->pieces);
    pd_free(l->by_bucket);
    pd_free(l->buckets);
    *l = (pd_layout){0};
}
