#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/control_wire.h"
#include "comm/kv.h"

#define HANDSHAKE_NS 5000000000  /* a connection must authenticate within this */
#define OBITUARY_NS 250000000    /* how long a closed connection waits for the kernel to say how its process ended */
#define STRANGERS 64             /* unauthenticated connections at one time; one more ends the oldest */
#define ACCEPTS 32               /* connections taken before those already here are heard again */
#define STRANGERS_LOGGED 16
#define WAITERS 4096             /* waits of one rank at one time */
#define BACKLOG (16 << 20)       /* unsent bytes after which a rank that does not read counts as dead */

typedef struct conn {
    pd_wire wire;
    struct conn *next;
    int rank; /* -1: a stranger */
    int pid;
    int64_t deadline; /* of the handshake */
    int waiters;
    bool doomed; /* close once everything queued is sent */
} conn;

typedef struct waiter { /* a GET or WAIT whose key is not there yet */
    struct waiter *next;
    conn *who;
    uint32_t id;
    int64_t deadline;
    pd_store_call call;
    char key[];
} waiter;

typedef enum peer_state { ABSENT, HERE, DYING, LEFT, DEAD } peer_state;

typedef struct peer {
    peer_state state;
    conn *conn;
    int pid, pidfd;
    int64_t deadline; /* DYING: when to stop waiting for an explanation */
    bool told;        /* the others know: raised or dead */
    pd_news news;     /* what they were told, for those who come later */
    char *text;
} peer;

struct pd_control_server {
    pthread_t thread;
    pthread_mutex_t lock; /* held by the thread except while it polls: guards everything below */
    int world, listening, wake, secret_fd;
    uint32_t forks;
    bool ending;
    uint8_t secret[PD_SECRET_BYTES];
    char address[PD_ADDRESS_BYTES];
    conn *conns;
    int strangers, logged;
    waiter *waiters;
    pd_kv kv;
    struct pollfd *polls;
    size_t polls_cap;
    int raised;
    char *traceback;
    pd_fork_watch watch;
    peer peers[];
};

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static void send_frame(conn *c, int kind, uint32_t id, const void *head, size_t head_bytes, const void *body, size_t n,
                       int handle) {
    if (c->doomed && kind != PD_CONTROL_REFUSED) return;
    if (c->wire.pending > BACKLOG || pd_wire_queue(&c->wire, kind, id, head, head_bytes, body, n, handle)) {
        pd_log(PD_LOG_WARN, "control: dropping the connection of rank %d: it does not read", c->rank);
        shutdown(c->wire.fd, SHUT_RDWR); /* the next poll finds it closed */
        return;
    }
    pd_wire_flush(&c->wire);
}

static void broadcast(pd_control_server *s, const pd_news *news, const char *text) {
    size_t n = strnlen(text, PD_CONTROL_TEXT);
    for (conn *c = s->conns; c; c = c->next)
        if (c->rank >= 0 && c->rank != news->rank)
            send_frame(c, PD_CONTROL_NEWS, 0, news, sizeof *news, text, n, -1);
}

/* Tells everyone once, and those who connect later, that this rank is gone for good. */
static void announce(pd_control_server *s, int rank, pd_news_kind kind, const char *text) {
    peer *p = &s->peers[rank];
    if (p->told) return;
    p->told = kind != PD_NEWS_LEFT; /* a traceback may still explain a clean leave */
    p->news = (pd_news){.kind = kind, .rank = rank, .pid = p->pid};
    pd_free(p->text);
    p->text = NULL;
    if (pd_malloc(strlen(text) + 1, "control", &p->text) == PD_OK) strcpy(p->text, text); /* else late ones hear less */
    broadcast(s, &p->news, text);
}

static void reply(conn *c, uint32_t id, pd_status status, pd_store_reply *r) {
    pd_control_reply head = {.amount = r->amount, .status = (int32_t)status};
    const char *text = status ? pd_error_get()->text : "";
    if (status) send_frame(c, PD_CONTROL_REPLY, id, &head, sizeof head, text, strlen(text), -1);
    else send_frame(c, PD_CONTROL_REPLY, id, &head, sizeof head, r->data, r->bytes, (int)r->handle);
    pd_free(r->data);
    if (r->handle != PD_NO_HANDLE) close((int)r->handle);
}

