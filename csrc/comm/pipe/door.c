/* How two ranks connect. The sender dials; the receiver's threads, whichever waits, let it in. A stranger costs a
   descriptor until its time is over.

     the listening rank   16 random bytes             32 bytes: its proof
     the dialling rank                     hello                            messages */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/net/dial.h"
#include "comm/net/listen.h"
#include "comm/pipe/pipe_impl.h"

#define ADDRESSES 2048 /* bytes of text */
#define DOOR_MS 5      /* how often who waits looks at guests */

static void prove(const pd_pipes *p, const char *who, const pd_hello *h, const uint8_t *nonce, uint8_t out[32]) {
    pd_listen_prove(p->link->token, PD_TOKEN_BYTES, who, h, offsetof(pd_hello, proof), nonce, out);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static pd_status watch(pd_pipes *p, int fd, int tag, pd_fork_watch *w) {
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = pd_pipe_tag(tag, 0)};
    pd_fork_watch_add(w, fd);
    if (epoll_ctl(p->poll, EPOLL_CTL_ADD, fd, &e)) return pd_fail(PD_E_OS, "pipes: epoll_ctl: %s", strerror(errno));
    return PD_OK;
}

static pd_status open_near(pd_pipes *p, char name[64]) {
    uint64_t random[2];
    struct sockaddr_un at;
    PD_TRY(pd_os_random(random, sizeof random));
    snprintf(name, 64, "@pydist-pipe-%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    socklen_t n = pd_auth_unix(name, &at);
    p->near = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->near < 0 || bind(p->near, (struct sockaddr *)&at, n) || listen(p->near, 1024))
        return pd_fail(PD_E_OS, "pipes: cannot listen: %s", strerror(errno));
    return watch(p, p->near, PD_TAG_NEAR, &p->watches[2]);
}

static void key_of(const pd_pipes *p, const char *what, int rank, char key[64]) {
    snprintf(key, 64, "pd:pipe.%u.%s.%d", p->number, what, rank);
}

static pd_status open_far(pd_pipes *p) {
    int port;
    char key[64], text[ADDRESSES];
    PD_TRY(pd_listen_open(false, &p->far, &port));
    PD_TRY(watch(p, p->far, PD_TAG_FAR, &p->watches[3]));
    PD_TRY(pd_listen_addresses(false, p->link->here, port, text, sizeof text));
    key_of(p, "tcp", p->rank, key);
    return pd_store_set(p->link, key, text, strlen(text));
}

static pd_status read_door(pd_pipes *p, int rank, int64_t deadline) {
    char key[64];
    void *data;
    size_t bytes;
    key_of(p, "near", rank, key);
    double seconds = (double)(deadline - pd_os_now()) * 1e-9;
    pd_status status = pd_store_get(p->link, key, seconds > 0.001 ? seconds : 0.001, &data, &bytes);
    if (status == PD_E_TIMEOUT)
        return pd_fail(PD_E_TIMEOUT, "rpc: rank %d has not come in time (expected all %d ranks to call init_rpc)", rank,
                       p->world);
    PD_TRY(status);
    bool good = bytes == sizeof *p->doors;
    pthread_mutex_lock(&p->lock); /* two threads may meet a rank at a time */
    if (good) memcpy(&p->doors[rank], data, bytes);
    p->doors[rank].name[sizeof p->doors->name - 1] = 0;
    pthread_mutex_unlock(&p->lock);
    pd_free(data);
    return good ? PD_OK : pd_fail(PD_E_DIST, "pipes: rank %d has another version of pydist", rank);
}

pd_status pd_door_open(pd_pipes *p, int64_t deadline) {
    char key[64];
    struct pd_door own = {.host = p->link->host};
    PD_TRY(open_near(p, own.name));
    key_of(p, "near", p->rank, key);
    PD_TRY(pd_store_set(p->link, key, &own, sizeof own));
    if (p->link->open) {
        p->doors[p->rank] = own;
        p->spread = p->link->wide;
    } else {
        for (int r = 0; r < p->world; r++) PD_TRY(read_door(p, r, deadline));
        for (int r = 0; r < p->world; r++) p->spread |= p->doors[r].host != own.host;
    }
    return p->spread ? open_far(p) : PD_OK;
}

pd_status pd_pipes_meet(pd_pipes *p, int rank) {
    pthread_mutex_lock(&p->lock);
    bool known = *p->doors[rank].name;
    pthread_mutex_unlock(&p->lock);
    return known ? PD_OK : PD_TRAIL(read_door(p, rank, pd_os_now() + PD_PIPE_PATIENCE));
}

