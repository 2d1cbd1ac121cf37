/* Order along one dimension: sort, running sums, flip. */
#include <string.h>

#include "base/threads.h"
#include "ops/block.h"
#include "ops/express.h"

static int last_of(const pd_tensor *x) { return x->ndim ? x->ndim - 1 : 0; }

/* ---- sort: indices first, values by them ------------------------------------------------------------------------- */

typedef struct { int64_t dim, descending; } sort_attrs;

static pd_block rows_of(const pd_tensor *x) {
    int64_t n = x->ndim ? x->size[x->ndim - 1] : 1;
    return (pd_block){n ? x->numel / n : 0, n, 1};
}
static size_t packed_end(const pd_call *c) { return (pd_packed_bytes(c) + 63) & ~(size_t)63; }
static size_t sort_scratch(const pd_call *c) {
    pd_block b = rows_of(c->in[0]);
    return packed_end(c) + pd_here()->sort_scratch(&b);
}
static pd_status sort_infer(pd_call *c) { return pd_out_like(c, 0, PD_I64, c->in[0]); }
static pd_status sort_kernel(const pd_call *c) {
    pd_block b = rows_of(c->in[0]);
    pd_here()->sort(((const sort_attrs *)c->attrs)->descending, (pd_dtype)c->in[0]->dtype, &b,
                    pd_packed(c->in[0], c->scratch), pd_tensor_data(c->out[0]), (char *)c->scratch + packed_end(c));
    return PD_OK;
}
static double sort_work(const pd_call *c) { return (double)c->in[0]->numel * 20; }

const pd_op pd_op_argsort_last = {
    .sig = "argsort_last(Tensor input, int dim, bool descending)",
    .doc = "argsort along the last dimension.",
    .flags = PD_CONTIGUOUS,
    .attrs = sizeof(sort_attrs),
    .infer = sort_infer,
    .kernel = sort_kernel,
    .scratch = sort_scratch,
    .work = sort_work,
};

static pd_status argsort(const char *op, pd_tensor *x, const sort_attrs *a, pd_tensor **out) {
    int dim;
    PD_TRY(pd_shape_dim(op, a->dim, x->ndim, &dim));
    if (dim == last_of(x)) return pd_call1(PD_OP_argsort_last, x, a, out);
    pd_dims2_attrs swap = {dim, last_of(x)};
    pd_vjp v = {0};
    pd_tensor *index = pd_x_call1(&v, PD_OP_argsort_last, pd_x_call1(&v, PD_OP_transpose, x, &swap), a);
    return pd_x_end(&v, pd_x_call1(&v, PD_OP_transpose, index, &swap), out);
}

typedef struct { int64_t dim, descending, stable; } stable_attrs;
static pd_status argsort_compose(pd_call *c) { return argsort("argsort", c->in[0], c->attrs, &c->out[0]); }
static pd_status sort_compose(pd_call *c) {
    const stable_attrs *a = c->attrs;
    pd_tensor *index;
    PD_TRY(argsort("sort", c->in[0], (const sort_attrs *)a, &index));
    pd_tensor *in[2] = {c->in[0], index};
    pd_status status = pd_apply(PD_DEF(gather), in, 2, &a->dim, &c->out[0], NULL);
    c->nout = 2;
    if (status) pd_tensor_release(index);
    else c->out[1] = index;
    return status;
}

const pd_op pd_op_argsort = {
    .sig = "argsort(Tensor input, int dim=-1, bool descending=False, bool stable=False)",
    .doc = "Indices (int64) that sort input along dim. Equal elements keep their order; NaN counts as largest.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(stable_attrs),
    .compose = argsort_compose,
};
const pd_op pd_op_sort = {
    .sig = "sort(Tensor input, int dim=-1, bool descending=False, bool stable=False)",
    .doc =
        "input sorted along dim, and the former index (int64) of each element. Equal elements keep their order; NaN "
        "counts as largest.",
    .names = "values indices",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(stable_attrs),
    .compose = sort_compose,
};

/* ---- gather and its gradient: index has input's dims, and chooses along one -------------------------------------- */

typedef struct { pd_ints size; int64_t dim; } spread_attrs;

