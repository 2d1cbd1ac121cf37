/* The control plane of one host: one supervisor connection per rank, apart from the data (design 1.2).

   The SERVER is one C thread in the launcher. It listens on an abstract unix socket with a random name, so nothing lies
   in a file system, keeps the store, and tells every rank what happened to the others: left, raised, died. It never
   blocks on a connection: a stranger, garbage or a silent peer costs one descriptor until the handshake deadline. The
   CLIENT is one C thread per rank process; it never takes the GIL. Both see through SO_PEERCRED that the other has our
   user id before they send a byte; then each shows its half of the 32-byte secret. A connection that closes without
   goodbye is a dead rank.

   This authenticates connections, not traffic. Tcp for several hosts will be a second listening socket here: frames are
   a byte stream already; only descriptors need the unix one. */
#ifndef PD_COMM_CONTROL_H
#define PD_COMM_CONTROL_H

#include "comm/link.h"

#define PD_SECRET_BYTES 32
#define PD_ADDRESS_BYTES 40

typedef struct pd_control_server pd_control_server;

/* [new] a listening server for ranks 0..world-1 and its thread. Ended by pd_control_server_free, which closes every
   connection: ranks that still live fail with PD_E_DIST ("the launcher is gone"). */
pd_status pd_control_server_new(int world, pd_control_server **out);
void pd_control_server_free(pd_control_server *s);
const char *pd_control_address(const pd_control_server *s);   /* "@pydist-..." [borrowed from s], for PYDIST_CONTROL */
/* A memfd with the secret, close-on-exec, owned by s: workers inherit it and read it at offset 0 (PYDIST_SECRET_FD). */
int pd_control_secret_fd(const pd_control_server *s);
/* The launcher's waitpid said how this rank ended: "died: SIGKILL (out of memory?)". Without it
   the server asks the kernel. A rank that has left stays one that has left. */
void pd_control_dead(pd_control_server *s, int rank, const char *how);
/* The first rank that reported an exception, or -1. *traceback [new] pd_free. */
pd_status pd_control_first_raised(pd_control_server *s, int *rank, char **traceback);

/* Reads the secret from an inherited descriptor and closes it. */
pd_status pd_control_secret_read(int fd, uint8_t secret[PD_SECRET_BYTES]);
/* [new] this rank's link over the server at `address`. Waits at most `timeout` seconds. PD_E_DIST: no server there,
   another user's server, refused (wrong secret, wrong world, rank already here). */
pd_status pd_control_connect(const char *address, const uint8_t secret[PD_SECRET_BYTES], int rank, int world,
                             double timeout, const pd_hooks *hooks, pd_link **out);

#endif
