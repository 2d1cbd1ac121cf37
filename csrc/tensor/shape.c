#include "tensor/shape.h"

#include <inttypes.h>
#include <stdio.h>

const char *pd_shape_text(int ndim, const int64_t *size) {
    static _Thread_local char texts[6][160];
    static _Thread_local unsigned turn;
    char *text = texts[turn++ % 6];
    size_t used = (size_t)snprintf(text, sizeof texts[0], "[");
    for (int i = 0; i < ndim && used < sizeof texts[0] - 24; i++)
        used += (size_t)snprintf(text + used, sizeof texts[0] - used, "%s%" PRId64, i ? ", " : "", size[i]);
    snprintf(text + used, sizeof texts[0] - used, "]");
    return text;
}

pd_status pd_shape_numel(const char *op, int ndim, const int64_t *size, int64_t *out) {
    int64_t n = 1;
    bool empty = false, over = false;
    if (ndim > PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "%s: got %d dimensions (expected at most %d)", op, ndim, PD_MAX_DIMS);
    for (int i = 0; i < ndim; i++) {
        if (size[i] < 0)
            return pd_fail(PD_E_SHAPE,
                           "%s: Trying to create tensor with negative dimension %" PRId64
                           ": got shape %s (expected sizes of at least 0)",
                           op, size[i], pd_shape_text(ndim, size));
        empty |= size[i] == 0;
        over |= __builtin_mul_overflow(n, size[i] ? size[i] : 1, &n);
    }
    /* An element has 16 bytes at most, so the number of bytes fits, too. */
    if (over || n > INT64_MAX / 16)
        return pd_fail(PD_E_SHAPE, "%s: shape %s has too many elements (expected less than 2^59)", op,
                       pd_shape_text(ndim, size));
    *out = empty ? 0 : n;
    return PD_OK;
}

void pd_shape_contiguous(int ndim, const int64_t *size, int64_t *stride) {
    int64_t n = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        stride[i] = n;
        n *= size[i] > 1 ? size[i] : 1;
    }
}

bool pd_shape_is_contiguous(int ndim, const int64_t *size, const int64_t *stride) {
    int64_t n = 1;
    bool match = true;
    for (int i = ndim - 1; i >= 0; i--) {
        if (size[i] == 0) return true;
        if (size[i] != 1) {
            match &= stride[i] == n;
            n *= size[i];
        }
    }
    return match;
}

bool pd_shape_is_dense(int ndim, const int64_t *size, const int64_t *stride) {
    /* Walk the dims from the smallest stride up: each must be the product of those before it. */
    int64_t n = 1;
    unsigned done = 0;
    for (int k = 0; k < ndim; k++) {
        int best = -1;
        for (int i = 0; i < ndim; i++)
            if (!(done >> i & 1) && (best < 0 || (size[i] > 1 ? stride[i] : 0) < (size[best] > 1 ? stride[best] : 0)))
                best = i;
        done |= 1u << best;
        if (size[best] == 0) return true;
        if (size[best] > 1) {
            if (stride[best] != n) return false;
            n *= size[best];
        }
    }
    return true;
}

void pd_shape_channels_last(int ndim, const int64_t *size, int64_t *stride) {
    int64_t n = size[1];
    stride[1] = 1;
    for (int i = ndim - 1; i > 1; n *= size[i--]) stride[i] = n;
    stride[0] = n;
}

bool pd_shape_is_channels_last(int ndim, const int64_t *size, const int64_t *stride) {
    if (ndim != 4 && ndim != 5) return false;
    int64_t want[5];
    pd_shape_channels_last(ndim, size, want);
    for (int i = 0; i < ndim; i++)
        if (size[i] > 1 && stride[i] != want[i]) return false;
    return true;
}

pd_status pd_shape_broadcast(const char *op, int *an, int64_t *a, int bn, const int64_t *b) {
    int n = *an > bn ? *an : bn;
    int64_t out[PD_MAX_DIMS];
    for (int i = 1; i <= n; i++) {
        int64_t x = i <= *an ? a[*an - i] : 1, y = i <= bn ? b[bn - i] : 1;
        if (x != y && x != 1 && y != 1)
            return pd_fail(PD_E_SHAPE, "%s: shapes %s and %s cannot be broadcast: the size of tensor a (%" PRId64
                           ") must match the size of tensor b (%" PRId64
                           ") at dimension %d (expected equal sizes, or 1)", op, pd_shape_text(*an, a),
                           pd_shape_text(bn, b), x, y, n - i);
        out[n - i] = x == 1 ? y : x;
    }
    *an = n;
    for (int i = 0; i < n; i++) a[i] = out[i];
    return PD_OK;
}

pd_status pd_shape_dim(const char *op, int64_t dim, int ndim, int *out) {
    int range = ndim ? ndim : 1;
    if (dim < -range || dim >= range)
        return pd_fail(PD_E_DIM, "%s: dimension %" PRId64 " out of range (expected [%d, %d])", op, dim, -range,
                       range - 1);
    *out = (int)(dim < 0 ? dim + range : dim);
    return PD_OK;
}

pd_status pd_shape_infer(const char *op, int64_t numel, int ndim, int64_t *size) {
    int64_t known = 1;
    int unknown = -1;
    if (ndim > PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "%s: got %d dimensions (expected at most %d)", op, ndim, PD_MAX_DIMS);
    for (int i = 0; i < ndim; i++) {
        if (size[i] == -1 && unknown >= 0)
            return pd_fail(PD_E_SHAPE, "%s: only one dimension can be inferred: got shape %s (expected at most one -1)",
                           op, pd_shape_text(ndim, size));
        if (size[i] < -1)
            return pd_fail(PD_E_SHAPE,
                           "%s: invalid shape dimension: got %s (expected sizes of at least 0, and at most one -1)", op,
                           pd_shape_text(ndim, size));
        if (size[i] == -1) unknown = i;
        else if (__builtin_mul_overflow(known, size[i], &known))
            return pd_fail(PD_E_SHAPE, "%s: shape %s has too many elements (expected less than 2^59)", op,
                           pd_shape_text(ndim, size));
    }
    if (unknown >= 0 ? known == 0 || numel % known : known != numel)
        return pd_fail(PD_E_SHAPE,
                       "%s: shape %s is invalid for input of size %" PRId64 " (expected the same number of elements)",
                       op, pd_shape_text(ndim, size), numel);
    if (unknown >= 0) size[unknown] = numel / known;
    return PD_OK;
}

bool pd_shape_view(int ndim, const int64_t *size, const int64_t *stride, int want_ndim, const int64_t *want,
                   int64_t *out) {
    for (int i = 0; i < ndim; i++)
        if (size[i] == 0) {
            pd_shape_contiguous(want_ndim, want, out);
            return true;
        }
    /* Match runs of old dims that lie in memory as one (a chunk) with runs of new dims of the same product. */
    int v = want_ndim - 1;
    int64_t step = 1, have = 1, got = 1;
    if (ndim == 0) {
        for (; v >= 0; v--) out[v] = 1;
        return true;
    }
    step = stride[ndim - 1];
    for (int d = ndim - 1; d >= 0; d--) {
        have *= size[d];
        if (d == 0 || (size[d - 1] != 1 && stride[d - 1] != have * step)) {
            while (v >= 0 && (got < have || want[v] == 1)) {
                out[v] = got * step;
                got *= want[v];
                v--;
            }
            if (got != have) return false;
            if (d > 0) {
                step = stride[d - 1];
                have = got = 1;
            }
        }
    }
    return v == -1;
}
