/* Records what ran when, for pydist.profiler: named spans of time, in buffers of limited size. There may be several
   recordings at a time, each of the whole process or of one thread.

   While there is none, a span costs one load at its begin and one comparison at its end. While there is one, a span
   reads the clock twice and takes a lock at its end (some 0.2 us). Spans of a thread nest, so a reader finds parents
   and children by their times. A recording has the spans that began and ended while it ran. */
#ifndef PD_BASE_PROFILE_H
#define PD_BASE_PROFILE_H

#include <stdatomic.h>

#include "base/status.h"

typedef enum pd_timespan_kind {
    PD_SPAN_OP,
    PD_SPAN_INPLACE,  /* a call of an op; the same, in place or with out= */
    PD_SPAN_BACKWARD, /* a node's gradient */
    PD_SPAN_CALL,     /* other work of the engine: a backward, an optimizer's step, the call of a collective */
    PD_SPAN_USER,     /* record_function */
    PD_SPAN_COMM,     /* a collective under way: its lane is a group, not a thread */
    PD_SPAN_ASYNC,    /* a user's span that another thread may end: it need not nest */
    PD_SPAN_KINDS
} pd_timespan_kind;

extern const char *const pd_timespan_kind_names[PD_SPAN_KINDS];

typedef struct pd_timespan {
    int64_t begin, held;
    unsigned run;  /* pd_profile_run at its begin: recordings that have started later do not get it */
    uint32_t gpu;  /* what gpu_begin returned */
    uint32_t mark; /* pd_timespan_mark at its begin */
} pd_timespan;

typedef struct pd_event {
    const char *name;   /* [borrowed] until the recording is freed */
    int64_t begin, end; /* ns, monotonic */
    int64_t bytes;      /* read and written */
    int64_t held;       /* bytes by which tensors' memory has grown, in all threads together */
    int64_t lane;       /* the thread's id in the system, or the lane given to pd_timespan_end_in */
    uint32_t gpu[2];    /* results of gpu_begin and gpu_end; 0, 0 without work on a GPU */
    int64_t dims;       /* 0: no shapes; else 1 + where pd_profile_dims finds them */
    int32_t stack;      /* 0, or what `stack` returned when the span ended */
    pd_timespan_kind kind;
} pd_event;

typedef struct pd_profile {
    size_t most;            /* how many events are kept; later ones are only counted */
    bool shapes;            /* record shapes */
    bool alone;             /* it starts only if no other recording with `alone` runs */
    bool this_thread;       /* record only the spans of the thread that starts it */
    int64_t (*held)(void);  /* bytes that tensors hold now; NULL: not wanted */
    /* Only with `alone`: a number for the place in the user's program, or NULL; called without locks held. */
    int32_t (*stack)(void);
    /* Only with `alone`: mark the begin and the end of a span in the queue of the thread's GPU; NULL: not wanted. If
       the span gave the GPU no work, gpu_end returns 0 and undoes gpu_begin. */
    uint32_t (*gpu_begin)(void);
    uint32_t (*gpu_end)(uint32_t begin);
} pd_profile;

typedef struct pd_recording pd_recording;

/* [new] Starts a recording, to be stopped and then freed by its owner. PD_E_RUNTIME: another one is alone. */
pd_status pd_profile_start(const pd_profile *how, pd_recording **out);
void pd_profile_stop(pd_recording *r);
/* The following need a recording that has been stopped. */
/* [borrowed] the events in the order of their ends, and how many were not kept. */
const pd_event *pd_profile_events(const pd_recording *r, size_t *count, uint64_t *dropped);
/* [borrowed] the shapes of an event with dims: the number of results, then for each result and each input its number of
   dimensions (-1: no tensor) and its sizes; -2 ends the list. */
const int64_t *pd_profile_dims(const pd_recording *r, const pd_event *e);
void pd_profile_free(pd_recording *r); /* NULL is allowed */
bool pd_profile_shapes(void);          /* whether a recording wants shapes */
bool pd_profile_has_alone(void);       /* whether one that is alone runs */

/* 0: nobody wants spans; else the number of the newest recording, and PD_TIMESPAN_TRACED while a thread records a
   program (autograd/program.h), which learns of calls by the same check. */
extern atomic_uint pd_profile_run;
#define PD_TIMESPAN_TRACED (1u << 31)
extern _Thread_local uint32_t pd_timespan_mark; /* set by the recorder of programs, for itself */
static inline bool pd_profile_is_on(void) { return (pd_profile_run & ~PD_TIMESPAN_TRACED) != 0; }

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
/* Ends a span in a lane that is no thread; any thread may call it. */
static inline void pd_timespan_end_in(const pd_timespan *s, pd_timespan_kind kind, const char *name, int64_t bytes,
                                      int64_t lane) {
    if (pd_timespan_is_on(s)) pd_timespan_close(s, kind, name, bytes, NULL, 0, &lane);
}

#endif
