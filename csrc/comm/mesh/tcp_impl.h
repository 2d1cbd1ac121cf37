/* Private to the tcp mesh: tcp.c (moves bytes) and tcp_meet.c (connects). */
#ifndef PD_COMM_TCP_IMPL_H
#define PD_COMM_TCP_IMPL_H

#include <poll.h>

#include "comm/mesh/mesh.h"

#define PD_TCP_STAGE 16384

typedef struct pd_tcp_out {
    pd_mesh_frame head;
    const char *data;
    size_t sent; /* of head and data */
} pd_tcp_out;

typedef struct pd_tcp_peer {
    int fd; /* -1: not connected, or closed */
    pd_fork_watch watch;
    int64_t closed; /* when we noticed that its connection had ended */
    bool deaf;      /* it no longer receives */
    bool missed;    /* something of ours was not sent */
    pd_tcp_out out[PD_MESH_QUEUE];
    int queued;
    char *to;    /* where the rest of the frame goes */
    size_t left; /* its bytes */
    size_t begin, end; /* of the received bytes in the stage */
    char stage[PD_TCP_STAGE];
} pd_tcp_peer;

typedef struct pd_tcp {
    pd_mesh base;
    int rank, size, wake;
    const int *ranks; /* as in the plan */
    size_t bytes;
    char *const *parts;
    int sending; /* peers with something queued */
    bool missed; /* a peer did not get all, so no gate opens any more */
    pd_error error; /* kind PD_OK: none */
    struct pollfd *polls;
    pd_tcp_peer peers[];
} pd_tcp;

/* The number by which people know it: its rank in the job. */
static inline int pd_tcp_name(const pd_tcp *m, int peer) { return m->ranks ? m->ranks[peer] : peer; }
/* Connects to all others. Both ends of a connection prove that they know the job's token. */
pd_status pd_tcp_meet(const pd_mesh_plan *plan, pd_tcp *m);

#endif
