/* Messages between ranks that share no memory: memory that is mirrored, so that the algorithms run as on one host.

   Every rank has private memory of the size of everybody's part (board, slots, shares). What a peer will read of ours
   is sent to it with the place where it would look for it; arriving bytes go straight there. A word (a line's sequence
   number, the step) follows what it announces in the same order, so whoever sees it has the rest. The gates of the
   pipeline are its flow control: a slot is written again only after all have read it.

     frame = {at, bytes, value, 0} + bytes of data;  bytes 0: the word at `at` becomes `value`

   Sent from where the data lies and received to where they are read: one copy less on each side than through a message.
   A collective's first gate costs every rank W - 1 small messages, which carry the identity and small data.

   Two kinds: tcp (a connection per pair) and mpi (tcp.c, mpi.c). All of it under the group's lock, but wake. Nothing
   here blocks except make and wait. */
#ifndef PD_COMM_MESH_H
#define PD_COMM_MESH_H

#include "comm/link/identity.h"
#include "comm/link/link.h"

typedef struct pd_mesh pd_mesh;

typedef struct pd_mesh_plan {
    pd_link *link;
    int rank, size;      /* in the group; peers are numbered so */
    const int *ranks;    /* of the link, by rank of the group; NULL: the same */
    uint32_t epoch;
    char *const *parts;  /* by rank: where its bytes arrive; our own is not used. Must outlive the mesh */
    size_t bytes;        /* of each */
    bool near;           /* all ranks are on this machine: loopback serves */
    int64_t timeout_ns;
    const atomic_uint *stop; /* not 0: give up connecting */
} pd_mesh_plan;

typedef struct pd_mesh_frame {
    uint32_t at, bytes, value, zero;
} pd_mesh_frame;

#define PD_MESH_QUEUE \
    16 /* a round sends a piece, a share and a word, a start besides a line; p2p 3 frames and a word */

typedef struct pd_mesh_kind {
    const char *name;
    /* [new] connected to all other ranks; collective. */
    pd_status (*make)(const pd_mesh_plan *plan, pd_mesh **out);
    void (*free)(pd_mesh *m);
    /* The data must stay until flush has said true. */
    void (*queue)(pd_mesh *m, int peer, pd_mesh_frame frame, const void *data);
    bool (*flush)(pd_mesh *m);             /* true: nothing is left to send */
    void (*pump)(pd_mesh *m, int peer);    /* takes what has come from this peer */
    void (*wait)(pd_mesh *m, int64_t ns);  /* until something can be sent or taken, or woken, and does that */
    void (*wake)(pd_mesh *m);
    pd_status (*check)(const pd_mesh *m);  /* the error that ended it: a failed call, garbage from a peer */
    /* When its connection was lost (ns, monotonic), if we wait for it or it did not get all that we queued; else 0. */
    int64_t (*lost)(const pd_mesh *m, int peer, bool we_wait);
    /* NULL, or the messages' own all_reduce, for order="fast". room: where the data are to lie, *bytes at most; NULL
       where it does not know this dtype and op (the same on all ranks). reduce: in place; flush says
       when it is done. */
    void *(*room)(const pd_mesh *m, pd_dtype dtype, pd_reduce op, size_t *bytes);
    void (*reduce)(pd_mesh *m, int64_t count, pd_dtype dtype, pd_reduce op);
} pd_mesh_kind;

struct pd_mesh { /* begins every kind's own */
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
