/* Rows of a table by index, and slices of a tensor. Threads share the gradient's columns (and the dimensions outside
   the slices), and each adds in the order of the indices, so the bits are the same for any number of threads. */
#include <inttypes.h>
#include <string.h>

#include "base/threads.h"
#include "ops/block.h"

/* padding: a row that gets no gradient, or -1; hidden: looking that row up gives zeros, too. With `all` over 0 the
   table has those rows of so many that begin at `first`; looking up another one gives zeros. */
typedef struct { int64_t padding, hidden, first, all; } lookup_attrs;
typedef struct { int64_t padding, rows, first, all; } grad_attrs;

/* Checks the indices and computes the byte offsets of the rows in each of `tables` tables; -1 for row `skip`, and for
   rows of other tables. */
static pd_status offsets_of(const char *op, const pd_tensor *index, int64_t tables, int64_t rows, int64_t bytes,
                            int64_t skip, int64_t first, int64_t all, int64_t *out) {
    pd_places c;
    pd_bad_index bad;
    c.op = op, c.kind = PD_BAD_ROW, c.nby = 1, c.ndim = 1 + index->ndim, c.first = c.base = 0;
    c.count = tables * index->numel, c.size[0] = tables, c.own[0] = rows * bytes;
    c.by[0] = (pd_chooser){.index = pd_tensor_data(index), .narrow = index->dtype == PD_I32, .n = rows, .step = bytes,
                           .skip = skip, .first = first, .all = all};
    for (int d = 0; d < index->ndim; d++)
        c.size[1 + d] = index->size[d], c.own[1 + d] = 0, c.by[0].stride[1 + d] = index->stride[d];
    return pd_here()->places(&c, out, &bad) ? PD_OK : pd_bad_index_fail(&bad);
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
    PD_TRY(
        offsets_of("embedding", c->in[1], 1, w->size[0], bytes, a->hidden ? a->padding : -1, a->first, a->all, offset));
    pd_here()->take(n, (size_t)bytes, offset, pd_packed(w, offset + n), pd_tensor_data(o));
    return PD_OK;
}
/* If the weight is used twice (also as the model's head), only the rows that were looked up are written. */
static void lookup_vjp(pd_vjp *v) {
    const lookup_attrs *a = v->attrs;
    grad_attrs to = {a->padding, v->node->edges[0].size[0], a->first, a->all};
    pd_tensor *index = pd_vjp_in(v, 1), *sum = a->padding < 0 && !a->all ? pd_vjp_sum(v, 0) : NULL;
    if (sum && index->dtype == PD_I64) v->status = pd_index_put(sum, &index, 1, v->g[0], true);
    else pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_embedding_grad, v->g[0], index, &to));
}

const pd_op pd_op_embedding_lookup = {
    .sig = "embedding_lookup(Tensor weight, Tensor index, int padding, bool hidden, int first, int all)",
    .doc = "The rows of weight at index.",
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
            *offset = c->scratch;
    PD_TRY(offsets_of("embedding_grad", c->in[1], 1, a->rows, bytes, a->padding, a->first, a->all, offset));
    const char *from = pd_packed(g, offset + n);
    pd_fill(o, &(pd_scalar){.cat = PD_CAT_INT});
    pd_here()->put_reduce(PD_FOLD_SUM, (pd_dtype)o->dtype, n, columns, offset, from, bytes, pd_tensor_data(o));
    return PD_OK;
}
static void grad_vjp(pd_vjp *v) {
    const grad_attrs *a = v->attrs;
    lookup_attrs at = {a->padding, a->padding >= 0, a->first, a->all};
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_embedding_lookup, v->g[0], pd_vjp_in(v, 1), &at));
}

const pd_op pd_op_embedding_grad = {
    .sig = "embedding_grad(Tensor g, Tensor index, int padding, int rows, int first, int all)",
    .doc = "The gradient of embedding: zeros, to which the rows of g are added at index.",
    .save = PD_SAVE_IN(1),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(grad_attrs),
    .infer = grad_infer,
    .kernel = grad_kernel,
    .scratch = scratch,
    .work = work,
    .vjp = grad_vjp,
};

/* ---- embedding, as it is called ---------------------------------------------------------------------------------- */

