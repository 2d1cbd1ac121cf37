#include "comm/group/straggler.h"

#include <stdio.h>

#include "base/flags.h"
#include "base/log.h"

#define ASK_NS 300000000 /* missing ranks are asked where they are so long before a warning */
#define UNHURRIED_NS INT64_C(5000000000)

static int64_t waited(const pd_straggler *l) { return pd_os_now() - l->start; }

/* The first missing rank, by its number in the job; -1: none, or any rank will do. */
static int first_missing(const pd_straggler *l) {
    const pd_group *g = l->g;
    for (int r = 0; !l->any && r < g->size; r++)
        if (r != g->rank && l->is_missing(g, l->w, r)) return pd_group_name(g, r);
    return -1;
}

static void show(pd_straggler *l) {
    pd_standing *s = &l->g->standing;
    atomic_store_explicit(&s->on, first_missing(l), memory_order_relaxed);
}

void pd_straggler_begin(pd_straggler *l, int64_t deadline) {
    pd_standing *s = &l->g->standing;
    l->start = pd_os_now();
    l->from = l->start;
    l->deadline = deadline;
    l->asked = -1;
    l->warned = l->g->warn_ns <= 0;
    l->next = l->start + l->g->blocked_ns;
    show(l);
    atomic_store_explicit(&s->seq, l->w->seq, memory_order_relaxed);
    atomic_store_explicit(&s->message, l->w->id.coll == PD_COLL_SEND || l->w->id.coll == PD_COLL_RECV,
                          memory_order_relaxed);
    atomic_store_explicit(&s->since, l->start, memory_order_release);
}

