/* Who moves the data of collectives on a GPU, where ranks meet on the board as ever but their memory is not the host's.
   A group has one (pd_group_options), NCCL in Python's groups (comm/nccl/nccl.h), and asks it through this table; a
   world of one has pd_mover_alone. A collective then runs in two halves:

     submission      begin      what the work reads has to wait for, in the caller's stream
     the board       (rounds.c) ranks compare identities; who is late or gone is known before any data is touched
     all are there   launch     the work goes to the device, and the host goes on; w->launch is set
     wait(), test()  wait, test of what was launched

   All that return pd_status leave the reason in this thread's record. Under the group's lock: begin, launch, exchange,
   end, alloc. */
#ifndef PD_COMM_MOVER_H
#define PD_COMM_MOVER_H

#include "comm/group/group_impl.h"

typedef struct pd_batch { /* this rank's messages with one other, and their works */
    const pd_message *messages; /* those with other peers are left out */
    pd_work **works;
    int n, peer;
} pd_batch;

struct pd_mover {
    const char *name;
    /* Whether it can do this work; what it will have to wait for. A failure leaves the group as it is. */
    pd_status (*begin)(pd_work *w);
    /* All identities are equal: the work goes to the device. A failure ends the group. */
    pd_status (*launch)(pd_work *w);
    /* The same for a batch: one launch, which all its works with that peer share. */
    pd_status (*exchange)(pd_group *g, const pd_batch *b);
    /* The calling thread's current stream goes on after it; seconds >= 0: the host waits that long for its end instead
       (PD_E_TIMEOUT). */
    pd_status (*wait)(const pd_work *w, double seconds);
    pd_status (*test)(const pd_work *w, bool *done);
    void (*release)(pd_work *w); /* forgets w->launch, which goes on; not called where that is NULL */
    /* Where g->moving is not NULL: */
    pd_status (*drain)(pd_group *g); /* waits until nothing is under way, or it has failed */
    void (*end)(pd_group *g);        /* where the group has failed: by an abort */
    /* [new] memory of d that it moves without a copy; *out begins with a pd_group_memory that has p. */
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
/* By the device's own kernels, on the caller's stream: launch, wait, test, release, which are all that a world of one
   asks for. */
extern const pd_mover pd_mover_alone;
/* data[i] *= factor on d; a floating dtype, or factor 1. */
pd_status pd_alone_scale(const pd_device *d, const char *op, pd_dtype t, double factor, void *data, int64_t count);
void pd_alone_scalar(pd_dtype t, double value, char *out); /* of a floating dtype; out: room for 8 bytes */

#endif
