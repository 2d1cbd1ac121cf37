#include "comm/group/readers.h"

#include <stdio.h>

#include "base/mem.h"
#include "comm/group/straggler.h"

#define SPINS 200
#define YIELD_NS 60000
#define NAP_NS 1000000 /* the shortest sleep */

typedef struct pd_readers_line {
    _Alignas(64) atomic_uint sections; /* that this rank has ended */
    atomic_uint asleep;                /* it may sleep on another rank's word */
} line;

atomic_int pd_readers_sections;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static pd_readers *open_ones;

pd_status pd_group_readers(pd_group *g, pd_readers **out) {
    if (!g->readers) {
        pd_readers *r;
        pd_common *common = NULL;
        if (g->size > 1 && pd_group_is_near(g)) PD_TRY(pd_common_new(g, sizeof(line) * (size_t)g->size, &common));
        pd_status status = pd_calloc(sizeof *r, "readers", &r);
        if (status) {
            pd_common_release(common);
            return PD_TRAIL(status);
        }
        r->group = g;
        r->common = common;
        r->lines = common ? pd_common_ptr(common) : NULL;
        g->readers = r;
    }
    *out = g->readers;
    return PD_OK;
}

void pd_readers_free(pd_readers *r) {
    if (!r) return;
    pd_readers_written(r);
    pd_common_release(r->common);
    pd_free(r);
}

static line *own_line(const pd_readers *r) { return &r->lines[r->group->rank]; }

