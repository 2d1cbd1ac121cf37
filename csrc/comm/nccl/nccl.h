/* Collectives on GPUs, by NCCL. They stand in the group's queue like all others: before any data is touched ranks
   compare identities on the board, and learn there and from the control plane which ranks are late or gone. What
   follows differs: the work is launched on a stream of the communicator, and the host goes on.

     the caller's stream   ... kernels | ready                       | waits for done ...
     the communicator's                      waits for ready | NCCL | done

   A synchronous collective makes the caller's stream wait, an asynchronous one makes the stream wait that is current in
   wait(); the host does not wait. The first such collective of a group makes the communicator, with an identifier that
   travels through the store. The communicator is non-blocking, so every wait for NCCL can look for failures. It has a
   thread (watch.c) that looks at what is under way and never waits for the device. If NCCL reports an error, a rank is
   gone or time is up, the thread stores the reason, tells the others and aborts the communicator, so that kernels that
   wait for a peer end. The group's next call raises the reason. The results of the launched kernels are lost.

   While the caller's stream is captured into a CUDA graph, ranks meet on the board as always, but the work goes onto
   the caller's stream, and the thread has no event of it to look at. Users must replay the same graphs in the same
   order on all ranks. In a replay only the death of a rank is noticed, and aborts.

   NCCL chooses order and precision: bits are equal only for equal configurations. float16 and bfloat16 are copied to
   float32, summed there and rounded once; with order="fast" NCCL sums them as they are and rounds each partial sum.
   Sums over logical shards have the order of the tree, so NCCL only moves their data (blocks.c). */
#ifndef PD_COMM_NCCL_H
#define PD_COMM_NCCL_H

#include "comm/group/mover.h"

extern const pd_mover pd_mover_nccl;

#endif
