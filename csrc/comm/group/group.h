/* A group of ranks and its collectives: one ordered queue, run by whoever calls
   (docs/internals/design.md, "One ordered queue").

   A synchronous collective on an empty queue runs in the calling thread. An asynchronous one shows its line on the
   board; pd_group_progress(), later collectives and waits carry it on, always in the order of submission. All ranks
   must submit the same collectives in the same order. If they do not, all of them get PD_E_MISMATCH before any data is
   touched.

   A group that has failed stays failed: every later call, and every work in the queue, returns the first error at once,
   and the other ranks are told. Segments of a failed group become private memory at the same address. A new group can
   be made over the same link as long as no rank is gone.

   Data may be on a GPU: if pd_device_here is one (device/device.h), pointers are to its memory, and the group's mover
   (mover.h) moves the data; the call returns when the work has been launched. send, recv and barrier are for the host's
   memory.

   Errors of every collective: PD_E_MISMATCH, PD_E_PEER (pd_error's rank: who is gone), PD_E_TIMEOUT, PD_E_DIST,
   PD_E_PYTHON (interrupted), and PD_E_VALUE, PD_E_DTYPE for bad arguments, which leave the group as it is. Any thread
   may call; calls of one group exclude each other. Buffers are borrowed until the work is done. */
#ifndef PD_COMM_GROUP_H
#define PD_COMM_GROUP_H

#include "comm/algo/blocks.h"
#include "comm/algo/cost.h"
#include "comm/algo/parts.h"
#include "comm/link/identity.h"
#include "comm/link/link.h"
#include "device/device.h"

typedef struct pd_group pd_group;
typedef struct pd_segment pd_segment;
typedef struct pd_work pd_work;
typedef struct pd_group_memory pd_group_memory;

typedef struct pd_group_options {
    double timeout;   /* seconds that a wait for a live peer may take; 0: PYDIST_TIMEOUT */
    double patience;  /* seconds that ranks have to join; 0: timeout */
    const char *algo; /* NULL or "": chosen by size; else the only one that is used, for tests (tuning.h) */
    bool unchecked;   /* identities are not compared, as with PYDIST_CHECK=0 */
    bool fast;        /* order="fast": sums may be in any order, the same on all ranks */
    const struct pd_tuning *tunings; /* measured ones; rank 0's for this transport and size are used */
    size_t tuning_count;
    size_t slot;      /* bytes of a slot; 0: the default */
    const int *ranks; /* `size` ranks of the link, in order, with our own; NULL: all of them */
    int size;
    uint32_t epoch;   /* 0: the link's next one, which all its ranks count; else one that these ranks have agreed on */
    const struct pd_mesh_kind *kind; /* messages of this kind (mesh/mesh.h); NULL: by where the ranks are */
    const struct pd_mover *mover;    /* for data on a GPU (mover.h); NULL: refused, except in a world of one */
} pd_group_options;

/* [new] All ranks of the group call it together. link NULL: a world of one, without threads and sockets. o NULL: zeros.
   Functions below count ranks as the group does; errors name ranks as the link does. A group ends only if one of its
   own ranks dies. */
pd_status pd_group_new(pd_link *link, const pd_group_options *o, pd_group **out);
/* Other ranks of the link make a group without this one; this rank has to count its epoch, too. */
void pd_group_skip(pd_link *link);
void pd_group_retain(pd_group *g);
void pd_group_release(pd_group *g); /* the last release destroys it */
/* Leaves the group: peers that still wait for this rank get PD_E_PEER. Later calls fail, except pd_group_rank and
   pd_group_size. PD_E_RUNTIME: it was called by a signal handler during a collective of the same group. */
pd_status pd_group_destroy(pd_group *g);
int pd_group_rank(const pd_group *g);
int pd_group_size(const pd_group *g);
int pd_group_link_rank(const pd_group *g, int rank); /* the link's number of a rank of the group */
uint32_t pd_group_epoch(const pd_group *g);
bool pd_group_fast(const pd_group *g);
int pd_group_local(const pd_group *g); /* over 1: so many ranks of each host share memory */
const struct pd_tuning *pd_group_tuning(const pd_group *g); /* [borrowed from g] */
const char *pd_group_transport(const pd_group *g); /* "shm", "tcp", "inproc", "none" */
pd_cost pd_group_counted(const pd_group *g); /* what its collectives on CPUs have cost so far; algo/cost.h */
/* [borrowed] how often this thread has called each collective (pd_collective), of any group. */
const int64_t *pd_group_calls(void);
pd_status pd_group_check(pd_group *g);             /* PD_OK, or the error that every call would return */

/* Costs below are for W ranks, n bytes of one rank's tensor, and P pieces of 256 KiB: first the steps (gates), then the
   bytes that a rank writes for others, then the bytes of theirs that it reads, in shared memory. docs/algorithms.md has
   the cost of every algorithm (algo/cost.h). */

