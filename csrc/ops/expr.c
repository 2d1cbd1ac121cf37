/* Ops as C functions: direct calls, and expressions of pd_val for vjps. */
#include <math.h>
#include <string.h>

#include "autograd/beside.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "ops/ops.h"

pd_status pd_call1(pd_op_id op, pd_tensor *x, const void *attrs, pd_tensor **out) {
    return pd_apply(&pd_defs[op], &x, 1, attrs, out, NULL);
}

pd_status pd_call2(pd_op_id op, pd_tensor *x, pd_tensor *y, const void *attrs, pd_tensor **out) {
    pd_tensor *in[2] = {x, y};
    return pd_apply(&pd_defs[op], in, 2, attrs, out, NULL);
}

void pd_scalar_store(const pd_scalar *s, pd_dtype t, void *to) {
    bool whole = s->cat == PD_CAT_INT || s->cat == PD_CAT_BOOL;
    double d = whole ? (double)s->i : s->d;
    int64_t i = whole ? s->i : (int64_t)s->d;
    switch (t) {
    case PD_BOOL: *(uint8_t *)to = d != 0; return;
    case PD_U8: *(uint8_t *)to = (uint8_t)i; return;
    case PD_I8: *(int8_t *)to = (int8_t)i; return;
    case PD_I16: *(int16_t *)to = (int16_t)i; return;
    case PD_I32: *(int32_t *)to = (int32_t)i; return;
    case PD_I64: *(int64_t *)to = i; return;
    case PD_F16: *(pd_f16 *)to = pd_f32_to_f16((float)d); return;
    case PD_BF16: *(pd_bf16 *)to = pd_f32_to_bf16((float)d); return;
    case PD_F32: *(float *)to = (float)d; return;
    case PD_F64: *(double *)to = d; return;
    case PD_C64: *(pd_c64 *)to = (pd_c64){(float)d, (float)s->im}; return;
    case PD_C128: *(pd_c128 *)to = (pd_c128){d, s->im}; return;
    default: return;
    }
}

void pd_loop_number(pd_loop *l, int k, const pd_scalar *s, pd_dtype t, bool exact, void *cell) {
    pd_scalar_store(s, pd_dtype_computed(t), cell);
    if (!exact && t == PD_F16) *(float *)cell = pd_f16_to_f32(pd_f32_to_f16(*(float *)cell));
    if (!exact && t == PD_BF16) *(float *)cell = pd_bf16_to_f32(pd_f32_to_bf16(*(float *)cell));
    pd_loop_cell(l, k, cell);
}

pd_status pd_scalar_fits(const char *op, const pd_scalar *s, pd_dtype t) {
    if (s->cat == PD_CAT_COMPLEX && !pd_dtype_is_complex(t))
        return pd_fail(PD_E_DTYPE, "%s: got a complex number for a tensor of dtype %s (expected a real number)", op,
                       pd_dtype_name(t));
    if (pd_dtype_category(t) != PD_CAT_INT) return PD_OK;
    bool whole = s->cat == PD_CAT_INT || s->cat == PD_CAT_BOOL;
    double most = t == PD_U8 ? 256 : ldexp(1, 8 * (int)pd_dtype_size(t) - 1), d = whole ? (double)s->i : trunc(s->d);
    if (d < most && (t == PD_U8 ? d > -most : d >= -most)) return PD_OK;
    if (whole && t == PD_I64) return PD_OK; /* rounded up in double */
    return pd_fail(PD_E_VALUE,
                   "%s: the value cannot be converted to the tensor's dtype without overflow: got %g for %s (expected "
                   "a number in its range)",
                   op, d, pd_dtype_name(t));
}

pd_status pd_item(const char *op, const pd_tensor *t, pd_copy_wait wait, pd_scalar *out) {
    const pd_device *d = t->storage->device;
    const void *p = pd_tensor_data(t);
    char near[16];
    *out = (pd_scalar){.cat = pd_dtype_category((pd_dtype)t->dtype)};
    if (d->copy) {
        PD_TRY(d->copy(d, op, PD_TO_HOST, near, p, pd_dtype_size((pd_dtype)t->dtype), wait));
        p = near;
    }
    switch ((pd_dtype)t->dtype) {
    case PD_BOOL: out->i = *(const uint8_t *)p != 0; break;
    case PD_U8: out->i = *(const uint8_t *)p; break;
    case PD_I8: out->i = *(const int8_t *)p; break;
    case PD_I16: out->i = *(const int16_t *)p; break;
    case PD_I32: out->i = *(const int32_t *)p; break;
    case PD_I64: out->i = *(const int64_t *)p; break;
    case PD_F16: out->d = pd_f16_to_f32(*(const pd_f16 *)p); return PD_OK;
    case PD_BF16: out->d = pd_bf16_to_f32(*(const pd_bf16 *)p); return PD_OK;
    case PD_F32: out->d = *(const float *)p; return PD_OK;
    case PD_F64: out->d = *(const double *)p; return PD_OK;
    case PD_C64: out->d = ((const pd_c64 *)p)->re, out->im = ((const pd_c64 *)p)->im; return PD_OK;
    case PD_C128: out->d = ((const pd_c128 *)p)->re, out->im = ((const pd_c128 *)p)->im; return PD_OK;
    default: return PD_OK;
    }
    out->d = (double)out->i;
    return PD_OK;
}

