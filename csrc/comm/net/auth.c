#include "comm/net/auth.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- addresses --------------------------------------------------------------------------------------------------- */

socklen_t pd_auth_unix(const char *text, struct sockaddr_un *to) {
    size_t n = strlen(text);
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n < 2 || text[0] != '@' || n > sizeof to->sun_path) return 0;
    memcpy(to->sun_path + 1, text + 1, n - 1); /* abstract: the first byte is 0, and the name is not terminated */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

pd_status pd_auth_resolve(const char *address, struct addrinfo **out) {
    char host[256];
    const char *colon = strrchr(address, ':'), *begin = address;
    size_t n = colon ? (size_t)(colon - address) : 0;
    if (n > 1 && *begin == '[' && begin[n - 1] == ']') {
        begin++;
        n -= 2;
    }
    if (!n || n >= sizeof host || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strlen(colon + 1) > 5 || atoi(colon + 1) > 65535)
        return pd_fail(PD_E_VALUE, "control: '%s' is not an address (expected @name or host:port)", address);
    memcpy(host, begin, n);
    host[n] = 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    int rc = getaddrinfo(host, colon + 1, &hints, out);
    return rc ? pd_fail(PD_E_DIST, "control: the host name '%s' has no address: %s", host, gai_strerror(rc)) : PD_OK;
}

bool pd_auth_is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* By trying to bind: the kernel allows that for our own addresses only. */
bool pd_auth_is_here(const struct addrinfo *a) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } to = {0};
    if (pd_auth_is_loopback(a->ai_addr)) return true;
    if (a->ai_addrlen > sizeof to) return false;
    memcpy(&to, a->ai_addr, a->ai_addrlen);
    if (a->ai_family == AF_INET) to.v4.sin_port = 0;
    else to.v6.sin6_port = 0;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool here = fd >= 0 && !bind(fd, &to.any, a->ai_addrlen);
    if (fd >= 0) close(fd);
    return here;
}

void pd_auth_text(const struct sockaddr *a, socklen_t n, char *text, size_t size) {
    char host[64] = "?", port[8] = "?";
    getnameinfo(a, n, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, size, a->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

bool pd_auth_same_user(int fd, int *pid, int *uid) {
    struct ucred cred = {0};
    socklen_t n = sizeof cred;
    *pid = *uid = -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n)) return false;
    *pid = cred.pid;
    *uid = (int)cred.uid;
    return cred.uid == geteuid();
}

bool pd_auth_same(const uint8_t *a, const uint8_t *b, size_t n) {
    unsigned diff = 0;
    for (size_t i = 0; i < n; i++) diff |= (unsigned)(a[i] ^ b[i]);
    return diff == 0;
}
