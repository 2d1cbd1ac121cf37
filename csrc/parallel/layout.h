/* Where each parameter's piece lies in flat buffers: the one description that buckets, shards, checkpoints and hashes
   share.

   Parameters go in reverse registration order (the order in which backward finishes them, roughly) into buckets of one
   dtype and at most `cap` bytes (the first: `first`); a parameter larger than that has a bucket of its own. Fixed at
   wrap time.

     bucket 0 [ p9 | p8 | p7 ]   bucket 1 [ p6 | p5 | ... ]   ...   last bucket [ ... | p0 | used flags ]      */
#ifndef PD_PARALLEL_LAYOUT_H
#define PD_PARALLEL_LAYOUT_H

#include "base/dtype.h"
#include "base/status.h"

typedef struct pd_piece {
    int param;       /* index as registered */
    int bucket;
    int64_t offset;  /* elements from the bucket's start; 64-byte aligned */
    int64_t numel;
    pd_dtype dtype;
} pd_piece;

typedef struct pd_bucket_span {
    int first, count; /* its pieces */
    int64_t numel;    /* with the gaps that alignment leaves */
    pd_dtype dtype;
} pd_bucket_span;

typedef struct pd_layout {
    int npieces, nbuckets;
    pd_piece *pieces;         /* by bucket, in order of offset */
    pd_bucket_span *buckets;
} pd_layout;

pd_status pd_layout_init(pd_layout *l, int nparams, const int64_t *numel, const pd_dtype *dtype, size_t first,
                         size_t cap);
void pd_layout_fini(pd_layout *l);

#endif
