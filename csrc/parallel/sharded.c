#include "parallel/sharded.h"

#include <string.h>

#include "base/mem.h"
#include "comm/algo/reduce.h"
#include "comm/group/mover.h"
#include "ops/ops.h"
#include "parallel/ready.h"

#define OP "fully_shard"
#define RING 3

typedef struct member { /* a parameter of a unit */
    struct pd_sharded *s;
    int unit, piece;       /* piece: its number in s->layout */
    pd_unit_param *p;
    pd_grad_owner owner, shard_owner;
    uint64_t hook;
    pd_tensor *view;       /* [strong] the whole's gradient in the unit's slot; NULL: there is no slot yet */
    pd_tensor *own;        /* [strong] the shard's .grad, when the unit makes it */
    pd_tensor *made;       /* [strong] this backward's sum: own, or another one if .grad is there already */
    pd_tensor *held;       /* [strong] sums of the shard group that the replicas have not added yet; NULL: none */
    pd_tensor *seen;       /* the shard that own and shard_owner belong to (only compared) */
    bool used;             /* by any rank, in this backward */
} member;

typedef struct section { /* a unit */
    pd_unit *unit;         /* [strong] */
    int first, count;      /* its members */
    pd_segment *slot;      /* [borrowed] NULL: none yet */
    size_t flags;          /* where they are in the slot, one byte for each member, after the gradients */
    pd_sharded_options o;
    bool has_slot;         /* the wholes' gradients go there */
    bool delivered;        /* in this backward */
} section;

struct pd_sharded {
    atomic_int refs;       /* the owner's, and one while a backward will call it at its end */
    pd_group *group, *replicas;
    pd_readers *readers;
    pd_unit_kind kind;
    int nunits, nmembers;
    section *units;
    member *members;
    pd_layout layout;      /* pieces of all units; a bucket for each unit */
    pd_ready ready;
    pd_segment *ring[RING], *outer; /* [strong] */
    bool last_is_outer, dead;
    int depth;
    bool running, reading;
    int begun;             /* the unit whose reduction is under way; -1: none */
    pd_work *gate;
    uint64_t site, seen, writes;
    pd_closure end;
};

static bool wants(const member *m) { return m->p->whole->requires_grad; }
static pd_tensor *whole_grad(const member *m) { return m->p->whole->meta ? m->p->whole->meta->grad : NULL; }

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static size_t unit_bytes(const pd_sharded *s, const section *u) {
    size_t bytes = 0;
    for (int k = 0; k < u->count; k++) bytes += pd_unit_room(s->members[u->first + k].p);
    return bytes;
}

static int ring_of(const pd_sharded *s) {
    int inner = s->nunits - s->last_is_outer;
    return inner < RING ? inner : RING;
}
static bool is_outer(const pd_sharded *s, int b) { return s->last_is_outer && b == s->nunits - 1; }

/* The whole's gradients lie in the slot from now on, or anywhere. */
static pd_status take_slot(pd_sharded *s, section *u, bool take) {
    for (int k = 0; k < u->count; k++) {
        member *m = &s->members[u->first + k];
        if (wants(m)) PD_TRY(pd_grad_take(m->p->whole, &m->owner, take ? m->view : NULL));
    }
    u->has_slot = take;
    return PD_OK;
}

static void drop_segment(void *segment) { pd_segment_release(segment); }

static pd_status make_views(pd_sharded *s, section *u) {
    pd_storage *storage;
    size_t at = 0;
    PD_TRY(pd_storage_external(&pd_device_cpu, pd_segment_ptr(u->slot), pd_segment_bytes(u->slot), drop_segment,
                               u->slot, &storage));
    pd_segment_retain(u->slot); /* the storage's */
    pd_status status = PD_OK;
    for (int k = 0; k < u->count && !status; k++) {
        member *m = &s->members[u->first + k];
        const size_t size = pd_dtype_size((pd_dtype)m->p->whole->dtype);
        pd_tensor_release(m->view);
        m->view = NULL;
        if (!(status = pd_tensor_alias(m->p->whole, false, &m->view))) {
            pd_storage_release(m->view->storage);
            pd_storage_retain(m->view->storage = storage);
            m->view->offset = (int64_t)(at / size);
        }
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
        const section *u = &s->units[b];
        size_t n = unit_bytes(s, u) + (size_t)u->count;
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
        section *u = &s->units[b];
        bool has = u->slot && (b < RING || is_outer(s, b)) && !u->o.accumulates;
        if (has != u->has_slot) PD_TRY(take_slot(s, u, has));
    }
    return PD_OK;
}