static pd_status check(const pd_call *c, int64_t rows, int64_t *padding) {
    const pd_tensor *w = c->in[0], *index = c->in[1];
    const char *op = c->def->name;
    if (w->ndim != 2)
        return pd_fail(PD_E_SHAPE, "%s: weight has shape %s (expected [rows, columns])", op, pd_tensor_shape(w));
    if (index->dtype != PD_I64 && index->dtype != PD_I32)
        return pd_fail(PD_E_DTYPE, "%s: indices are %s (expected int64 or int32)", op,
                       pd_dtype_name((pd_dtype)index->dtype));
    if (index->ndim >= PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "%s: indices have shape %s (expected at most 15 dimensions)", op,
                       pd_tensor_shape(index));
    if (*padding == PD_NONE_INT) *padding = -1;
    else if (*padding < -rows || *padding >= rows)
        return pd_fail(PD_E_INDEX,
                       "%s: padding_idx is %" PRId64 ", which is out of range (expected a row of %" PRId64
                       ", or a negative number from the end)",
                       op, *padding, rows);
    else if (*padding < 0) *padding += rows;
    return PD_OK;
}

static pd_status compose(pd_call *c) {
    lookup_attrs a = {.padding = *(const int64_t *)c->attrs};
    PD_TRY(check(c, c->in[0]->ndim ? c->in[0]->size[0] : 0, &a.padding));
    return pd_call2(PD_OP_embedding_lookup, c->in[0], c->in[1], &a, &c->out[0]);
}

const pd_op pd_op_embedding = {
    .sig = "embedding(Tensor weight, Tensor indices, int? padding_idx=None)",
    .doc =
        "The rows of weight [rows, columns] at indices (int64 or int32, any shape). The row padding_idx gets no "
        "gradient.",
    .flags = PD_FUNC | PD_NN,
    .attrs = sizeof(int64_t),
    .compose = compose,
};

typedef struct { int64_t first, rows, padding; } part_attrs;
static pd_status part_compose(pd_call *c) {
    const part_attrs *p = c->attrs;
    const pd_tensor *w = c->in[0];
    lookup_attrs a = {.padding = p->padding, .first = p->first, .all = p->rows};
    if (p->rows < 1 || p->first < 0 || p->first > p->rows || (w->ndim && w->size[0] > p->rows - p->first))
        return pd_fail(PD_E_VALUE,
                       "%s: weight has shape %s and begins at row %" PRId64 " of %" PRId64
                       " (expected a part of at least one row)",
                       c->def->name, pd_tensor_shape(w), p->first, p->rows);
    PD_TRY(check(c, p->rows, &a.padding));
    return pd_call2(PD_OP_embedding_lookup, c->in[0], c->in[1], &a, &c->out[0]);
}

const pd_op pd_op_embedding_part = {
    .sig = "embedding_part(Tensor weight, Tensor indices, int first, int rows, int? padding_idx=None)",
    .doc =
        "embedding where weight has only some rows of a table of so many `rows`, from `first` on: zeros at indices of "
        "other rows. The sum over all parts of a table is the embedding.",
    .flags = PD_FUNC,
    .attrs = sizeof(part_attrs),
    .compose = part_compose,
};

/* ---- slices along any dimension ---------------------------------------------------------------------------------- */

typedef struct { int64_t dim; } select_attrs;
typedef struct { int64_t dim, size; } spread_attrs;

/* x as [outer, n, inner] around dim; a 0-d tensor is one slice. */
static pd_block block_around(const pd_tensor *x, int dim) {
    pd_block b = {1, 1, 1};
    for (int d = 0; d < x->ndim; d++) *(d < dim ? &b.outer : d == dim ? &b.n : &b.inner) *= x->size[d];
    return b;
}

static pd_status slices_infer(pd_call *c, int64_t given, int64_t size) {
    const pd_tensor *x = c->in[0], *index = c->in[1];
    int64_t shape[PD_MAX_DIMS];
    int dim;
    PD_TRY(pd_shape_dim(c->def->name, given, x->ndim, &dim));
    if (index->dtype != PD_I64 && index->dtype != PD_I32)
        return pd_fail(PD_E_INDEX, "%s: index is %s (expected int64)", c->def->name,
                       pd_dtype_name((pd_dtype)index->dtype));
    if (index->ndim > 1 || (x->ndim == 0 && index->numel != 1))
        return pd_fail(PD_E_INDEX, "%s: index has shape %s (expected 1 dimension%s)", c->def->name,
                       pd_tensor_shape(index), x->ndim ? "" : ", and 1 element for a 0-d tensor");
    for (int d = 0; d < x->ndim; d++) shape[d] = d == dim ? size : x->size[d];
    return pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, shape);
}

/* Copies slices at `offsets` between x [outer, n, inner] and y, or adds them. On the CPU a thread takes an outer index;
   on a device, where a call is a launch, one call does all (`tables`). */
