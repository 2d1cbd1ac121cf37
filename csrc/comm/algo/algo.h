/* Algorithms as pure moves between a rank's own memory and the ranks' symmetric slots. They know no waiting.

   The data is cut into pieces. Every rank has two slots and two shares; piece k uses slot (first + k) & 1. One round of
   the pipeline does, for three pieces at once,

     round k:   take(k - depth)   slots or shares                   -> own memory
                put(k)            own data of piece k               -> own slot
                mix(k - 1)        the others' slots, own data       -> own share, or the slots (depth 2 only)

   put and give only say what a peer will read: the pipeline (rounds.c) copies it to where the peer reads it.

   and ends at a gate that opens when all ranks have ended it (group.c). Within a round the moves of all ranks touch
   different halves (take(k - 2) and put(k) the same one, in this order), so one gate per round is enough; after the
   last round none is needed, because the next collective begins in the other slot and its own first gate closes this
   one. Small data is the case of one piece: put, gate, take.

   `first` runs on over the life of the group: the last slot of one collective is never the first of the next. */
#ifndef PD_COMM_ALGO_H
#define PD_COMM_ALGO_H

#include "comm/algo/cost.h"
#include "comm/algo/parts.h"
#include "comm/algo/reduce.h"
#include "comm/algo/schedule.h"

typedef struct pd_job {
    int rank, size;
    int root; /* -1: all ranks take the result */
    pd_dtype dtype;
    pd_reduce reduce;
    double scale;
    const char *from;    /* own input; for all_reduce, reduce and broadcast the same as `to` */
    char *to;
    int64_t count;       /* elements of one rank's input, or of its part of it (reduce_scatter, scatter, all_to_all) */
    int64_t piece;       /* elements of these per piece */
    uint32_t first;
    size_t slot, share;  /* bytes of one of each */
    size_t block;        /* direct_sum: bytes to sum before they are copied to the others */
    char *const *memory; /* by rank: slot 0, slot 1, share 0, share 1 */
    char *const *peers;  /* by rank: `from` in the symmetric segment (direct algorithms) */
    const char **in;     /* room for `size` pointers */
    const pd_part *gives, *takes; /* by rank, of algorithms with parts of different sizes, in place of from, to and
                                     count: ours that go there, and where theirs come */
    const pd_schedule *schedule; /* the algorithm's */
    int local;           /* hierarchical: consecutive ranks of a host; */
    char *const *near;   /* by rank: the same as `memory`, shared by those of our host */
    void *room;          /* outside: where the messages' own all_reduce takes and leaves a piece */
    bool messages;       /* peers' memory is a mirror that messages fill */
    pd_cost *counted;    /* what is moved is added to it */
} pd_job;

typedef struct pd_span { /* bytes of ours that a peer reads, and where in our slot or share it looks for them */
    const char *data;
    size_t at, bytes;
} pd_span;

/* What a piece needs in a slot: one place for all, one for each rank, one for each other rank. */
typedef enum pd_slot_use { PD_PLACE_ONE, PD_PLACE_ALL, PD_PLACE_OTHERS } pd_slot_use;

typedef struct pd_algo {
    const char *name;
    int depth;     /* rounds from put to take: 1, 2; 0: direct, take(0) alone reaches the peers and a gate ends it */
    pd_span (*put)(const pd_job *, int64_t k, int peer);
    void (*mix)(const pd_job *, int64_t k);
    pd_span (*give)(const pd_job *, int64_t k, int peer); /* of what mix(k) has put into the share */
    void (*take)(const pd_job *, int64_t k);
    /* Instead of the last four, algorithms in steps: a piece is loaded, then each step follows a gate; pieces follow
       each other. serve: what `peer` takes of ours in step s, where the slot has it. */
    int (*steps)(const pd_job *);
    void (*load)(const pd_job *, int64_t k);
    void (*run)(const pd_job *, int64_t k, int s); /* the last one leaves the result in its place */
    pd_span (*serve)(const pd_job *, int64_t k, int s, int peer);
    const pd_schedule *schedule; /* not NULL: in another order than the tree's */
    pd_slot_use places;          /* that a slot has */
    void (*cost)(const pd_job *, int64_t k, pd_cost *); /* adds the bytes of piece k; NULL: none */
} pd_algo;

/* W ranks, n bytes; steps are gates on the critical path, bytes what one rank reads or writes through shared memory.
   gather_sum      1 step per piece,  n written, n(W-1) read: for small n
   scatter_gather  1 step per piece + 1,  n(W-1)/W + n/W written, 2n(W-1)/W read: the ring's bytes
   slot_sum        the same bytes, but each cache line is fetched once each way: in memory that all ranks share
   direct_sum      2 steps,  n(W-1)/W read and as much written, nothing staged: the data lies in a symmetric segment */
extern const pd_algo pd_algo_gather_sum, pd_algo_scatter_gather, pd_algo_slot_sum, pd_algo_direct_sum;
/* H hosts of L ranks, over messages: 3 steps per piece; n written and 2n(L-1)/L read in the host's shared memory, n/L
   sent to and taken from each of the H - 1 other hosts: the least per host for two, where scatter_gather sends L times
   as much. */
