/* Views: new geometry over the same storage. No kernel runs. */
#include <inttypes.h>
#include <string.h>

#include "ops/block.h"

#define VIEW (PD_FUNC | PD_METHOD | PD_VIEW | PD_NO_BROADCAST_GRAD)
#define REARRANGES (VIEW | PD_REARRANGES)

static void start(pd_call *c) { /* out 0: the same geometry, to be changed */
    pd_tensor *o = c->out[0], *x = c->in[0];
    o->dtype = x->dtype;
    o->ndim = x->ndim;
    o->numel = x->numel;
    o->offset = x->offset;
    memcpy(o->size, x->size, sizeof(int64_t) * (size_t)x->ndim);
    memcpy(o->stride, x->stride, sizeof(int64_t) * (size_t)x->ndim);
    pd_tensor_view_of(o, x);
}

static void drop_dim(pd_tensor *t, int d) {
    t->ndim--;
    for (int i = d; i < t->ndim; i++) {
        t->size[i] = t->size[i + 1];
        t->stride[i] = t->stride[i + 1];
    }
}

/* The gradient of a view that changes the shape only: g in the input's shape. */
static void reshape_back(pd_vjp *v) {
    const pd_edge *e = &v->node->edges[0];
    pd_shape_attrs a = {.shape = {.n = e->ndim}};
    if (!pd_vjp_needs(v, 0)) return;
    memcpy(a.shape.v, e->size, sizeof(int64_t) * (size_t)e->ndim);
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_reshape, v->g[0], &a));
}

/* ---- view, reshape, flatten -------------------------------------------------------------------------------------- */

static pd_status view_infer(pd_call *c) {
    pd_ints s = ((const pd_shape_attrs *)c->attrs)->shape;
    pd_tensor *x = c->in[0], *o = c->out[0];
    int64_t stride[PD_MAX_DIMS];
    PD_TRY(pd_shape_infer(c->def->name, x->numel, (int)s.n, s.v));
    if (!pd_shape_view(x->ndim, x->size, x->stride, (int)s.n, s.v, stride))
        return pd_fail(PD_E_SHAPE,
                       "view: view size is not compatible with input tensor's size and stride: shape %s cannot become "
                       "%s without a copy (expected reshape)",
                       pd_tensor_shape(x), pd_shape_text((int)s.n, s.v));
    start(c);
    o->ndim = (int8_t)s.n;
    memcpy(o->size, s.v, sizeof(int64_t) * (size_t)s.n);
    memcpy(o->stride, stride, sizeof(int64_t) * (size_t)s.n);
    return PD_OK;
}

const pd_op pd_op_view = {
    .sig = "view(Tensor input, int[] shape)",
    .doc = "A view of input's elements in another shape; one size may be -1, which is then inferred.",
    .flags = REARRANGES,
    .attrs = sizeof(pd_shape_attrs),
    .infer = view_infer,
    .vjp = reshape_back,
};

static pd_status reshape_compose(pd_call *c) {
    pd_shape_attrs a = *(const pd_shape_attrs *)c->attrs;
    pd_tensor *x = c->in[0], *copy;
    int64_t stride[PD_MAX_DIMS];
    PD_TRY(pd_shape_infer("reshape", x->numel, (int)a.shape.n, a.shape.v));
    if (pd_shape_view(x->ndim, x->size, x->stride, (int)a.shape.n, a.shape.v, stride))
        return pd_call1(PD_OP_view, x, &a, &c->out[0]);
    PD_TRY(pd_contiguous(x, &copy));
    pd_status status = pd_call1(PD_OP_view, copy, &a, &c->out[0]);
    pd_tensor_release(copy);
    return status;
}

const pd_op pd_op_reshape = {
    .sig = "reshape(Tensor input, int[] shape)",
    .doc = "input's elements in another shape: a view where the strides allow it, otherwise a copy.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(pd_shape_attrs),
    .compose = reshape_compose,
};

