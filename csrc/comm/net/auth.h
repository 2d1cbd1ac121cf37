/* Who is at the other end of a socket: addresses, and peers of our own user. */
#ifndef PD_COMM_AUTH_H
#define PD_COMM_AUTH_H

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/status.h"

#define PD_NONCE_BYTES 16 /* of a handshake: random, each side its own */

/* "@name" to an abstract address; 0 where the text is none. */
socklen_t pd_auth_unix(const char *text, struct sockaddr_un *to);
/* [new] freeaddrinfo: the addresses that "host:port" stands for. */
pd_status pd_auth_resolve(const char *address, struct addrinfo **out);
bool pd_auth_is_loopback(const struct sockaddr *a);
bool pd_auth_is_here(const struct addrinfo *a); /* an address of this host */
void pd_auth_text(const struct sockaddr *a, socklen_t n, char *text, size_t size); /* "127.0.0.1:29500" */

/* Whether the process at the other end of a unix socket runs under our user id, and its pid. */
bool pd_auth_same_user(int fd, int *pid, int *uid);
/* Compares without telling by its time where the first difference is. */
bool pd_auth_same(const uint8_t *a, const uint8_t *b, size_t n);

#endif
