/* What a sharded model sends for gradients: gathered units to their shard group, and all units to the replicas. A unit
   sends one message for each large parameter, one for all small ones, and one that says which parameters were used. */
#include <string.h>

#include "base/mem.h"
#include "ops/ops.h"
#include "parallel/between.h"
#include "parallel/sharded_impl.h"
#include "parallel/unit_impl.h"

#define OP PD_SHARDED_OP

/* ---- bundles ----------------------------------------------------------------------------------------------------- */

pd_status pd_bundle_init(pd_bundle *b, int params, int ranks) {
    const size_t n = (size_t)params;
    b->params = params;
    PD_TRY(pd_calloc(sizeof *b->works * (n + 2), OP, &b->works));
    PD_TRY(pd_calloc(n, OP, &b->used));
    PD_TRY(pd_calloc(sizeof *b->sent * n, OP, &b->sent));
    PD_TRY(pd_calloc(sizeof *b->sums * n, OP, &b->sums));
    PD_TRY(pd_calloc(sizeof *b->at * n, OP, &b->at));
    PD_TRY(pd_calloc(sizeof *b->done * (size_t)(ranks + 1), OP, &b->done));
    return pd_calloc(sizeof *b->parts * (size_t)(ranks + 1), OP, &b->parts);
}

/* Waits for all messages. */
static pd_status await(pd_bundle *b) {
    pd_status status = PD_OK;
    for (int i = 0; i < b->n; i++) {
        PD_THEN(pd_work_wait(b->works[i], -1));
        pd_work_release(b->works[i]);
    }
    b->n = 0;
    pd_between_end();
    return status;
}

static void let_go(pd_bundle *b) {
    for (int k = 0; k < b->params; k++) {
        pd_tensor_release(b->sent[k]);
        pd_tensor_release(b->sums[k]);
        b->sent[k] = b->sums[k] = NULL;
    }
}

void pd_bundle_drop(pd_bundle *b) {
    pd_error e;
    if (!b->works) return;
    pd_error_save(&e);
    (void)await(b);
    pd_error_restore(&e);
    let_go(b);
}

void pd_bundle_fini(pd_bundle *b) {
    pd_bundle_drop(b);
    pd_storage_release(b->packed);
    pd_free(b->works);
    pd_free(b->used);
    pd_free(b->sent);
    pd_free(b->sums);
    pd_free(b->at);
    pd_free(b->done);
    pd_free(b->parts);
    *b = (pd_bundle){0};
}

static pd_status make_room(pd_bundle *b, const pd_device *d, size_t bytes) {
    if (b->packed && b->packed->bytes >= bytes && b->packed->device == d) return PD_OK;
    pd_storage_release(b->packed);
    b->packed = NULL;
    return pd_storage_new(d, bytes, &b->packed);
}

/* [new] a tensor of the sizes of `like`, in the room for packed ones. */
static pd_status packed_view(pd_bundle *b, const pd_tensor *like, pd_dtype t, size_t at, pd_tensor **out) {
    PD_TRY(pd_tensor_alias(like, false, out));
    pd_tensor_set_spread(*out, NULL);
    pd_storage_release((*out)->storage);
    pd_storage_retain((*out)->storage = b->packed);
    (*out)->dtype = (int8_t)t;
    (*out)->offset = (int64_t)(at / pd_dtype_size(t));
    pd_shape_contiguous(like->ndim, like->size, (*out)->stride);
    return PD_OK;
}

/* Copies what is packed to `t`, or the other way round. */
static pd_status copy_packed(pd_bundle *b, pd_tensor *t, pd_dtype packed, size_t at, bool to_packed) {
    pd_tensor *view;
    if (!t->numel) return PD_OK;
    PD_TRY(packed_view(b, t, packed, at, &view));
    pd_status status = to_packed ? pd_engine.copy_into(view, t) : pd_engine.copy_into(t, view);
    pd_tensor_release(view);
    return status;
}

static pd_status zero(pd_tensor *t) {
    const pd_device *was;
    PD_TRY(pd_device_enter(t->storage->device, &was));
    pd_fill(t, &(pd_scalar){.cat = PD_CAT_INT});
    pd_device_here = was;
    return PD_OK;
}

