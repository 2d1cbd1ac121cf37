/* Shared memory for parcels, in slabs. The sender makes a slab, passes its descriptor to a receiver once, and fills it
   again and again: a slab is free when its word `busy`, which counts the parcels in it, is 0. Only the sender takes a
   free slab, and only for one receiver at a time. What a rank has that counts as dead is not used again, since the rank
   may only have been stopped. */
#ifndef PD_COMM_PIPE_ARENA_H
#define PD_COMM_PIPE_ARENA_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"

#define PD_SLAB_HEAD 4096 /* the page with `busy`, before the data */
#define PD_SLABS 1024     /* at most so many of one sender */

typedef struct pd_slab {
    char *base;
    size_t bytes;      /* with the head */
    int owner;         /* the rank that made it */
    uint32_t number;   /* the owner's */
    int fd;            /* ours to pass on; -1: another rank made it */
    int lent;          /* the rank that has its parcels, or had them last */
    atomic_int refs;   /* of this process: the table's, and one for each lease */
    uint32_t forks;
} pd_slab;

/* One parcel in a slab; the ctx of pd_lease_drop. */
typedef struct pd_lease {
    pd_slab *slab;
    bool moved; /* its owner has it back */
} pd_lease;

typedef struct pd_arena {
    pthread_mutex_t lock;
    int rank, world;
    size_t limit, bytes;
    pd_slab *slabs[PD_SLABS];
    atomic_uchar *known; /* [world][PD_SLABS] which slabs a rank has mapped; only a wish for pd_arena_take */
} pd_arena;

pd_status pd_arena_init(pd_arena *a, int rank, int world, size_t limit);
void pd_arena_fini(pd_arena *a);
/* A free slab for so many bytes of data to `to`, with `busy` set to `parcels`. The caller holds a reference, since the
   arena drops its own when the receiver dies. NULL: there is no room. */
pd_slab *pd_arena_take(pd_arena *a, size_t bytes, int to, int parcels);
void pd_arena_forget(pd_arena *a, int rank); /* it counts as dead */
void pd_arena_count(pd_arena *a, uint64_t *bytes, uint64_t *lent);

/* [new] a slab of another rank; owns fd. */
pd_status pd_slab_open(int fd, size_t bytes, int owner, uint32_t number, pd_slab **out);
void pd_slab_release(pd_slab *s);
/* [new] */
pd_status pd_lease_new(pd_slab *s, pd_lease **out);
void pd_lease_drop(void *lease);
static inline atomic_uint *pd_slab_busy(const pd_slab *s) { return (atomic_uint *)(void *)s->base; }

#endif
