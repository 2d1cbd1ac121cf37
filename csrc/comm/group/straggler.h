/* What a wait for stragglers does, for a collective or a message: it asks the missing ranks where they are, writes a
   warning, and ends with PD_E_TIMEOUT where it has lasted too long or can never end.

   It can never end where a rank that is missing waits itself for one that ... waits for us. A rank says, asked where it
   is, for whom it has waited for PYDIST_BLOCKED seconds; the chain of such ranks is followed, one question at a time.
   It ends at a rank that computes (nothing is wrong), comes back here, or is longer than there are ranks, and so is a
   circle. A rank that goes from one wait to the next is not blocked. */
#ifndef PD_COMM_STRAGGLER_H
#define PD_COMM_STRAGGLER_H

#include "comm/group/group_impl.h"

typedef struct pd_straggler {
    pd_group *g;
    const pd_work *w;
    bool (*is_missing)(const pd_group *, const pd_work *, int rank);
    bool any; /* it waits for whoever comes first */
    int64_t start, deadline, asked;
    int64_t from; /* the timeout counts from here: the start, or when a long task of a missing rank was known */
    bool warned;
    int64_t next; /* the next look at the chain */
    int chain[PD_PLACES], hops, last; /* its first ranks, how many there are, the newest */
} pd_straggler;

/* From here on this rank counts as one that waits; to pd_straggler_end. */
void pd_straggler_begin(pd_straggler *l, int64_t deadline);
void pd_straggler_end(pd_straggler *l);
/* PD_OK to go on. *fatal false: only the caller's deadline has passed. */
pd_status pd_straggler_look(pd_straggler *l, bool *fatal);
int64_t pd_straggler_rest(const pd_straggler *l); /* ns until something may have to be done */

#endif
