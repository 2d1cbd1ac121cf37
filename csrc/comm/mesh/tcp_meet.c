/* How the ranks of a group connect: each listens, publishes its addresses in the store, dials lower ranks and accepts
   higher ones. A stranger at that port costs a descriptor until its time is over.

     the listening rank   16 random bytes             32 bytes: its proof
     the dialling rank                     greeting */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/mesh/tcp_impl.h"
#include "comm/net/dial.h"
#include "comm/net/listen.h"

#define MAGIC 0x314d4450u             /* "PDM1": the last byte is the version */
#define PRESSED_NS INT64_C(1000000000) /* at least so much of it, if others wait */
#define STRANGERS 64
#define ADDRESSES 2048 /* bytes of text */

typedef struct greeting {
    uint32_t magic, epoch;
    int32_t from, to;
    uint8_t nonce[PD_NONCE_BYTES], proof[PD_SHA256_BYTES];
} greeting;

typedef struct guest { /* a connection that has not proved yet who it is */
    int fd;
    size_t got;
    int64_t deadline;
    uint8_t nonce[PD_NONCE_BYTES];
    greeting greeting;
} guest;

typedef struct meeting {
    const pd_mesh_plan *plan;
    pd_tcp *mesh;
    int listening, guests, refused;
    int64_t deadline;
    guest *guest;
} meeting;

static void prove(const pd_link *link, const char *who, const greeting *g, const uint8_t *nonce,
                  uint8_t out[PD_SHA256_BYTES]) {
    pd_listen_prove(link->token, PD_TOKEN_BYTES, who, g, offsetof(greeting, proof), nonce, out);
}

static pd_status pause_ok(const meeting *m) {
    PD_TRY(pd_hooks_interrupt(m->plan->link->hooks));
    if (atomic_load_explicit(m->plan->stop, memory_order_acquire))
        return pd_fail(PD_E_DIST, "tcp: connecting was cancelled, because the group failed or was destroyed");
    return PD_OK;
}

static void settle(meeting *m, int peer, int fd) {
    int on = 1;
    pd_tcp_peer *p = &m->mesh->peers[peer];
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    p->fd = fd;
    pd_fork_watch_add(&p->watch, fd);
}

/* ---- listening --------------------------------------------------------------------------------------------------- */

static void where_key(const meeting *m, int rank, char *key, size_t size) {
    snprintf(key, size, "pd:%u.tcp.%d", m->plan->epoch, rank);
}

static pd_status announce(const meeting *m, int port) {
    char key[64], text[ADDRESSES];
    where_key(m, m->mesh->rank, key, sizeof key);
    PD_TRY(pd_listen_addresses(m->plan->near, m->plan->link->here, port, text, sizeof text));
    return pd_store_set(m->plan->link, key, text, strlen(text));
}

/* ---- the higher ranks come --------------------------------------------------------------------------------------- */

static void end_guest(meeting *m, int i, const char *why) {
    if (why && m->refused++ == 0)
        pd_log(PD_LOG_WARN, "tcp: rank %d refused a data connection: %s (further ones are not reported)",
               pd_tcp_name(m->mesh, m->mesh->rank), why);
    if (why) close(m->guest[i].fd);
    m->guest[i] = m->guest[--m->guests];
}

static void let_in(meeting *m) {
    int fd = accept4(m->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && errno != EAGAIN) poll(NULL, 0, PD_SLICE_NS / 1000000); /* no descriptor: do not try again at once */
    if (fd < 0) return;
    guest *g = &m->guest[m->guests];
    *g = (guest){.fd = fd, .deadline = pd_os_now() + PD_GREET_NS};
    if (pd_os_random(g->nonce, sizeof g->nonce) ||
        send(fd, g->nonce, sizeof g->nonce, MSG_NOSIGNAL) != (ssize_t)sizeof g->nonce)
        close(fd);
    else
        m->guests++;
}