/* ---- the store --------------------------------------------------------------------------------------------------- */

static intptr_t dup_fd(intptr_t fd) { return fcntl((int)fd, F_DUPFD_CLOEXEC, 0); }
static void drop_fd(intptr_t fd) { close((int)fd); }

static void drop_waiter(waiter **at) {
    waiter *w = *at;
    *at = w->next;
    w->who->waiters--;
    pd_free(w);
}

/* Answers those who wait for this key; with key NULL those whose time is over. */
static void serve_waiters(pd_control_server *s, const char *key, size_t key_bytes, int64_t now) {
    for (waiter **at = &s->waiters; *at;) {
        waiter *w = *at;
        pd_store_reply r = {.handle = PD_NO_HANDLE};
        bool ready = false;
        pd_status status = PD_OK;
        if (!key && w->deadline <= now) {
            status = pd_fail(PD_E_TIMEOUT, "store: waited %.1f s for key '%.*s'", (double)w->call.timeout_ns * 1e-9,
                             (int)w->call.key_bytes, w->key);
        } else if (key && w->call.key_bytes == key_bytes && !memcmp(w->key, key, key_bytes)) {
            status = pd_kv_run(&s->kv, &w->call, &r, &ready);
        }
        if (ready || status) {
            reply(w->who, w->id, status, &r);
            drop_waiter(at);
        } else {
            at = &w->next;
        }
    }
}

static pd_status wait_for(pd_control_server *s, conn *c, const pd_store_call *call, uint32_t id, int64_t now) {
    waiter *w;
    if (call->timeout_ns <= 0) return pd_fail(PD_E_TIMEOUT, "store: no key '%.*s'", (int)call->key_bytes, call->key);
    if (c->waiters >= WAITERS) return pd_fail(PD_E_RUNTIME, "store: more than %d waits of one rank", WAITERS);
    PD_TRY(pd_malloc(sizeof *w + call->key_bytes, "store", &w));
    *w = (waiter){.next = s->waiters, .who = c, .id = id, .call = *call};
    w->deadline = call->timeout_ns > INT64_MAX - now ? INT64_MAX : now + call->timeout_ns;
    memcpy(w->key, call->key, call->key_bytes);
    w->call.key = w->key;
    w->call.data = NULL;
    w->call.bytes = 0;
    w->call.handle = PD_NO_HANDLE;
    s->waiters = w;
    c->waiters++;
    return PD_OK;
}

static const char *on_call(pd_control_server *s, conn *c, int64_t now) {
    pd_control_call head;
    pd_wire *w = &c->wire;
    if (w->head.bytes < sizeof head) return "a store call that is too short";
    memcpy(&head, w->body, sizeof head);
    if (head.verb >= PD_STORE_VERBS || !head.key_bytes || head.key_bytes > PD_STORE_KEY ||
        head.bytes > PD_STORE_VALUE || w->head.bytes != sizeof head + head.key_bytes + head.bytes)
        return "a store call whose lengths do not fit";
    pd_store_call call = {.verb = (pd_store_verb)head.verb, .key = w->body + sizeof head, .key_bytes = head.key_bytes,
                          .bytes = head.bytes, .amount = head.amount, .timeout_ns = head.timeout_ns,
                          .handle = w->handle >= 0 ? w->handle : PD_NO_HANDLE};
    call.data = call.key + head.key_bytes;
    pd_store_reply r = {.handle = PD_NO_HANDLE};
    bool ready = true;
    pd_status status = pd_kv_run(&s->kv, &call, &r, &ready);
    if (!status && !ready) {
        status = wait_for(s, c, &call, w->head.id, now);
        if (!status) return NULL;
    }
    reply(c, w->head.id, status, &r);
    if (!status && (call.verb == PD_STORE_SET || call.verb == PD_STORE_ADD))
        serve_waiters(s, call.key, call.key_bytes, now);
    return NULL;
}

/* ---- who is here ------------------------------------------------------------------------------------------------- */

