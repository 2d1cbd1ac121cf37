/* The layout of a model's state: the one description for buckets, shards, optimizer state, checkpoints and hashes.

   A piece describes one parameter: name, shape, dtype, and an edges rule that says which of its elements belong to
   which rank. Pieces keep the order in which they were given; a piece's number is its place in that order.

   pd_layout_range(piece, rank, world) returns [lo, hi), elements of the piece in row-major order. Except with the rule
   `all`, the ranges of all ranks ascend, do not overlap, and cover the piece. n: elements, W: ranks.

     rule    rank's range
     all     [0, n) on every rank: replicas, as in data-parallel training
     rows    torch.chunk along dimension 0: ceil(rows/W) rows for each rank, the last ranks have fewer or none. A piece
             without dimensions counts as one row
     flat    k = ceil(n/W) rounded up to 64 elements for each rank, the last ranks have fewer or none. Padded to k * W
             elements, all ranges are equal, and each begins on a cache line
     whole   [0, n) on one rank, [0, 0) on the others (ZeRO-1). Pieces are dealt out by size, the largest first, equal
             ones in their order: each goes to the rank with the fewest elements so far, the lowest of several

     W = 4     rows of [10, 3]    0..9 | 9..18 | 18..27 | 27..30
               flat of 100        0..64 | 64..100 | 100..100 | 100..100

   Buckets are the flat memory in which gradients are reduced. pd_layout_pack puts pieces in reverse order, which is
   roughly the order in which backward finishes them, into buckets of one dtype and at most `cap` bytes (the first
   bucket: `first`). A larger piece gets a bucket of its own. Each piece begins at a multiple of 64 bytes.

     bucket 0 [ p9 | p8 | p7 ]   bucket 1 [ p6 | p5 | ... ]   ...   last bucket [ ... | p0 ]                          */
#ifndef PD_PARALLEL_LAYOUT_H
#define PD_PARALLEL_LAYOUT_H

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/loop.h" /* PD_MAX_DIMS */

typedef enum pd_edges { PD_EDGES_ALL, PD_EDGES_ROWS, PD_EDGES_FLAT, PD_EDGES_WHOLE } pd_edges;
#define PD_EDGES_COUNT 4
extern const char *const pd_edges_name[PD_EDGES_COUNT]; /* "all", "rows", "flat", "whole" */

typedef struct pd_piece {
    const char *name; /* the layout's own copy */
    int ndim;
    int64_t size[PD_MAX_DIMS];
    pd_dtype dtype;
    pd_edges edges;
    int64_t numel;    /* set by pd_layout_init */
    int bucket;       /* set by pd_layout_pack, and so is offset */
    int64_t offset;   /* in elements from the bucket's start */
} pd_piece;

typedef struct pd_bucket_span {
    int first, count; /* its pieces: by_bucket[first], ..., in order of offset */
    int64_t numel;    /* including the gaps that alignment leaves */
    pd_dtype dtype;
} pd_bucket_span;

typedef struct pd_layout {
    int npieces, nbuckets;
    pd_piece *pieces;
    int *by_bucket;           /* numbers of pieces, bucket after bucket; NULL, like buckets, before pd_layout_pack */
    pd_bucket_span *buckets;
    struct pd_deal *deals;    /* owners by the rule `whole`, for each world so far */
} pd_layout;

/* Makes a layout of n pieces with name, ndim, size, dtype and edges, which are copied. PD_E_VALUE: no such edges rule.
   PD_E_SHAPE: a negative size, or too many dimensions or elements. */
pd_status pd_layout_init(pd_layout *l, int n, const pd_piece *pieces);
void pd_layout_fini(pd_layout *l);
/* Makes the buckets; called once. `first` and `cap` are in bytes. */
pd_status pd_layout_pack(pd_layout *l, size_t first, size_t cap);

/* Makes n buckets of given pieces instead: bucket[i] is that of piece i, ascending. Offsets are not set. */
pd_status pd_layout_group(pd_layout *l, int n, const int *bucket);

/* The elements of a piece that belong to `rank` of `world`. Costs a few instructions. With the rule `whole`, the first
   call for a world deals all such pieces out (n log n + n min(n, W) steps; 4 bytes a piece are kept), so two threads
   must not call it at the same time. PD_E_INDEX: no such piece; PD_E_VALUE: no such rank. */
pd_status pd_layout_range(pd_layout *l, int piece, int rank, int world, int64_t *lo, int64_t *hi);

/* Piece k of bucket b, in order of offset. */
static inline const pd_piece *pd_layout_in_bucket(const pd_layout *l, int b, int k) {
    return &l->pieces[l->by_bucket[l->buckets[b].first + k]];
}

#endif
