/* The op table, and ops as C functions for each other.

   Inside a vjp expressions are made of pd_val, a tensor or a constant. v keeps the first failure and later steps do
   nothing, so a gradient reads like its formula. */
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

/* Parses the table and registers the ops that tape and engine need. Called once. PD_E_VALUE names a row that is
   wrong. */
pd_status pd_ops_init(void);

/* ---- calls from C: every result is [new] ------------------------------------------------------------------------- */

pd_status pd_call1(pd_op_id op, pd_tensor *x, const void *attrs, pd_tensor **out);
pd_status pd_call2(pd_op_id op, pd_tensor *x, pd_tensor *y, const void *attrs, pd_tensor **out);
pd_status pd_full_like(const pd_tensor *like, double value, pd_tensor **out); /* keeps dense strides */
pd_status pd_contiguous(pd_tensor *t, pd_tensor **out); /* t itself, retained, if it is contiguous */
pd_status pd_sum_to(pd_tensor *t, int ndim, const int64_t *size, pd_tensor **out);
/* Copies t to another device; t itself, retained, if it is there. PD_NO_WAIT: a copy to the host is in pinned memory,
   and whoever reads it has to wait for the stream first; so has who writes to t, if t is pinned memory of the host. */
pd_status pd_move(pd_tensor *t, const pd_device *to, pd_copy_wait wait, pd_tensor **out);
/* [new] a copy in pinned memory (device/pinned.h); t itself, retained, if it is there. Without autograd. */
pd_status pd_pin(pd_tensor *t, pd_tensor **out);
bool pd_is_pinned(const pd_tensor *t);
/* The only element of t as a double or an exact integer. Waits for t's device: not PD_NO_WAIT. op: for errors. */
pd_status pd_item(const char *op, const pd_tensor *t, pd_copy_wait wait, pd_scalar *out);
/* Fills t, which must be on the op's device. */
void pd_fill(pd_tensor *t, const pd_scalar *s);
/* [new] a 0-d tensor of that value on the op's device. */
pd_status pd_scalar_tensor(const pd_scalar *s, pd_dtype t, pd_tensor **out);
void pd_scalar_store(const pd_scalar *s, pd_dtype t, void *to);
/* Makes operand k of a call for dtype t the number s, which is rounded to t first unless exact. cell: 16 bytes. */
void pd_loop_number(pd_loop *l, int k, const pd_scalar *s, pd_dtype t, bool exact, void *cell);
/* Fails if t is an integer dtype that cannot hold s; an unsigned one may also hold -s. */
pd_status pd_scalar_fits(const char *op, const pd_scalar *s, pd_dtype t);
static inline pd_scalar pd_number(double d) { return (pd_scalar){.d = d, .i = (int64_t)d, .cat = PD_CAT_FLOAT}; }

/* Attributes that several files fill in. */
typedef struct pd_reduce_attrs { pd_ints dim; int64_t keepdim, dtype; } pd_reduce_attrs;
typedef struct pd_shape_attrs { pd_ints shape; } pd_shape_attrs;
typedef struct pd_strided_attrs { pd_ints size, stride; int64_t offset; } pd_strided_attrs;
typedef struct pd_cast_attrs { int64_t dtype; } pd_cast_attrs;
typedef struct pd_dims2_attrs { int64_t dim0, dim1; } pd_dims2_attrs;

/* Attributes of index_front and index_put_front. order: for messages, four bits for each index, which dimension of the
   user's tensor it is for. */
#define PD_INDEX_ORDER INT64_C(-81985529216486896) /* 0xFEDCBA9876543210: index j stands for dimension j */
typedef struct pd_put_attrs { int64_t order, accumulate; } pd_put_attrs;

/* x[indices] = values, or += with accumulate, in place. Takes indices and values like the op index_put. */
pd_status pd_index_put(pd_tensor *x, pd_tensor *const *indices, int nindices, pd_tensor *values, bool accumulate);
/* Whether t is a mask if used as an index; uint8 is one, too, as in PyTorch. */
static inline bool pd_is_mask(const pd_tensor *t) { return t->dtype == PD_BOOL || t->dtype == PD_U8; }

/* ---- infer helpers ----------------------------------------------------------------------------------------------- */

/* Output 0 gets `dtype` and the broadcast shape of all inputs, and the strides of the first dense input of that
   shape. */
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
/* Input i of an expression: the saved tensor, in the gradient's dtype if its own is narrower (PD_MIXED), or the number
   that was given for the Operand. */
pd_val pd_val_in(pd_vjp *v, int i, const pd_scalar *number);

/* re + i im, a 0-d tensor. */
pd_val pd_x_number(pd_vjp *v, double re, double im);
/* The conjugate of t; t itself if it is real. The gradient of a holomorphic f is g times the conjugate of f'(x). That
   is the conjugate of the result of f's real formula for g's conjugate. */
pd_tensor *pd_x_conj(pd_vjp *v, pd_tensor *t);
pd_val pd_x1(pd_vjp *v, pd_op_id op, pd_val x);
pd_val pd_x2(pd_vjp *v, pd_op_id op, pd_val x, pd_val y);
pd_val pd_x2_to(pd_vjp *v, pd_op_id op, pd_val x, pd_val y, pd_tensor *destination); /* as pd_x_to */
pd_val pd_x_if(pd_vjp *v, pd_op_id compare, pd_val p, pd_val q, pd_val then); /* then where p ? q, else 0 */
pd_val pd_x_where(pd_vjp *v, pd_op_id compare, pd_val p, pd_val q, pd_val then,
                  pd_val other); /* at least one of then and other is a tensor */
/* Calls any op on tensors. NULL if v has failed or a required input is NULL. */
pd_tensor *pd_x(pd_vjp *v, pd_op_id op, const void *attrs, int nin, pd_tensor *const *in);
/* pd_x that makes the result in `destination` (pd_vjp_destination) if that is not NULL and fits. */
pd_tensor *pd_x_to(pd_vjp *v, pd_op_id op, const void *attrs, int nin, pd_tensor *const *in, pd_tensor *destination);
pd_tensor *pd_x_call1(pd_vjp *v, pd_op_id op, pd_tensor *x, const void *attrs);
pd_tensor *pd_x_call2(pd_vjp *v, pd_op_id op, pd_tensor *x, pd_tensor *y, const void *attrs);
pd_tensor *pd_x_mul(pd_vjp *v, pd_tensor *x, pd_tensor *y);
pd_tensor *pd_x_scale(pd_vjp *v, pd_tensor *x, double c);
/* Ends expressions in a compose, which are made with a zeroed pd_vjp. *out gets result, retained, unless a step
   failed. */
pd_status pd_x_end(pd_vjp *v, pd_tensor *result, pd_tensor **out);
/* For vjp_fast: a new tensor for a kernel to write; x made contiguous. */
pd_tensor *pd_x_new(pd_vjp *v, pd_dtype dtype, int ndim, const int64_t *size);
/* Before a kernel runs l, whose operand 0 is gx, the gradient of input i: lets it sum gx's columns, too, if that will
   be asked for. */
void pd_x_sums(pd_vjp *v, int i, pd_tensor *gx, pd_loop *l);
pd_tensor *pd_x_contiguous(pd_vjp *v, pd_tensor *x);

#endif