static pd_status send_used(pd_bundle *b, pd_group *g, int params, uint64_t site) {
    const pd_device *was = pd_device_here;
    pd_device_here = &pd_device_cpu;
    pd_status status = pd_group_all_reduce(g, b->used, params, PD_U8, PD_REDUCE_MAX, 1, site, &b->works[b->n]);
    pd_device_here = was;
    PD_TRY(status);
    b->n++;
    pd_between_begin(g);
    return PD_OK;
}

/* ---- to the shard group ------------------------------------------------------------------------------------------ */

/* [new] the gradient, or zeros, contiguous and in the dtype in which it is summed. */
static pd_status gradient_to_send(const pd_section *u, pd_member *m, pd_tensor **out) {
    const pd_piece *piece = m->p->piece;
    const pd_dtype t = rounded_to(u, m);
    const pd_device *was;
    pd_tensor *g = gradient_of(m);
    if (g && g->dtype == (int)t && pd_tensor_is_contiguous(g)) pd_tensor_retain(*out = g);
    else {
        PD_TRY(pd_device_enter(m->p->shard->storage->device, &was));
        pd_status status = pd_tensor_new(OP, t, piece->ndim, piece->size, out);
        pd_device_here = was;
        PD_TRY(status);
        PD_TRY(g ? pd_engine.copy_into(*out, g) : zero(*out));
    }
    pd_sharded_gave(m);
    return PD_OK;
}

static double scale_here(const pd_sharded *s, const pd_section *u) { return s->replicas ? 1 : pd_sharded_scale(s, u); }

static pd_status scatter(pd_sharded *s, const pd_section *u, pd_dtype t, void *out) {
    pd_bundle *b = &s->reducing;
    const pd_device *was;
    PD_TRY(pd_device_enter(s->members[u->first].p->shard->storage->device, &was));
    pd_status status = pd_group_reduce_scatter_parts(s->group, b->parts, out, t, PD_REDUCE_SUM, scale_here(s, u),
                                                     0, s->site, &b->works[b->n]);
    pd_device_here = was;
    if (!status) b->n++;
    return status;
}

static pd_status reduce_alone(pd_sharded *s, pd_section *u, int k) {
    pd_bundle *b = &s->reducing;
    pd_member *m = &s->members[u->first + k];
    const pd_device *was;
    PD_TRY(gradient_to_send(u, m, &b->sent[k]));
    PD_TRY(pd_sharded_prepare_sum(m));
    const pd_dtype t = (pd_dtype)b->sent[k]->dtype;
    for (int r = 0; r < pd_group_size(s->group); r++) {
        int64_t lo, hi;
        PD_TRY(pd_unit_cut(m->p, r, &lo, &hi));
        b->parts[r] = (pd_part){(char *)pd_tensor_data(b->sent[k]) + (size_t)lo * pd_dtype_size(t), hi - lo};
    }
    if (m->made->dtype == (int)t) pd_tensor_retain(b->sums[k] = m->made);
    else {
        PD_TRY(pd_device_enter(m->made->storage->device, &was));
        pd_status status = pd_tensor_new(OP, t, m->made->ndim, m->made->size, &b->sums[k]);
        pd_device_here = was;
        PD_TRY(status);
    }
    return scatter(s, u, t, pd_tensor_data(b->sums[k]));
}

static bool is_packed(const pd_section *u, const pd_member *m, int message) {
    return wants(m) && m->p->message == message && u->unit->messages[message].param < 0;
}

/* Sets the table of a packed message. *bytes: of all parts. */
static pd_status table_of(pd_sharded *s, const pd_section *u, int message, pd_dtype *t, size_t *bytes) {
    pd_bundle *b = &s->reducing;
    *bytes = 0;
    for (int r = 0; r < pd_group_size(s->group); r++) {
        int64_t n = 0, lo, hi;
        for (int k = 0; k < u->count; k++) {
            const pd_member *m = &s->members[u->first + k];
            if (!is_packed(u, m, message)) continue;
            PD_TRY(pd_unit_cut(m->p, r, &lo, &hi));
            n += (hi - lo) * m->p->outer;
            *t = rounded_to(u, m);
        }
        b->parts[r] = (pd_part){b->packed ? (char *)b->packed->data + b->at[message] + *bytes : NULL, n};
        *bytes += (size_t)n * pd_dtype_size(*t);
    }
    return PD_OK;
}