static pd_status flatten_compose(pd_call *c) {
    const pd_dims2_attrs *d = c->attrs;
    pd_tensor *x = c->in[0];
    pd_shape_attrs a = {0};
    int from, to;
    PD_TRY(pd_shape_dim("flatten", d->dim0, x->ndim, &from));
    PD_TRY(pd_shape_dim("flatten", d->dim1, x->ndim, &to));
    if (from > to)
        return pd_fail(
            PD_E_DIM,
            "flatten: flatten() has invalid args: start_dim is %d, end_dim is %d (expected start_dim <= end_dim)", from,
            to);
    for (int i = 0; i < x->ndim; i++) {
        if (i > from && i <= to) a.shape.v[a.shape.n - 1] *= x->size[i];
        else a.shape.v[a.shape.n++] = x->size[i];
    }
    if (x->ndim == 0) a.shape.v[a.shape.n++] = 1;
    return pd_call1(PD_OP_reshape, x, &a, &c->out[0]);
}

const pd_op pd_op_flatten = {
    .sig = "flatten(Tensor input, int start_dim=0, int end_dim=-1)",
    .doc = "input with the dims start_dim to end_dim merged into one.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(pd_dims2_attrs),
    .compose = flatten_compose,
};

/* ---- permute, transpose ------------------------------------------------------------------------------------------ */

static pd_status permute_infer(pd_call *c) {
    const pd_ints *dims = c->attrs;
    pd_tensor *x = c->in[0], *o = c->out[0];
    unsigned seen = 0;
    if (dims->n != x->ndim)
        return pd_fail(PD_E_DIM, "permute: got %" PRId64 " dims for shape %s (expected each dimension once)", dims->n,
                       pd_tensor_shape(x));
    start(c);
    for (int i = 0; i < x->ndim; i++) {
        int d;
        PD_TRY(pd_shape_dim("permute", dims->v[i], x->ndim, &d));
        if (seen >> d & 1)
            return pd_fail(PD_E_DIM, "permute: dimension %d appears twice in dims %s (expected each dimension once)", d,
                           pd_shape_text((int)dims->n, dims->v));
        seen |= 1u << d;
        o->size[i] = x->size[d];
        o->stride[i] = x->stride[d];
    }
    return PD_OK;
}

static void permute_vjp(pd_vjp *v) {
    const pd_ints *dims = v->attrs;
    pd_ints back = {.n = dims->n};
    for (int i = 0; i < dims->n; i++) back.v[dims->v[i] < 0 ? dims->v[i] + dims->n : dims->v[i]] = i;
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_permute, v->g[0], &back));
}

const pd_op pd_op_permute = {
    .sig = "permute(Tensor input, int[] dims)",
    .doc = "A view of input with its dimensions in another order.",
    .flags = REARRANGES,
    .attrs = sizeof(pd_ints),
    .infer = permute_infer,
    .vjp = permute_vjp,
};

static pd_status transpose_infer(pd_call *c) {
    const pd_dims2_attrs *a = c->attrs;
    pd_tensor *x = c->in[0], *o = c->out[0];
    int i, j;
    PD_TRY(pd_shape_dim("transpose", a->dim0, x->ndim, &i));
    PD_TRY(pd_shape_dim("transpose", a->dim1, x->ndim, &j));
    start(c);
    if (x->ndim == 0) return PD_OK;
    o->size[i] = x->size[j], o->size[j] = x->size[i];
    o->stride[i] = x->stride[j], o->stride[j] = x->stride[i];
    return PD_OK;
}

static void transpose_vjp(pd_vjp *v) { pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_transpose, v->g[0], v->attrs)); }

const pd_op pd_op_transpose = {
    .sig = "transpose(Tensor input, int dim0, int dim1)",
    .doc = "A view of input with two dimensions swapped.",
    .flags = REARRANGES,
    .attrs = sizeof(pd_dims2_attrs),
    .infer = transpose_infer,
    .vjp = transpose_vjp,
};

/* ---- expand, squeeze, unsqueeze ---------------------------------------------------------------------------------- */

