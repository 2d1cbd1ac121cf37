#include "ops/block.h"

#include <inttypes.h>
#include <string.h>

pd_status pd_dims_of(const char *op, const pd_ints *dim, int ndim, unsigned *bits) {
    *bits = 0;
    if (dim->n <= 0) {
        *bits = (1u << ndim) - 1;
        return PD_OK;
    }
    for (int i = 0; i < dim->n; i++) {
        int d;
        PD_TRY(pd_shape_dim(op, dim->v[i], ndim, &d));
        if (*bits >> d & 1)
            return pd_fail(PD_E_DIM, "%s: dimension %d appears twice in dims %s (expected each dimension at most once)",
                           op, d, pd_shape_text((int)dim->n, dim->v));
        *bits |= 1u << d;
    }
    if (ndim == 0) *bits = 0;
    return PD_OK;
}

bool pd_block_of(const pd_tensor *x, unsigned bits, pd_block *b) {
    *b = (pd_block){1, 1, 1};
    int stage = 0; /* 0: outer dims, 1: the run, 2: inner dims */
    bool run = true;
    for (int d = 0; d < x->ndim; d++) {
        if (x->size[d] == 1) continue;
        bool in = bits >> d & 1;
        if (in && stage == 0) stage = 1;
        if (!in && stage == 1) stage = 2;
        if (in && stage == 2) run = false;
        *(in ? &b->n : stage == 0 ? &b->outer : &b->inner) *= x->size[d];
    }
    for (int d = 0; d < x->ndim; d++)
        if (x->size[d] == 0) run = true; /* nothing to read */
    bool all = bits == (1u << x->ndim) - 1;
    if (all && pd_shape_is_dense(x->ndim, x->size, x->stride)) return true;
    if (run && pd_tensor_is_contiguous(x)) return true;
    b->outer *= b->inner; /* for packing, with the reduced dims innermost */
    b->inner = 1;
    return false;
}

static void copy_to(pd_tensor *x, const int64_t *stride, void *to) {
    pd_storage memory = {.data = to, .bytes = pd_tensor_bytes(x), .device = &pd_device_cpu};
    pd_tensor t = *x, *pair[2] = {&t, x};
    t.storage = &memory;
    t.offset = 0;
    memcpy(t.stride, stride, sizeof(int64_t) * (size_t)x->ndim);
    pd_loop l;
    pd_loop_build(&l, 2, pair);
    pd_here()->copy((pd_dtype)x->dtype, (pd_dtype)x->dtype, &l);
}

void pd_block_pack(pd_tensor *x, unsigned bits, void *to) {
    int64_t stride[PD_MAX_DIMS], n = 1;
    for (int reduced = 1; reduced >= 0; reduced--)
        for (int d = x->ndim - 1; d >= 0; d--)
            if ((int)(bits >> d & 1) == reduced) {
                stride[d] = n;
                n *= x->size[d] > 1 ? x->size[d] : 1;
            }
    copy_to(x, stride, to);
}

size_t pd_packed_bytes(const pd_call *c) { return pd_tensor_is_contiguous(c->in[0]) ? 0 : pd_tensor_bytes(c->in[0]); }

const void *pd_packed(pd_tensor *x, void *scratch) {
    if (pd_tensor_is_contiguous(x)) return pd_tensor_data(x);
    pd_block_pack(x, 0, scratch);
    return scratch;
}

bool pd_is_nhwc(const pd_tensor *t) {
    return t->ndim == 4 && !pd_tensor_is_contiguous(t) && pd_shape_is_channels_last(4, t->size, t->stride);
}

static bool is_laid_out(const pd_tensor *t, bool nhwc) {
    return nhwc ? pd_shape_is_channels_last(t->ndim, t->size, t->stride) : pd_tensor_is_contiguous(t);
}

size_t pd_laid_out_bytes(const pd_tensor *t, bool nhwc) {
    return is_laid_out(t, nhwc) ? 0 : (pd_tensor_bytes(t) + 63) & ~(size_t)63;
}

const void *pd_laid_out(pd_tensor *t, bool nhwc, void **scratch) {
    int64_t stride[PD_MAX_DIMS];
    void *to = *scratch;
    if (is_laid_out(t, nhwc)) return pd_tensor_data(t);
    if (nhwc) pd_shape_channels_last(4, t->size, stride);
    else pd_shape_contiguous(t->ndim, t->size, stride);
    copy_to(t, stride, to);
    *scratch = (char *)to + pd_laid_out_bytes(t, nhwc);
    return to;
}
