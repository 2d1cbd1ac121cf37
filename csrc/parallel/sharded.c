#include "parallel/sharded_impl.h"

#include <string.h>

#include "base/mem.h"
#include "comm/algo/reduce.h"
#include "comm/group/mover.h"
#include "ops/ops.h"

#define OP PD_SHARDED_OP

enum { NOTHING, PLAIN, WIDE }; /* what a rank gives for a parameter: the bytes after a slot's gradients */

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* Where things lie in the slot of a unit: gradients of wholes, one byte for each member, wider sums. The last have
   pages only when they are written. */
static size_t flags_at(const pd_sharded *s, const pd_section *u) {
    size_t bytes = 0;
    for (int k = 0; k < u->count; k++) bytes += pd_unit_room(s->members[u->first + k].p);
    return bytes;
}
static bool may_widen(const pd_member *m) { return m->p->whole->dtype != m->p->shard->dtype; }
static size_t wide_bytes(const pd_member *m) {
    return may_widen(m) ? pd_whole_lines((size_t)m->p->piece->numel * sizeof(float)) : 0;
}
static size_t sums_at(const pd_sharded *s, const pd_section *u) {
    return pd_whole_lines(flags_at(s, u) + (size_t)u->count);
}
static size_t slot_bytes(const pd_sharded *s, const pd_section *u) {
    size_t bytes = sums_at(s, u);
    for (int k = 0; k < u->count; k++) bytes += wide_bytes(&s->members[u->first + k]);
    return bytes;
}

static int ring_of(const pd_sharded *s) {
    int inner = s->nunits - s->last_is_outer;
    return inner < RING ? inner : RING;
}
static bool is_outer(const pd_sharded *s, int b) { return s->last_is_outer && b == s->nunits - 1; }

/* The whole's gradients lie in the slot from now on, or anywhere. */
static pd_status take_slot(pd_sharded *s, pd_section *u, bool take) {
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        if (wants(m)) PD_TRY(pd_grad_take(m->p->whole, &m->owner, take ? m->view : NULL));
    }
    u->has_slot = take;
    return PD_OK;
}

static void drop_segment(void *segment) { pd_segment_release(segment); }

/* [new] a tensor like the whole, from this byte of the slot on. */
static pd_status view_of(const pd_member *m, pd_storage *slot, pd_dtype t, size_t at, pd_tensor **out) {
    pd_tensor_release(*out);
    *out = NULL;
    PD_TRY(pd_tensor_alias(m->p->whole, false, out));
    pd_storage_release((*out)->storage);
    pd_storage_retain((*out)->storage = slot);
    (*out)->dtype = (int8_t)t;
    (*out)->offset = (int64_t)(at / pd_dtype_size(t));
    return PD_OK;
}

static pd_status make_views(pd_sharded *s, pd_section *u) {
    pd_storage *storage;
    size_t at = 0, wide = sums_at(s, u);
    PD_TRY(pd_storage_external(&pd_device_cpu, pd_segment_ptr(u->slot), pd_segment_bytes(u->slot), drop_segment,
                               u->slot, &storage));
    pd_segment_retain(u->slot); /* the storage's */
    pd_status status = PD_OK;
    for (int k = 0; k < u->count && !status; k++) {
        pd_member *m = &s->members[u->first + k];
        status = view_of(m, storage, (pd_dtype)m->p->whole->dtype, at, &m->view);
        if (may_widen(m)) PD_THEN(view_of(m, storage, PD_F32, wide, &m->wide));
        wide += wide_bytes(m);
        at += pd_unit_room(m->p);
    }
    u->flags = at;
    pd_storage_release(storage);
    return status;
}

