/* Reading memory of another process of this host where it lies (process_vm_readv): one copy instead of two through
   shared memory. The kernel allows it between processes of one user, unless a security module or a container forbids
   it; so ranks try it on a word of each other first. A process that is gone, or an address that is not there any more,
   is a failure, never a crash; so threads use it among themselves, too. */
#ifndef PD_COMM_PEEK_H
#define PD_COMM_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pd_peek { /* what a rank shows of itself */
    int64_t pid;
    uint64_t at, word; /* where that word of its lies */
} pd_peek;

/* Of this process. word: has to stay where it is. */
pd_peek pd_peek_of(const uint64_t *word);
bool pd_peek_works(const pd_peek *p);
/* All of `bytes` from address `at` of process `pid`. */
bool pd_peek_read(int64_t pid, uint64_t at, void *to, size_t bytes);

#endif
