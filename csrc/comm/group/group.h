/* A group of ranks and its collectives: one ordered queue, run by whoever calls
   (docs/internals/design.md, "One ordered queue").

   A synchronous collective on an empty queue runs in the calling thread. An asynchronous one shows its line on the
   board and is carried on by pd_group_progress(), by later collectives and by waits, always in the order of submission.
   All ranks submit the same collectives in the same order; where they do not, all of them get PD_E_MISMATCH before any
   data is touched.

   A group that failed stays so: every later call, and every work still queued, returns the first error at once; the
   other ranks are told. Segments of a failed group become private memory at the same address. A new group can be made
   over the same link as long as no rank is gone.

   Data may lie on a GPU: where pd_device_here is one (device/device.h), pointers are to its memory, and the group's
   mover moves them (mover.h): the call then returns when the GPU has been told. send, recv and barrier are the host's.

   Errors of every collective: PD_E_MISMATCH, PD_E_PEER (pd_error's rank: who is gone), PD_E_TIMEOUT, PD_E_DIST,
   PD_E_PYTHON (interrupted), and PD_E_VALUE, PD_E_DTYPE for bad arguments, which leave the group as it is. Any thread
   may call; calls of one group exclude each other. Buffers are borrowed until the work is done. */
#ifndef PD_COMM_GROUP_H
#define PD_COMM_GROUP_H

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
    double timeout;   /* seconds a wait for a live peer may take; 0: PYDIST_TIMEOUT */
    double patience;  /* seconds for the ranks to come; 0: timeout */
    const char *algo; /* NULL or "": by size; else this one alone, for tests (tuning.h) */
    bool unchecked;   /* identities are not compared, as with PYDIST_CHECK=0 */
    bool fast;        /* order="fast": sums may be in any order, the same on all ranks */
    const struct pd_tuning *tunings; /* measured ones; those for its transport and size are used, if rank 0 has them */
    size_t tuning_count;
    size_t slot;      /* bytes of a piece; 0: the measured default */
    const int *ranks; /* NULL: all of the link's, in order; else `size` of them, by rank of the group, with our own */
    int size;
    uint32_t epoch;   /* 0: the link's next, which all ranks of the link count; else one that these ranks agreed on */
    const struct pd_mesh_kind *kind; /* NULL: by where the ranks are; else messages of this kind (mesh/mesh.h) */
    const struct pd_mover *mover;    /* of data on a GPU (mover.h); NULL: none, but in a world of one */
} pd_group_options;

/* [new] Collective over the ranks of the group. NULL link: a world of one without threads and sockets. NULL o: zeros.
   Everything below counts ranks as the group does; errors name ranks as the link does. Only its own ranks' death ends
   a group. */
pd_status pd_group_new(pd_link *link, const pd_group_options *o, pd_group **out);
/* The others of the link make a group without this rank: it counts the epoch too. */
void pd_group_skip(pd_link *link);
void pd_group_retain(pd_group *g);
void pd_group_release(pd_group *g); /* the last one destroys it */
/* Leaves the group: peers that still wait for this rank get PD_E_PEER. Later calls fail, pd_group_rank and _size still
   work. PD_E_RUNTIME: called from a signal handler within a collective of this very group. */
pd_status pd_group_destroy(pd_group *g);
int pd_group_rank(const pd_group *g);
int pd_group_size(const pd_group *g);
int pd_group_link_rank(const pd_group *g, int rank); /* of a rank of the group */
uint32_t pd_group_epoch(const pd_group *g);
bool pd_group_fast(const pd_group *g);
int pd_group_local(const pd_group *g); /* over 1: as many ranks of each host share memory, between messages of hosts */
const struct pd_tuning *pd_group_tuning(const pd_group *g); /* [borrowed from g] */
const char *pd_group_transport(const pd_group *g); /* "shm", "tcp", "inproc", "none" */
pd_cost pd_group_counted(const pd_group *g); /* by its collectives on CPUs so far; algo/cost.h */
pd_status pd_group_check(pd_group *g);             /* PD_OK, or the error every call would return */

/* Cost lines below: W ranks, n bytes of one rank's tensor, P pieces of 256 KiB; steps (gates), then the bytes that a
   rank writes for others and reads of theirs in shared memory. Of every algorithm: docs/algorithms.md, algo/cost.h. */

/* buf[i] = scale * reduce over ranks of buf[i], in the order of algo/reduce.h: the same bits on every rank, transport
   and run. The scale (1: none) is one multiply in the accumulator at the end; AVG multiplies by 1/size besides. `site`
   names the caller (hooks.h). Where all of everybody's buf lies in one symmetric segment, nothing is staged. `work`:
   NULL to wait here, else [new].
   Cost: small P steps, n, n(W-1); large P + 1 steps, 2n(W-1)/W, 2n(W-1)/W; in a segment 2 steps, n(W-1)/W,
   n(W-1)/W. */
pd_status pd_group_all_reduce(pd_group *g, void *buf, int64_t count, pd_dtype dtype, pd_reduce op, double scale,
                              uint64_t site, pd_work **work);