static pd_status reduce_packed(pd_sharded *s, pd_section *u, int message) {
    pd_bundle *b = &s->reducing;
    pd_dtype t = PD_F32;
    size_t bytes;
    PD_TRY(table_of(s, u, message, &t, &bytes));
    if (!bytes) return PD_OK;
    size_t *at = b->done;
    memset(at, 0, sizeof *at * (size_t)pd_group_size(s->group));
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        pd_tensor *g;
        if (!is_packed(u, m, message)) continue;
        PD_TRY(gradient_to_send(u, m, &g));
        pd_status status = pd_sharded_prepare_sum(m);
        for (int r = 0; r < pd_group_size(s->group) && !status; r++) {
            int64_t lo, hi;
            status = pd_unit_cut(m->p, r, &lo, &hi);
            PD_THEN(pd_unit_move_rows(m->p, g->storage->device, pd_dtype_size(t), pd_tensor_data(g),
                                      b->parts[r].data + at[r], lo, hi, true));
            at[r] += (size_t)((hi - lo) * m->p->outer) * pd_dtype_size(t);
        }
        pd_tensor_release(g);
        PD_TRY(status);
    }
    return scatter(s, u, t, b->parts[pd_group_rank(s->group)].data);
}

/* Gives each packed message its place. */
static pd_status place_packed(pd_sharded *s, const pd_section *u) {
    pd_bundle *b = &s->reducing;
    const pd_device *d = s->members[u->first].p->shard->storage->device;
    size_t room = 0;
    for (int i = 0; i < u->unit->nmessages; i++) {
        b->at[i] = room;
        for (int k = 0; k < u->count; k++) {
            const pd_member *m = &s->members[u->first + k];
            if (is_packed(u, m, i)) room += (size_t)m->p->piece->numel * pd_dtype_size(rounded_to(u, m));
        }
        room = pd_whole_lines(room);
    }
    return make_room(b, d, room);
}

pd_status pd_bundle_reduce(pd_sharded *s, pd_section *u) {
    pd_bundle *b = &s->reducing;
    bool any = false;
    for (int k = 0; k < u->count; k++) {
        const pd_member *m = &s->members[u->first + k];
        b->used[k] = wants(m) && gradient_of(m);
        any |= wants(m);
    }
    if (!any) return PD_OK;
    PD_TRY(place_packed(s, u));
    PD_TRY(send_used(b, s->group, u->count, s->site));
    for (int i = 0; i < u->unit->nmessages; i++) {
        const int k = u->unit->messages[i].param;
        if (k < 0) PD_TRY(reduce_packed(s, u, i));
        else if (wants(&s->members[u->first + k])) PD_TRY(reduce_alone(s, u, k));
    }
    return PD_OK;
}

static pd_status unpack(pd_sharded *s, pd_section *u, int message) {
    pd_bundle *b = &s->reducing;
    pd_dtype t = PD_F32;
    size_t bytes;
    PD_TRY(table_of(s, u, message, &t, &bytes));
    if (!bytes) return PD_OK;
    size_t at = (size_t)(b->parts[pd_group_rank(s->group)].data - (char *)b->packed->data);
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        if (!is_packed(u, m, message)) continue;
        PD_TRY(copy_packed(b, m->made, t, at, false));
        at += (size_t)m->made->numel * pd_dtype_size(t);
    }
    return PD_OK;
}

pd_status pd_bundle_reduced(pd_sharded *s, pd_section *u) {
    pd_bundle *b = &s->reducing;
    const bool any = b->n > 0;
    PD_TRY(await(b));
    for (int i = 0; i < u->unit->nmessages && any; i++)
        if (u->unit->messages[i].param < 0) PD_TRY(unpack(s, u, i));
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        m->used = any && b->used[k];
        if (b->sums[k] && b->sums[k] != m->made) PD_TRY(pd_engine.copy_into(m->made, b->sums[k]));
    }
    let_go(b);
    return PD_OK;
}