static void count_section(const pd_readers *r) {
    atomic_uint *word = &own_line(r)->sections;
    atomic_store(word, *word + 1);
    for (int k = 0; k < r->group->size; k++)
        if (__builtin_expect(atomic_load_explicit(&r->lines[k].asleep, memory_order_relaxed), 0)) {
            pd_os_wake(word);
            return;
        }
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* How many sections a rank has ended more than this one. */
static int32_t ahead(const pd_readers *r, int rank) {
    return (int32_t)(atomic_load(&r->lines[rank].sections) - own_line(r)->sections);
}

static int rank_behind(const pd_readers *r) {
    for (int k = 0; k < r->group->size; k++)
        if (ahead(r, k) < 0) return k;
    return -1;
}

typedef struct wait { /* what the straggler's functions see of it is the work */
    pd_work w;
    const pd_readers *r;
} wait;

static bool is_missing(const pd_group *g, const pd_work *w, int rank) {
    const wait *self = (const wait *)(const void *)w;
    (void)g;
    return ahead(self->r, rank) < 0;
}

static pd_status look(pd_group *g, wait *self, pd_straggler *l, bool *fatal) {
    PD_TRY(pd_group_heard(g, &self->w));
    *fatal = false;
    PD_TRY(pd_hooks_interrupt(g->hooks));
    *fatal = true;
    return pd_straggler_look(l, fatal);
}

static void sleep_on(const pd_readers *r, int64_t ns) {
    int rank = rank_behind(r);
    atomic_uint *word, *flag = &own_line(r)->asleep;
    if (rank < 0) return;
    word = &r->lines[rank].sections;
    atomic_store(flag, 1);
    unsigned seen = atomic_load(word);
    if (ahead(r, rank) < 0) pd_os_wait(word, seen, ns < PD_SLICE_NS ? ns : PD_SLICE_NS);
    atomic_store(flag, 0);
}

static pd_status wait_slowly(pd_readers *r, wait *self, pd_straggler *l, bool *fatal) {
    while (rank_behind(r) >= 0) {
        if (pd_os_now() - l->start < YIELD_NS) {
            pd_os_yield();
            continue;
        }
        PD_TRY(look(r->group, self, l, fatal));
        int64_t left = pd_straggler_rest(l);
        sleep_on(r, left < NAP_NS ? NAP_NS : left);
    }
    return PD_OK;
}

/* Waits until every rank has ended as many sections. A failure other than an interrupt ends the group. */
static pd_status wait_for_writers(pd_readers *r, uint64_t site) {
    pd_group *g = r->group;
    PD_TRY(pd_group_check(g));
    for (int i = 0; i < SPINS; i++) {
        if (rank_behind(r) < 0) return PD_OK;
        pd_os_pause();
    }
    wait self = {.w = {.group = g, .site = site, .id = {.coll = PD_COLL_READ_SHARDS}}, .r = r};
    pd_straggler l = {.g = g, .w = &self.w, .is_missing = is_missing};
    bool fatal = true;
    const pd_timespan span = pd_timespan_begin();
    void *token = pd_host_release();
    pd_straggler_begin(&l, INT64_MAX);
    pd_status status = wait_slowly(r, &self, &l, &fatal);
    pd_straggler_end(&l);
    pd_host_acquire(token);
    pd_timespan_end(&span, PD_SPAN_CALL, "fully_shard: wait", 0);
    return status && fatal ? pd_group_fail(g, !atomic_load(&g->abort)) : status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static uint64_t sum_of_sections(const pd_readers *r) {
    uint64_t sum = 0;
    for (int k = 0; k < r->group->size; k++) sum += atomic_load(&r->lines[k].sections);
    return sum;
}

static void site_text(const pd_readers *r, uint64_t site, char *text, size_t size) {
    const pd_hooks *h = r->group->hooks;
    size_t n = (size_t)snprintf(text, size, " at ");
    if (h && h->site && site && n < size) h->site(site, text + n, size - n);
    if (!text[n]) *text = 0;
}

/* Fails if a rank has ended more sections than this one. */
static pd_status check_ahead(const pd_readers *r, uint64_t site) {
    char here[256] = "";
    for (int k = 0; k < r->group->size; k++) {
        if (ahead(r, k) <= 0) continue;
        site_text(r, site, here, sizeof here);
        return pd_fail(PD_E_RUNTIME,
                       "fully_shard: rank %d has changed its shards, but rank %d, which reads them%s, has not "
                       "(expected the same steps and edits on all ranks)",
                       pd_group_name(r->group, k), pd_group_name(r->group, r->group->rank), here);
    }
    return PD_OK;
}

pd_status pd_readers_begin(pd_readers *r, uint64_t site) {
    if (r->inside++ || !r->lines) return PD_OK;
    pd_readers_written(r);
    pd_status status = wait_for_writers(r, site);
    PD_THEN(check_ahead(r, site));
    if (status) {
        r->inside--;
        return status;
    }
    r->seen = sum_of_sections(r);
    return PD_OK;
}

void pd_readers_end(pd_readers *r) { r->inside--; }

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static uint64_t this_thread(void) {
    static _Thread_local char here;
    return (uint64_t)(uintptr_t)&here;
}

static void enlist(pd_readers *r) {
    pthread_mutex_lock(&open_lock);
    r->thread = this_thread();
    r->next = open_ones;
    r->at = &open_ones;
    if (r->next) r->next->at = &r->next;
    open_ones = r;
    r->open = true;
    pd_readers_sections++;
    pthread_mutex_unlock(&open_lock);
}

/* Takes it out of the list; the caller has the lock. */
static void end_section(pd_readers *r) {
    for (pd_readers_client *c = r->clients; c; c = c->next) c->ending(c->ctx);
    *r->at = r->next;
    if (r->next) r->next->at = r->at;
    r->open = false;
    pd_readers_sections--;
    if (r->lines) count_section(r);
}

pd_status pd_readers_write(pd_readers *r, const char *op, uint64_t site, bool early) {
    if (r->open || !r->lines) return PD_OK;
    if (!early && r->inside)
        return pd_fail(PD_E_RUNTIME,
                       "%s: a shard is written while this rank reads all of them (expected no write in forward, and in "
                       "backward only by a hook of the shard's own gradient)",
                       op);
    if (!early) PD_TRY(pd_group_write_gate(r->group, site));
    enlist(r);
    return PD_OK;
}

void pd_readers_written(pd_readers *r) {
    if (!r->open) return;
    pthread_mutex_lock(&open_lock);
    if (r->open) end_section(r);
    pthread_mutex_unlock(&open_lock);
}

void pd_readers_written_here(void) {
    if (!pd_readers_sections) return;
    pthread_mutex_lock(&open_lock);
    for (pd_readers *r = open_ones, *next; r; r = next) {
        next = r->next;
        if (r->thread == this_thread()) end_section(r);
    }
    pthread_mutex_unlock(&open_lock);
}

void pd_readers_add(pd_readers *r, pd_readers_client *c) {
    pthread_mutex_lock(&open_lock);
    c->next = r->clients;
    c->at = &r->clients;
    if (c->next) c->next->at = &c->next;
    r->clients = c;
    pthread_mutex_unlock(&open_lock);
}

void pd_readers_remove(pd_readers_client *c) {
    pthread_mutex_lock(&open_lock);
    if (c->at) *c->at = c->next;
    if (c->at && c->next) c->next->at = c->at;
    c->at = NULL;
    pthread_mutex_unlock(&open_lock);
}
