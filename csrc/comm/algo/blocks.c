#include "comm/algo/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool is_power(int n) { return n > 0 && !(n & (n - 1)); }
static int top_bit(int n) { return 1 << (31 - __builtin_clz((unsigned)n)); }

static pd_status check_shards(int shards, int ranks) {
    if (!is_power(shards) || shards > PD_SHARDS_MAX)
        return pd_fail(PD_E_VALUE, "logical shards: got %d (expected a power of two, 1 to %d)", shards, PD_SHARDS_MAX);
    if (ranks < 1) return pd_fail(PD_E_VALUE, "logical shards: got %d ranks (expected at least 1)", ranks);
    return PD_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct piece { /* a power of two that belongs to a rank or, first, to a host */
    int size, owner, lo;
} piece;

static int by_size(const void *a, const void *b) { /* the largest first, equal ones by owner */
    const piece *x = a, *y = b;
    return x->size != y->size ? y->size - x->size : x->owner - y->owner;
}
static int by_owner(const void *a, const void *b) { /* a piece of an owner that is larger lies before a smaller one */
    const piece *x = a, *y = b;
    return x->owner != y->owner ? x->owner - y->owner : y->size - x->size;
}
static int by_place(const void *a, const void *b) {
    const pd_shard_block *x = a, *y = b;
    return x->lo - y->lo;
}

/* Splits `share` into powers of two, the largest first; returns how many. */
static int pieces_of(int share, int owner, piece *out) {
    int n = 0;
    for (; share; share -= top_bit(share)) out[n++] = (piece){top_bit(share), owner, 0};
    return n;
}

/* Puts pieces into holes of the same total size, both from the largest to the smallest. Descending powers of two fill
   each hole exactly: none straddles the end of a larger one. */
static void fill_holes(const piece *holes, piece *pieces, int n) {
    int used = 0;
    for (int i = 0; i < n; i++) {
        pieces[i].lo = holes->lo + used;
        used += pieces[i].size;
        if (used == holes->size) holes++, used = 0;
    }
}

/* A host is known by its first rank. */
static int host_of(const int *hosts, int rank) {
    int first = 0;
    while (hosts && hosts[first] != hosts[rank]) first++;
    return first;
}

/* Lays out the hosts' shares in [0, shards); returns how many holes there are, host by host. */
static int lay_out_hosts(const pd_blocks *b, const int *shares, const int *hosts, piece *holes) {
    const piece all = {b->shards, 0, 0};
    int n = 0;
    for (int h = 0; h < b->ranks; h++) {
        int sum = 0;
        for (int r = h; r < b->ranks && host_of(hosts, h) == h; r++) sum += host_of(hosts, r) == h ? shares[r] : 0;
        n += pieces_of(sum, h, holes + n);
    }
    qsort(holes, (size_t)n, sizeof *holes, by_size);
    fill_holes(&all, holes, n);
    qsort(holes, (size_t)n, sizeof *holes, by_owner);
    return n;
}

/* Lays out the ranks of a host in its holes. */
static void lay_out_ranks(pd_blocks *b, const int *shares, const int *hosts, const piece *holes, piece *room) {
    int n = 0;
    for (int r = 0; r < b->ranks; r++)
        if (host_of(hosts, r) == holes->owner) n += pieces_of(shares[r], r, room + n);
    qsort(room, (size_t)n, sizeof *room, by_size);
    fill_holes(holes, room, n);
    for (int i = 0; i < n; i++)
        b->of[b->count++] = (pd_shard_block){.lo = (int16_t)room[i].lo, .size = (int16_t)room[i].size,
                                       .rank = (int16_t)room[i].owner};
}

/* `room` has two pieces for each shard. */
static void lay_out(pd_blocks *b, const int *shares, const int *hosts, piece *room) {
    piece *holes = room + b->shards;
    int n = lay_out_hosts(b, shares, hosts, holes);
    b->hosts = n;
    for (int i = 1; i < n; i++)
        if (holes[i].owner == holes[i - 1].owner || holes[i].size != holes->size) b->hosts = 0;
    for (int i = 0; i < n; i++)
        if (i == 0 || holes[i].owner != holes[i - 1].owner) lay_out_ranks(b, shares, hosts, holes + i, room);
}

/* Writes the splits of blocks [lo, hi), which are shards [first, first + size), in preorder from `at` on. */
static void write_splits(pd_blocks *b, int lo, int hi, int first, int size, int16_t *at) {
    int mid = lo;
    if (hi - lo < 2) return;
    while (b->of[mid].lo < first + size / 2) mid++;
    *at = (int16_t)(mid - lo);
    write_splits(b, lo, mid, first, size / 2, at + 1);
    write_splits(b, mid, hi, first + size / 2, size / 2, at + (mid - lo));
}

static int32_t hash_of(const pd_blocks *b) {
    uint32_t h = 2166136261u ^ (uint32_t)b->shards; /* FNV-1a over words, then every bit stirred */
    for (int i = 0; i < b->count; i++) {
        h = (h ^ (uint32_t)b->of[i].lo) * 16777619u;
        h = (h ^ (uint32_t)b->of[i].rank) * 16777619u;
    }
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    h ^= h >> 16;
    return (int32_t)(h ? h : 1);
}

static void finish_table(pd_blocks *b) {
    qsort(b->of, (size_t)b->count, sizeof *b->of, by_place);
    b->parts = 1;
    for (int i = 0; i < b->count; i++)
        for (int k = 0; k < i; k++)
            if (b->of[k].rank == b->of[i].rank) b->of[i].part = 1, b->parts = 2;
    write_splits(b, 0, b->count, 0, b->shards, b->split);
    b->hash = hash_of(b);
}

static pd_status check_shares(int shards, int ranks, const int *shares) {
    int sum = 0;
    for (int r = 0; r < ranks; r++) {
        if (shares[r] < 0 || shares[r] > shards || __builtin_popcount((unsigned)shares[r]) > PD_BLOCKS_OF_RANK)
            return pd_fail(PD_E_VALUE,
                           "logical shards: rank %d has %d of %d (expected a number with at most two bits set)", r,
                           shares[r], shards);
        sum += shares[r];
        if (sum > shards) break;
    }
    if (sum == shards) return PD_OK;
    return pd_fail(PD_E_VALUE, "logical shards: the ranks' shares add up to %s %d (expected exactly that)",
                   sum > shards ? "more than" : "less than", shards);
}

pd_status pd_blocks_new(int shards, int ranks, const int *shares, const int *hosts, pd_blocks **out) {
    pd_blocks *b = NULL;
    piece *room = NULL;
    PD_TRY(check_shards(shards, ranks));
    PD_TRY(check_shares(shards, ranks, shares));
    size_t most = (size_t)shards;
    PD_TRY(pd_calloc(sizeof *b + most * (sizeof *b->of + sizeof *b->split), "blocks", &b));
    b->of = (pd_shard_block *)(b + 1);
    b->split = (int16_t *)(b->of + most);
    atomic_init(&b->refs, 1);
    b->shards = shards;
    b->ranks = ranks;
    pd_status status = pd_malloc(2 * most * sizeof *room, "blocks", &room);
    if (status) {
        pd_blocks_release(b);
        return status;
    }
    lay_out(b, shares, hosts, room);
    pd_free(room);
    finish_table(b);
    *out = b;
    return PD_OK;
}

void pd_blocks_retain(pd_blocks *b) { atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed); }
void pd_blocks_release(pd_blocks *b) {
    if (b && atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1) pd_free(b);
}

