/* What a kernel finds wrong with the numbers that it reads: an index out of range. The CPU's kernels say so when they
   return; those of a device, for which nobody waits, leave that place out and write it down where the host looks after
   each launch and copy: the error then names the op that was at fault, and comes from the call that saw it. */
#ifndef PD_DEVICE_BAD_INDEX_H
#define PD_DEVICE_BAD_INDEX_H

#include "base/status.h"

typedef enum pd_bad_kind {
    PD_BAD_INDEX, /* v: index, dimension, its size */
    PD_BAD_ROW,   /* index, rows */
    PD_BAD_LABEL  /* label, row, classes, ignore_index */
} pd_bad_kind;
typedef struct pd_bad_index {
    const char *op; /* lives on */
    pd_bad_kind kind;
    int64_t v[4];
} pd_bad_index;

pd_status pd_bad_index_fail(const pd_bad_index *b); /* PD_E_INDEX */

#endif