static void stranger(pd_control_server *s, const conn *c, const char *why) {
    int n = ++s->logged;
    if (n <= STRANGERS_LOGGED)
        pd_log(PD_LOG_WARN, "control: refused a connection from pid %d: %s%s", c->pid, why,
               n == STRANGERS_LOGGED ? " (further ones are not reported)" : "");
}

static const char *on_hello(pd_control_server *s, conn *c) {
    pd_control_hello h;
    if (c->wire.head.kind != PD_CONTROL_HELLO || c->wire.head.bytes != sizeof h) return "it did not say hello";
    memcpy(&h, c->wire.body, sizeof h);
    if (!pd_control_same_secret(h.half, s->secret)) return "wrong secret";
    char text[160] = "";
    if (h.world != s->world)
        snprintf(text, sizeof text, "rank %d expects %d ranks, the launcher started %d", h.rank, h.world, s->world);
    else if (h.rank < 0 || h.rank >= s->world)
        snprintf(text, sizeof text, "rank %d is not one of the %d ranks", h.rank, s->world);
    else if (s->peers[h.rank].state != ABSENT)
        snprintf(text, sizeof text, "rank %d is here already, or was, as pid %d", h.rank, s->peers[h.rank].pid);
    if (*text) {
        c->doomed = true;
        send_frame(c, PD_CONTROL_REFUSED, 0, NULL, 0, text, strlen(text), -1);
        pd_log(PD_LOG_WARN, "control: refused pid %d: %s", c->pid, text);
        return NULL;
    }
    peer *p = &s->peers[h.rank];
    c->rank = h.rank;
    c->wire.limit = PD_CONTROL_PAYLOAD;
    c->wire.handles = true;
    s->strangers--;
    p->state = HERE;
    p->conn = c;
    p->pid = c->pid > 0 ? c->pid : h.pid; /* 0: the peer lives in another pid namespace */
#ifdef SYS_pidfd_open
    if (c->pid > 0) p->pidfd = (int)syscall(SYS_pidfd_open, c->pid, 0); /* -1 on old kernels: the socket alone tells */
#endif
    send_frame(c, PD_CONTROL_WELCOME, 0, s->secret + PD_SECRET_HALF, PD_SECRET_HALF, NULL, 0, -1);
    for (int r = 0; r < s->world; r++) {
        const peer *q = &s->peers[r];
        const char *past = q->text ? q->text : "";
        if (!q->news.kind) continue;
        send_frame(c, PD_CONTROL_NEWS, 0, &q->news, sizeof q->news, past, strnlen(past, PD_CONTROL_TEXT), -1);
    }
    return NULL;
}

