/* A function that several threads run at once, for one caller. */
#ifndef PD_IO_CREW_H
#define PD_IO_CREW_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"

#define PD_CREW_MOST 64 /* threads */

typedef struct pd_crew {
    atomic_bool stop; /* a thread has failed: the others end when they see it */
    pd_status (*run)(struct pd_crew *crew);
    pthread_mutex_t lock;
    pd_status status;
    pd_error error; /* the first one */
} pd_crew;

/* Calls run(crew) in `threads` threads, of which one is the caller's, and returns when all have. A thread that does not
   start is a failure, too. Returns the first failure. crew stands in a struct of the caller, which run knows. */
pd_status pd_crew_run(const char *op, pd_crew *crew, int threads, pd_status (*run)(pd_crew *crew));

#endif
