#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/control/control_impl.h"

#define OBITUARY_NS 250000000 /* after a connection has closed, the kernel may take so long to say why */

static void broadcast(pd_control_server *s, const pd_link_event *event, const char *text) {
    size_t n = strnlen(text, PD_CONTROL_TEXT);
    for (pd_conn *c = s->conns; c; c = c->next)
        if (c->rank >= 0 && c->rank != event->rank)
            pd_control_send(c, PD_CONTROL_EVENT, 0, event, sizeof *event, text, n, -1);
}

/* Tells all ranks once, and those that join later, that this rank is gone for good. */
static void announce(pd_control_server *s, int rank, pd_link_event_kind kind, const char *text) {
    pd_peer *p = &s->peers[rank];
    if (p->told) return;
    p->told = kind != PD_EVENT_LEFT; /* a traceback may still explain a clean leave */
    p->event = (pd_link_event){.kind = kind, .rank = rank, .pid = p->pid};
    pd_free(p->text);
    p->text = NULL;
    /* Else ranks that join later hear less. */
    if (pd_malloc(strlen(text) + 1, "control", &p->text) == PD_OK) strcpy(p->text, text);
    broadcast(s, &p->event, text);
}

void pd_peer_welcome(pd_control_server *s, pd_conn *c, int64_t now) {
    pd_peer *p = &s->peers[c->hello.rank];
    pd_control_welcome welcome = {.host_rank = s->host_rank + (s->open ? PD_CONTROL_OPEN : 0)};
    c->rank = c->hello.rank;
    c->wire.limit = PD_CONTROL_PAYLOAD;
    c->wire.handles = !c->tcp;
    s->strangers[pd_conn_listen(c)]--;
    p->state = PD_PEER_HERE;
    p->conn = c;
    p->heard = now;
    p->pid = c->pid > 0 ? c->pid : c->hello.pid; /* the peer may be in another pid namespace, or on another host */
#ifdef SYS_pidfd_open
    if (c->pid > 0) p->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0); /* -1 on old kernels: the socket alone tells */
#endif
    pd_control_mac(s->secret, "token", &c->hello, c->nonce, welcome.token);
    for (int i = 0; i < PD_TOKEN_BYTES; i++) welcome.token[i] ^= s->token[i];
    pd_control_send(c, PD_CONTROL_WELCOME, 0, &welcome, sizeof welcome, NULL, 0, -1);
    for (int r = 0; r < s->world; r++) {
        const pd_peer *q = &s->peers[r];
        const char *past = q->text ? q->text : "";
        if (!q->event.kind) continue;
        pd_control_send(c, PD_CONTROL_EVENT, 0, &q->event, sizeof q->event, past, strnlen(past, PD_CONTROL_TEXT), -1);
    }
}

/* Whether the process of a rank on this host is stopped. */
static bool is_stopped(const pd_peer *p) {
    char path[64], line[512];
    if (!p->conn || p->conn->pid <= 0) return false;
    snprintf(path, sizeof path, "/proc/%d/stat", p->conn->pid);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    const char *end = strrchr(line, ')');
    return end && (end[2] == 'T' || end[2] == 't');
}

/* Passes a question to a rank that can answer; the server answers for others. */
static void pass_on(pd_control_server *s, const pd_link_event *n, const char *text) {
    const pd_peer *to = &s->peers[n->status];
    const char *how = NULL;
    if (n->kind == PD_EVENT_WHERE) {
        if (to->state == PD_PEER_ABSENT)
            how = "it has not joined yet";
        else if (to->state == PD_PEER_LEFT) how = "it has left";
        else if (to->state == PD_PEER_DEAD || to->state == PD_PEER_DYING || !to->conn) how = "it is dead";
        else if (is_stopped(to)) how = "its process is stopped (SIGSTOP, Ctrl-Z or a debugger)";
        else if (pd_os_now() - to->heard > PD_SILENCE_NS) how = "it is not responding";
    }
    pd_link_event back = {.kind = PD_EVENT_HERE, .rank = n->status, .pid = to->pid, .status = n->rank};
    const pd_conn *conn = how ? s->peers[n->rank].conn : to->conn;
    if (!conn) return;
    if (how) {
        n = &back;
        text = how;
    }
    pd_control_send((pd_conn *)conn, PD_CONTROL_EVENT, 0, n, sizeof *n, text, strnlen(text, PD_CONTROL_TEXT), -1);
}

const char *pd_peer_event(pd_control_server *s, pd_conn *c) {
    pd_link_event n;
    if (c->wire.head.bytes < sizeof n) return "it sent an event that is too short";
    memcpy(&n, c->wire.body, sizeof n);
    const char *text = c->wire.body + sizeof n;
    n.rank = c->rank;
    n.pid = s->peers[c->rank].pid;
    if (n.kind == PD_EVENT_LEFT && !n.epoch) {
        s->peers[c->rank].state = PD_PEER_LEFT;
        pthread_cond_broadcast(&s->change);
        announce(s, c->rank, PD_EVENT_LEFT, "");
    } else if (n.kind == PD_EVENT_RAISED) {
        if (s->raised < 0 && pd_malloc(strlen(text) + 1, "control", &s->traceback) == PD_OK) {
            strcpy(s->traceback, text);
            s->raised = c->rank;
        }
        announce(s, c->rank, PD_EVENT_RAISED, text);
    } else if (n.kind == PD_EVENT_WHERE || n.kind == PD_EVENT_HERE) {
        if (n.status < 0 || n.status >= s->world) return "it asked about a rank that does not exist";
        pass_on(s, &n, text);
    } else if (n.kind == PD_EVENT_LEFT || n.kind == PD_EVENT_ABORT || n.kind == PD_EVENT_TASK) {
        broadcast(s, &n, text);
    } else {
        return "it sent an event that ranks do not send";
    }
    return NULL;
}

