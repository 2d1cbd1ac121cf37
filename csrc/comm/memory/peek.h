/* Reads memory of another process of this host in place, by process_vm_readv: one copy, where shared memory takes two.
   The kernel allows it between processes of one user, unless a security module or a container forbids it, so ranks
   first try it on one word of each other. A process that is gone, or an address that is no longer valid, is a failure
   and never a crash; therefore ranks that are threads use it, too. */
#ifndef PD_COMM_PEEK_H
#define PD_COMM_PEEK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pd_peek { /* what a rank tells about itself */
    int64_t pid;
    uint64_t at, word; /* address and value of the word to try */
} pd_peek;

/* For this process. `word` must keep its address. */
pd_peek pd_peek_of(const uint64_t *word);
bool pd_peek_works(const pd_peek *p);
/* Reads `bytes` from address `at` of process `pid`. False: not all of them could be read. */
bool pd_peek_read(int64_t pid, uint64_t at, void *to, size_t bytes);

#endif
