/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011).

   A draw is a pure function of (seed, stream, counter): no state but the counter that the caller keeps, so results do
   not depend on threads, workers or the order of evaluation.

   Ranks that seed alike draw alike, so parameters and permutations start equal; what has to differ between replicas of
   one model (dropout's masks) is drawn in the stream of the logical shard, by default the rank. The counter goes on in
   step either way. */
#ifndef PD_BASE_RNG_H
#define PD_BASE_RNG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/host_device.h"

typedef struct pd_philox { uint32_t v[4]; } pd_philox;

PD_BOTH pd_philox pd_philox_at(uint64_t seed, uint32_t stream, uint64_t call, uint32_t block) {
    uint32_t c0 = block, c1 = stream, c2 = (uint32_t)call, c3 = (uint32_t)(call >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    pd_philox drawn = {{c0, c1, c2, c3}};
    return drawn;
}

/* [0, 1) with 24 and 53 bits. */
PD_BOTH float pd_u32_to_f32(uint32_t u) { return (float)(u >> 8) * 0x1p-24f; }
PD_BOTH double pd_u64_to_f64(uint64_t u) { return (double)(u >> 11) * 0x1p-53; }

/* 32 random bits of an index (lowbias32 of hash-prospector), so that they depend on nothing else. */
PD_BOTH uint32_t pd_drawn(uint32_t index, uint32_t key) {
    uint32_t h = index * 0x9e3779b1u + key;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    return h ^ (h >> 16);
}
/* The upper half of a float's bits u, one more or not with the probability of being nearer to that: the expected result
   is the float. */
PD_BOTH uint16_t pd_rounded_by(uint32_t u, uint32_t drawn) {
    bool finite = (u & 0x7f800000u) != 0x7f800000u, nan = (u & 0x7fffffffu) > 0x7f800000u;
    return (uint16_t)(finite ? (u + (drawn >> 16)) >> 16 : nan ? (u >> 16) | 0x40u : u >> 16);
}

/* The key of one random op call: copied into the op's attributes so that replay and checkpointing give the same
   draw. */
typedef struct pd_rng_key {
    uint64_t seed, call;
    uint32_t stream;
} pd_rng_key;

/* The process-wide default generator and shard; a thread may have its own. */
void pd_rng_seed(uint64_t seed);
uint64_t pd_rng_initial_seed(void);
pd_rng_key pd_rng_next(void);             /* takes the next call number */
pd_rng_key pd_rng_next_of_shard(void);    /* the same, in the shard's own stream */
void pd_rng_set_shard(uint32_t shard);    /* 0: as in one process */
void pd_rng_get(pd_rng_key *state);       /* {seed, next call, stream} */
void pd_rng_set(const pd_rng_key *state);
void pd_rng_own(int own); /* 1: this thread gets a generator and shard of its own, copies of the default */

#endif
