/* Logical shards: how V shards of a step are dealt out to W ranks, and the order in which their sums are added.

   V is a power of two. A rank has q shards, of which at most two bits are set, so they are at most two blocks: a block
   is 2^k shards [lo, lo + 2^k) whose lo is a multiple of 2^k, which is a subtree of the order of reduction T(0, V)
   (reduce.h). The rank adds up a block by itself; the ranks add up the blocks, which are the nodes of the table. Every
   sum of the tree is made exactly once, by whoever has both of its sides. So the result has the same bits for every
   table, and those of a reduction of V leaves.

   V = 8, W = 3, shares 3, 3, 2:

     block   [0, 2)  [2, 4)  [4, 6)  [6, 7)  [7, 8)
     rank      0       1       2       0       1

   Blocks are laid out from 0: the largest first, equal ones by rank. Sizes that descend are always aligned. With
   several hosts, first the hosts' shares are laid out like this, then the blocks of a host's ranks in the host's
   blocks, so that ranks of a host add up their shards before anything is sent.

   This file is pure: numbers in, numbers out. */
#ifndef PD_COMM_BLOCKS_H
#define PD_COMM_BLOCKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define PD_SHARDS_MAX 1024
#define PD_BLOCKS_OF_RANK 2

typedef struct pd_shard_block {
    int16_t lo, size; /* shards [lo, lo + size) */
    int16_t rank;
    int16_t part;     /* 0: the first block of that rank, 1: its second one, which has a larger lo */
} pd_shard_block;

typedef struct pd_blocks {
    atomic_int refs;
    int shards, ranks, count;
    int parts;      /* the most blocks that a rank has: 1 or 2 */
    int32_t hash;   /* of the whole table, never 0 */
    int hosts;      /* so many hosts have one subtree each, all of one size; 0: it is not so */
    pd_shard_block *of;   /* `count` blocks, by lo */
    int16_t *split; /* the order in which blocks are added (pd_reduce_tree) */
} pd_blocks;

/* [new] The table for these shares, by rank. hosts: the host of each rank, or NULL: there is one. PD_E_VALUE: shards is
   no power of two up to PD_SHARDS_MAX, the shares do not add up to it, or one has more than two bits. */
pd_status pd_blocks_new(int shards, int ranks, const int *shares, const int *hosts, pd_blocks **out);
void pd_blocks_retain(pd_blocks *b);
void pd_blocks_release(pd_blocks *b);

int pd_blocks_of(const pd_blocks *b, int rank); /* how many blocks a rank has */
const pd_shard_block *pd_blocks_at(const pd_blocks *b, int rank, int part); /* block `part` of a rank */
/* The blocks inside shards [lo, lo + size), which is a subtree that no block crosses: the number of the first one,
   how many there are, and their split. */
void pd_blocks_inside(const pd_blocks *b, int lo, int size, int *first, int *count, const int16_t **split);
int pd_blocks_owner(const pd_blocks *b, int shard);

/* The shares that end a step soonest, if rank r takes times[r] (1 to PD_SHARE_TIME_MAX, any unit) for a shard: the
   least largest share * time, of such shares the least sum of squares of these products, of such the ones that give
   lower ranks more. times NULL: all are equal. PD_E_VALUE: a time out of range, or shards is no power of two. Takes
   about 100 * shards * ranks steps. */
#define PD_SHARE_TIME_MAX 1023
pd_status pd_blocks_share(int shards, int ranks, const uint16_t *times, int *shares);

#endif