/* buf[i] = scale * reduce over ranks of buf[i], in the order of algo/reduce.h: the same bits on every rank, transport
   and run. The scale (1: none) is multiplied once, in the accumulator at the end; AVG also multiplies by 1/size. `site`
   names the caller (hooks.h). If every rank's buf is in the same symmetric segment, no slots are used. `work`: NULL to
   wait here, else it gets a [new] work.
   Cost: small P steps, n, n(W-1); large P + 1 steps, 2n(W-1)/W, 2n(W-1)/W; in a segment 2 steps, n(W-1)/W,
   n(W-1)/W. */
pd_status pd_group_all_reduce(pd_group *g, void *buf, int64_t count, pd_dtype dtype, pd_reduce op, double scale,
                              uint64_t site, pd_work **work);
/* The same sum over logical shards, dealt out to the ranks as the table says (algo/blocks.h): a rank has the sums of
   its blocks, in float32 or float64, the first one in buf, a second one `apart` bytes behind it. A rank without a
   block only gets the result. All ranks give the same table and distance. The bits are those of a tree over the
   shards, whatever the table, on GPUs, too. There the sums may be float16 or bfloat16 if each block is one shard; they
   are added in float32 and rounded once. Cost: that of all_reduce, with the bytes of as many inputs as the rank has
   blocks. */
pd_status pd_group_all_reduce_blocks(pd_group *g, void *buf, size_t apart, int64_t count, pd_dtype dtype, pd_blocks *b,
                                     double scale, uint64_t site, pd_work **work);
/* reduce_scatter in the same way: each block's sum has size * count elements. */
pd_status pd_group_reduce_scatter_blocks(pd_group *g, const void *in, size_t apart, void *out, int64_t count,
                                         pd_dtype dtype, pd_blocks *b, double scale, uint64_t site, pd_work **work);
/* The sum over ranks. On a GPU NCCL may round sums of 16-bit elements at each step, as with order="fast", which halves
   the bytes. */
pd_status pd_group_all_reduce_narrow(pd_group *g, void *buf, int64_t count, pd_dtype dtype, pd_work **work);
/* Cost: P steps; the root writes n, the others read n. */
pd_status pd_group_broadcast(pd_group *g, void *buf, int64_t count, pd_dtype dtype, int root, uint64_t site,
                             pd_work **work);
/* out[i] = scale * reduce over ranks of in[rank * count + i] for i < count, with the bits that all_reduce of the
   size * count elements of `in` would give. `out` may be in + rank * count, and must not overlap `in` otherwise.
   Cost: P steps, n(W-1)/W, n(W-1)/W. */
pd_status pd_group_reduce_scatter(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, pd_reduce op,
                                  double scale, uint64_t site, pd_work **work);
/* The root's buf[i] = reduce over ranks of buf[i], with all_reduce's bits; the others' buffers are only read.
   Cost: large P + 1 steps, others n, n(W-1)/W; the root n(W-1)/W, 2n(W-1)/W. */
pd_status pd_group_reduce(pd_group *g, void *buf, int64_t count, pd_dtype dtype, pd_reduce op, int root, uint64_t site,
                          pd_work **work);
/* out[r * count + i] = rank r's in[i]; `in` may be out + rank * count.
   Cost: P steps, n, n(W-1). */
pd_status pd_group_all_gather(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, uint64_t site,
                              pd_work **work);
/* all_gather for the root only; on other ranks `out` is not used and may be NULL. Cost: P steps; the root reads n(W-1),
   the others write n. */
pd_status pd_group_gather(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, int root,
                          uint64_t site, pd_work **work);
/* out[i] = the root's in[rank * count + i]; on other ranks `in` is not used and may be NULL. Cost: P steps; the root
   writes n(W-1)/W, the others read n/W. */
pd_status pd_group_scatter(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, int root,
                           uint64_t site, pd_work **work);
/* out[r * count + i] = rank r's in[rank * count + i]. `out` may be `in`. Cost: P steps, n(W-1)/W, n(W-1)/W. */
pd_status pd_group_all_to_all(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, uint64_t site,
                              pd_work **work);
/* out[r] = rank r's in[rank], with parts of different sizes (algo/parts.h). The tables have `size` parts, by rank, and
   are read before the call returns. No part of `out` overlaps one of `in`. PD_E_MISMATCH on all ranks: sizes do not fit
   together; the error says which pair differs. Cost: the bytes of the parts for and from others; as many steps as the
   largest part has pieces of 256 KiB / (W-1), or 2 for large parts. `along`, here and below: what the parts are to the
   caller, which must be equal on all ranks: PD_ALONG, or 0, nothing to compare. */
