#include "base/profile.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"

const char *const pd_timespan_kind_names[PD_SPAN_KINDS] = {"op",   "in place", "backward",
                                                           "call", "user",     "communication", "async"};

#define NAMES 8192 /* different names that are kept; all further ones share one name */
static const char *const other = "(other names)";

atomic_uint pd_profile_run;
_Thread_local uint32_t pd_timespan_mark;

struct pd_recording {
    pd_profile how;
    unsigned since; /* its number: it gets the spans that began with this one or a later one */
    int64_t thread; /* 0: all */
    pd_event *events;
    size_t count, cap;
    uint64_t dropped;
    int64_t *dims;
    size_t ndims, cap_dims;
    pd_recording *next;
};

static struct {
    pthread_mutex_t lock; /* of all below, and of the recordings in the list */
    unsigned runs;
    pd_recording *all, *alone; /* those that run; the one of them that is alone, or NULL */
    atomic_bool shapes, places; /* whether a running recording wants shapes; stacks or points of a GPU */
    _Atomic(int64_t (*)(void)) held; /* what a running recording wants; NULL if none does */
    _Atomic(uint32_t (*)(void)) gpu_begin;
    char *names[NAMES]; /* open addressing by the text's hash; freed with the last recording */
    size_t nnames, recordings;
} p = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local int64_t thread;

/* Nothing runs in a forked child: a thread that the child does not have may hold the lock. */
static void in_child(void) {
    atomic_store(&pd_profile_run, 0);
    pthread_mutex_init(&p.lock, NULL);
    p.all = p.alone = NULL;
    thread = 0;
}
static void at_start(void) { pthread_atfork(NULL, NULL, in_child); }

static int64_t this_thread(void) { return thread ? thread : (thread = pd_os_thread_id()); }

/* ---- spans ------------------------------------------------------------------------------------------------------- */

pd_timespan pd_timespan_open(unsigned run) {
    if (!(run & ~PD_TIMESPAN_TRACED)) return (pd_timespan){.run = run, .mark = pd_timespan_mark};
    int64_t (*held)(void) = p.held;
    uint32_t (*gpu_begin)(void) = p.gpu_begin;
    uint32_t gpu = gpu_begin ? gpu_begin() : 0;
    return (pd_timespan){.held = held ? held() : 0, .gpu = gpu, .run = run, .mark = pd_timespan_mark,
                         .begin = pd_os_now()};
}

/* A copy of the text that lives until the last recording is freed. */
static const char *keep(const char *text) {
    uint64_t h = 0xCBF29CE484222325u;
    for (const char *c = text; *c; c++) h = (h ^ (unsigned char)*c) * 0x100000001B3u;
    size_t at = (h ^ h >> 32) & (NAMES - 1), bytes = strlen(text) + 1;
    for (; p.names[at]; at = (at + 1) & (NAMES - 1))
        if (!strcmp(p.names[at], text)) return p.names[at];
    if (p.nnames >= NAMES / 2 || pd_malloc(bytes, "profiler", &p.names[at])) return other;
    p.nnames++;
    return memcpy(p.names[at], text, bytes);
}

static int64_t keep_dims(pd_recording *r, const int64_t *dims, size_t n) {
    if (!n || pd_grow(&r->dims, &r->cap_dims, r->ndims + n + 1, sizeof *dims, "profiler")) return 0;
    memcpy(r->dims + r->ndims, dims, n * sizeof *dims);
    r->ndims += n + 1;
    r->dims[r->ndims - 1] = -2;
    return (int64_t)(r->ndims - n);
}

/* Whether the recording had started when the span began. Numbers of recordings may have wrapped. */
static bool wants(const pd_recording *r, const pd_timespan *s) {
    return r && ((s->run - r->since) & ~PD_TIMESPAN_TRACED) < PD_TIMESPAN_TRACED / 2;
}

/* Whether a span of the kind that only a recording that is alone knows has begun in it; the caller has no lock. */
static bool is_of_alone(const pd_timespan *s, pd_profile *how) {
    pthread_mutex_lock(&p.lock);
    bool found = wants(p.alone, s);
    if (found) *how = p.alone->how;
    pthread_mutex_unlock(&p.lock);
    return found;
}

