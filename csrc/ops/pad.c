/* Padding with a number, whose gradient is padding by the negative amounts, and padding with the input's own
   elements. */
#include <inttypes.h>

#include "ops/block.h"

typedef struct { pd_ints pad; pd_scalar value; } pad_attrs; /* pad: before and after, of the last dimension first */

static int64_t amount(const pad_attrs *a, int ndim, int d, int after) {
    int k = 2 * (ndim - 1 - d) + after;
    return k < a->pad.n ? a->pad.v[k] : 0;
}

static pd_status infer(pd_call *c) {
    const pad_attrs *a = c->attrs;
    const pd_tensor *x = c->in[0];
    int64_t size[PD_MAX_DIMS] = {0};
    if (a->pad.n % 2 || a->pad.n > 2 * x->ndim)
        return pd_fail(
            PD_E_SHAPE,
            "constant_pad_nd: pad is %s, input has shape %s (expected two numbers for each of at most %d dimensions)",
            pd_shape_text((int)a->pad.n, a->pad.v), pd_tensor_shape(x), x->ndim);
    for (int i = 0; i < a->pad.n; i++)
        if (a->pad.v[i] > 0) PD_TRY(pd_scalar_fits("constant_pad_nd", &a->value, (pd_dtype)x->dtype));
    for (int d = 0; d < x->ndim; d++) {
        int64_t before = amount(a, x->ndim, d, 0), after = amount(a, x->ndim, d, 1);
        bool less = (before < 0 ? (double)before : 0) + (after < 0 ? (double)after : 0) < -(double)x->size[d];
        if (__builtin_add_overflow(x->size[d], before, &size[d]) || __builtin_add_overflow(size[d], after, &size[d]) ||
            size[d] < 0 || less)
            return pd_fail(PD_E_SHAPE,
                           "constant_pad_nd: pad is %s, which removes more of dimension %d than input %s has (expected "
                           "a size of at least 0)",
                           pd_shape_text((int)a->pad.n, a->pad.v), d, pd_tensor_shape(x));
    }
    PD_TRY(pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, size));
    if (pd_is_nhwc(x)) pd_shape_channels_last(4, c->out[0]->size, c->out[0]->stride);
    return PD_OK;
}

static pd_status kernel(const pd_call *c) {
    const pad_attrs *a = c->attrs;
    pd_tensor to = *c->out[0], from = *c->in[0], *whole = c->out[0], *pair[2] = {&to, &from};
    size_t size = pd_dtype_size((pd_dtype)to.dtype);
    uint64_t value[2] = {0};
    pd_loop l;
    from.numel = 1;
    for (int d = 0; d < to.ndim; d++) {
        int64_t before = amount(a, to.ndim, d, 0), after = amount(a, to.ndim, d, 1);
        int64_t n = from.size[d] + (before < 0 ? before : 0) + (after < 0 ? after : 0);
        (before < 0 ? &from : &to)->offset += before < 0 ? -before * from.stride[d] : before * to.stride[d];
        from.size[d] = to.size[d] = n > 0 ? n : 0;
        from.numel *= from.size[d];
    }
    if (from.numel < whole->numel) {
        pd_scalar_store(&a->value, (pd_dtype)to.dtype, value);
        pd_loop_build(&l, 1, &whole);
        pd_here()->fill(size, value, &l);
    }
    to.numel = from.numel;
    if (!to.numel) return PD_OK;
    pd_loop_build(&l, 2, pair);
    pd_here()->copy((pd_dtype)to.dtype, (pd_dtype)to.dtype, &l);
    return PD_OK;
}

static void vjp(pd_vjp *v) {
    pad_attrs back = *(const pad_attrs *)v->attrs;
    for (int i = 0; i < back.pad.n; i++) back.pad.v[i] = -back.pad.v[i];
    back.value = pd_number(0);
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_constant_pad_nd, v->g[0], &back));
}

