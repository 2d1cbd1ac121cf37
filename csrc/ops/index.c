/* Indexing with tensors. index and index_put bring the indexed dimensions to the front, where one kernel each works on
   x[i0, i1, ...] with the index tensors broadcast against each other. */
#include <inttypes.h>
#include <string.h>

#include "autograd/program.h"
#include "base/mem.h"
#include "ops/block.h"

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* Runs f on a dense copy of the mask in the host's memory and moves the result to the mask's device. */
typedef pd_status (*mask_fn)(const char *op, const pd_tensor *mask, pd_tensor **out);
static pd_status read_mask(const char *op, pd_tensor *mask, mask_fn f, int nout, pd_tensor **out) {
    const pd_device *there = pd_device_here;
    pd_tensor *m, *near;
    if (pd_is_recording()) pd_record_refuse("%s: the values of a mask decide about a shape", op);
    PD_TRY(pd_check_data(op, mask->storage->device)); /* how many are true would be the result's shape */
    PD_TRY(pd_contiguous(mask, &m));
    pd_status status = pd_move(m, &pd_device_cpu, PD_WAIT, &near); /* the host has to know how many are true */
    pd_tensor_release(m);
    PD_TRY(status);
    pd_device_here = &pd_device_cpu;
    status = f(op, near, out);
    pd_device_here = there;
    pd_tensor_release(near);
    for (int d = 0; d < nout && !status && there != &pd_device_cpu; d++) {
        near = out[d];
        out[d] = NULL;
        status = pd_move(near, there, PD_WAIT, &out[d]);
        pd_tensor_release(near);
    }
    return status;
}

static int64_t count_true(const uint8_t *p, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += 128) { /* as many as a byte can count */
        uint8_t few = 0;
        for (int64_t k = i; k < i + 128 && k < n; k++) few = (uint8_t)(few + (p[k] != 0));
        count += few;
    }
    return count;
}

/* Writes the k-th of `count` positions in dimension d to to[d][k * step]. It writes for every element, and the next one
   overwrites it if the element is false: an unpredictable branch would cost more. */
static void write_positions(const pd_tensor *mask, int64_t count, int64_t step, int64_t *const *to) {
    const uint8_t *p = pd_tensor_data((pd_tensor *)(uintptr_t)mask);
    const int last = mask->ndim - 1;
    int64_t at[PD_MAX_DIMS] = {0}, k = 0;
    while (k < count * step) {
        for (int64_t i = 0; i < mask->size[last] && k < count * step; i++) {
            for (int d = 0; d < last; d++) to[d][k] = at[d];
            to[last][k] = i;
            k += *p++ != 0 ? step : 0;
        }
        for (int d = last - 1; d >= 0 && ++at[d] == mask->size[d]; d--) at[d] = 0;
    }
}

static pd_status positions_apart(const char *op, const pd_tensor *mask, pd_tensor **out) {
    int64_t count = count_true(pd_tensor_data((pd_tensor *)(uintptr_t)mask), mask->numel), *to[PD_MAX_DIMS];
    for (int d = 0; d < mask->ndim; d++) {
        PD_TRY(pd_tensor_new(op, PD_I64, 1, &count, &out[d]));
        to[d] = pd_tensor_data(out[d]);
    }
    if (mask->ndim) write_positions(mask, count, 1, to);
    return PD_OK;
}
static pd_status positions_together(const char *op, const pd_tensor *mask, pd_tensor **out) {
    int64_t size[2] = {count_true(pd_tensor_data((pd_tensor *)(uintptr_t)mask), mask->numel), mask->ndim},
            *to[PD_MAX_DIMS];
    PD_TRY(pd_tensor_new(op, PD_I64, 2, size, out));
    for (int d = 0; d < mask->ndim; d++) to[d] = (int64_t *)pd_tensor_data(out[0]) + d;
    if (mask->ndim) write_positions(mask, size[0], mask->ndim, to);
    return PD_OK;
}

static pd_status positions_compose(pd_call *c) {
    if (c->in[0]->dtype != PD_BOOL)
        return pd_fail(PD_E_DTYPE, "positions: the mask is %s (expected bool)",
                       pd_dtype_name((pd_dtype)c->in[0]->dtype));
    return read_mask("nonzero", c->in[0], positions_together, 1, c->out);
}