static pd_status make_slots(pd_sharded *s) {
    const int ring = ring_of(s);
    size_t bytes[RING] = {0};
    for (int b = 0; b < s->nunits; b++) {
        const pd_section *u = &s->units[b];
        size_t n = slot_bytes(s, u);
        if (is_outer(s, b)) PD_TRY(pd_group_segment_new(s->group, n, &s->outer));
        else if (n > bytes[b % ring]) bytes[b % ring] = n;
    }
    for (int k = 0; k < ring; k++) PD_TRY(pd_group_segment_new(s->group, bytes[k], &s->ring[k]));
    for (int b = 0; b < s->nunits; b++) {
        s->units[b].slot = is_outer(s, b) ? s->outer : s->ring[b % ring];
        PD_TRY(make_views(s, &s->units[b]));
    }
    return PD_OK;
}

/* Before the first gradient: the units that have a slot from the beginning. */
static pd_status arm(pd_sharded *s) {
    for (int b = 0; b < s->nunits; b++) {
        pd_section *u = &s->units[b];
        bool has = u->slot && (b < RING || is_outer(s, b)) && !u->o.accumulates;
        if (has != u->has_slot) PD_TRY(take_slot(s, u, has));
    }
    return PD_OK;
}

static char *flags_of(const pd_section *u, int rank) { return (char *)pd_segment_peer(u->slot, rank) + u->flags; }

/* Makes sure that what this rank gives is in the slot, and says which it is; without a gradient zeros count. */
static pd_status into_slot(pd_member *m, char *flag) {
    pd_tensor *g = gradient_of(m), *place = m->sum ? m->wide : m->view;
    *flag = !g ? NOTHING : m->sum ? WIDE : PLAIN;
    if (!g) memset(pd_tensor_data(place), 0, pd_tensor_bytes(place));
    else if (g->storage != place->storage || g->offset != place->offset)
        PD_TRY(pd_engine.copy_into(place, g));
    pd_sharded_gave(m);
    return PD_OK;
}

/* ---- gradients that wait ----------------------------------------------------------------------------------------- */

void pd_sharded_gave(pd_member *m) {
    if (whole_grad(m)) pd_meta_set_grad(m->p->whole->meta, NULL);
    pd_tensor_release(m->sum);
    m->sum = NULL;
}

/* Adds the whole's gradient to the sum. */
static pd_status widen(pd_member *m) {
    pd_tensor *g = whole_grad(m), *wide;
    if (!g) return PD_OK;
    PD_TRY(pd_engine.cast(g, PD_F32, &wide));
    pd_meta_set_grad(m->p->whole->meta, NULL);
    if (!m->sum) {
        m->sum = wide;
        return PD_OK;
    }
    pd_status status = pd_engine.add_into(m->sum, wide);
    pd_tensor_release(wide);
    return status;
}

/* Gradients of 16 bits that wait for others are added up in the dtype in which the ranks add. */
static pd_status keep_sums(pd_sharded *s, pd_section *u) {
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        const bool begins = u->o.accumulates && may_widen(m) && rounded_to(u, m) == PD_F32;
        if (wants(m) && (m->sum || begins)) PD_TRY(widen(m));
    }
    return PD_OK;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* [new] memory for the sum of a shard's gradient, contiguous. */
static pd_status new_sum(const pd_member *m, pd_tensor **out) {
    const pd_tensor *shard = m->p->shard;
    const pd_device *was;
    PD_TRY(pd_device_enter(shard->storage->device, &was));
    pd_status status = pd_tensor_new(OP, (pd_dtype)shard->dtype, shard->ndim, shard->size, out);
    pd_device_here = was;
    if (!status) pd_tensor_set_spread(*out, shard->spread);
    return status;
}

