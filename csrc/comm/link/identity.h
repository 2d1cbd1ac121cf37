/* Every collective has an identity, and the board where ranks compare it
   (docs/internals/design.md, "Identities and the board").

   Each rank owns two lines, one for even and one for odd sequence numbers. It fills line[seq & 1] and publishes it by
   storing the sequence number last. Every rank reads all lines before it touches data.

     rank r:  line[0] | line[1] | step | asleep       128 bytes apart: hardware prefetches cache lines in pairs

   Collective n + 2 may overwrite the line of n: a rank posts n + 1 only after it has read all lines of n, and posts n +
   2 only after all ranks have posted n + 1. Every word has one writer. The memory is made for one epoch of one group
   and never used again; the hash contains the epoch, too. */
#ifndef PD_COMM_IDENTITY_H
#define PD_COMM_IDENTITY_H

#include <stdatomic.h>

#include "base/dtype.h"
#include "base/status.h"

typedef enum pd_collective {
    PD_COLL_ALL_REDUCE,
    PD_COLL_BROADCAST,
    PD_COLL_BARRIER,
    PD_COLL_ALL_GATHER,
    PD_COLL_REDUCE_SCATTER,
    PD_COLL_REDUCE,
    PD_COLL_GATHER,
    PD_COLL_SCATTER,
    PD_COLL_ALL_TO_ALL,
    PD_COLL_ALL_GATHER_PARTS, /* with parts of different sizes: count is the sum over all parts, */
    PD_COLL_REDUCE_SCATTER_PARTS,
    PD_COLL_ALL_TO_ALL_PARTS, /* but here that of the largest part that this rank gives, which is not compared */
    PD_COLL_INIT,    /* from here on: all_gathers of the engine itself, under names of their own */
    PD_COLL_SEGMENT,
    PD_COLL_REDUCE_UNIT, /* but this is a barrier; count: gradients of the unit with the number `root` */
    PD_COLL_WRITE_SHARDS, /* the barrier before shards are written (group/readers.h) */
    PD_COLL_SEND,
    PD_COLL_RECV, /* messages, which are not on the board: root is the peer, scale the tag */
    PD_COLL_READ_SHARDS, /* a wait that is not on the board: group/readers.h */
    PD_COLL_COUNT
} pd_collective;

typedef enum pd_reduce {
    PD_REDUCE_SUM, PD_REDUCE_AVG, PD_REDUCE_PRODUCT, PD_REDUCE_MIN, PD_REDUCE_MAX,
    PD_REDUCE_BAND, PD_REDUCE_BOR, PD_REDUCE_BXOR,
    PD_REDUCE_PREMUL_SUM, /* the sum of inputs that each rank has multiplied by its own factor */
    PD_REDUCE_COUNT
} pd_reduce;

extern const char *const pd_collective_names[PD_COLL_COUNT];
extern const char *const pd_reduce_names[PD_REDUCE_COUNT];

typedef struct pd_identity { /* what must be equal on all ranks */
    uint8_t coll, dtype, reduce, device; /* device: pd_device_kind, perhaps with PD_IDENTITY_CAPTURED */
    int32_t root;   /* 0 if there is none; of a sum over logical shards: the hash of their table; of parts: PD_ALONG */
    int64_t count;  /* elements */
    double scale;   /* 1: none */
} pd_identity;
#define PD_IDENTITY_CAPTURED 0x80 /* it is captured into a CUDA graph */

typedef struct pd_line {
    _Alignas(128) atomic_uint seq; /* stored last */
    uint32_t segment;              /* the symmetric segment in which the data are; 0: none */
    uint64_t hash;
    pd_identity id;
    uint64_t site;                 /* carried, never compared */
    uint64_t offset;               /* of the data in that segment */
    uint64_t balance;              /* PD_COLL_ALL_TO_ALL_PARTS: pd_parts_balance; else the work's `places` */
} pd_line;

typedef struct pd_board {
    pd_line line[2];
    _Alignas(128) atomic_uint step;   /* rounds that long collectives have done so far */
    _Alignas(128) atomic_uint asleep; /* 1: this rank sleeps on a word of another */
} pd_board;
#define PD_LINE_BYTES (offsetof(pd_line, balance) + 8) /* bytes of its members */
_Static_assert(PD_LINE_BYTES <= 64, "a line of the board is one cache line");

uint64_t pd_identity_hash(const pd_identity *id, uint32_t epoch);
/* "all_reduce(float32[4], SUM)"; returns the length. */
int pd_identity_text(const pd_identity *id, char *text, size_t size);

#endif
