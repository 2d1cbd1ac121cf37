/* Algorithms as pure moves between a rank's own memory and the ranks' symmetric slots. They know no waiting.

   The data is cut into pieces. Every rank has two slots and two shares; piece k uses slot (first + k) & 1. A round of
   the pipeline does the following, for three pieces at once, and ends at a gate that opens when all ranks have ended
   it:

     round k:   take(k - depth)   slots or shares                   -> own memory
                put(k)            own data of piece k               -> own slot
                mix(k - 1)        the others' slots, own data       -> own share, or the slots (depth 2 only)

   put and give only say what a peer will read; the pipeline (group/rounds.c) copies it to where the peer reads it.

   Within a round the moves of all ranks touch different halves, except that take(k - 2) and put(k), in this order,
   touch the same one. So one gate for each round is enough. After the last round no gate is needed, because the next
   collective begins in the other slot and its own first gate ends this round. Small data is one piece: put, gate, take.

   `first` counts on over the life of the group, so the last slot of a collective is never the first one of the next. */
#ifndef PD_COMM_ALGO_H
#define PD_COMM_ALGO_H

#include "comm/algo/blocks.h"
#include "comm/algo/cost.h"
#include "comm/algo/parts.h"
#include "comm/algo/reduce.h"
#include "comm/algo/schedule.h"

typedef struct pd_job {
    int rank, size;
    int root; /* -1: all ranks get the result */
    pd_dtype dtype;
    pd_reduce reduce;
    double scale;
    const char *from;    /* our input; for all_reduce, reduce and broadcast the same as `to` */
    char *to;
    int64_t count;       /* elements of a rank's input, or of one part of it (reduce_scatter, scatter, all_to_all) */
    int64_t piece;       /* how many of these elements a piece has */
    uint32_t first;
    size_t slot, share;  /* bytes of a slot, of a share */
    size_t block;        /* direct_sum: bytes to sum before they are copied to the others */
    char *const *memory; /* by rank: slot 0, slot 1, share 0, share 1 */
    char *const *peers;  /* by rank: `from` in the symmetric segment (direct algorithms) */
    const char **in;     /* room for as many pointers as a sum has inputs */
    const pd_blocks *blocks; /* of logical shards: `from` has the sum of this rank's first block; NULL: a rank has one
                                input */
    size_t apart;        /* bytes from the sum of a rank's first block to that of its second one, in from and peers */
    size_t stride;       /* the same in a slot */
    const pd_part *gives, *takes; /* for parts of different sizes, in the place of from, to and count, by rank: our
                                     part for that rank, and where that rank's part goes */
    const pd_schedule *schedule; /* of the algorithm */
    int local;           /* hierarchical: how many consecutive ranks a host has */
    char *const *near;   /* hierarchical, by rank: like `memory`, but shared by the ranks of our host */
    void *room;          /* outside: memory in which the mesh's own all_reduce works on a piece */
    bool messages;       /* the peers' memory is a mirror, filled by messages */
    pd_cost *counted;    /* the moves add their bytes to it */
} pd_job;

typedef struct pd_span { /* bytes of ours that a peer reads, and the offset in our slot or share where it reads them */
    const char *data;
    size_t at, bytes;
} pd_span;

/* How much of a slot a piece needs: one place for all ranks, one for each rank, or one for each other rank. */
typedef enum pd_slot_use { PD_PLACE_ONE, PD_PLACE_ALL, PD_PLACE_OTHERS } pd_slot_use;

typedef struct pd_algo {
    const char *name;
    int depth;     /* rounds from put to take: 1 or 2; 0: direct, only take(0) reads the peers, and a gate ends it */
    pd_span (*put)(const pd_job *, int64_t k, int peer);
    void (*mix)(const pd_job *, int64_t k);
    pd_span (*give)(const pd_job *, int64_t k, int peer); /* what peers read of the share that mix(k) has filled */
    void (*take)(const pd_job *, int64_t k);
    /* Algorithms in steps have these in the place of the last four. A piece is loaded, then each step follows a gate;
       one piece comes after the other. serve: what `peer` takes of ours in step s, and where it is in the slot. */
    int (*steps)(const pd_job *);
    void (*load)(const pd_job *, int64_t k);
    void (*run)(const pd_job *, int64_t k, int s); /* the last step puts the result into its place */
    pd_span (*serve)(const pd_job *, int64_t k, int s, int peer);
    const pd_schedule *schedule; /* not NULL: it adds in another order than the tree's */
    pd_slot_use places;          /* how much of a slot it needs */
    void (*cost)(const pd_job *, int64_t k, pd_cost *); /* adds the bytes of piece k to the cost; NULL: no bytes */
} pd_algo;

/* For W ranks and n bytes. Steps are gates on the critical path; bytes are those that one rank reads or writes in
   shared memory. gather_sum      1 step per piece,  n written, n(W-1) read: for small n scatter_gather  1 step per
   piece + 1,  n(W-1)/W + n/W written, 2n(W-1)/W read: the ring's bytes slot_sum        the same bytes, but each cache
   line is moved once in each direction; only where all share memory direct_sum      2 steps,  n(W-1)/W read and as much
   written; without slots, for data in a symmetric segment */
extern const pd_algo pd_algo_gather_sum, pd_algo_scatter_gather, pd_algo_slot_sum, pd_algo_direct_sum;
/* For H hosts of L ranks, over messages: 3 steps per piece. A rank writes n and reads 2n(L-1)/L bytes in its host's
   shared memory, and sends n/L to, and receives n/L from, each of the H - 1 other hosts. For two hosts that is the
   least possible; scatter_gather sends L times as much. */
