/* The table of functions that move data on a GPU. Ranks meet on the board as always, but their data is not in the
   host's memory, so the group calls its mover (pd_group_options). For groups made in Python that is NCCL
   (comm/nccl/nccl.h), for a world of one pd_mover_alone. A collective then runs in two halves:

     submission      begin      notes the point in the caller's stream that the work has to wait for
     the board       (rounds.c) ranks compare identities; late and dead ranks are known before any data is touched
     all are there   launch     launches the work on the device and sets w->launch; the host goes on
     wait(), test()  wait, test for the end of what was launched

   The group's lock is held for begin, launch, exchange, end and alloc. */
#ifndef PD_COMM_MOVER_H
#define PD_COMM_MOVER_H

#include "comm/group/group_impl.h"

typedef struct pd_batch { /* this rank's messages with one peer, and their works */
    const pd_message *messages; /* messages with other peers are skipped */
    pd_work **works;
    int n, peer;
} pd_batch;

struct pd_mover {
    const char *name;
    /* Fails if it cannot do this work, which leaves the group as it is. Notes what the work has to wait for. */
    pd_status (*begin)(pd_work *w);
    /* Launches the work, once all identities are equal. A failure ends the group. */
    pd_status (*launch)(pd_work *w);
    /* Launches a batch: one launch, which all its works share. */
    pd_status (*exchange)(pd_group *g, const pd_batch *b);
    /* Makes the calling thread's current stream wait for the work. seconds >= 0: the host waits instead, so long at
       most (PD_E_TIMEOUT). */
    pd_status (*wait)(const pd_work *w, double seconds);
    pd_status (*test)(const pd_work *w, bool *done);
    void (*release)(pd_work *w); /* drops w->launch, which is not NULL; the launched work goes on */
    /* Called only if g->moving is not NULL: */
    pd_status (*drain)(pd_group *g); /* waits until nothing is under way, or it has failed */
    void (*end)(pd_group *g);        /* ends the communicator; if the group has failed, by an abort */
    /* [new] memory of d that it can move without a copy. *out begins with a pd_group_memory whose p is set. */
    pd_status (*alloc)(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out);
    void (*free)(pd_group_memory *m); /* waits for the device */
};

struct pd_group_memory {
    atomic_int refs;
    const pd_mover *mover;
    void *p;
};

/* mover.c */
pd_status pd_mover_check(const pd_group *g, const char *op); /* PD_E_VALUE: the group has none */

/* alone.c */
/* Uses the device's own kernels on the caller's stream. It has launch, wait, test and release, which is all that a
   world of one calls. */
extern const pd_mover pd_mover_alone;
/* data[i] *= factor on d. The dtype is floating, or factor is 1. */
pd_status pd_alone_scale(const pd_device *d, const char *op, pd_dtype t, double factor, void *data, int64_t count);
void pd_alone_scalar(pd_dtype t, double value, char *out); /* stores value as a floating dtype; out has 8 bytes */

#endif