static char *flags_of(const section *u, int rank) { return (char *)pd_segment_peer(u->slot, rank) + u->flags; }

/* Makes sure that the gradient is in the slot; a parameter without one counts as zero. */
static pd_status into_slot(member *m) {
    pd_tensor *g = whole_grad(m);
    if (!g) memset(pd_tensor_data(m->view), 0, pd_tensor_bytes(m->view));
    else if (g->storage != m->view->storage || g->offset != m->view->offset)
        PD_TRY(pd_engine.copy_into(m->view, g));
    if (g) pd_meta_set_grad(m->p->whole->meta, NULL);
    return PD_OK;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* [new] memory for the sum of a shard's gradient, contiguous. */
static pd_status new_sum(const member *m, pd_tensor **out) {
    const pd_tensor *shard = m->p->shard;
    const pd_device *was;
    PD_TRY(pd_device_enter(shard->storage->device, &was));
    pd_status status = pd_tensor_new(OP, (pd_dtype)shard->dtype, shard->ndim, shard->size, out);
    pd_device_here = was;
    if (!status) pd_tensor_set_spread(*out, shard->spread);
    return status;
}

/* Sets m->made to where the sum will be: the unit's own .grad of the shard, unless that has a value already. */
static pd_status prepare_sum(member *m) {
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

/* By what sums are multiplied, once: the replicas' if there are replicas, else those of the shard group. */
static double scale_of(const pd_sharded *s, const section *u) {
    double ranks = pd_group_size(s->group) * (s->replicas ? pd_group_size(s->replicas) : 1);
    return 1 / (u->o.divisor ? u->o.divisor : ranks);
}

static pd_dtype rounded_to(const section *u, const member *m) {
    return u->o.reduced != PD_NO_DTYPE ? u->o.reduced : (pd_dtype)m->p->whole->dtype;
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

/* Adds up this rank's rows of all slots. */
static void sum_slots(const pd_sharded *s, const section *u, const member *m, const char **in, double scale) {
    const pd_unit_param *p = m->p;
    const pd_dtype t = (pd_dtype)m->view->dtype, to = (pd_dtype)m->made->dtype;
    const int size = pd_group_size(s->group);
    const int64_t each = p->hi - p->lo;
    char *out = pd_tensor_data(m->made);
    for (int r = 0; r < size; r++)
        in[r] = (const char *)pd_segment_peer(u->slot, r) + (size_t)m->view->offset * pd_dtype_size(t);
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

/* Keeps the sum for a later backward, which adds it over the replicas. */
static pd_status hold_sum(member *m) {
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

/* Adds the sums of the shard groups over the replicas, and what they have used. */
static pd_status sum_replicas(pd_sharded *s, section *u) {
    for (int k = 0; k < u->count && s->replicas; k++) {
        member *m = &s->members[u->first + k];
        if (!wants(m)) continue;
        if (u->o.apart) {
            PD_TRY(hold_sum(m));
            continue;
        }
        uint8_t used = m->used || m->held;
        PD_TRY(pd_group_all_reduce(s->replicas, &used, 1, PD_U8, PD_REDUCE_MAX, 1, s->site, NULL));
        if (!used) continue;
        if (!m->used) memset(pd_tensor_data(m->made), 0, pd_tensor_bytes(m->made));
        if (m->held) PD_TRY(pd_engine.add_into(m->made, m->held));
        pd_tensor_release(m->held);
        m->held = NULL;
        m->used = true;
        PD_TRY(pd_group_all_reduce(s->replicas, pd_tensor_data(m->made), m->made->numel, (pd_dtype)m->made->dtype,
                                   PD_REDUCE_SUM, scale_of(s, u), s->site, NULL));
    }
    return PD_OK;
}

/* Gives the shards their gradients; their hooks run. */
static pd_status deliver(pd_sharded *s, section *u) {
    u->delivered = true;
    for (int k = 0; k < u->count; k++) {
        member *m = &s->members[u->first + k];
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

static int64_t elements_of(const pd_sharded *s, const section *u) {
    int64_t n = 0;
    for (int k = 0; k < u->count; k++) n += s->members[u->first + k].p->whole->numel;
    return n;
}

static pd_status start_in_slots(pd_sharded *s, int b) {
    section *u = &s->units[b];
    char *flags = flags_of(u, pd_group_rank(s->group));
    for (int k = 0; k < u->count; k++) {
        member *m = &s->members[u->first + k];
        flags[k] = wants(m) && whole_grad(m);
        if (wants(m)) PD_TRY(into_slot(m));
    }
    const pd_dtype t = (pd_dtype)s->members[u->first].p->whole->dtype;
    return pd_group_reduce_gate(s->group, b, elements_of(s, u), t, scale_of(s, u), s->site, &s->gate);
}

static pd_status read_slots(pd_sharded *s, int b) {
    section *u = &s->units[b];
    const int size = pd_group_size(s->group);
    const char **in;
    pd_status status = pd_work_wait(s->gate, -1);
    pd_work_release(s->gate);
    s->gate = NULL;
    PD_TRY(status);
    PD_TRY(pd_malloc(sizeof *in * (size_t)size, OP, &in));
    for (int k = 0; k < u->count && !status; k++) {
        member *m = &s->members[u->first + k];
        m->used = false;
        for (int r = 0; r < size; r++) m->used |= flags_of(u, r)[k] != 0;
        if (!wants(m) || !(m->used || s->replicas)) continue;
        status = prepare_sum(m);
        if (!status && m->used) sum_slots(s, u, m, in, s->replicas ? 1 : scale_of(s, u));
    }
    pd_free(in);
    return status;
}

/* Of gathered units: [new] the gradient, or zeros, contiguous and in the dtype in which it is summed. */
static pd_status gradient_to_send(const section *u, member *m, pd_tensor **out) {
    const pd_piece *piece = m->p->piece;
    const pd_dtype t = rounded_to(u, m);
    const pd_device *was;
    pd_tensor *g = whole_grad(m);
    if (g && g->dtype == (int)t && pd_tensor_is_contiguous(g)) pd_tensor_retain(*out = g);
    else {
        PD_TRY(pd_device_enter(m->p->shard->storage->device, &was));
        pd_status status = pd_tensor_new(OP, t, piece->ndim, piece->size, out);
        if (!status && !g) pd_fill(*out, &(pd_scalar){.cat = PD_CAT_INT});
        pd_device_here = was;
        if (g) PD_THEN(pd_engine.copy_into(*out, g));
        PD_TRY(status);
    }
    if (g) pd_meta_set_grad(m->p->whole->meta, NULL);
    return PD_OK;
}

/* Sends one parameter's gradient and waits: in a shard group without common memory. */
static pd_status reduce_one(pd_sharded *s, const section *u, member *m, pd_part *parts) {
    const pd_unit_param *p = m->p;
    const int size = pd_group_size(s->group);
    const pd_device *was;
    pd_tensor *g = NULL, *packed = NULL, *sum = NULL;
    const double scale = s->replicas ? 1 : scale_of(s, u);
    PD_TRY(gradient_to_send(u, m, &g));
    const pd_dtype t = (pd_dtype)g->dtype;
    pd_status status = pd_device_enter(g->storage->device, &was);
    if (!status && p->outer > 1) status = pd_tensor_new(OP, t, 1, &g->numel, &packed);
    for (int r = 0; r < size && !status; r++) {
        int64_t lo, hi;
        status = pd_unit_cut(p, r, &lo, &hi);
        char *to = pd_tensor_data(packed ? packed : g);
        parts[r] = (pd_part){to + (size_t)(lo * p->outer) * pd_dtype_size(t), (hi - lo) * p->outer};
        if (packed)
            PD_THEN(pd_unit_move_rows(p, g->storage->device, pd_dtype_size(t), pd_tensor_data(g), parts[r].data, lo, hi,
                                      true));
    }
    PD_THEN(prepare_sum(m));
    if (!status && m->made->dtype == (int)t) pd_tensor_retain(sum = m->made);
    PD_THEN(sum ? PD_OK : pd_tensor_new(OP, t, m->made->ndim, m->made->size, &sum));
    PD_THEN(pd_group_reduce_scatter_parts(s->group, parts, pd_tensor_data(sum), t, PD_REDUCE_SUM, scale, s->site,
                                          NULL));
    if (!status && sum != m->made) status = pd_engine.copy_into(m->made, sum);
    pd_device_here = was;
    pd_tensor_release(sum);
    pd_tensor_release(packed);
    pd_tensor_release(g);
    return status;
}

static pd_status reduce_by_messages(pd_sharded *s, int b) {
    section *u = &s->units[b];
    uint8_t *used;
    pd_part *parts = NULL;
    PD_TRY(pd_malloc((size_t)u->count, OP, &used));
    for (int k = 0; k < u->count; k++) {
        const member *m = &s->members[u->first + k];
        used[k] = wants(m) && whole_grad(m);
    }
    pd_status status = pd_group_all_reduce(s->group, used, u->count, PD_U8, PD_REDUCE_MAX, 1, s->site, NULL);
    PD_THEN(pd_malloc(sizeof *parts * (size_t)pd_group_size(s->group), OP, &parts));
    for (int k = 0; k < u->count && !status; k++) {
        member *m = &s->members[u->first + k];
        m->used = used[k];
        if (wants(m) && m->used) status = reduce_one(s, u, m, parts);
        else if (wants(m) && s->replicas) status = prepare_sum(m);
    }
    pd_free(parts);
    pd_free(used);
    return status;
}

/* In a world of one the whole's gradient is the shard's. */
static pd_status hand_over(pd_sharded *s, section *u) {
    for (int k = 0; k < u->count; k++) {
        member *m = &s->members[u->first + k];
        pd_tensor *g = whole_grad(m);
        m->used = wants(m) && g;
        if (wants(m) && !g && s->replicas) PD_TRY(prepare_sum(m));
        if (!m->used) continue;
        if (g->dtype == m->p->shard->dtype) pd_tensor_retain(m->made = g);
        else PD_TRY(pd_engine.cast(g, (pd_dtype)m->p->shard->dtype, &m->made));
        pd_tensor_set_spread(m->made, m->p->shard->spread);
        pd_meta_set_grad(m->p->whole->meta, NULL);
        if (u->o.divisor && u->o.divisor != 1 && !s->replicas)
            PD_TRY(pd_alone_scale(m->made->storage->device, OP, (pd_dtype)m->made->dtype, 1 / u->o.divisor,
                                  pd_tensor_data(m->made), m->made->numel));
    }
    return PD_OK;
}

/* Ends what pd_ready has started: reads its slots, and gives the shards their gradients. */
static pd_status finish_unit(pd_sharded *s) {
    const int b = s->begun;
    if (b < 0) return PD_OK;
    section *u = &s->units[b];
    s->begun = -1;
    if (u->o.accumulates) return PD_OK;
    if (s->kind == PD_UNIT_COMMON) PD_TRY(read_slots(s, b));
    PD_TRY(sum_replicas(s, u));
    return deliver(s, u);
}

static pd_status start_unit(void *sharded, int b) {
    pd_sharded *s = sharded;
    section *u = &s->units[b];
    PD_TRY(finish_unit(s));
    if (s->kind == PD_UNIT_COMMON && b > RING - 2 && b + 1 < s->nunits) { /* all have read the unit before b - 1 */
        section *next = &s->units[b + 1];
        if (!is_outer(s, b + 1) && !next->o.accumulates) PD_TRY(take_slot(s, next, true));
    }
    s->begun = b;
    if (u->o.accumulates) return PD_OK;
    if (s->kind == PD_UNIT_COMMON) {
        PD_TRY(take_slot(s, u, false));
        return start_in_slots(s, b);
    }
    PD_TRY(s->kind == PD_UNIT_ALONE ? hand_over(s, u) : reduce_by_messages(s, b));
    return u->o.keeps ? PD_OK : pd_unit_drop(u->unit);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

static void forget(pd_sharded *s) {
    if (s->gate) pd_work_release(s->gate);
    s->gate = NULL;
    s->begun = -1;
    for (int i = 0; i < s->nmembers; i++) {
        member *m = &s->members[i];
        if (m->p->whole->meta && !s->units[m->unit].o.accumulates) pd_meta_set_grad(m->p->whole->meta, NULL);
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
    PD_TRY(pd_group_reduce_gate(s->group, -1, 0, PD_U8, 1, s->site, NULL));
    pd_readers_meet(s->readers);
    return PD_OK;
}

/* Gradients that came after their unit was reduced: the unit is reduced again. */
static pd_status reduce_late(pd_sharded *s) {
    for (int b = 0; b < s->nunits; b++) {
        const section *u = &s->units[b];
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
    for (int b = 0; b < s->nunits; b++) writes += pd_unit_writes(s->units[b].unit);
    if (writes == s->writes || s->kind == PD_UNIT_ALONE) return PD_OK; /* alone: the wholes' versions say it */
    return pd_fail(PD_E_RUNTIME,
                   "backward: shards have been written since the forward (expected no step and no edit between a "
                   "forward and its backward)");
}

static pd_status begin_backward(pd_sharded *s) {
    PD_TRY(check_writes(s));
    PD_TRY(pd_engine_at_end((pd_closure){.call = at_end, .drop = drop, .ctx = s}));
    s->refs++;
    s->running = true;
    if (!s->reading) {
        PD_TRY(pd_readers_begin(s->readers, s->site));
        s->reading = true;
    }
    if (s->kind == PD_UNIT_COMMON && !s->units[0].slot) {
        PD_TRY(make_slots(s));
        PD_TRY(arm(s));
    }
    pd_ready_begin(&s->ready);
    for (int i = 0; i < s->nmembers; i++)
        if (wants(&s->members[i])) pd_ready_expect(&s->ready, s->members[i].piece);
    return PD_OK;
}

static pd_status on_ready(void *ctx, void *leaf) {
    member *m = ctx;
    pd_sharded *s = m->s;
    (void)leaf;
    if (!s->running) PD_TRY(begin_backward(s));
    if (s->ready.came[m->piece]) return PD_OK; /* it has come late, or once more: see reduce_late */
    PD_TRY(pd_ready_came(&s->ready, m->piece));
    return s->ready.next ? pd_group_progress(s->group) : PD_OK;
}

static bool is_delivered(void *ctx) { return ((section *)ctx)->delivered; }

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
        s->writes += pd_unit_writes(u);
    }
    s->seen = s->readers->seen;
    return s->units[0].slot ? arm(s) : PD_OK;
}

void pd_sharded_leave(pd_sharded *s) {
    if (--s->depth == 0 && !s->running) pd_readers_end(s->readers);
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

static pd_status attach(member *m) {
    pd_meta *meta = NULL;
    pd_status status;
    m->owner = m->shard_owner = (pd_grad_owner){.name = OP, .leaf = m->p->piece->name};
    m->owner.elsewhere = true;
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
        section *u = &s->units[b];
        *u = (section){.unit = units[b], .first = i, .count = units[b]->n, .o.reduced = PD_NO_DTYPE};
        pd_unit_retain(u->unit);
        u->unit->early = is_delivered;
        u->unit->ctx = u;
        for (int k = 0; k < u->count; k++, i++)
            s->members[i] = (member){.s = s, .unit = b, .piece = i, .p = &u->unit->params[k]};
    }
    PD_TRY(make_layout(s));
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
    s->begun = -1;
    pd_status status = build(s, units, n);
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
        member *m = &s->members[i];
        if (!m->p) continue;
        pd_grad_give_up(m->p->whole, &m->owner);
        if (m->p->shard) pd_grad_give_up(m->p->shard, &m->shard_owner);
        if (m->hook) pd_hook_remove(&m->p->whole->meta->hooks, m->hook);
        m->hook = 0;
    }
    for (int b = 0; b < s->nunits && s->units; b++)
        if (s->units[b].unit && s->units[b].unit->ctx == &s->units[b]) s->units[b].unit->early = NULL;
    release(s);
}
