/* Rows that go to places, as tokens go to experts and back. place [N, k] says for each of N rows where its k copies are
   among M rows; -1: a copy is nowhere. The three ops are each other's gradients. */
#include <inttypes.h>

#include "ops/block.h"

enum { X, PLACE, WEIGHT };

static pd_status check_weight(const pd_call *c) {
    const pd_tensor *x = c->in[X], *place = c->in[PLACE], *w = c->nin > WEIGHT ? c->in[WEIGHT] : NULL;
    if (place->ndim != 2 || place->dtype != PD_I64)
        return pd_fail(PD_E_SHAPE, "%s: place is %s of shape %s (expected int64 [rows, copies])", c->def->name,
                       pd_dtype_name((pd_dtype)place->dtype), pd_tensor_shape(place));
    if (w && (w->dtype != x->dtype || w->ndim != 2 || w->size[0] != place->size[0] || w->size[1] != place->size[1]))
        return pd_fail(PD_E_SHAPE, "%s: weight is %s of shape %s (expected %s of place's shape %s)", c->def->name,
                       pd_dtype_name((pd_dtype)w->dtype), pd_tensor_shape(w), pd_dtype_name((pd_dtype)x->dtype),
                       pd_tensor_shape(place));
    return PD_OK;
}

static pd_status check_rows(const pd_call *c, int input) {
    PD_TRY(pd_check_float(c, input));
    return pd_check_ndim(c, input, 2);
}

/* A call's route with packed inputs. */
typedef struct job {
    pd_route r;
    const void *in[3];
    int64_t *from;
    bool once;
} job;

static size_t route_scratch(const pd_call *c, int64_t rows) {
    size_t bytes = (size_t)rows * 8 + 64;
    for (int i = 0; i < c->nin; i++)
        if (c->in[i] && !pd_tensor_is_contiguous(c->in[i])) bytes += pd_tensor_bytes(c->in[i]) + 64;
    return bytes;
}

/* rows: of the places; with_from: also who goes to each. */
static pd_status begin(const pd_call *c, const pd_tensor *place, int64_t rows, int64_t width, bool with_from, job *j) {
    char *at = c->scratch;
    pd_bad_index bad;
    *j = (job){.r = {place->size[0], place->size[1], rows, width, NULL}, .from = with_from ? c->scratch : NULL};
    at += (size_t)rows * 8;
    for (int i = 0; i < c->nin; i++) {
        if (!c->in[i]) continue;
        j->in[i] = pd_packed(c->in[i], at);
        if (j->in[i] == at) at += (pd_tensor_bytes(c->in[i]) + 63) / 64 * 64;
        if (c->in[i] == place) j->r.place = j->in[i];
    }
    return pd_here()->route(c->def->name, &j->r, j->from, &j->once, &bad) ? pd_bad_index_fail(&bad) : PD_OK;
}

static double route_work(const pd_call *c) { return ((double)c->in[0]->numel + (double)c->out[0]->numel) * 0.5; }

/* ---- to the places ----------------------------------------------------------------------------------------------- */

typedef struct { int64_t rows; } rows_attrs;

static pd_status dispatch_infer(pd_call *c) {
    const rows_attrs *a = c->attrs;
    const pd_tensor *x = c->in[X];
    PD_TRY(check_rows(c, X));
    PD_TRY(check_weight(c));
    if (a->rows < 0 || x->size[0] != c->in[PLACE]->size[0])
        return pd_fail(PD_E_SHAPE,
                       "%s: input has shape %s, place %s, and rows is %" PRId64
                       " (expected as many rows of both, and at least 0 rows)",
                       c->def->name, pd_tensor_shape(x), pd_tensor_shape(c->in[PLACE]), a->rows);
    return pd_out_shape(c, 0, (pd_dtype)x->dtype, 2, (int64_t[]){a->rows, x->size[1]});
}
static size_t dispatch_scratch(const pd_call *c) { return route_scratch(c, ((const rows_attrs *)c->attrs)->rows); }
static pd_status dispatch_kernel(const pd_call *c) {
    const pd_tensor *x = c->in[X];
    job j;
    PD_TRY(begin(c, c->in[PLACE], c->out[0]->size[0], x->size[1], true, &j));
    pd_here()->dispatch_rows((pd_dtype)x->dtype, &j.r, j.from, j.once, j.in[X], j.in[WEIGHT],
                             pd_tensor_data(c->out[0]));
    return PD_OK;
}
static void dispatch_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[0], *x = pd_vjp_in(v, X), *place = pd_vjp_in(v, PLACE), *w = pd_vjp_in(v, WEIGHT);
    if (pd_vjp_needs(v, X)) pd_vjp_set(v, X, pd_x(v, PD_OP_combine_rows, NULL, 3, (pd_tensor *[]){g, place, w}));
    if (pd_vjp_needs(v, WEIGHT))
        pd_vjp_set(v, WEIGHT, pd_x(v, PD_OP_row_products, NULL, 3, (pd_tensor *[]){x, g, place}));
}

