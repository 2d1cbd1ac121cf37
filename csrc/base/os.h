/* What the engine asks of the operating system for time and threads: the clock, sleeping, waiting on a word, starting a
   thread, random bytes, ids. Nothing else in csrc/ calls these functions of the system (tests' source rules), so that a
   simulator can bring another os.h with a clock of its own. The short ones are inline: the system's call, and no more.

   Sockets, files, plain locks and waits on conditions without a time limit are not here. A sleep or a wait on a word
   is shorter than a second: whoever waits longer looks around in between (PD_SLICE_NS, comm/net/hooks.h). */
#ifndef PD_BASE_OS_H
#define PD_BASE_OS_H

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* ns of a clock that only goes forward. */
static inline int64_t pd_os_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void pd_os_sleep(int64_t ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }
static inline void pd_os_yield(void) { sched_yield(); }

/* Between two looks at a word. */
static inline void pd_os_pause(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ __volatile__("yield");
#endif
}

/* Sleeps until pd_os_wake of the word, also in another process that shares it, or `ns` at most. Returns at once where
   the word is not `seen`, and may return for no reason. */
static inline void pd_os_wait(atomic_uint *word, uint32_t seen, int64_t ns) {
    struct timespec t = {.tv_nsec = ns};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}
static inline void pd_os_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

/* A condition for pd_os_cond_wait: of the clock above. */
void pd_os_cond_init(pthread_cond_t *c);
/* Like pthread_cond_wait, for `ns` at most: then false. */
bool pd_os_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, int64_t ns);
/* Whether the lock could be taken within `ns`. */
bool pd_os_lock(pthread_mutex_t *lock, int64_t ns);

/* ---- threads and processes --------------------------------------------------------------------------------------- */

typedef pthread_t pd_os_thread;

/* A thread that gets no signals; to be joined or detached. PD_E_MEMORY, after `op`: there is no room for one. */
pd_status pd_os_thread_start(const char *op, pd_os_thread *out, void *(*run)(void *), void *arg);
static inline void pd_os_thread_join(pd_os_thread t) { pthread_join(t, NULL); }
static inline void pd_os_thread_detach(pd_os_thread t) { pthread_detach(t); }

static inline int pd_os_pid(void) { return getpid(); }
int pd_os_thread_id(void); /* the kernel's, of the calling thread */

/* ---- random bytes ------------------------------------------------------------------------------------------------ */

pd_status pd_os_random(void *to, size_t n); /* that nobody can guess; PD_E_OS */

#endif
