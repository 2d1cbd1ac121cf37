#include "base/rng.h"

#include <pthread.h>
#include <stdatomic.h>

/* PyTorch's default seed, documented for torch.initial_seed(). */
static pd_rng_key shared = {.seed = 67280421310721u};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint shared_shard;
static _Thread_local pd_rng_key mine;
static _Thread_local uint32_t my_shard;
static _Thread_local int is_own;

static pd_rng_key update(const pd_rng_key *set, int advance) {
    pd_rng_key *g = is_own ? &mine : &shared;
    pthread_mutex_lock(&lock);
    pd_rng_key was = *g;
    if (set) *g = *set;
    g->call += (uint64_t)advance;
    pthread_mutex_unlock(&lock);
    return was;
}

void pd_rng_seed(uint64_t seed) {
    pd_rng_key k = update(0, 0);
    k.seed = seed;
    k.call = 0;
    update(&k, 0);
}
uint64_t pd_rng_initial_seed(void) { return update(0, 0).seed; }
pd_rng_key pd_rng_next(void) { return update(0, 1); }
static uint32_t shard(void) { return is_own ? my_shard : atomic_load_explicit(&shared_shard, memory_order_relaxed); }
pd_rng_key pd_rng_next_of_shard(void) {
    pd_rng_key k = update(0, 1);
    k.stream += shard();
    return k;
}
void pd_rng_set_shard(uint32_t n) {
    if (is_own) my_shard = n;
    else atomic_store_explicit(&shared_shard, n, memory_order_relaxed);
}
void pd_rng_get(pd_rng_key *state) { *state = update(0, 0); }
void pd_rng_set(const pd_rng_key *state) { update(state, 0); }
void pd_rng_own(int own) {
    if (own && !is_own) {
        mine = update(0, 0);
        my_shard = shard();
    }
    is_own = own;
}
