#include "parallel/move.h"

#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "ops/ops.h"
#include "parallel/shares.h"

#define OP "redistribute"

/* ---- life -------------------------------------------------------------------------------------------------------- */

pd_status pd_moves_new(int there, int back, pd_moves **out) {
    pd_moves *m;
    PD_TRY(pd_calloc(sizeof *m, OP, &m));
    pd_status status = pd_calloc(sizeof(pd_step) * (size_t)(there + 1), OP, &m->steps[0]);
    PD_THEN(pd_calloc(sizeof(pd_step) * (size_t)(back + 1), OP, &m->steps[1]));
    m->refs = 1;
    m->n[0] = there;
    m->n[1] = back;
    if (status)
        pd_moves_release(m);
    else
        *out = m;
    return status;
}

void pd_moves_release(pd_moves *m) {
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) > 1) return;
    for (int way = 0; way < 2; way++) {
        for (int i = 0; m->steps[way] && i < m->n[way]; i++) {
            pd_free(m->steps[way][i].sizes);
            pd_free(m->steps[way][i].other_sizes);
            if (m->steps[way][i].group) pd_group_release(m->steps[way][i].group);
        }
        pd_free(m->steps[way]);
    }
    pd_free(m);
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* [new] indices [from, from + size) of t along dim: the same memory, no autograd. */
static pd_status narrow(const pd_tensor *t, int dim, int64_t from, int64_t size, pd_tensor **out) {
    PD_TRY(pd_tensor_alias(t, false, out));
    pd_tensor *v = *out;
    pd_tensor_set_spread(v, NULL);
    v->numel = v->size[dim] ? v->numel / v->size[dim] * size : 0;
    v->size[dim] = size;
    v->offset += from * v->stride[dim];
    return PD_OK;
}

/* [new] contiguous, of t's shape but for dimension dim. */
static pd_status resized(const pd_tensor *t, int dim, int64_t size, pd_tensor **out) {
    int64_t shape[PD_MAX_DIMS];
    memcpy(shape, t->size, sizeof shape);
    if (dim >= 0) shape[dim] = size;
    return pd_tensor_new(OP, (pd_dtype)t->dtype, t->ndim, shape, out);
}

/* The dtype in which elements travel, and how many of them an element is. */
static pd_dtype wire(int t, int64_t *each) {
    *each = pd_dtype_is_complex((pd_dtype)t) ? 2 : 1;
    return t == PD_BOOL ? PD_U8 : pd_dtype_part((pd_dtype)t);
}

static int64_t sum_of(const int64_t *sizes, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += sizes[i];
    return sum;
}

/* Elements for each index of dim. */
static int64_t per_index(const pd_tensor *t, int dim) {
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++) n *= d == dim ? 1 : t->size[d];
    return n;
}

static bool leads(const pd_tensor *t, int dim) { /* no dimension before dim has several indices */
    for (int d = 0; d < dim; d++)
        if (t->size[d] != 1) return false;
    return true;
}

/* parts[r]: where rank r's piece of `sizes[r]` indices lies, one after the other from `at`. */
static void lay(pd_part *parts, int n, char *at, const int64_t *sizes, int64_t elements, size_t bytes) {
    for (int r = 0; r < n; r++) {
        parts[r] = (pd_part){.data = at, .count = sizes[r] * elements};
        at += (size_t)parts[r].count * bytes;
    }
}

/* Copies between t and pieces that are cut from it along dim, each contiguous, one after the other in `flat`. */
static pd_status copy_pieces(pd_tensor *t, int dim, const int64_t *sizes, int n, pd_tensor *flat, bool out_of) {
    int64_t from = 0, at = 0;
    pd_status status = PD_OK;
    for (int r = 0; r < n && !status; r++) {
        pd_tensor *piece = NULL, *packed = NULL;
        status = narrow(t, dim, from, sizes[r], &piece);
        if (!status && piece->numel) {
            status = pd_tensor_within(flat, at, piece, &packed);
            PD_THEN(out_of ? pd_engine.copy_into(packed, piece) : pd_engine.copy_into(piece, packed));
            at += piece->numel;
        }
        from += sizes[r];
        pd_tensor_release(packed);
        pd_tensor_release(piece);
    }
    return status;
}

