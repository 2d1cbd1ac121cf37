/* Collectives with parts of different sizes: each rank says how much it gives to, and takes from, each rank.

   A table has one part for each rank: its address and its number of elements. What rank s gives to rank d must have the
   size that d takes from s. For all_gather and reduce_scatter all ranks give the same list of sizes, and its hash is
   compared as a part of the identity. For all_to_all only the two ranks of a pair know a size. So each rank shows one
   word on the board: the sum of the hashes of what it gives, minus the sum of the hashes of what it takes. The words of
   all ranks add up to 0 unless a pair disagrees. The tables themselves are sent only to explain that error. */
#ifndef PD_COMM_PARTS_H
#define PD_COMM_PARTS_H

#include "base/dtype.h"
#include "base/status.h"

typedef struct pd_part {
    char *data; /* of a part that is given: only read */
    int64_t count;
} pd_part;

/* This rank's word; the words of all ranks add up to 0 if all pairs agree. */
uint64_t pd_parts_balance(int rank, int size, const pd_part *gives, const pd_part *takes);
/* The hash of a list of sizes that must be equal on all ranks. */
uint64_t pd_parts_hash(int size, const pd_part *parts);
int64_t pd_parts_largest(int size, const pd_part *parts);
int64_t pd_parts_total(int size, const pd_part *parts);

#endif
