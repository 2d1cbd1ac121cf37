/* Parts of different sizes: collectives in which each rank says how much goes to each rank, and comes from it.

   A table has one part per rank: where it lies and how many elements it has. What rank s gives to rank d has to be what
   d takes from s. For all_gather and reduce_scatter the sizes are one list that all ranks give alike; its hash is
   compared as part of the identity. For all_to_all only the two ends of a pair know a size. So each rank shows one word
   on the board: the sum of the hashes of what it gives, minus the sum of the hashes of what it takes. Over all ranks
   these words add up to 0, or some pair disagrees; the tables themselves travel only to explain that error. */
#ifndef PD_COMM_PARTS_H
#define PD_COMM_PARTS_H

#include "base/dtype.h"
#include "base/status.h"

typedef struct pd_part {
    char *data; /* only read where it is given */
    int64_t count;
} pd_part;

/* Adds up to 0 over all ranks where all agree. */
uint64_t pd_parts_balance(int rank, int size, const pd_part *gives, const pd_part *takes);
/* Of a list of sizes that has to be equal on all ranks. */
uint64_t pd_parts_hash(int size, const pd_part *parts);
int64_t pd_parts_largest(int size, const pd_part *parts);
int64_t pd_parts_total(int size, const pd_part *parts);

#endif
