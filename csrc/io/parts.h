/* Pieces of memory that lie one after the other in a file or an arena, and the CRC-32 of their blocks.

   A block is PD_BLOCK bytes of a part, counted from the part's begin; the last one may be shorter, and an empty part
   has none. Threads take spans of the whole. Where a span cuts a block, each thread adds what its bytes say of the
   block's checksum: this is an exclusive or, so the order does not matter. */
#ifndef PD_IO_PARTS_H
#define PD_IO_PARTS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define PD_BLOCK ((int64_t)4 << 20)
static inline int64_t pd_blocks(int64_t bytes) { return bytes / PD_BLOCK + (bytes % PD_BLOCK != 0); }

typedef struct pd_part {
    const void *data;
    int64_t bytes;
    const atomic_uint *writes; /* NULL, or the count of writes to this memory, which is raised before each */
    unsigned seen;             /* that count when a copy began */
} pd_part;

typedef struct pd_parts {
    int64_t count, bytes;
    pd_part *part;         /* [count] */
    int64_t *begin;        /* [count + 1] where each part begins, counted through all; at last, bytes */
    int64_t *block;        /* [count + 1] the number of each part's first block */
    _Atomic uint32_t *crc; /* of each block, 0 before the walk */
} pd_parts;

/* *out, whose members pd_parts_free frees; it copies `part`. PD_E_VALUE: all bytes together are too many for an offset
   in a file that begins at `offset`. */
pd_status pd_parts_make(const char *op, const pd_part *part, int64_t count, int64_t offset, pd_parts *out);
void pd_parts_free(pd_parts *parts);

/* A walk through the bytes `at` to `end` of the whole. */
typedef struct pd_walk {
    const pd_parts *parts;
    int64_t at, end, part;
    uint32_t crc; /* of the bytes of the block so far */
} pd_walk;

pd_walk pd_walk_begin(const pd_parts *parts, int64_t begin, int64_t end);
/* The next bytes of the walk, at most `most`: they are of one block. 0: the end. */
int64_t pd_walk_next(pd_walk *w, int64_t most, const void **data);
/* Goes past the bytes that pd_walk_next has given; `data`: they, or a copy of them that is in the cache. */
void pd_walk_past(pd_walk *w, const void *data, int64_t bytes);

#endif
