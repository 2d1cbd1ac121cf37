#include "comm/net/listen.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "comm/net/dial.h"

pd_status pd_listen_open(bool near, int *out, int *port) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = {0};
    socklen_t n = sizeof at.v6;
    int off = 0;
    int fd = near ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) { /* both versions of the protocol */
        at.v6.sin6_family = AF_INET6;
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    } else {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        at.v4.sin_family = AF_INET;
        at.v4.sin_addr.s_addr = htonl(near ? INADDR_LOOPBACK : INADDR_ANY);
        n = sizeof at.v4;
    }
    *out = fd;
    if (fd < 0 || bind(fd, &at.any, n) || listen(fd, 1024) || getsockname(fd, &at.any, &n))
        return pd_fail(PD_E_OS, "tcp: cannot listen: %s", strerror(errno));
    *port = ntohs(at.any.sa_family == AF_INET6 ? at.v6.sin6_port : at.v4.sin_port);
    return PD_OK;
}

static size_t add_address(const struct sockaddr *a, int port, char *text, size_t n, size_t size) {
    char address[80];
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = {0};
    socklen_t bytes = a->sa_family == AF_INET6 ? sizeof at.v6 : sizeof at.v4;
    memcpy(&at, a, bytes);
    if (a->sa_family == AF_INET6) at.v6.sin6_port = htons((uint16_t)port);
    else at.v4.sin_port = htons((uint16_t)port);
    pd_auth_text(&at.any, bytes, address, sizeof address);
    if (n + strlen(address) + 2 < size) n += (size_t)snprintf(text + n, size - n, "%s ", address);
    return n;
}

pd_status pd_listen_addresses(bool near, const char *here, int port, char *text, size_t size) {
    size_t n = 0;
    pd_face faces[PD_DIAL_FACES];
    int count = 0;
    char *colon;
    *text = 0;
    if (!near && *here) {
        n = (size_t)snprintf(text, size, "%s", here);
        if ((colon = strrchr(text, ':'))) n = (size_t)(colon - text);
        n += (size_t)snprintf(text + n, size - n, ":%d ", port);
    }
    if (!near) PD_TRY(pd_dial_faces(faces, &count));
    for (int i = 0; i < count; i++) n = add_address((struct sockaddr *)&faces[i].address, port, text, n, size);
    snprintf(text + n, size - n, "127.0.0.1:%d", port);
    return PD_OK;
}

void pd_listen_prove(const uint8_t *token, size_t token_bytes, const char *who, const void *greeting, size_t bytes,
                     const uint8_t nonce[PD_NONCE_BYTES], uint8_t out[PD_SHA256_BYTES]) {
    uint8_t text[8 + PD_GREETING_BYTES + PD_NONCE_BYTES] = {0};
    memcpy(text, who, strlen(who));
    memcpy(text + 8, greeting, bytes);
    memcpy(text + 8 + bytes, nonce, PD_NONCE_BYTES);
    pd_hmac(token, token_bytes, text, 8 + bytes + PD_NONCE_BYTES, out);
}
