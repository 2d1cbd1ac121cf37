/* Worker processes that cannot outlive their launcher.

   A worker is a session of its own, made by fork + exec. Three things end it when the launcher does:
     - the kernel kills the worker itself when the thread that forked it dies (PR_SET_PDEATHSIG), so that
       thread has to live as long as the launcher: spawn from the main thread;
     - the guard, a forked child of the launcher that holds nothing but a pipe, sees the pipe close and kills
       what is left of the workers' sessions (their own children);
     - the launcher's orderly end: pd_session_kill, then waitpid.
   Out of reach: a descendant that called setsid() itself (a daemon by its own choice).

   Between fork and exec only async-signal-safe calls are made: the launcher has a thread (the control server). */
#ifndef PD_BASE_SPAWN_H
#define PD_BASE_SPAWN_H

#include <sys/types.h>

#include "base/limits.h"
#include "base/status.h"

typedef struct pd_spawn {
    char *const *argv; /* argv[0] is the program's path, not looked up; NULL at the end */
    char *const *envp; /* "NAME=value"; NULL at the end */
    int stdio[3];      /* become descriptors 0, 1 and 2 */
    const int *keep;   /* `keeps` descriptors over 2 that stay open under their numbers; all others close */
    size_t keeps;
} pd_spawn;

/* Starts a process: signal mask and dispositions as at boot. Returns once exec has succeeded; a step that failed
   is PD_E_OS naming the step and errno, and leaves no process. */
pd_status pd_spawn_run(const pd_spawn *spawn, pid_t *pid);

/* For a process that something else made: from here on the kernel kills it when the thread of `parent` that forked it
   ends. At once if that has happened already. */
void pd_die_with(pid_t parent);

/* Starts the guard. Its owner writes each worker's pid (a native pid_t, at most PD_RANKS_MAX of them) to *fd, which
   is closed on exec. An orderly end kills the guard (SIGKILL) before it closes *fd. */
pd_status pd_guard_run(pid_t *pid, int *fd);

/* Sends `sig` to every living member of the `n` sessions (0: to none) and returns how many there are. Zombies do not
   count. Async-signal-safe. Without /proc: the process groups of the leaders, counted as one each. */
int pd_session_kill(const pid_t *sessions, size_t n, int sig);

#endif