pd_status pd_full_like(const pd_tensor *like, double value, pd_tensor **out) {
    pd_scalar s = pd_number(value);
    pd_tensor *t;
    const pd_device *was;
    pd_status status = pd_device_enter(like->storage->device, &was);
    PD_THEN(pd_tensor_new("full_like", (pd_dtype)like->dtype, like->ndim, like->size, &t));
    if (!status) {
        if (pd_shape_is_dense(like->ndim, like->size, like->stride))
            for (int i = 0; i < like->ndim; i++) t->stride[i] = like->stride[i];
        pd_fill(t, &s);
        *out = t;
    }
    pd_device_here = was;
    return status;
}

void pd_fill(pd_tensor *t, const pd_scalar *s) {
    char cell[16];
    pd_loop l;
    pd_scalar_store(s, (pd_dtype)t->dtype, cell);
    pd_loop_build(&l, 1, &t);
    pd_here()->fill(pd_dtype_size((pd_dtype)t->dtype), cell, &l);
}

pd_status pd_scalar_tensor(const pd_scalar *s, pd_dtype t, pd_tensor **out) {
    PD_TRY(pd_tensor_new("scalar", t, 0, NULL, out));
    pd_fill(*out, s);
    return PD_OK;
}

pd_status pd_contiguous(pd_tensor *t, pd_tensor **out) {
    if (!pd_tensor_is_contiguous(t)) {
        pd_shape_attrs a = {.shape = {.n = t->ndim}};
        memcpy(a.shape.v, t->size, sizeof(int64_t) * (size_t)t->ndim);
        return pd_call1(PD_OP_clone, t, &(int64_t){PD_FORMAT_CONTIGUOUS}, out);
    }
    pd_tensor_retain(*out = t);
    return PD_OK;
}

pd_status pd_sum_to(pd_tensor *t, int ndim, const int64_t *size, pd_tensor **out) {
    /* Sum over the dims that broadcasting has added or stretched, then drop the added ones. */
    pd_reduce_attrs a = {.dim = {.n = 0}, .keepdim = 1, .dtype = PD_NO_DTYPE};
    int lead = t->ndim - ndim;
    for (int d = 0; d < t->ndim; d++)
        if (d < lead || (size[d - lead] == 1 && t->size[d] != 1)) a.dim.v[a.dim.n++] = d;
    pd_tensor *summed;
    if (a.dim.n) PD_TRY(pd_call1(PD_OP_sum, t, &a, &summed));
    else pd_tensor_retain(summed = t);
    pd_shape_attrs shape = {.shape = {.n = ndim}};
    memcpy(shape.shape.v, size, sizeof(int64_t) * (size_t)ndim);
    if (pd_shape_equal(summed->ndim, summed->size, ndim, size)) {
        *out = summed;
        return PD_OK;
    }
    pd_status status = pd_call1(PD_OP_reshape, summed, &shape, out);
    pd_tensor_release(summed);
    return status;
}

/* ---- infer helpers ----------------------------------------------------------------------------------------------- */

pd_status pd_infer_elementwise(pd_call *c, pd_dtype dtype) {
    pd_tensor *o = c->out[0], *first = NULL;
    bool same = c->each = true;
    for (int i = 0; i < c->nin; i++)
        if (c->in[i]) {
            if (!first) first = c->in[i];
            else same = same && pd_tensor_same_shape(first, c->in[i]);
        }
    o->dtype = (int8_t)dtype;
    o->ndim = first->ndim;
    o->numel = first->numel;
    for (int d = 0; d < first->ndim; d++) o->size[d] = first->size[d];
    if (!same) {
        int n = first->ndim;
        for (int i = 0; i < c->nin; i++)
            if (c->in[i] && c->in[i] != first)
                PD_TRY(pd_shape_broadcast(c->def->name, &n, o->size, c->in[i]->ndim, c->in[i]->size));
        o->ndim = (int8_t)n;
        PD_TRY(pd_shape_numel(c->def->name, n, o->size, &o->numel));
    }
    pd_shape_contiguous(o->ndim, o->size, o->stride);
    for (int i = 0; i < c->nin; i++) {
        const pd_tensor *t = c->in[i];
        if (!t || !pd_tensor_same_shape(t, o)) continue;
        if (!pd_tensor_is_contiguous(t) && pd_shape_is_dense(t->ndim, t->size, t->stride))
            for (int d = 0; d < t->ndim; d++) o->stride[d] = t->stride[d];
        break;
    }
    return PD_OK;
}

