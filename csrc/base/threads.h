/* Threads inside kernels: OpenMP behind one function.

   Each calling thread has its own number of threads, since libgomp keeps a pool for each caller and ranks that are
   threads share the cores. The default is max(1, cpu quota / LOCAL_WORLD_SIZE), or OMP_NUM_THREADS. After a fork the
   child has one thread, since libgomp's pool does not survive a fork. Chunks depend on (n, grain) and never on the
   number of threads, so a kernel that combines the chunks' results in their order gives the same bits with any
   number. */
#ifndef PD_BASE_THREADS_H
#define PD_BASE_THREADS_H

#include <stdint.h>

#define PD_GRAIN 32768 /* a loop over fewer elements is serial (docs/internals/design.md, "Threads") */

int pd_threads_get(void);       /* of this calling thread; at least 1 */
void pd_threads_set(int n);     /* of this calling thread; n < 1 returns to the default */
void pd_threads_set_default(int n); /* of all threads that have not set their own */
int pd_threads_cores(void);     /* cpus allowed by affinity and cgroup quota; at least 1 */

/* Calls fn(ctx, begin, end) for each chunk of [0, n), on up to pd_threads_get() threads. A chunk has `grain` elements,
   the last one may be shorter. Serial if there is one chunk or one thread, and inside another such loop. fn must not
   fail. */
typedef void (*pd_range_fn)(void *ctx, int64_t begin, int64_t end);
void pd_parallel(int64_t n, int64_t grain, pd_range_fn fn, void *ctx);

/* The grain, in rows, of a loop over n rows of `each` elements. Up to `grain` elements it is serial. Above that a chunk
   has a quarter of `grain`, for even loads: in 3 chunks, 98304 elements would take two threads as long as 4 chunks. */
static inline int64_t pd_grain(int64_t n, int64_t each, int64_t grain) {
    if (n * each <= grain) return n > 0 ? n : 1;
    return grain / 4 > each ? grain / 4 / each : 1;
}

#endif
