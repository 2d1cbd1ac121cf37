/* How bytes move between ranks.

   A direct transport lets every rank address the others' memory: a region is allocated by its owner, its handle travels
   through the store, peers attach it. The algorithms (algo/) work on such regions alone.

   Between hosts the peers' regions are private mirrors, which a mesh (mesh.h) fills from the wire. */
#ifndef PD_COMM_TRANSPORT_H
#define PD_COMM_TRANSPORT_H

#include <stdbool.h>

#include "base/status.h"

typedef struct pd_region {
    void *ptr;
    size_t bytes;
    intptr_t handle; /* what the store passes on: a memfd (shm), a block (inproc) */
} pd_region;

typedef struct pd_spot { /* of a region, for ranks of its machine that no handle reaches */
    int32_t pid, number;
    uint64_t device, inode;
} pd_spot;

typedef struct pd_transport {
    const char *name;
    /* NULL: it has no spots. spot: before `seal`. open: [new], false where the spot is not there for us. */
    void (*spot)(const pd_region *own, pd_spot *out);
    bool (*open)(const pd_spot *p, size_t bytes, pd_region *out);
    /* [new] zeroed, page-aligned memory of this rank. No room: PD_E_MEMORY now, never a signal later. */
    pd_status (*alloc)(size_t bytes, pd_region *out);
    /* [new] a peer's memory; takes the handle, also on failure. */
    pd_status (*attach)(intptr_t handle, size_t bytes, pd_region *out);
    void (*seal)(pd_region *own);   /* all peers have attached: drops the handle */
    void (*detach)(pd_region *);    /* own or a peer's; a region of zeros is allowed */
    /* The owner's bytes stay at their address but the peers no longer reach them. Does nothing where impossible. */
    void (*privatise)(pd_region *own);
} pd_transport;

/* Processes of one host: memfd + fallocate, without names; a dead process leaves nothing. */
extern const pd_transport pd_transport_shm;
/* Threads of one process: plain counted memory. It cannot be privatised: a late peer is a thread of our own. */
extern const pd_transport pd_transport_inproc;

#endif