extern const pd_algo pd_algo_hierarchical;
/* Only for order="fast", by a schedule (schedule.h): as many steps as it has, n bytes written, its bytes read. */
extern const pd_algo pd_algo_ring, pd_algo_halving;
/* Only for order="fast", by the mesh's own all_reduce (mesh.h), which begins after run(k, 0). */
extern const pd_algo pd_algo_outside;
/* reduce_scatter of n bytes per rank: n(W-1)/W written, as much read; direct: only the result is written. */
extern const pd_algo pd_algo_reduce_scatter, pd_algo_direct_reduce_scatter;
/* root writes n, the others read n; direct: the others read the root's memory. */
extern const pd_algo pd_algo_broadcast, pd_algo_direct_broadcast;
/* all_gather, gather: n written; a rank that gets the result reads n(W-1). scatter: the root writes n(W-1)/W, the
   others read n/W. all_to_all: n(W-1)/W written and read. Barrier: no pieces. */
extern const pd_algo pd_algo_all_gather, pd_algo_scatter, pd_algo_all_to_all, pd_algo_barrier;
/* The same with parts of different sizes (parts.h), in as many pieces as the largest part has. For all_gather each
   entry of gives is this rank's input; for reduce_scatter takes[rank] is the result. */
/* Takes rank r's part, all of which is in its slot or is ours. */
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
/* Part p of `parts` has elements [edge(p), edge(p + 1)) of n. Parts are even, and cut at multiples of 64 elements,
   which are whole cache lines. */
static inline int64_t pd_part_edge(int64_t n, int parts, int p) {
    int64_t blocks = (n + 63) / 64, edge = blocks * p / parts * 64;
    return edge < n ? edge : n;
}
static inline int64_t pd_job_edge(const pd_job *j, int64_t n, int r) { return pd_part_edge(n, j->size, r); }

/* How many of a sum's inputs are this rank's. */
static inline int pd_job_own(const pd_job *j) { return j->blocks ? pd_blocks_of(j->blocks, j->rank) : 1; }
/* How many inputs a sum has. */
static inline int pd_job_inputs(const pd_job *j) { return j->blocks ? j->blocks->count : j->size; }
static inline size_t pd_job_others(const pd_job *j) { return (size_t)(pd_job_inputs(j) - pd_job_own(j)); }
/* Sets j->in to a sum's inputs: this rank's at `own`, the others' at `at` in their slots. */
void pd_job_gather(const pd_job *j, int64_t k, const char *own, size_t at);
/* out = scale * the sum of n elements of j->in, from element `at` on. */
static inline void pd_job_sum(const pd_job *j, int64_t at, char *out, int64_t n) {
    pd_reduce_tree(j->dtype, j->reduce, pd_job_inputs(j), j->blocks ? j->blocks->split : NULL, j->in, at, out, n,
                   j->scale);
}

static inline bool pd_job_takes(const pd_job *j, int rank) { return j->root < 0 || j->root == rank; }
/* How many pieces n elements have. */
static inline int64_t pd_pieces_of(const pd_job *j, int64_t n) {
    return n <= j->piece ? n > 0 : (n + j->piece - 1) / j->piece;
}

/* Sets j->piece to pieces of so many bytes and returns how many pieces `count` elements have. */
static inline int64_t pd_plan_pieces(const pd_algo *a, pd_job *j, size_t bytes, int64_t count) {
    pd_dtype kept = a->steps ? pd_reduce_partial(j->dtype) : j->dtype;
    int places = a->places == PD_PLACE_ALL ? j->size : a->places == PD_PLACE_OTHERS ? j->size - 1 : 1;
    if (j->blocks) places *= j->blocks->parts;
    j->piece = (int64_t)(bytes / pd_dtype_size(kept));
    if (places > 1) j->piece /= places;
    if (j->piece >= 64) j->piece &= ~(int64_t)63; /* whole cache lines */
    return pd_pieces_of(j, count);
}

/* Moves count the bytes that they read of other ranks and write for them. Bytes that messages carry are counted where
   they are sent. near: in the shared memory of our host, in a job that also has messages. */
static inline void pd_count_read(const pd_job *j, size_t bytes) { j->counted->read[j->messages] += (int64_t)bytes; }
static inline void pd_count_wrote(const pd_job *j, size_t bytes) {
    j->counted->wrote[PD_LEVEL_MEMORY] += j->messages ? 0 : (int64_t)bytes;
}
static inline void pd_count_near(const pd_job *j, size_t wrote, size_t read) {
    j->counted->wrote[PD_LEVEL_MEMORY] += (int64_t)wrote;
    j->counted->read[PD_LEVEL_MEMORY] += (int64_t)read;
}

/* cost.c: the cost functions of the algorithms. */
#define PD_COSTS(F)                                                                                                \
    F(all_to_takers) F(scatter_gather) F(slot_sum) F(direct_sum) F(each_to_each) F(direct_reduce_scatter)           \
    F(broadcast) F(direct_broadcast) F(scatter) F(all_gather_parts) F(all_to_all_parts) F(reduce_scatter_parts)     \
    F(schedule) F(hierarchical)
#define PD_COST(name) void pd_cost_##name(const pd_job *j, int64_t k, pd_cost *c);
PD_COSTS(PD_COST)
#undef PD_COST

/* The `put` of several algorithms: the whole piece, for the ranks that get the result; or one part for each peer. */
pd_span pd_job_put_all(const pd_job *j, int64_t k, int peer);
pd_span pd_job_put_part(const pd_job *j, int64_t k, int peer);

#endif
