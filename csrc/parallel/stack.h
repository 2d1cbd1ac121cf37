/* Sums of gradients while a rank runs its logical shards one after the other (comm/algo/blocks.h).

   The shards of a block of 2^m come in ascending order. Their gradients, the leaves, are added like a binary counter:
   level l holds the sum of 2^l shards, and shard i is added to as many levels as i ends in ones. So every sum of the
   tree T is made as soon as both of its sides are there:

     shard 0   level 0 = g0
     shard 1   level 1 = level 0 + g1
     shard 2   level 0 = g2
     shard 3   level 2 = level 1 + (level 0 + g3)

   The highest two levels are never both in use, and are the place from which the ranks add up (flat.h); the others are
   memory of this rank alone. So a block of 1, 2, 4, 8 shards needs 1, 1, 2, 3 times the memory of the gradients. An
   even shard's gradient is not copied: backward writes it into level 0. A shard's gradients may come in any order of
   pieces.

   On a GPU the same is done by one launch for each gradient that is added, with the same bits.

   A piece that a shard does not reach counts as zeros. Nothing is written for a piece until it is reached, so frozen
   parameters cost one fill a step. */
#ifndef PD_PARALLEL_STACK_H
#define PD_PARALLEL_STACK_H

#include "parallel/flat.h"

typedef struct pd_stack {
    const pd_flat *sums; /* [borrowed] the sums of blocks: part p of each bucket */
    pd_flat levels;      /* the lower levels, one in each part; no buckets: there are none */
    bool *seen;          /* by piece: a shard of this block has reached it */
} pd_stack;

/* For blocks of up to `most` shards. sums must outlive it. */
pd_status pd_stack_init(pd_stack *s, const pd_flat *sums, int most);
void pd_stack_fini(pd_stack *s);

typedef struct pd_turn { /* a shard of this rank: number `at` of a block of `size`, whose sum is part `part` */
    int size, at, part;
} pd_turn;

/* The flat memory and the part of it in which backward should write this shard's gradients; false: anywhere. */
bool pd_stack_home(const pd_stack *s, pd_turn t, const pd_flat **flat, int *part);
/* Adds a shard's gradient of a piece, in the order of the piece's elements and in its dtype; NULL: the shard has not
   reached it. Once for each piece and shard. Every shard of a block calls it for all pieces. */
pd_status pd_stack_add(pd_stack *s, pd_turn t, const pd_piece *p, const void *gradient);

#endif
