#include "data/order.h"

#include "base/mem.h"
#include "base/rng.h"

/* Few bits need more rounds. Both numbers are multiples of 4, and even: the halves end where they began. */
enum { ROUNDS = 8, ROUNDS_OF_FEW = 24, FEW = 16, STREAM = 0x0dd5 };

/* The permutation of one block. */
typedef struct network {
    int64_t block; /* -1: none so far */
    uint64_t size;
    int low, high, rounds; /* bits of the halves */
    uint32_t key[ROUNDS_OF_FEW];
} network;

static void prepare(network *f, int64_t block, uint64_t size, uint64_t seed, uint64_t epoch, uint32_t layer) {
    if (f->block == block && f->size == size) return;
    int bits = 2;
    while (bits < 62 && (1ull << bits) < size) bits++;
    f->block = block;
    f->size = size;
    f->low = bits / 2;
    f->high = bits - bits / 2;
    f->rounds = bits < FEW ? ROUNDS_OF_FEW : ROUNDS;
    pd_philox own = pd_philox_at(seed, STREAM + layer, epoch, 0);
    uint64_t key = (uint64_t)own.v[0] << 32 | own.v[1];
    for (int r = 0; r < f->rounds; r += 4) {
        pd_philox drawn = pd_philox_at(key, STREAM + layer, (uint64_t)block, (uint32_t)r);
        for (int i = 0; i < 4; i++) f->key[r + i] = drawn.v[i];
    }
}

static uint64_t permuted(const network *f, uint64_t x) {
    if (f->size < 2) return x;
    uint64_t masks[2] = {(1ull << f->high) - 1, (1ull << f->low) - 1};
    do {
        uint64_t left = x >> f->low, right = x & masks[1];
        for (int r = 0; r < f->rounds; r++) {
            uint64_t mixed = left ^ (pd_drawn((uint32_t)right, f->key[r]) & masks[r & 1]);
            left = right;
            right = mixed;
        }
        x = left << f->low | right;
    } while (x >= f->size);
    return x;
}

/* One layer: the blocks have `size` elements, the first one `early` fewer, and the last one ends at n. */
typedef struct layer {
    int64_t n, size, early;
    uint64_t seed, epoch;
    uint32_t number;
    network last;
} layer;

static int64_t within(layer *l, int64_t p) {
    /* p + early may not fit int64 in an endless sequence, but does in uint64 */
    uint64_t block = ((uint64_t)p + (uint64_t)l->early) / (uint64_t)l->size;
    uint64_t from = block * (uint64_t)l->size, to = from + (uint64_t)l->size;
    from = block ? from - (uint64_t)l->early : 0;
    to -= (uint64_t)l->early;
    if (to > (uint64_t)l->n) to = (uint64_t)l->n;
    prepare(&l->last, (int64_t)block, to - from, l->seed, l->epoch, l->number);
    return (int64_t)(from + permuted(&l->last, (uint64_t)p - from));
}

void pd_order(int64_t n, int64_t window, uint64_t seed, uint64_t epoch, const pd_numbers *places, int64_t *to) {
    bool whole = window >= n;
    int64_t half = whole ? n : window - window / 2, other = whole ? 1 : window + 1 - half;
    layer inner = {n, half, 0, seed, epoch, 0, {.block = -1}};
    layer outer = {n, other, whole ? 0 : other / 2, seed, epoch, 1, {.block = -1}};
    for (int64_t i = 0; i < places->n; i++) {
        int64_t p = pd_number_at(places, i);
        to[i] = within(&inner, whole ? p : within(&outer, p));
    }
}

pd_status pd_interleave(const int64_t *counts, int64_t files, int64_t cycle, int64_t *to) {
    typedef struct slot { bool open; int64_t next, end; } slot;
    slot *slots;
    int64_t file = 0, first = 0, open = 0;
    PD_TRY(pd_calloc((size_t)cycle * sizeof *slots, "interleave", &slots));
    for (int64_t i = 0; open || file < files; i = (i + 1) % cycle) {
        slot *s = &slots[i];
        if (!s->open && file < files) {
            *s = (slot){true, first, first + counts[file]};
            first += counts[file++];
            open++;
        }
        if (s->next < s->end) {
            *to++ = s->next++;
        } else if (s->open) {
            s->open = false;
            open--;
        }
    }
    pd_free(slots);
    return PD_OK;
}