static pd_status check_gather(const char *op, int ndim, const int64_t *size, const pd_tensor *index, int64_t dim,
                              int *d) {
    PD_TRY(pd_shape_dim(op, dim, ndim, d));
    if (index->dtype != PD_I64 && index->dtype != PD_I32)
        return pd_fail(PD_E_DTYPE, "%s: index is %s (expected int64)", op, pd_dtype_name((pd_dtype)index->dtype));
    bool fits = index->ndim == ndim || (index->ndim <= 1 && ndim <= 1);
    for (int i = 0; i < ndim && fits && index->numel; i++)
        fits = i == *d || (index->ndim ? index->size[i] : 1) <= size[i];
    if (!fits)
        return pd_fail(PD_E_SHAPE,
                       "%s: input has shape %s, index %s (expected the same number of dims, and sizes of index not "
                       "above input's except in dimension %d)",
                       op, pd_shape_text(ndim, size), pd_tensor_shape(index), *d);
    return PD_OK;
}

/* How many adjacent elements of x each index along d chooses: an index that was expanded stays the same along the
   last dimensions, and if it covers all of x there, their elements form a block. *dims: the index's dimensions before
   them. */
static int64_t block_chosen(const pd_tensor *x, const pd_tensor *index, int d, int *dims) {
    int64_t block = 1;
    for (*dims = index->ndim; *dims - 1 > d && index->numel; --*dims) {
        const int k = *dims - 1;
        if (index->size[k] != x->size[k] || (x->size[k] > 1 && (index->stride[k] || x->stride[k] != block))) break;
        block *= x->size[k];
    }
    return block;
}

/* The byte offsets of the blocks that the indices choose in x. *block: elements of one. */
static pd_places choices(const char *op, const pd_tensor *x, const pd_tensor *index, int d, int64_t *block) {
    const int64_t bytes = (int64_t)pd_dtype_size((pd_dtype)x->dtype);
    pd_places c;
    int dims;
    *block = block_chosen(x, index, d, &dims);
    c.op = op, c.kind = PD_BAD_INDEX, c.nby = 1, c.ndim = dims, c.first = c.base = 0, c.count = index->numel / *block;
    c.by[0] = (pd_chooser){.index = pd_tensor_data(index),
                           .narrow = index->dtype == PD_I32,
                           .n = x->ndim ? x->size[d] : 1,
                           .step = x->ndim ? x->stride[d] * bytes : 0,
                           .skip = -1,
                           .dim = d};
    for (int k = 0; k < dims; k++) {
        c.size[k] = index->size[k];
        c.own[k] = k != d && x->ndim ? x->stride[k] * bytes : 0;
        c.by[0].stride[k] = index->stride[k];
    }
    return c;
}

/* How many chosen blocks the CPU takes, or folds into, at a time, so that their offsets stay in the first-level cache.
   On a device, where each call is a launch, all are done at once. */
enum { AT_ONCE = 1024 };
typedef struct chosen_job {
    const pd_places *places;
    pd_dtype t;
    int64_t block, bytes; /* of a block: elements, bytes */
    const char *from;     /* NULL: what stands there is to begin anew (put_reduce) */
    char *to;
    bool put;
    pd_fold how;
    int64_t together; /* blocks that one thread takes, in order */
    int64_t *room;    /* for all places, or NULL */
    bool failed;
    pd_bad_index *bad;
} chosen_job;
static void chosen_part(void *ctx, int64_t begin, int64_t end) {
    chosen_job *j = ctx;
    begin *= j->together, end *= j->together;
    int64_t some[AT_ONCE], *place = j->room ? j->room : some, most = j->room ? end - begin : AT_ONCE;
    pd_places c = *j->places;
    for (c.first = begin; c.first < end; c.first += c.count) {
        pd_bad_index bad;
        c.count = end - c.first < most ? end - c.first : most;
        if (!pd_here()->places(&c, place, j->bad ? j->bad : &bad)) {
            __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
            return;
        }
        if (j->bad) continue; /* this pass only looks for bad indices */
        const char *from = j->from ? j->from + c.first * j->bytes : NULL;
        if (j->put) pd_here()->put_reduce(j->how, j->t, c.count, j->block, place, from, j->bytes, j->to);
        else pd_here()->take(c.count, (size_t)j->bytes, place, j->from, j->to + c.first * j->bytes);
    }
}
static pd_status run_chosen(chosen_job *j) {
    pd_bad_index bad;
    if (!j->together || j->places->count <= 0) return PD_OK;
    const int64_t n = j->places->count / j->together;
    if (j->room) chosen_part(j, 0, n);
    else pd_parallel(n, 1 + PD_GRAIN / 4 / (j->together * j->block), chosen_part, j);
    if (!j->failed) return PD_OK;
    j->bad = &bad; /* the first one */
    chosen_part(j, 0, n);
    return pd_bad_index_fail(&bad);
}
/* Bytes for all offsets, on devices where a call is a launch. */
static size_t room_for(const pd_tensor *index) {
    return pd_device_here->kernels ? ((size_t)index->numel * 8 + 63) & ~(size_t)63 : 0;
}

