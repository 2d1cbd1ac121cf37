/* PYDIST_NAN finds the op, forward or backward, that first makes a NaN or an infinity from finite numbers. */
#include "autograd/nan.h"

#include "base/flags.h"
#include "base/log.h"

bool pd_nan_armed;

void pd_nan_init(void) { pd_nan_armed = pd_flags_get()->NAN > 0; }

/* n elements, `step` bytes apart: an infinity has all bits of its exponent set, a NaN some of the fraction as well. */
#define ROW(type, infinity, sign)                                                                             \
    for (int64_t i = 0; i < n; i++)                                                                           \
        bad |= (type)(*(const type *)(p + i * step) & (type)~(type)(sign)) >= (type)((type)(infinity) + nan_only); \
    break

static bool row_is(pd_dtype t, const char *p, int64_t n, int64_t step, bool nan_only) {
    bool bad = false;
    switch (t) {
    case PD_F16: ROW(uint16_t, 0x7c00, 0x8000);
    case PD_BF16: ROW(uint16_t, 0x7f80, 0x8000);
    case PD_F32: ROW(uint32_t, 0x7f800000, 0x80000000);
    case PD_F64: ROW(uint64_t, 0x7ff0000000000000, 0x8000000000000000);
    default: break;
    }
    return bad;
}

static bool any_from(const pd_tensor *t, int dim, const char *p, bool nan_only) {
    int64_t size = (int64_t)pd_dtype_size((pd_dtype)t->dtype);
    if (dim == t->ndim) return row_is((pd_dtype)t->dtype, p, 1, size, nan_only);
    if (dim == t->ndim - 1) return row_is((pd_dtype)t->dtype, p, t->size[dim], t->stride[dim] * size, nan_only);
    for (int64_t i = 0; i < t->size[dim]; i++)
        if (any_from(t, dim + 1, p + i * t->stride[dim] * size, nan_only)) return true;
    return false;
}

static bool any(const pd_tensor *t, bool nan_only) {
    if (!t || !pd_dtype_is_float((pd_dtype)t->dtype) || !t->numel || t->storage->device->kernels) return false;
    if (!pd_tensor_is_contiguous(t)) return any_from(t, 0, pd_tensor_data(t), nan_only);
    return row_is((pd_dtype)t->dtype, pd_tensor_data(t), t->numel, (int64_t)pd_dtype_size((pd_dtype)t->dtype),
                  nan_only);
}

bool pd_nan_has(const pd_tensor *t) { return any(t, true); }
bool pd_nan_finite(const pd_tensor *t) { return !any(t, false); }

static bool number_finite(const pd_scalar *s) { return s->cat != PD_CAT_FLOAT || s->d - s->d == 0; }

bool pd_nan_inputs_finite(const pd_call *c) {
    for (int i = 0; i < c->nin; i++)
        if (!pd_nan_finite(c->in[i])) return false;
    for (int p = 0; p < c->def->nparams; p++) {
        const pd_param *param = &c->def->params[p];
        bool number = param->type == PD_T_SCALAR || param->type == PD_T_OPERAND;
        if (number && c->attrs && !number_finite((const pd_scalar *)((const char *)c->attrs + param->attr)))
            return false;
    }
    return true;
}

pd_status pd_nan_report(const char *what, const char *op, int index, const pd_tensor *t) {
    if (pd_flags_get()->NAN > 1)
        return pd_fail(PD_E_RUNTIME,
                       "%s: %s %d, %s of shape %s on rank %s, has a NaN or an infinity (expected finite numbers: all "
                       "inputs are finite)",
                       op, what, index, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), pd_flags_rank());
    pd_log_once(said, PD_LOG_WARN, "rank %s: the first NaN or infinity comes from %s: %s %d, %s of shape %s",
                pd_flags_rank(), op, what, index, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t));
    return PD_OK;
}