/* ---- letting in -------------------------------------------------------------------------------------------------- */

static void end_guest(pd_guest *g, const char *why) {
    static atomic_uint refused;
    if (why && atomic_fetch_add(&refused, 1) == 0)
        pd_log(PD_LOG_WARN, "pipes: refused a connection: %s (further ones are not reported)", why);
    if (why) close(g->fd);
    g->fd = -1;
}

void pd_door_let_in(pd_pipes *p, int listening) {
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), free_place = -1;
    if (fd < 0) {
        if (errno != EAGAIN && errno != EINTR) pd_os_sleep(PD_SLICE_NS); /* no descriptor: not again at once */
        return;
    }
    int64_t now = pd_os_now();
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < PD_PIPE_GUESTS; i++) {
        pd_guest *other = &p->guests[i];
        if (other->fd >= 0 && other->deadline < now) end_guest(other, "it sent no greeting in time");
        if (other->fd < 0) free_place = i;
    }
    pd_guest *g = free_place < 0 ? NULL : &p->guests[free_place];
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = pd_pipe_tag(PD_TAG_GUEST, free_place)};
    if (!g || pd_os_random(g->nonce, sizeof g->nonce) ||
        send(fd, g->nonce, sizeof g->nonce, MSG_NOSIGNAL) != (ssize_t)sizeof g->nonce ||
        epoll_ctl(p->poll, EPOLL_CTL_ADD, fd, &e)) {
        close(fd);
    } else {
        g->fd = fd;
        g->got = 0;
        g->deadline = now + PD_GREET_NS;
    }
    pthread_mutex_unlock(&p->lock);
}

static const char *judge(pd_pipes *p, const pd_guest *g) {
    const pd_hello *h = &g->hello;
    uint8_t mac[32];
    int pid, uid;
    struct sockaddr any;
    socklen_t n = sizeof any;
    prove(p, "dial", h, g->nonce, mac);
    if (!pd_auth_same(mac, h->proof, sizeof mac)) return "its greeting is not valid, or has the token of another job";
    if (h->magic != PD_PIPE_MAGIC || h->number != p->number || h->to != p->rank || h->from < 0 ||
        h->from >= p->world || h->from == p->rank)
        return "it is a rank of another job, or has another version of pydist";
    if (!getsockname(g->fd, &any, &n) && any.sa_family == AF_UNIX && !pd_auth_same_user(g->fd, &pid, &uid))
        return "it belongs to another user";
    prove(p, "listen", h, g->nonce, mac);
    if (send(g->fd, mac, sizeof mac, MSG_NOSIGNAL) != (ssize_t)sizeof mac)
        return "it closed the connection during the greeting";
    return NULL;
}

void pd_door_hear(pd_pipes *p, int index) {
    pthread_mutex_lock(&p->lock);
    pd_guest *g = &p->guests[index];
    ssize_t n = g->fd < 0 ? -1 : recv(g->fd, (char *)&g->hello + g->got, sizeof g->hello - g->got, MSG_DONTWAIT);
    bool more = g->fd < 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
    if (n > 0) more = (g->got += (size_t)n) < sizeof g->hello;
    if (!more) {
        const char *why = n <= 0 ? "it closed the connection without a greeting" : judge(p, g);
        epoll_ctl(p->poll, EPOLL_CTL_DEL, g->fd, NULL);
        if (!why && !pd_inlet_settle(p, g->hello.from, g->fd)) why = "that rank is connected twice already";
        end_guest(g, why);
    }
    pthread_mutex_unlock(&p->lock);
}

void pd_door_close(pd_pipes *p) {
    int fds[] = {p->near, p->far};
    for (int i = 0; i < 2; i++) {
        if (fds[i] < 0) continue;
        if (p->watches[2 + i].at) pd_fork_watch_drop(&p->watches[2 + i]);
        close(fds[i]);
    }
    for (int i = 0; i < PD_PIPE_GUESTS; i++)
        if (p->guests[i].fd >= 0) close(p->guests[i].fd);
}

/* ---- dialling ---------------------------------------------------------------------------------------------------- */

/* Two ranks may dial each other with no other thread left that lets anybody in: so who waits here does. */
static pd_status wait_at_door(pd_pipes *p, int to, int fd) {
    struct pollfd polls[] = {{.fd = fd, .events = POLLIN}, {.fd = p->near, .events = POLLIN},
                             {.fd = p->far, .events = POLLIN}};
    poll(polls, 3, DOOR_MS);
    if (polls[1].revents) pd_door_let_in(p, p->near);
    if (polls[2].revents) pd_door_let_in(p, p->far);
    for (int i = 0; i < PD_PIPE_GUESTS; i++) pd_door_hear(p, i);
    PD_TRY(pd_hooks_interrupt(p->link->hooks));
    return pd_pipes_check(p, to);
}

