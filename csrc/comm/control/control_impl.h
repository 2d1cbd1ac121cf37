/* Private to the control server: server.c (its life and loop), handshake.c (who is let in), peers.c (who is here, and
   how they end) and store_server.c. All of it runs in the server's thread or under its lock. */
#ifndef PD_COMM_CONTROL_IMPL_H
#define PD_COMM_CONTROL_IMPL_H

#include <poll.h>
#include <pthread.h>

#include "comm/control/protocol.h"
#include "comm/link/kv.h"

typedef struct pd_conn {
    pd_wire wire;
    struct pd_conn *next;
    int rank; /* -1: a stranger */
    int pid;  /* of a peer on this host */
    bool tcp, greeted;
    int64_t deadline; /* of the handshake */
    int waiters;
    bool closing; /* close once everything queued is sent */
    bool late;   /* a stranger whose deadline has passed */
    pd_control_hello hello;
    uint8_t nonce[PD_NONCE_BYTES]; /* our random number in the handshake */
    char from[80];                 /* "pid 12", "10.0.0.3:40000" */
} pd_conn;

typedef enum pd_peer_state { PD_PEER_ABSENT, PD_PEER_HERE, PD_PEER_DYING, PD_PEER_LEFT, PD_PEER_DEAD } pd_peer_state;

typedef struct pd_peer {
    pd_peer_state state;
    pd_conn *conn;
    int pid, pidfd;
    int64_t deadline; /* of a DYING one: when to stop waiting for an explanation */
    int64_t heard;    /* when the last byte came from it */
    bool warned;      /* a warning about its silence was written */
    bool silent;      /* counts as dead because of its silence, though its process may be there */
    bool told;        /* the others have been told that it raised or died */
    pd_link_event event;     /* what they were told, for ranks that join later */
    char *text;
} pd_peer;

typedef struct pd_waiter pd_waiter;

enum { PD_LISTEN_UNIX, PD_LISTEN_TCP, PD_LISTENS };

struct pd_control_server {
    pd_os_thread thread;
    pthread_mutex_t lock; /* guards everything below; the thread holds it except while it polls */
    pthread_cond_t change; /* a rank has left or died */
    int world, listening[PD_LISTENS], wake, secret_fd, host_rank;
    bool open;
    uint32_t forks;
    bool ending, warned;
    uint8_t secret[PD_SECRET_BYTES], token[PD_TOKEN_BYTES];
    char address[PD_ADDRESS_BYTES], tcp_address[PD_ADDRESS_BYTES];
    pd_conn *conns;
    int strangers[PD_LISTENS], logged;
    pd_waiter *waiters;
    pd_kv kv;
    struct pollfd *polls;
    size_t polls_cap;
    int64_t pinged, looked; /* times */
    int64_t shut;           /* nobody is accepted until then, since descriptors or memory had run out */
    int raised;
    char *traceback;
    pd_fork_watch watch[PD_LISTENS];
    pd_peer peers[];
};

/* server.c */
void pd_control_send(pd_conn *c, int kind, uint32_t id, const void *head, size_t head_bytes, const void *body, size_t n,
                     int handle);
/* Handles all frames that this connection has sent. False: it has ended. */
bool pd_control_serve(pd_control_server *s, pd_conn *c, int64_t now);
static inline int pd_conn_listen(const pd_conn *c) { return c->tcp ? PD_LISTEN_TCP : PD_LISTEN_UNIX; }

/* handshake.c */
pd_status pd_handshake_open(pd_control_server *s, const pd_control_options *o); /* secrets and listening sockets */
void pd_handshake_accept(pd_control_server *s, int which, int64_t now);
bool pd_handshake_is_open(const pd_control_server *s, int which, int64_t now); /* false: new connections have to wait */
/* The deadline of a stranger; it is earlier if other connections wait. */
int64_t pd_handshake_deadline(const pd_control_server *s, const pd_conn *c);
void pd_handshake_refused(pd_control_server *s, const pd_conn *c, const char *why); /* logs it, but not too often */
/* Handles a frame of a stranger. NULL: it is fine; else what is wrong with it. */
const char *pd_handshake_frame(pd_control_server *s, pd_conn *c, int64_t now);

/* peers.c */
void pd_peer_welcome(pd_control_server *s, pd_conn *c, int64_t now); /* it has proved who it is */
const char *pd_peer_event(pd_control_server *s, pd_conn *c);
void pd_peer_declare_dead(pd_control_server *s, int rank, const char *how);
void pd_peer_unpidfd(pd_peer *p);
void pd_peer_gone(pd_control_server *s, int rank, int64_t now); /* its connection closed */
void pd_peers_deaths(pd_control_server *s, const struct pollfd *polls, int64_t now);
void pd_peers_heartbeat(pd_control_server *s, int64_t now);

/* store_server.c */
void pd_control_store_init(pd_control_server *s);
const char *pd_control_store_call(pd_control_server *s, pd_conn *c, int64_t now);
void pd_control_store_forget(pd_control_server *s, const pd_conn *c); /* drops its waits; NULL: all waits */
void pd_control_store_timeouts(pd_control_server *s, int64_t now);
int64_t pd_control_store_deadline(const pd_control_server *s); /* when the first wait ends */

static inline int64_t pd_earlier(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
