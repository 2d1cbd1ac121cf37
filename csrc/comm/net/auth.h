/* Who is at the other end of a socket: addresses, peers of our own user, proofs of a secret. */
#ifndef PD_COMM_AUTH_H
#define PD_COMM_AUTH_H

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "comm/control/protocol.h"

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
/* What only those can compute who know the secret: over a purpose, the client's hello and the server's number. */
void pd_auth_mac(const uint8_t secret[PD_SECRET_BYTES], const char *purpose, const pd_control_hello *hello,
                 const uint8_t nonce[PD_NONCE_BYTES], uint8_t out[PD_SHA256_BYTES]);

#endif
