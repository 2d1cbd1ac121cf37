#include "comm/net/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/flags.h"
#include "comm/net/auth.h"

#define RETRY_MS 20                 /* between two tries to reach a listener that is not there yet */
#define STAGGER_NS INT64_C(150000000) /* a living host answers sooner; RFC 8305 has 250 ms */

/* ---- interfaces -------------------------------------------------------------------------------------------------- */

/* "=eth1" means exactly this name, as in NCCL. */
static bool may_use(const char *list, const char *name) {
    bool all_but = *list == '^', listed = false;
    list += all_but;
    bool exact = *list == '=';
    list += exact;
    while (*list) {
        size_t n = strcspn(list, ",");
        if (n && !strncmp(list, name, n) && (!exact || !name[n])) listed = true;
        list += n + (list[n] == ',');
    }
    return listed != all_but;
}

static bool is_face(const struct ifaddrs *i) {
    const struct sockaddr *a = i->ifa_addr;
    if (!a || !(i->ifa_flags & IFF_UP) || (a->sa_family != AF_INET && a->sa_family != AF_INET6)) return false;
    if (pd_auth_is_loopback(a)) return false;
    return a->sa_family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

pd_status pd_dial_faces(pd_face *faces, int *count) {
    struct ifaddrs *all;
    const char *variable, *list = pd_flags_iface(&variable);
    char there[200] = "";
    size_t n = 0;
    *count = 0;
    if (getifaddrs(&all)) return pd_fail(PD_E_OS, "control: cannot list the network interfaces: %s", strerror(errno));
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        if (!is_face(i)) continue;
        if (n < sizeof there) n += (size_t)snprintf(there + n, sizeof there - n, "%s%s", n ? ", " : "", i->ifa_name);
        if ((*list && !may_use(list, i->ifa_name)) || *count == PD_DIAL_FACES) continue;
        pd_face *f = &faces[(*count)++];
        memset(f, 0, sizeof *f);
        snprintf(f->name, sizeof f->name, "%s", i->ifa_name);
        memcpy(&f->address, i->ifa_addr,
               i->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    }
    freeifaddrs(all);
    if (*list && !*count)
        return pd_fail(PD_E_VALUE, "control: %s=%s matches no network interface (expected some of: %s)", variable, list,
                       n ? there : "none is up");
    return PD_OK;
}

/* ---- the tries --------------------------------------------------------------------------------------------------- */

static void add_try(pd_race *r, const struct addrinfo *a, int face) {
    if (r->count == PD_DIAL_TRIES || a->ai_addrlen > sizeof r->tries->to) return;
    pd_try *t = &r->tries[r->count++];
    *t = (pd_try){.bytes = a->ai_addrlen, .face = face, .fd = -1};
    memcpy(&t->to, a->ai_addr, a->ai_addrlen);
}

pd_status pd_race_add(pd_race *r, const char *address) {
    struct addrinfo *all;
    const char *variable;
    bool named = *pd_flags_iface(&variable);
    if (!r->count) PD_TRY(pd_dial_faces(r->faces, &r->face_count));
    PD_TRY(pd_auth_resolve(address, &all));
    for (const struct addrinfo *a = all; a; a = a->ai_next)
        if (!named || pd_auth_is_here(a)) add_try(r, a, -1);
    for (const struct addrinfo *a = all; a; a = a->ai_next)
        for (int f = 0; f < r->face_count && !pd_auth_is_here(a); f++)
            if (r->faces[f].address.ss_family == a->ai_family) add_try(r, a, f);
    freeaddrinfo(all);
    return PD_OK;
}

static int family_faces(const pd_race *r, int family) {
    int n = 0;
    for (int f = 0; f < r->face_count; f++) n += r->faces[f].address.ss_family == family;
    return n;
}

/* Binds to this interface, or, without the right to do so, to its address. */
static void bind_to(int fd, const pd_face *f) {
    struct sockaddr_storage from = f->address;
    socklen_t n = from.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, f->name, (socklen_t)strlen(f->name)))
        (void)!bind(fd, (struct sockaddr *)&from, n);
}

static void fail_try(pd_race *r, pd_try *t, int error) {
    if (t->fd >= 0) close(t->fd);
    t->fd = -1;
    t->over = true;
    if (error) r->error = error;
}