pd_status pd_check_float(const pd_call *c, int i) {
    if (pd_dtype_is_float((pd_dtype)c->in[i]->dtype)) return PD_OK;
    return pd_fail(PD_E_DTYPE, "%s: input %d is %s (expected a floating dtype)", c->def->name, i,
                   pd_dtype_name((pd_dtype)c->in[i]->dtype));
}

pd_status pd_check_ndim(const pd_call *c, int i, int ndim) {
    if (c->in[i]->ndim == ndim) return PD_OK;
    return pd_fail(PD_E_SHAPE, "%s: input %d has shape %s (expected %d dimensions)", c->def->name, i,
                   pd_tensor_shape(c->in[i]), ndim);
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

pd_val pd_x_number(pd_vjp *v, double re, double im) {
    pd_scalar s = {.d = re, .im = im, .cat = PD_CAT_COMPLEX};
    pd_tensor *t = NULL;
    if (v->status) return (pd_val){0};
    pd_status status = pd_scalar_tensor(&s, PD_C128, &t);
    return pd_val_of(pd_vjp_keep(v, status, t));
}

pd_tensor *pd_x_conj(pd_vjp *v, pd_tensor *t) {
    return t && pd_dtype_is_complex((pd_dtype)t->dtype) ? pd_x_call1(v, PD_OP_conjugate, t, NULL) : t;
}

pd_val pd_val_in(pd_vjp *v, int i, const pd_scalar *number) {
    if (number->cat == PD_CAT_COMPLEX) return pd_x_number(v, number->d, number->im);
    if (number->cat >= 0) return pd_const(number->cat == PD_CAT_FLOAT ? number->d : (double)number->i);
    pd_tensor *t = pd_vjp_in(v, i), *g = v->g[0];
    const bool narrow =
        t && t->dtype != g->dtype && pd_dtype_size((pd_dtype)t->dtype) < pd_dtype_size((pd_dtype)g->dtype);
    return pd_val_of(narrow ? pd_x_call1(v, PD_OP_cast, t, &(pd_cast_attrs){g->dtype}) : t);
}

static double fold1(pd_op_id op, double x) {
    switch (op) {
    case PD_OP_neg: return -x;
    case PD_OP_exp: return exp(x);
    case PD_OP_log: return log(x);
    case PD_OP_sin: return sin(x);
    case PD_OP_cos: return cos(x);
    case PD_OP_sign: return (x > 0) - (x < 0);
    default: return NAN;
    }
}

static double fold2(pd_op_id op, double x, double y) {
    switch (op) {
    case PD_OP_add: return x + y;
    case PD_OP_sub: return x - y;
    case PD_OP_mul: return x * y;
    case PD_OP_div: return x / y;
    case PD_OP_pow: return pow(x, y);
    default: return NAN;
    }
}

pd_val pd_x1(pd_vjp *v, pd_op_id op, pd_val x) {
    if (v->status || !x.ok) return (pd_val){0};
    if (!x.t) return pd_const(fold1(op, x.c));
    return pd_val_of(pd_x_call1(v, op, x.t, NULL));
}

pd_val pd_x2_to(pd_vjp *v, pd_op_id op, pd_val x, pd_val y, pd_tensor *destination) {
    struct { pd_scalar x, y, alpha; } attrs = {pd_number(x.c), pd_number(y.c), pd_number(1)};
    pd_tensor *in[2] = {x.t, y.t}, *out = NULL;
    if (v->status || !x.ok || !y.ok) return (pd_val){0};
    if (!x.t && !y.t) return pd_const(fold2(op, x.c, y.c));
    if (x.t) attrs.x.cat = -1;
    if (y.t) attrs.y.cat = -1;
    pd_status status = pd_apply_to(&pd_defs[op], in, 2, &attrs, destination, &out, NULL);
    return pd_val_of(pd_vjp_keep(v, status, out));
}

pd_val pd_x2(pd_vjp *v, pd_op_id op, pd_val x, pd_val y) { return pd_x2_to(v, op, x, y, NULL); }

pd_val pd_x_where(pd_vjp *v, pd_op_id compare, pd_val p, pd_val q, pd_val then, pd_val other) {
    struct { pd_scalar x, y; } attrs = {pd_number(then.c), pd_number(other.c)};
    pd_val cond = pd_x2(v, compare, p, q);
    if (!cond.t || !then.ok || !other.ok) return (pd_val){0};
    if (then.t) attrs.x.cat = -1;
    if (other.t) attrs.y.cat = -1;
    pd_tensor *in[3] = {cond.t, then.t, other.t};
    pd_tensor *out = NULL;
    pd_status status = pd_apply(PD_DEF(where), in, 3, &attrs, &out, NULL);
    return pd_val_of(pd_vjp_keep(v, status, out));
}

pd_val pd_x_if(pd_vjp *v, pd_op_id compare, pd_val p, pd_val q, pd_val then) {
    return pd_x_where(v, compare, p, q, then, pd_const(0));
}

pd_status pd_x_end(pd_vjp *v, pd_tensor *result, pd_tensor **out) {
    if (!v->status && result) pd_tensor_retain(*out = result);
    pd_vjp_end(v);
    return v->status;
}

pd_tensor *pd_x_to(pd_vjp *v, pd_op_id op, const void *attrs, int nin, pd_tensor *const *in, pd_tensor *destination) {
    pd_tensor *out[PD_MAX_OUTS] = {0};
    if (v->status) return NULL;
    pd_status status = pd_apply_to(&pd_defs[op], in, nin, attrs, destination, out, NULL);
    for (int i = 1; i < PD_MAX_OUTS && !status && out[i]; i++) pd_vjp_keep(v, PD_OK, out[i]);
    return pd_vjp_keep(v, status, out[0]);
}

pd_tensor *pd_x(pd_vjp *v, pd_op_id op, const void *attrs, int nin, pd_tensor *const *in) {
    return pd_x_to(v, op, attrs, nin, in, NULL);
}

pd_tensor *pd_x_call1(pd_vjp *v, pd_op_id op, pd_tensor *x, const void *attrs) {
    return x ? pd_x(v, op, attrs, 1, &x) : NULL;
}

pd_tensor *pd_x_call2(pd_vjp *v, pd_op_id op, pd_tensor *x, pd_tensor *y, const void *attrs) {
    pd_tensor *in[2] = {x, y};
    return x && y ? pd_x(v, op, attrs, 2, in) : NULL;
}

pd_tensor *pd_x_mul(pd_vjp *v, pd_tensor *x, pd_tensor *y) { return pd_x2(v, PD_OP_mul, pd_val_of(x), pd_val_of(y)).t; }
pd_tensor *pd_x_scale(pd_vjp *v, pd_tensor *x, double c) {
    return c == 1 ? x : pd_x2(v, PD_OP_mul, pd_val_of(x), pd_const(c)).t;
}

pd_tensor *pd_x_new(pd_vjp *v, pd_dtype dtype, int ndim, const int64_t *size) {
    pd_tensor *t = NULL;
    if (v->status) return NULL;
    pd_status status = pd_tensor_new(v->node ? pd_node_name(v->node) : "op", dtype, ndim, size, &t);
    return pd_vjp_keep(v, status, t);
}

void pd_x_sums(pd_vjp *v, int i, pd_tensor *gx, pd_loop *l) {
    const pd_edge *e = &v->node->edges[i];
    if (v->status || e->device < 0 || l->ndim != 1 || gx->numel == 0 || gx->dtype == PD_F64 || gx->ndim < 1) return;
    if (!pd_tensor_is_contiguous(gx) || !pd_shape_equal(gx->ndim, gx->size, e->ndim, e->size)) return;
    pd_ahead next = pd_vjp_ahead(v, i, true);
    if (!next.sums || next.low != PD_NO_DTYPE) return;
    l->columns = gx->size[gx->ndim - 1];
    pd_tensor *sums = pd_x_new(v, PD_F32, 1, &l->columns);
    if (!sums) return;
    l->sums = pd_tensor_data(sums);
    v->status = pd_beside_set(gx, NULL, sums);
}

pd_tensor *pd_x_contiguous(pd_vjp *v, pd_tensor *x) {
    pd_tensor *t = NULL;
    if (v->status || !x) return NULL;
    if (pd_tensor_is_contiguous(x)) return x;
    pd_status status = pd_contiguous(x, &t);
    return pd_vjp_keep(v, status, t);
}
