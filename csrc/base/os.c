#include "base/os.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>

#include "base/fault.h"

static struct timespec later(clockid_t clock, int64_t ns) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec += ns % 1000000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

void pd_os_cond_init(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

bool pd_os_cond_wait(pthread_cond_t *c, pthread_mutex_t *lock, int64_t ns) {
    struct timespec until = later(CLOCK_MONOTONIC, ns);
    return pthread_cond_timedwait(c, lock, &until) != ETIMEDOUT;
}

bool pd_os_lock(pthread_mutex_t *lock, int64_t ns) {
    struct timespec until = later(CLOCK_REALTIME, ns);
    return !pthread_mutex_timedlock(lock, &until);
}

int pd_os_lock_robust(pthread_mutex_t *lock, int64_t ns) {
    struct timespec until = later(CLOCK_REALTIME, ns);
    int e = pthread_mutex_timedlock(lock, &until);
    return e == ETIMEDOUT ? EBUSY : e;
}

/* The new thread blocks all signals: a Ctrl-C that this thread got would leave the main thread asleep. */
pd_status pd_os_thread_start(const char *op, pd_os_thread *out, void *(*run)(void *), void *arg) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    int rc = pd_fault_now(PD_FAULT_MALLOC) ? EAGAIN : pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? pd_fail(PD_E_MEMORY, "%s: cannot start a thread: %s", op, strerror(rc)) : PD_OK;
}

int pd_os_thread_id(void) { return (int)syscall(SYS_gettid); }

pd_status pd_os_random(void *to, size_t n) {
    return getrandom(to, n, 0) == (ssize_t)n
               ? PD_OK
               : pd_fail(PD_E_OS, "cannot get random numbers from the system: %s", strerror(errno));
}