static pd_status expand_infer(pd_call *c) {
    const pd_ints *s = c->attrs;
    pd_tensor *x = c->in[0], *o = c->out[0];
    int n = (int)s->n, lead = n - x->ndim;
    int64_t size[PD_MAX_DIMS], stride[PD_MAX_DIMS];
    if (lead < 0)
        return pd_fail(PD_E_SHAPE, "expand: got %d sizes for shape %s (expected at least %d)", n, pd_tensor_shape(x),
                       x->ndim);
    for (int i = 0; i < n; i++) {
        int64_t have = i < lead ? 1 : x->size[i - lead];
        size[i] = s->v[i] == -1 && i >= lead ? have : s->v[i];
        stride[i] = i < lead || (have == 1 && size[i] != 1) ? 0 : x->stride[i - lead];
        if (have != 1 && have != size[i])
            return pd_fail(PD_E_SHAPE,
                           "expand: shape %s cannot become %s: got size %" PRId64 " at dimension %d (expected %" PRId64
                           ")",
                           pd_tensor_shape(x), pd_shape_text(n, s->v), size[i], i, have);
    }
    int64_t numel;
    PD_TRY(pd_shape_numel("expand", n, size, &numel));
    start(c);
    o->ndim = (int8_t)n;
    o->numel = numel;
    memcpy(o->size, size, sizeof(int64_t) * (size_t)n);
    memcpy(o->stride, stride, sizeof(int64_t) * (size_t)n);
    return PD_OK;
}

static void pass(pd_vjp *v) { pd_vjp_set(v, 0, v->g[0]); } /* the engine sums it to the input's shape */

const pd_op pd_op_expand = {
    .sig = "expand(Tensor input, int[] size)",
    .doc = "A view of input broadcast to size; -1 keeps a size.",
    .flags = PD_FUNC | PD_METHOD | PD_VIEW,
    .attrs = sizeof(pd_ints),
    .infer = expand_infer,
    .vjp = pass,
};

static pd_status squeeze_infer(pd_call *c) {
    const pd_ints *dim = c->attrs;
    unsigned bits = dim->n < 0 ? ~0u : 0;
    if (dim->n > 0) PD_TRY(pd_dims_of("squeeze", dim, c->in[0]->ndim, &bits));
    start(c);
    pd_tensor *o = c->out[0];
    for (int i = o->ndim - 1; i >= 0; i--)
        if (o->size[i] == 1 && (bits >> i & 1)) drop_dim(o, i);
    return PD_OK;
}

const pd_op pd_op_squeeze = {
    .sig = "squeeze(Tensor input, int[]? dim=None)",
    .doc =
        "A view of input without the dimension or dimensions dim if their size is 1; if dim is None, without all "
        "dimensions of size 1.",
    .flags = REARRANGES,
    .attrs = sizeof(pd_ints),
    .infer = squeeze_infer,
    .vjp = reshape_back,
};

static pd_status unsqueeze_infer(pd_call *c) {
    pd_tensor *x = c->in[0], *o = c->out[0];
    int d;
    PD_TRY(pd_shape_dim("unsqueeze", *(const int64_t *)c->attrs, x->ndim + 1, &d));
    if (x->ndim == PD_MAX_DIMS)
        return pd_fail(PD_E_SHAPE, "unsqueeze: the result has too many dimensions (expected at most %d)", PD_MAX_DIMS);
    start(c);
    for (int i = o->ndim++; i > d; i--) o->size[i] = o->size[i - 1], o->stride[i] = o->stride[i - 1];
    o->size[d] = 1;
    o->stride[d] = d < x->ndim ? x->size[d] * x->stride[d] : 1;
    return PD_OK;
}

const pd_op pd_op_unsqueeze = {
    .sig = "unsqueeze(Tensor input, int dim)",
    .doc = "A view of input with a dimension of size 1 inserted at dim.",
    .flags = REARRANGES,
    .attrs = sizeof(int64_t),
    .infer = unsqueeze_infer,
    .vjp = reshape_back,
};

/* ---- as_strided: any geometry ------------------------------------------------------------------------------------ */