/* Receives so many bytes. *good: they came before the deadline. */
static pd_status take(pd_pipes *p, int to, int fd, void *out, size_t bytes, int64_t deadline, bool *good) {
    size_t got = 0;
    *good = true;
    while (got < bytes) {
        ssize_t n = recv(fd, (char *)out + got, bytes - got, MSG_DONTWAIT);
        if (n > 0) {
            got += (size_t)n;
            continue;
        }
        *good = n < 0 && (errno == EAGAIN || errno == EINTR) && pd_os_now() < deadline;
        if (!*good) return PD_OK;
        PD_TRY(wait_at_door(p, to, fd));
    }
    return PD_OK;
}

static pd_status greet(pd_pipes *p, int to, int fd, int64_t deadline, bool *good) {
    pd_hello h = {.magic = PD_PIPE_MAGIC, .number = p->number, .from = p->rank, .to = to};
    uint8_t nonce[PD_NONCE_BYTES], mac[32], answer[32];
    if (deadline > pd_os_now() + PD_GREET_NS) deadline = pd_os_now() + PD_GREET_NS;
    PD_TRY(pd_os_random(h.nonce, sizeof h.nonce));
    PD_TRY(take(p, to, fd, nonce, sizeof nonce, deadline, good));
    if (!*good) return PD_OK;
    prove(p, "dial", &h, nonce, h.proof);
    *good = send(fd, &h, sizeof h, MSG_NOSIGNAL) == (ssize_t)sizeof h;
    if (*good) PD_TRY(take(p, to, fd, answer, sizeof answer, deadline, good));
    prove(p, "listen", &h, nonce, mac);
    *good = *good && pd_auth_same(mac, answer, sizeof mac);
    return PD_OK;
}

/* *fd -1: none of the addresses has answered with the right proof. */
static pd_status dial_far(pd_pipes *p, int to, int64_t deadline, int *fd) {
    char key[64], text[ADDRESSES], *rest = NULL;
    void *data;
    size_t bytes;
    pd_race race = {0};
    pd_status status = PD_OK;
    bool good = false;
    key_of(p, "tcp", to, key);
    double seconds = (double)(deadline - pd_os_now()) * 1e-9;
    PD_TRY(pd_store_get(p->link, key, seconds > 0.001 ? seconds : 0.001, &data, &bytes));
    snprintf(text, sizeof text, "%.*s", (int)bytes, (char *)data);
    pd_free(data);
    for (char *a = strtok_r(text, " ", &rest); a && !status; a = strtok_r(NULL, " ", &rest))
        status = pd_race_add(&race, a);
    while (!status && !good) {
        status = pd_race_next(&race, deadline, p->link->hooks, fd);
        if (status || *fd < 0) break;
        status = greet(p, to, *fd, deadline, &good);
        if (!good || status) close(*fd);
    }
    pd_race_end(&race);
    if (status || !good) *fd = -1;
    return PD_TRAIL(status);
}

static pd_status dial_near(pd_pipes *p, int to, int64_t deadline, int *fd) {
    char way[320];
    bool good;
    PD_TRY(pd_dial(p->doors[to].name, deadline, false, p->link->hooks, fd, way, sizeof way));
    pd_status status = greet(p, to, *fd, deadline, &good);
    if (good && !status) return PD_OK;
    close(*fd);
    *fd = -1;
    return PD_TRAIL(status);
}

pd_status pd_door_dial(pd_pipes *p, int to, int64_t until, int *fd) {
    bool near = p->doors[to].host == p->doors[p->rank].host;
    int on = 1;
    int64_t begin = pd_os_now(), deadline = begin + PD_PIPE_PATIENCE;
    if (until < deadline) deadline = until;
    for (;;) {
        *fd = -1;
        pd_status status = near ? dial_near(p, to, deadline, fd) : dial_far(p, to, deadline, fd);
        if (!status && *fd >= 0) break;
        if (status == PD_E_PYTHON) return PD_TRAIL(status);
        PD_TRY(wait_at_door(p, to, -1));
        if (pd_os_now() > deadline)
            return pd_fail(PD_E_TIMEOUT, "rpc: rank %d cannot connect to rank %d, which is alive (expected an answer "
                           "within %.3g s)", p->rank, to, (double)(deadline - begin) * 1e-9);
    }
    if (!near) setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return PD_OK;
}
