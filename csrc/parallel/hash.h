/* A 64-bit hash of memory, to see whether replicas still have the same bits. Not against an adversary.

   Four lanes take 8 bytes each in turn: lane = rotate(lane + word * P1, 31) * P2; then the lanes, the tail's bytes and
   the length are mixed, and the bits spread by two multiply-and-shift rounds. The same on every machine of one byte
   order. */
#ifndef PD_PARALLEL_HASH_H
#define PD_PARALLEL_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t pd_hash64(const void *data, size_t bytes);

#endif