static pd_status check_span(const char *op, const pd_tensor *x, const pd_strided_attrs *a) {
    int64_t last = a->offset, numel;
    if (a->size.n != a->stride.n)
        return pd_fail(PD_E_SHAPE,
                       "%s: got %" PRId64 " sizes and %" PRId64 " strides (expected one stride for each size)", op,
                       a->size.n, a->stride.n);
    PD_TRY(pd_shape_numel(op, (int)a->size.n, a->size.v, &numel));
    if (a->offset < 0)
        return pd_fail(PD_E_VALUE, "%s: storage_offset is %" PRId64 " (expected at least 0)", op, a->offset);
    for (int i = 0; i < a->size.n && numel; i++) {
        int64_t reach;
        if (a->stride.v[i] < 0)
            return pd_fail(PD_E_VALUE, "%s: a stride is %" PRId64 " (expected at least 0)", op, a->stride.v[i]);
        if (__builtin_mul_overflow(a->size.v[i] - 1, a->stride.v[i], &reach) ||
            __builtin_add_overflow(last, reach, &last))
            return pd_fail(PD_E_SHAPE, "%s: sizes and strides are too large (expected less than 2^63 elements)", op);
    }
    int64_t have = (int64_t)(x->storage->bytes / pd_dtype_size((pd_dtype)x->dtype));
    if (numel && last >= have)
        return pd_fail(PD_E_SHAPE,
                       "%s: shape %s with strides %s at offset %" PRId64 " needs a storage of %" PRId64
                       " elements (expected at most its %" PRId64 ")",
                       op, pd_shape_text((int)a->size.n, a->size.v), pd_shape_text((int)a->stride.n, a->stride.v),
                       a->offset, last + 1, have);
    return PD_OK;
}

static pd_status strided_infer(pd_call *c) {
    pd_strided_attrs a = *(const pd_strided_attrs *)c->attrs;
    pd_tensor *o = c->out[0];
    if (a.offset == PD_NONE_INT) a.offset = c->in[0]->offset;
    PD_TRY(check_span("as_strided", c->in[0], &a));
    start(c);
    o->ndim = (int8_t)a.size.n;
    o->offset = a.offset;
    memcpy(o->size, a.size.v, sizeof(int64_t) * (size_t)a.size.n);
    memcpy(o->stride, a.stride.v, sizeof(int64_t) * (size_t)a.size.n);
    return pd_shape_numel("as_strided", o->ndim, o->size, &o->numel);
}

static void strided_vjp(pd_vjp *v) {
    /* Zeros with the input's shape and strides, to which g is added at the view's places. */
    pd_tensor *x = (pd_tensor *)(uintptr_t)pd_vjp_geometry(v, 0), *in[2] = {x, v->g[0]};
    if (x) pd_vjp_set(v, 0, pd_x(v, PD_OP_as_strided_scatter_add, v->attrs, 2, in));
}

const pd_op pd_op_as_strided = {
    .sig = "as_strided(Tensor input, int[] size, int[] stride, int? storage_offset=None)",
    .doc = "A view of input's storage with the given sizes, strides and offset (in elements).",
    .save = PD_SAVE_IN(0),
    .flags = VIEW | PD_SAVES_GEOMETRY,
    .attrs = sizeof(pd_strided_attrs),
    .infer = strided_infer,
    .vjp = strided_vjp,
};

static pd_status scatter_infer(pd_call *c) {
    pd_tensor *x = c->in[0], *o = c->out[0];
    PD_TRY(pd_out_like(c, 0, (pd_dtype)c->in[1]->dtype, x));
    if (pd_shape_is_dense(x->ndim, x->size, x->stride)) memcpy(o->stride, x->stride, sizeof(int64_t) * (size_t)x->ndim);
    return PD_OK;
}

static bool is_dense(const pd_tensor *x) { return pd_shape_is_dense(x->ndim, x->size, x->stride); }

/* The number of elements from the first to the last of x in memory. */
static int64_t span_of(const pd_tensor *x) {
    int64_t last = 0;
    for (int d = 0; d < x->ndim; d++) last += (x->size[d] - 1) * x->stride[d];
    return x->numel ? last + 1 : 0;
}

/* Scratch: byte offsets of g's elements within the result; then g packed, if it is not contiguous; then, if the input
   has gaps, the gradient in the order of its memory. */