static pd_status gather_infer(pd_call *c) {
    int d;
    PD_TRY(check_gather("gather", c->in[0]->ndim, c->in[0]->size, c->in[1], *(const int64_t *)c->attrs, &d));
    return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[1]);
}
static size_t gather_scratch(const pd_call *c) { return room_for(c->in[1]); }
static pd_status gather_kernel(const pd_call *c) {
    pd_tensor *x = c->in[0];
    int d;
    PD_TRY(pd_shape_dim("gather", *(const int64_t *)c->attrs, x->ndim, &d));
    chosen_job j = {.from = pd_tensor_data(x),
                    .to = pd_tensor_data(c->out[0]),
                    .together = 1,
                    .room = pd_device_here->kernels ? c->scratch : NULL};
    const pd_places places = choices("gather", x, c->in[1], d, &j.block);
    j.places = &places, j.bytes = j.block * (int64_t)pd_dtype_size((pd_dtype)x->dtype);
    return run_chosen(&j);
}
static void gather_vjp(pd_vjp *v) {
    const pd_edge *e = &v->node->edges[0];
    spread_attrs a = {.size = {.n = e->ndim}, .dim = *(const int64_t *)v->attrs};
    memcpy(a.size.v, e->size, sizeof(int64_t) * (size_t)e->ndim);
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_gather_grad, v->g[0], pd_vjp_in(v, 1), &a));
}

const pd_op pd_op_gather = {
    .sig = "gather(Tensor input, int dim, Tensor index)",
    .doc = "The elements of input at index (int64) along dim: out[i][j] = input[index[i][j]][j] for dim 0, and so on.",
    .save = PD_SAVE_IN(1),
    .flags = PD_FUNC | PD_METHOD | PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(int64_t),
    .infer = gather_infer,
    .kernel = gather_kernel,
    .scratch = gather_scratch,
    .vjp = gather_vjp,
};

static pd_status spread_infer(pd_call *c) {
    const spread_attrs *a = c->attrs;
    return pd_out_shape(c, 0, (pd_dtype)c->in[0]->dtype, (int)a->size.n, a->size.v);
}
/* Folds `from` into o at the index along dim; anew: without what stands there. *room gets the offsets. */
static pd_status put_chosen(const char *op, pd_fold how, bool anew, pd_tensor *o, const void *from,
                            const pd_tensor *index, int64_t dim, void *room) {
    int d;
    PD_TRY(pd_shape_dim(op, dim, o->ndim, &d));
    chosen_job j = {.t = (pd_dtype)o->dtype,
                    .to = pd_tensor_data(o),
                    .put = true,
                    .how = how,
                    .room = pd_device_here->kernels ? room : NULL};
    const pd_places places = choices(op, o, index, d, &j.block);
    j.places = &places, j.bytes = j.block * (int64_t)pd_dtype_size(j.t);
    j.together = places.count; /* elements of different outer indices never meet */
    if (d > 0 && !j.room && index->size[0] > 0) j.together /= index->size[0];
    if (anew) PD_TRY(run_chosen(&j));
    j.from = from;
    return run_chosen(&j);
}
static size_t spread_scratch(const pd_call *c) { return room_for(c->in[1]) + pd_packed_bytes(c); }
static pd_status spread_kernel(const pd_call *c) {
    const spread_attrs *a = c->attrs;
    pd_tensor *g = c->in[0], *index = c->in[1];
    const char *from = pd_packed(g, (char *)c->scratch + room_for(index));
    pd_fill(c->out[0], &(pd_scalar){.cat = PD_CAT_INT});
    return put_chosen("gather_grad", PD_FOLD_SUM, false, c->out[0], from, index, a->dim, c->scratch);
}
static void spread_vjp(pd_vjp *v) {
    const spread_attrs *a = v->attrs;
    pd_vjp_set(v, 0, pd_x_call2(v, PD_OP_gather, v->g[0], pd_vjp_in(v, 1), &a->dim));
}