const pd_op pd_op_dispatch_rows = {
    .sig = "dispatch_rows(Tensor input, Tensor place, int rows, Tensor? weight=None)",
    .doc =
        "Copies of the rows of input [N, D] at their places among `rows` rows, each times its weight; zeros where none "
        "goes. place [N, k] (int64): of the k copies of each row, -1 for none. weight [N, k]. Copies at one place are "
        "added.",
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(PLACE) | PD_SAVE_IN(WEIGHT),
    .flags = PD_FUNC | PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .attrs = sizeof(rows_attrs),
    .infer = dispatch_infer,
    .kernel = dispatch_kernel,
    .scratch = dispatch_scratch,
    .work = route_work,
    .vjp = dispatch_vjp,
};

/* ---- back from the places ---------------------------------------------------------------------------------------- */

static pd_status combine_infer(pd_call *c) {
    PD_TRY(check_rows(c, X));
    PD_TRY(check_weight(c));
    return pd_out_shape(c, 0, (pd_dtype)c->in[X]->dtype, 2, (int64_t[]){c->in[PLACE]->size[0], c->in[X]->size[1]});
}
static size_t combine_scratch(const pd_call *c) { return route_scratch(c, c->in[X]->size[0]); }
static pd_status combine_kernel(const pd_call *c) {
    const pd_tensor *x = c->in[X];
    job j;
    PD_TRY(begin(c, c->in[PLACE], x->size[0], x->size[1], false, &j));
    pd_here()->combine_rows((pd_dtype)x->dtype, &j.r, j.in[X], j.in[WEIGHT], pd_tensor_data(c->out[0]));
    return PD_OK;
}
static void combine_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[0], *x = pd_vjp_in(v, X), *place = pd_vjp_in(v, PLACE), *w = pd_vjp_in(v, WEIGHT);
    if (v->status) return;
    rows_attrs a = {x->size[0]};
    if (pd_vjp_needs(v, X)) pd_vjp_set(v, X, pd_x(v, PD_OP_dispatch_rows, &a, 3, (pd_tensor *[]){g, place, w}));
    if (pd_vjp_needs(v, WEIGHT))
        pd_vjp_set(v, WEIGHT, pd_x(v, PD_OP_row_products, NULL, 3, (pd_tensor *[]){g, x, place}));
}

const pd_op pd_op_combine_rows = {
    .sig = "combine_rows(Tensor input, Tensor place, Tensor? weight=None)",
    .doc =
        "For each row of place [N, k] (int64) the sum of the rows of input [M, D] at these places, each times its "
        "weight; -1 adds nothing. weight [N, k]. Undoes dispatch_rows.",
    .save = PD_SAVE_IN(X) | PD_SAVE_IN(PLACE) | PD_SAVE_IN(WEIGHT),
    .flags = PD_FUNC | PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .infer = combine_infer,
    .kernel = combine_kernel,
    .scratch = combine_scratch,
    .work = route_work,
    .vjp = combine_vjp,
};

/* ---- products of rows, which are the gradient of weights --------------------------------------------------------- */

static pd_status products_infer(pd_call *c) {
    const pd_tensor *x = c->in[0], *y = c->in[1], *place = c->in[2];
    PD_TRY(check_rows(c, 0));
    PD_TRY(check_rows(c, 1));
    if (place->dtype != PD_I64 || place->ndim != 2 || x->dtype != y->dtype || x->size[1] != y->size[1] ||
        x->size[0] != place->size[0])
        return pd_fail(PD_E_SHAPE, "%s: input has shape %s, other %s, place %s (expected [N, D], [M, D], int64 [N, k])",
                       c->def->name, pd_tensor_shape(x), pd_tensor_shape(y), pd_tensor_shape(place));
    return pd_out_shape(c, 0, (pd_dtype)x->dtype, 2, place->size);
}
static size_t products_scratch(const pd_call *c) { return route_scratch(c, c->in[1]->size[0]); }
static pd_status products_kernel(const pd_call *c) {
    job j;
    PD_TRY(begin(c, c->in[2], c->in[1]->size[0], c->in[0]->size[1], false, &j));
    pd_here()->row_products((pd_dtype)c->in[0]->dtype, &j.r, j.in[0], j.in[1], pd_tensor_data(c->out[0]));
    return PD_OK;
}
static void products_vjp(pd_vjp *v) {
    pd_tensor *g = v->g[0], *x = pd_vjp_in(v, 0), *y = pd_vjp_in(v, 1), *place = pd_vjp_in(v, 2);
    if (v->status) return;
    rows_attrs a = {y->size[0]};
    if (pd_vjp_needs(v, 0)) pd_vjp_set(v, 0, pd_x(v, PD_OP_combine_rows, NULL, 3, (pd_tensor *[]){y, place, g}));
    if (pd_vjp_needs(v, 1)) pd_vjp_set(v, 1, pd_x(v, PD_OP_dispatch_rows, &a, 3, (pd_tensor *[]){x, place, g}));
}

const pd_op pd_op_row_products = {
    .sig = "row_products(Tensor input, Tensor other, Tensor place)",
    .doc = "The scalar products of row n of input with the rows of other at place[n]; 0 for the place -1.",
    .save = PD_SAVE_IN(0) | PD_SAVE_IN(1) | PD_SAVE_IN(2),
    .flags = PD_NO_BROADCAST_GRAD | PD_CONTIGUOUS,
    .infer = products_infer,
    .kernel = products_kernel,
    .scratch = products_scratch,
    .work = route_work,
    .vjp = products_vjp,
};
