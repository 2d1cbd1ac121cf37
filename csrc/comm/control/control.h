/* The control plane: one supervisor connection per rank, apart from the data
   (docs/internals/design.md, "Control plane").

   The SERVER is one C thread in the launcher, or in rank 0 where there is none. It keeps the store, and tells every
   rank what happened to the others: left, raised, died, fell silent. It listens on an abstract unix socket, so nothing
   lies in a file system, and on request on a tcp socket for the ranks of other hosts. It never blocks on a connection:
   a stranger, garbage or a silent peer costs one descriptor until the handshake deadline. The CLIENT is one C thread
   per rank process; it never takes the GIL, so a rank that computes is not a silent one.

   Who may come in: on the unix socket both sides see through SO_PEERCRED that the other has our user id. On both
   sockets each proves that it knows the job's secret (HMAC over fresh random numbers of both sides: the secret itself
   never travels). A connection that closes without goodbye is a dead rank. This authenticates connections, not traffic.

   Addresses: "@name" (unix) and "host:port" or "[v6]:port" (tcp). */
#ifndef PD_COMM_CONTROL_H
#define PD_COMM_CONTROL_H

#include "comm/link/link.h"

#define PD_SECRET_BYTES 32
#define PD_ADDRESS_BYTES 300

typedef struct pd_control_server pd_control_server;

typedef struct pd_control_options {
    const char *name;      /* of the unix socket; NULL: random */
    const char *listen;    /* "host:port" of the tcp socket, port 0: any; NULL: none */
    bool in_rank;          /* rank 0 of this job hosts the server, not a launcher */
    const uint8_t *secret; /* PD_SECRET_BYTES; NULL: that of PYDIST_SECRET_FILE for tcp and in_rank, else random */
} pd_control_options;

/* [new] a listening server for ranks 0..world-1 and its thread. NULL o: zeros. Ended by pd_control_server_free, which
   closes every connection: ranks that still live fail. PD_E_DIST: the address is taken (by whom), or tcp beyond
   loopback is asked for without a common secret and without PYDIST_INSECURE. */
pd_status pd_control_server_new(int world, const pd_control_options *o, pd_control_server **out);
void pd_control_server_free(pd_control_server *s);
const char *pd_control_address(const pd_control_server *s); /* "@pydist-..." [borrowed from s], for PYDIST_CONTROL */
const char *pd_control_tcp_address(const pd_control_server *s); /* "127.0.0.1:29500" [borrowed from s], or "" */
/* A memfd with the secret, close-on-exec, owned by s: workers inherit it and read it at offset 0 (PYDIST_SECRET_FD). */
int pd_control_secret_fd(const pd_control_server *s);
/* The launcher's waitpid said how this rank ended: "died: SIGKILL (out of memory?)". Without it
   the server asks the kernel. A rank that has left stays one that has left. */
void pd_control_dead(pd_control_server *s, int rank, const char *how);
/* Nothing was heard from this rank for PYDIST_SILENT seconds: to the others it is dead; its process may be stopped. */
bool pd_control_silent(pd_control_server *s, int rank);
/* The first rank that reported an exception, or -1. *traceback [new] pd_free. */
pd_status pd_control_first_raised(pd_control_server *s, int *rank, char **traceback);
/* Waits until every rank that came has left or died. PD_E_TIMEOUT names those that have not; PD_E_PYTHON. */
pd_status pd_control_drain(pd_control_server *s, double timeout, const pd_hooks *hooks);

/* Reads the secret from an inherited descriptor and closes it; negative: from PYDIST_SECRET_FILE. */
pd_status pd_control_secret_read(int fd, uint8_t secret[PD_SECRET_BYTES]);
/* The secret in a file: its SHA-256, line ends at its end left out. PD_E_DIST: it cannot be read, others may read it,
   or it has less than PD_SECRET_BYTES. */
pd_status pd_control_secret_load(const char *path, uint8_t secret[PD_SECRET_BYTES]);
/* The secret that ranks without a launcher share: PYDIST_SECRET_FILE's, else zeros (*found false). */
pd_status pd_control_secret_file(uint8_t secret[PD_SECRET_BYTES], bool *found);
/* [new] this rank's link over the server at `address`. Takes at most `timeout` seconds; `patient`: a server that is not
   there yet is waited for. PD_E_DIST: no server there, another user's, refused (wrong secret or world, rank already
   here). */
pd_status pd_control_connect(const char *address, const uint8_t secret[PD_SECRET_BYTES], int rank, int world,
                             double timeout, bool patient, const pd_hooks *hooks, pd_link **out);

/* [new] this rank's link without a launcher; in rank 0 also the [new] server (NULL elsewhere), which must live until
   the others have left (pd_control_drain).
     tcp://host:port   rank 0's host. Where that is this host: a unix socket named by user id and port, and besides, for
                       other hosts, tcp at that address if there is a secret, or PYDIST_INSECURE is set.
     file://path       a file that all ranks see, on one host; made where it is missing
     job://name        the ranks of one host that were told this name
   secret: PD_SECRET_BYTES that all of them know already; NULL: PYDIST_SECRET_FILE's. */
pd_status pd_control_join(const char *url, const uint8_t *secret, int rank, int world, double timeout,
                          const pd_hooks *hooks, pd_link **out, pd_control_server **server);

#endif