const pd_op pd_op_constant_pad_nd = {
    .sig = "constant_pad_nd(Tensor input, int[] pad, Scalar value=0)",
    .doc =
        "input with pad[0] elements of `value` before it and pad[1] after it along the last dimension, pad[2] and "
        "pad[3] along the dimension before, and so on. A negative number removes that many elements.",
    .flags = PD_FUNC | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(pad_attrs),
    .infer = infer,
    .kernel = kernel,
    .vjp = vjp,
};

/* ---- with the input's own elements ---------------------------------------------------------------------------------

   One dimension after the other, the last first: the strips before and after what is there already are copies of strips
   within it, backwards (reflect), of one row (replicate) or of the other end (circular). The gradient, transposed, adds
   each strip to where it came from, in the opposite order. */

enum { REFLECT, REPLICATE, CIRCULAR };
typedef struct { pd_ints pad; int64_t mode, transposed; } around_attrs;

static pd_status around_infer(pd_call *c) {
    const around_attrs *a = c->attrs;
    const pd_tensor *x = c->in[0];
    int64_t size[PD_MAX_DIMS] = {0};
    if (a->pad.n % 2 || a->pad.n > 2 * x->ndim)
        return pd_fail(
            PD_E_SHAPE,
            "pad_around: pad is %s, input has shape %s (expected two numbers for each of at most %d dimensions)",
            pd_shape_text((int)a->pad.n, a->pad.v), pd_tensor_shape(x), x->ndim);
    for (int d = 0, k; d < x->ndim; d++) {
        k = 2 * (x->ndim - 1 - d);
        int64_t before = k < a->pad.n ? a->pad.v[k] : 0, after = k < a->pad.n ? a->pad.v[k + 1] : 0, n = x->size[d],
                most;
        bool bad = before < 0 || after < 0 || __builtin_add_overflow(before, after, &size[d]);
        bad = bad || (a->transposed ? __builtin_sub_overflow(n, size[d], &size[d])
                                    : __builtin_add_overflow(n, size[d], &size[d]));
        if (!bad && a->transposed) n = size[d];
        most = a->mode == REFLECT ? n - 1 : a->mode == CIRCULAR ? n : n > 0 ? INT64_MAX : 0;
        if (bad || ((before || after) && (before > most || after > most)))
            return pd_fail(PD_E_SHAPE,
                           "pad_around: pad is %" PRId64 " before and %" PRId64
                           " after dimension %d of input %s (expected 0 to %" PRId64 ")",
                           before, after, d, pd_tensor_shape(x), most > 0 ? most : 0);
    }
    return pd_out_shape(c, 0, (pd_dtype)x->dtype, x->ndim, size);
}

static size_t around_scratch(const pd_call *c) {
    return ((const around_attrs *)c->attrs)->transposed ? pd_tensor_bytes(c->in[0]) : 0;
}

/* Elements at, at + step, ... of dimension d, n of them. */
static pd_tensor strip(pd_tensor t, int d, int64_t at, int64_t step, int64_t n) {
    t.offset += at * t.stride[d];
    t.stride[d] *= step;
    t.size[d] = n;
    t.numel = 1;
    for (int i = 0; i < t.ndim; i++) t.numel *= t.size[i];
    return t;
}

/* to = from, or to += from. Both lie in the tensor that begins at `base`. */
static void move_strip(char *base, bool add, pd_tensor *to, pd_tensor *from) {
    pd_tensor *all[3] = {to, add ? to : from, from};
    int64_t size = (int64_t)pd_dtype_size((pd_dtype)to->dtype);
    int n = add ? 3 : 2;
    pd_loop l;
    if (!to->numel) return;
    pd_loop_build(&l, n, all);
    for (int k = 0; k < n; k++) l.ptr[k] = base + all[k]->offset * size;
    if (add) pd_here()->binary(PD_BINARY_add, (pd_dtype)to->dtype, 1, &l);
    else pd_here()->copy((pd_dtype)to->dtype, (pd_dtype)to->dtype, &l);
}