static const char *on_news(pd_control_server *s, conn *c) {
    pd_news n;
    if (c->wire.head.bytes < sizeof n) return "news that are too short";
    memcpy(&n, c->wire.body, sizeof n);
    const char *text = c->wire.body + sizeof n;
    n.rank = c->rank;
    n.pid = s->peers[c->rank].pid;
    if (n.kind == PD_NEWS_LEFT && !n.epoch) {
        s->peers[c->rank].state = LEFT;
        announce(s, c->rank, PD_NEWS_LEFT, "");
    } else if (n.kind == PD_NEWS_RAISED) {
        if (s->raised < 0 && pd_malloc(strlen(text) + 1, "control", &s->traceback) == PD_OK) {
            strcpy(s->traceback, text);
            s->raised = c->rank;
        }
        announce(s, c->rank, PD_NEWS_RAISED, text);
    } else if (n.kind == PD_NEWS_LEFT || n.kind == PD_NEWS_ABORT) {
        broadcast(s, &n, text);
    } else {
        return "news that a rank cannot have";
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

/* Where the launcher is the parent, the kernel knows how the process ended; WNOWAIT leaves that for the launcher. */
static bool explain(const peer *p, char *text, size_t size) {
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

static void bury(pd_control_server *s, int rank, const char *how) {
    peer *p = &s->peers[rank];
    if (p->state == LEFT || p->state == DEAD) return;
    p->state = DEAD;
    announce(s, rank, PD_NEWS_DEAD, how);
}

static void close_pidfd(peer *p) {
    if (p->pidfd >= 0) close(p->pidfd);
    p->pidfd = -1;
}

static void drop_conn(pd_control_server *s, conn **at, int64_t now) {
    conn *c = *at;
    *at = c->next;
    for (waiter **w = &s->waiters; *w;)
        if ((*w)->who == c) drop_waiter(w);
        else w = &(*w)->next;
    if (c->rank < 0) {
        s->strangers--;
    } else {
        peer *p = &s->peers[c->rank];
        p->conn = NULL;
        if (p->state == HERE) { /* no goodbye: the kernel or the launcher will say in a moment how it ended */
            p->state = DYING;
            p->deadline = now + OBITUARY_NS;
        }
    }
    pd_wire_fini(&c->wire);
    pd_free(c);
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static void end_oldest_stranger(pd_control_server *s, int64_t now) {
    conn **oldest = NULL;
    for (conn **at = &s->conns; *at; at = &(*at)->next) /* newest first */
        if ((*at)->rank < 0) oldest = at;
    if (!oldest) return;
    stranger(s, *oldest, "too many that have not said who they are");
    drop_conn(s, oldest, now);
}

static void accept_some(pd_control_server *s, int64_t now) {
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = accept4(s->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), uid;
        if (fd < 0) return; /* nobody left; or out of descriptors, and poll calls again */
        conn probe = {.rank = -1}, *c;
        const char *why = NULL;
        if (!pd_control_same_user(fd, &probe.pid, &uid)) why = "it runs under another user id";
        else if (pd_malloc(sizeof *c, "control connection", &c)) why = "out of memory";
        if (why) {
            stranger(s, &probe, why);
            close(fd);
            continue;
        }
        if (s->strangers >= STRANGERS) end_oldest_stranger(s, now);
        *c = probe;
        pd_wire_init(&c->wire, fd, sizeof(pd_control_hello));
        c->deadline = now + HANDSHAKE_NS;
        c->next = s->conns;
        s->conns = c;
        s->strangers++;
    }
}

/* Everything this connection has to say. False: it is over. */
static bool serve(pd_control_server *s, conn *c, int64_t now) {
    for (;;) {
        pd_wire_state state = pd_wire_read(&c->wire);
        const char *bad = NULL;
        if (state == PD_WIRE_MORE) return true;
        if (state == PD_WIRE_FRAME && c->doomed) continue;
        if (state == PD_WIRE_FRAME) {
            if (c->rank < 0) bad = on_hello(s, c);
            else if (c->wire.head.kind == PD_CONTROL_CALL) bad = on_call(s, c, now);
            else if (c->wire.head.kind == PD_CONTROL_NEWS) bad = on_news(s, c);
            else bad = "a message of an unknown kind";
            if (!bad) continue;
        } else {
            bad = c->wire.why;
        }
        if (c->rank < 0 && !c->doomed) stranger(s, c, bad);
        else if (state != PD_WIRE_CLOSED) pd_log(PD_LOG_WARN, "control: dropping rank %d: %s", c->rank, bad);
        return false;
    }
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

/* Polls: wake, listening, one per connection, one per pidfd, in this order. */
static pd_status fill_polls(pd_control_server *s, size_t *n, int64_t *until) {
    size_t want = 2 + (size_t)s->world;
    for (conn *c = s->conns; c; c = c->next) want++;
    PD_TRY(pd_grow(&s->polls, &s->polls_cap, want, sizeof *s->polls, "control"));
    *n = 0;
    *until = INT64_MAX;
    s->polls[(*n)++] = (struct pollfd){.fd = s->wake, .events = POLLIN};
    s->polls[(*n)++] = (struct pollfd){.fd = s->listening, .events = POLLIN};
    for (conn *c = s->conns; c; c = c->next) {
        short events = c->wire.pending ? POLLIN | POLLOUT : POLLIN;
        s->polls[(*n)++] = (struct pollfd){.fd = c->wire.fd, .events = events};
        if (c->rank < 0) *until = earlier(*until, c->deadline);
    }
    for (int r = 0; r < s->world; r++) {
        const peer *p = &s->peers[r];
        bool watch = p->state == HERE || p->state == DYING;
        s->polls[(*n)++] = (struct pollfd){.fd = watch ? p->pidfd : -1, .events = POLLIN};
        if (p->state == DYING) *until = earlier(*until, p->deadline);
    }
    for (const waiter *w = s->waiters; w; w = w->next) *until = earlier(*until, w->deadline);
    return PD_OK;
}

static void serve_conns(pd_control_server *s, int64_t now) {
    const struct pollfd *poll = s->polls + 2;
    for (conn **at = &s->conns; *at; poll++) {
        conn *c = *at;
        bool alive = true;
        if (poll->revents & POLLOUT) alive = pd_wire_flush(&c->wire) != PD_WIRE_CLOSED;
        if (alive && (poll->revents & ~POLLOUT)) alive = serve(s, c, now);
        if (alive && c->rank < 0 && c->deadline <= now) {
            if (!c->doomed) stranger(s, c, "it said nothing");
            alive = false;
        }
        if (alive && c->doomed && !c->wire.pending) alive = false;
        if (alive) at = &c->next;
        else drop_conn(s, at, now);
    }
}

/* A process ended, although its socket may live on in a child of it. What it said before counts first. */
static void serve_deaths(pd_control_server *s, const struct pollfd *polls, int64_t now) {
    for (int r = 0; r < s->world; r++) {
        peer *p = &s->peers[r];
        char how[160];
        if (p->pidfd >= 0 && polls[r].fd == p->pidfd && polls[r].revents) {
            if (p->conn) serve(s, p->conn, now);
            if (explain(p, how, sizeof how)) bury(s, r, how);
            close_pidfd(p);
            if (p->state == HERE) {
                p->state = DYING;
                p->deadline = now + OBITUARY_NS;
            }
        }
        if (p->state == DYING && p->deadline <= now) bury(s, r, "died: its control connection closed");
        if (p->state == LEFT || p->state == DEAD) close_pidfd(p);
    }
}

static void *run(void *arg) {
    pd_control_server *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->ending) {
        size_t n = 0;
        int64_t until = 0, now = pd_hooks_now(NULL);
        if (fill_polls(s, &n, &until)) { /* no memory for the list: look again in a moment */
            pthread_mutex_unlock(&s->lock);
            poll(NULL, 0, 10);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        int64_t ms = until == INT64_MAX ? -1 : until <= now ? 0 : (until - now + 999999) / 1000000;
        size_t conns = n - 2 - (size_t)s->world;
        pthread_mutex_unlock(&s->lock);
        poll(s->polls, (nfds_t)n, ms > 3600000 ? 3600000 : (int)ms);
        pthread_mutex_lock(&s->lock);
        now = pd_hooks_now(NULL);
        uint64_t count;
        if (s->polls[0].revents && read(s->wake, &count, sizeof count) < 0) continue;
        serve_conns(s, now); /* the list has not changed since fill_polls */
        serve_deaths(s, s->polls + 2 + conns, now);
        serve_waiters(s, NULL, 0, now);
        if (s->polls[1].revents) accept_some(s, now);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the launcher's side ----------------------------------------------------------------------------------------- */

static void wake(pd_control_server *s) {
    uint64_t one = 1;
    if (write(s->wake, &one, sizeof one) < 0) return; /* the counter is full: it is awake */
}

static pd_status open_secret(pd_control_server *s) {
    uint8_t name[8];
    if (getrandom(s->secret, sizeof s->secret, 0) != sizeof s->secret || getrandom(name, sizeof name, 0) != sizeof name)
        return pd_fail(PD_E_OS, "control: no random numbers: %s", strerror(errno));
    size_t n = (size_t)snprintf(s->address, sizeof s->address, "@pydist-");
    for (size_t i = 0; i < sizeof name; i++)
        n += (size_t)snprintf(s->address + n, sizeof s->address - n, "%02x", name[i]);
    s->secret_fd = memfd_create("pydist-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->secret_fd < 0 || write(s->secret_fd, s->secret, sizeof s->secret) != sizeof s->secret ||
        fcntl(s->secret_fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return pd_fail(PD_E_OS, "control: cannot make the secret's descriptor: %s", strerror(errno));
    return PD_OK;
}

static pd_status open_sockets(pd_control_server *s) {
    struct sockaddr_un name;
    socklen_t n = pd_control_sockaddr(s->address, &name);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->wake < 0 || s->listening < 0 || bind(s->listening, (struct sockaddr *)&name, n) ||
        listen(s->listening, 1024))
        return pd_fail(PD_E_OS, "control: cannot listen on %s: %s", s->address, strerror(errno));
    return PD_OK;
}

static pd_status start_thread(pd_control_server *s) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old); /* the launcher's signals belong to its own threads */
    int rc = pd_fault_hit() ? EAGAIN : pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? pd_fail(PD_E_MEMORY, "control: cannot start a thread: %s", strerror(rc)) : PD_OK;
}

static void free_all(pd_control_server *s) {
    while (s->waiters) drop_waiter(&s->waiters);
    for (conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        pd_wire_fini(&c->wire);
        pd_free(c);
    }
    pd_kv_fini(&s->kv);
    for (int r = 0; r < s->world; r++) {
        close_pidfd(&s->peers[r]);
        pd_free(s->peers[r].text);
    }
    if (s->listening >= 0) close(s->listening);
    if (s->wake >= 0) close(s->wake);
    if (s->secret_fd >= 0) close(s->secret_fd);
    pd_free(s->polls);
    pd_free(s->traceback);
    pthread_mutex_destroy(&s->lock);
    explicit_bzero(s->secret, sizeof s->secret);
    pd_free(s);
}

pd_status pd_control_server_new(int world, pd_control_server **out) {
    pd_status status = PD_OK;
    pd_control_server *s;
    if (world < 1 || world > PD_WORLD_MAX)
        return pd_fail(PD_E_VALUE, "control: a world of %d ranks (expected 1 to %d)", world, PD_WORLD_MAX);
    PD_TRY(pd_calloc(sizeof *s + (size_t)world * sizeof *s->peers, "control server", &s));
    s->world = world;
    s->forks = pd_forks;
    s->listening = s->wake = s->secret_fd = s->raised = -1;
    for (int r = 0; r < world; r++) s->peers[r].pidfd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pd_kv_init(&s->kv, dup_fd, drop_fd);
    PD_TRY_TO(fail, open_secret(s));
    PD_TRY_TO(fail, open_sockets(s));
    PD_TRY_TO(fail, start_thread(s));
    pd_fork_watch_add(&s->watch, s->listening); /* or a forked child would keep the dead launcher's door open */
    *out = s;
    return PD_OK;
fail:
    free_all(s);
    return status;
}

void pd_control_server_free(pd_control_server *s) {
    if (!s || pd_forked_since(s->forks)) return; /* the thread and its locks are the parent's */
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_mutex_unlock(&s->lock);
    wake(s);
    pthread_join(s->thread, NULL);
    pd_fork_watch_drop(&s->watch);
    free_all(s);
}

const char *pd_control_address(const pd_control_server *s) { return s->address; }
int pd_control_secret_fd(const pd_control_server *s) { return s->secret_fd; }

void pd_control_dead(pd_control_server *s, int rank, const char *how) {
    if (rank < 0 || rank >= s->world || pd_forked_since(s->forks)) return;
    pthread_mutex_lock(&s->lock);
    peer *p = &s->peers[rank];
    if (p->conn) serve(s, p->conn, pd_hooks_now(NULL)); /* a goodbye or traceback still in the socket counts first */
    bury(s, rank, how);
    pthread_mutex_unlock(&s->lock);
    wake(s);
}

pd_status pd_control_first_raised(pd_control_server *s, int *rank, char **traceback) {
    pd_status status = PD_OK;
    *rank = -1;
    *traceback = NULL;
    if (pd_forked_since(s->forks)) return PD_OK;
    pthread_mutex_lock(&s->lock);
    *rank = s->raised;
    if (s->raised >= 0) {
        status = pd_malloc(strlen(s->traceback) + 1, "traceback", traceback);
        if (!status) strcpy(*traceback, s->traceback);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}
