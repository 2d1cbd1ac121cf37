/* How a group ends: bad news from the link, differing identities, and what happens to everything that was under way. */
#include <stdio.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/group/p2p.h"

#define SITE_WAIT 1.0 /* seconds: longest that a rank waits for the others' call sites */

/* On the link's thread. A stronger explanation replaces a weaker one; the sleeper is woken to look at it. */
void pd_group_hear(pd_listener *l, pd_weight weight, const pd_error *e) {
    pd_group *g = (pd_group *)((char *)l - offsetof(pd_group, listener));
    pthread_mutex_lock(&g->doom_lock);
    if (weight > g->abort) {
        g->doom = *e;
        g->doom_at = pd_os_now();
        atomic_store(&g->abort, weight);
    }
    pthread_mutex_unlock(&g->doom_lock);
    if (weight == PD_WEIGHT_LEFT) pd_p2p_left(g, e->rank);
    pthread_mutex_lock(&g->doom_lock); /* under it another thread that destroys the group takes the mesh away */
    if (g->mesh) pd_mesh_wake(g->mesh);
    pthread_mutex_unlock(&g->doom_lock);
    atomic_uint *word = atomic_load(&g->sleeping);
    if (word) pd_os_wake(word);
}

size_t pd_group_report(pd_listener *l, int rows, int64_t *since, int *on, char *text, size_t size) {
    const pd_group *g = (pd_group *)((char *)l - offsetof(pd_group, listener));
    const pd_flight *messages = pd_p2p_flight(g);
    *since = atomic_load_explicit(&g->standing.since, memory_order_acquire);
    *on = atomic_load_explicit(&g->standing.on, memory_order_relaxed);
    if (!rows && *since) {
        const pd_flight *f = atomic_load_explicit(&g->standing.message, memory_order_relaxed) ? messages : &g->flight;
        uint32_t seq = atomic_load_explicit(&g->standing.seq, memory_order_relaxed);
        double seconds = (double)(pd_os_now() - *since) * 1e-9;
        char who[40] = "any rank", call[400];
        if (*on >= 0) snprintf(who, sizeof who, "rank %d", *on);
        pd_flight_call(f, g->hooks, seq, call, sizeof call);
        int n = snprintf(text, size, "waits since %.1f s for %s in %s", seconds, who, call);
        return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
    }
    if (!rows) {
        size_t n = pd_flight_last(&g->flight, g->hooks, text, size);
        return n ? n : pd_flight_last(messages, g->hooks, text, size);
    }
    int n = snprintf(text, size, "rank %d of %d, group %u:\n", pd_group_name(g, g->rank), g->size, g->epoch);
    if (n < 0 || (size_t)n >= size) return 0;
    size_t at = (size_t)n + pd_flight_text(&g->flight, g->hooks, rows, text + n, size - (size_t)n);
    return at + pd_flight_text(messages, g->hooks, rows, text + at, size - at);
}

pd_status pd_group_doom(pd_group *g, const pd_work *w) {
    if (!atomic_load_explicit(&g->abort, memory_order_acquire)) return PD_OK;
    pd_error e;
    char call[400];
    pthread_mutex_lock(&g->doom_lock);
    bool early = g->abort == PD_WEIGHT_LEFT && pd_os_now() - g->doom_at < PD_LEFT_GRACE_NS;
    e = g->doom;
    pthread_mutex_unlock(&g->doom_lock);
    if (early) return PD_OK;
    pd_work_text(g, w, call, sizeof call);
    pd_status status = pd_fail(e.kind, "%s: %s", call, e.text);
    pd_error_set_rank(e.rank);
    return status;
}

/* ---- mismatch: the sites are exchanged only now ------------------------------------------------------------------ */

static void site_key(const pd_group *g, const pd_work *w, int rank, char *key, size_t size) {
    snprintf(key, size, "pd:%u.site.%u.%d", g->epoch, w->seq, rank);
}

static void publish_site(pd_group *g, const pd_work *w) {
    char key[64], site[256] = "";
    if (g->hooks && g->hooks->site && w->site) g->hooks->site(w->site, site, sizeof site);
    site_key(g, w, g->rank, key, sizeof key);
    pd_store_set(g->link, key, site, strlen(site));
}

