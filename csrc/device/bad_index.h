/* An index out of range that a kernel has found. CPU kernels return it. Nobody waits for a device's kernels, so these
   skip the place and store the index where the host looks after each launch and copy. The error is then raised by the
   call that sees it, and names the op at fault. */
#ifndef PD_DEVICE_BAD_INDEX_H
#define PD_DEVICE_BAD_INDEX_H

#include "base/status.h"

typedef enum pd_bad_kind {
    PD_BAD_INDEX, /* v: index, dimension, its size */
    PD_BAD_ROW,   /* index, rows */
    PD_BAD_LABEL  /* label, row, classes, ignore_index */
} pd_bad_kind;
typedef struct pd_bad_index {
    const char *op; /* [borrowed], never freed */
    pd_bad_kind kind;
    int64_t v[4];
} pd_bad_index;

pd_status pd_bad_index_fail(const pd_bad_index *b); /* PD_E_INDEX */

#endif
