#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/flags.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/control/control_impl.h"

#define HANDSHAKE_NS 5000000000 /* a connection must authenticate within this */
#define PRESSED_NS 1000000000   /* at least so much of it, if other connections wait */
#define STRANGERS 64            /* unauthenticated connections at a time, on each socket, in a small job */
#define SHUT_NS 50000000        /* for so long nobody is accepted after descriptors have run out */
#define STRANGERS_LOGGED 16
#define ACCEPTS 32 /* connections that are accepted before others are served again */

/* ---- strangers --------------------------------------------------------------------------------------------------- */

void pd_handshake_refused(pd_control_server *s, const pd_conn *c, const char *why) {
    int n = ++s->logged;
    if (n <= STRANGERS_LOGGED)
        pd_log(PD_LOG_WARN, "control: refused a connection from %s: %s%s", c->from, why,
               n == STRANGERS_LOGGED ? " (further ones are not reported)" : "");
}

/* There may be twice as many strangers as the job has ranks, since all ranks come at the same time. Further ones wait
   in the kernel's queue until a stranger is done or has had PRESSED_NS, so a slow connection alone ends nobody. */
static bool is_full(const pd_control_server *s, int which) {
    return s->strangers[which] >= (s->world > STRANGERS / 2 ? 2 * s->world : STRANGERS);
}

bool pd_handshake_is_open(const pd_control_server *s, int which, int64_t now) {
    return s->shut <= now && !is_full(s, which);
}

int64_t pd_handshake_deadline(const pd_control_server *s, const pd_conn *c) {
    return is_full(s, pd_conn_listen(c)) ? c->deadline - HANDSHAKE_NS + PRESSED_NS : c->deadline;
}

/* Stores where a connection comes from. False: it is not from our user. */
static bool identify(pd_conn *c, int fd, const struct sockaddr_storage *from, socklen_t n) {
    int uid, on = 1;
    if (c->tcp) {
        pd_auth_text((const struct sockaddr *)from, n, c->from, sizeof c->from);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        return true;
    }
    bool ours = pd_auth_same_user(fd, &c->pid, &uid);
    snprintf(c->from, sizeof c->from, "pid %d", c->pid);
    return ours;
}

