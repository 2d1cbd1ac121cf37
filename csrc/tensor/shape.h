/* Arithmetic on sizes and strides, which count elements. Overflow is checked. */
#ifndef PD_TENSOR_SHAPE_H
#define PD_TENSOR_SHAPE_H

#include "base/status.h"
#include "kernels/loop.h"

/* "[2, 3]", in one of a few buffers of this thread: use it for one error message only. */
const char *pd_shape_text(int ndim, const int64_t *size);

/* The product of the sizes. PD_E_SHAPE: a size is negative, or there are more than PD_MAX_DIMS dimensions or 2^63 - 1
   elements. */
pd_status pd_shape_numel(const char *op, int ndim, const int64_t *size, int64_t *out);
void pd_shape_contiguous(int ndim, const int64_t *size, int64_t *stride);
bool pd_shape_is_contiguous(int ndim, const int64_t *size, const int64_t *stride);
/* Whether the strides are a permutation of contiguous ones: no gaps, and each element has a place of its own. */
bool pd_shape_is_dense(int ndim, const int64_t *size, const int64_t *stride);
/* The strides of channels_last (4 dimensions) and channels_last_3d (5). */
void pd_shape_channels_last(int ndim, const int64_t *size, int64_t *stride);
bool pd_shape_is_channels_last(int ndim, const int64_t *size, const int64_t *stride);
static inline bool pd_shape_equal(int an, const int64_t *a, int bn, const int64_t *b) {
    if (an != bn) return false;
    for (int i = 0; i < an; i++)
        if (a[i] != b[i]) return false;
    return true;
}
/* Broadcasts b's shape into a's, aligned at the right. */
pd_status pd_shape_broadcast(const char *op, int *an, int64_t *a, int bn, const int64_t *b);
/* Turns a dimension, counted from the end if negative, into an index. PD_E_DIM names op and range. For a 0-d tensor -1
   and 0 are valid. */
pd_status pd_shape_dim(const char *op, int64_t dim, int ndim, int *out);
/* Computes the size that is -1, if there is one. */
pd_status pd_shape_infer(const char *op, int64_t numel, int ndim, int64_t *size);
/* The strides of a view with the sizes `want` over the same memory. False if that would need a copy. */
bool pd_shape_view(int ndim, const int64_t *size, const int64_t *stride, int want_ndim, const int64_t *want,
                   int64_t *out);

#endif
