#include "base/spawn.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Calls visit for each entry of `dir` whose name is a number. By the system call itself, since opendir allocates. */
static bool each_number(const char *dir, void (*visit)(int number, void *ctx), void *ctx) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    union {
        struct dirent64 align;
        char bytes[8192];
    } buf;
    long got;
    while ((got = syscall(SYS_getdents64, fd, buf.bytes, sizeof buf)) > 0) {
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(buf.bytes + at);
            at += entry->d_reclen;
            int number = 0;
            const char *c = entry->d_name;
            while (*c >= '0' && *c <= '9') number = number * 10 + (*c++ - '0');
            if (*c == '\0') visit(number, ctx);
        }
    }
    close(fd);
    return true;
}

/* Closes every descriptor from `first` on, now or on exec. */
static void close_from(int first, bool on_exec) {
#ifdef SYS_close_range
    const unsigned cloexec = 1u << 2; /* CLOSE_RANGE_CLOEXEC; older headers lack the name */
    if (syscall(SYS_close_range, (unsigned)first, ~0u, on_exec ? cloexec : 0) == 0) return;
#endif
    struct rlimit limit = {0}; /* before Linux 5.11 */
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = first; fd < 65536 && (rlim_t)fd < limit.rlim_cur; fd++) {
        if (on_exec) fcntl(fd, F_SETFD, FD_CLOEXEC);
        else close(fd);
    }
}

/* A worker does not inherit the launcher's mask and dispositions (Python ignores SIGPIPE, nohup SIGHUP, `&` SIGINT). */
static void reset_signals(void) {
    struct sigaction action = {.sa_handler = SIG_DFL};
    for (int sig = 1; sig < NSIG; sig++) sigaction(sig, &action, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* What the child writes to the pipe when it fails. `step` is a string literal, at the same address in both
   processes. */
struct report {
    const char *step;
    int error;
};

/* Returns only if a step failed. */
static struct report child_run(const pd_spawn *spawn, const int stdio[3], pid_t parent) {
#define STEP(name, call) \
    if ((call) < 0) return (struct report){name, errno}
    STEP("setsid", setsid());
    STEP("prctl", prctl(PR_SET_PDEATHSIG, SIGKILL));
    if (getppid() != parent) _exit(127); /* the parent died before prctl: nobody reads a report */
    for (int i = 0; i < 3; i++) STEP("dup2", dup2(stdio[i], i));
    close_from(3, true);
    for (size_t i = 0; i < spawn->keeps; i++) STEP("keep", fcntl(spawn->keep[i], F_SETFD, 0));
    reset_signals();
    STEP("exec", execve(spawn->argv[0], spawn->argv, spawn->envp));
#undef STEP
    return (struct report){"exec", 0};
}

static ssize_t read_all(int fd, void *to, size_t bytes) {
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = read(fd, (char *)to + have, bytes - have);
        if (got == 0) break;
        if (got > 0) have += (size_t)got;
        else if (errno != EINTR) return -1;
    }
    return (ssize_t)have;
}

static void wait_gone(pid_t pid) {
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
}

/* Forks with all signals blocked in both processes, so that no handler of the parent runs in the child. */
static pid_t fork_quiet(sigset_t *old) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, old);
    pid_t pid = fork();
    int error = errno;
    if (pid != 0) pthread_sigmask(SIG_SETMASK, old, NULL);
    errno = error;
    return pid;
}

/* A pipe with descriptors above 2: a launcher may have been started with its standard descriptors closed. */
static pd_status pipe_high(int ends[2]) {
    int low[2];
    if (pipe2(low, O_CLOEXEC) < 0) return pd_fail(PD_E_OS, "spawn: cannot make a pipe: %s", strerror(errno));
    int error = 0;
    for (int i = 0; i < 2; i++) {
        ends[i] = fcntl(low[i], F_DUPFD_CLOEXEC, 3);
        if (ends[i] < 0) error = errno;
    }
    for (int i = 0; i < 2; i++) close(low[i]);
    if (!error) return PD_OK;
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0) close(ends[i]);
    return pd_fail(PD_E_OS, "spawn: cannot make a pipe: %s", strerror(error));
}