pd_status pd_sharded_prepare_sum(pd_member *m) {
    pd_tensor *shard = m->p->shard;
    pd_meta *meta = NULL;
    PD_TRY(pd_meta_get(shard, &meta));
    if (m->seen != shard || (m->own && (m->own->dtype != shard->dtype || !pd_tensor_same_shape(m->own, shard)))) {
        pd_tensor_release(m->own);
        m->own = NULL;
        m->seen = shard;
    }
    pd_tensor_release(m->made);
    m->made = NULL;
    if (meta->grad || m->s->units[m->unit].o.apart) return new_sum(m, &m->made);
    if (m->own && m->own->refs > 1 + (meta->destination.view == m->own)) { /* somebody keeps the last .grad */
        pd_tensor_release(m->own);
        m->own = NULL;
    }
    if (!m->own) PD_TRY(new_sum(m, &m->own));
    if (meta->destination.owner != &m->shard_owner || meta->destination.view != m->own)
        PD_TRY(pd_grad_take(shard, &m->shard_owner, m->own));
    pd_tensor_retain(m->made = m->own);
    return PD_OK;
}

double pd_sharded_scale(const pd_sharded *s, const pd_section *u) {
    double ranks = pd_group_size(s->group) * (s->replicas ? pd_group_size(s->replicas) : 1);
    return 1 / (u->o.divisor ? u->o.divisor : ranks);
}

/* Rounds float32 sums to a 16-bit dtype and back. */
static void round_sum(pd_dtype t, float *sum, int64_t n) {
    char low[512 * 2];
    for (int64_t i = 0; i < n; i += 512) {
        int64_t k = n - i < 512 ? n - i : 512;
        pd_reduce_round(t, (const char *)(sum + i), low, k, 1);
        pd_reduce_widen(t, low, (char *)(sum + i), k);
    }
}

static const char *in_slot(const pd_section *u, int rank, const pd_tensor *view) {
    return (const char *)pd_segment_peer(u->slot, rank) + (size_t)view->offset * pd_dtype_size((pd_dtype)view->dtype);
}

/* Adds up this rank's rows where some ranks give sums that are wider than gradients. */
static pd_status sum_wide(const pd_sharded *s, const pd_section *u, const pd_member *m, const char **in, double scale) {
    const pd_unit_param *p = m->p;
    const pd_dtype t = (pd_dtype)m->view->dtype;
    const int size = pd_group_size(s->group), k = (int)(m - s->members) - u->first;
    const int64_t each = p->hi - p->lo;
    float *room = NULL, *out = pd_tensor_data(m->made);
    bool all = true;
    for (int r = 0; r < size; r++) all &= flags_of(u, r)[k] == WIDE;
    if (!all) PD_TRY(pd_malloc(sizeof *room * (size_t)(each * size) + 1, OP, &room));
    for (int64_t o = 0; o < p->outer; o++) {
        const size_t at = (size_t)(o * p->row + p->lo);
        for (int r = 0; r < size; r++) {
            const bool wide = flags_of(u, r)[k] == WIDE;
            in[r] = in_slot(u, r, wide ? m->wide : m->view) + at * pd_dtype_size(wide ? PD_F32 : t);
            if (wide) continue;
            pd_reduce_widen(t, in[r], (char *)(room + r * each), each);
            in[r] = (const char *)(room + r * each);
        }
        pd_reduce_run(PD_F32, PD_REDUCE_SUM, size, in, 0, (char *)(out + o * each), each, scale);
    }
    pd_free(room);
    return PD_OK;
}

/* Adds up this rank's rows of all slots. */
static void sum_slots(const pd_sharded *s, const pd_section *u, const pd_member *m, const char **in, double scale) {
    const pd_unit_param *p = m->p;
    const pd_dtype t = (pd_dtype)m->view->dtype, to = (pd_dtype)m->made->dtype;
    const int size = pd_group_size(s->group);
    const int64_t each = p->hi - p->lo;
    char *out = pd_tensor_data(m->made);
    for (int r = 0; r < size; r++) in[r] = in_slot(u, r, m->view);
    for (int64_t o = 0; o < p->outer; o++) {
        char *row = out + (size_t)(o * each) * pd_dtype_size(to);
        int64_t at = o * p->row + p->lo;
        if (t == to) pd_reduce_run(t, PD_REDUCE_SUM, size, in, at, row, each, scale);
        else {
            pd_reduce_wide(t, PD_REDUCE_SUM, size, in, at, (float *)(void *)row, each, scale);
            if (rounded_to(u, m) == t) round_sum(t, (float *)(void *)row, each);
        }
    }
}