/* Ends a step: *out gets what it made, unless it has failed. */
static pd_status give(pd_status status, pd_tensor *made, pd_tensor **out) {
    if (status)
        pd_tensor_release(made);
    else
        *out = made;
    return status;
}

/* [new] t's pieces along dim, one after the other: t itself if they lie so. */
static pd_status pack(pd_tensor *t, int dim, const int64_t *sizes, int n, pd_tensor **out) {
    if (pd_tensor_is_contiguous(t) && leads(t, dim)) {
        pd_tensor_retain(*out = t);
        return PD_OK;
    }
    pd_tensor *flat;
    PD_TRY(pd_tensor_new(OP, (pd_dtype)t->dtype, 1, &t->numel, &flat));
    return give(copy_pieces(t, dim, sizes, n, flat, true), flat, out);
}

/* [new] where pieces of `made` along dim may come in, one after the other: `made` itself if they lie so. */
static pd_status room_for(pd_tensor *made, int dim, pd_tensor **out) {
    if (!leads(made, dim)) return pd_tensor_new(OP, (pd_dtype)made->dtype, 1, &made->numel, out);
    pd_tensor_retain(*out = made);
    return PD_OK;
}

/* A call that may wait for peers, without the host's lock if it moves much; nothing on meta, where no data is. */
#define MOVE(t, call)                                                                         \
    do {                                                                                      \
        if ((t)->storage->device == &pd_device_meta) break;                                   \
        void *token_ = (double)pd_tensor_bytes(t) > PD_RELEASE_NS ? pd_host_release() : NULL; \
        status = (call);                                                                      \
        pd_host_acquire(token_);                                                              \
    } while (0)

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static pd_status gather(const pd_step *s, pd_tensor *t, uint64_t site, pd_tensor **out) {
    int W = pd_group_size(s->group), rank = pd_group_rank(s->group), along = PD_ALONG(s->dim, -1);
    int64_t total = sum_of(s->sizes, W), elements = per_index(t, s->dim), each;
    pd_tensor *whole = NULL, *flat = NULL, *own = NULL;
    pd_dtype dtype = wire(t->dtype, &each);
    pd_part parts[W];
    PD_TRY(resized(t, s->dim, total, &whole));
    pd_status status = PD_OK;
    if (!whole->numel) goto done;
    PD_TRY_TO(done, room_for(whole, s->dim, &flat));
    PD_TRY_TO(done, pd_contiguous(t, &own));
    lay(parts, W, pd_tensor_data(flat), s->sizes, elements * each, pd_dtype_size(dtype));
    if (own->numel != s->sizes[rank] * elements) {
        status = pd_fail(PD_E_SHAPE, OP ": this rank's part has shape %s (expected %lld along dimension %d)",
                         pd_tensor_shape(t), (long long)s->sizes[rank], s->dim);
        goto done;
    }
    MOVE(whole, pd_group_all_gather_parts(s->group, pd_tensor_data(own), parts, dtype, along, site, NULL));
    if (flat != whole && !status) status = copy_pieces(whole, s->dim, s->sizes, W, flat, false);
done:
    pd_tensor_release(own);
    pd_tensor_release(flat);
    return give(status, whole, out);
}

static pd_status reduce(const pd_step *s, pd_tensor *t, uint64_t site, pd_tensor **out) {
    int64_t each;
    pd_dtype dtype = wire(t->dtype, &each);
    pd_tensor *sum;
    PD_TRY(resized(t, -1, 0, &sum));
    pd_status status = pd_engine.copy_into(sum, t);
    if (!status && sum->numel)
        MOVE(sum, pd_group_all_reduce(s->group, pd_tensor_data(sum), sum->numel * each, dtype, s->op, 1, site, NULL));
    return give(status, sum, out);
}

static pd_status scatter(const pd_step *s, pd_tensor *t, uint64_t site, pd_tensor **out) {
    int W = pd_group_size(s->group), rank = pd_group_rank(s->group), along = PD_ALONG(s->dim, -1);
    int64_t elements = per_index(t, s->dim), each;
    pd_dtype dtype = wire(t->dtype, &each);
    pd_tensor *flat = NULL, *part = NULL;
    pd_part parts[W];
    PD_TRY(resized(t, s->dim, s->sizes[rank], &part));
    pd_status status = PD_OK;
    if (!t->numel) goto done;
    PD_TRY_TO(done, pack(t, s->dim, s->sizes, W, &flat));
    lay(parts, W, pd_tensor_data(flat), s->sizes, elements * each, pd_dtype_size(dtype));
    MOVE(t, pd_group_reduce_scatter_parts(s->group, parts, pd_tensor_data(part), dtype, s->op, 1, along, site, NULL));
done:
    pd_tensor_release(flat);
    return give(status, part, out);
}

