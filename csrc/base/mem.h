/* All allocations of the engine. Tests make the N-th one fail (base/fault.h). */
#ifndef PD_BASE_MEM_H
#define PD_BASE_MEM_H

#include "base/fault.h"
#include "base/status.h"

/* [new] `bytes` of memory, or PD_E_MEMORY naming `what`. Zero bytes give a valid pointer. Freed by pd_free. */
pd_status pd_malloc(size_t bytes, const char *what, void *out);
pd_status pd_calloc(size_t bytes, const char *what, void *out);
/* The same, aligned to 64 bytes (a cache line, a vector); also freed by pd_free, or, where it comes and goes often, by
   pd_free_aligned: what a thread keeps of freed blocks is no use to a later request like this one. */
pd_status pd_malloc_aligned(size_t bytes, const char *what, void *out);
void pd_free_aligned(void *p);
static inline size_t pd_whole_lines(size_t bytes) { return (bytes + 63) & ~(size_t)63; } /* cache lines, of 64 bytes */
#define PD_HUGE_PAGE ((size_t)2 << 20) /* bytes */
#define PD_LARGE ((size_t)8 << 20)     /* memory from this size on gets huge pages: fewer to look up and to clear */
/* Grows the array *ptr until it has room for `want` elements of `size` bytes, by doubling *cap. */
pd_status pd_grow(void *ptr, size_t *cap, size_t want, size_t size, const char *what);
void pd_free(void *p);

/* How often the engine has asked the system for memory so far, in all threads. Freed blocks are used again first. */
int64_t pd_mem_asked(void);
void pd_mem_trim(size_t most); /* gives the freed blocks of this thread back to the system if they are more bytes */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PD_KEEPS_FREED 0 /* sanitizers see a use of freed memory only where it is not used again */
#else
#define PD_KEEPS_FREED 1
#endif

/* [borrowed from this thread] at least `bytes` of memory, aligned to 64 bytes, valid until this thread's next call. The
   block is kept between calls, so a step that repeats allocates nothing, and freed when the thread ends. Only one
   function of a thread may use it at a time. Kernels may: they call no ops. */
pd_status pd_scratch(size_t bytes, const char *what, void **out);

/* Whether this allocation has to fail. For allocations that are not made here (mmap, threads), too. */
static inline bool pd_fault_hit(void) { return pd_fault_now(PD_FAULT_MALLOC); }

#endif
