#include "device/bad_index.h"

#include <inttypes.h>

pd_status pd_bad_index_fail(const pd_bad_index *b) {
    const int64_t *v = b->v;
    switch (b->kind) {
        case PD_BAD_INDEX:
            return pd_fail(PD_E_INDEX,
                           "%s: index %" PRId64 " is out of range for dimension %" PRId64 " of size %" PRId64, b->op,
                           v[0], v[1], v[2]);
        case PD_BAD_ROW:
            return pd_fail(PD_E_INDEX, "%s: index %" PRId64 " is out of range (expected 0 to %" PRId64 ")", b->op, v[0],
                           v[1] - 1);
        case PD_BAD_LABEL: break;
    }
    return pd_fail(PD_E_INDEX,
                   "%s: target %" PRId64 " at row %" PRId64 " is out of range (expected 0 to %" PRId64
                   ", or ignore_index %" PRId64 ")",
                   b->op, v[0], v[1], v[2] - 1, v[3]);
}
