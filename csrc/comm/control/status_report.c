#include "comm/control/status_report.h"

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/net/auth.h"

#define TEXT_BYTES (1 << 20)

/* [new] a connection to the listener of the process that asked, which must be of our own user; -1: it has none. */
static int listener_of(int pid) {
    char text[64];
    struct sockaddr_un name;
    struct timeval second = {.tv_sec = 1};
    int peer, uid;
    if (pid < 0) return -1;
    snprintf(text, sizeof text, "@pydist-doctor-%d", pid);
    socklen_t n = pd_auth_unix(text, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
    if (!connect(fd, (struct sockaddr *)&name, n) && pd_auth_same_user(fd, &peer, &uid) && peer == pid) return fd;
    close(fd);
    return -1;
}

void pd_status_report(pd_link *link) {
    char *text, place[400];
    size_t n;
    int pid = link->hooks && link->hooks->status_request ? link->hooks->status_request() : 0;
    if (!pid || pd_malloc(TEXT_BYTES, "flight record", &text)) return;
    int fd = listener_of(pid);
    if (fd < 0) {
        n = (size_t)snprintf(text, TEXT_BYTES, "pydist: flight record, as SIGUSR1 asked for: ");
    } else {
        pd_link_here(link, place, sizeof place);
        n = (size_t)snprintf(text, TEXT_BYTES, "rank %d of %d\non %d\n%s\n", link->rank, link->world,
                             pd_link_waits_now(link), place);
    }
    size_t record = pd_link_flight(link, INT32_MAX, text + n, TEXT_BYTES - n);
    if (!record) record = (size_t)snprintf(text + n, TEXT_BYTES - n, "no group\n");
    n += record;
    if (link->hooks->also) link->hooks->also(text + n, TEXT_BYTES - n);
    n += strlen(text + n);
    for (size_t at = 0; at < n;) {
        ssize_t wrote = fd < 0 ? write(STDERR_FILENO, text + at, n - at) : send(fd, text + at, n - at, MSG_NOSIGNAL);
        if (wrote <= 0) break;
        at += (size_t)wrote;
    }
    if (fd >= 0) close(fd);
    pd_free(text);
}
