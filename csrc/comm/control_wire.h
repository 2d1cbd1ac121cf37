/* What the two ends of the control plane say. All payloads are fixed structs of the host's byte order, then bytes. */
#ifndef PD_COMM_CONTROL_WIRE_H
#define PD_COMM_CONTROL_WIRE_H

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "comm/control.h"
#include "comm/wire.h"

enum {
    PD_CONTROL_HELLO = 1, /* client: pd_control_hello */
    PD_CONTROL_WELCOME,   /* server: its half of the secret */
    PD_CONTROL_REFUSED,   /* server: text; then it closes */
    PD_CONTROL_CALL,      /* client: pd_control_call + key + data, maybe a descriptor */
    PD_CONTROL_REPLY,     /* server, same id: pd_control_reply + data or error text, maybe a descriptor */
    PD_CONTROL_NEWS,      /* both ways: pd_news + text */
};

#define PD_SECRET_HALF (PD_SECRET_BYTES / 2)
#define PD_CONTROL_TEXT 65536 /* longest traceback that is passed on; its end is kept */
#define PD_CONTROL_PAYLOAD (64 + PD_STORE_KEY + PD_STORE_VALUE)

typedef struct pd_control_hello {
    uint8_t half[PD_SECRET_HALF];
    int32_t rank, world, pid;
} pd_control_hello;

typedef struct pd_control_call {
    uint32_t verb, key_bytes, bytes, pad;
    int64_t amount, timeout_ns;
} pd_control_call;

typedef struct pd_control_reply {
    int64_t amount;
    int32_t status; /* not PD_OK: the bytes that follow are the error's text */
    uint32_t pad;
} pd_control_reply;

_Static_assert(PD_STORE_KEY + sizeof(pd_control_call) < PD_CONTROL_PAYLOAD - PD_STORE_VALUE, "payload bound");

/* "@name" to an abstract address; 0 where the text is none. */
static inline socklen_t pd_control_sockaddr(const char *text, struct sockaddr_un *to) {
    size_t n = strlen(text);
    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (n < 2 || text[0] != '@' || n > sizeof to->sun_path) return 0;
    memcpy(to->sun_path + 1, text + 1, n - 1); /* abstract: the first byte is 0 and the name has no end mark */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

/* Whether the process at the other end runs under our user id, and its pid. */
static inline bool pd_control_same_user(int fd, int *pid, int *uid) {
    struct ucred cred = {0};
    socklen_t n = sizeof cred;
    *pid = *uid = -1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n)) return false;
    *pid = cred.pid;
    *uid = (int)cred.uid;
    return cred.uid == geteuid();
}

/* Compares without telling by its time where the first difference is. */
static inline bool pd_control_same_secret(const uint8_t *a, const uint8_t *b) {
    unsigned diff = 0;
    for (int i = 0; i < PD_SECRET_HALF; i++) diff |= (unsigned)(a[i] ^ b[i]);
    return diff == 0;
}

#endif
