#include "parallel/unit_impl.h"

#include <string.h>

#include "autograd/apply.h"
#include "base/mem.h"
#include "comm/algo/reduce.h"

#define OP PD_UNIT_OP

static bool on_meta(const pd_tensor *t) { return t->storage->device == &pd_device_meta; }

/* ---- making ------------------------------------------------------------------------------------------------------ */

static pd_status check_param(const pd_unit *u, const pd_tensor *t, const char *name, int dim) {
    const int size = pd_group_size(u->group);
    if (t->meta && t->meta->grad_fn)
        return pd_fail(PD_E_VALUE, OP ": parameter %s is the result of %s (expected a leaf)", name,
                       pd_node_name(t->meta->grad_fn));
    if (!t->ndim)
        return pd_fail(PD_E_VALUE, OP ": parameter %s has no dimension to cut (expected a tensor of 1 dimension, or "
                       "ignored_params)", name);
    if (!pd_tensor_is_contiguous(t))
        return pd_fail(PD_E_VALUE, OP ": parameter %s is not contiguous: its strides are %s for shape %s (expected "
                       "contiguous())", name, pd_shape_text(t->ndim, t->stride), pd_tensor_shape(t));
    if (dim < 0 || dim >= t->ndim)
        return pd_fail(PD_E_VALUE, OP ": parameter %s of shape %s is to be cut along dimension %d (expected 0 to %d)",
                       name, pd_tensor_shape(t), dim, t->ndim - 1);
    if (dim && t->size[dim] % size)
        return pd_fail(PD_E_VALUE,
                       OP ": parameter %s of shape %s is to be cut along dimension %d for %d ranks (expected a size "
                          "that they divide: only dimension 0 may be cut unevenly)",
                       name, pd_tensor_shape(t), dim, size);
    return PD_OK;
}

pd_status pd_unit_cut(const pd_unit_param *p, int rank, int64_t *lo, int64_t *hi) {
    pd_unit *u = p->unit;
    const int size = pd_group_size(u->group);
    if (p->dim == 0) return pd_layout_range(&u->layout, (int)(p - u->params), rank, size, lo, hi);
    const int64_t each = p->row / size;
    *lo = each * rank;
    *hi = *lo + each;
    return PD_OK;
}

size_t pd_unit_room(const pd_unit_param *p) {
    return pd_whole_lines(pd_unit_bytes(p));
}

pd_status pd_unit_move_rows(const pd_unit_param *p, const pd_device *d, size_t element, char *rows, char *part,
                            int64_t lo, int64_t hi, bool to_part) {
    const size_t bytes = (size_t)(hi - lo) * element;
    for (int64_t o = 0; o < p->outer; o++) {
        char *row = rows + (size_t)(o * p->row + lo) * element, *packed = part + (size_t)o * bytes;
        char *to = to_part ? packed : row, *from = to_part ? row : packed;
        if (d->copy) PD_TRY(d->copy(d, OP, PD_WITHIN, to, from, bytes, PD_NO_WAIT));
        else memcpy(to, from, bytes);
    }
    return PD_OK;
}

static pd_status fill_param(pd_unit *u, int i, int dim) {
    pd_unit_param *p = &u->params[i];
    p->piece = &u->layout.pieces[i];
    p->dim = dim;
    p->outer = 1;
    for (int d = 0; d < dim; d++) p->outer *= p->piece->size[d];
    p->row = p->outer ? p->piece->numel / p->outer : 0;
    return pd_unit_cut(p, pd_group_rank(u->group), &p->lo, &p->hi);
}

static pd_status make_layout(pd_unit *u, pd_tensor *const *params, const char *const *names) {
    pd_piece *pieces;
    PD_TRY(pd_calloc(sizeof *pieces * (size_t)u->n, OP, &pieces));
    for (int i = 0; i < u->n; i++) {
        const pd_tensor *t = params[i];
        pieces[i] = (pd_piece){.name = names[i], .ndim = t->ndim, .dtype = (pd_dtype)t->dtype, .edges = PD_EDGES_ROWS};
        memcpy(pieces[i].size, t->size, sizeof *t->size * (size_t)t->ndim);
    }
    pd_status status = pd_layout_init(&u->layout, u->n, pieces);
    pd_free(pieces);
    return status;
}

static void round_ending(void *unit);

