/* Gathered wholes: their messages, and the windows in which they lie (unit.h). */
#include <string.h>

#include "autograd/apply.h"
#include "base/mem.h"
#include "base/profile.h"
#include "parallel/between.h"
#include "parallel/unit_impl.h"

#define OP PD_UNIT_OP

/* ---- windows ----------------------------------------------------------------------------------------------------- */

pd_status pd_windows_new(pd_windows **out) {
    PD_TRY(pd_calloc(sizeof **out, OP, out));
    atomic_init(&(*out)->refs, 1);
    return PD_OK;
}

void pd_windows_release(pd_windows *w) {
    if (!w || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) > 1) return;
    for (int k = 0; k < PD_WINDOWS; k++) pd_storage_release(w->memory[k]);
    pd_free(w);
}

static void give_back(pd_unit *u) {
    if (u->slot >= 0) u->windows->unit[u->slot] = NULL;
    u->slot = -1;
    u->valid = false;
    pd_storage_release(u->window);
    u->window = NULL;
}

/* Makes the ring's window the unit's own; the ring gets another one when it needs it. */
static void take_out(pd_unit *u) {
    if (u->slot < 0) return;
    u->windows->unit[u->slot] = NULL;
    pd_storage_release(u->windows->memory[u->slot]);
    u->windows->memory[u->slot] = NULL;
    u->slot = -1;
}

void pd_unit_set_windows(pd_unit *u, pd_windows *w, bool outer) {
    if (u->kind != PD_UNIT_GATHERED) return;
    if (u->gathered || u->under_way) take_out(u);
    else give_back(u);
    pd_windows_release(u->windows);
    u->windows = w;
    u->outer = outer;
    if (!w) return;
    atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
    if (!outer && w->bytes < u->room) w->bytes = u->room;
}

static bool is_busy(const pd_unit *u) { return u && (u->gathered || u->under_way); }

static void touch(pd_unit *u) {
    if (u->slot >= 0) u->windows->used[u->slot] = ++u->windows->uses;
}

/* Takes the window of the ring that was used longest ago. *got false: all are in use. */
static pd_status take_from_ring(pd_unit *u, const pd_device *d, bool *got) {
    pd_windows *w = u->windows;
    int k = -1;
    for (int i = 0; i < PD_WINDOWS; i++)
        if (!is_busy(w->unit[i]) && (k < 0 || w->used[i] < w->used[k])) k = i;
    *got = k >= 0;
    if (k < 0) return PD_OK;
    if (w->unit[k]) give_back(w->unit[k]);
    if (w->bytes < u->room) w->bytes = u->room;
    if (w->memory[k] && (w->memory[k]->bytes < w->bytes || w->memory[k]->device != d)) {
        pd_storage_release(w->memory[k]);
        w->memory[k] = NULL;
    }
    if (!w->memory[k]) PD_TRY(pd_storage_new(d, w->bytes, &w->memory[k]));
    pd_storage_retain(u->window = w->memory[k]);
    w->unit[k] = u;
    u->slot = k;
    touch(u);
    return PD_OK;
}

