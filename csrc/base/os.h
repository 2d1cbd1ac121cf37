/* What the engine asks of the operating system for time and threads: the clock, sleeping, waiting on a word, starting a
   thread, random bytes, ids. No other file of csrc/ calls these functions of the system (a test checks it), so a
   simulator can replace this one and bring a clock of its own. The short functions are inline.

   Sockets, files, plain locks, and waits on conditions without a time limit are not here. A sleep or a wait on a word
   takes less than a second; who waits longer looks for signals and failures in between (PD_SLICE_NS,
   comm/net/hooks.h). */
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

/* Nanoseconds of a clock that never goes back. */
static inline int64_t pd_os_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void pd_os_sleep(int64_t ns) { nanosleep(&(struct timespec){.tv_nsec = ns}, NULL); }
static inline void pd_os_yield(void) { sched_yield(); }

/* For the body of a loop that spins until a word changes. */
static inline void pd_os_pause(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ __volatile__("yield");
#endif
}

/* Sleeps until pd_os_wake is called for the word, perhaps by another process that shares it, but at most `ns`. Returns
   at once if the word differs from `seen`, and may return without a reason. */
static inline void pd_os_wait(atomic_uint *word, uint32_t seen, int64_t ns) {
    struct timespec t = {.tv_nsec = ns};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}
static inline void pd_os_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

/* Initialises a condition for pd_os_cond_wait, which measures time by the clock above. */
void pd_os_cond_init(pthread_cond_t *c);
/* Like pthread_cond_wait, but returns false after `ns`. */
bool pd_os_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, int64_t ns);
/* Takes the lock, or returns false after `ns`. */
bool pd_os_lock(pthread_mutex_t *lock, int64_t ns);
int pd_os_lock_robust(pthread_mutex_t *lock, int64_t ns); /* 0, EOWNERDEAD: it has it; EBUSY: after ns */

/* ---- threads and processes --------------------------------------------------------------------------------------- */

typedef pthread_t pd_os_thread;

/* Starts a thread that gets no signals. The caller joins or detaches it. Fails with PD_E_MEMORY, whose text starts with
   `op`. */
pd_status pd_os_thread_start(const char *op, pd_os_thread *out, void *(*run)(void *), void *arg);
static inline void pd_os_thread_join(pd_os_thread t) { pthread_join(t, NULL); }
static inline void pd_os_thread_detach(pd_os_thread t) { pthread_detach(t); }

static inline int pd_os_pid(void) { return getpid(); }
int pd_os_thread_id(void); /* the kernel's id of the calling thread */

/* ---- random bytes ------------------------------------------------------------------------------------------------ */

pd_status pd_os_random(void *to, size_t n); /* bytes that nobody can guess; fails with PD_E_OS */

#endif
