/* The op table, and ops as C functions for each other.

   Inside a vjp an expression is written over pd_val, a tensor or a constant; the first failure sticks to v and later
   steps do nothing, so a gradient reads like its formula. */
#ifndef PD_OPS_OPS_H
#define PD_OPS_OPS_H

#include "autograd/apply.h"
#include "tensor/iter.h"

typedef enum pd_op_id {
#define PD_OP(name) PD_OP_##name,
#include "ops/ops.def"
#undef PD_OP
    PD_OP_COUNT
} pd_op_id;

extern pd_def pd_defs[PD_OP_COUNT];
#define PD_DEF(name) (&pd_defs[PD_OP_##name])

/* Parses the table and registers what tape and engine need. Once; PD_E_VALUE names a row that is wrong. */
pd_status pd_ops_init(void);

/* ---- calls from C: every result is [new] ------------------------------------------------------------------------- */

pd_status pd_call1(pd_op_id op, pd_tensor *x, const void *attrs, pd_tensor **out);
pd_status pd_call2(pd_op_id op, pd_tensor *x, pd_tensor *y, const void *attrs, pd_tensor **out);
pd_status pd_full_like(const pd_tensor *like, double value, pd_tensor **out); /* dense strides kept */
pd_status pd_contiguous(pd_tensor *t, pd_tensor **out); /* t itself, retained, where it is contiguous */
pd_status pd_sum_to(pd_tensor *t, int ndim, const int64_t *size, pd_tensor **out);
/* On another device; t itself, retained, where it is there. wait: until the bytes have arrived (or left, where t lies
   on the host). */
pd_status pd_move(pd_tensor *t, const pd_device *to, bool wait, pd_tensor **out);
/* [new] a copy in memory of the host that GPUs read by themselves (device/pinned.h); t itself, retained, where it lies
   there. Without autograd. */
pd_status pd_pin(pd_tensor *t, pd_tensor **out);
bool pd_is_pinned(const pd_tensor *t);
/* One number of the tensor as double or exact integer; numel must be 1. Waits for a device. */
pd_status pd_item(const pd_tensor *t, pd_scalar *out);
/* Every element of t, which lies where the op runs. */
void pd_fill(pd_tensor *t, const pd_scalar *s);
/* A 0-d tensor of that value, where the op runs. */
pd_status pd_scalar_tensor(const pd_scalar *s, pd_dtype t, pd_tensor **out);
void pd_scalar_store(const pd_scalar *s, pd_dtype t, void *to);
/* Whether an integer dtype can hold s (unsigned ones: or -s); others can. */
pd_status pd_scalar_fits(const char *op, const pd_scalar *s, pd_dtype t);
static inline pd_scalar pd_number(double d) { return (pd_scalar){.d = d, .i = (int64_t)d, .cat = PD_CAT_FLOAT}; }

/* Attributes that more than one file fills in. */
typedef struct pd_reduce_attrs { pd_ints dim; int64_t keepdim, dtype; } pd_reduce_attrs;
typedef struct pd_shape_attrs { pd_ints shape; } pd_shape_attrs;
typedef struct pd_strided_attrs { pd_ints size, stride; int64_t offset; } pd_strided_attrs;
typedef struct pd_cast_attrs { int64_t dtype; } pd_cast_attrs;
typedef struct pd_dims2_attrs { int64_t dim0, dim1; } pd_dims2_attrs;

/* Attributes of index_front and (both) index_put_front. order: four bits for each index, its dimension in what the user
   indexed, for errors. */
#define PD_INDEX_ORDER INT64_C(-81985529216486896) /* 0xFEDCBA9876543210: index j stands for dimension j */
typedef struct pd_put_attrs { int64_t order, accumulate; } pd_put_attrs;

/* x[indices] = values (+=), in place; indices and values as the op index_put. */
pd_status pd_index_put(pd_tensor *x, pd_tensor *const *indices, int nindices, pd_tensor *values, bool accumulate);
/* As an index it says which; uint8 does so as in PyTorch. */
static inline bool pd_is_mask(const pd_tensor *t) { return t->dtype == PD_BOOL || t->dtype == PD_U8; }

/* ---- infer helpers ----------------------------------------------------------------------------------------------- */

/* out 0: the broadcast of all inputs, in `dtype`, laid out like the first input of that shape if that is dense. */
pd_status pd_infer_elementwise(pd_call *c, pd_dtype dtype);
pd_status pd_check_float(const pd_call *c, int input);
pd_status pd_check_ndim(const pd_call *c, int input, int ndim);

/* ---- expressions in vjps ----------------------------------------------------------------------------------------- */

typedef struct pd_val {
    pd_tensor *t; /* [borrowed from v]; NULL: the constant c, unless !ok */
    double c;
    bool ok;
} pd_val;

static inline pd_val pd_val_of(pd_tensor *t) { return (pd_val){.t = t, .ok = t != NULL}; }
static inline pd_val pd_const(double c) { return (pd_val){.c = c, .ok = true}; }
/* Input i as the expression sees it: the saved tensor, or the number that was given for the Operand. */
pd_val pd_val_in(pd_vjp *v, int i, const pd_scalar *number);

/* re + i im, a 0-d tensor. */
pd_val pd_x_number(pd_vjp *v, double re, double im);
/* The conjugate; a real tensor itself. The gradient of a holomorphic f is g times the conjugate of f'(x), hence the
   conjugate of what f's formula for real numbers makes of g's conjugate. */
pd_tensor *pd_x_conj(pd_vjp *v, pd_tensor *t);
pd_val pd_x1(pd_vjp *v, pd_op_id op, pd_val x);
pd_val pd_x2(pd_vjp *v, pd_op_id op, pd_val x, pd_val y);
pd_val pd_x2_to(pd_vjp *v, pd_op_id op, pd_val x, pd_val y, pd_tensor *destination); /* as pd_x_to */
pd_val pd_x_if(pd_vjp *v, pd_op_id compare, pd_val p, pd_val q, pd_val then); /* then where p ? q, else 0 */
pd_val pd_x_where(pd_vjp *v, pd_op_id compare, pd_val p, pd_val q, pd_val then,
                  pd_val other); /* then and other not both numbers */
/* Any op on tensors; NULL where v has failed or a required input is NULL. */
pd_tensor *pd_x(pd_vjp *v, pd_op_id op, const void *attrs, int nin, pd_tensor *const *in);
/* The same, made in `destination` (pd_vjp_destination) where that is not NULL and fits. */
pd_tensor *pd_x_to(pd_vjp *v, pd_op_id op, const void *attrs, int nin, pd_tensor *const *in, pd_tensor *destination);
pd_tensor *pd_x_call1(pd_vjp *v, pd_op_id op, pd_tensor *x, const void *attrs);
pd_tensor *pd_x_call2(pd_vjp *v, pd_op_id op, pd_tensor *x, pd_tensor *y, const void *attrs);
pd_tensor *pd_x_mul(pd_vjp *v, pd_tensor *x, pd_tensor *y);
pd_tensor *pd_x_scale(pd_vjp *v, pd_tensor *x, double c);
/* Expressions in a compose: over a zeroed pd_vjp, which this ends. *out gets result, retained, unless a step failed. */
pd_status pd_x_end(pd_vjp *v, pd_tensor *result, pd_tensor **out);
/* For vjp_fast: a fresh tensor, to be written by a kernel; x made contiguous. */
pd_tensor *pd_x_new(pd_vjp *v, pd_dtype dtype, int ndim, const int64_t *size);
pd_tensor *pd_x_contiguous(pd_vjp *v, pd_tensor *x);

#endif