const pd_op pd_op_gather_grad = {
    .sig = "gather_grad(Tensor g, Tensor index, int[] size, int dim)",
    .doc = "The gradient of gather: zeros of shape `size`, to which g is added at index along dim.",
    .save = PD_SAVE_IN(1),
    .flags = PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(spread_attrs),
    .infer = spread_infer,
    .kernel = spread_kernel,
    .scratch = spread_scratch,
    .vjp = spread_vjp,
};

/* ---- scatter: what gather takes, put ----------------------------------------------------------------------------- */

/* how: scatter_reduce's word; self: what stands there counts. */
typedef struct { int64_t dim, how, self; } scatter_attrs;
enum { SUM, PROD, MEAN, AMAX, AMIN };
#define SCATTER_ATTRS "int dim, enum(sum|prod|mean|amax|amin) reduce=sum, bool include_self=True"

static pd_status scatter_infer(pd_call *c) { return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]); }
static size_t scatter_scratch(const pd_call *c) {
    return room_for(c->in[2]) + (pd_tensor_is_contiguous(c->in[1]) ? 0 : pd_tensor_bytes(c->in[1]));
}
static pd_status scatter_kernel(const pd_call *c) {
    static const pd_fold folds[] = {
        [SUM] = PD_FOLD_SUM, [PROD] = PD_FOLD_PROD, [AMAX] = PD_FOLD_MAX, [AMIN] = PD_FOLD_MIN};
    const scatter_attrs *a = c->attrs;
    pd_tensor *o = c->out[0], *pair[2] = {o, c->in[0]};
    const void *from = pd_packed(c->in[1], (char *)c->scratch + room_for(c->in[2]));
    pd_loop l;
    pd_loop_build(&l, 2, pair);
    pd_here()->copy((pd_dtype)o->dtype, (pd_dtype)o->dtype, &l);
    return put_chosen("scatter", folds[a->how], !a->self, o, from, c->in[2], a->dim, c->scratch);
}

static pd_val gathered(pd_vjp *v, pd_val x, pd_tensor *index, const scatter_attrs *a) {
    return pd_val_of(pd_x_call2(v, PD_OP_gather, x.t, index, &a->dim));
}
static pd_val scattered(pd_vjp *v, pd_op_id op, pd_val x, pd_val src, pd_tensor *index, scatter_attrs a) {
    pd_tensor *in[3] = {x.t, src.t, index};
    return pd_val_of(x.ok && src.ok ? pd_x(v, op, &a, 3, in) : NULL);
}
/* A number of t's dtype, as large as `like`, without memory. */
static pd_val all_of(pd_vjp *v, double number, const pd_tensor *t, const pd_tensor *like) {
    pd_tensor *cell = pd_x_new(v, (pd_dtype)t->dtype, 0, NULL);
    pd_ints size = {.n = like->ndim};
    const pd_scalar s = pd_number(number);
    if (!cell) return (pd_val){0};
    memcpy(size.v, like->size, sizeof(int64_t) * (size_t)like->ndim);
    pd_fill(cell, &s);
    return pd_val_of(pd_x_call1(v, PD_OP_expand, cell, &size));
}
/* The gradient of input, g being what it would be if all of it counted. */
static void set_own(pd_vjp *v, pd_val g, pd_tensor *index, const scatter_attrs *a) {
    if (!pd_vjp_needs(v, 0) || !g.ok) return;
    if (!a->self)
        g = scattered(v, PD_OP_scatter_sum, g, all_of(v, 0, g.t, index), index, (scatter_attrs){a->dim, SUM, 0});
    pd_vjp_set(v, 0, g.t);
}
static void scatter_vjp(pd_vjp *v) {
    const scatter_attrs *a = v->attrs;
    pd_tensor *index = pd_vjp_in(v, 2);
    set_own(v, pd_val_of(v->g[0]), index, a);
    if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, gathered(v, pd_val_of(v->g[0]), index, a).t);
}