extern const pd_algo pd_algo_hierarchical;
/* For order="fast" alone: schedule.h; 1 step per schedule's, n written, its bytes read. */
extern const pd_algo pd_algo_ring, pd_algo_halving;
/* The same, by the messages' own all_reduce (mesh.h), which begins after run(k, 0). */
extern const pd_algo pd_algo_outside;
/* reduce_scatter of n bytes per rank: n(W-1)/W written, as much read; direct: nothing written but the result. */
extern const pd_algo pd_algo_reduce_scatter, pd_algo_direct_reduce_scatter;
/* root writes n, the others read n; direct: the others read the root's memory. */
extern const pd_algo pd_algo_broadcast, pd_algo_direct_broadcast;
/* all_gather, gather: n written, n(W-1) read by who takes. scatter: n(W-1)/W written by the root, n/W read by the
   others. all_to_all: n(W-1)/W written and read. Barrier: no pieces. */
extern const pd_algo pd_algo_all_gather, pd_algo_scatter, pd_algo_all_to_all, pd_algo_barrier;
/* The same with parts of different sizes (parts.h); as many pieces as the largest part has. all_gather's takes what
   all ranks give, so all of gives is its own input; reduce_scatter's takes[rank] is its result. */
/* What comes from rank r, all of which is in its slot or ours. */
void pd_parts_take(const pd_job *j, const pd_algo *a, int r);
extern const pd_algo pd_algo_all_gather_parts, pd_algo_all_to_all_parts, pd_algo_reduce_scatter_parts;

static inline int64_t pd_job_begin(const pd_job *j, int64_t k) { return k * j->piece; }
static inline int64_t pd_job_count(const pd_job *j, int64_t k) {
    int64_t left = j->count - k * j->piece;
    return left < j->piece ? left : j->piece;
}
static inline size_t pd_job_bytes(const pd_job *j, int64_t elements) {
    return (size_t)elements * pd_dtype_size(j->dtype);
}
static inline size_t pd_job_at(const pd_job *j, int64_t k) { return pd_job_bytes(j, pd_job_begin(j, k)); }
static inline char *pd_job_slot(const pd_job *j, int rank, int64_t k) {
    return j->memory[rank] + ((j->first + (uint64_t)k) & 1) * j->slot;
}
static inline char *pd_job_share(const pd_job *j, int rank, int64_t k) {
    return j->memory[rank] + 2 * j->slot + ((j->first + (uint64_t)k) & 1) * j->share;
}
/* Part p of `parts` has elements [edge(p), edge(p + 1)) of n: even parts, cut at multiples of 64 elements (whole cache
   lines). */
static inline int64_t pd_part_edge(int64_t n, int parts, int p) {
    int64_t blocks = (n + 63) / 64, edge = blocks * p / parts * 64;
    return edge < n ? edge : n;
}
static inline int64_t pd_job_edge(const pd_job *j, int64_t n, int r) { return pd_part_edge(n, j->size, r); }

static inline bool pd_job_takes(const pd_job *j, int rank) { return j->root < 0 || j->root == rank; }
/* How many pieces n elements have. */
static inline int64_t pd_pieces_of(const pd_job *j, int64_t n) {
    return n <= j->piece ? n > 0 : (n + j->piece - 1) / j->piece;
}

/* j->piece for pieces of so many bytes, and how many there are of `count` elements. */
static inline int64_t pd_plan_pieces(const pd_algo *a, pd_job *j, size_t bytes, int64_t count) {
    pd_dtype kept = a->steps ? pd_reduce_partial(j->dtype) : j->dtype;
    int places = a->places == PD_PLACE_ALL ? j->size : a->places == PD_PLACE_OTHERS ? j->size - 1 : 1;
    j->piece = (int64_t)(bytes / pd_dtype_size(kept));
    if (places > 1) j->piece /= places;
    if (j->piece >= 64) j->piece &= ~(int64_t)63; /* whole cache lines */
    return pd_pieces_of(j, count);
}

/* Moves count what they read of other ranks, and what they write for them: not what messages carry, which is counted
   where it is sent. near: in the memory of our host, beside messages. */
static inline void pd_count_read(const pd_job *j, size_t bytes) { j->counted->read[j->messages] += (int64_t)bytes; }
static inline void pd_count_wrote(const pd_job *j, size_t bytes) {
    j->counted->wrote[PD_LEVEL_MEMORY] += j->messages ? 0 : (int64_t)bytes;
}
static inline void pd_count_near(const pd_job *j, size_t wrote, size_t read) {
    j->counted->wrote[PD_LEVEL_MEMORY] += (int64_t)wrote;
    j->counted->read[PD_LEVEL_MEMORY] += (int64_t)read;
}

/* cost.c: of the algorithms, by what they do. */
#define PD_COSTS(F)                                                                                                \
    F(all_to_takers) F(scatter_gather) F(slot_sum) F(direct_sum) F(each_to_each) F(direct_reduce_scatter)           \
    F(broadcast) F(direct_broadcast) F(scatter) F(all_gather_parts) F(all_to_all_parts) F(reduce_scatter_parts)     \
    F(schedule) F(hierarchical)
#define PD_COST(name) void pd_cost_##name(const pd_job *j, int64_t k, pd_cost *c);
PD_COSTS(PD_COST)
#undef PD_COST

/* The put of several algorithms: all of the piece for those who take the result; one part for each peer. */
pd_span pd_job_put_all(const pd_job *j, int64_t k, int peer);
pd_span pd_job_put_part(const pd_job *j, int64_t k, int peer);

#endif