void pd_handshake_accept(pd_control_server *s, int which, int64_t now) {
    for (int i = 0; i < ACCEPTS && pd_handshake_is_open(s, which, now); i++) {
        struct sockaddr_storage from;
        socklen_t n = sizeof from;
        int fd = accept4(s->listening[which], (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            s->shut = now + SHUT_NS;
            if (!s->warned)
                pd_log(
                    PD_LOG_WARN,
                    "control: the server cannot accept more connections, so ranks have to wait: %s (see `ulimit -n`)",
                    strerror(errno));
            s->warned = true;
        }
        if (fd < 0) return; /* none left, or one that has gone away again */
        pd_conn probe = {.rank = -1, .tcp = which == PD_LISTEN_TCP}, *c;
        const char *why = NULL;
        if (!identify(&probe, fd, &from, n)) why = "it runs under another user id";
        else if (pd_malloc(sizeof *c, "control connection", &c)) why = "out of memory";
        if (why) {
            pd_handshake_refused(s, &probe, why);
            close(fd);
            continue;
        }
        *c = probe;
        pd_wire_init(&c->wire, fd, sizeof(pd_control_hello));
        c->deadline = now + HANDSHAKE_NS;
        c->next = s->conns;
        s->conns = c;
        s->strangers[which]++;
    }
}

static const char *on_hello(pd_control_server *s, pd_conn *c) {
    pd_control_challenge challenge;
    if (c->wire.head.kind != PD_CONTROL_HELLO || c->wire.head.bytes != sizeof c->hello)
        return "its first message is not a greeting";
    memcpy(&c->hello, c->wire.body, sizeof c->hello);
    if (pd_os_random(c->nonce, sizeof c->nonce)) return "the server could not get random numbers";
    memcpy(challenge.nonce, c->nonce, sizeof c->nonce);
    pd_control_mac(s->secret, "server", &c->hello, c->nonce, challenge.proof);
    c->greeted = true;
    pd_control_send(c, PD_CONTROL_CHALLENGE, 0, &challenge, sizeof challenge, NULL, 0, -1);
    return NULL;
}

static const char *on_proof(pd_control_server *s, pd_conn *c, int64_t now) {
    const pd_control_hello *h = &c->hello;
    uint8_t mac[PD_SHA256_BYTES];
    char text[160] = "";
    if (c->wire.head.kind != PD_CONTROL_PROOF || c->wire.head.bytes != sizeof mac)
        return "it did not prove that it knows the secret";
    pd_control_mac(s->secret, "client", h, c->nonce, mac);
    if (!pd_auth_same(mac, (const uint8_t *)c->wire.body, sizeof mac)) return "wrong secret";
    bool known = h->rank >= 0 && h->rank < s->world;
    if (known && s->host_rank >= 0 && !s->open && s->peers[h->rank].state == PD_PEER_LEFT)
        return NULL; /* it is of the next job at this address: it waits until this server ends, and comes again */
    if (h->world != s->world)
        snprintf(text, sizeof text, "rank %d expects %d ranks, but this job has %d", h->rank, h->world, s->world);
    else if (!known)
        snprintf(text, sizeof text, "rank %d is not one of the %d ranks", h->rank, s->world);
    else if (s->open && s->peers[h->rank].state == PD_PEER_LEFT)
        snprintf(text, sizeof text, "rank %d was here before and has left (expected a rank that was not used)",
                 h->rank);
    else if (s->peers[h->rank].state != PD_PEER_ABSENT)
        snprintf(text, sizeof text, "rank %d has already joined, as pid %d", h->rank, s->peers[h->rank].pid);
    if (!*text) {
        pd_peer_welcome(s, c, now);
        return NULL;
    }
    c->closing = true;
    pd_control_send(c, PD_CONTROL_REFUSED, 0, NULL, 0, text, strlen(text), -1);
    pd_log(PD_LOG_WARN, "control: refused the connection from %s: %s", c->from, text);
    return NULL;
}

const char *pd_handshake_frame(pd_control_server *s, pd_conn *c, int64_t now) {
    return c->greeted ? on_proof(s, c, now) : on_hello(s, c);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static pd_status open_secret(pd_control_server *s, const pd_control_options *o, bool *common) {
    *common = false;
    PD_TRY(pd_os_random(s->token, sizeof s->token));
    if (o->secret) {
        memcpy(s->secret, o->secret, sizeof s->secret);
        *common = true;
    } else if (o->listen || o->in_rank) PD_TRY(pd_control_secret_file(s->secret, common));
    bool open = o->in_rank || (o->listen && pd_flags_get()->INSECURE); /* to all processes of our user; to everybody */
    if (!*common && !open) PD_TRY(pd_os_random(s->secret, sizeof s->secret));
    s->secret_fd = memfd_create("pydist-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->secret_fd < 0 || write(s->secret_fd, s->secret, sizeof s->secret) != sizeof s->secret ||
        fcntl(s->secret_fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return pd_fail(PD_E_OS, "control: cannot make a file descriptor for the secret: %s", strerror(errno));
    return PD_OK;
}

/* "pid 17": which process listens there; "" if none. */
static void owner_of(const struct sockaddr_un *name, socklen_t n, char *text, size_t size) {
    int pid = -1, uid, fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !connect(fd, (const struct sockaddr *)name, n)) pd_auth_same_user(fd, &pid, &uid);
    if (fd >= 0) close(fd);
    snprintf(text, size, pid > 0 ? "pid %d" : "another process", pid);
}

static pd_status open_unix(pd_control_server *s, const pd_control_options *o) {
    struct sockaddr_un name;
    uint8_t random[8];
    char owner[32];
    size_t n = (size_t)snprintf(s->address, sizeof s->address, "%s", o->name ? o->name : "@pydist-");
    PD_TRY(pd_os_random(random, sizeof random));
    for (size_t i = 0; !o->name && i < sizeof random; i++)
        n += (size_t)snprintf(s->address + n, sizeof s->address - n, "%02x", random[i]);
    socklen_t bytes = pd_auth_unix(s->address, &name);
    int fd = s->listening[PD_LISTEN_UNIX] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&name, bytes) && !listen(fd, 1024)) return PD_OK;
    if (errno != EADDRINUSE) return pd_fail(PD_E_OS, "control: cannot listen on %s: %s", s->address, strerror(errno));
    owner_of(&name, bytes, owner, sizeof owner);
    return pd_fail(PD_E_DIST, "control: %s is taken by another job (%s): choose another port", s->address, owner);
}

static pd_status open_tcp(pd_control_server *s, const char *address, bool common) {
    struct addrinfo *all;
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    int on = 1;
    PD_TRY(pd_auth_resolve(address, &all));
    if (!pd_auth_is_loopback(all->ai_addr) && !common && !pd_flags_get()->INSECURE) {
        freeaddrinfo(all);
        return pd_fail(PD_E_DIST,
                       "control: refusing to listen on %s, which other hosts can reach, without a secret: give every "
                       "host the same file of random bytes (head -c 32 /dev/urandom, mode 0600) and set "
                       "PYDIST_SECRET_FILE to its path, or set PYDIST_INSECURE=1 on a network that you trust",
                       address);
    }
    int fd = s->listening[PD_LISTEN_TCP] = socket(all->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bool good = fd >= 0 && !bind(fd, all->ai_addr, all->ai_addrlen) && !listen(fd, 1024) &&
                !getsockname(fd, (struct sockaddr *)&bound, &n);
    int error = errno;
    freeaddrinfo(all);
    if (!good)
        return pd_fail(PD_E_DIST, "control: cannot listen on %s: %s", address,
                       error == EADDRINUSE ? "the port is taken by another job or program" : strerror(error));
    pd_auth_text((struct sockaddr *)&bound, n, s->tcp_address, sizeof s->tcp_address);
    return PD_OK;
}

pd_status pd_handshake_open(pd_control_server *s, const pd_control_options *o) {
    bool common;
    PD_TRY(open_secret(s, o, &common));
    PD_TRY(open_unix(s, o));
    return o->listen ? open_tcp(s, o->listen, common) : PD_OK;
}