const pd_op pd_op_scatter_sum = {
    .sig = "scatter_sum(Tensor input, Tensor src, Tensor index, " SCATTER_ATTRS ")",
    .doc = "scatter_add, where src is as large as index.",
    .save = PD_SAVE_IN(2),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(scatter_attrs),
    .infer = scatter_infer,
    .kernel = scatter_kernel,
    .scratch = scatter_scratch,
    .vjp = scatter_vjp,
};

#define EQ(p, q, a, b) pd_x_where(v, PD_OP_eq, p, q, a, b)
/* 1 where x equals y, else 0. */
static pd_val equal(pd_vjp *v, pd_val x, pd_val y) { return EQ(x, y, all_of(v, 1, x.t, x.t), all_of(v, 0, x.t, x.t)); }
/* All elements that equal the result share its gradient equally. PyTorch counts input's own element among them even if
   include_self is false. */
static void extreme_shares(pd_vjp *v, pd_val g, pd_val x, pd_val src, pd_tensor *index, const scatter_attrs *a) {
    const scatter_attrs sum = {a->dim, SUM, 1};
    pd_val y = pd_val_of(pd_vjp_out(v, 0));
    pd_val mine = equal(v, x, y), theirs = equal(v, src, gathered(v, y, index, a));
    pd_val share = DIV(g, scattered(v, PD_OP_scatter_sum, mine, theirs, index, sum));
    set_own(v, MUL(mine, share), index, a);
    if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, MUL(theirs, gathered(v, share, index, a)).t);
}
/* The product of the others: the result over the element, or, of the only 0, the product with a 1 in its place. */
static void product_of_others(pd_vjp *v, pd_val g, pd_val x, pd_val src, pd_tensor *index, const scatter_attrs *a) {
    const scatter_attrs sum = {a->dim, SUM, 1};
    const pd_op_id op = PD_OP_scatter_fold;
    if (pd_vjp_needs(v, 0)) {
        pd_val own = EQ(x, C(0), C(1), x);
        set_own(v, DIV(MUL(g, scattered(v, op, own, src, index, *a)), own), index, a);
    }
    if (!pd_vjp_needs(v, 1)) return;
    pd_val zero = equal(v, src, C(0));
    pd_val zeros = gathered(v, scattered(v, PD_OP_scatter_sum, all_of(v, 0, x.t, x.t), zero, index, sum), index, a);
    pd_val only = MUL(zero, EQ(zeros, C(1), C(1), C(0)));
    pd_val without = scattered(v, op, x, EQ(only, C(1), C(1), src), index, *a);
    pd_val over = DIV(gathered(v, MUL(g, pd_val_of(pd_vjp_out(v, 0))), index, a), EQ(src, C(0), C(1), src));
    pd_vjp_set(v, 1, EQ(only, C(1), gathered(v, MUL(g, without), index, a), over).t);
}
static void fold_vjp(pd_vjp *v) {
    const scatter_attrs *a = v->attrs;
    pd_val x = pd_val_of(pd_vjp_in(v, 0)), src = pd_val_of(pd_vjp_in(v, 1));
    pd_tensor *index = pd_vjp_in(v, 2);
    if (v->status) return;
    (a->how == PROD ? product_of_others : extreme_shares)(v, pd_val_of(v->g[0]), x, src, index, a);
}

const pd_op pd_op_scatter_fold = {
    .sig = "scatter_fold(Tensor input, Tensor src, Tensor index, " SCATTER_ATTRS ")",
    .doc = "scatter_reduce to products, maxima or minima, of src as large as index.",
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1) | PD_SAVE_IN(2) | PD_SAVE_OUT(0),
    .flags = PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(scatter_attrs),
    .infer = scatter_infer,
    .kernel = scatter_kernel,
    .scratch = scatter_scratch,
    .vjp = fold_vjp,
};

