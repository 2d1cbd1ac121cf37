/* Every allocation of the engine. Failing the N-th one is a test (base/fault.h). */
#ifndef PD_BASE_MEM_H
#define PD_BASE_MEM_H

#include "base/fault.h"
#include "base/status.h"

/* [new] `bytes` of memory, or PD_E_MEMORY naming `what`. Zero bytes give a valid pointer. Freed by pd_free. */
pd_status pd_malloc(size_t bytes, const char *what, void *out);
pd_status pd_calloc(size_t bytes, const char *what, void *out);
/* The same, aligned to 64 bytes (a cache line, a vector); also freed by pd_free. */
pd_status pd_malloc_aligned(size_t bytes, const char *what, void *out);
/* Grows *ptr (an array) to hold at least `want` elements of `size` bytes, doubling *cap. */
pd_status pd_grow(void *ptr, size_t *cap, size_t want, size_t size, const char *what);
void pd_free(void *p);

/* How often the engine has asked the system for memory so far, in all threads: what was freed is used again first. */
int64_t pd_mem_asked(void);
void pd_mem_trim(void); /* gives back what the calling thread has freed */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PD_KEEPS_FREED 0 /* a freed block must stay free, to be seen */
#else
#define PD_KEEPS_FREED 1
#endif

/* [borrowed from this thread] at least `bytes`, 64-byte aligned, valid until the next call: kept between calls, so that
   a steady step allocates none; freed when the thread ends. One user at a time: kernels, which call no ops. */
pd_status pd_scratch(size_t bytes, const char *what, void **out);

/* For allocations made elsewhere (mmap, thread creation) too: true where this one has to fail. */
static inline bool pd_fault_hit(void) { return pd_fault_now(PD_FAULT_MALLOC); }

#endif
