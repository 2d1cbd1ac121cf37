/* The two things that C needs of the host language: to let go of its lock for long work, and to call back into it. */
#ifndef PD_BASE_HOST_H
#define PD_BASE_HOST_H

#include "base/status.h"

/* Work under this runs with the lock held: who released it waits up to Python's switch interval, 5 ms, to have it back
   from a computing thread (benchmarks/programs/beside.py). */
#define PD_RELEASE_NS 1e6

/* release() gives a token, NULL where this thread does not hold the lock; acquire(NULL) does nothing. Set by py/. */
extern void *(*pd_host_release)(void);
extern void (*pd_host_acquire)(void *token);

/* Takes a mutex (pthread_mutex_t) whose holders may wait for the host's lock, as ops do that give it up and take it
   again: to wait for such a mutex with that lock held would be a deadlock. */
void pd_host_lock(void *mutex);

/* A function of the host with its context. call may be made from any thread; its failure is PD_E_PYTHON, carried
   unchanged. */
typedef struct pd_closure {
    pd_status (*call)(void *ctx, void *arg);
    void (*drop)(void *ctx); /* gives the context back; NULL: nothing to do */
    void *ctx;
} pd_closure;

static inline void pd_closure_drop(const pd_closure *c) {
    if (c->drop) c->drop(c->ctx);
}

#endif