static size_t scatter_scratch(const pd_call *c) {
    size_t packed = pd_tensor_is_contiguous(c->in[1]) ? 0 : (pd_tensor_bytes(c->in[1]) + 15) & ~(size_t)15;
    size_t gaps = is_dense(c->in[0]) ? 0 : (size_t)span_of(c->in[0]) * pd_dtype_size((pd_dtype)c->out[0]->dtype);
    return (size_t)c->in[1]->numel * 8 + 8 + packed + gaps;
}

static pd_status scatter_kernel(const pd_call *c) {
    const pd_strided_attrs *a = c->attrs;
    pd_tensor *o = c->out[0], *g = c->in[1], x = *c->in[0];
    bool dense = is_dense(&x);
    int64_t size = (int64_t)pd_dtype_size((pd_dtype)o->dtype), *offset = c->scratch;
    int64_t place = (a->offset == PD_NONE_INT ? c->in[0]->offset : a->offset) - c->in[0]->offset;
    int64_t last = place, span = span_of(&x), copies = 1;
    size_t packed = pd_tensor_is_contiguous(g) ? 0 : (pd_tensor_bytes(g) + 15) & ~(size_t)15;
    char *memory = dense ? pd_tensor_data(o) : (char *)(offset + (g->numel + 1) / 2 * 2) + packed;
    pd_loop l;
    for (int d = 0; d < g->ndim; d++) last += (g->size[d] - 1) * a->stride.v[d];
    if (g->numel && (place < 0 || last >= span))
        return pd_fail(
            PD_E_NOTIMPL,
            "as_strided: the view reaches outside its input, so it has no gradient (expected a view within its input)");
    pd_places to;
    to.nby = 0, to.ndim = g->ndim, to.first = 0, to.count = g->numel, to.base = place * size;
    for (int d = 0; d < g->ndim; d++) to.size[d] = g->size[d], to.own[d] = a->stride.v[d] * size;
    pd_here()->places(&to, offset, NULL);
    l = (pd_loop){.ndim = 1, .nop = 1, .numel = span, .size = {span}, .stride = {{size}}, .ptr = {memory}};
    pd_here()->fill((size_t)size, &(uint64_t){0}, &l);
    /* One element after the other, since several may go to one place. */
    pd_here()->put_reduce(PD_FOLD_SUM, (pd_dtype)o->dtype, g->numel, 1, offset,
                          pd_packed(g, offset + (g->numel + 1) / 2 * 2), size, memory);
    if (dense) return PD_OK;
    x.dtype = o->dtype;
    pd_loop_build(&l, 2, (pd_tensor *[]){o, &x});
    l.ptr[1] = memory;
    pd_here()->copy((pd_dtype)o->dtype, (pd_dtype)o->dtype, &l);
    for (int d = 0; d < x.ndim; d++)
        if (!x.stride[d]) copies *= x.size[d];
    if (copies > 1) { /* elements that share memory share its gradient */
        pd_scalar n = pd_number((double)copies);
        char cell[16];
        pd_loop_build(&l, 3, (pd_tensor *[]){o, o, NULL});
        pd_loop_number(&l, 2, &n, (pd_dtype)o->dtype, true, cell);
        pd_here()->binary(PD_BINARY_div, (pd_dtype)o->dtype, 1, &l);
    }
    return PD_OK;
}

static void scatter_vjp(pd_vjp *v) { pd_vjp_set(v, 1, pd_x_call1(v, PD_OP_as_strided, v->g[0], v->attrs)); }

const pd_op pd_op_as_strided_scatter_add = {
    .sig = "as_strided_scatter_add(Tensor like, Tensor g, int[] size, int[] stride, int? storage_offset=None)",
    .doc = "The gradient of as_strided: zeros like `like`, to which g is added at the view's elements.",
    .attrs = sizeof(pd_strided_attrs),
    .infer = scatter_infer,
    .kernel = scatter_kernel,
    .scratch = scatter_scratch,
    .vjp = scatter_vjp,
};

/* ---- select and slice: one index, a range ------------------------------------------------------------------------ */

typedef struct { int64_t dim, index; } select_attrs;
typedef struct { int64_t dim, start, end, step; } slice_attrs;

