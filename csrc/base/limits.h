/* How much memory and how many cores this process may use: limits of the machine and of its control groups (containers,
   batch systems; version 1 or 2). Of nested groups the tightest limit counts. And the engine's own limit: the largest
   number of ranks in a job.

   `root` is put before all paths that are read. It is "" except in tests, which make files of their own. */
#ifndef PD_BASE_LIMITS_H
#define PD_BASE_LIMITS_H

#include <stdint.h>

#define PD_RANKS_MAX 4096 /* limits a server's descriptors and the guard's table of pids; _C.RANKS_MAX */

/* Bytes that this process may still allocate. Page cache that the kernel can drop counts as free. UINT64_MAX:
   unknown. */
uint64_t pd_limit_memory(const char *root);
/* How many cores' worth of time this process may use, such as 1.5; 0: no limit. */
double pd_limit_cores(const char *root);

#endif
