/* Worker processes that cannot outlive their launcher.

   A worker is a session of its own, made by fork + exec. Three things end it when the launcher ends:
     - The kernel kills the worker when the thread that forked it dies (PR_SET_PDEATHSIG). That thread has to live as
       long as the launcher, so spawn from the main thread.
     - The guard is a forked child of the launcher that holds nothing but a pipe. It sees the pipe close and kills what
       is left of the workers' sessions (their own children).
     - A launcher that ends in good order calls pd_session_kill, then waitpid.
   None of them reaches a descendant that has called setsid() itself.

   Between fork and exec only async-signal-safe calls are made: the launcher has a thread (the control server). */
#ifndef PD_BASE_SPAWN_H
#define PD_BASE_SPAWN_H

#include <sys/types.h>

#include "base/limits.h"
#include "base/status.h"

typedef struct pd_spawn {
    char *const *argv; /* argv[0] is the program's path, not looked up; NULL at the end */
    char *const *envp; /* "NAME=value"; NULL at the end */
    int stdio[3];      /* the worker's descriptors 0, 1 and 2 */
    const int *keep;   /* `keeps` descriptors over 2 that stay open under their numbers; all others close */
    size_t keeps;
} pd_spawn;

/* Starts a process with default signal mask and dispositions. Returns once exec has succeeded. If a step fails, the
   error is PD_E_OS, names the step and errno, and no process is left. */
pd_status pd_spawn_run(const pd_spawn *spawn, pid_t *pid);

/* Called in a process that something else has started: from now on the kernel kills this process when the thread of
   `parent` that forked it ends, at once if it has ended already. */
void pd_die_with(pid_t parent);

/* Starts the guard. Its owner writes each worker's pid (a native pid_t, at most PD_RANKS_MAX of them) to *fd, which
   is closed on exec. An orderly end kills the guard (SIGKILL) before it closes *fd. */
pd_status pd_guard_run(pid_t *pid, int *fd);

/* Sends `sig` (0: nothing) to every living process of the `n` sessions and returns how many there are. Zombies do not
   count. Async-signal-safe. Without /proc it signals the leaders' process groups and counts each as one. */
int pd_session_kill(const pid_t *sessions, size_t n, int sig);

#endif
