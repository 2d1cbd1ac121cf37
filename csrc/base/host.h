/* The two things that C needs from the host language (Python): to give up its lock during long work, and callbacks. */
#ifndef PD_BASE_HOST_H
#define PD_BASE_HOST_H

#include "base/status.h"

/* Work that takes less than this keeps the lock. A thread that gives it up may wait for Python's switch interval, 5 ms,
   until another thread that computes gives it back (benchmarks/programs/beside.py). */
#define PD_RELEASE_NS 1e6

/* release() gives up the host's lock and returns a token for acquire(), which takes the lock again. The token is NULL
   if this thread does not hold the lock; acquire(NULL) does nothing. py/ sets both. */
extern void *(*pd_host_release)(void);
extern void (*pd_host_acquire)(void *token);

/* Locks a mutex (pthread_mutex_t) whose holder may wait for the host's lock, as ops do that give it up for a while.
   Such a mutex must not be waited for with the host's lock held, which would be a deadlock; this function gives it up
   first. */
void pd_host_lock(void *mutex);

/* A function of the host language with its context. Any thread may call it. If it fails, the status is PD_E_PYTHON and
   the host's exception comes out unchanged. */
typedef struct pd_closure {
    pd_status (*call)(void *ctx, void *arg);
    void (*drop)(void *ctx); /* frees the context; NULL: nothing to free */
    void *ctx;
} pd_closure;

static inline void pd_closure_drop(const pd_closure *c) {
    if (c->drop) c->drop(c->ctx);
}

#endif