/* The sum; of 16-bit elements on a GPU one that NCCL rounds at each step, as with order="fast": half the bytes. */
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
/* The same on the root alone; elsewhere `out` is not used and may be NULL. Cost: P steps; the root reads n(W-1), the
   others write n. */
pd_status pd_group_gather(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, int root,
                          uint64_t site, pd_work **work);
/* out[i] = the root's in[rank * count + i]; elsewhere `in` is not used and may be NULL. Cost: P steps; the root
   writes n(W-1)/W, the others read n/W. */
pd_status pd_group_scatter(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, int root,
                           uint64_t site, pd_work **work);
/* out[r * count + i] = rank r's in[rank * count + i]. `out` may be `in`. Cost: P steps, n(W-1)/W, n(W-1)/W. */
pd_status pd_group_all_to_all(pd_group *g, const void *in, void *out, int64_t count, pd_dtype dtype, uint64_t site,
                              pd_work **work);
/* The same with parts of different sizes (algo/parts.h); tables of `size` parts, by rank, are read before the call
   returns. Sizes that do not fit together raise PD_E_MISMATCH on all ranks; the error says which pair differs. Cost:
   the bytes of the parts for and from others, as many steps as the largest part has pieces of 256 KiB / (W-1);
   large ones 2.
   out[r] = rank r's in[rank]; no part of `out` overlaps one of `in`. */
pd_status pd_group_all_to_all_parts(pd_group *g, const pd_part *in, const pd_part *out, pd_dtype dtype, uint64_t site,
                                    pd_work **work);
/* out[r] = rank r's `in`, of out[rank]'s size; all ranks give the same sizes. `in` may be out[rank]. */
pd_status pd_group_all_gather_parts(pd_group *g, const void *in, const pd_part *out, pd_dtype dtype, uint64_t site,
                                    pd_work **work);
/* out = scale * reduce over ranks of their in[rank], in the order of algo/reduce.h; all ranks give the same sizes.
   `out` may be in[rank]. */
pd_status pd_group_reduce_scatter_parts(pd_group *g, const pd_part *in, void *out, pd_dtype dtype, pd_reduce op,
                                        double scale, uint64_t site, pd_work **work);
pd_status pd_group_barrier(pd_group *g, uint64_t site, pd_work **work);

/* A message of `count` elements to or from another rank, beside the collectives: in order for each pair and tag, taken
   by a receive of the same tag, count and dtype (else PD_E_MISMATCH on both, and the group ends). src -1: from whoever
   has sent first. A send is done once `buf` may be used again. `work` as above, pd_work_source(): who has sent. */
pd_status pd_group_send(pd_group *g, const void *buf, int64_t count, pd_dtype dtype, int dst, int tag, uint64_t site,
                        pd_work **work);
pd_status pd_group_recv(pd_group *g, void *buf, int64_t count, pd_dtype dtype, int src, int tag, uint64_t site,
                        pd_work **work);
/* Messages between GPUs, on the device where the caller's op would run, all at the same time. What a rank sends in a
   batch the other receives in one, in the order of both lists and with equal tags, dtypes and counts (else
   PD_E_MISMATCH, and the group ends). works: room for n, each [new]. Waits for the others to come to theirs. */
typedef struct pd_message {
    void *data;
    int64_t count;
    pd_dtype dtype;
    int peer, tag;
    bool sends;
} pd_message;
pd_status pd_group_messages(pd_group *g, const pd_message *m, int n, uint64_t site, pd_work **works);
int pd_work_source(const pd_work *w); /* of a receive that is done: the rank in the group */

/* Carries queued work on as far as it goes without waiting. */
pd_status pd_group_progress(pd_group *g);
/* Waits at most `timeout` seconds (negative: as long as the group would). PD_E_TIMEOUT of a shorter time leaves work
   and group as they are. */
pd_status pd_work_wait(pd_work *w, double timeout);
pd_status pd_work_test(pd_work *w, bool *done); /* the error where it failed */
void pd_work_release(pd_work *w); /* the work goes on, and borrows its buffers until the group has done it */

/* [new] zeroed symmetric memory: every rank gets `bytes` of its own that all ranks can address. Collective. Outlives
   the group. PD_E_MEMORY on all ranks where one has no room. */
pd_status pd_group_segment_new(pd_group *g, size_t bytes, pd_segment **out);
void *pd_segment_ptr(const pd_segment *s); /* [borrowed from s] page-aligned; never moves */
size_t pd_segment_bytes(const pd_segment *s);
void pd_segment_retain(pd_segment *s);
void pd_segment_release(pd_segment *s);

/* [new] Memory of GPU d that g's mover has made and moves without a copy, for what is reduced again and again. Any
   error: it has none to give. It may outlive the group. */
pd_status pd_group_memory_new(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out);
void *pd_group_memory_ptr(const pd_group_memory *m);
void pd_group_memory_retain(pd_group_memory *m);
void pd_group_memory_release(pd_group_memory *m); /* waits for the device */

#endif
