/* Rows of a table by index. The gradient adds up in the order of the indices, columns being divided among threads: the
   same bits for any number of them. */
#include <inttypes.h>
#include <string.h>

#include "ops/block.h"

/* padding: a row that gets no gradient, -1 for none; hidden: it gives zeros as well. */
typedef struct { int64_t padding, hidden; } lookup_attrs;
typedef struct { int64_t padding, rows; } grad_attrs;

/* Byte offsets of the rows; the indices are checked. */
static pd_status offsets_of(const char *op, const pd_tensor *index, int64_t rows, int64_t bytes, int64_t *out) {
    pd_storage memory = {.data = out, .bytes = (size_t)index->numel * 8, .device = &pd_device_cpu};
    pd_tensor flat = *index, from = *index, *pair[2] = {&flat, &from};
    pd_loop l;
    flat.storage = &memory;
    flat.offset = 0;
    flat.dtype = PD_I64;
    pd_shape_contiguous(flat.ndim, flat.size, flat.stride);
    pd_loop_build(&l, 2, pair);
    pd_here()->copy(PD_I64, (pd_dtype)index->dtype, &l);
    for (int64_t i = 0; i < index->numel; i++) {
        if (out[i] < 0 || out[i] >= rows)
            return pd_fail(PD_E_INDEX, "%s: index %" PRId64 " is out of range (expected 0 to %" PRId64 ")", op, out[i],
                           rows - 1);
        out[i] *= bytes;
    }
    return PD_OK;
}

static size_t scratch(const pd_call *c) { return (size_t)c->in[1]->numel * 8 + 64 + pd_packed_bytes(c); }
static double work(const pd_call *c) { return (double)c->in[1]->numel * 2 + (double)c->out[0]->numel * 0.25; }

static pd_status lookup_infer(pd_call *c) {
    pd_tensor *w = c->in[0], *index = c->in[1];
    int64_t size[PD_MAX_DIMS + 1];
    memcpy(size, index->size, sizeof(int64_t) * (size_t)index->ndim);
    size[index->ndim] = w->size[1];
    return pd_out_shape(c, 0, (pd_dtype)w->dtype, index->ndim + 1, size);
}
static pd_status lookup_kernel(const pd_call *c) {
    const lookup_attrs *a = c->attrs;
    pd_tensor *w = c->in[0], *o = c->out[0];
    int64_t n = c->in[1]->numel, bytes = w->size[1] * (int64_t)pd_dtype_size((pd_dtype)w->dtype), *offset = c->scratch;
    PD_TRY(offsets_of("embedding", c->in[1], w->size[0], bytes, offset));
    pd_here()->take(n, (size_t)bytes, offset, pd_packed(w, offset + n), pd_tensor_data(o));
    for (int64_t i = 0; i < n && a->hidden; i++)
        if (offset[i] == a->padding * bytes) memset((char *)pd_tensor_data(o) + i * bytes, 0, (size_t)bytes);
    return PD_OK;
}
static void lookup_vjp(pd_vjp *v) {
    const lookup_attrs *a = v->attrs;
    grad_attrs to = {a->padding, v->node->edges[0].size[0]};
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_embedding_grad, v->g[0], pd_vjp_in(v, 1), &to));
}

const pd_op pd_op_embedding_lookup = {
    .sig = "embedding_lookup(Tensor weight, Tensor index, int padding, bool hidden)",
    .doc = "weight's rows at index.",
    .save = PD_SAVE_IN(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(lookup_attrs),
    .infer = lookup_infer,
    .kernel = lookup_kernel,
    .scratch = scratch,
    .work = work,
    .vjp = lookup_vjp,
};

static pd_status grad_infer(pd_call *c) {
    const grad_attrs *a = c->attrs;
    pd_tensor *g = c->in[0];
    return pd_out_shape(c, 0, (pd_dtype)g->dtype, 2, (int64_t[]){a->rows, g->size[g->ndim - 1]});
}
static pd_status grad_kernel(const pd_call *c) {
    const grad_attrs *a = c->attrs;
    pd_tensor *g = c->in[0], *o = c->out[0];
    int64_t n = c->in[1]->numel, columns = o->size[1], bytes = columns * (int64_t)pd_dtype_size((pd_dtype)o->dtype),
            *offset = c->scratch, done = 0;
    PD_TRY(offsets_of("embedding_grad", c->in[1], a->rows, bytes, offset));
    const char *from = pd_packed(g, offset + n);
    pd_fill(o, &(pd_scalar){.cat = PD_CAT_INT});
    for (int64_t i = 0; i <= n; i++) /* runs without padding */
        if (i == n || (a->padding >= 0 && offset[i] == a->padding * bytes)) {
            pd_here()->put_add((pd_dtype)o->dtype, i - done, columns, offset + done, from + done * bytes, bytes,
                               pd_tensor_data(o));
            done = i + 1;
        }
    return PD_OK;
}
static void grad_vjp(pd_vjp *v) {
    const grad_attrs *a = v->attrs;
    lookup_attrs at = {a->padding, a->padding >= 0};
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_embedding_lookup, v->g[0], pd_vjp_in(v, 1), &at));
}

const pd_op pd_op_embedding_grad = {
    .sig = "embedding_grad(Tensor g, Tensor index, int padding, int rows)",
    .doc = "Zeros with g's rows added at index: the gradient of embedding.",
    .save = PD_SAVE_IN(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(grad_attrs),
    .infer = grad_infer,
    .kernel = grad_kernel,
    .scratch = scratch,
    .work = work,
    .vjp = grad_vjp,
};

static pd_status compose(pd_call *c) {
    pd_tensor *w = c->in[0], *index = c->in[1];
    lookup_attrs a = {*(const int64_t *)c->attrs, 0};
    if (w->ndim != 2)
        return pd_fail(PD_E_SHAPE, "embedding: weight has shape %s (expected [rows, columns])", pd_tensor_shape(w));
    if (index->dtype != PD_I64 && index->dtype != PD_I32)
        return pd_fail(PD_E_DTYPE, "embedding: indices are %s (expected int64 or int32)",
                       pd_dtype_name((pd_dtype)index->dtype));
    if (index->ndim >= PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "embedding: indices of shape %s have too many dimensions", pd_tensor_shape(index));
    if (a.padding == PD_NONE_INT) a.padding = -1;
    else if (a.padding < -w->size[0] || a.padding >= w->size[0])
        return pd_fail(PD_E_INDEX, "embedding: padding_idx %" PRId64 " is out of range for %" PRId64 " rows", a.padding,
                       w->size[0]);
    else if (a.padding < 0) a.padding += w->size[0];
    return pd_call2(PD_OP_embedding_lookup, w, index, &a, &c->out[0]);
}

const pd_op pd_op_embedding = {
    .sig = "embedding(Tensor weight, Tensor indices, int? padding_idx=None)",
    .doc =
        "weight's rows [rows, columns] at indices (int64 or int32, any shape); the row padding_idx gets no gradient.",
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(int64_t),
    .compose = compose,
};