int pd_blocks_of(const pd_blocks *b, int rank) {
    int n = 0;
    for (int i = 0; i < b->count; i++) n += b->of[i].rank == rank;
    return n;
}

const pd_shard_block *pd_blocks_at(const pd_blocks *b, int rank, int part) {
    for (int i = 0; i < b->count; i++)
        if (b->of[i].rank == rank && b->of[i].part == part) return &b->of[i];
    return NULL;
}

void pd_blocks_inside(const pd_blocks *b, int lo, int size, int *first, int *count, const int16_t **split) {
    int i = 0, end = b->count, begin = 0, width = b->shards;
    const int16_t *at = b->split;
    while (width > size) {
        int left = *at;
        bool right = lo >= begin + width / 2;
        width /= 2;
        at += right ? left : 1;
        if (right) i += left, begin += width;
        else end = i + left;
    }
    *first = i;
    *count = end - i;
    *split = at;
}

int pd_blocks_owner(const pd_blocks *b, int shard) {
    for (int i = 0; i < b->count; i++)
        if (shard >= b->of[i].lo && shard < b->of[i].lo + b->of[i].size) return b->of[i].rank;
    return -1;
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

/* All numbers up to `shards` with at most two bits, ascending; returns how many. */
static int allowed_shares(int shards, int16_t *out) {
    int n = 0;
    for (int q = 0; q <= shards; q++)
        if (__builtin_popcount((unsigned)q) <= PD_BLOCKS_OF_RANK) out[n++] = (int16_t)q;
    return n;
}

typedef struct plan {
    int shards, ranks, n;
    const uint16_t *times;
    int16_t q[PD_SHARDS_MAX]; /* the n allowed shares */
    int64_t *squares;         /* [rank][shards]: the least sum of squares of this and later ranks; -1: impossible */
} plan;

static int64_t time_of(const plan *p, int rank, int share) {
    return (int64_t)share * (p->times ? p->times[rank] : 1);
}
static int64_t *squares_at(const plan *p, int rank, int shards) {
    return &p->squares[(size_t)rank * ((size_t)p->shards + 1) + (size_t)shards];
}

/* The least largest time of all ranks. Uses row 0 of the squares for the times of later ranks. */
static int64_t least_time(const plan *p) {
    int64_t *most = squares_at(p, 0, 0);
    for (int s = 0; s <= p->shards; s++) most[s] = s ? -1 : 0;
    for (int r = p->ranks - 1; r >= 0; r--)
        for (int s = p->shards; s >= 0; s--) {
            int64_t best = -1;
            for (int i = 0; i < p->n && p->q[i] <= s; i++) {
                int64_t rest = most[s - p->q[i]], time = time_of(p, r, p->q[i]);
                if (rest >= 0 && (best < 0 || (rest > time ? rest : time) < best)) best = rest > time ? rest : time;
            }
            most[s] = best;
        }
    return most[p->shards];
}

static int64_t square(const plan *p, int rank, int share) {
    int64_t time = time_of(p, rank, share);
    return time * time;
}

/* The squares of rank r and later ones with s shards, where no rank takes longer than `limit`. */
static int64_t least_squares(const plan *p, int r, int s, int64_t limit) {
    int64_t best = -1;
    for (int i = 0; i < p->n && p->q[i] <= s && time_of(p, r, p->q[i]) <= limit; i++) {
        int64_t rest = *squares_at(p, r + 1, s - p->q[i]);
        if (rest < 0) continue;
        rest += square(p, r, p->q[i]);
        if (best < 0 || rest < best) best = rest;
    }
    return best;
}

static void choose_shares(const plan *p, int *shares) {
    const int64_t limit = least_time(p);
    for (int s = 0; s <= p->shards; s++) *squares_at(p, p->ranks, s) = s ? -1 : 0;
    for (int r = p->ranks - 1; r >= 0; r--)
        for (int s = 0; s <= p->shards; s++) *squares_at(p, r, s) = least_squares(p, r, s, limit);
    for (int r = 0, s = p->shards; r < p->ranks; s -= shares[r++]) /* of equal choices the largest */
        for (int i = 0; i < p->n && p->q[i] <= s && time_of(p, r, p->q[i]) <= limit; i++) {
            int64_t rest = *squares_at(p, r + 1, s - p->q[i]);
            if (rest >= 0 && rest + square(p, r, p->q[i]) == *squares_at(p, r, s)) shares[r] = p->q[i];
        }
}

pd_status pd_blocks_share(int shards, int ranks, const uint16_t *times, int *shares) {
    PD_TRY(check_shards(shards, ranks));
    for (int r = 0; times && r < ranks; r++)
        if (times[r] < 1 || times[r] > PD_SHARE_TIME_MAX)
            return pd_fail(PD_E_VALUE, "logical shards: rank %d takes %d for a shard (expected 1 to %d)", r, times[r],
                           PD_SHARE_TIME_MAX);
    plan p = {.shards = shards, .ranks = !times && ranks > shards ? shards : ranks, .times = times};
    p.n = allowed_shares(shards, p.q);
    PD_TRY(pd_malloc((size_t)(p.ranks + 1) * ((size_t)shards + 1) * sizeof *p.squares, "blocks", &p.squares));
    memset(shares, 0, (size_t)ranks * sizeof *shares);
    choose_shares(&p, shares);
    pd_free(p.squares);
    return PD_OK;
}