typedef struct slices_job {
    pd_dtype t;
    pd_block b; /* of the tensor that the index points into */
    int64_t tables, count, bytes;
    const int64_t *offset;
    const char *x;
    char *y;
    bool add;
} slices_job;
static void slices_part(void *ctx, int64_t begin, int64_t end) {
    const slices_job *j = ctx;
    const int64_t whole = j->b.n * j->bytes, chosen = j->count * j->bytes, n = j->tables * j->count;
    for (int64_t o = begin; o < end; o += j->tables) {
        if (!j->add) pd_here()->take(n, (size_t)j->bytes, j->offset, j->x + o * whole, j->y + o * chosen);
        else
            pd_here()->put_reduce(PD_FOLD_SUM, j->t, n, j->b.inner, j->offset, j->x + o * chosen, j->bytes,
                                  j->y + o * whole);
    }
}
static int64_t tables_of(const pd_block *b) { return pd_device_here->kernels ? b->outer : 1; }
static size_t slices_scratch(const pd_call *c) {
    int dim;
    if (pd_shape_dim(c->def->name, *(const int64_t *)c->attrs, c->in[0]->ndim, &dim)) return 0;
    pd_block b = block_around(c->in[0], dim);
    return (size_t)(tables_of(&b) * c->in[1]->numel) * 8 + 64 + pd_packed_bytes(c);
}
static pd_status slices_run(const pd_call *c, int dim, const pd_tensor *indexed, bool add) {
    pd_tensor *x = c->in[0], *index = c->in[1];
    slices_job j = {.t = (pd_dtype)x->dtype, .b = block_around(indexed, dim), .count = index->numel,
                    .offset = c->scratch, .y = pd_tensor_data(c->out[0]), .add = add};
    j.bytes = j.b.inner * (int64_t)pd_dtype_size(j.t);
    j.tables = tables_of(&j.b);
    PD_TRY(offsets_of(c->def->name, index, j.tables, j.b.n, j.bytes, -1, 0, 0, c->scratch));
    j.x = pd_packed(x, (int64_t *)c->scratch + j.tables * j.count);
    if (add) pd_fill(c->out[0], &(pd_scalar){.cat = PD_CAT_INT});
    int64_t each = j.count * (j.b.inner + 1);
    if (!j.bytes) return PD_OK;
    if (j.tables == 1) pd_parallel(j.b.outer, 1 + PD_GRAIN / (each > 0 ? each : 1), slices_part, &j);
    else slices_part(&j, 0, j.b.outer);
    return PD_OK;
}

static pd_status index_select_infer(pd_call *c) {
    return slices_infer(c, ((const select_attrs *)c->attrs)->dim, c->in[1]->numel);
}
static pd_status index_select_kernel(const pd_call *c) {
    int dim;
    PD_TRY(pd_shape_dim(c->def->name, ((const select_attrs *)c->attrs)->dim, c->in[0]->ndim, &dim));
    return slices_run(c, dim, c->in[0], false);
}
static void index_select_vjp(pd_vjp *v) {
    const pd_edge *e = &v->node->edges[0];
    spread_attrs to = {((const select_attrs *)v->attrs)->dim, 1};
    if (e->ndim) to.size = e->size[to.dim < 0 ? to.dim + e->ndim : to.dim];
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_index_spread, v->g[0], pd_vjp_in(v, 1), &to));
}

const pd_op pd_op_index_select = {
    .sig = "index_select(Tensor input, int dim, Tensor index)",
    .doc = "The slices of input at index (int64, one dimension) along dim.",
    .save = PD_SAVE_IN(1),
    .flags = PD_FUNC | PD_METHOD | PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(select_attrs),
    .infer = index_select_infer,
    .kernel = index_select_kernel,
    .scratch = slices_scratch,
    .work = work,
    .vjp = index_select_vjp,
};

static pd_status index_spread_infer(pd_call *c) {
    const spread_attrs *a = c->attrs;
    return slices_infer(c, a->dim, a->size);
}
static pd_status index_spread_kernel(const pd_call *c) {
    int dim;
    PD_TRY(pd_shape_dim(c->def->name, ((const spread_attrs *)c->attrs)->dim, c->in[0]->ndim, &dim));
    return slices_run(c, dim, c->out[0], true);
}
static void index_spread_vjp(pd_vjp *v) {
    select_attrs at = {((const spread_attrs *)v->attrs)->dim};
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_index_select, v->g[0], pd_vjp_in(v, 1), &at));
}

const pd_op pd_op_index_spread = {
    .sig = "index_spread(Tensor g, Tensor index, int dim, int size)",
    .doc =
        "The gradient of index_select: zeros with size `size` along dim, to which the slices of g are added at index.",
    .save = PD_SAVE_IN(1),
    .flags = PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(spread_attrs),
    .infer = index_spread_infer,
    .kernel = index_spread_kernel,
    .scratch = slices_scratch,
    .work = work,
    .vjp = index_spread_vjp,
};
