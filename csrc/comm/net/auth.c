#include "comm/net/auth.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/flags.h"

#define SECRET_FILE_BYTES 4096

/* ---- addresses --------------------------------------------------------------------------------------------------- */

socklen_t pd_auth_unix(const char *text, struct sockaddr_un *to) {
    size_t n = strlen(text);
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n < 2 || text[0] != '@' || n > sizeof to->sun_path) return 0;
    memcpy(to->sun_path + 1, text + 1, n - 1); /* abstract: the first byte is 0 and the name has no end mark */
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
        return pd_fail(PD_E_VALUE, "control: '%s' is no address (expected @name or host:port)", address);
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

/* The kernel lets us bind to our own addresses only. */
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

void pd_auth_mac(const uint8_t secret[PD_SECRET_BYTES], const char *purpose, const pd_control_hello *hello,
                 const uint8_t nonce[PD_NONCE_BYTES], uint8_t out[PD_SHA256_BYTES]) {
    uint8_t text[8 + sizeof *hello + PD_NONCE_BYTES] = {0};
    memcpy(text, purpose, strnlen(purpose, 8));
    memcpy(text + 8, hello, sizeof *hello);
    memcpy(text + 8 + sizeof *hello, nonce, PD_NONCE_BYTES);
    pd_hmac(secret, PD_SECRET_BYTES, text, sizeof text, out);
}

/* ---- secrets ----------------------------------------------------------------------------------------------------- */

pd_status pd_control_secret_load(const char *path, uint8_t secret[PD_SECRET_BYTES]) {
    uint8_t text[SECRET_FILE_BYTES];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    int error = errno;
    bool known = fd >= 0 && !fstat(fd, &st);
    if (fd >= 0) close(fd);
    if (n < 0 || !known)
        return pd_fail(PD_E_DIST, "control: cannot read PYDIST_SECRET_FILE %s: %s", path, strerror(error));
    if (st.st_mode & 077)
        return pd_fail(PD_E_DIST, "control: others may read PYDIST_SECRET_FILE %s: mode %03o (expected 600)", path,
                       (unsigned)st.st_mode & 0777);
    ssize_t bytes = n;
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--; /* editors disagree about the last line's end */
    if (bytes < PD_SECRET_BYTES || n < PD_SECRET_BYTES / 2) /* random bytes may end like a line */
        return pd_fail(PD_E_DIST, "control: PYDIST_SECRET_FILE %s has %zd bytes (expected at least %d random ones)",
                       path, n, PD_SECRET_BYTES);
    pd_sha256 s;
    pd_sha256_init(&s);
    pd_sha256_add(&s, text, (size_t)n);
    pd_sha256_end(&s, secret);
    explicit_bzero(text, sizeof text);
    return PD_OK;
}

pd_status pd_control_secret_file(uint8_t secret[PD_SECRET_BYTES], bool *found) {
    const char *path = pd_flags_get()->SECRET_FILE;
    memset(secret, 0, PD_SECRET_BYTES);
    *found = *path;
    return *found ? pd_control_secret_load(path, secret) : PD_OK;
}

pd_status pd_control_secret_read(int fd, uint8_t secret[PD_SECRET_BYTES]) {
    ssize_t n;
    bool found;
    if (fd < 0) {
        PD_TRY(pd_control_secret_file(secret, &found));
        if (found || pd_flags_get()->INSECURE) return PD_OK;
        return pd_fail(PD_E_DIST, "control: no secret: neither a descriptor from a launcher nor PYDIST_SECRET_FILE");
    }
    do n = pread(fd, secret, PD_SECRET_BYTES, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == ESPIPE) { /* a pipe: at most one worker can read it */
        size_t got = 0;
        do {
            n = read(fd, secret + got, PD_SECRET_BYTES - got);
            if (n > 0) got += (size_t)n;
        } while (got < PD_SECRET_BYTES && (n > 0 || (n < 0 && errno == EINTR)));
        n = (ssize_t)got;
    }
    int error = errno;
    if (fd > STDERR_FILENO) close(fd);
    if (n == PD_SECRET_BYTES) return PD_OK;
    return pd_fail(PD_E_DIST, "control: cannot read the secret from descriptor %d: %s", fd,
                   n < 0 ? strerror(error) : "too short");
}