static pd_status exchange(const pd_step *s, pd_tensor *t, uint64_t site, pd_tensor **out) {
    int W = pd_group_size(s->group), rank = pd_group_rank(s->group);
    int64_t each, rest = 1;
    pd_dtype dtype = wire(t->dtype, &each);
    size_t bytes = pd_dtype_size(dtype);
    pd_tensor *sent = NULL, *got = NULL, *made = NULL;
    pd_part in[W], from[W];
    int64_t shape[PD_MAX_DIMS], total = sum_of(s->sizes, W);
    memcpy(shape, t->size, sizeof shape);
    shape[s->dim] = total;
    shape[s->other] = s->other_sizes[rank];
    PD_TRY(pd_tensor_new(OP, (pd_dtype)t->dtype, t->ndim, shape, &made));
    for (int d = 0; d < t->ndim; d++) rest *= d == s->dim || d == s->other ? 1 : t->size[d];
    pd_status status = PD_OK;
    if (!rest || !total || !t->size[s->other]) goto done; /* on all ranks */
    PD_TRY_TO(done, pack(t, s->other, s->other_sizes, W, &sent));
    PD_TRY_TO(done, room_for(made, s->dim, &got));
    lay(in, W, pd_tensor_data(sent), s->other_sizes, s->sizes[rank] * rest * each, bytes);
    lay(from, W, pd_tensor_data(got), s->sizes, s->other_sizes[rank] * rest * each, bytes);
    MOVE(t, pd_group_all_to_all_parts(s->group, in, from, dtype, PD_ALONG(s->dim, s->other), site, NULL));
    if (got != made && !status) status = copy_pieces(made, s->dim, s->sizes, W, got, false);
done:
    pd_tensor_release(sent);
    pd_tensor_release(got);
    return give(status, made, out);
}

static pd_status scale(const pd_step *s, pd_tensor *t, pd_tensor **out) {
    struct {
        pd_scalar x, y;
    } numbers = {{.cat = -1}, pd_number(s->value)};
    return pd_call2(PD_OP_mul, t, NULL, &numbers, out);
}

static pd_status run_step(const pd_step *s, pd_tensor *t, uint64_t site, pd_tensor **out) {
    switch (s->kind) {
        case PD_STEP_NARROW:
            return narrow(t, s->dim, s->from, s->size, out);
        case PD_STEP_GATHER:
            return gather(s, t, site, out);
        case PD_STEP_REDUCE:
            return reduce(s, t, site, out);
        case PD_STEP_SCATTER:
            return scatter(s, t, site, out);
        case PD_STEP_EXCHANGE:
            return exchange(s, t, site, out);
        case PD_STEP_FILL:
            return pd_full_like(t, s->value, out);
        case PD_STEP_SCALE:
            return scale(s, t, out);
        case PD_STEP_REFUSE:
            return pd_fail(PD_E_NOTIMPL, OP
                           ": the gradient of Partial of a maximum, minimum or product is not there "
                           "(expected Partial of a sum or mean)");
    }
    return pd_fail(PD_E_VALUE, OP ": step %d (expected one of the kinds)", (int)s->kind);
}

static pd_status run_steps(const pd_moves *m, bool back, pd_tensor *t, bool apart, uint64_t site, pd_tensor **out) {
    pd_tensor *now = NULL;
    bool own = false; /* memory that nobody else sees */
    PD_TRY(pd_tensor_alias(t, false, &now));
    pd_tensor_set_spread(now, NULL);
    for (int i = 0; i < m->n[back]; i++) {
        pd_tensor *next = NULL;
        pd_status status = run_step(&m->steps[back][i], now, site, &next);
        pd_tensor_release(now);
        PD_TRY(status);
        now = next;
        own = own || m->steps[back][i].kind != PD_STEP_NARROW;
    }
    if (own || !apart) {
        *out = now;
        return PD_OK;
    }
    pd_tensor *copy = NULL;
    pd_status status = resized(now, -1, 0, &copy);
    PD_THEN(pd_engine.copy_into(copy, now));
    pd_tensor_release(now);
    return give(status, copy, out);
}

