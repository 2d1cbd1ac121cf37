/* How a process lets others of its job connect: a socket, the addresses by which they may reach it, and the proof that
   each side shows to the other. */
#ifndef PD_COMM_LISTEN_H
#define PD_COMM_LISTEN_H

#include "base/sha256.h"
#include "comm/net/auth.h"

#define PD_GREET_NS INT64_C(5000000000) /* how long a guest may take to prove who it is */

/* [new] *fd: a non-blocking tcp socket that listens at any free port; near: on loopback only. */
pd_status pd_listen_open(bool near, int *fd, int *port);
/* Writes our addresses, parted by blanks, the most promising first: the one that the control server sees (`here`, may
   be ""), those of our interfaces, loopback. near: only loopback. */
pd_status pd_listen_addresses(bool near, const char *here, int port, char *text, size_t size);

#define PD_GREETING_BYTES 64 /* at most so long is a greeting */
/* The proof that `who` ("dial", "listen") must show: a MAC of the greeting and of the other side's random bytes. */
void pd_listen_prove(const uint8_t *token, size_t token_bytes, const char *who, const void *greeting, size_t bytes,
                     const uint8_t nonce[PD_NONCE_BYTES], uint8_t out[PD_SHA256_BYTES]);

#endif
