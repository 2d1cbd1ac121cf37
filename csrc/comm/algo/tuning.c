#include "comm/algo/tuning.h"

/* Measured (2 cores; us for gather_sum, slot_sum): 2 ranks 512 B 1.7, 1.9; 1 KiB 1.9, 1.9; 4 KiB 2.7, 2.4; 16 KiB 6.0,
   4.3; 1 MiB 190, 120. 4 ranks 4 KiB 15-20, 19-21; 16 KiB 28-34, 23-28; 64 KiB 55, 39. By messages (scatter_gather) 4
   ranks 8 KiB 6.2, 7.8; 16 KiB 10.2, 11.6; 64 KiB 24, 17: beyond that the bytes that one rank reads stay the same.
   Segments (us by slots, direct): all_reduce 1 KiB 1.9, 1.9; 4 KiB 2.4, 2.0; 16 KiB 4.4, 2.3; broadcast 16 KiB 2.2,
   3.1; 32 KiB 3.3, 1.2. On one machine ring and halving are not faster for certain. */
pd_tuning pd_tuning_default(bool mesh, int world) {
    int32_t gather = mesh ? (64 << 10) / (world > 4 ? world : 4) : world == 2 ? 1 << 10 : 4 << 10;
    return (pd_tuning){.mesh = mesh, .world = world, .gather = gather, .direct = 16 << 10, .piece = 256 << 10,
                       .block = 64 << 10};
}

pd_status pd_tuning_check(const pd_tuning *t) {
    bool good = t->gather >= 0 && t->direct >= 0 && t->piece >= 1024 && t->block >= 1024 && t->fast >= 0 &&
                t->fast <= 2 && t->fast_from >= 0;
    if (good) return PD_OK;
    return pd_fail(PD_E_VALUE,
                   "init: the tuning for %d ranks is not valid: got gather=%d direct=%d piece=%d block=%d fast=%d "
                   "fast_from=%d (expected numbers of bytes, piece and block at least 1024, fast 0 to 2)",
                   t->world, t->gather, t->direct, t->piece, t->block, t->fast, t->fast_from);
}

pd_status pd_tuning_forced(const char *name, bool fast, const pd_algo **out) {
    static const pd_algo *const known[] = {&pd_algo_gather_sum, &pd_algo_scatter_gather, &pd_algo_slot_sum,
                                           &pd_algo_hierarchical, &pd_algo_ring, &pd_algo_halving};
    *out = NULL;
    if (!name || !*name) return PD_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i]->name) && (fast || !known[i]->schedule)) *out = known[i];
    if (*out) return PD_OK;
    return pd_fail(PD_E_VALUE,
                   "init: PYDIST_ALGO is '%s' (expected gather_sum, scatter_gather, slot_sum or hierarchical; with "
                   "order=\"fast\" also ring or halving)",
                   name);
}

const pd_algo *pd_tuning_pick(const pd_tuning *t, bool fast, bool hosts, size_t bytes) {
    if (fast && t->fast && bytes >= (size_t)t->fast_from) return t->fast == 1 ? &pd_algo_ring : &pd_algo_halving;
    if (bytes <= (size_t)t->gather) return &pd_algo_gather_sum;
    return hosts ? &pd_algo_hierarchical : t->mesh ? &pd_algo_scatter_gather : &pd_algo_slot_sum;
}