pd_status pd_spawn_run(const pd_spawn *spawn, pid_t *pid) {
    pd_status status = PD_OK;
    int stdio[3] = {-1, -1, -1}, ends[2] = {-1, -1};
    for (size_t i = 0; i < spawn->keeps; i++)
        if (spawn->keep[i] <= 2)
            return pd_fail(PD_E_VALUE, "spawn: keep has descriptor %d (expected descriptors above 2)", spawn->keep[i]);
    for (int i = 0; i < 3; i++) { /* copies over 2, so that no dup2 overwrites a later source */
        stdio[i] = fcntl(spawn->stdio[i], F_DUPFD_CLOEXEC, 3);
        if (stdio[i] < 0) {
            status = pd_fail(PD_E_OS, "spawn: cannot duplicate descriptor %d: %s", spawn->stdio[i], strerror(errno));
            goto done;
        }
    }
    PD_TRY_TO(done, pipe_high(ends));

    sigset_t old;
    pid_t parent = getpid(), child = fork_quiet(&old);
    if (child == 0) {
        struct report report = child_run(spawn, stdio, parent);
        ssize_t sent = write(ends[1], &report, sizeof report); /* under PIPE_BUF: arrives whole or not at all */
        _exit(sent == sizeof report ? 127 : 126);
    }
    if (child < 0) {
        status = pd_fail(PD_E_OS, "spawn: cannot fork: %s", strerror(errno));
        goto done;
    }
    close(ends[1]);
    ends[1] = -1;
    struct report report = {0};
    if (read_all(ends[0], &report, sizeof report) == sizeof report) {
        wait_gone(child);
        status = pd_fail(PD_E_OS, "spawn: %s: %s: %s", report.step, spawn->argv[0], strerror(report.error));
        goto done;
    }
    *pid = child;
done:
    for (int i = 0; i < 3; i++)
        if (stdio[i] >= 0) close(stdio[i]);
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0) close(ends[i]);
    return status;
}

struct sweep {
    const pid_t *sessions;
    size_t n;
    int sig, found;
};

/* True for a process that has ended and was not waited for yet. */
static bool is_zombie(int pid) {
    char path[32] = "/proc/", text[512], digits[12];
    int n = 0;
    size_t at = strlen(path);
    for (int rest = pid; rest > 0; rest /= 10) digits[n++] = (char)('0' + rest % 10);
    while (n > 0) path[at++] = digits[--n];
    memcpy(path + at, "/stat", sizeof "/stat");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true;
    ssize_t got = read_all(fd, text, sizeof text);
    close(fd);
    const char *name_end = got > 0 ? memrchr(text, ')', (size_t)got) : NULL; /* the name may hold anything */
    if (!name_end || name_end + 2 >= text + got) return true;
    return name_end[2] == 'Z' || name_end[2] == 'X';
}

static void sweep_visit(int pid, void *ctx) {
    struct sweep *sweep = ctx;
    pid_t session = pid > 1 ? getsid(pid) : -1;
    if (session <= 0) return;
    for (size_t i = 0; i < sweep->n; i++) {
        if (sweep->sessions[i] != session) continue;
        if (is_zombie(pid)) return;
        sweep->found++;
        if (sweep->sig) kill(pid, sweep->sig);
        return;
    }
}

int pd_session_kill(const pid_t *sessions, size_t n, int sig) {
    struct sweep sweep = {sessions, n, sig, 0};
    if (n == 0 || each_number("/proc", sweep_visit, &sweep)) return sweep.found;
    for (size_t i = 0; i < n; i++) sweep.found += kill(-sessions[i], sig) == 0;
    return sweep.found;
}

void pd_die_with(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) kill(getpid(), SIGKILL);
}

static _Noreturn void guard(int fd) {
    pid_t sessions[PD_RANKS_MAX];
    ssize_t bytes = read_all(fd, sessions, sizeof sessions);
    char none;
    if (bytes == sizeof sessions) read_all(fd, &none, 1);
    size_t n = bytes > 0 ? (size_t)bytes / sizeof *sessions : 0;
    /* Repeated, because a process may fork between the scan and the signal. */
    for (int i = 0; i < 100 && pd_session_kill(sessions, n, SIGKILL) > 0; i++) poll(NULL, 0, 10);
    _exit(0);
}

pd_status pd_guard_run(pid_t *pid, int *fd) {
    int ends[2];
    PD_TRY(pipe_high(ends));
    sigset_t old;
    pid_t child = fork_quiet(&old);
    if (child == 0) { /* signals stay blocked; it holds no terminal, no output and no folder of the launcher's */
        if (setsid() < 0 || chdir("/") < 0 || dup2(ends[0], 0) < 0) _exit(1);
        prctl(PR_SET_NAME, "pydist-guard");
        close_from(1, false);
        guard(0);
    }
    int error = errno;
    close(ends[0]);
    if (child < 0) {
        close(ends[1]);
        return pd_fail(PD_E_OS, "guard: cannot fork: %s", strerror(error));
    }
    *pid = child;
    *fd = ends[1];
    return PD_OK;
}
