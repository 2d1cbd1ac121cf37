/* How the middle axis of [outer, n, inner] is cut for a fold. It depends on shapes and on alignment alone, so the bits
   are the same in every run and on every device. */
#ifndef PD_CUDA_FOLD_H
#define PD_CUDA_FOLD_H

#include "cuda/block.h"

enum { SHORT = 64, ROW_CHUNK = 4096, SLICE_CHUNK = 8, MOST_PARTS = 128, MOST_BLOCKS = 1024 };

/* The axis has `parts` of at most `chunk` elements, each a block's work. whole: it is short, and a thread folds all of
   it. rows: the block's threads share a row (inner 1). Else `lanes` threads stand side by side, each on V columns, and
   THREADS / lanes one behind the other; `groups` blocks cover all columns. */
struct cut {
    int64_t parts, chunk, groups;
    int lanes, V;
    bool whole, rows;
};

/* The columns that a thread loads at once from aligned memory. */
static inline constexpr int vector_of(size_t size) { return size < 2 ? 8 : (int)(16 / size); }

/* x: the elements, of `size` bytes. */
static inline cut cut_of(const pd_block *b, const void *x, size_t size) {
    const int V = vector_of(size);
    const bool vectors = b->inner % V == 0 && (uintptr_t)x % (V * size) == 0;
    cut c = {1, b->n > 0 ? b->n : 1, 1, 1, vectors ? V : 1, b->n <= SHORT, b->inner == 1};
    int64_t across = b->inner / c.V, least = ROW_CHUNK, most = ROW_CHUNK, blocks = b->outer;
    if (c.whole || blocks <= 0 || b->inner <= 0) return c;
    if (!c.rows) {
        while (c.lanes < WARP && c.lanes < across) c.lanes *= 2;
        c.groups = (across + c.lanes - 1) / c.lanes;
        blocks *= c.groups;
        least = SLICE_CHUNK * (THREADS / c.lanes);
        most = MOST_PARTS;
    }
    if (most > MOST_BLOCKS / blocks) most = MOST_BLOCKS / blocks;
    c.parts = (b->n + least - 1) / least;
    if (c.parts > most) c.parts = most;
    if (c.parts < 1) c.parts = 1;
    c.chunk = (b->n + c.parts - 1) / c.parts;
    return c;
}

#endif