void pd_straggler_end(pd_straggler *l) { atomic_store_explicit(&l->g->standing.since, 0, memory_order_release); }

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Writes ": it computes at data.py:88; ...", as far as that is known. */
static size_t where_text(pd_group *g, int name, char *text, size_t size) {
    char place[sizeof g->link->places[0].text], task[64];
    if (!size) return 0;
    *text = 0;
    if (!g->link) return 0;
    bool known = pd_link_place(g->link, name, place, sizeof place);
    bool busy = pd_link_task_of(g->link, name, task, sizeof task) > 0;
    int n = snprintf(text, size, "%s%s%s%s%s", busy ? ": long task '" : "", busy ? task : "", busy ? "'" : "",
                     known ? ": " : "", known ? place : "");
    return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

/* Writes "rank 1 (last: #16 broadcast): it computes at data.py:88, rank 3 (nothing yet)". */
static void missing_text(const pd_straggler *l, char *text, size_t size) {
    pd_group *g = l->g;
    size_t n = 0;
    *text = 0;
    for (int r = 0; r < g->size && n + 80 < size; r++) {
        if (r == g->rank || !l->is_missing(g, l->w, r)) continue;
        const pd_line *a = &g->boards[r]->line[0], *b = &g->boards[r]->line[1];
        uint32_t na = atomic_load(&a->seq), nb = atomic_load(&b->seq);
        const pd_line *last = (int32_t)(na - nb) > 0 ? a : b;
        uint32_t seq = last == a ? na : nb;
        const char *name = last->id.coll < PD_COLL_COUNT ? pd_collective_names[last->id.coll] : "?";
        n += (size_t)snprintf(text + n, size - n, "%srank %d ", n ? ", " : "", pd_group_name(g, r));
        if (seq) n += (size_t)snprintf(text + n, size - n, "(last: #%u %s)", seq, name);
        else n += (size_t)snprintf(text + n, size - n, "(nothing yet)");
        n += where_text(g, pd_group_name(g, r), text + n, n < size ? size - n : 0);
    }
}

static void warn(const pd_straggler *l) {
    char call[400], missing[1500];
    pd_work_text(l->g, l->w, call, sizeof call);
    missing_text(l, missing, sizeof missing);
    pd_log(PD_LOG_WARN, "rank %d: %s has waited %.0f s for %s", pd_group_name(l->g, l->g->rank), call,
           (double)waited(l) * 1e-9, missing);
}

static pd_status timed_out(const pd_straggler *l) {
    char call[400], missing[1500];
    pd_work_text(l->g, l->w, call, sizeof call);
    missing_text(l, missing, sizeof missing);
    return pd_fail(PD_E_TIMEOUT, "%s: rank %d waited %.1f s for %s", call, pd_group_name(l->g, l->g->rank),
                   (double)waited(l) * 1e-9, missing);
}

/* ---- those who wait for each other ------------------------------------------------------------------------------- */

static pd_status in_a_circle(const pd_straggler *l) {
    pd_group *g = l->g;
    char call[400], text[1500] = "";
    size_t n = 0;
    pd_work_text(g, l->w, call, sizeof call);
    for (int i = 0; i < l->hops && i < PD_PLACES && n + 80 < sizeof text; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%srank %d", n ? ", " : "", l->chain[i]);
        n += where_text(g, l->chain[i], text + n, sizeof text - n);
    }
    return pd_fail(PD_E_TIMEOUT, "%s: ranks wait for each other: rank %d waited %.1f s for %s", call,
                   pd_group_name(g, g->rank), (double)waited(l) * 1e-9, text);
}

static void ask(pd_straggler *l, int name) {
    if (l->hops < PD_PLACES) l->chain[l->hops] = name;
    l->hops++;
    l->last = name;
    pd_link_ask(l->g->link, name);
}

/* Makes one step along the chain. */
static pd_status follow(pd_straggler *l, int64_t now) {
    pd_group *g = l->g;
    int64_t pause = g->blocked_ns / 4;
    bool first = !l->hops;
    int on = first ? -1 : pd_link_waits_for(g->link, l->last);
    l->next = now + (pause < ASK_NS ? pause : ASK_NS);
    if (on == pd_group_name(g, g->rank)) return in_a_circle(l);
    if (on >= 0 && l->hops >= g->link->world) return in_a_circle(l);
    if (on >= 0) {
        ask(l, on);
        return PD_OK;
    }
    l->hops = 0;
    int missing = first_missing(l);
    if (missing >= 0) ask(l, missing);
    if (!first) l->next = now + (pause < UNHURRIED_NS ? pause : UNHURRIED_NS); /* a rank of the chain works */
    return PD_OK;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static void ask_missing(const pd_straggler *l) {
    const pd_group *g = l->g;
    int asked = 0;
    for (int r = 0; g->link && r < g->size && asked < PD_PLACES; r++) {
        if (r == g->rank || !l->is_missing(g, l->w, r)) continue;
        pd_link_ask(g->link, pd_group_name(g, r));
        asked++;
    }
}

/* Whether a missing rank has announced a long task whose time is not over. */
static bool is_excused(const pd_straggler *l, int64_t now) {
    const pd_group *g = l->g;
    char name[64];
    for (int r = 0; g->link && r < g->size; r++)
        if (r != g->rank && l->is_missing(g, l->w, r) &&
            pd_link_task_of(g->link, pd_group_name(g, r), name, sizeof name) > now)
            return true;
    return false;
}

pd_status pd_straggler_look(pd_straggler *l, bool *fatal) {
    const pd_group *g = l->g;
    int64_t now = pd_os_now(), took = now - l->start;
    int64_t due = l->warned || g->timeout_ns < g->warn_ns ? g->timeout_ns : g->warn_ns;
    if (l->deadline - l->start < due) due = l->deadline - l->start;
    if (l->asked != due && took >= due - ASK_NS) {
        l->asked = due;
        ask_missing(l);
    }
    show(l);
    if (now - l->from >= g->timeout_ns) {
        if (!is_excused(l, now)) return timed_out(l);
        l->from = now;
    }
    if (now >= l->deadline) {
        *fatal = false;
        return timed_out(l);
    }
    if (g->blocked_ns > 0 && g->link && now >= l->next) PD_TRY(follow(l, now));
    if (took >= g->warn_ns && !l->warned) {
        l->warned = true;
        warn(l);
    }
    return PD_OK;
}

int64_t pd_straggler_rest(const pd_straggler *l) {
    int64_t now = pd_os_now(), left = l->deadline - now, rest = l->from + l->g->timeout_ns - now;
    return rest < left ? rest : left;
}