static void start_try(pd_race *r, pd_try *t) {
    const char *variable;
    int on = 1;
    if (t->face >= 0 && family_faces(r, t->to.ss_family) < 2 &&
        !*pd_flags_iface(&variable)) { /* the routes lead through no other one */
        fail_try(r, t, 0);
        return;
    }
    t->fd = socket(t->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (t->fd < 0) {
        fail_try(r, t, errno);
        return;
    }
    setsockopt(t->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (t->face >= 0) bind_to(t->fd, &r->faces[t->face]);
    if (connect(t->fd, (struct sockaddr *)&t->to, t->bytes) && errno != EINPROGRESS) fail_try(r, t, errno);
}

static void describe(pd_race *r, const pd_try *t) {
    struct sockaddr_storage own = {0};
    socklen_t n = sizeof own;
    char to[80], from[80] = "?";
    const char *name = "loopback", *variable, *list = pd_flags_iface(&variable);
    pd_auth_text((const struct sockaddr *)&t->to, t->bytes, to, sizeof to);
    if (!getsockname(t->fd, (struct sockaddr *)&own, &n)) {
        if (own.ss_family == AF_INET6) ((struct sockaddr_in6 *)&own)->sin6_port = 0;
        else ((struct sockaddr_in *)&own)->sin_port = 0;
        pd_auth_text((struct sockaddr *)&own, n, from, sizeof from);
        if (strrchr(from, ':')) *strrchr(from, ':') = 0;
    }
    for (int f = 0; f < r->face_count; f++) {
        char text[80];
        pd_auth_text((const struct sockaddr *)&r->faces[f].address, sizeof(struct sockaddr_in6), text, sizeof text);
        if (!strncmp(text, from, strlen(from)) && text[strlen(from)] == ':') name = r->faces[f].name;
    }
    char why[120] = "as this host's routing table says";
    if (*list && t->face >= 0) snprintf(why, sizeof why, "named by %s", variable);
    else if (t->face >= 0)
        strcpy(why, "the interface of this host's routing table did not answer");
    else if (r->count > 1 && t > r->tries) strcpy(why, "the first of several addresses that answered");
    snprintf(r->way, sizeof r->way, "%s from %s (%s): %s", to, from, name, why);
}

/* Whether this try has connected; it may also have failed, or still be under way. */
static bool look(pd_race *r, pd_try *t) {
    int error = 0;
    socklen_t n = sizeof error;
    if (getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &n)) error = errno;
    if (error) fail_try(r, t, error);
    return !error;
}

pd_status pd_race_next(pd_race *r, int64_t deadline, const pd_hooks *hooks, int *fd) {
    *fd = -1;
    if (!r->began) r->began = pd_os_now();
    for (;;) {
        struct pollfd polls[PD_DIAL_TRIES];
        pd_try *of[PD_DIAL_TRIES];
        int n = 0, ms = PD_SLICE_NS / 1000000;
        for (int i = 0; i < r->started; i++)
            if (r->tries[i].fd >= 0) {
                polls[n] = (struct pollfd){.fd = r->tries[i].fd, .events = POLLOUT};
                of[n++] = &r->tries[i];
            }
        int64_t due = r->began + r->started * STAGGER_NS, now = pd_os_now();
        if (r->started < r->count && (!n || now >= due)) {
            if (now < due) r->began -= due - now; /* later tries need not wait either */
            start_try(r, &r->tries[r->started++]);
            continue;
        }
        if (!n) return PD_OK;
        poll(polls, (nfds_t)n, ms);
        for (int i = 0; i < n; i++)
            if (polls[i].revents && look(r, of[i])) {
                describe(r, of[i]);
                *fd = of[i]->fd;
                of[i]->fd = -1;
                of[i]->over = true;
                return PD_OK;
            }
        PD_TRY(pd_hooks_interrupt(hooks));
        if (pd_os_now() < deadline) continue;
        r->error = ETIMEDOUT;
        return PD_OK;
    }
}

void pd_race_end(pd_race *r) {
    for (int i = 0; i < r->started; i++) fail_try(r, &r->tries[i], 0);
}

/* ---- one address ------------------------------------------------------------------------------------------------- */

static pd_status dial_unix(const char *address, int *fd, int *error) {
    struct sockaddr_un name;
    socklen_t n = pd_auth_unix(address, &name);
    int pid, uid;
    if (!n) return pd_fail(PD_E_VALUE, "control: '%s' is not an address (expected @name or host:port)", address);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0) return pd_fail(PD_E_OS, "control: cannot make a socket: %s", strerror(errno));
    *error = connect(*fd, (struct sockaddr *)&name, n) ? errno : 0; /* connects at once, or EAGAIN: its queue is full */
    if (!*error && pd_auth_same_user(*fd, &pid, &uid)) return PD_OK;
    close(*fd);
    *fd = -1;
    if (*error) return PD_OK;
    return pd_fail(PD_E_DIST, "control: the server at %s runs under user id %d (expected this process's user id)",
                   address, uid);
}

/* Tries once to connect. *fd -1: *error says why it failed. */
static pd_status knock(const char *address, int64_t deadline, const pd_hooks *hooks, int *fd, int *error, char *way,
                       size_t size) {
    pd_race r = {.error = ECONNREFUSED};
    *way = 0;
    if (*address == '@') return dial_unix(address, fd, error);
    PD_TRY(pd_race_add(&r, address));
    pd_status status = pd_race_next(&r, deadline, hooks, fd);
    *error = r.error;
    snprintf(way, size, "%s", r.way);
    pd_race_end(&r);
    return status;
}

static pd_status dial(const char *address, int64_t deadline, bool patient, const pd_hooks *hooks, int *fd, char *way,
                      size_t size) {
    int error;
    for (;;) {
        PD_TRY(knock(address, deadline, hooks, fd, &error, way, size));
        if (*fd >= 0) return PD_OK;
        bool full = *address == '@' && error == EAGAIN; /* the listener is there, but its queue is full */
        if (!(patient || full) || pd_os_now() >= deadline) break;
        poll(NULL, 0, RETRY_MS);
        PD_TRY(pd_hooks_interrupt(hooks));
    }
    return pd_fail(patient ? PD_E_TIMEOUT : PD_E_DIST, "control: cannot reach the %s at %s: %s",
                   patient ? "server" : "launcher", address, strerror(error));
}

pd_status pd_dial(const char *address, int64_t deadline, bool patient, const pd_hooks *hooks, int *fd, char *way,
                  size_t size) {
    void *token = pd_host_release();
    pd_status status = dial(address, deadline, patient, hooks, fd, way, size);
    pd_host_acquire(token);
    return status;
}