/* True while it may send more. */
static bool hear_guest(meeting *m, int i) {
    guest *g = &m->guest[i];
    uint8_t mac[PD_SHA256_BYTES];
    ssize_t n = recv(g->fd, (char *)&g->greeting + g->got, sizeof g->greeting - g->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n > 0) g->got += (size_t)n;
    if (n > 0 && g->got < sizeof g->greeting) return true;
    const greeting *h = &g->greeting;
    const char *why = NULL;
    if (n <= 0)
        why = "it closed the connection without a greeting";
    else if (prove(m->plan->link, "dial", h, g->nonce, mac), !pd_auth_same(mac, h->proof, sizeof mac))
        why = "its greeting is not valid, or has the token of another job";
    else if (h->magic != MAGIC || h->epoch != m->plan->epoch || h->to != m->mesh->rank || h->from <= m->mesh->rank ||
             h->from >= m->mesh->size || m->mesh->peers[h->from].fd >= 0)
        why = "it is a rank of another group, or a rank that is already connected";
    if (!why) {
        prove(m->plan->link, "listen", h, g->nonce, mac);
        if (send(g->fd, mac, sizeof mac, MSG_NOSIGNAL) != (ssize_t)sizeof mac)
            why = "it closed the connection during the greeting";
        else settle(m, h->from, g->fd);
    }
    end_guest(m, i, why);
    return false;
}

static int missing_above(const meeting *m) {
    for (int r = m->mesh->rank + 1; r < m->mesh->size; r++)
        if (m->mesh->peers[r].fd < 0) return r;
    return -1;
}

static pd_status let_all_in(meeting *m) {
    struct pollfd polls[STRANGERS + 1];
    for (int missing; (missing = missing_above(m)) >= 0;) {
        bool full = m->guests == STRANGERS; /* others have to wait */
        polls[0] = (struct pollfd){.fd = full ? -1 : m->listening, .events = POLLIN};
        for (int i = 0; i < m->guests; i++) polls[i + 1] = (struct pollfd){.fd = m->guest[i].fd, .events = POLLIN};
        int ready = poll(polls, (nfds_t)m->guests + 1, PD_SLICE_NS / 1000000);
        int64_t now = pd_os_now();
        for (int i = m->guests; i-- > 0;) { /* from the end: a guest that goes is replaced by the last */
            if (ready > 0 && polls[i + 1].revents && !hear_guest(m, i)) continue;
            if (m->guest[i].deadline - (full ? PD_GREET_NS - PRESSED_NS : 0) < now)
                end_guest(m, i, "it sent no greeting in time");
        }
        if (ready > 0 && polls[0].revents) let_in(m);
        PD_TRY(pause_ok(m));
        if (pd_os_now() > m->deadline)
            return pd_fail(PD_E_TIMEOUT, "init: rank %d waited %.1f s for a data connection from rank %d",
                           pd_tcp_name(m->mesh, m->mesh->rank), (double)m->plan->timeout_ns * 1e-9,
                           pd_tcp_name(m->mesh, missing));
    }
    return PD_OK;
}

/* ---- to the lower ranks ------------------------------------------------------------------------------------------ */

/* Receives so many bytes. *good: they came before the deadline. */
static pd_status take(const meeting *m, int fd, void *to, size_t bytes, int64_t deadline, bool *good) {
    size_t got = 0;
    *good = true;
    while (got < bytes) {
        ssize_t n = recv(fd, (char *)to + got, bytes - got, MSG_DONTWAIT);
        if (n > 0) {
            got += (size_t)n;
            continue;
        }
        *good = n < 0 && (errno == EAGAIN || errno == EINTR) && pd_os_now() < deadline;
        if (!*good) return PD_OK;
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PD_SLICE_NS / 1000000);
        PD_TRY(pause_ok(m));
    }
    return PD_OK;
}

static pd_status greet(const meeting *m, int peer, int fd, bool *good) {
    greeting g = {.magic = MAGIC, .epoch = m->plan->epoch, .from = m->mesh->rank, .to = peer};
    uint8_t nonce[PD_NONCE_BYTES], mac[PD_SHA256_BYTES], answer[PD_SHA256_BYTES];
    int64_t deadline = pd_os_now() + PD_GREET_NS;
    PD_TRY(pd_os_random(g.nonce, sizeof g.nonce));
    PD_TRY(take(m, fd, nonce, sizeof nonce, deadline, good));
    if (!*good) return PD_OK;
    prove(m->plan->link, "dial", &g, nonce, g.proof);
    *good = send(fd, &g, sizeof g, MSG_NOSIGNAL) == (ssize_t)sizeof g;
    if (*good) PD_TRY(take(m, fd, answer, sizeof answer, deadline, good));
    prove(m->plan->link, "listen", &g, nonce, mac);
    *good = *good && pd_auth_same(mac, answer, sizeof mac);
    return PD_OK;
}

