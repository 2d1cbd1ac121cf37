/* Ranks that find each other without a launcher: rank 0 hosts the server, and the others try until it is there. In an
   open job the first one hosts it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/flags.h"
#include "base/log.h"
#include "comm/control/protocol.h"

typedef struct meeting {
    char name[PD_ADDRESS_BYTES];    /* of the unix socket: "@pydist-1000-29500" */
    char address[PD_ADDRESS_BYTES]; /* "host:port", "" for file:// */
    char listen[PD_ADDRESS_BYTES];  /* where rank 0 listens for other hosts; "": nowhere */
    bool here;                      /* rank 0's host is ours */
} meeting;

static pd_status at_file(const char *path, meeting *m) {
    struct stat st;
    int fd =
        open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0600); /* the first rank makes it; only its inode matters */
    bool good = fd >= 0 && !fstat(fd, &st);
    int error = errno;
    if (fd >= 0) close(fd);
    if (!good)
        return pd_fail(PD_E_OS, "init: cannot use file://%s: %s (expected a path at which a file can be made)", path,
                       strerror(error));
    snprintf(m->name, sizeof m->name, "@pydist-%u-%llx-%llx", (unsigned)geteuid(), (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    m->here = true;
    return PD_OK;
}

/* A host name that means loopback here (127.0.1.1 in /etc/hosts) is another address on other hosts. */
static void choose_listen(meeting *m, const struct addrinfo *first, bool secret) {
    const char *port = strrchr(m->address, ':') + 1;
    struct addrinfo *number, hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    char host[PD_ADDRESS_BYTES];
    bool allowed = secret || pd_flags_get()->INSECURE;
    snprintf(host, sizeof host, "%.*s", (int)(port - 1 - m->address), m->address);
    bool named = strcmp(host, "localhost") && host[0] != '[' && getaddrinfo(host, port, &hints, &number);
    if (!named && strcmp(host, "localhost") && host[0] != '[') freeaddrinfo(number);
    bool loopback = pd_auth_is_loopback(first->ai_addr);
    if (loopback && !named) return;
    if (allowed) snprintf(m->listen, sizeof m->listen, loopback ? "0.0.0.0:%s" : "%s", loopback ? port : m->address);
    else if (!loopback)
        pd_log(PD_LOG_INFO, "init: ranks of other hosts cannot join at %s: neither PYDIST_SECRET_FILE nor "
                            "PYDIST_INSECURE is set", m->address);
}

static pd_status at_tcp(const char *address, bool secret, meeting *m) {
    struct addrinfo *all;
    if (strlen(address) >= sizeof m->address)
        return pd_fail(PD_E_VALUE, "init: the address tcp://%.40s... is too long (expected tcp://host:port)", address);
    strcpy(m->address, address);
    m->address[strcspn(m->address, "/?")] = 0;
    PD_TRY(pd_auth_resolve(m->address, &all));
    for (const struct addrinfo *a = all; a && !m->here; a = a->ai_next) m->here = pd_auth_is_here(a);
    if (m->here) choose_listen(m, all, secret);
    freeaddrinfo(all);
    if (!strcmp(strrchr(m->address, ':') + 1, "0"))
        return pd_fail(PD_E_VALUE,
                       "init: the port is 0 in tcp://%s, so the ranks could not find each other (expected 1 to 65535)",
                       m->address);
    snprintf(m->name, sizeof m->name, "@pydist-%u-%s", (unsigned)geteuid(), strrchr(m->address, ':') + 1);
    return PD_OK;
}

static pd_status host_server(const meeting *m, const uint8_t *secret, int rank, int world, bool open,
                             pd_control_server **out) {
    if (!m->here)
        return pd_fail(PD_E_VALUE,
                       "init: rank %d has to run on the host of the address, but %s is not an address of this host: is "
                       "MASTER_ADDR right?",
                       rank, m->address);
    pd_control_options o = {.name = m->name, .listen = *m->listen ? m->listen : NULL, .secret = secret, .in_rank = true,
                            .host_rank = rank, .open = open};
    return pd_control_server_new(world, &o, out);
}

static pd_status find_meeting(const char *url, bool secret, meeting *m) {
    const char *plus = strchr(url, '+'), *colon = strstr(url, "://"), *at = plus && plus < colon ? plus + 1 : url;
    if (!strncmp(at, "file://", 7)) PD_TRY(at_file(at + 7, m));
    else if (!strncmp(at, "tcp://", 6)) PD_TRY(at_tcp(at + 6, secret, m));
    else if (!strncmp(at, "job://", 6)) {
        snprintf(m->name, sizeof m->name, "@pydist-%u-j%s", (unsigned)geteuid(), at + 6);
        m->here = true;
    } else
        return pd_fail(PD_E_VALUE, "init: the address is '%s' (expected tcp://host:port, file://path or job://name)",
                       url);
    size_t n = strlen(m->name);
    snprintf(m->name + n, sizeof m->name - n, "%s%.*s", at == url ? "" : "-", (int)(at == url ? 0 : plus - url), url);
    return PD_OK;
}

/* Comes in, or hosts the server if nobody does. Again if the server was about to end. */
static pd_status join_open(const meeting *m, const uint8_t *given, const uint8_t *secret, int rank, int world,
                           int64_t deadline, const pd_hooks *hooks, pd_link **out, pd_control_server **server) {
    const char *place = m->here ? m->name : m->address;
    for (;;) {
        double left = (double)(deadline - pd_os_now()) * 1e-9;
        pd_status status = pd_control_connect(place, secret, rank, world, left, !m->here, hooks, out);
        if (status != PD_E_DIST || !m->here || left < 0.02 || strstr(pd_error_get()->text, "refused this rank"))
            return PD_TRAIL(status);
        status = host_server(m, given, rank, world, true, server);
        if (!status) return PD_TRAIL(pd_control_connect(place, secret, rank, world, left, true, hooks, out));
        if (status != PD_E_DIST) return PD_TRAIL(status);
        poll(NULL, 0, 10); /* another one was faster */
        PD_TRY(pd_hooks_interrupt(hooks));
    }
}

pd_status pd_control_join(const char *url, const uint8_t *given, int rank, int world, double timeout,
                          const pd_hooks *hooks, pd_link **out, pd_control_server **server) {
    meeting m = {0};
    uint8_t secret[PD_SECRET_BYTES];
    bool found = given, open = !strncmp(url, "open+", 5);
    *server = NULL;
    if (given) memcpy(secret, given, sizeof secret);
    else PD_TRY(pd_control_secret_file(secret, &found));
    PD_TRY(find_meeting(url, found, &m));
    if (!m.here && !found && !pd_flags_get()->INSECURE)
        return pd_fail(PD_E_DIST,
                       "init: rank %d cannot join %s, on another host, without a secret: set PYDIST_SECRET_FILE "
                       "on every host, or PYDIST_INSECURE=1 on a network that you trust",
                       rank, m.address);
    if (rank == 0 && !open) PD_TRY(host_server(&m, given, rank, world, false, server));
    const char *place = m.here ? m.name : m.address;
    int64_t deadline = pd_os_now() + (int64_t)(timeout * 1e9);
    pd_status status = open ? join_open(&m, given, secret, rank, world, deadline, hooks, out, server)
                            : pd_control_connect(place, secret, rank, world, timeout, true, hooks, out);
    explicit_bzero(secret, sizeof secret);
    if (status == PD_E_TIMEOUT && rank > 0 && !open)
        status = pd_fail(PD_E_TIMEOUT, "init: rank %d found no rank 0 at %s within %.1f s: is it running, and on %s?",
                         rank, url, timeout, m.here ? "this host, as the same user" : "the host of that address");
    if (!status) (*out)->wide = *m.listen || !m.here;
    if (status) pd_control_server_free(*server);
    if (status) *server = NULL;
    return status;
}
