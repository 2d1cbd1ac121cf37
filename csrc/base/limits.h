/* What the system lets this process have: memory and cores, by the machine and by the control groups (containers,
   batch systems) that it is in, of version 1 or 2. Of nested groups the tightest counts.

   And what the engine itself sets: the most ranks of a job.

   `root` goes before all paths that are read: "" but in tests, which make stand-ins. */
#ifndef PD_BASE_LIMITS_H
#define PD_BASE_LIMITS_H

#include <stdint.h>

#define PD_RANKS_MAX 4096 /* a server's descriptors, the guard's table of pids; _C.RANKS_MAX */

/* Bytes that may still be taken. Page cache that the kernel would give back counts as free. UINT64_MAX: nobody says. */
uint64_t pd_limit_memory(const char *root);
/* Cores' worth of time; 0: no limit. */
double pd_limit_cores(const char *root);

#endif