/* src as far as index reaches, and of its dims. */
static pd_tensor *src_at(pd_vjp *v, pd_tensor *src, const pd_tensor *index) {
    for (int k = 0; k < src->ndim; k++) {
        struct { int64_t dim, start, end, step; } part = {k, 0, index->ndim ? index->size[k] : 1, 1};
        if (part.end < src->size[k]) src = pd_x_call1(v, PD_OP_slice, src, &part);
        if (!src) return NULL;
    }
    pd_shape_attrs same = {.shape = {.n = index->ndim}}; /* one element, of 0 or 1 dimensions */
    memcpy(same.shape.v, index->size, sizeof(int64_t) * (size_t)index->ndim);
    return src->ndim == index->ndim ? src : pd_x_call1(v, PD_OP_reshape, src, &same);
}

/* total over how many elements there are in each of its places. */
static pd_val mean_of(pd_vjp *v, pd_val total, const pd_tensor *src, pd_tensor *index, const scatter_attrs *a) {
    if (!total.ok) return total;
    pd_val count = scattered(v, PD_OP_scatter_sum, all_of(v, a->self ? 1 : 0, total.t, total.t), all_of(v, 1, src, src),
                             index, (scatter_attrs){a->dim, SUM, 1});
    count = EQ(count, C(0), all_of(v, 1, total.t, total.t), count);
    const bool whole = pd_dtype_category((pd_dtype)total.t->dtype) < PD_CAT_FLOAT;
    return pd_x2(v, whole ? PD_OP_floor_divide : PD_OP_div, total, count);
}

static pd_status scatter_check(const char *op, const pd_tensor *x, const pd_tensor *index, const pd_tensor *src,
                               const scatter_attrs *a) {
    const pd_dtype t = (pd_dtype)x->dtype;
    int d;
    if (src->dtype != x->dtype)
        return pd_fail(PD_E_DTYPE, "%s: src is %s, input %s (expected the same)", op,
                       pd_dtype_name((pd_dtype)src->dtype), pd_dtype_name(t));
    if ((a->how == MEAN && t == PD_BOOL) || (a->how > MEAN && pd_dtype_is_complex(t)))
        return pd_fail(PD_E_DTYPE, "%s: input is %s (expected %s)", op, pd_dtype_name(t),
                       a->how == MEAN ? "numbers for the mean" : "real numbers for amax and amin");
    PD_TRY(check_gather(op, x->ndim, x->size, index, a->dim, &d));
    bool fits = !index->numel || (src->ndim ? src->ndim : 1) == (index->ndim ? index->ndim : 1);
    for (int k = 0; k < index->ndim && fits && index->numel; k++)
        fits = index->size[k] <= (src->ndim ? src->size[k] : 1);
    if (!fits)
        return pd_fail(PD_E_SHAPE, "%s: index has shape %s, src %s (expected index to fit into src)", op,
                       pd_tensor_shape(index), pd_tensor_shape(src));
    return PD_OK;
}

/* 16-bit floats add up in float, as PyTorch's. */
static pd_status scatter_compose(pd_call *c) {
    pd_tensor *x = c->in[0], *index = c->in[1], *src = c->in[2];
    const scatter_attrs *a = c->attrs;
    pd_vjp scope = {0}, *v = &scope;
    PD_TRY(scatter_check(c->def->name, x, index, src, a));
    if (!index->numel) return pd_call1(PD_OP_clone, x, NULL, &c->out[0]);
    const bool half = x->dtype == PD_F16 || x->dtype == PD_BF16;
    const pd_op_id op = a->how == SUM || a->how == MEAN ? PD_OP_scatter_sum : PD_OP_scatter_fold;
    scatter_attrs to = *a;
    if (a->how == MEAN) to.how = SUM;
    if (!(src = src_at(v, src, index))) return pd_x_end(v, NULL, &c->out[0]);
    pd_tensor *own = half ? pd_x_call1(v, PD_OP_cast, x, &(pd_cast_attrs){PD_F32}) : x;
    pd_tensor *from = half ? pd_x_call1(v, PD_OP_cast, src, &(pd_cast_attrs){PD_F32}) : src;
    pd_val y = scattered(v, op, pd_val_of(own), pd_val_of(from), index, to);
    if (half) y = pd_val_of(pd_x_call1(v, PD_OP_cast, y.t, &(pd_cast_attrs){x->dtype}));
    if (a->how == MEAN) y = mean_of(v, y, src, index, a);
    return pd_x_end(v, y.t, &c->out[0]);
}