static pd_status select_infer(pd_call *c) {
    const select_attrs *a = c->attrs;
    pd_tensor *x = c->in[0], *o = c->out[0];
    int d;
    if (x->ndim == 0) return pd_fail(PD_E_INDEX, "select: the tensor is 0-d (expected at least 1 dimension)");
    PD_TRY(pd_shape_dim("select", a->dim, x->ndim, &d));
    int64_t n = x->size[d], i = a->index < 0 ? a->index + n : a->index;
    if (i < 0 || i >= n)
        return pd_fail(PD_E_INDEX, "index %" PRId64 " is out of range for dimension %d of size %" PRId64, a->index, d,
                       n);
    start(c);
    o->offset += i * x->stride[d];
    if (n) o->numel = x->numel / n;
    drop_dim(o, d);
    return PD_OK;
}

static pd_tensor *zeros_of_input(pd_vjp *v) {
    const pd_edge *e = &v->node->edges[0];
    pd_tensor *z = pd_x_new(v, (pd_dtype)e->dtype, e->ndim, e->size);
    if (z) pd_fill(z, &(pd_scalar){.cat = PD_CAT_INT});
    return z;
}

/* Puts g into its part of a gradient that other parts share. Or returns zeros of the input's shape with g in the same
   view of them, made by ops, so that it can be differentiated again. */
static void place(pd_vjp *v, pd_op_id op) {
    if (!pd_vjp_needs(v, 0) || pd_vjp_put_part(v)) return;
    pd_tensor *z = zeros_of_input(v), *part = pd_x_call1(v, op, z, v->attrs);
    if (part) v->status = pd_engine.write(part, v->g[0]);
    pd_vjp_set(v, 0, z);
}

static void select_vjp(pd_vjp *v) { place(v, PD_OP_select); }

static pd_slice select_part(const void *attrs, int ndim, const int64_t *size) {
    const select_attrs *a = attrs;
    int d = (int)(a->dim < 0 ? a->dim + ndim : a->dim);
    int64_t i = a->index < 0 ? a->index + size[d] : a->index;
    return (pd_slice){d, i, i + 1, true};
}

const pd_op pd_op_select = {
    .sig = "select(Tensor input, int dim, int index)",
    .doc = "A view of input at one index of dimension dim; the view does not have that dimension.",
    .flags = VIEW,
    .attrs = sizeof(select_attrs),
    .infer = select_infer,
    .part = select_part,
    .vjp = select_vjp,
};

static pd_slice slice_part(const void *attrs, int ndim, const int64_t *size) {
    const slice_attrs *a = attrs;
    int d = (int)(a->dim < 0 ? a->dim + ndim : a->dim);
    int64_t n = size[d], from = a->start, to = a->end;
    from = from < 0 ? from + n : from, to = to < 0 ? to + n : to;
    from = from < 0 ? 0 : from > n ? n : from;
    to = to < from ? from : to > n ? n : to;
    return (pd_slice){d, from, to, a->step == 1};
}

static pd_status slice_infer(pd_call *c) {
    const slice_attrs *a = c->attrs;
    pd_tensor *x = c->in[0], *o = c->out[0];
    int d;
    if (x->ndim == 0) return pd_fail(PD_E_INDEX, "slice: the tensor is 0-d (expected at least 1 dimension)");
    PD_TRY(pd_shape_dim("slice", a->dim, x->ndim, &d));
    if (a->step < 1) return pd_fail(PD_E_VALUE, "slice: step is %" PRId64 " (expected at least 1)", a->step);
    pd_slice p = slice_part(a, x->ndim, x->size);
    start(c);
    o->offset += p.from * x->stride[d];
    o->size[d] = (p.to - p.from + a->step - 1) / a->step;
    o->stride[d] = x->stride[d] * a->step;
    return pd_shape_numel("slice", o->ndim, o->size, &o->numel);
}

static void slice_vjp(pd_vjp *v) { place(v, PD_OP_slice); }

const pd_op pd_op_slice = {
    .sig = "slice(Tensor input, int dim, int start, int end, int step=1)",
    .doc = "A view of input[start:end:step] along dimension dim.",
    .flags = VIEW,
    .attrs = sizeof(slice_attrs),
    .infer = slice_infer,
    .part = slice_part,
    .vjp = slice_vjp,
};