#define PD_ALONG(dim, other) (1 + (dim) + (1 + (other)) * 256) /* along `dim`, made of parts along `other` or -1 */
pd_status pd_group_all_to_all_parts(pd_group *g, const pd_part *in, const pd_part *out, pd_dtype dtype, int along,
                                    uint64_t site, pd_work **work);
/* out[r] = rank r's `in`, which has the size of that rank's out[r]. All ranks give the same sizes. `in` may be
   out[rank]. */
pd_status pd_group_all_gather_parts(pd_group *g, const void *in, const pd_part *out, pd_dtype dtype, int along,
                                    uint64_t site, pd_work **work);
/* out = scale * reduce over ranks of their in[rank], in the order of algo/reduce.h; all ranks give the same sizes.
   `out` may be in[rank]. */
pd_status pd_group_reduce_scatter_parts(pd_group *g, const pd_part *in, void *out, pd_dtype dtype, pd_reduce op,
                                        double scale, int along, uint64_t site, pd_work **work);
pd_status pd_group_barrier(pd_group *g, uint64_t site, pd_work **work);
/* A barrier before the ranks read `count` gradients of unit number `unit` in each other's memory (parallel/sharded.h).
   All ranks give the same numbers. */
pd_status pd_group_reduce_gate(pd_group *g, int unit, int64_t count, pd_dtype dtype, double scale, uint64_t site,
                               pd_work **work);
/* A barrier before the ranks write common memory (readers.h). */
pd_status pd_group_write_gate(pd_group *g, uint64_t site);

/* Send or receive a message of `count` elements, independently of the collectives. Messages of one pair and tag keep
   their order. A message goes to a receive of the same tag, which must have the same count and dtype (else
   PD_E_MISMATCH on both ranks, and the group ends). src -1: from the rank that has sent first; pd_work_source() says
   which. A send is done once `buf` may be used again. `work` as above. */
pd_status pd_group_send(pd_group *g, const void *buf, int64_t count, pd_dtype dtype, int dst, int tag, uint64_t site,
                        pd_work **work);
pd_status pd_group_recv(pd_group *g, void *buf, int64_t count, pd_dtype dtype, int src, int tag, uint64_t site,
                        pd_work **work);
/* Messages between GPUs, on the device of the caller's ops, all at the same time. If a rank sends in a batch, the other
   rank must receive in a batch, in the same order and with equal tags, dtypes and counts (else PD_E_MISMATCH, and the
   group ends). works: gets n [new] works. Waits until the other ranks call it, too. */
typedef struct pd_message {
    void *data;
    int64_t count;
    pd_dtype dtype;
    int peer, tag;
    bool sends;
} pd_message;
pd_status pd_group_messages(pd_group *g, const pd_message *m, int n, uint64_t site, pd_work **works);
int pd_work_source(const pd_work *w); /* of a receive that is done: the sender's rank in the group */

/* Carries queued works on as far as possible without waiting. */
pd_status pd_group_progress(pd_group *g);
/* Waits until the GPU's works in the queue are on its stream. NCCL may block a launch until the peers launch the same
   call, so ranks that use two groups by turns have to launch in one order, whatever peers come first. */
pd_status pd_group_launch(pd_group *g);
bool pd_group_is_idle(pd_group *g); /* whether no work is queued */
/* Waits at most `timeout` seconds; negative: the group's timeout. After PD_E_TIMEOUT of a shorter time, work and group
   go on. */
pd_status pd_work_wait(pd_work *w, double timeout);
pd_status pd_work_test(pd_work *w, bool *done); /* returns the work's error if it has failed */
void pd_work_release(pd_work *w); /* a work under way goes on, and uses its buffers until it is done */

/* [new] zeroed symmetric memory: every rank gets `bytes` of its own that all ranks can address. All ranks call it
   together. It outlives the group. PD_E_MEMORY on all ranks if one of them has no memory. */
pd_status pd_group_segment_new(pd_group *g, size_t bytes, pd_segment **out);
void *pd_segment_ptr(const pd_segment *s); /* [borrowed from s] page-aligned; never moves */
void *pd_segment_peer(const pd_segment *s, int rank); /* another rank's part; NULL: this rank cannot address it */
size_t pd_segment_bytes(const pd_segment *s);
int pd_segment_size(const pd_segment *s); /* of its group */
void pd_segment_retain(pd_segment *s);
void pd_segment_release(pd_segment *s);

/* [new] memory of GPU d that g's mover allocates and can move without a copy, for data that is reduced in each step. It
   may outlive the group. An error means that the mover has no such memory. */
pd_status pd_group_memory_new(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out);
void *pd_group_memory_ptr(const pd_group_memory *m);
void pd_group_memory_retain(pd_group_memory *m);
void pd_group_memory_release(pd_group_memory *m); /* waits for the device */

#endif