/* ---- the gradient ------------------------------------------------------------------------------------------------ */

typedef struct taken {
    pd_moves *move;
    bool back;
    uint64_t site;
} taken; /* a node's `extra` */

/* The groups over which the steps of the way add; 0: it does something else, too. */
static int sums_of(const taken *way, pd_group **groups) {
    const pd_moves *m = way->move;
    const int back = !way->back;
    for (int i = 0; i < m->n[back]; i++) {
        const pd_step *s = &m->steps[back][i];
        if (s->kind != PD_STEP_REDUCE || s->op != PD_REDUCE_SUM || i == PD_SHARES_GROUPS) return 0;
        groups[i] = s->group;
    }
    return m->n[back];
}

static void take_back(pd_vjp *v) {
    const taken *way = v->node->extra;
    pd_tensor *g = NULL, *leaf = v->node->edges[0].leaf;
    pd_group *groups[PD_SHARES_GROUPS];
    if (v->status) return;
    const int sums = pd_shares_may_wait(v, leaf) ? sums_of(way, groups) : 0;
    if (sums) {
        v->status = pd_shares_wait(leaf, v->g[0], groups, sums, way->site);
        return;
    }
    pd_status status = pd_moves_run(way->move, !way->back, v->g[0], false, way->site, &g);
    pd_vjp_set(v, 0, pd_vjp_keep(v, status, g));
}

static void drop(pd_node *n) {
    taken *way = n->extra;
    if (way) pd_moves_release(way->move);
    pd_free(way);
}

static const pd_node_kind kind = {.name = "RedistributeBackward", .run = take_back, .drop = drop};

static pd_status record(pd_moves *m, bool back, uint64_t site, pd_tensor *t, pd_tensor *out) {
    taken *way;
    pd_node *n;
    PD_TRY(pd_malloc(sizeof *way, "tape", &way));
    pd_status status = pd_node_new(&kind, NULL, NULL, 0, &t, 1, 1, 0, &n);
    if (status) {
        pd_free(way);
        return status;
    }
    *way = (taken){m, back, site};
    pd_moves_retain(m);
    n->extra = way;
    status = pd_node_own(n, 0, out);
    pd_node_release(n);
    return status;
}

pd_status pd_moves_run(pd_moves *m, bool back, pd_tensor *t, bool apart, uint64_t site, pd_tensor **out) {
    const bool mode = pd_grad_mode, plain = pd_parts_are_plain, recorded = mode && pd_tensor_wants_grad(t);
    pd_grad_mode = false;
    pd_parts_are_plain = true;
    const pd_device *was;
    pd_status status = pd_device_enter(t->storage->device, &was);
    if (!status) {
        status = run_steps(m, back, t, apart, site, out);
        pd_device_here = was;
    }
    pd_grad_mode = mode;
    pd_parts_are_plain = plain;
    if (status || !recorded) return status;
    status = record(m, back, site, t, *out);
    if (status) pd_tensor_release(*out);
    return status;
}

/* ---- once -------------------------------------------------------------------------------------------------------- */

pd_status pd_moves_once(pd_moves *m, pd_tensor *t, uint64_t site, pd_tensor **out) {
    const bool recorded = pd_grad_mode && pd_tensor_wants_grad(t);
    if (!m->n[0] && !recorded) {
        pd_tensor_retain(*out = t);
        return PD_OK;
    }
    /* What is made of a parameter leads back to it, which would be a circle; and a whole would live as long as it. */
    const bool leaf = t->requires_grad && !(t->meta && t->meta->grad_fn);
    if ((*out = pd_tensor_derived(t, m, recorded))) return PD_OK;
    PD_TRY(pd_moves_run(m, false, t, false, site, out));
    if (leaf || !t->spread) return PD_OK; /* a spread keeps its moves, so m's address stays that of m */
    pd_status status = pd_tensor_derive(t, m, *out);
    if (status) pd_tensor_release(*out);
    return status;
}
