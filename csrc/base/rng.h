/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011).

   A draw is a pure function of (seed, stream, counter). The only state is a counter that the caller keeps, so results
   do not depend on threads, workers or the order of evaluation.

   Ranks with the same seed draw the same numbers, so their parameters and permutations start equal. What has to differ
   between replicas of a model (dropout's masks) is drawn from the stream of the logical shard, by default the rank.
   Both kinds of draws advance the same counter, so the ranks' counters stay equal. */
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

/* Uniform in [0, 1), with 24 and 53 bits. */
PD_BOTH float pd_u32_to_f32(uint32_t u) { return (float)(u >> 8) * 0x1p-24f; }
PD_BOTH double pd_u64_to_f64(uint64_t u) { return (double)(u >> 11) * 0x1p-53; }

/* 32 random bits that depend on nothing but index and key (lowbias32 of hash-prospector). */
PD_BOTH uint32_t pd_drawn(uint32_t index, uint32_t key) {
    uint32_t h = index * 0x9e3779b1u + key;
    h = (h ^ (h >> 16)) * 0x7feb352du;
    h = (h ^ (h >> 15)) * 0x846ca68bu;
    return h ^ (h >> 16);
}
/* Stochastic rounding of a float to bfloat16: the upper half of its bits u, or one more, with probabilities such that
   the expected result is the float. */
PD_BOTH uint16_t pd_rounded_by(uint32_t u, uint32_t drawn) {
    bool finite = (u & 0x7f800000u) != 0x7f800000u, nan = (u & 0x7fffffffu) > 0x7f800000u;
    return (uint16_t)(finite ? (u + (drawn >> 16)) >> 16 : nan ? (u >> 16) | 0x40u : u >> 16);
}

/* The key of one call of a random op. The op's attributes keep a copy, so that a replay or a recomputed activation
   draws the same numbers. */
typedef struct pd_rng_key {
    uint64_t seed, call;
    uint32_t stream;
} pd_rng_key;

/* The generator and shard of the calling thread: the process's, unless the thread has its own (pd_rng_own). */
void pd_rng_seed(uint64_t seed);
uint64_t pd_rng_initial_seed(void);
pd_rng_key pd_rng_next(void);             /* takes the next call number */
pd_rng_key pd_rng_next_of_shard(void);    /* the same, in the stream of the shard */
void pd_rng_set_shard(uint32_t shard);    /* 0: as in one process */
void pd_rng_get(pd_rng_key *state);       /* {seed, next call, stream} */
void pd_rng_set(const pd_rng_key *state);
void pd_rng_own(int own); /* 1: this thread gets a generator and shard of its own, copies of the default */

#endif
