/* Threads inside kernels: OpenMP behind one function.

   The count belongs to the calling thread (libgomp keeps a pool per caller, so ranks-as-threads must share the
   cores): by default max(1, cpu quota / LOCAL_WORLD_SIZE), unless OMP_NUM_THREADS says otherwise.
   After a fork the child stays on one thread: libgomp's pool does not survive it. Chunks are fixed by (n, grain),
   never by the number of threads, so a kernel that combines per-chunk results in chunk order gives the same bits. */
#ifndef PD_BASE_THREADS_H
#define PD_BASE_THREADS_H

#include <stdint.h>

#define PD_GRAIN 32768 /* elements under which a loop stays serial (docs/internals/design.md, "Threads") */

int pd_threads_get(void);       /* of this calling thread; at least 1 */
void pd_threads_set(int n);     /* of this calling thread; n < 1 returns to the default */
void pd_threads_set_default(int n); /* of all threads that did not set their own */
int pd_threads_cores(void);     /* cpus allowed by affinity and cgroup quota; at least 1 */

/* Calls fn(ctx, begin, end) over [0, n) in chunks of `grain` (the last may be shorter), on up to pd_threads_get()
   threads. Serial where there is one chunk, one thread, or already inside such a loop. fn must not fail. */
typedef void (*pd_range_fn)(void *ctx, int64_t begin, int64_t end);
void pd_parallel(int64_t n, int64_t grain, pd_range_fn fn, void *ctx);

/* The grain of a loop over n rows of `each` elements that stays serial up to `grain` elements. Above, chunks are a
   quarter of that, which makes loads even: 98304 elements would be 3 chunks, for two threads as long as 4. */
static inline int64_t pd_grain(int64_t n, int64_t each, int64_t grain) {
    if (n * each <= grain) return n > 0 ? n : 1;
    return grain / 4 > each ? grain / 4 / each : 1;
}

#endif