/* ---- to the replicas --------------------------------------------------------------------------------------------- */

/* Keeps the sum for a later backward, which adds it over the replicas. */
static pd_status hold_sum(pd_member *m) {
    pd_tensor *made = m->made;
    m->made = NULL;
    if (!m->used) pd_tensor_release(made);
    else if (!m->held) m->held = made;
    else {
        pd_status status = pd_engine.add_into(m->held, made);
        pd_tensor_release(made);
        return status;
    }
    return PD_OK;
}

/* Makes `made` what this shard group gives: with the sums that were held, zeros if there is nothing. */
static pd_status complete(pd_member *m) {
    if (!m->used) PD_TRY(zero(m->made));
    m->used |= m->held != NULL;
    if (m->held) PD_TRY(pd_engine.add_into(m->made, m->held));
    pd_tensor_release(m->held);
    m->held = NULL;
    return PD_OK;
}

static bool goes_with_others(const pd_member *m, pd_dtype t) {
    return m->made->dtype == (int)t && pd_tensor_bytes(m->made) <= PD_UNIT_SMALL;
}

static pd_status add_one(pd_sharded *s, const pd_section *u, void *data, int64_t count, pd_dtype t) {
    pd_bundle *b = &s->added;
    const pd_device *was;
    PD_TRY(pd_device_enter(s->members[u->first].p->shard->storage->device, &was));
    pd_status status = pd_group_all_reduce(s->replicas, data, count, t, PD_REDUCE_SUM, pd_sharded_scale(s, u), s->site,
                                           &b->works[b->n]);
    pd_device_here = was;
    if (!status) b->n++;
    return status;
}

/* Copies small sums to or from where they are packed. *count: their elements. */
static pd_status pack(pd_sharded *s, pd_section *u, pd_dtype t, bool to_packed, int64_t *count) {
    *count = 0;
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        if (!wants(m) || !goes_with_others(m, t)) continue;
        PD_TRY(copy_packed(&s->added, m->made, t, (size_t)*count * pd_dtype_size(t), to_packed));
        *count += m->made->numel;
    }
    return PD_OK;
}

/* The dtype of the small sums that go together; others go alone. */
static pd_dtype packed_type(const pd_sharded *s, const pd_section *u) {
    for (int k = 0; k < u->count; k++)
        if (wants(&s->members[u->first + k])) return (pd_dtype)s->members[u->first + k].made->dtype;
    return PD_NO_DTYPE;
}

pd_status pd_bundle_add(pd_sharded *s, pd_section *u) {
    pd_bundle *b = &s->added;
    int64_t count;
    size_t room = 0;
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        if (wants(m)) PD_TRY(u->o.apart ? hold_sum(m) : complete(m));
        b->used[k] = wants(m) && m->used;
    }
    const pd_dtype t = u->o.apart ? PD_NO_DTYPE : packed_type(s, u);
    if (t == PD_NO_DTYPE) return PD_OK;
    for (int k = 0; k < u->count; k++) {
        const pd_member *m = &s->members[u->first + k];
        if (wants(m) && goes_with_others(m, t)) room += pd_tensor_bytes(m->made);
    }
    PD_TRY(make_room(b, s->members[u->first].p->shard->storage->device, room));
    PD_TRY(send_used(b, s->replicas, u->count, s->site));
    PD_TRY(pack(s, u, t, true, &count));
    if (count) PD_TRY(add_one(s, u, b->packed->data, count, t));
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        if (!wants(m) || goes_with_others(m, t)) continue;
        pd_tensor_retain(b->sent[k] = m->made);
        PD_TRY(add_one(s, u, pd_tensor_data(m->made), m->made->numel, (pd_dtype)m->made->dtype));
    }
    return PD_OK;
}

pd_status pd_bundle_added(pd_sharded *s, pd_section *u) {
    pd_bundle *b = &s->added;
    int64_t count;
    if (!b->n) return PD_OK;
    PD_TRY(await(b));
    PD_TRY(pack(s, u, packed_type(s, u), false, &count));
    for (int k = 0; k < u->count; k++) s->members[u->first + k].used = b->used[k];
    let_go(b);
    return PD_OK;
}
