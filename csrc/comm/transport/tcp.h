/* Tcp between ranks of several hosts: memory that is mirrored, so that the algorithms run as on one host.

   Every rank has private memory of the size of everybody's part (board, slots, shares). What a peer will read of ours is
   sent to it with the place where it would look for it; arriving bytes go straight there. A word (a line's sequence
   number, the step) follows what it announces on the same connection, so whoever sees it has the rest. The gates of the
   pipeline are its flow control: a slot is written again only after all have read it.

     frame = {at, bytes, value, 0} + bytes of data;  bytes 0: the word at `at` becomes `value`

   Sent from where the data lies and received to where they are read: one copy less on each side than through a message.
   W ranks: 1 connection per pair; a collective's first gate costs every rank W - 1 small messages, which carry the
   identity and small data.

   All of it under the group's lock, but pd_mesh_wake. Nothing here blocks except pd_mesh_new and pd_mesh_wait. */
#ifndef PD_COMM_TCP_H
#define PD_COMM_TCP_H

#include "comm/link.h"

typedef struct pd_mesh pd_mesh;

typedef struct pd_mesh_plan {
    pd_link *link;
    uint32_t epoch;
    char *const *parts;  /* by rank: where its bytes arrive; our own is not used. Must outlive the mesh */
    size_t bytes;        /* of each */
    bool near;           /* all ranks are on this machine: loopback serves */
    int64_t timeout_ns;
    const atomic_uint *stop; /* not 0: give up connecting */
} pd_mesh_plan;

/* [new] connected to all other ranks; collective. Both ends prove that they know the job's token. */
pd_status pd_mesh_new(const pd_mesh_plan *plan, pd_mesh **out);
void pd_mesh_free(pd_mesh *m);
/* Queues bytes or a word. The data must stay until pd_mesh_flush has said true. */
void pd_mesh_send(pd_mesh *m, int peer, size_t at, const void *data, size_t bytes);
void pd_mesh_store(pd_mesh *m, int peer, size_t at, uint32_t value);
bool pd_mesh_flush(pd_mesh *m);             /* true: nothing is left to send */
void pd_mesh_pump(pd_mesh *m, int peer);    /* takes what has come from this peer */
void pd_mesh_wait(pd_mesh *m, int64_t ns);  /* until something can be sent or taken, or woken, and does that */
void pd_mesh_wake(pd_mesh *m);
pd_status pd_mesh_check(const pd_mesh *m);  /* the error that ended it: a failed call, garbage from a peer */
/* When its connection was lost (ns, monotonic), where we wait for it or it did not get all that we queued; else 0. */
int64_t pd_mesh_lost(const pd_mesh *m, int peer, bool we_wait);

#endif
