#include "base/profile.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"

const char *const pd_timespan_kind_names[PD_SPAN_KINDS] = {"op",   "in place", "backward",
                                                           "call", "user",     "communication"};

#define NAMES 8192 /* different names that are kept; all further ones share one name */
static const char *const other = "(other names)";

atomic_uint pd_profile_run;
_Thread_local uint32_t pd_timespan_mark;

static struct {
    pthread_mutex_t lock; /* of all below */
    pd_profile how;
    unsigned runs;
    pd_event *events;
    size_t count, cap;
    uint64_t dropped;
    int64_t *dims;
    size_t ndims, cap_dims;
    char *names[NAMES];   /* open addressing by the text's hash */
    size_t nnames;
} p = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local int64_t thread;

/* The profiler is off in a forked child: a thread that the child does not have may hold the lock. */
static void in_child(void) {
    atomic_store(&pd_profile_run, 0);
    pthread_mutex_init(&p.lock, NULL);
    thread = 0;
}
static void at_start(void) { pthread_atfork(NULL, NULL, in_child); }

/* ---- spans ------------------------------------------------------------------------------------------------------- */

pd_timespan pd_timespan_open(unsigned run) {
    if (!(run & ~PD_TIMESPAN_TRACED)) return (pd_timespan){.run = run, .mark = pd_timespan_mark};
    uint32_t gpu = p.how.gpu_begin ? p.how.gpu_begin() : 0;
    return (pd_timespan){.held = p.how.held ? p.how.held() : 0, .gpu = gpu, .run = run, .mark = pd_timespan_mark,
                         .begin = pd_os_now()};
}

/* A copy of the text that lives as long as the recording. */
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

static int64_t keep_dims(const int64_t *dims, size_t n) {
    if (!n || pd_grow(&p.dims, &p.cap_dims, p.ndims + n + 1, sizeof *dims, "profiler")) return 0;
    memcpy(p.dims + p.ndims, dims, n * sizeof *dims);
    p.ndims += n + 1;
    p.dims[p.ndims - 1] = -2;
    return (int64_t)(p.ndims - n);
}

/* Whether the profiler's recording in which it began goes on. */
static bool is_current(const pd_timespan *s) {
    unsigned run = atomic_load_explicit(&pd_profile_run, memory_order_relaxed);
    return (run & ~PD_TIMESPAN_TRACED) && !((run ^ s->run) & ~PD_TIMESPAN_TRACED);
}

void pd_timespan_close(const pd_timespan *s, pd_timespan_kind kind, const char *name, int64_t bytes,
                       const int64_t *dims, size_t ndims, const int64_t *lane) {
    if (!is_current(s)) return;
    pd_event e = {.begin = s->begin, .end = pd_os_now(), .bytes = bytes, .kind = kind};
    if (p.how.held) e.held = p.how.held() - s->held;
    if (p.how.stack && !lane) e.stack = p.how.stack();
    if (s->gpu && !lane && (e.gpu[1] = p.how.gpu_end(s->gpu))) e.gpu[0] = s->gpu;
    if (!thread) thread = pd_os_thread_id();
    e.lane = lane ? *lane : thread;
    pthread_mutex_lock(&p.lock);
    if (is_current(s)) {
        if (p.count == p.how.most || pd_grow(&p.events, &p.cap, p.count + 1, sizeof e, "profiler")) {
            p.dropped++;
        } else {
            e.name = keep(name);
            e.dims = keep_dims(dims, ndims);
            p.events[p.count++] = e;
        }
    }
    pthread_mutex_unlock(&p.lock);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static void clear(void) {
    for (size_t i = 0; i < NAMES; i++) {
        pd_free(p.names[i]);
        p.names[i] = NULL;
    }
    pd_free(p.events);
    pd_free(p.dims);
    p.events = NULL;
    p.dims = NULL;
    p.count = p.cap = p.ndims = p.cap_dims = p.nnames = 0;
    p.dropped = 0;
}

pd_status pd_profile_start(const pd_profile *how) {
    pthread_once(&once, at_start);
    pthread_mutex_lock(&p.lock);
    bool on = pd_profile_is_on();
    if (!on) {
        clear();
        p.how = *how;
        if (++p.runs == PD_TIMESPAN_TRACED) p.runs = 1;
        atomic_fetch_or(&pd_profile_run, p.runs);
    }
    pthread_mutex_unlock(&p.lock);
    return on ? pd_fail(PD_E_RUNTIME, "profiler: another profiler is running (expected to be stopped first)") : PD_OK;
}

void pd_profile_stop(void) {
    pthread_mutex_lock(&p.lock);
    atomic_fetch_and(&pd_profile_run, PD_TIMESPAN_TRACED);
    pthread_mutex_unlock(&p.lock);
}

bool pd_profile_shapes(void) { return p.how.shapes; }

const pd_event *pd_profile_events(size_t *count, uint64_t *dropped) {
    *count = p.count;
    *dropped = p.dropped;
    return p.events;
}

const int64_t *pd_profile_dims(const pd_event *e) { return p.dims + e->dims - 1; }

void pd_profile_clear(void) {
    pthread_mutex_lock(&p.lock);
    if (!pd_profile_is_on()) clear();
    pthread_mutex_unlock(&p.lock);
}
