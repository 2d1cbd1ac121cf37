/* A 64-bit hash of memory, to see whether replicas still have the same bits. It does not protect against an adversary.

   Four lanes take 8 bytes each in turn: lane = rotate(lane + word * P1, 31) * P2. Then the lanes, the last bytes and
   the length are mixed, and two multiply-and-shift rounds spread the bits. Machines of the same byte order get the same
   hash. */
#ifndef PD_PARALLEL_HASH_H
#define PD_PARALLEL_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t pd_hash64(const void *data, size_t bytes);

#endif
