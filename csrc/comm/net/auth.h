/* Who is at the other end of a socket: addresses, and peers of our own user. */
#ifndef PD_COMM_AUTH_H
#define PD_COMM_AUTH_H

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/status.h"

#define PD_NONCE_BYTES 16 /* the random number that each side sends in a handshake */

/* The abstract address of "@name"; 0: the text is no such name. */
socklen_t pd_auth_unix(const char *text, struct sockaddr_un *to);
/* [new] the addresses of "host:port", freed by freeaddrinfo. */
pd_status pd_auth_resolve(const char *address, struct addrinfo **out);
bool pd_auth_is_loopback(const struct sockaddr *a);
bool pd_auth_is_here(const struct addrinfo *a); /* whether it is an address of this host */
void pd_auth_text(const struct sockaddr *a, socklen_t n, char *text, size_t size); /* "127.0.0.1:29500" */

/* Whether the process at the other end of a unix socket has our user id; *pid, *uid: its ids. */
bool pd_auth_same_user(int fd, int *pid, int *uid);
/* Compares in constant time, so that the time does not tell where the first difference is. */
bool pd_auth_same(const uint8_t *a, const uint8_t *b, size_t n);

#endif