static pd_status compose_as(pd_call *c, scatter_attrs a) {
    pd_call as = *c;
    as.attrs = &a;
    pd_status status = scatter_compose(&as);
    c->out[0] = as.out[0];
    return status;
}
static pd_status scatter_add_compose(pd_call *c) {
    return compose_as(c, (scatter_attrs){*(const int64_t *)c->attrs, SUM, 1});
}
static pd_status scatter_reduce_compose(pd_call *c) {
    scatter_attrs a = *(const scatter_attrs *)c->attrs;
    if (a.how > AMIN) a.how -= 2; /* max and min are other names */
    return compose_as(c, a);
}

const pd_op pd_op_scatter_add = {
    .sig = "scatter_add(Tensor input, int dim, Tensor index, Tensor src)",
    .doc = "A copy of input with out[index[i][j]][j] += src[i][j] for dim 0, and so on.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(int64_t),
    .compose = scatter_add_compose,
};
const pd_op pd_op_scatter_reduce = {
    .sig =
        "scatter_reduce(Tensor input, int dim, Tensor index, Tensor src, enum(sum|prod|mean|amax|amin|max|min) reduce, "
        "bool include_self=True)",
    .doc =
        "A copy of input in which the elements of src with index[i][j] (for dim 0, and so on) become one: their sum, "
        "product, mean, maximum or minimum, input's own element among them unless include_self is False.",
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(scatter_attrs),
    .compose = scatter_reduce_compose,
};

/* ---- running sums ------------------------------------------------------------------------------------------------ */

typedef struct { int64_t dim, dtype; } cumsum_attrs;
typedef struct { int64_t dim, reverse; } running_attrs;

static pd_status running_infer(pd_call *c) {
    pd_dtype t = (pd_dtype)c->in[0]->dtype;
    return pd_out_like(c, 0, pd_dtype_category(t) >= PD_CAT_FLOAT ? t : PD_I64, c->in[0]);
}
static pd_status running_kernel(const pd_call *c) {
    const running_attrs *a = c->attrs;
    pd_tensor *x = c->in[0];
    pd_block b = {1, 1, 1};
    int dim;
    PD_TRY(pd_shape_dim("cumsum", a->dim, x->ndim, &dim));
    for (int d = 0; d < x->ndim; d++) *(d < dim ? &b.outer : d == dim ? &b.n : &b.inner) *= x->size[d];
    pd_dtype t = (pd_dtype)x->dtype, out = (pd_dtype)c->out[0]->dtype;
    if (pd_dtype_is_complex(t)) t = out = pd_dtype_part(t), b.inner *= 2;
    pd_here()->cumsum(a->reverse, t, out, &b, pd_packed(x, c->scratch), pd_tensor_data(c->out[0]));
    return PD_OK;
}
static void running_vjp(pd_vjp *v) {
    running_attrs back = *(const running_attrs *)v->attrs;
    back.reverse = !back.reverse;
    pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_running_sum, v->g[0], &back));
}

const pd_op pd_op_running_sum = {
    .sig = "running_sum(Tensor input, int dim, bool reverse)",
    .doc = "The sums of all elements up to each (reverse: from each on) along dim.",
    .flags = PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(running_attrs),
    .infer = running_infer,
    .kernel = running_kernel,
    .scratch = pd_packed_bytes,
    .vjp = running_vjp,
};

static pd_status cumsum_compose(pd_call *c) {
    const cumsum_attrs *given = c->attrs;
    running_attrs a = {given->dim, 0};
    pd_tensor *sums;
    int dim;
    PD_TRY(pd_shape_dim("cumsum", a.dim, c->in[0]->ndim, &dim));
    PD_TRY(pd_call1(PD_OP_running_sum, c->in[0], &a, &sums));
    if (given->dtype == PD_NO_DTYPE || given->dtype == sums->dtype) {
        c->out[0] = sums;
        return PD_OK;
    }
    pd_status status = pd_call1(PD_OP_cast, sums, &(pd_cast_attrs){given->dtype}, &c->out[0]); /* summed in int64 */
    pd_tensor_release(sums);
    return status;
}

