/* How bytes move between ranks.

   A transport lets every rank address the others' memory. The owner allocates a region, its handle travels through the
   store, and peers attach it. The algorithms (algo/) work on such regions only.

   Between hosts the peers' regions are private mirrors, which a mesh (mesh.h) fills from the network. */
#ifndef PD_COMM_TRANSPORT_H
#define PD_COMM_TRANSPORT_H

#include <stdbool.h>

#include "base/status.h"

typedef struct pd_region {
    void *ptr;
    size_t bytes;
    intptr_t handle; /* what the store passes on: a memfd (shm) or a block (inproc) */
} pd_region;

typedef struct pd_spot { /* names a region for ranks of the same machine that no handle reaches */
    int32_t pid, number;
    uint64_t device, inode;
} pd_spot;

typedef struct pd_transport {
    const char *name;
    /* NULL: it has no spots. spot: called before `seal`. open: [new] the region; false: this process cannot reach
       it. */
    void (*spot)(const pd_region *own, pd_spot *out);
    bool (*open)(const pd_spot *p, size_t bytes, pd_region *out);
    /* [new] zeroed, page-aligned memory of this rank. Without enough memory it is PD_E_MEMORY now, never a signal
       later. */
    pd_status (*alloc)(size_t bytes, pd_region *out);
    /* The same, of which only what is touched takes memory; if there is none then, the kernel ends a process. NULL:
       alloc does that. */
    pd_status (*alloc_sparse)(size_t bytes, pd_region *out);
    /* [new] a peer's memory. Owns the handle from now on, also if it fails. */
    pd_status (*attach)(intptr_t handle, size_t bytes, pd_region *out);
    void (*seal)(pd_region *own);   /* drops the handle, once all peers have attached */
    void (*detach)(pd_region *);    /* our own region or a peer's; a region of zeros is allowed */
    /* Keeps the owner's bytes at their address, but in memory that peers cannot reach. Does nothing if that is
       impossible. */
    void (*privatise)(pd_region *own);
} pd_transport;

/* For processes of one host: a memfd, which has no name, so a dead process leaves nothing behind. */
extern const pd_transport pd_transport_shm;
/* For threads of one process: plain counted memory. It cannot be privatised, since a late peer is one of our
   threads. */
extern const pd_transport pd_transport_inproc;

#endif
