#include "base/threads.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/limits.h"

static _Thread_local int own;      /* 0: the default */
static _Thread_local int inside;   /* already in a parallel loop */
static atomic_int by_default;      /* 0: not computed yet */
static atomic_int forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void) { forked = 1; }
static void at_start(void) { pthread_atfork(NULL, NULL, in_child); }

int pd_threads_cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    double quota = pd_limit_cores("");
    if (quota > 0 && quota < n) n = (int)ceil(quota);
    return n > 0 ? n : 1;
}

/* How many ranks share this host, by the variables of our launcher, Open MPI and MPICH. */
static int local_ranks(void) {
    static const char *const names[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i])) return atoi(getenv(names[i]));
    return 1;
}

static int compute_default(void) {
    const char *omp = getenv("OMP_NUM_THREADS");
    int n = omp ? atoi(omp) : 0, ranks = local_ranks();
    if (n > 0) return n;
    n = pd_threads_cores() / (ranks > 0 ? ranks : 1);
    return n > 0 ? n : 1;
}

int pd_threads_get(void) {
    pthread_once(&once, at_start);
    if (forked) return 1;
    if (own) return own;
    if (!by_default) by_default = compute_default();
    return by_default;
}

void pd_threads_set(int n) { own = n > 0 ? n : 0; }
void pd_threads_set_default(int n) { by_default = n > 0 ? n : 0; }

void pd_parallel(int64_t n, int64_t grain, pd_range_fn fn, void *ctx) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    int64_t chunks = (n + grain - 1) / grain;
    int threads = chunks < 2 || inside ? 1 : pd_threads_get();
    if (threads > chunks) threads = (int)chunks;
    if (threads < 2) {
        for (int64_t c = 0; c < chunks; c++) fn(ctx, c * grain, c + 1 < chunks ? (c + 1) * grain : n);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) schedule(static)
#endif
    for (int64_t c = 0; c < chunks; c++) {
        inside = 1;
        fn(ctx, c * grain, c + 1 < chunks ? (c + 1) * grain : n);
        inside = 0;
    }
}
