/* Plans of a library's calls, found by a key of numbers and kept for good, up to a fixed count. Only one thread at a
   time may call this. */
#ifndef PD_DEVICE_PLANS_H
#define PD_DEVICE_PLANS_H

#include "base/status.h"

#define PD_PLAN_KEY 28
#define PD_PLAN_BUCKETS 1024

typedef struct pd_plan { /* the first member of the library's own struct */
    struct pd_plan *next;
    int64_t key[PD_PLAN_KEY]; /* unused ones are 0 */
} pd_plan;

typedef struct pd_plans {
    const int most;
    pd_plan *buckets[PD_PLAN_BUCKETS];
    int count;
} pd_plans;

/* The plan of a key. If there is none, a new one of so many zero bytes, which is kept; or `mine`, if the table is full.
   NULL: no memory. */
pd_plan *pd_plan_of(pd_plans *plans, const int64_t key[PD_PLAN_KEY], size_t bytes, pd_plan *mine);

#endif
