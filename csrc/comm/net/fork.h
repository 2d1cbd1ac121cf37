/* After a user's fork the child has no groups (docs/internals/design.md, "After a fork").

   Every link and group keeps the count of forks of the time when it was made. A child has another count, so it refuses,
   without touching locks that the parent's threads may have held. Descriptors on the watch list are closed in the
   child, so that the control socket of a dead parent closes although its children live. This list and the count are the
   only state of the process. */
#ifndef PD_COMM_FORK_H
#define PD_COMM_FORK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pd_fork_watch {
    int fd;
    struct pd_fork_watch *next, **at;
} pd_fork_watch;

extern uint32_t pd_forks; /* how many forks led to this process; written only by the at-fork handler */

void pd_fork_watch_add(pd_fork_watch *w, int fd); /* *w must live until pd_fork_watch_drop */
void pd_fork_watch_drop(pd_fork_watch *w);
static inline bool pd_forked_since(uint32_t forks) { return __builtin_expect(pd_forks != forks, 0); }

#endif
