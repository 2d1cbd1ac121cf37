/* What a wait for stragglers does, in a collective or for a message: it asks the missing ranks where they are, writes a
   warning, and ends with PD_E_TIMEOUT if it has lasted too long or can never end.

   It can never end if ranks wait for each other in a circle. A rank that is asked where it is also says for which rank
   it has waited longer than PYDIST_BLOCKED seconds. The asking rank follows the chain of such ranks, one question at a
   time. If the chain ends at a rank that computes, nothing is wrong. If it comes back to the asking rank, or is longer
   than there are ranks, there is a circle. A rank that goes from one wait to the next is not blocked. */
#ifndef PD_COMM_STRAGGLER_H
#define PD_COMM_STRAGGLER_H

#include "comm/group/group_impl.h"

typedef struct pd_straggler {
    pd_group *g;
    const pd_work *w;
    bool (*is_missing)(const pd_group *, const pd_work *, int rank);
    bool any; /* it waits for any rank */
    int64_t start, deadline, asked;
    int64_t from; /* the timeout counts from here: the wait's start, or the news of a missing rank's long task */
    bool warned;
    int64_t next; /* time of the next look at the chain */
    int chain[PD_PLACES], hops, last; /* the chain's first ranks, its length, its last rank */
} pd_straggler;

/* From now until pd_straggler_end this rank counts as waiting. */
void pd_straggler_begin(pd_straggler *l, int64_t deadline);
void pd_straggler_end(pd_straggler *l);
/* PD_OK: go on waiting. Else *fatal false: only the caller's deadline has passed. */
pd_status pd_straggler_look(pd_straggler *l, bool *fatal);
int64_t pd_straggler_rest(const pd_straggler *l); /* ns until pd_straggler_look has something to do */

#endif
