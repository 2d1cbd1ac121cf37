/* Collectives on the memory of a GPU, by NCCL, in the queue of the group like all others: ranks compare identities on
   the board first, before any data is touched, and learn there and from the control plane who is late or gone. What
   follows the board differs: the work is launched on a stream of the communicator, and the host goes on.

     the caller's stream   ... kernels | ready                       | waits for done ...
     the communicator's                      waits for ready | NCCL | done

   A synchronous collective makes the caller's stream wait, an asynchronous one the stream that is current in wait();
   the host waits for nothing. A communicator is made by the first such collective of its group, with an identifier
   that travels through the store. It is non-blocking, so that every wait for NCCL looks around, and a thread of
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

#include "comm/group/mover.h"

extern const pd_mover pd_mover_nccl;

#endif
