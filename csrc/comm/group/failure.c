/* How a group fails: by a failure of another rank, of which the link tells, or by identities that differ; and what
   happens to everything that was under way. */
#include <stdio.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/group/p2p.h"

#define TABLES 64 /* tables of at most so many ranks are read if sizes differ */
#define SHOWN 8   /* sizes that the message shows of each */
#define SITE_WAIT 1.0 /* seconds that a rank waits for the others' call sites at most */

/* Called by the link's thread. A stronger explanation replaces a weaker one. Wakes a wait so that it sees the
   failure. */
void pd_group_hear(pd_listener *l, pd_weight weight, const pd_error *e) {
    pd_group *g = (pd_group *)((char *)l - offsetof(pd_group, listener));
    pthread_mutex_lock(&g->failure_lock);
    if (weight > g->abort) {
        g->failure = *e;
        g->failure_at = pd_os_now();
        atomic_store(&g->abort, weight);
    }
    pthread_mutex_unlock(&g->failure_lock);
    if (weight == PD_WEIGHT_LEFT) pd_p2p_left(g, e->rank);
    pthread_mutex_lock(&g->failure_lock); /* a thread that destroys the group takes the mesh away under this lock */
    if (g->mesh) pd_mesh_wake(g->mesh);
    pthread_mutex_unlock(&g->failure_lock);
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
        int n = snprintf(text, size, "has been waiting %.1f s for %s in %s", seconds, who, call);
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

pd_status pd_group_heard(pd_group *g, const pd_work *w) {
    if (!atomic_load_explicit(&g->abort, memory_order_acquire)) return PD_OK;
    pd_error e;
    char call[400];
    pthread_mutex_lock(&g->failure_lock);
    bool early = g->abort == PD_WEIGHT_LEFT && pd_os_now() - g->failure_at < PD_LEFT_GRACE_NS;
    e = g->failure;
    pthread_mutex_unlock(&g->failure_lock);
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

/* Ranks that wait in this collective answer at once; a rank that has submitted it and computes may not answer. */
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

/* Tables of sizes: what a rank gives to each rank, then what it takes from each. Of many ranks only some tables are
   read, and the text says less. */
typedef struct tables {
    int size, ranks; /* size: of the group; ranks: how many tables are here */
    int64_t *sizes;  /* by rank, 2 * size for each; -1: its table has not come; NULL: no tables */
} tables;

static bool has_table(const pd_group *g, const pd_work *w, int r) {
    const pd_line *l = &g->boards[r]->line[w->seq & 1];
    uint8_t c = l->id.coll;
    return (c == PD_COLL_ALL_GATHER_PARTS || c == PD_COLL_REDUCE_SCATTER_PARTS || c == PD_COLL_ALL_TO_ALL_PARTS) &&
           atomic_load_explicit(&l->seq, memory_order_acquire) == w->seq;
}

static void table_key(const pd_group *g, const pd_work *w, int rank, char *key, size_t size) {
    snprintf(key, size, "pd:%u.parts.%u.%d", g->epoch, w->seq, rank);
}

static void publish_table(const pd_group *g, const pd_work *w) {
    char key[64];
    int64_t *sizes;
    size_t n = 2 * (size_t)g->size;
    if (!w->parts || pd_malloc(n * sizeof *sizes, "mismatch", &sizes)) return;
    for (size_t i = 0; i < n; i++) sizes[i] = w->parts[i].count;
    table_key(g, w, g->rank, key, sizeof key);
    pd_store_set(g->link, key, sizes, n * sizeof *sizes);
    pd_free(sizes);
}

static void fetch_tables(const pd_group *g, const pd_work *w, int64_t deadline, tables *t) {
    size_t bytes = 2 * (size_t)g->size * sizeof *t->sizes, n;
    bool any = false;
    *t = (tables){.size = g->size, .ranks = g->size < TABLES ? g->size : TABLES};
    for (int r = 0; r < t->ranks; r++) any |= has_table(g, w, r);
    if (!any || pd_malloc((size_t)t->ranks * bytes, "mismatch", &t->sizes)) return;
    memset(t->sizes, 0xFF, (size_t)t->ranks * bytes);
    for (int r = 0; r < t->ranks; r++) {
        char key[64];
        void *got;
        int64_t left = deadline - pd_os_now();
        if (!has_table(g, w, r)) continue;
        table_key(g, w, r, key, sizeof key);
        if (pd_store_get(g->link, key, left > 0 ? (double)left * 1e-9 : 0, &got, &n)) continue;
        if (n == bytes) memcpy((char *)t->sizes + (size_t)r * bytes, got, bytes);
        pd_free(got);
    }
}

/* Writes " rank 0 has 2 elements for rank 1, which expects 1 of it"; false: there is no such pair. */
static bool pair_text(const pd_group *g, const tables *t, char *text, size_t size) {
    for (int s = 0; t->sizes && s < t->ranks; s++)
        for (int d = 0; d < t->ranks; d++) {
            int64_t gives = t->sizes[2 * s * t->size + d], takes = t->sizes[(2 * d + 1) * t->size + s];
            if (gives < 0 || takes < 0 || gives == takes) continue;
            snprintf(text, size, "rank %d has %lld elements for rank %d, but that rank expects %lld",
                     pd_group_name(g, s), (long long)gives, pd_group_name(g, d), (long long)takes);
            return true;
        }
    return false;
}

static size_t list_text(const int64_t *sizes, int n, char *text, size_t size) {
    size_t at = 0;
    for (int r = 0; r < n && r < SHOWN; r++)
        at += (size_t)snprintf(text + at, size - at, r ? ", %lld" : " %lld", (long long)sizes[r]);
    return n > SHOWN ? at + (size_t)snprintf(text + at, size - at, ", ...") : at;
}

/* Writes " of 1, 2, 3" or " giving 1, 2 and taking 2, 2"; text has room for two lists. */
static size_t sizes_text(const tables *t, int r, uint8_t coll, char *text, size_t size) {
    if (!t->sizes || r >= t->ranks || t->sizes[2 * r * t->size] < 0) return 0;
    const int64_t *gives = t->sizes + 2 * r * t->size, *takes = gives + t->size;
    bool each = coll == PD_COLL_ALL_TO_ALL_PARTS;
    size_t n = (size_t)snprintf(text, size, each ? " giving" : " of");
    n += list_text(coll == PD_COLL_ALL_GATHER_PARTS ? takes : gives, t->size, text + n, size - n);
    if (!each) return n;
    n += (size_t)snprintf(text + n, size - n, " and taking");
    return n + list_text(takes, t->size, text + n, size - n);
}

static bool lines_are_equal(const pd_group *g, const pd_work *w) {
    bool equal = true;
    for (int r = 0; r < g->size; r++) equal &= g->boards[r]->line[w->seq & 1].hash == w->hash;
    return equal;
}

static size_t head_text(const pd_group *g, const pd_work *w, const tables *t, char *text, size_t size) {
    char what[160] = "ranks called different collectives";
    if (lines_are_equal(g, w) && !pair_text(g, t, what, sizeof what))
        snprintf(what, sizeof what, "the sizes that ranks send differ from the sizes that their receivers expect");
    return (size_t)snprintf(text, size, "%s: %s (#%u):", pd_collective_names[w->id.coll], what, w->seq);
}

pd_status pd_group_mismatch(pd_group *g, const pd_work *w) {
    char text[PD_ERROR_TEXT], site[256];
    int64_t deadline = pd_os_now() + (int64_t)(SITE_WAIT * 1e9);
    tables t;
    publish_site(g, w);
    publish_table(g, w);
    fetch_tables(g, w, deadline, &t);
    size_t n = head_text(g, w, &t, text, sizeof text), line = t.sizes ? 800 : 400; /* at most */
    for (int r = 0; r < g->size && n + line < sizeof text; r++) {
        const pd_line *l = &g->boards[r]->line[w->seq & 1];
        n += (size_t)snprintf(text + n, sizeof text - n, "\n  rank %d: ", pd_group_name(g, r));
        if (atomic_load_explicit(&l->seq, memory_order_acquire) != w->seq) {
            n += (size_t)snprintf(text + n, sizeof text - n, "nothing yet");
            continue;
        }
        n += (size_t)pd_identity_text(&l->id, text + n, sizeof text - n);
        n += sizes_text(&t, r, l->id.coll, text + n, sizeof text - n);
        if (r == g->rank && g->hooks && g->hooks->site && w->site) g->hooks->site(w->site, site, sizeof site);
        else if (r == g->rank || !l->site) *site = 0;
        else fetch_site(g, w, r, deadline, site, sizeof site);
        if (*site) n += (size_t)snprintf(text + n, sizeof text - n, " at %s", site);
    }
    pd_free(t.sizes);
    return pd_fail(PD_E_MISMATCH, "%s", text);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Writes the flight record once: a short one after a timeout, which only the past explains; else only with
   PYDIST_LOG=2. */
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
    pd_link_event event = {.kind = PD_EVENT_ABORT, .rank = g->link->rank, .epoch = g->epoch, .status = (int32_t)kind};
    g->link->ops->tell(g->link, &event, e->text);
}

pd_status pd_group_fail(pd_group *g, bool tell) {
    pd_error e;
    pd_error_save(&e);
    if (atomic_load(&g->failed)) return e.kind;
    g->error = e;
    if (e.kind == PD_E_PYTHON || e.kind == PD_E_INTERRUPT) { /* an exception is raised only once */
        g->error.kind = PD_E_DIST;
        snprintf(g->error.text, sizeof g->error.text,
                 "the group ended, because a collective was interrupted on rank %d", pd_group_name(g, g->rank));
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
