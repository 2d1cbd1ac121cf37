/* Collectives with parts of different sizes (parts.h). All parts are cut into pieces of the same size, so short parts
   end before others. */
#include "base/copy.h"
#include "comm/algo/algo.h"

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static uint64_t stir(uint64_t x) { /* the finalizer of MurmurHash3: every bit of x changes half of the result's */
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
    return x ^ (x >> 33);
}

static uint64_t pair_hash(int src, int dst, int64_t count) {
    return stir((uint64_t)count + stir((uint64_t)src << 32 | (uint32_t)dst));
}

uint64_t pd_parts_balance(int rank, int size, const pd_part *gives, const pd_part *takes) {
    uint64_t sum = 0;
    for (int r = 0; r < size; r++)
        sum += pair_hash(rank, r, gives[r].count) - pair_hash(r, rank, takes[r].count);
    return sum;
}

uint64_t pd_parts_hash(int size, const pd_part *parts) {
    uint64_t sum = 0;
    for (int r = 0; r < size; r++) sum += pair_hash(r, size, parts[r].count);
    return sum;
}

int64_t pd_parts_largest(int size, const pd_part *parts) {
    int64_t most = 0;
    for (int r = 0; r < size; r++) most = parts[r].count > most ? parts[r].count : most;
    return most;
}

int64_t pd_parts_total(int size, const pd_part *parts) {
    int64_t sum = 0;
    for (int r = 0; r < size; r++) sum += parts[r].count;
    return sum;
}

/* ---- moves ------------------------------------------------------------------------------------------------------- */

/* Piece k of a part; empty if the part has ended. */
static pd_span piece_of(const pd_job *j, const pd_part *p, int64_t k) {
    int64_t lo = pd_job_begin(j, k), left = p->count - lo, n = left < j->piece ? left : j->piece;
    if (n <= 0) return (pd_span){0};
    return (pd_span){p->data + pd_job_bytes(j, lo), 0, pd_job_bytes(j, n)};
}

/* The offset in a slot of the part for `peer`. A slot has no place for its owner's own part. */
static size_t place_of(const pd_job *j, int owner, int peer) {
    return (size_t)((peer - owner - 1 + j->size) % j->size) * pd_job_bytes(j, j->piece);
}

static pd_span put_alike(const pd_job *j, int64_t k, int peer) { return piece_of(j, &j->gives[peer], k); }

static pd_span put_each(const pd_job *j, int64_t k, int peer) {
    pd_span s = piece_of(j, &j->gives[peer], k);
    s.at = place_of(j, j->rank, peer);
    return s;
}

/* Takes piece k of rank r's part, which is at offset `at` of its slot. */
static void take_piece(const pd_job *j, int64_t k, int r, size_t at) {
    pd_span to = piece_of(j, &j->takes[r], k), own = piece_of(j, &j->gives[r], k);
    const char *from = r == j->rank ? own.data : pd_job_slot(j, r, k) + at;
    if (r == j->rank && own.bytes < to.bytes) to.bytes = own.bytes; /* possible if identities were not compared */
    if (r != j->rank) pd_count_read(j, to.bytes);
    if (to.bytes && to.data != from)
        pd_copy((char *)(uintptr_t)to.data, from, to.bytes, pd_job_bytes(j, pd_parts_total(j->size, j->takes)));
}

static void take_alike(const pd_job *j, int64_t k) {
    for (int d = 0; d < j->size; d++) take_piece(j, k, (j->rank + d) % j->size, 0);
}

static void take_each(const pd_job *j, int64_t k) {
    for (int d = 0; d < j->size; d++) { /* starting with the right neighbour, so that not all ranks read rank 0 first */
        int r = (j->rank + d) % j->size;
        take_piece(j, k, r, place_of(j, r, j->rank));
    }
}

static void sum_each(const pd_job *j, int64_t k) {
    const pd_part *own = &j->takes[j->rank];
    pd_span to = piece_of(j, own, k);
    if (!to.bytes) return;
    for (int r = 0; r < j->size; r++)
        j->in[r] = r == j->rank ? piece_of(j, &j->gives[r], k).data
                                : pd_job_slot(j, r, k) + place_of(j, r, j->rank);
    int64_t n = (int64_t)(to.bytes / pd_dtype_size(j->dtype));
    pd_count_read(j, to.bytes * (size_t)(j->size - 1));
    pd_reduce_run(j->dtype, j->reduce, j->size, j->in, 0, (char *)(uintptr_t)to.data, n, j->scale);
}

void pd_parts_take(const pd_job *j, const pd_algo *a, int r) {
    bool alike = a == &pd_algo_all_gather_parts;
    pd_job whole = *j; /* a single piece, in the first slot */
    size_t at = alike ? 0 : place_of(j, r, j->rank);
    if (r == j->rank) whole.piece = INT64_MAX / 16;
    take_piece(&whole, 0, r, at);
}

const pd_algo pd_algo_all_gather_parts = {
    .name = "all_gather_parts", .depth = 1, .put = put_alike, .take = take_alike,
    .cost = pd_cost_all_gather_parts,
};
const pd_algo pd_algo_all_to_all_parts = {
    .name = "all_to_all_parts", .depth = 1, .put = put_each, .take = take_each, .places = PD_PLACE_OTHERS,
    .cost = pd_cost_all_to_all_parts,
};
const pd_algo pd_algo_reduce_scatter_parts = {
    .name = "reduce_scatter_parts", .depth = 1, .put = put_each, .take = sum_each, .places = PD_PLACE_OTHERS,
    .cost = pd_cost_reduce_scatter_parts,
};