static pd_status build(pd_unit *u, pd_tensor *const *params, const char *const *names, const int *dims) {
    for (int i = 0; i < u->n; i++) PD_TRY(check_param(u, params[i], names[i], dims[i]));
    PD_TRY(make_layout(u, params, names));
    PD_TRY(pd_calloc(sizeof *u->params * (size_t)u->n, OP, &u->params));
    for (int i = 0; i < u->n; i++) {
        pd_unit_param *p = &u->params[i];
        p->unit = u;
        pd_tensor_retain(p->whole = params[i]);
        PD_TRY(fill_param(u, i, dims[i]));
    }
    if (u->kind != PD_UNIT_GATHERED) return PD_OK;
    PD_TRY(pd_calloc(sizeof *u->messages * (size_t)u->n, OP, &u->messages));
    PD_TRY(pd_calloc(sizeof(pd_work *) * (size_t)u->n, OP, &u->works));
    PD_TRY(pd_calloc(sizeof(pd_storage *) * (size_t)u->n, OP, &u->sent));
    return pd_calloc(sizeof *u->parts * (size_t)pd_group_size(u->group), OP, &u->parts);
}

pd_status pd_unit_new(pd_group *g, pd_tensor *const *params, const char *const *names, const int *dims, int n,
                      pd_unit_options o, pd_unit **out) {
    pd_unit *u;
    pd_readers *readers = NULL;
    PD_TRY(pd_group_readers(g, &readers));
    PD_TRY(pd_calloc(sizeof *u, OP, &u));
    atomic_init(&u->refs, 1);
    pd_group_retain(u->group = g);
    u->readers = readers;
    u->number = readers->units++;
    u->n = n;
    u->slot = -1;
    u->low = o.low;
    for (int i = 0; i < n; i++) o.gathered |= params[i]->storage->device->kind == PD_DEVICE_CUDA;
    u->kind = pd_group_size(g) == 1 ? PD_UNIT_ALONE : !o.gathered && pd_group_is_near(g) ? PD_UNIT_COMMON
                                                                                         : PD_UNIT_GATHERED;
    u->ending = (pd_readers_client){.ending = round_ending, .ctx = u};
    pd_status status = build(u, params, names, dims);
    if (status) {
        pd_unit_release(u);
        return PD_TRAIL(status);
    }
    if (u->kind == PD_UNIT_COMMON && u->low != PD_NO_DTYPE) pd_readers_add(readers, &u->ending);
    *out = u;
    return PD_OK;
}

void pd_unit_retain(pd_unit *u) { atomic_fetch_add_explicit(&u->refs, 1, memory_order_relaxed); }

static void drop_storage(pd_storage **s) {
    if (*s) (*s)->guard = NULL; /* a user's tensor may keep it */
    pd_storage_release(*s);
    *s = NULL;
}