static const char *signal_name(int sig) {
    static const struct { int sig; const char *name; } names[] = {
        {SIGHUP, "HUP"},   {SIGINT, "INT"}, {SIGQUIT, "QUIT"}, {SIGILL, "ILL"},   {SIGABRT, "ABRT"}, {SIGBUS, "BUS"},
        {SIGKILL, "KILL"}, {SIGFPE, "FPE"}, {SIGSEGV, "SEGV"}, {SIGPIPE, "PIPE"}, {SIGTERM, "TERM"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].sig == sig) return names[i].name;
    return "?";
}

/* If the process is a child of ours, the kernel tells how it ended; WNOWAIT leaves that for the launcher, too. */
static bool explain(const pd_peer *p, char *text, size_t size) {
    enum { PIDFD = 3 }; /* P_PIDFD, which older headers lack */
    siginfo_t info = {0};
    if (p->pidfd < 0 || waitid((idtype_t)PIDFD, (id_t)p->pidfd, &info, WEXITED | WNOHANG | WNOWAIT) || !info.si_pid)
        return false;
    if (info.si_code == CLD_EXITED)
        snprintf(text, size, "exited with code %d without leaving the group", info.si_status);
    else
        snprintf(text, size, "died: SIG%s (signal %d%s)", signal_name(info.si_status), info.si_status,
                 info.si_status == SIGKILL ? "; out of memory?" : "");
    return true;
}

void pd_peer_declare_dead(pd_control_server *s, int rank, const char *how) {
    pd_peer *p = &s->peers[rank];
    if (p->state == PD_PEER_LEFT || p->state == PD_PEER_DEAD) return;
    p->state = PD_PEER_DEAD;
    pthread_cond_broadcast(&s->change);
    announce(s, rank, PD_EVENT_DEAD, how);
}

void pd_peer_unpidfd(pd_peer *p) {
    if (p->pidfd >= 0) close(p->pidfd);
    p->pidfd = -1;
}

void pd_peer_gone(pd_control_server *s, int rank, int64_t now) {
    pd_peer *p = &s->peers[rank];
    if (p->state != PD_PEER_HERE) return;
    p->state = PD_PEER_DYING; /* no goodbye: the kernel or the launcher will soon say how it ended */
    p->deadline = now + OBITUARY_NS;
}

/* A process has ended, though a child of it may keep its socket open. What it has sent before comes first. */
void pd_peers_deaths(pd_control_server *s, const struct pollfd *polls, int64_t now) {
    for (int r = 0; r < s->world; r++) {
        pd_peer *p = &s->peers[r];
        char how[160];
        if (p->pidfd >= 0 && polls[r].fd == p->pidfd && polls[r].revents) {
            if (p->conn) pd_control_serve(s, p->conn, now);
            if (explain(p, how, sizeof how)) pd_peer_declare_dead(s, r, how);
            pd_peer_unpidfd(p);
            pd_peer_gone(s, r, now);
        }
        if (p->state == PD_PEER_DYING && p->deadline <= now)
            pd_peer_declare_dead(s, r, "died: its control connection closed");
        if (p->state == PD_PEER_LEFT || p->state == PD_PEER_DEAD) pd_peer_unpidfd(p);
    }
}

/* A rank's control thread always answers, whatever the rank does. So silence means a stopped process, a dead host or a
   broken connection. */
static void check_silence(pd_control_server *s, int rank, int64_t now) {
    pd_peer *p = &s->peers[rank];
    int64_t silent = now - p->heard, warn = (int64_t)(pd_flags_get()->WARN * 1e9);
    int64_t end = (int64_t)(pd_flags_get()->SILENT * 1e9);
    char how[160];
    if (silent < PD_SILENCE_NS) return;
    if (warn > 0 && silent >= warn && !p->warned) {
        p->warned = true;
        pd_log(PD_LOG_WARN,
               "control: rank %d (%s) is not responding: the server has heard nothing from it for %.0f s (it is "
               "stopped, swapped out, or its network is cut)",
               rank, p->conn->from, (double)silent * 1e-9);
    }
    if (silent < end) return;
    snprintf(how, sizeof how,
             "is not responding: the server has heard nothing from it for %.0f s (it is stopped, swapped out, or its "
             "network is cut)",
             (double)silent * 1e-9);
    pd_peer_declare_dead(s, rank, how);
    p->silent = true;
    shutdown(p->conn->wire.fd, SHUT_RDWR); /* if it comes back, it finds its connection closed */
}

void pd_peers_heartbeat(pd_control_server *s, int64_t now) {
    bool slept = now - s->looked > 3 * PD_HEARTBEAT_NS; /* this process itself was stopped */
    s->looked = now;
    if (now - s->pinged < PD_HEARTBEAT_NS) return;
    s->pinged = now;
    for (int r = 0; r < s->world; r++) {
        pd_peer *p = &s->peers[r];
        if (p->state != PD_PEER_HERE || !p->conn) continue;
        if (slept) p->heard = now;
        if (pd_flags_get()->SILENT > 0) check_silence(s, r, now);
        if (p->state == PD_PEER_HERE) pd_control_send(p->conn, PD_CONTROL_PING, 0, NULL, 0, NULL, 0, -1);
    }
}