const pd_op pd_op_positions = {
    .sig = "positions(Tensor mask)",
    .doc = "The positions at which a bool tensor is True: int64 [number of them, dims], in order.",
    .flags = PD_METHOD,
    .compose = positions_compose,
};

static pd_status nonzero(const char *op, const pd_tensor *x, int at, pd_tensor *mask, pd_tensor **out) {
    for (int d = 0; d < mask->ndim; d++)
        if (at + d >= x->ndim || mask->size[d] != x->size[at + d])
            return pd_fail(PD_E_INDEX,
                           "%s: the mask has shape %s; at dimension %d that does not match the tensor's shape "
                           "(expected sizes as in %s)",
                           op, pd_tensor_shape(mask), at, pd_tensor_shape(x));
    return read_mask(op, mask, positions_apart, mask->ndim, out);
}

/* An index as int64 on x's device. As in PyTorch, an index may be on the CPU wherever x is. */
static pd_status place_index(const char *op, const pd_tensor *x, int i, pd_tensor *t, pd_tensor **out) {
    const pd_device *own = t->storage->device, *want = x->storage->device;
    pd_tensor *wide = NULL;
    if (own != want && own != &pd_device_cpu)
        return pd_fail(PD_E_RUNTIME, "%s: index %d is on %s, the tensor on %s (expected the same device, or the CPU)",
                       op, i, own->name, want->name);
    if (pd_is_mask(t)) return PD_OK; /* read on the host */
    if (pd_dtype_category((pd_dtype)t->dtype) != PD_CAT_INT)
        return pd_fail(PD_E_INDEX, "%s: index %d is %s (expected int64 or bool)", op, i,
                       pd_dtype_name((pd_dtype)t->dtype));
    PD_TRY(pd_engine.cast(t, PD_I64, &wide));
    pd_status status = pd_move(wide, want, PD_WAIT, out);
    pd_tensor_release(wide);
    return status;
}