void pd_unit_release(pd_unit *u) {
    if (!u || atomic_fetch_sub_explicit(&u->refs, 1, memory_order_acq_rel) > 1) return;
    pd_readers_remove(&u->ending);
    pd_unit_abandon(u);
    pd_windows_release(u->windows);
    for (int i = 0; u->params && i < u->n; i++) {
        pd_unit_param *p = &u->params[i];
        drop_storage(&p->all);
        drop_storage(&p->rows);
        pd_tensor_release(p->whole);
        pd_tensor_release(p->shard);
    }
    pd_layout_fini(&u->layout);
    pd_common_release(u->common);
    pd_free(u->messages);
    pd_free(u->works);
    pd_free(u->sent);
    pd_free(u->parts);
    pd_free(u->params);
    pd_group_release(u->group);
    pd_free(u);
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* The sizes of this rank's part. */
static void part_size(const pd_unit_param *p, int64_t *size) {
    const pd_piece *piece = p->piece;
    int64_t inner = 1;
    for (int d = p->dim + 1; d < piece->ndim; d++) inner *= piece->size[d];
    memcpy(size, piece->size, sizeof *size * (size_t)piece->ndim);
    size[p->dim] = inner ? (p->hi - p->lo) / inner : 0;
}

pd_status pd_unit_empty_shard(const pd_unit *u, int param, pd_tensor **out) {
    const pd_unit_param *p = &u->params[param];
    const pd_device *was = pd_device_here;
    int64_t size[PD_MAX_DIMS];
    part_size(p, size);
    pd_device_here = &pd_device_meta;
    pd_status status = pd_tensor_new(OP, p->piece->dtype, p->piece->ndim, size, out);
    pd_device_here = was;
    return status;
}

pd_status pd_unit_set_shard(pd_unit *u, int param, pd_tensor *t) {
    pd_unit_param *p = &u->params[param];
    int64_t size[PD_MAX_DIMS];
    part_size(p, size);
    if (!pd_shape_equal(t->ndim, t->size, p->piece->ndim, size))
        return pd_fail(PD_E_SHAPE, OP ": the shard of parameter %s has shape %s (expected %s on this rank)",
                       p->piece->name, pd_tensor_shape(t), pd_shape_text(p->piece->ndim, size));
    pd_tensor_retain(t);
    pd_tensor_release(p->shard);
    p->shard = t;
    return PD_OK;
}

uint64_t pd_unit_writes(const pd_unit *u) {
    uint64_t sum = 0;
    for (int i = 0; i < u->n; i++) sum += u->params[i].shard->storage->writes;
    return sum;
}

/* ---- guards ------------------------------------------------------------------------------------------------------ */

#define PARAM_OF(g, member) ((pd_unit_param *)(void *)((char *)(g) - offsetof(pd_unit_param, member)))

static pd_status before_rows(pd_guard *g, const char *op) {
    pd_unit *u = PARAM_OF(g, on_rows)->unit;
    return pd_readers_write(u->readers, op, 0, u->early && u->early(u->ctx));
}

static pd_status before_whole(pd_guard *g, const char *op) {
    const pd_unit_param *p = PARAM_OF(g, on_whole);
    return pd_fail(PD_E_RUNTIME,
                   "%s: the memory of parameter %s is shared by %d ranks, which read it (expected a write to its "
                   "shard, outside of forward; or PYDIST_FSDP=private)",
                   op, p->piece->name, pd_group_size(p->unit->group));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void pd_unit_point(pd_tensor *t, pd_storage *s, pd_dtype dtype, int64_t offset, const int64_t *stride) {
    pd_storage *was = t->storage;
    pd_storage_retain(s);
    t->storage = s;
    t->dtype = (int8_t)dtype;
    t->offset = offset;
    memcpy(t->stride, stride, sizeof *stride * (size_t)t->ndim);
    if (t->meta) t->meta->low.of = NULL; /* other memory may get the same address */
    pd_storage_release(was);
}

static void whole_strides(const pd_unit_param *p, int64_t *stride) {
    pd_shape_contiguous(p->piece->ndim, p->piece->size, stride);
}

static void drop_common(void *common) { pd_common_release(common); }

/* [new] the parameter's memory in the unit's common memory. */
static pd_status place(pd_unit_param *p, pd_guard *guard, bool read_only, pd_storage **out) {
    pd_unit *u = p->unit;
    size_t bytes = pd_unit_bytes(p);
    PD_TRY(pd_storage_external(&pd_device_cpu, (char *)pd_common_ptr(u->common) + p->at, bytes, drop_common, u->common,
                               out));
    pd_common_retain(u->common); /* the storage's */
    (*out)->guard = guard;
    (*out)->read_only = read_only;
    return PD_OK;
}

size_t pd_unit_lay_out(pd_unit *u) {
    size_t at = 0;
    for (int i = 0; i < u->n; i++) {
        pd_unit_param *p = &u->params[i];
        p->at = at;
        at += pd_unit_room(p);
    }
    return at;
}

static void round_param(pd_unit_param *p) {
    const pd_tensor *s = p->shard;
    const int64_t each = p->hi - p->lo;
    unsigned writes = s->storage->writes + 1;
    if (p->rounded == writes || s->storage->device->kind != PD_DEVICE_CPU) return;
    const char *from = pd_tensor_data(s);
    char *to = p->whole->storage->data;
    const size_t size = pd_dtype_size(pd_unit_whole_type(p));
    for (int64_t o = 0; o < p->outer; o++)
        pd_reduce_round(pd_unit_whole_type(p), from + (size_t)(o * each) * sizeof(float),
                        to + (size_t)(o * p->row + p->lo) * size, each, 1);
    p->rounded = writes;
}

void pd_unit_round(pd_unit *u) {
    for (int i = 0; i < u->n && u->low != PD_NO_DTYPE; i++)
        if (pd_unit_is_low(&u->params[i]) && !on_meta(u->params[i].whole)) round_param(&u->params[i]);
}

static void round_ending(void *unit) { pd_unit_round(unit); }

/* Makes the memory of all wholes, for the shards' present dtypes. */
static pd_status make_common(pd_unit *u) {
    pd_common *common;
    size_t bytes = pd_unit_lay_out(u);
    PD_TRY(pd_common_new(u->group, bytes, &common));
    pd_common_release(u->common);
    u->common = common;
    u->bytes = bytes;
    for (int i = 0; i < u->n; i++) {
        pd_unit_param *p = &u->params[i];
        p->on_whole.before = before_whole;
        p->on_rows.before = before_rows;
        drop_storage(&p->all);
        drop_storage(&p->rows);
        PD_TRY(place(p, &p->on_whole, true, &p->all));
        p->rounded = 0;
    }
    return PD_OK;
}

pd_status pd_unit_part_in(const pd_unit_param *p, pd_storage *s, pd_dtype dtype, int64_t offset, const int64_t *stride,
                          pd_tensor **out) {
    PD_TRY(pd_tensor_alias(p->shard, false, out));
    pd_tensor_set_spread(*out, NULL);
    pd_unit_point(*out, s, dtype, offset, stride);
    return PD_OK;
}

/* Gives the shard the memory `s` at `offset`, and the values that it has now, or those of the whole. */
static pd_status move_shard(pd_unit_param *p, pd_storage *s, int64_t offset, const int64_t *stride, bool first) {
    pd_tensor *to = NULL, *from = NULL;
    int64_t whole[PD_MAX_DIMS];
    whole_strides(p, whole);
    pd_storage *values = first ? p->whole->storage : p->shard->storage;
    if (pd_storage_is_blank(values)) s->blank = true;
    else {
        PD_TRY(pd_unit_part_in(p, s, (pd_dtype)p->shard->dtype, offset, stride, &to));
        const pd_dtype t = (pd_dtype)p->shard->dtype;
        pd_status status = first ? pd_unit_part_in(p, values, t, p->whole->offset + p->lo, whole, &from)
                                 : pd_tensor_alias(p->shard, false, &from);
        if (!status && !first) pd_tensor_set_spread(from, NULL);
        PD_THEN(pd_engine.copy_into(to, from));
        pd_tensor_release(to);
        pd_tensor_release(from);
        PD_TRY(status);
    }
    pd_unit_point(p->shard, s, (pd_dtype)p->shard->dtype, offset, stride);
    return PD_OK;
}

static bool is_home(const pd_unit_param *p) {
    switch (p->unit->kind) {
    case PD_UNIT_ALONE:
        return pd_unit_is_low(p) ? p->all && p->whole->storage == p->all &&
                                       p->whole->dtype == (int)pd_unit_whole_type(p)
                         : p->whole->storage == p->shard->storage && p->whole->offset == p->shard->offset;
    case PD_UNIT_COMMON:
        return p->rows && p->shard->storage == p->rows && p->whole->storage == p->all &&
               p->whole->dtype == (int)pd_unit_whole_type(p);
    case PD_UNIT_GATHERED:
        return p->all && p->whole->storage == p->all && p->whole->dtype == (int)pd_unit_whole_type(p) &&
               pd_tensor_is_contiguous(p->shard);
    }
    return true;
}

bool pd_unit_is_settled(const pd_unit *u) {
    for (int i = 0; i < u->n; i++)
        if (on_meta(u->params[i].shard) || !is_home(&u->params[i])) return false;
    return true;
}

/* [new] memory of the shard's own. */
static pd_status own_memory(const pd_unit_param *p, const pd_device *d, int64_t *stride, pd_storage **out) {
    int64_t size[PD_MAX_DIMS];
    part_size(p, size);
    pd_shape_contiguous(p->piece->ndim, size, stride);
    return pd_storage_new(d, (size_t)p->shard->numel * pd_dtype_size((pd_dtype)p->shard->dtype), out);
}

static pd_status settle_in_common(pd_unit_param *p, bool first) {
    int64_t stride[PD_MAX_DIMS];
    pd_storage *rows;
    if (!first && is_home(p)) return PD_OK;
    if (pd_unit_is_low(p)) {
        PD_TRY(own_memory(p, &pd_device_cpu, stride, &rows));
        rows->guard = &p->on_rows;
    } else {
        whole_strides(p, stride);
        PD_TRY(place(p, &p->on_rows, false, &rows));
    }
    drop_storage(&p->rows);
    p->rows = rows;
    PD_TRY(move_shard(p, rows, pd_unit_is_low(p) ? 0 : p->lo, stride, first));
    whole_strides(p, stride);
    pd_unit_point(p->whole, p->all, pd_unit_whole_type(p), 0, stride);
    return PD_OK;
}

static pd_status settle_alone(pd_unit_param *p, bool first) {
    int64_t stride[PD_MAX_DIMS];
    whole_strides(p, stride);
    if (!pd_unit_is_low(p)) {
        pd_tensor *from = first ? p->whole : p->shard, *to = first ? p->shard : p->whole;
        pd_unit_point(to, from->storage, (pd_dtype)from->dtype, from->offset, from->stride);
        return PD_OK;
    }
    if (first) pd_unit_point(p->shard, p->whole->storage, p->piece->dtype, p->whole->offset, stride);
    drop_storage(&p->all);
    PD_TRY(pd_storage_new(p->shard->storage->device, pd_unit_bytes(p), &p->all));
    p->rounded = 0;
    pd_unit_point(p->whole, p->all, pd_unit_whole_type(p), 0, stride);
    return PD_OK;
}

static void drop_window(void *window) { pd_storage_release(window); }

static pd_status settle_gathered(pd_unit_param *p, bool first) {
    int64_t stride[PD_MAX_DIMS];
    pd_storage *own;
    const pd_device *d = first ? p->whole->storage->device : p->shard->storage->device;
    if (first || !pd_tensor_is_contiguous(p->shard)) {
        PD_TRY(own_memory(p, d, stride, &own));
        pd_status status = move_shard(p, own, 0, stride, first);
        pd_storage_release(own);
        PD_TRY(status);
    }
    if (!first && is_home(p)) return PD_OK;
    drop_storage(&p->all);
    PD_TRY(pd_storage_external(&pd_device_meta, NULL, pd_unit_bytes(p),
                               drop_window, NULL, &p->all));
    whole_strides(p, stride);
    pd_unit_point(p->whole, p->all, pd_unit_whole_type(p), 0, stride);
    return PD_OK;
}

static pd_status check_low(const pd_unit *u) {
    for (int i = 0; i < u->n; i++) {
        const pd_unit_param *p = &u->params[i];
        if (!pd_unit_is_low(p) || p->shard->dtype == PD_F32) continue;
        return pd_fail(PD_E_DTYPE, OP ": param_dtype is %s for parameter %s, which is %s (expected float32)",
                       pd_dtype_name(u->low), p->piece->name, pd_dtype_name((pd_dtype)p->shard->dtype));
    }
    return PD_OK;
}

static bool needs_common(const pd_unit *u) {
    for (int i = 0; i < u->n; i++)
        if (!u->params[i].all || u->params[i].whole->dtype != (int)pd_unit_whole_type(&u->params[i])) return true;
    return false;
}

pd_status pd_unit_settle(pd_unit *u, bool first, uint64_t site) {
    for (int i = 0; i < u->n; i++) {
        const pd_unit_param *p = &u->params[i];
        if (on_meta(first ? p->whole : p->shard)) return PD_OK;
        PD_TRY(pd_storage_may_move(OP, p->whole->storage));
    }
    if (!first && pd_unit_is_settled(u)) return PD_OK;
    PD_TRY(check_low(u));
    if (u->kind == PD_UNIT_COMMON) {
        if (first || needs_common(u)) PD_TRY(make_common(u));
        PD_TRY(pd_readers_write(u->readers, OP, site, false));
    }
    PD_TRY(pd_unit_drop(u));
    pd_unit_abandon(u);
    for (int i = 0; i < u->n; i++) {
        pd_unit_param *p = &u->params[i];
        PD_TRY(u->kind == PD_UNIT_COMMON  ? settle_in_common(p, first)
               : u->kind == PD_UNIT_ALONE ? settle_alone(p, first)
                                          : settle_gathered(p, first));
    }
    if (u->kind == PD_UNIT_GATHERED) pd_unit_plan(u);
    pd_readers_written(u->readers);
    if (first) pd_device_cpu_trim(); /* the parameters' first memory goes back to the system */
    return PD_OK;
}

void pd_unit_changed(pd_unit *u) {
    for (int i = 0; i < u->n; i++) {
        pd_storage *s = u->params[i].whole->storage;
        if (u->kind == PD_UNIT_ALONE && !pd_unit_is_low(&u->params[i])) continue; /* it is the shard's, which counts */
        atomic_fetch_add_explicit(&s->version, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&s->writes, 1, memory_order_relaxed);
    }
}