/* One round of tries. *good: one of the addresses has answered with the right proof. */
static pd_status try_all(meeting *m, int peer, const char *addresses, bool *good) {
    char text[ADDRESSES], *rest = NULL;
    const pd_hooks *hooks = m->plan->link->hooks;
    pd_race race = {0};
    int fd = -1;
    pd_status status = PD_OK;
    *good = false;
    snprintf(text, sizeof text, "%s", addresses);
    for (char *a = strtok_r(text, " ", &rest); a && !status; a = strtok_r(NULL, " ", &rest))
        status = pd_race_add(&race, a);
    int64_t soon = pd_os_now() + PD_GREET_NS;
    if (soon > m->deadline) soon = m->deadline;
    while (!status && !*good) {
        status = pd_race_next(&race, soon, hooks, &fd);
        if (status || fd < 0) break;
        status = greet(m, peer, fd, good);
        if (!*good || status) close(fd);
    }
    pd_race_end(&race);
    if (status || !*good) return status;
    settle(m, peer, fd);
    pd_log(PD_LOG_INFO, "tcp: rank %d reaches rank %d at %s", pd_tcp_name(m->mesh, m->mesh->rank),
           pd_tcp_name(m->mesh, peer), race.way);
    return PD_OK;
}

/* Gives up before the ranks that wait for us do, since they could say less. */
static pd_status reach(meeting *m, int peer, const char *addresses) {
    int64_t enough = m->deadline - m->plan->timeout_ns / 4;
    for (bool good;;) {
        PD_TRY(try_all(m, peer, addresses, &good));
        if (good) return PD_OK;
        PD_TRY(pause_ok(m));
        if (pd_os_now() > enough)
            return pd_fail(PD_E_TIMEOUT, "init: rank %d cannot reach rank %d at any of %s",
                           pd_tcp_name(m->mesh, m->mesh->rank), pd_tcp_name(m->mesh, peer), addresses);
        poll(NULL, 0, 50);
    }
}

static pd_status go_to(meeting *m, int peer) {
    char key[64];
    pd_store_reply reply;
    where_key(m, peer, key, sizeof key);
    pd_store_call call = {.verb = PD_STORE_GET, .key = key, .key_bytes = strlen(key), .handle = PD_NO_HANDLE,
                          .timeout_ns = m->plan->timeout_ns, .stop = m->plan->stop};
    PD_TRY(m->plan->link->ops->call(m->plan->link, &call, &reply));
    char text[ADDRESSES];
    snprintf(text, sizeof text, "%.*s", (int)reply.bytes, reply.data ? (char *)reply.data : "");
    pd_free(reply.data);
    return reach(m, peer, text);
}

pd_status pd_tcp_meet(const pd_mesh_plan *plan, pd_tcp *mesh) {
    meeting m = {.plan = plan, .mesh = mesh, .listening = -1};
    pd_status status = PD_OK;
    bool there;
    int port;
    char key[64];
    m.deadline = pd_os_now() + plan->timeout_ns;
    PD_TRY(pd_calloc(STRANGERS * sizeof *m.guest, "tcp", &m.guest));
    void *token = pd_host_release();
    PD_TRY_TO(done, pd_listen_open(plan->near, &m.listening, &port));
    PD_TRY_TO(done, announce(&m, port));
    for (int r = 0; r < mesh->rank; r++) PD_TRY_TO(done, go_to(&m, r));
    PD_TRY_TO(done, let_all_in(&m));
    where_key(&m, mesh->rank, key, sizeof key);
    PD_TRY_TO(done, pd_store_delete(plan->link, key, &there)); /* all ranks that need it are connected */
done:
    pd_host_acquire(token);
    for (int i = 0; i < m.guests; i++) close(m.guest[i].fd);
    if (m.listening >= 0) close(m.listening);
    pd_free(m.guest);
    return status;
}