/* Gives the shards their gradients; their hooks run. */
static pd_status deliver(pd_sharded *s, pd_section *u) {
    u->delivered = true;
    pd_unit_forget(u->unit); /* the shards' hooks may write them */
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        if (!wants(m) || !m->used || !m->made) continue;
        pd_tensor *made = m->made;
        m->made = NULL;
        pd_status status = pd_leaf_give(m->p->shard, made);
        pd_tensor_release(made);
        PD_TRY(status);
    }
    return PD_OK;
}

/* ---- one unit ---------------------------------------------------------------------------------------------------- */

static int64_t elements_of(const pd_sharded *s, const pd_section *u) {
    int64_t n = 0;
    for (int k = 0; k < u->count; k++) n += s->members[u->first + k].p->whole->numel;
    return n;
}

static pd_status start_in_slots(pd_sharded *s, int b) {
    pd_section *u = &s->units[b];
    char *flags = flags_of(u, pd_group_rank(s->group));
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        flags[k] = NOTHING;
        if (wants(m)) PD_TRY(into_slot(m, &flags[k]));
    }
    const pd_dtype t = (pd_dtype)s->members[u->first].p->whole->dtype;
    return pd_group_reduce_gate(s->group, u->unit->number, elements_of(s, u), t, pd_sharded_scale(s, u), s->site,
                                &s->gate);
}

static pd_status read_slots(pd_sharded *s, int b) {
    pd_section *u = &s->units[b];
    const int size = pd_group_size(s->group);
    const char **in;
    pd_status status = pd_work_wait(s->gate, -1);
    pd_work_release(s->gate);
    s->gate = NULL;
    PD_TRY(status);
    PD_TRY(pd_malloc(sizeof *in * (size_t)size, OP, &in));
    const pd_timespan span = pd_timespan_begin();
    int64_t bytes = 0;
    for (int k = 0; k < u->count && !status; k++) {
        pd_member *m = &s->members[u->first + k];
        bool wide = m->used = false;
        for (int r = 0; r < size; r++) m->used |= flags_of(u, r)[k] != NOTHING, wide |= flags_of(u, r)[k] == WIDE;
        if (!wants(m) || !(m->used || s->replicas)) continue;
        status = pd_sharded_prepare_sum(m);
        if (status || !m->used) continue;
        const double scale = s->replicas ? 1 : pd_sharded_scale(s, u);
        if (wide) status = sum_wide(s, u, m, in, scale);
        else sum_slots(s, u, m, in, scale);
        bytes += (size + 1) * (int64_t)pd_tensor_bytes(m->made);
    }
    pd_timespan_end(&span, PD_SPAN_CALL, OP ": reduce", bytes);
    pd_free(in);
    return status;
}

/* In a world of one the whole's gradient is the shard's. */
static pd_status hand_over(pd_sharded *s, pd_section *u) {
    for (int k = 0; k < u->count; k++) {
        pd_member *m = &s->members[u->first + k];
        pd_tensor *g = gradient_of(m);
        m->used = wants(m) && g;
        if (wants(m) && !g && s->replicas) PD_TRY(pd_sharded_prepare_sum(m));
        if (!m->used) continue;
        if (g->dtype == m->p->shard->dtype) pd_tensor_retain(m->made = g);
        else PD_TRY(pd_engine.cast(g, (pd_dtype)m->p->shard->dtype, &m->made));
        pd_tensor_set_spread(m->made, m->p->shard->spread);
        pd_sharded_gave(m);
        if (u->o.divisor && u->o.divisor != 1 && !s->replicas)
            PD_TRY(pd_alone_scale(m->made->storage->device, OP, (pd_dtype)m->made->dtype, 1 / u->o.divisor,
                                  pd_tensor_data(m->made), m->made->numel));
    }
    return PD_OK;
}

