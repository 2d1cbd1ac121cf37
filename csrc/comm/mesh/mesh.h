/* Messages between ranks that share no memory. They mirror memory, so that the algorithms run as on one host.

   Every rank has private memory of the size of each other rank's part (board, slots, shares). What a peer will read of
   ours is sent to it together with the place where it will look, and arriving bytes go directly there. A word (a line's
   sequence number, the step) is sent after the bytes that it announces, so a rank that sees the word has the bytes. The
   pipeline's gates are the flow control: a slot is written again only after all ranks have read it.

     frame = {at, bytes, value, 0} + bytes of data;  bytes 0: the word at `at` becomes `value`

   Data is sent from where it is and received where it is read, which saves a copy on each side. A collective's first
   gate costs every rank W - 1 small messages, which carry the identity and small data.

   There are two kinds: tcp (a connection for each pair, tcp.c) and mpi (mpi.c). All functions but wake need the group's
   lock. None of them blocks except make and wait. */
#ifndef PD_COMM_MESH_H
#define PD_COMM_MESH_H

#include "comm/link/identity.h"
#include "comm/link/link.h"

typedef struct pd_mesh pd_mesh;

typedef struct pd_mesh_plan {
    pd_link *link;
    int rank, size;      /* in the group; peers are ranks of the group */
    const int *ranks;    /* the link's rank of each rank of the group; NULL: they are equal */
    uint32_t epoch;
    char *const *parts;  /* by rank: where its bytes arrive, our own is not used; must outlive the mesh */
    size_t bytes;        /* of each part */
    bool near;           /* all ranks are on this machine, so loopback will do */
    int64_t timeout_ns;
    const atomic_uint *stop; /* if not 0, connecting is given up */
} pd_mesh_plan;

typedef struct pd_mesh_frame {
    uint32_t at, bytes, value, zero;
} pd_mesh_frame;

#define PD_MESH_QUEUE \
    16 /* a round sends a piece, a share and a word, the first one also a line; p2p 3 frames and a word */

typedef struct pd_mesh_kind {
    const char *name;
    /* [new] a mesh connected to all other ranks, which call it, too. */
    pd_status (*make)(const pd_mesh_plan *plan, pd_mesh **out);
    void (*free)(pd_mesh *m);
    /* Queues a frame. The data must stay until flush has returned true. */
    void (*queue)(pd_mesh *m, int peer, pd_mesh_frame frame, const void *data);
    bool (*flush)(pd_mesh *m);             /* true: nothing is left to send */
    void (*pump)(pd_mesh *m, int peer);    /* receives what has come from this peer */
    void (*wait)(pd_mesh *m, int64_t ns);  /* until something can be sent or received, and does that; wake ends it */
    void (*wake)(pd_mesh *m);
    pd_status (*check)(const pd_mesh *m);  /* the error that has ended it, such as garbage from a peer */
    /* When the connection to this peer was lost (ns), if we wait for it or it has not got all that we queued; else
       0. */
    int64_t (*lost)(const pd_mesh *m, int peer, bool we_wait);
    /* NULL, or the mesh's own all_reduce, for order="fast". room: where to put the data, *bytes at most; NULL: it
       cannot do this dtype and op, on any rank. reduce: starts it, in place; flush says when it is done. */
    void *(*room)(const pd_mesh *m, pd_dtype dtype, pd_reduce op, size_t *bytes);
    void (*reduce)(pd_mesh *m, int64_t count, pd_dtype dtype, pd_reduce op);
} pd_mesh_kind;

struct pd_mesh { /* the first member of every kind's own struct */
    const pd_mesh_kind *kind;
};

extern const pd_mesh_kind pd_mesh_tcp, pd_mesh_mpi;

static inline void pd_mesh_free(pd_mesh *m) {
    if (m) m->kind->free(m);
}
/* Queues bytes or a word. */
static inline void pd_mesh_send(pd_mesh *m, int peer, size_t at, const void *data, size_t bytes) {
    if (bytes) m->kind->queue(m, peer, (pd_mesh_frame){.at = (uint32_t)at, .bytes = (uint32_t)bytes}, data);
}
static inline void pd_mesh_store(pd_mesh *m, int peer, size_t at, uint32_t value) {
    m->kind->queue(m, peer, (pd_mesh_frame){.at = (uint32_t)at, .value = value}, NULL);
}
static inline bool pd_mesh_flush(pd_mesh *m) { return m->kind->flush(m); }
static inline void pd_mesh_pump(pd_mesh *m, int peer) { m->kind->pump(m, peer); }
static inline void pd_mesh_wait(pd_mesh *m, int64_t ns) { m->kind->wait(m, ns); }
static inline void pd_mesh_wake(pd_mesh *m) { m->kind->wake(m); }
static inline pd_status pd_mesh_check(const pd_mesh *m) { return m->kind->check(m); }
static inline int64_t pd_mesh_lost(const pd_mesh *m, int peer, bool we_wait) { return m->kind->lost(m, peer, we_wait); }

#endif
