/* Plans of a library's calls by what decides them, numbers: found again or begun, and kept for good, so many at most.
   Not for several threads at once. */
#ifndef PD_DEVICE_PLANS_H
#define PD_DEVICE_PLANS_H

#include "base/status.h"

#define PD_PLAN_KEY 28
#define PD_PLAN_BUCKETS 1024

typedef struct pd_plan { /* the first member of the library's own */
    struct pd_plan *next;
    int64_t key[PD_PLAN_KEY]; /* unused ones 0 */
} pd_plan;

typedef struct pd_plans {
    const int most;
    pd_plan *buckets[PD_PLAN_BUCKETS];
    int count;
} pd_plans;

/* The plan of a key: kept, new (all zeros, of so many bytes) and kept, or `mine` where no more are kept. NULL without
   memory. */
pd_plan *pd_plan_of(pd_plans *plans, const int64_t key[PD_PLAN_KEY], size_t bytes, pd_plan *mine);

#endif
