/* What ran when: spans of time with a name, in one bounded buffer of the process, for pydist.profiler.

   While it is off, beginning a span is one load and ending it one compare. While it is on, a span costs two looks at
   the clock and a short lock when it ends (some 0.2 us). Spans of a thread nest: a reader finds parents and children
   by their times. What began before the last start or stop is not recorded. */
#ifndef PD_BASE_PROFILE_H
#define PD_BASE_PROFILE_H

#include <stdatomic.h>

#include "base/status.h"

typedef enum pd_timespan_kind {
    PD_SPAN_OP,
    PD_SPAN_INPLACE,  /* an op, called; the same in place or with out= */
    PD_SPAN_BACKWARD, /* a node's gradient */
    PD_SPAN_CALL,     /* work of the engine that is no op: a backward, an optimizer's step, a collective's call */
    PD_SPAN_USER,     /* record_function */
    PD_SPAN_COMM,     /* a collective under way: its lane is a group, not a thread */
    PD_SPAN_KINDS
} pd_timespan_kind;

extern const char *const pd_timespan_kind_names[PD_SPAN_KINDS];

typedef struct pd_timespan {
    int64_t begin, held;
    unsigned run; /* 0: the profiler was off */
    uint32_t gpu; /* gpu_begin's */
} pd_timespan;

typedef struct pd_event {
    const char *name;   /* [borrowed] until the next start */
    int64_t begin, end; /* ns, monotonic */
    int64_t bytes;      /* read and written */
    int64_t held;       /* by how much the memory that tensors hold has grown, over all threads */
    int64_t lane;       /* the thread's number in the system, or what pd_timespan_end_in says */
    uint32_t gpu[2];    /* of gpu_begin and gpu_end, or 0 twice */
    int64_t dims;       /* 0, or 1 + where pd_profile_dims has its shapes */
    int32_t stack;      /* 0, or what `stack` gave when it ended */
    pd_timespan_kind kind;
} pd_event;

typedef struct pd_profile {
    size_t most;            /* events that are kept; later ones are counted only */
    bool shapes;            /* callers say shapes */
    int64_t (*held)(void);  /* NULL: not asked for */
    int32_t (*stack)(void); /* NULL: not asked for; where the host's program stands, any thread, no lock of ours held */
    /* NULL: not asked for. Points in the work of the thread's GPU when a span begins and ends; the second is 0, and
       takes the first one back, where the span gave it no work. */
    uint32_t (*gpu_begin)(void);
    uint32_t (*gpu_end)(uint32_t begin);
} pd_profile;

/* Drops what there was. PD_E_RUNTIME: it is on already. */
pd_status pd_profile_start(const pd_profile *how);
void pd_profile_stop(void); /* fine when it is off */
bool pd_profile_shapes(void);
/* Of a stopped profiler: [borrowed until the next start] its events in the order of their ends, and how many were not
   kept. */
const pd_event *pd_profile_events(size_t *count, uint64_t *dropped);
/* [borrowed likewise] of an event with dims: how many results it has, then for each of them and of its inputs the
   number of dimensions (-1: no tensor) and the sizes; -2 ends it. */
const int64_t *pd_profile_dims(const pd_event *e);
void pd_profile_clear(void); /* gives the memory of a stopped profiler back */

extern atomic_uint pd_profile_run; /* 0: off, else which run it is */

/* For the inline functions below. */
pd_timespan pd_timespan_open(unsigned run);
void pd_timespan_close(const pd_timespan *s, pd_timespan_kind kind, const char *name, int64_t bytes,
                       const int64_t *dims, size_t ndims, const int64_t *lane);

static inline pd_timespan pd_timespan_begin(void) {
    unsigned run = atomic_load_explicit(&pd_profile_run, memory_order_acquire);
    return __builtin_expect(run != 0, 0) ? pd_timespan_open(run) : (pd_timespan){0};
}
static inline bool pd_timespan_is_on(const pd_timespan *s) { return __builtin_expect(s->run != 0, 0); }
static inline void pd_timespan_end(const pd_timespan *s, pd_timespan_kind kind, const char *name, int64_t bytes) {
    if (pd_timespan_is_on(s)) pd_timespan_close(s, kind, name, bytes, NULL, 0, NULL);
}
/* The same in a lane that is no thread; any thread may end it. */
static inline void pd_timespan_end_in(const pd_timespan *s, pd_timespan_kind kind, const char *name, int64_t bytes,
                                      int64_t lane) {
    if (pd_timespan_is_on(s)) pd_timespan_close(s, kind, name, bytes, NULL, 0, &lane);
}

#endif