/* Masks among the indices become int64 tensors of positions; out: count tensors [new], NULL for a full slice. */
static pd_status expand(const char *op, const pd_tensor *x, pd_tensor *const *indices, int n, pd_tensor **out,
                        int *count) {
    pd_status status = PD_OK;
    *count = 0;
    for (int i = 0; i < PD_MAX_DIMS; i++) out[i] = NULL; /* so that a failure can release them all */
    for (int i = 0; i < n && !status; i++) {
        pd_tensor *t = indices[i];
        int takes = t && pd_is_mask(t) ? t->ndim : 1;
        if (*count + takes > x->ndim) {
            status = pd_fail(PD_E_INDEX,
                             "%s: too many indices for tensor of shape %s (expected at most one for each dimension)",
                             op, pd_tensor_shape(x));
            break;
        }
        if (t) status = place_index(op, x, i, t, &out[*count]);
        if (!status && t && pd_is_mask(t)) status = nonzero(op, x, *count, t, out + *count);
        *count += takes;
    }
    if (status) {
        for (int i = 0; i < *count; i++) pd_tensor_release(out[i]);
        *count = 0;
    }
    return status;
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* x[idx...]: the indices' broadcast shape, how many places they address, and the elements of the block at each. */
typedef struct { int nidx, ndim; int64_t size[PD_MAX_DIMS], count, block; bool whole; } places;

static pd_status places_of(const char *op, const pd_tensor *x, pd_tensor *const *idx, int n, places *p) {
    *p = (places){.nidx = n, .block = 1, .whole = true};
    if (n > x->ndim)
        return pd_fail(PD_E_INDEX,
                       "%s: got %d indices for tensor of shape %s (expected at most one for each dimension)", op, n,
                       pd_tensor_shape(x));
    for (int i = 0; i < n; i++) {
        if (idx[i]->dtype != PD_I64)
            return pd_fail(PD_E_INDEX, "%s: index %d is %s (expected int64)", op, i,
                           pd_dtype_name((pd_dtype)idx[i]->dtype));
        int ndim = p->ndim;
        if (pd_shape_broadcast(op, &p->ndim, p->size, idx[i]->ndim, idx[i]->size))
            return pd_fail(
                PD_E_INDEX,
                "%s: index tensors of shapes %s and %s cannot be broadcast together (expected equal sizes, or 1)", op,
                pd_shape_text(ndim, p->size), pd_tensor_shape(idx[i]));
    }
    PD_TRY(pd_shape_numel(op, p->ndim, p->size, &p->count));
    int64_t want = 1;
    for (int d = x->ndim - 1; d >= n; d--) { /* do the remaining dims lie together in memory? */
        if (x->size[d] > 1 && x->stride[d] != want) p->whole = false;
        want *= x->size[d];
        p->block *= x->size[d];
    }
    return PD_OK;
}

static size_t offsets_bytes(const places *p) { return (size_t)(p->count * (p->whole ? 1 : p->block)) * 8 + 64; }

/* Checks the indices and computes the byte offset of every block, or of every element if x's blocks are not
   contiguous. */
static pd_status fill_offsets(const char *op, const pd_tensor *x, pd_tensor *const *idx, const places *p, int64_t order,
                              int64_t *out) {
    const int64_t size = (int64_t)pd_dtype_size((pd_dtype)x->dtype);
    pd_places c;
    pd_bad_index bad;
    c.op = op, c.kind = PD_BAD_INDEX, c.nby = p->nidx, c.ndim = p->ndim, c.first = c.base = 0;
    c.count = p->whole ? p->count : p->count * p->block;
    for (int d = 0; d < p->ndim; d++) c.size[d] = p->size[d], c.own[d] = 0;
    for (int d = p->nidx; d < x->ndim && !p->whole; d++, c.ndim++)
        c.size[c.ndim] = x->size[d], c.own[c.ndim] = x->stride[d] * size;
    for (int j = 0; j < p->nidx; j++) {
        const pd_tensor *t = idx[j];
        pd_chooser *by = &c.by[j];
        by->index = pd_tensor_data(t), by->narrow = false, by->wraps = true, by->skip = -1, by->first = by->all = 0;
        by->n = x->size[j], by->step = x->stride[j] * size, by->dim = (int64_t)((uint64_t)order >> 4 * j & 15);
        for (int d = 0; d < c.ndim; d++) {
            int from = d - (p->ndim - t->ndim);
            by->stride[d] = d < p->ndim && from >= 0 && t->size[from] > 1 ? t->stride[from] : 0;
        }
    }
    return pd_here()->places(&c, out, &bad) ? PD_OK : pd_bad_index_fail(&bad);
}

/* ---- the two kernels --------------------------------------------------------------------------------------------- */

static pd_status front_infer(pd_call *c) {
    places p;
    pd_tensor *x = c->in[0];
    int64_t size[2 * PD_MAX_DIMS];
    int n = c->nin - 1;
    PD_TRY(places_of("index", x, c->in + 1, n, &p));
    memcpy(size, p.size, sizeof(int64_t) * (size_t)p.ndim);
    for (int d = n; d < x->ndim; d++) size[p.ndim + d - n] = x->size[d];
    return pd_out_shape(c, 0, (pd_dtype)x->dtype, p.ndim + x->ndim - n, size);
}

static size_t front_scratch(const pd_call *c) {
    places p;
    return places_of("index", c->in[0], c->in + 1, c->nin - 1, &p) ? 0 : offsets_bytes(&p);
}

static pd_status front_kernel(const pd_call *c) {
    places p;
    pd_tensor *x = c->in[0];
    size_t size = pd_dtype_size((pd_dtype)x->dtype);
    PD_TRY(places_of("index", x, c->in + 1, c->nin - 1, &p));
    PD_TRY(fill_offsets("index", x, c->in + 1, &p, *(const int64_t *)c->attrs, c->scratch));
    pd_here()->take(p.whole ? p.count : p.count * p.block, p.whole ? size * (size_t)p.block : size, c->scratch,
                    pd_tensor_data(x), pd_tensor_data(c->out[0]));
    return PD_OK;
}

static void front_vjp(pd_vjp *v) {
    const pd_edge *e = &v->node->edges[0];
    int n = v->node->nin - 1;
    pd_tensor *in[2 + PD_MAX_DIMS] = {pd_x_new(v, (pd_dtype)e->dtype, e->ndim, e->size), v->g[0]};
    for (int i = 0; i < n; i++) in[2 + i] = pd_vjp_in(v, 1 + i);
    if (v->status) return;
    pd_fill(in[0], &(pd_scalar){.cat = PD_CAT_INT});
    pd_vjp_set(v, 0, pd_x(v, PD_OP_index_put_front, &(pd_put_attrs){*(const int64_t *)v->attrs, 1}, 2 + n, in));
}

const pd_op pd_op_index_front = {
    .sig = "index_front(Tensor input, Tensor[] indices, int order=-81985529216486896)",
    .doc = "input[i0, i1, ...] with int64 indices of the first dims.",
    .save = 0xfffe,
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(int64_t),
    .infer = front_infer,
    .kernel = front_kernel,
    .scratch = front_scratch,
    .vjp = front_vjp,
};

static pd_status put_infer(pd_call *c) {
    places p;
    pd_tensor *x = c->in[0], *values = c->in[1];
    int64_t size[2 * PD_MAX_DIMS];
    int n = c->nin - 2, ndim;
    PD_TRY(places_of("index_put", x, c->in + 2, n, &p));
    memcpy(size, p.size, sizeof(int64_t) * (size_t)p.ndim);
    for (int d = n; d < x->ndim; d++) size[p.ndim + d - n] = x->size[d];
    ndim = p.ndim + x->ndim - n;
    if (!pd_shape_equal(ndim, size, values->ndim, values->size) || values->dtype != x->dtype)
        return pd_fail(PD_E_SHAPE, "index_put: values are %s of shape %s (expected %s of shape %s)",
                       pd_dtype_name((pd_dtype)values->dtype), pd_tensor_shape(values),
                       pd_dtype_name((pd_dtype)x->dtype), pd_shape_text(ndim, size));
    return pd_out_like(c, 0, (pd_dtype)x->dtype, x);
}

static size_t put_scratch(const pd_call *c) {
    places p;
    size_t packed = pd_tensor_is_contiguous(c->in[1]) ? 0 : pd_tensor_bytes(c->in[1]);
    return places_of("index_put", c->out[0], c->in + 2, c->nin - 2, &p) ? 0 : offsets_bytes(&p) + packed;
}

static pd_status put_kernel(const pd_call *c) {
    places p;
    pd_tensor *o = c->out[0], *values = c->in[1];
    const pd_put_attrs *a = c->attrs;
    int64_t size = (int64_t)pd_dtype_size((pd_dtype)o->dtype);
    PD_TRY(places_of("index_put", o, c->in + 2, c->nin - 2, &p));
    PD_TRY(fill_offsets("index_put", o, c->in + 2, &p, a->order, c->scratch)); /* checked before anything is written */
    if (o != c->in[0]) {
        pd_tensor *pair[2] = {o, c->in[0]};
        pd_loop l;
        pd_loop_build(&l, 2, pair);
        pd_here()->copy((pd_dtype)o->dtype, (pd_dtype)o->dtype, &l);
    }
    int64_t count = p.whole ? p.count : p.count * p.block, block = p.whole ? p.block : 1;
    const void *from = pd_packed(values, (char *)c->scratch + offsets_bytes(&p));
    if (a->accumulate)
        pd_here()->put_reduce(PD_FOLD_SUM, (pd_dtype)o->dtype, count, block, c->scratch, from, block * size,
                              pd_tensor_data(o));
    else pd_here()->put(count, (size_t)(block * size), c->scratch, from, block * size, pd_tensor_data(o));
    return PD_OK;
}

static void put_vjp(pd_vjp *v) {
    pd_tensor *in[2 + PD_MAX_DIMS], *g = v->g[0];
    int n = v->node->nin - 2;
    for (int i = 0; i < n; i++) in[2 + i] = pd_vjp_in(v, 2 + i);
    if (v->status) return;
    if (pd_vjp_needs(v, 1)) {
        in[1] = g;
        pd_vjp_set(v, 1, pd_x(v, PD_OP_index_front, v->attrs, 1 + n, in + 1));
    }
    if (!pd_vjp_needs(v, 0)) return;
    if (((const pd_put_attrs *)v->attrs)->accumulate) {
        pd_vjp_set(v, 0, g);
        return;
    }
    const pd_edge *e = &v->node->edges[1];
    in[0] = g;
    in[1] = pd_x_new(v, (pd_dtype)e->dtype, e->ndim, e->size);
    if (!in[1]) return;
    pd_fill(in[1], &(pd_scalar){.cat = PD_CAT_INT});
    pd_vjp_set(v, 0, pd_x(v, PD_OP_index_put_front, v->attrs, 2 + n, in));
}

const pd_op pd_op_index_put_front = {
    .sig = "index_put_front(Tensor input, Tensor values, Tensor[] indices, int order, bool accumulate)",
    .doc = "A copy of input with input[i0, i1, ...] = values (or +=), with int64 indices of the first dims.",
    .save = 0xfffc,
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(pd_put_attrs),
    .infer = put_infer,
    .kernel = put_kernel,
    .scratch = put_scratch,
    .vjp = put_vjp,
};

/* ---- any dimensions ---------------------------------------------------------------------------------------------- */

/* From the indices of each dimension (NULL: the whole dimension): the order that moves indexed dims to the front, and
   the list of indices without NULLs. */
static int to_front(const pd_tensor *x, pd_tensor *const *idx, int n, pd_ints *order, pd_tensor **list, int *first,
                    bool *together) {
    int count = 0, last = -1;
    order->n = 0;
    *first = 0;
    *together = true;
    for (int d = 0; d < n; d++) {
        if (!idx[d]) continue;
        if (!count) *first = d;
        else if (d != last + 1) *together = false;
        last = d;
        list[count++] = idx[d];
        order->v[order->n++] = d;
    }
    for (int d = 0; d < x->ndim; d++)
        if (d >= n || !idx[d]) order->v[order->n++] = d;
    return count;
}

static bool is_identity(const pd_ints *order) {
    for (int d = 0; d < order->n; d++)
        if (order->v[d] != d) return false;
    return true;
}

static pd_status permuted(pd_tensor *x, const pd_ints *order, pd_tensor **out) {
    if (!is_identity(order)) return pd_call1(PD_OP_permute, x, order, out);
    pd_tensor_retain(*out = x);
    return PD_OK;
}

static int64_t packed_order(const pd_ints *order, int n) {
    int64_t packed = 0;
    for (int j = 0; j < n; j++) packed |= order->v[j] << 4 * j;
    return packed;
}

/* The order of the result's dims. By NumPy's rule the index dims take the place of the indexed dims if those are
   neighbours, and come first otherwise. */
static void result_order(int nb, int rest, int first, bool together, pd_ints *order) {
    int lead = together ? first : 0;
    order->n = nb + rest;
    for (int d = 0; d < order->n; d++) order->v[d] = d < lead ? nb + d : d < lead + nb ? d - lead : d;
}

static pd_status take(pd_call *c) {
    pd_tensor *x = c->in[0], *idx[PD_MAX_DIMS], *in[1 + PD_MAX_DIMS], *got = NULL;
    pd_ints order, back;
    int n, first;
    bool together;
    PD_TRY(expand("index", x, c->in + 1, c->nin - 1, idx, &n));
    int count = to_front(x, idx, n, &order, in + 1, &first, &together);
    pd_status status = permuted(x, &order, &in[0]);
    if (status) goto done;
    if (count) {
        status = pd_apply(PD_DEF(index_front), in, 1 + count, &(int64_t){packed_order(&order, count)}, &got, NULL);
        if (!status) {
            int rest = x->ndim - count;
            result_order(got->ndim - rest, rest, first, together, &back);
            status = permuted(got, &back, &c->out[0]);
        }
    } else status = pd_call1(PD_OP_clone, x, NULL, &c->out[0]);
    pd_tensor_release(got);
    pd_tensor_release(in[0]);
done:
    for (int i = 0; i < n; i++) pd_tensor_release(idx[i]);
    return status;
}

static pd_status index_compose(pd_call *c) {
    const pd_device *was;
    pd_status status = pd_device_enter(c->in[0]->storage->device, &was); /* masks become positions there */
    PD_THEN(take(c));
    pd_device_here = was;
    return status;
}

const pd_op pd_op_index = {
    .sig = "index(Tensor input, Tensor?[] indices)",
    .doc =
        "input[indices]: one int64 or bool tensor for each dimension (None: all of it). The indices are broadcast "
        "against each other, as NumPy does.",
    .flags = PD_ANY_DEVICE,
    .compose = index_compose,
};

static pd_status put_compose(pd_call *c) {
    pd_tensor *x = c->in[0], *values = c->in[c->nin - 1], *copy;
    PD_TRY(pd_call1(PD_OP_clone, x, NULL, &copy));
    pd_status status = pd_index_put(copy, c->in + 1, c->nin - 2, values, *(const int64_t *)c->attrs);
    if (status) pd_tensor_release(copy);
    else c->out[0] = copy;
    return status;
}

static pd_status put(pd_tensor *x, pd_tensor *const *indices, int nindices, pd_tensor *values, bool accumulate) {
    pd_tensor *idx[PD_MAX_DIMS], *in[2 + PD_MAX_DIMS] = {0}, *wide = NULL, *cast = NULL, *near = NULL;
    pd_ints order, back, shape = {0}, undo;
    places p;
    int n, first;
    bool together;
    PD_TRY(pd_check_writable("index_put_", x));
    PD_TRY(expand("index_put_", x, indices, nindices, idx, &n));
    int count = to_front(x, idx, n, &order, in + 2, &first, &together);
    pd_status status = PD_OK;
    if (!count) {
        status = pd_fail(PD_E_INDEX, "index_put_: the list of indices has no tensor (expected at least one)");
        goto done;
    }
    PD_TRY_TO(done, permuted(x, &order, &in[0]));
    PD_TRY_TO(done, places_of("index_put_", in[0], in + 2, count, &p));
    int rest = x->ndim - count;
    for (int d = 0; d < p.ndim; d++) shape.v[d] = p.size[d];
    for (int d = 0; d < rest; d++) shape.v[p.ndim + d] = in[0]->size[count + d];
    result_order(p.ndim, rest, first, together, &back);
    undo.n = shape.n = back.n;
    for (int d = 0; d < back.n; d++) undo.v[back.v[d]] = d;
    pd_ints seen = {.n = shape.n}; /* the shape as the user sees it, to which values are broadcast */
    for (int d = 0; d < back.n; d++) seen.v[d] = shape.v[back.v[d]];
    if (values->dtype != x->dtype) {
        PD_TRY_TO(done, pd_engine.cast(values, (pd_dtype)x->dtype, &cast));
        values = cast;
    }
    if (!values->ndim && values->storage->device == &pd_device_cpu) { /* moved now: expanded, it is not 0-d */
        PD_TRY_TO(done, pd_move(values, x->storage->device, PD_NO_WAIT, &near));
        values = near;
    }
    PD_TRY_TO(done, pd_call1(PD_OP_expand, values, &seen, &wide));
    PD_TRY_TO(done, permuted(wide, &undo, &in[1]));
    PD_TRY_TO(done, pd_apply_into(PD_DEF(index_put_front), in, 2 + count,
                                  &(pd_put_attrs){packed_order(&order, count), accumulate}, in[0]));
done:
    pd_tensor_release(in[0]);
    pd_tensor_release(in[1]);
    pd_tensor_release(wide);
    pd_tensor_release(cast);
    pd_tensor_release(near);
    for (int i = 0; i < n; i++) pd_tensor_release(idx[i]);
    return status;
}

pd_status pd_index_put(pd_tensor *x, pd_tensor *const *indices, int nindices, pd_tensor *values, bool accumulate) {
    const pd_device *was;
    pd_status status = pd_device_enter(x->storage->device, &was); /* masks are searched there */
    PD_THEN(put(x, indices, nindices, values, accumulate));
    pd_device_here = was;
    return status;
}

const pd_op pd_op_index_put = {
    .sig = "index_put(Tensor input, Tensor?[] indices, Tensor values, bool accumulate=False)",
    .doc =
        "A copy of input with input[indices] = values. accumulate: += in the place of =, and repeated indices add up. "
        "values are broadcast.",
    .flags = PD_FUNC | PD_METHOD | PD_ANY_DEVICE,
    .attrs = sizeof(int64_t),
    .compose = put_compose,
};