/* Ranks that stand in this very collective answer at once; one that posted it and went on computing may not. */
static void fetch_site(pd_group *g, const pd_work *w, int rank, int64_t deadline, char *site, size_t size) {
    char key[64];
    void *text;
    size_t n;
    int64_t left = deadline - pd_os_now();
    *site = 0;
    site_key(g, w, rank, key, sizeof key);
    if (pd_store_get(g->link, key, left > 0 ? (double)left * 1e-9 : 0, &text, &n)) return;
    snprintf(site, size, "%.*s", (int)n, text ? (char *)text : "");
    pd_free(text);
}

pd_status pd_group_mismatch(pd_group *g, const pd_work *w) {
    char text[PD_ERROR_TEXT], site[256];
    int64_t deadline = pd_os_now() + (int64_t)(SITE_WAIT * 1e9);
    publish_site(g, w);
    size_t n = (size_t)snprintf(text, sizeof text, "%s: ranks called different collectives (#%u):",
                                pd_collective_names[w->id.coll], w->seq);
    for (int r = 0; r < g->size && n + 400 < sizeof text; r++) {
        const pd_line *l = &g->boards[r]->line[w->seq & 1];
        n += (size_t)snprintf(text + n, sizeof text - n, "\n  rank %d: ", pd_group_name(g, r));
        if (atomic_load_explicit(&l->seq, memory_order_acquire) != w->seq) {
            n += (size_t)snprintf(text + n, sizeof text - n, "nothing yet");
            continue;
        }
        n += (size_t)pd_identity_text(&l->id, text + n, sizeof text - n);
        if (r == g->rank && g->hooks && g->hooks->site && w->site) g->hooks->site(w->site, site, sizeof site);
        else if (r == g->rank || !l->site) *site = 0;
        else fetch_site(g, w, r, deadline, site, sizeof site);
        if (*site) n += (size_t)snprintf(text + n, sizeof text - n, " at %s", site);
    }
    return pd_fail(PD_E_MISMATCH, "%s", text);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Once per rank: short where the reason is time, which only the past explains; else for those who ask for more. */
static void write_flight(pd_group *g) {
    char text[8000];
    bool late = g->error.kind == PD_E_TIMEOUT;
    int64_t since;
    int on;
    if (!g->flight.rows || (!late && pd_flags_get()->LOG < PD_LOG_INFO)) return;
    size_t n = pd_group_report(&g->listener, late ? 8 : (int)g->flight.mask + 1, &since, &on, text,
                               sizeof text);
    if (n) pd_log(late ? PD_LOG_WARN : PD_LOG_INFO, "flight record of %.*s", (int)n - 1, text);
}

void pd_group_tell(pd_group *g, const pd_error *e) {
    pd_status kind = e->kind == PD_E_MISMATCH || e->kind == PD_E_TIMEOUT ? e->kind : PD_E_PEER;
    pd_news news = {.kind = PD_NEWS_ABORT, .rank = g->link->rank, .epoch = g->epoch, .status = (int32_t)kind};
    g->link->ops->tell(g->link, &news, e->text);
}

pd_status pd_group_fail(pd_group *g, bool tell) {
    pd_error e;
    pd_error_save(&e);
    if (atomic_load(&g->failed)) return e.kind;
    g->error = e;
    if (e.kind == PD_E_PYTHON || e.kind == PD_E_INTERRUPT) { /* the exception itself is raised only once */
        g->error.kind = PD_E_DIST;
        snprintf(g->error.text, sizeof g->error.text, "the group ended when a collective was interrupted on rank %d",
                 pd_group_name(g, g->rank));
    }
    atomic_store(&g->failed, true);
    pd_p2p_end(g);
    pd_flight_end(&g->flight, g->seq, PD_FLIGHT_FAILED);
    write_flight(g);
    pd_segments_privatise(g);
    while (g->first) {
        pd_work *w = g->first;
        g->first = w->next;
        atomic_store_explicit(&w->state, PD_WORK_FAILED, memory_order_release);
        pd_work_release(w);
    }
    g->last = &g->first;
    if (tell && g->link) pd_group_tell(g, &g->error);
    pd_error_restore(&e);
    return e.kind;
}