/* *got false: with PD_AHEAD, there is no window now. */
static pd_status take_window(pd_unit *u, pd_where where, bool *got) {
    const pd_device *d = u->params[0].shard->storage->device;
    *got = true;
    if (u->window && u->slot < 0 && u->window->bytes >= u->room && u->window->device == d) return PD_OK;
    if (u->window && u->slot >= 0 && where != PD_IN_OWN && u->window->bytes >= u->room && u->window->device == d) {
        touch(u);
        return PD_OK;
    }
    give_back(u);
    if (where != PD_IN_OWN && u->windows && !u->outer) {
        PD_TRY(take_from_ring(u, d, got));
        if (*got || where == PD_AHEAD) return PD_OK;
    } else if (where == PD_AHEAD && !u->outer) {
        *got = false;
        return PD_OK;
    }
    *got = true;
    return pd_storage_new(d, u->room, &u->window);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static int packed_message(pd_unit *u, pd_dtype t) {
    for (int m = 0; m < u->nmessages; m++)
        if (u->messages[m].param < 0 && u->messages[m].dtype == t) return m;
    u->messages[u->nmessages] = (pd_unit_message){.dtype = t, .param = -1};
    return u->nmessages++;
}

void pd_unit_plan(pd_unit *u) {
    u->room = pd_unit_lay_out(u);
    u->nmessages = 0;
    for (int i = 0; i < u->n; i++) {
        pd_unit_param *p = &u->params[i];
        const pd_dtype t = pd_unit_whole_type(p);
        if (p->outer > 1 || pd_unit_bytes(p) <= PD_UNIT_SMALL) p->message = packed_message(u, t);
        else u->messages[p->message = u->nmessages++] = (pd_unit_message){.dtype = t, .param = i};
    }
    for (int m = 0; m < u->nmessages; m++) {
        if (u->messages[m].param >= 0) continue;
        u->messages[m].at = u->room;
        for (int i = 0; i < u->n; i++)
            if (u->params[i].message == m) u->room += pd_unit_bytes(&u->params[i]);
        u->room = pd_whole_lines(u->room);
    }
}

static pd_status copy_bytes(const pd_device *d, void *to, const void *from, size_t bytes) {
    if (d->copy) return d->copy(d, OP, PD_WITHIN, to, from, bytes, PD_NO_WAIT);
    memcpy(to, from, bytes);
    return PD_OK;
}

/* Writes the shard in the whole's dtype to `at` bytes from the window's beginning. */
static pd_status put_shard(pd_unit_param *p, size_t at) {
    pd_storage *w = p->unit->window;
    const pd_dtype t = pd_unit_whole_type(p);
    pd_tensor *shard = p->shard, *to, *from;
    if (!shard->numel) return PD_OK;
    if (!pd_unit_is_low(p))
        return copy_bytes(w->device, (char *)w->data + at, pd_tensor_data(shard), pd_tensor_bytes(shard));
    PD_TRY(pd_unit_part_in(p, w, t, (int64_t)(at / pd_dtype_size(t)), shard->stride, &to));
    pd_status status = pd_tensor_alias(shard, false, &from);
    if (!status) {
        pd_tensor_set_spread(from, NULL);
        status = pd_engine.copy_into(to, from);
        pd_tensor_release(from);
    }
    pd_tensor_release(to);
    return status;
}

/* A parameter's message: from the shard, or its rounded values in their place, to the whole. */
static pd_status start_alone(pd_unit *u, int m, uint64_t site) {
    pd_unit_param *p = &u->params[u->messages[m].param];
    const size_t size = pd_dtype_size(u->messages[m].dtype);
    char *whole = (char *)u->window->data + p->at;
    const void *in = pd_tensor_data(p->shard);
    for (int r = 0; r < pd_group_size(u->group); r++) {
        int64_t lo, hi;
        PD_TRY(pd_unit_cut(p, r, &lo, &hi));
        u->parts[r] = (pd_part){whole + (size_t)lo * size, hi - lo};
    }
    if (pd_unit_is_low(p)) {
        PD_TRY(put_shard(p, p->at + (size_t)p->lo * size));
        in = whole + (size_t)p->lo * size;
    } else {
        pd_storage_retain(u->sent[m] = p->shard->storage); /* it may be replaced */
    }
    return pd_group_all_gather_parts(u->group, in, u->parts, u->messages[m].dtype, 0, site, &u->works[m]);
}

/* Sets the table of a packed message. */
static pd_status table_of(pd_unit *u, int m) {
    char *at = (char *)u->window->data + u->messages[m].at;
    for (int r = 0; r < pd_group_size(u->group); r++) {
        int64_t n = 0, lo, hi;
        for (int i = 0; i < u->n; i++) {
            if (u->params[i].message != m) continue;
            PD_TRY(pd_unit_cut(&u->params[i], r, &lo, &hi));
            n += (hi - lo) * u->params[i].outer;
        }
        u->parts[r] = (pd_part){at, n};
        at += (size_t)n * pd_dtype_size(u->messages[m].dtype);
    }
    return PD_OK;
}

static pd_status start_packed(pd_unit *u, int m, uint64_t site) {
    const pd_dtype t = u->messages[m].dtype;
    PD_TRY(table_of(u, m));
    const pd_part *own = &u->parts[pd_group_rank(u->group)];
    size_t at = (size_t)(own->data - (char *)u->window->data);
    for (int i = 0; i < u->n; i++) {
        if (u->params[i].message != m) continue;
        PD_TRY(put_shard(&u->params[i], at));
        at += (size_t)u->params[i].shard->numel * pd_dtype_size(t);
    }
    return pd_group_all_gather_parts(u->group, own->data, u->parts, t, 0, site, &u->works[m]);
}

/* From where a packed message has put them the parts go to the wholes. */
static pd_status unpack(pd_unit *u, int m) {
    const size_t size = pd_dtype_size(u->messages[m].dtype);
    PD_TRY(table_of(u, m));
    for (int r = 0; r < pd_group_size(u->group); r++) {
        char *from = u->parts[r].data;
        for (int i = 0; i < u->n; i++) {
            const pd_unit_param *p = &u->params[i];
            int64_t lo, hi;
            if (p->message != m) continue;
            PD_TRY(pd_unit_cut(p, r, &lo, &hi));
            PD_TRY(pd_unit_move_rows(p, u->window->device, size, (char *)u->window->data + p->at, from, lo, hi, false));
            from += (size_t)((hi - lo) * p->outer) * size;
        }
    }
    return PD_OK;
}

/* ---- gather and drop --------------------------------------------------------------------------------------------- */

static uint64_t writes_of_wholes(const pd_unit *u) {
    uint64_t sum = 0;
    for (int i = 0; i < u->n; i++) sum += u->params[i].all->writes;
    return sum;
}

static void show(pd_unit *u) {
    for (int i = 0; i < u->n; i++) {
        pd_storage *s = u->params[i].all;
        pd_storage_retain(u->window);
        s->ctx = u->window;
        s->data = (char *)u->window->data + u->params[i].at;
        s->device = u->window->device;
    }
    u->gathered = true;
    u->untouched = writes_of_wholes(u);
}

static void hide(pd_unit *u) {
    for (int i = 0; i < u->n; i++) {
        pd_storage *s = u->params[i].all;
        s->data = NULL;
        s->device = &pd_device_meta;
        s->ctx = NULL;
        pd_storage_release(u->window);
    }
    u->gathered = false;
}

/* Waits for the messages. */
static pd_status end_messages(pd_unit *u) {
    pd_status status = PD_OK;
    const pd_device *was;
    if (!u->under_way) return PD_OK;
    u->under_way = false;
    for (int m = 0; m < u->nmessages; m++) {
        if (u->works[m]) PD_THEN(pd_work_wait(u->works[m], -1));
        pd_work_release(u->works[m]);
        pd_storage_release(u->sent[m]);
        u->works[m] = NULL;
        u->sent[m] = NULL;
    }
    pd_between_end();
    PD_TRY(status);
    PD_TRY(pd_device_enter(u->window->device, &was));
    for (int m = 0; m < u->nmessages && !status; m++)
        if (u->messages[m].param < 0) status = unpack(u, m);
    pd_device_here = was;
    PD_TRY(status);
    for (int i = 0; i < u->n; i++) /* what was made of former values is noticed */
        atomic_fetch_add_explicit(&u->params[i].all->writes, 1, memory_order_relaxed);
    u->valid = true;
    return PD_OK;
}

static pd_status start_messages(pd_unit *u, uint64_t site) {
    const pd_device *was;
    pd_status status = PD_OK;
    PD_TRY(pd_device_enter(u->window->device, &was));
    u->under_way = true;
    for (int m = 0; m < u->nmessages && !status; m++)
        status = u->messages[m].param < 0 ? start_packed(u, m, site) : start_alone(u, m, site);
    pd_device_here = was;
    pd_between_begin(u->group);
    if (!status) return PD_OK;
    pd_unit_abandon(u);
    return PD_TRAIL(status);
}

pd_status pd_unit_start(pd_unit *u, pd_where where, uint64_t site) {
    bool got;
    if (u->kind != PD_UNIT_GATHERED || !pd_unit_is_settled(u)) return PD_OK;
    const uint64_t writes = pd_unit_writes(u);
    if ((u->gathered || u->under_way || u->valid) && u->gathered_at == writes) {
        if (where == PD_IN_OWN) take_out(u);
        touch(u);
        return PD_OK;
    }
    PD_TRY(end_messages(u));
    PD_TRY(pd_unit_drop(u));
    PD_TRY(take_window(u, where, &got));
    if (!got) return PD_OK;
    u->valid = false;
    u->ahead = where == PD_AHEAD;
    u->gathered_at = writes;
    return start_messages(u, site);
}

pd_status pd_unit_gather(pd_unit *u, pd_where where, uint64_t site) {
    const bool new = u->kind == PD_UNIT_GATHERED && !u->gathered;
    const pd_timespan span = new ? pd_timespan_begin() : (pd_timespan){0};
    PD_TRY(pd_unit_start(u, where, site));
    PD_TRY(end_messages(u));
    if (u->valid && !u->gathered) show(u);
    pd_timespan_end(&span, PD_SPAN_CALL, OP ": unshard", 0);
    return PD_OK;
}

pd_status pd_unit_drop(pd_unit *u) {
    PD_TRY(end_messages(u));
    if (u->gathered) {
        for (int i = 0; i < u->n; i++)
            if (pd_storage_may_move(OP, u->params[i].all))
                return pd_fail(PD_E_RUNTIME, OP ": parameter %s is lent when its unit is resharded (expected clone())",
                               u->params[i].piece->name);
        if (writes_of_wholes(u) != u->untouched) u->valid = false;
        hide(u);
    }
    if (u->slot < 0 && !u->outer) give_back(u);
    return PD_OK;
}

void pd_unit_forget(pd_unit *u) {
    if (!is_busy(u)) u->valid = false;
}

void pd_unit_abandon(pd_unit *u) {
    pd_error e;
    if (u->kind != PD_UNIT_GATHERED || !u->messages) return;
    pd_error_save(&e);
    (void)end_messages(u);
    pd_error_restore(&e);
    if (u->gathered) {
        take_out(u); /* a user's tensor may keep it */
        u->gathered = false;
    }
    give_back(u);
}
