/* Arithmetic on sizes and strides (in elements), with overflow checked. */
#ifndef PD_TENSOR_SHAPE_H
#define PD_TENSOR_SHAPE_H

#include "base/status.h"
#include "kernels/loop.h"

/* "[2, 3]" in one of a few buffers of this thread: good for one error message. */
const char *pd_shape_text(int ndim, const int64_t *size);

/* Product of the sizes; PD_E_SHAPE on a negative size, more than PD_MAX_DIMS or over 2^63 - 1 elements. */
pd_status pd_shape_numel(const char *op, int ndim, const int64_t *size, int64_t *out);
void pd_shape_contiguous(int ndim, const int64_t *size, int64_t *stride);
bool pd_shape_is_contiguous(int ndim, const int64_t *size, const int64_t *stride);
/* Every element has a place of its own and there are no gaps (a permutation of contiguous). */
bool pd_shape_is_dense(int ndim, const int64_t *size, const int64_t *stride);
bool pd_shape_is_channels_last(int ndim, const int64_t *size, const int64_t *stride);
void pd_shape_channels_last(const int64_t *size, int64_t *stride); /* 4 dims */
static inline bool pd_shape_equal(int an, const int64_t *a, int bn, const int64_t *b) {
    if (an != bn) return false;
    for (int i = 0; i < an; i++)
        if (a[i] != b[i]) return false;
    return true;
}
/* a becomes the broadcast of a and b (aligned at the right). */
pd_status pd_shape_broadcast(const char *op, int *an, int64_t *a, int bn, const int64_t *b);
/* dim counted from the end if negative; PD_E_DIM names op and range. A 0-d tensor takes -1 and 0. */
pd_status pd_shape_dim(const char *op, int64_t dim, int ndim, int *out);
/* Fills in the one size that is -1. */
pd_status pd_shape_infer(const char *op, int64_t numel, int ndim, int64_t *size);
/* Strides of `want` over the same memory, false where that takes a copy. */
bool pd_shape_view(int ndim, const int64_t *size, const int64_t *stride, int want_ndim, const int64_t *want,
                   int64_t *out);

#endif
