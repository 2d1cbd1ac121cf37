/* Collectives on the memory of a GPU, by NCCL, in the queue of the group like all others: ranks compare identities on
   the board first, before any data is touched, and learn there and from the control plane who is late or gone. What
   follows the board differs: the work is launched on a stream of the communicator, and the host goes on.

     the caller's stream   ... kernels | ready                       | waits for done ...
     the communicator's                      waits for ready | NCCL | done

   A synchronous collective makes the caller's stream wait, an asynchronous one the stream that is current in wait();
   the host waits for nothing. A communicator is made by the first such collective of its group, with an identifier
   that travels through the store. It is non-blocking, so that every wait for NCCL looks at the news, and a thread of
   its own (watch.c) looks at what is under way: it never waits for the device. Where NCCL reports an error, a rank
   is gone or time is up, it takes the reason down, tells the others and aborts the communicator, so that kernels that
   wait for a peer end; the reason is raised by the group's next call. What the launched kernels were to write is lost.

   While the caller's stream is captured (a CUDA graph), ranks meet on the board as ever, then the work goes onto the
   caller's stream itself, and the thread has no event of it to look at. Replays are the user's: the same ones in the
   same order on all ranks. Only a rank's death is still noticed then, and aborts.

   Order and precision are NCCL's: the same bits for the same configuration only. float16 and bfloat16 are summed in
   float32 and rounded once, by way of a copy; with order="fast" by NCCL itself, which rounds each partial sum. */
#ifndef PD_COMM_NCCL_H
#define PD_COMM_NCCL_H

#include "comm/group/group_impl.h"

/* At submission, by the caller's thread and under the group's lock: whether NCCL can do it, and what it has to wait
   for. A failure leaves the group as it is. */
pd_status pd_nccl_begin(pd_group *g, pd_work *w);
/* All identities are equal: the collective goes to the device. */
pd_status pd_nccl_launch(pd_group *g, pd_work *w);
/* This rank's messages with one other, in `w`'s launch; like pd_nccl_launch. */
typedef struct pd_batch {
    const pd_message *messages; /* those with other peers are left out */
    int n, peer;
} pd_batch;
pd_status pd_nccl_messages(pd_group *g, pd_work *w, const pd_batch *b);
/* The same in a world of one, by the device's own kernels, on the caller's stream. */
pd_status pd_nccl_alone(const pd_work *w);
/* For an asynchronous one: w->alone; and as pd_launch_wait, pd_launch_test and pd_launch_release below. */
pd_status pd_alone_mark(pd_work *w);
pd_status pd_alone_wait(const pd_work *w, double seconds);
pd_status pd_alone_test(const pd_work *w, bool *done);
void pd_alone_release(pd_work *w);
/* data[i] *= factor, likewise; a floating dtype, or factor 1. */
pd_status pd_nccl_scale(const pd_device *d, const char *op, pd_dtype t, double factor, void *data, int64_t count);
/* The calling thread's current stream goes on after it; seconds >= 0: the host waits that long for its end instead. */
pd_status pd_launch_wait(pd_launch *l, double seconds);
pd_status pd_launch_test(pd_launch *l, bool *done);
pd_launch *pd_launch_retain(pd_launch *l); /* [borrowed] l */
void pd_launch_release(pd_launch *l);

pd_status pd_nccl_drain(pd_group *g); /* waits until nothing is under way, or it has failed */
void pd_nccl_end(pd_group *g); /* ends the communicator; where the group has failed, by an abort */

#endif