const pd_op pd_op_cumsum = {
    .sig = "cumsum(Tensor input, int dim, dtype dtype=None)",
    .doc = "The cumulative sum along dim: the sum of all elements up to each. Integers and bool give int64.",
    .promote = PD_GIVEN,
    .cast = PD_CAST_FP32_CUDA,
    .flags = PD_FUNC | PD_METHOD,
    .attrs = sizeof(cumsum_attrs),
    .compose = cumsum_compose,
};

/* ---- flip -------------------------------------------------------------------------------------------------------- */

static pd_status flip_infer(pd_call *c) {
    unsigned bits;
    const pd_ints *dims = c->attrs;
    if (dims->n) PD_TRY(pd_dims_of("flip", dims, c->in[0]->ndim, &bits));
    return pd_out_like(c, 0, (pd_dtype)c->in[0]->dtype, c->in[0]);
}
static pd_status flip_kernel(const pd_call *c) {
    pd_tensor from = *c->in[0], *pair[2] = {c->out[0], &from};
    const pd_ints *dims = c->attrs;
    unsigned bits = 0;
    pd_loop l;
    if (dims->n) PD_TRY(pd_dims_of("flip", dims, from.ndim, &bits));
    for (int d = 0; d < from.ndim && from.numel; d++)
        if (bits >> d & 1) {
            from.offset += (from.size[d] - 1) * from.stride[d];
            from.stride[d] = -from.stride[d];
        }
    pd_loop_build(&l, 2, pair);
    pd_here()->copy((pd_dtype)from.dtype, (pd_dtype)from.dtype, &l);
    return PD_OK;
}
static void flip_vjp(pd_vjp *v) { pd_vjp_set(v, 0, pd_x_call1(v, PD_OP_flip, v->g[0], v->attrs)); }

const pd_op pd_op_flip = {
    .sig = "flip(Tensor input, int[] dims)",
    .doc = "A copy of input with the order of elements along dims reversed.",
    .flags = PD_FUNC | PD_METHOD | PD_NO_BROADCAST_GRAD,
    .attrs = sizeof(pd_ints),
    .infer = flip_infer,
    .kernel = flip_kernel,
    .vjp = flip_vjp,
};

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static pd_status not_compose(pd_call *c) {
    struct {
        pd_scalar x, y;
    } ones = {{.cat = -1}, {.d = -1, .i = -1, .cat = PD_CAT_INT}}, no = {{.cat = -1}, {.cat = PD_CAT_BOOL}};
    pd_tensor *in[2] = {c->in[0], NULL};
    if (pd_dtype_is_float((pd_dtype)in[0]->dtype))
        return pd_fail(PD_E_DTYPE, "bitwise_not: the input is %s (expected integers or bool)",
                       pd_dtype_name((pd_dtype)in[0]->dtype));
    bool is_bool = in[0]->dtype == PD_BOOL;
    return pd_apply(is_bool ? PD_DEF(eq) : PD_DEF(bitwise_xor), in, 2, is_bool ? &no : &ones, &c->out[0], NULL);
}

const pd_op pd_op_bitwise_not = {
    .sig = "bitwise_not(Tensor input)",
    .doc = "Inverts every bit of integers; for bool the logical not.",
    .flags = PD_FUNC | PD_METHOD,
    .compose = not_compose,
};
static pd_status logical_not_compose(pd_call *c) {
    struct { pd_scalar x, y; } no = {{.cat = -1}, {.cat = PD_CAT_BOOL}};
    pd_tensor *in[2] = {c->in[0], NULL};
    return pd_apply(PD_DEF(eq), in, 2, &no, &c->out[0], NULL);
}
const pd_op pd_op_logical_not = {
    .sig = "logical_not(Tensor input)",
    .doc = "True where input is 0.",
    .flags = PD_FUNC | PD_METHOD,
    .compose = logical_not_compose,
};