void pd_timespan_close(const pd_timespan *s, pd_timespan_kind kind, const char *name, int64_t bytes,
                       const int64_t *dims, size_t ndims, const int64_t *lane) {
    pd_profile alone;
    if (!(s->run & ~PD_TIMESPAN_TRACED) || !pd_profile_is_on()) return;
    pd_event e = {.begin = s->begin, .end = pd_os_now(), .bytes = bytes, .kind = kind,
                  .lane = lane ? *lane : this_thread()};
    int64_t (*held)(void) = p.held, grown = held ? held() - s->held : 0;
    uint32_t gpu[2] = {0, 0};
    int32_t stack = 0;
    if (p.places && !lane && is_of_alone(s, &alone)) {
        if (alone.stack) stack = alone.stack();
        if (s->gpu && alone.gpu_end && (gpu[1] = alone.gpu_end(s->gpu))) gpu[0] = s->gpu;
    }
    pthread_mutex_lock(&p.lock);
    for (pd_recording *r = p.all; r; r = r->next) {
        if (!wants(r, s) || (r->thread && (kind == PD_SPAN_COMM || r->thread != e.lane))) continue;
        if (r->count == r->how.most || pd_grow(&r->events, &r->cap, r->count + 1, sizeof e, "profiler")) {
            r->dropped++;
            continue;
        }
        if (!e.name) e.name = keep(name);
        pd_event *to = &r->events[r->count++];
        *to = e;
        if (r->how.held) to->held = grown;
        if (r->how.shapes) to->dims = keep_dims(r, dims, ndims);
        if (r == p.alone) to->stack = stack, to->gpu[0] = gpu[0], to->gpu[1] = gpu[1];
    }
    pthread_mutex_unlock(&p.lock);
}

/* ---- recordings -------------------------------------------------------------------------------------------------- */

/* Sets what spans look at. Needs the lock. */
static void publish(void) {
    bool shapes = false;
    int64_t (*held)(void) = NULL;
    for (pd_recording *r = p.all; r; r = r->next) {
        shapes |= r->how.shapes;
        if (r->how.held) held = r->how.held;
    }
    p.shapes = shapes;
    p.held = held;
    p.gpu_begin = p.alone ? p.alone->how.gpu_begin : NULL;
    p.places = p.alone && (p.alone->how.stack || p.alone->how.gpu_end);
    unsigned before = pd_profile_run, run = p.all ? p.runs : 0;
    while (!atomic_compare_exchange_weak(&pd_profile_run, &before, run | (before & PD_TIMESPAN_TRACED))) {}
}

pd_status pd_profile_start(const pd_profile *how, pd_recording **out) {
    pd_recording *r;
    *out = NULL;
    pthread_once(&once, at_start);
    PD_TRY(pd_calloc(sizeof *r, "profiler", &r));
    r->how = *how;
    r->thread = how->this_thread ? this_thread() : 0;
    pthread_mutex_lock(&p.lock);
    bool refused = how->alone && p.alone;
    if (!refused) {
        if (++p.runs == PD_TIMESPAN_TRACED) p.runs = 1;
        r->since = p.runs;
        r->next = p.all;
        p.all = r;
        if (how->alone) p.alone = r;
        p.recordings++;
        publish();
    }
    pthread_mutex_unlock(&p.lock);
    if (refused) {
        pd_free(r);
        return pd_fail(PD_E_RUNTIME, "profiler: another profiler is running (expected to be stopped first)");
    }
    *out = r;
    return PD_OK;
}

void pd_profile_stop(pd_recording *r) {
    pthread_mutex_lock(&p.lock);
    pd_recording **at = &p.all;
    while (*at && *at != r) at = &(*at)->next;
    if (*at) {
        *at = r->next;
        if (p.alone == r) p.alone = NULL;
        publish();
    }
    pthread_mutex_unlock(&p.lock);
}

bool pd_profile_shapes(void) { return p.shapes; }

bool pd_profile_has_alone(void) {
    pthread_mutex_lock(&p.lock);
    bool found = p.alone;
    pthread_mutex_unlock(&p.lock);
    return found;
}

const pd_event *pd_profile_events(const pd_recording *r, size_t *count, uint64_t *dropped) {
    *count = r->count;
    *dropped = r->dropped;
    return r->events;
}

const int64_t *pd_profile_dims(const pd_recording *r, const pd_event *e) { return r->dims + e->dims - 1; }

void pd_profile_free(pd_recording *r) {
    if (!r) return;
    pd_profile_stop(r);
    pthread_mutex_lock(&p.lock);
    if (!--p.recordings) {
        for (size_t i = 0; i < NAMES; i++) pd_free(p.names[i]);
        memset(p.names, 0, sizeof p.names);
        p.nnames = 0;
    }
    pthread_mutex_unlock(&p.lock);
    pd_free(r->events);
    pd_free(r->dims);
    pd_free(r);
}
