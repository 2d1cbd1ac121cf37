#include "tensor/iter.h"

static int64_t step(const pd_tensor *t, int dim, int ndim) { /* in bytes; 0: broadcast */
    int d = dim - (ndim - t->ndim);
    return d < 0 || t->size[d] == 1 ? 0 : t->stride[d] * (int64_t)pd_dtype_size((pd_dtype)t->dtype);
}

static bool all_contiguous(int nop, pd_tensor *const *t) {
    for (int k = 0; k < nop; k++)
        if (t[k] && (!pd_tensor_same_shape(t[k], t[0]) || !pd_tensor_is_contiguous(t[k]))) return false;
    return true;
}

void pd_loop_build(pd_loop *l, int nop, pd_tensor *const *t) {
    int n = t[0]->ndim;
    l->nop = nop;
    l->cells = 0;
    l->mixed = l->later = false;
    l->sums = NULL;
    l->numel = t[0]->numel;
    for (int k = 0; k < nop; k++) l->ptr[k] = t[k] ? pd_tensor_data(t[k]) : NULL;
    if (all_contiguous(nop, t)) { /* the usual case: one dim, no sorting */
        l->ndim = 1;
        l->size[0] = l->numel;
        for (int k = 0; k < nop; k++) l->stride[k][0] = t[k] ? (int64_t)pd_dtype_size((pd_dtype)t[k]->dtype) : 0;
        return;
    }
    int order[PD_MAX_DIMS], used = 0;
    for (int d = 0; d < n; d++)
        if (t[0]->size[d] != 1) order[used++] = d;
    for (int i = 1; i < used; i++) /* stable insertion sort: larger strides of the output outermost */
        for (int j = i; j > 0 && t[0]->stride[order[j - 1]] < t[0]->stride[order[j]]; j--) {
            int swap = order[j];
            order[j] = order[j - 1];
            order[j - 1] = swap;
        }
    l->ndim = 0;
    for (int i = 0; i < used; i++) {
        int d = order[i], last = l->ndim - 1;
        int64_t size = t[0]->size[d], strides[PD_MAX_OPERANDS];
        bool merge = last >= 0;
        for (int k = 0; k < nop; k++) {
            strides[k] = t[k] ? step(t[k], d, n) : 0;
            merge = merge && l->stride[k][last] == strides[k] * size;
        }
        if (merge) l->size[last] *= size;
        else l->size[l->ndim++] = size, last++;
        for (int k = 0; k < nop; k++) l->stride[k][last] = strides[k];
    }
}
