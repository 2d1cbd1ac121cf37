/* After a user's fork the child has no groups (docs/internals/design.md, "After a fork").

   A count of forks is copied into every link and group when it is made: a child finds another count and refuses,
   without touching locks that the parent's threads may have held. Descriptors on the watch list are closed in the
   child, so that a dead parent's control socket closes although its children live. This list and count are all that is
   process-wide. */
#ifndef PD_COMM_FORK_H
#define PD_COMM_FORK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pd_fork_watch {
    int fd;
    struct pd_fork_watch *next, **at;
} pd_fork_watch;

extern uint32_t pd_forks; /* how often this process is a child; written only in the at-fork handler */

void pd_fork_watch_add(pd_fork_watch *w, int fd); /* *w must live until pd_fork_watch_drop */
void pd_fork_watch_drop(pd_fork_watch *w);
static inline bool pd_forked_since(uint32_t forks) { return __builtin_expect(pd_forks != forks, 0); }

#endif
