/* Plans of a library's calls, found by a key of numbers. When the table is full, the plan that was not used for the
   longest time is dropped. Only one thread at a time may call this. */
#ifndef PD_DEVICE_PLANS_H
#define PD_DEVICE_PLANS_H

#include "base/status.h"

#define PD_PLAN_KEY 28
#define PD_PLAN_BUCKETS 1024
#define PD_PLAN_TIMED_AT 3 /* the use at which the candidates of a plan are timed, where timing is asked for */

typedef struct pd_plan { /* the first member of the library's own struct */
    struct pd_plan *next, *newer, *older;
    int64_t key[PD_PLAN_KEY]; /* unused ones are 0 */
    int64_t uses;             /* how often it was asked for, this time included */
    bool stays;               /* set by the library, for a captured graph that needs the plan: never dropped */
} pd_plan;

typedef struct pd_plans {
    const int most;
    void (*const drop)(pd_plan *); /* gives back what the library's own plan holds, not the plan itself */
    pd_plan *buckets[PD_PLAN_BUCKETS], *newest, *oldest;
    int count; /* may exceed `most` by plans that stay */
} pd_plans;

/* The plan of a key, or a new one of so many zero bytes. NULL: no memory. */
pd_plan *pd_plan_of(pd_plans *plans, const int64_t key[PD_PLAN_KEY], size_t bytes);

#endif
