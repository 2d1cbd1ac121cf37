#include "comm/algo/schedule.h"

/* ---- ring -------------------------------------------------------------------------------------------------------- */

static int ring_parts(int size) { return size; }
static int ring_steps(int size) { return 2 * (size - 1); }

/* A part goes round the ranks twice, first as a growing sum, then as the result. Part p begins at rank p and is
   complete at rank p - 1. */
static pd_step ring_step(int size, int rank, int s) {
    bool add = s < size - 1;
    int back = add ? s + 1 : s - (size - 1), part = (rank - back + size) % size;
    return (pd_step){(rank + size - 1) % size, part, part + 1, add};
}

const pd_schedule pd_schedule_ring = {ring_parts, ring_steps, ring_step};

/* ---- halving and doubling ---------------------------------------------------------------------------------------- */

static int power_below(int size) {
    int p = 1;
    while (p * 2 <= size) p *= 2;
    return p;
}

static int log2_of(int power) { return power == 1 ? 0 : 1 + log2_of(power / 2); }

static int halving_steps(int size) {
    int p = power_below(size);
    return 2 * log2_of(p) + (size > p ? 2 : 0);
}

/* Among the first p ranks: a pair halves its block of 2 * mask parts, and each keeps the half that contains its
   number. */
static pd_step exchange(int rank, int mask, bool add) {
    int peer = rank ^ mask, lo = (add ? rank : peer) & ~(mask - 1);
    return (pd_step){peer, lo, lo + mask, add};
}

static pd_step halving_step(int size, int rank, int s) {
    int p = power_below(size), rounds = log2_of(p), extra = size - p;
    if (extra && s == 0) return (pd_step){rank < extra ? rank + p : -1, 0, p, true};
    if (extra && s == 2 * rounds + 1) return (pd_step){rank >= p ? rank - p : -1, 0, p, false};
    if (extra) s--;
    if (rank >= p) return (pd_step){.from = -1};
    return s < rounds ? exchange(rank, p >> (s + 1), true) : exchange(rank, 1 << (s - rounds), false);
}

const pd_schedule pd_schedule_halving = {power_below, halving_steps, halving_step};