/* n results from `at` on along dimension d are the elements from, from + step, ... */
static void continue_strip(char *base, bool transposed, const pd_tensor *face, int d, int64_t at, int64_t n,
                           int64_t from, int64_t step) {
    pd_tensor edge, source;
    if (!transposed) {
        edge = strip(*face, d, at, 1, n), source = strip(*face, d, from, step, n);
        move_strip(base, false, &edge, &source);
        return;
    }
    for (int64_t j = 0, rows = step ? n : 1; j < n; j += rows) { /* several that go to one row are added one by one */
        edge = strip(*face, d, step < 0 ? at + n - 1 : at + j, step ? step : 1, rows);
        source = strip(*face, d, step < 0 ? from - (n - 1) : from, 1, rows);
        move_strip(base, true, &source, &edge);
    }
}

static pd_status around_kernel(const pd_call *c) {
    const around_attrs *a = c->attrs;
    bool back = a->transposed;
    const pd_tensor *small = back ? c->out[0] : c->in[0], *large = back ? c->in[0] : c->out[0];
    char *base = back ? c->scratch : pd_tensor_data(c->out[0]);
    pd_tensor whole = *large, middle;
    int64_t before[PD_MAX_DIMS] = {0}, size = (int64_t)pd_dtype_size((pd_dtype)whole.dtype);
    int pairs = (int)a->pad.n / 2;
    pd_loop l;
    if (back) pd_block_pack(c->in[0], 0, base);
    whole.offset = 0;
    pd_shape_contiguous(whole.ndim, whole.size, whole.stride);
    middle = whole;
    for (int k = 0; k < pairs; k++) {
        int d = whole.ndim - 1 - k;
        before[d] = a->pad.v[2 * k];
        middle = strip(middle, d, before[d], 1, small->size[d]);
    }
    if (!middle.numel) return PD_OK; /* nothing to continue, so nothing to pad */
    if (!back) {
        pd_loop_build(&l, 2, (pd_tensor *[]){&middle, c->in[0]});
        l.ptr[0] = base + middle.offset * size;
        pd_here()->copy((pd_dtype)whole.dtype, (pd_dtype)whole.dtype, &l);
    }
    for (int i = 0; i < pairs; i++) {
        int k = back ? pairs - 1 - i : i, d = whole.ndim - 1 - k;
        int64_t n = small->size[d], b = before[d], after = a->pad.v[2 * k + 1],
                step = a->mode == REFLECT ? -1 : a->mode == CIRCULAR;
        pd_tensor face = whole;
        for (int e = 0; e < d; e++) face = strip(face, e, before[e], 1, small->size[e]);
        continue_strip(base, back, &face, d, 0, b, a->mode == REFLECT ? 2 * b : a->mode == CIRCULAR ? n : b, step);
        continue_strip(base, back, &face, d, b + n, after,
                       a->mode == REFLECT    ? b + n - 2
                       : a->mode == CIRCULAR ? b
                                             : b + n - 1,
                       step);
    }
    if (back) {
        pd_loop_build(&l, 2, (pd_tensor *[]){c->out[0], &middle});
        l.ptr[1] = base + middle.offset * size;
        pd_here()->copy((pd_dtype)whole.dtype, (pd_dtype)whole.dtype, &l);
    }
    return PD_OK;
}

static void around_vjp(pd_vjp *v) {
    around_attrs back = *(const around_attrs *)v->attrs;
    back.transposed = !back.transposed;
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_pad_around, v->g[0], &back));
}

const pd_op pd_op_pad_around = {
    .sig = "pad_around(Tensor input, int[] pad, enum(reflect|replicate|circular) mode, bool transposed=False)",
    .doc =
        "input with pad[0] elements before it and pad[1] after it along the last dimension, and so on. The elements "
        "are mirrored at the border (reflect), copies of the border (replicate), or come from the other end "
        "(circular). transposed: the gradient of that.",
    .flags = PD_NN | PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(around_attrs),
    .infer = around_infer,
    .kernel = around_kernel,
    .scratch = around_scratch,
    .vjp = around_vjp,
};
