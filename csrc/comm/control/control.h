/* The control plane: one supervisor connection per rank, apart from the data
   (docs/internals/design.md, "Control plane").

   The SERVER is a C thread in the launcher, or in rank 0 if there is no launcher. It keeps the store, and tells every
   rank what happened to the others: left, raised, died, fell silent. It listens on an abstract unix socket, which
   leaves no file, and on request also on a tcp socket for ranks of other hosts. It never blocks on a connection: a
   stranger, garbage or a silent peer costs one descriptor until the handshake's deadline. The CLIENT is a C thread in
   each rank's process. It never takes the GIL, so a rank that computes is not silent.

   Authentication: on the unix socket both sides check by SO_PEERCRED that the other one has their user id. On both
   sockets each side proves that it knows the job's secret, by an HMAC over fresh random numbers of both sides; the
   secret itself is never sent. A connection that closes without a goodbye means that the rank is dead. Connections are
   authenticated, traffic is not.

   Addresses: "@name" (unix) and "host:port" or "[v6]:port" (tcp). */
#ifndef PD_COMM_CONTROL_H
#define PD_COMM_CONTROL_H

#include "comm/link/link.h"

#define PD_SECRET_BYTES 32
#define PD_ADDRESS_BYTES 300

typedef struct pd_control_server pd_control_server;

typedef struct pd_control_options {
    const char *name;      /* of the unix socket; NULL: a random one */
    const char *listen;    /* "host:port" of the tcp socket, port 0: any; NULL: no tcp */
    bool in_rank;          /* a rank of this job hosts the server, not a launcher */
    int host_rank;         /* which one */
    bool open;             /* ranks come and go; one that has left cannot come again */
    const uint8_t *secret; /* PD_SECRET_BYTES; NULL: PYDIST_SECRET_FILE's for tcp and in_rank, else random */
} pd_control_options;

/* [new] a listening server for ranks 0..world-1, with its thread. o may be NULL: zeros. pd_control_server_free ends it
   and closes every connection, so ranks that are still alive fail. PD_E_DIST: the address is in use (by whom), or
   `listen` is beyond loopback without a common secret and without PYDIST_INSECURE. */
pd_status pd_control_server_new(int world, const pd_control_options *o, pd_control_server **out);
void pd_control_server_free(pd_control_server *s);
const char *pd_control_address(const pd_control_server *s); /* "@pydist-..." [borrowed from s], for PYDIST_CONTROL */
const char *pd_control_tcp_address(const pd_control_server *s); /* "127.0.0.1:29500" [borrowed from s], or "" */
/* A memfd with the secret, close-on-exec, owned by s: workers inherit it and read it at offset 0 (PYDIST_SECRET_FD). */
int pd_control_secret_fd(const pd_control_server *s);
/* Tells the server how this rank ended, by the launcher's waitpid: "died: SIGKILL (out of memory?)". Without it the
   server asks the kernel. If the rank had left before, nothing changes. */
void pd_control_dead(pd_control_server *s, int rank, const char *how);
/* Whether nothing was heard from this rank for PYDIST_SILENT seconds. The others count it as dead, though its process
   may only be stopped. */
bool pd_control_silent(pd_control_server *s, int rank);
/* The first rank that reported an exception, or -1. *traceback [new] pd_free. */
pd_status pd_control_first_raised(pd_control_server *s, int *rank, char **traceback);
/* Waits until every rank that has joined has left or died. PD_E_TIMEOUT names those that have not; or PD_E_PYTHON. */
pd_status pd_control_drain(pd_control_server *s, double timeout, const pd_hooks *hooks);

/* Reads the secret from an inherited descriptor and closes that. fd < 0: reads it from PYDIST_SECRET_FILE. */
pd_status pd_control_secret_read(int fd, uint8_t secret[PD_SECRET_BYTES]);
/* The secret of a file: the SHA-256 of its contents without line ends at the end. PD_E_DIST: it cannot be read, other
   users may read it, or it has fewer than PD_SECRET_BYTES. */
pd_status pd_control_secret_load(const char *path, uint8_t secret[PD_SECRET_BYTES]);
/* The secret of ranks without a launcher: PYDIST_SECRET_FILE's, or zeros (*found false). */
pd_status pd_control_secret_file(uint8_t secret[PD_SECRET_BYTES], bool *found);
/* [new] this rank's link by the server at `address`. Takes at most `timeout` seconds; `patient`: waits for a server
   that is not there yet. PD_E_DIST: there is no server, it belongs to another user, or it refuses this rank (wrong
   secret or world, or the rank is there already). */
pd_status pd_control_connect(const char *address, const uint8_t secret[PD_SECRET_BYTES], int rank, int world,
                             double timeout, bool patient, const pd_hooks *hooks, pd_link **out);

/* [new] this rank's link without a launcher; in rank 0 also the [new] server (NULL elsewhere), which must live until
   the others have left (pd_control_drain).
     tcp://host:port   rank 0's host. On that host ranks use a unix socket named by user id and port. For other hosts
                       there is tcp at that address, if there is a secret or PYDIST_INSECURE is set.
     file://path       a file that all ranks of one host see; it is made if it is missing
     job://name        the ranks of one host that were given this name
     rpc+<one of these>   the same place for another job
     open+<one of these>  the same place for an open job, where any of `world` ranks may come, and go. The one that
                          comes when nobody is there hosts the server
   secret: PD_SECRET_BYTES that all of them know already; NULL: PYDIST_SECRET_FILE's. */
pd_status pd_control_join(const char *url, const uint8_t *secret, int rank, int world, double timeout,
                          const pd_hooks *hooks, pd_link **out, pd_control_server **server);

#endif