/* The replicas have added the unit's sums. */
static pd_status end_adding(pd_sharded *s) {
    if (s->adding < 0) return PD_OK;
    pd_section *u = &s->units[s->adding];
    s->adding = -1;
    PD_TRY(pd_bundle_added(s, u));
    return deliver(s, u);
}

/* Takes the unit that begun last one step on: the shard group has summed it, and the replicas begin. */
static pd_status go_on(pd_sharded *s) {
    const int b = s->begun;
    PD_TRY(end_adding(s));
    if (b < 0) return PD_OK;
    pd_section *u = &s->units[b];
    s->begun = -1;
    if (u->o.accumulates) return PD_OK;
    if (s->kind == PD_UNIT_COMMON) PD_TRY(read_slots(s, b));
    if (s->kind == PD_UNIT_GATHERED) PD_TRY(pd_bundle_reduced(s, u));
    if (!s->replicas) return deliver(s, u);
    PD_TRY(pd_group_launch(s->group)); /* what it gathers ahead */
    PD_TRY(pd_bundle_add(s, u));
    s->adding = b;
    return pd_group_launch(s->replicas);
}

static pd_status finish_unit(pd_sharded *s) {
    PD_TRY(go_on(s));
    return end_adding(s);
}

static pd_status start_unit(void *sharded, int b) {
    pd_sharded *s = sharded;
    pd_section *u = &s->units[b];
    PD_TRY(go_on(s));
    if (s->kind == PD_UNIT_COMMON && b > RING - 2 && b + 1 < s->nunits) { /* all have read the unit before b - 1 */
        pd_section *next = &s->units[b + 1];
        if (!is_outer(s, b + 1) && !next->o.accumulates) PD_TRY(take_slot(s, next, true));
    }
    s->begun = b;
    PD_TRY(keep_sums(s, u));
    if (u->o.accumulates) return PD_OK;
    switch (s->kind) {
    case PD_UNIT_COMMON:
        PD_TRY(take_slot(s, u, false));
        return start_in_slots(s, b);
    case PD_UNIT_ALONE:
        PD_TRY(hand_over(s, u));
        return s->replicas ? go_on(s) : PD_OK;
    case PD_UNIT_GATHERED:
        PD_TRY(pd_bundle_reduce(s, u));
    }
    return u->o.keeps ? PD_OK : pd_unit_drop(u->unit);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* No message is under way, and no window in use, when nothing runs any more: what was gathered ahead may not have been
   used. */
static void drop_ahead(pd_sharded *s) {
    for (int b = 0; b < s->nunits && s->kind == PD_UNIT_GATHERED; b++)
        if (s->units[b].unit->under_way && s->units[b].unit->ahead) pd_unit_abandon(s->units[b].unit);
}

static void forget(pd_sharded *s) {
    if (s->gate) pd_work_release(s->gate);
    s->gate = NULL;
    s->begun = s->adding = -1;
    pd_bundle_drop(&s->reducing);
    pd_bundle_drop(&s->added);
    drop_ahead(s);
    for (int i = 0; i < s->nmembers; i++) {
        pd_member *m = &s->members[i];
        if (m->p->whole->meta && !s->units[m->unit].o.accumulates) pd_sharded_gave(m);
        pd_tensor_release(m->made);
        m->made = NULL;
    }
    for (int b = 0; b < s->nunits; b++) s->units[b].delivered = false;
    pd_ready_reset(&s->ready);
    s->running = false;
}

static void stop_reading(pd_sharded *s) {
    if (s->reading) pd_readers_end(s->readers);
    s->reading = false;
}

/* Until all ranks have passed, the slots may be read. */
static pd_status last_gate(pd_sharded *s) {
    bool any = false;
    for (int b = 0; b < s->nunits; b++) any |= !s->units[b].o.accumulates;
    if (s->kind != PD_UNIT_COMMON || !any) return PD_OK;
    return pd_group_reduce_gate(s->group, -1, 0, PD_U8, 1, s->site, NULL);
}

/* Gradients that came after their unit was reduced: the unit is reduced again. */
static pd_status reduce_late(pd_sharded *s) {
    for (int b = 0; b < s->nunits; b++) {
        const pd_section *u = &s->units[b];
        bool late = false;
        for (int k = 0; k < u->count; k++) late |= whole_grad(&s->members[u->first + k]) != NULL;
        if (!late || u->o.accumulates) continue;
        PD_TRY(start_unit(s, b));
        PD_TRY(finish_unit(s));
        PD_TRY(last_gate(s));
    }
    return PD_OK;
}

static pd_status finish(pd_sharded *s) {
    PD_TRY(pd_ready_rest(&s->ready));
    PD_TRY(finish_unit(s));
    PD_TRY(last_gate(s));
    return reduce_late(s);
}

static pd_status at_end(void *ctx, void *arg) {
    pd_sharded *s = ctx;
    (void)arg;
    if (!s->running || s->dead) return PD_OK;
    void *token = pd_host_release(); /* this may wait for peers */
    pd_status status = finish(s);
    pd_host_acquire(token);
    if (status) return status; /* drop() cleans up */
    forget(s);
    if (s->new_slots) pd_device_cpu_trim(); /* of gradients that have a slot from now on */
    s->new_slots = false;
    if (s->end.call) status = s->end.call(s->end.ctx, NULL);
    stop_reading(s);
    pd_readers_written(s->readers);
    return status;
}

static void release(pd_sharded *s);

static void drop(void *sharded) {
    pd_sharded *s = sharded;
    if (s->running) { /* the backward has failed */
        pd_error e;
        pd_error_save(&e);
        forget(s);
        if (s->end.call && !s->dead) (void)s->end.call(s->end.ctx, NULL);
        pd_error_restore(&e);
    }
    stop_reading(s);
    release(s);
}

static pd_status check_writes(const pd_sharded *s) {
    uint64_t writes = 0;
    for (int b = 0; b < s->nunits && s->kind != PD_UNIT_ALONE; b++) writes += pd_unit_writes(s->units[b].unit);
    if (writes == s->writes) return PD_OK;
    return pd_fail(PD_E_RUNTIME,
                   "backward: shards have been written since the forward (expected no step and no edit between a "
                   "forward and its backward)");
}

/* Begins to read, and to count gradients. */
static pd_status begin_work(pd_sharded *s) {
    s->running = true;
    if (!s->reading) {
        PD_TRY(pd_readers_begin(s->readers, s->site));
        s->reading = true;
    }
    if (s->kind == PD_UNIT_COMMON && !s->units[0].slot) {
        PD_TRY(make_slots(s));
        PD_TRY(arm(s));
        s->new_slots = true;
    }
    pd_ready_begin(&s->ready);
    return PD_OK;
}

static pd_status begin_backward(pd_sharded *s) {
    PD_TRY(check_writes(s));
    PD_TRY(pd_engine_at_end((pd_closure){.call = at_end, .drop = drop, .ctx = s}));
    s->refs++;
    PD_TRY(begin_work(s));
    for (int i = 0; i < s->nmembers; i++)
        if (wants(&s->members[i])) pd_ready_expect(&s->ready, s->members[i].piece);
    return PD_OK;
}

pd_status pd_sharded_shadow(pd_sharded *s, uint64_t site) {
    s->site = site;
    s->refs++;
    pd_status status = begin_work(s);
    PD_THEN(at_end(s, NULL));
    drop(s);
    return status;
}

static pd_status on_ready(void *ctx, void *leaf) {
    pd_member *m = ctx;
    pd_sharded *s = m->s;
    (void)leaf;
    if (!s->running) PD_TRY(begin_backward(s));
    if (s->ready.came[m->piece]) return PD_OK; /* it has come late, or once more: see reduce_late */
    PD_TRY(pd_ready_came(&s->ready, m->piece));
    if (s->replicas) PD_TRY(pd_group_progress(s->replicas));
    return s->ready.next || s->windows ? pd_group_progress(s->group) : PD_OK;
}

static bool is_delivered(void *ctx) { return ((pd_section *)ctx)->delivered; }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

pd_status pd_sharded_enter(pd_sharded *s, uint64_t site, bool *outermost) {
    *outermost = !s->depth && !s->running;
    if (!*outermost) {
        s->depth++;
        return PD_OK;
    }
    PD_TRY(pd_readers_begin(s->readers, site));
    s->depth++;
    s->site = site;
    s->writes = 0;
    for (int b = 0; b < s->nunits; b++) {
        pd_unit *u = s->units[b].unit;
        if (s->kind == PD_UNIT_ALONE) pd_unit_round(u);
        if (s->seen != s->readers->seen) pd_unit_changed(u);
        pd_unit_forget(u);
        if (s->kind != PD_UNIT_ALONE) s->writes += pd_unit_writes(u); /* alone the wholes' versions say it */
    }
    s->seen = s->readers->seen;
    return s->units[0].slot ? arm(s) : PD_OK;
}

void pd_sharded_leave(pd_sharded *s) {
    if (--s->depth || s->running) return;
    drop_ahead(s);
    pd_readers_end(s->readers);
}

pd_sharded_options *pd_sharded_options_of(pd_sharded *s, int unit) { return &s->units[unit].o; }

void pd_sharded_set_end(pd_sharded *s, pd_closure end) {
    pd_closure_drop(&s->end);
    s->end = end;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static pd_status make_layout(pd_sharded *s) {
    pd_piece *pieces;
    int *unit = NULL;
    PD_TRY(pd_calloc(sizeof *pieces * (size_t)s->nmembers, OP, &pieces));
    pd_status status = pd_malloc(sizeof *unit * (size_t)s->nmembers, OP, &unit);
    for (int i = 0; i < s->nmembers && !status; i++) {
        pieces[i] = *s->members[i].p->piece;
        unit[i] = s->members[i].unit;
    }
    PD_THEN(pd_layout_init(&s->layout, s->nmembers, pieces));
    PD_THEN(pd_layout_group(&s->layout, s->nunits, unit));
    pd_free(unit);
    pd_free(pieces);
    return status;
}

static pd_status make_bundles(pd_sharded *s) {
    int most = 0;
    for (int b = 0; b < s->nunits; b++) most = s->units[b].count > most ? s->units[b].count : most;
    if (s->kind == PD_UNIT_GATHERED) PD_TRY(pd_bundle_init(&s->reducing, most, pd_group_size(s->group)));
    return s->replicas ? pd_bundle_init(&s->added, most, 0) : PD_OK;
}

static pd_status attach(pd_member *m) {
    pd_meta *meta = NULL;
    pd_status status;
    m->owner = m->shard_owner = (pd_grad_owner){.name = OP, .leaf = m->p->piece->name};
    m->owner.elsewhere = true;
    m->owner.lends = is_outer(m->s, m->unit); /* a slot of the ring is other units', too */
    PD_TRY(pd_meta_get(m->p->whole, &meta));
    PD_TRY(pd_grad_take(m->p->whole, &m->owner, NULL));
    m->hook = pd_hook_add(&meta->hooks, PD_HOOK_READY, 0, (pd_closure){.call = on_ready, .ctx = m}, &status);
    return status;
}

static pd_status build(pd_sharded *s, pd_unit *const *units, int n) {
    for (int b = 0; b < n; b++) s->nmembers += units[b]->n;
    PD_TRY(pd_calloc(sizeof *s->units * (size_t)n, OP, &s->units));
    s->nunits = n;
    PD_TRY(pd_calloc(sizeof *s->members * (size_t)s->nmembers, OP, &s->members));
    int i = 0;
    for (int b = 0; b < n; b++) {
        pd_section *u = &s->units[b];
        *u = (pd_section){.unit = units[b], .first = i, .count = units[b]->n, .o.reduced = PD_NO_DTYPE};
        pd_unit_retain(u->unit);
        if (s->windows) pd_unit_set_windows(u->unit, s->windows, is_outer(s, b));
        u->unit->early = is_delivered;
        u->unit->ctx = u;
        for (int k = 0; k < u->count; k++, i++)
            s->members[i] = (pd_member){.s = s, .unit = b, .piece = i, .p = &u->unit->params[k]};
    }
    PD_TRY(make_layout(s));
    PD_TRY(make_bundles(s));
    PD_TRY(pd_ready_init(&s->ready, &s->layout, start_unit, s));
    for (int k = 0; k < s->nmembers; k++) PD_TRY(attach(&s->members[k]));
    return PD_OK;
}

pd_status pd_sharded_new(pd_unit *const *units, int n, bool last_is_outer, pd_group *replicas, pd_sharded **out) {
    pd_sharded *s;
    for (int b = 1; b < n; b++)
        if (units[b]->group != units[0]->group || units[b]->kind != units[0]->kind)
            return pd_fail(PD_E_VALUE,
                           OP ": units of one model are sharded over different groups, or in different ways (expected "
                           "one mesh for all)");
    PD_TRY(pd_calloc(sizeof *s, OP, &s));
    atomic_init(&s->refs, 1);
    pd_group_retain(s->group = units[0]->group);
    if (replicas) pd_group_retain(s->replicas = replicas);
    s->readers = units[0]->readers;
    s->kind = units[0]->kind;
    s->last_is_outer = last_is_outer;
    s->begun = s->adding = -1;
    pd_status status = s->kind == PD_UNIT_GATHERED ? pd_windows_new(&s->windows) : PD_OK;
    PD_THEN(build(s, units, n));
    if (status) {
        pd_sharded_free(s);
        return PD_TRAIL(status);
    }
    *out = s;
    return PD_OK;
}

static void release(pd_sharded *s) {
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1) return;
    for (int i = 0; i < s->nmembers && s->members; i++) {
        pd_tensor_release(s->members[i].view);
        pd_tensor_release(s->members[i].wide);
        pd_tensor_release(s->members[i].sum);
        pd_tensor_release(s->members[i].own);
        pd_tensor_release(s->members[i].made);
        pd_tensor_release(s->members[i].held);
    }
    for (int b = 0; b < s->nunits && s->units; b++) pd_unit_release(s->units[b].unit);
    for (int k = 0; k < RING; k++) pd_segment_release(s->ring[k]);
    pd_segment_release(s->outer);
    pd_ready_fini(&s->ready);
    pd_layout_fini(&s->layout);
    pd_closure_drop(&s->end);
    pd_windows_release(s->windows);
    pd_bundle_fini(&s->reducing);
    pd_bundle_fini(&s->added);
    pd_group_release(s->replicas);
    pd_group_release(s->group);
    pd_free(s->members);
    pd_free(s->units);
    pd_free(s);
}

void pd_sharded_free(pd_sharded *s) {
    if (!s) return;
    s->dead = true;
    for (int i = 0; i < s->nmembers && s->members; i++) {
        pd_member *m = &s->members[i];
        if (!m->p) continue;
        pd_grad_give_up(m->p->whole, &m->owner);
        if (m->p->shard) pd_grad_give_up(m->p->shard, &m->shard_owner);
        if (m->hook) pd_hook_remove(&m->p->whole->meta->hooks, m->hook);
        m->hook = 0;
    }
    for (int b = 0; b < s->nunits && s->units; b++) {
        pd_unit *u = s->units[b].unit;
        if (!u) continue;
        if (u->ctx == &s->units[b]) u->early = NULL;
        if (s->windows && u->windows == s->windows) pd_unit_set_windows(u, NULL, false);
    }
    release(s);
}
