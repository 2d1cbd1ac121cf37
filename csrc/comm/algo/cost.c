/* Which algorithm a collective uses, with which pieces, and what each algorithm costs per piece, in the order of
   algo.h. */
#include "comm/algo/cost.h"

#include "comm/algo/algo.h"
#include "comm/algo/tuning.h"

/* ---- plans ------------------------------------------------------------------------------------------------------- */

const pd_algo *pd_plan_pick(uint8_t coll, const pd_tuning *t, const pd_algo *forced, bool fast, bool hosts,
                            size_t bytes) {
    switch (coll) {
    case PD_COLL_ALL_REDUCE: case PD_COLL_REDUCE: return forced ? forced : pd_tuning_pick(t, fast, hosts, bytes);
    case PD_COLL_BROADCAST: return &pd_algo_broadcast;
    case PD_COLL_REDUCE_SCATTER: return &pd_algo_reduce_scatter;
    case PD_COLL_SCATTER: return &pd_algo_scatter;
    case PD_COLL_ALL_TO_ALL: return &pd_algo_all_to_all;
    case PD_COLL_BARRIER: case PD_COLL_REDUCE_UNIT: case PD_COLL_WRITE_SHARDS: return &pd_algo_barrier;
    case PD_COLL_ALL_GATHER_PARTS: return &pd_algo_all_gather_parts;
    case PD_COLL_REDUCE_SCATTER_PARTS: return &pd_algo_reduce_scatter_parts;
    case PD_COLL_ALL_TO_ALL_PARTS: return &pd_algo_all_to_all_parts;
    default: return &pd_algo_all_gather;
    }
}

const pd_algo *pd_plan_direct(uint8_t coll) {
    switch (coll) {
    case PD_COLL_ALL_REDUCE: return &pd_algo_direct_sum;
    case PD_COLL_BROADCAST: return &pd_algo_direct_broadcast;
    case PD_COLL_REDUCE_SCATTER: return &pd_algo_direct_reduce_scatter;
    default: return NULL;
    }
}

pd_cost pd_algo_cost(const pd_algo *a, const pd_job *j, int64_t pieces) {
    pd_cost c = {.steps = 1};
    if (pieces && !a->depth) c.steps = 2;
    else if (pieces) c.steps = a->steps ? pieces * a->steps(j) : pieces - 1 + a->depth;
    for (int64_t k = 0; a->cost && k < pieces; k++) a->cost(j, k, &c);
    return c;
}

/* ---- bytes of piece k -------------------------------------------------------------------------------------------- */

static int64_t piece_bytes(const pd_job *j, int64_t k) { return (int64_t)pd_job_bytes(j, pd_job_count(j, k)); }

/* Bytes of this rank's part of the piece. */
static int64_t own_bytes(const pd_job *j, int64_t k) {
    int64_t n = pd_job_count(j, k);
    return (int64_t)pd_job_bytes(j, pd_job_edge(j, n, j->rank + 1) - pd_job_edge(j, n, j->rank));
}

/* How many other ranks get the result. */
static int64_t takers(const pd_job *j) { return j->root < 0 ? j->size - 1 : j->rank != j->root; }

/* Counts bytes that each of `peers` others reads: written once to shared memory, or sent to each by messages. */
static void write_to(const pd_job *j, int64_t bytes, int64_t peers, pd_cost *c) {
    if (j->messages) c->wrote[PD_LEVEL_MESSAGES] += bytes * peers;
    else c->wrote[PD_LEVEL_MEMORY] += peers ? bytes : 0;
}

static void read_of(const pd_job *j, int64_t bytes, pd_cost *c) { c->read[j->messages] += bytes; }

void pd_cost_all_to_takers(const pd_job *j, int64_t k, pd_cost *c) {
    int64_t n = piece_bytes(j, k);
    write_to(j, n * pd_job_own(j), takers(j), c);
    if (pd_job_takes(j, j->rank)) read_of(j, n * (int64_t)pd_job_others(j), c);
}

void pd_cost_scatter_gather(const pd_job *j, int64_t k, pd_cost *c) {
    int64_t n = piece_bytes(j, k), own = own_bytes(j, k);
    write_to(j, (n - own) * pd_job_own(j), 1, c);
    if (j->messages) write_to(j, own, takers(j), c);
    else c->wrote[PD_LEVEL_MEMORY] += own; /* into its share, even if only this rank reads it */
    read_of(j, own * (int64_t)pd_job_others(j), c);
    if (pd_job_takes(j, j->rank)) read_of(j, n - own, c);
}

void pd_cost_slot_sum(const pd_job *j, int64_t k, pd_cost *c) {
    int64_t n = piece_bytes(j, k), own = own_bytes(j, k);
    c->wrote[PD_LEVEL_MEMORY] += (n - own) * pd_job_own(j) + own * takers(j);
    c->read[PD_LEVEL_MEMORY] += own * (int64_t)pd_job_others(j) + (pd_job_takes(j, j->rank) ? n - own : 0);
}

void pd_cost_direct_sum(const pd_job *j, int64_t k, pd_cost *c) {
    (void)k;
    int64_t lo = pd_job_edge(j, j->count, j->rank), hi = pd_job_edge(j, j->count, j->rank + 1);
    c->wrote[PD_LEVEL_MEMORY] += (int64_t)pd_job_bytes(j, hi - lo) * (j->size - 1);
    c->read[PD_LEVEL_MEMORY] += (int64_t)(pd_job_bytes(j, hi - lo) * pd_job_others(j));
}

void pd_cost_each_to_each(const pd_job *j, int64_t k, pd_cost *c) {
    int64_t n = piece_bytes(j, k);
    write_to(j, n * (j->size - 1) * pd_job_own(j), 1, c);
    read_of(j, n * (int64_t)pd_job_others(j), c);
}

void pd_cost_direct_reduce_scatter(const pd_job *j, int64_t k, pd_cost *c) {
    (void)k;
    c->read[PD_LEVEL_MEMORY] += (int64_t)(pd_job_bytes(j, j->count) * pd_job_others(j));
}

void pd_cost_broadcast(const pd_job *j, int64_t k, pd_cost *c) {
    if (j->rank == j->root) write_to(j, piece_bytes(j, k), j->size - 1, c);
    else read_of(j, piece_bytes(j, k), c);
}

void pd_cost_direct_broadcast(const pd_job *j, int64_t k, pd_cost *c) {
    (void)k;
    if (j->rank != j->root) c->read[PD_LEVEL_MEMORY] += (int64_t)pd_job_bytes(j, j->count);
}

void pd_cost_scatter(const pd_job *j, int64_t k, pd_cost *c) {
    if (j->rank == j->root) write_to(j, piece_bytes(j, k) * (j->size - 1), 1, c);
    else read_of(j, piece_bytes(j, k), c);
}

/* ---- parts of different sizes ------------------------------------------------------------------------------------ */

static int64_t part_bytes(const pd_job *j, const pd_part *p, int64_t k) {
    int64_t left = p->count - k * j->piece;
    return (int64_t)pd_job_bytes(j, left < 0 ? 0 : left < j->piece ? left : j->piece);
}

static int64_t others_bytes(const pd_job *j, const pd_part *parts, int64_t k) {
    int64_t sum = 0;
    for (int r = 0; r < j->size; r++) sum += r == j->rank ? 0 : part_bytes(j, &parts[r], k);
    return sum;
}

pd_cost pd_parts_read_cost(const pd_algo *a, const pd_job *j) {
    pd_cost c = {.steps = 2};
    const bool own_sizes = a == &pd_algo_all_to_all_parts;
    const int64_t largest = own_sizes ? pd_parts_largest(j->size, j->gives) : j->takes[j->rank].count;
    if (largest <= j->piece) a->cost(j, 0, &c); /* its parts are read from its slot */
    c.read[PD_LEVEL_MEMORY] = 0;
    for (int r = 0; r < j->size; r++)
        c.read[PD_LEVEL_MEMORY] += r == j->rank ? 0 : (int64_t)pd_job_bytes(j, j->takes[r].count);
    return c;
}

void pd_cost_all_gather_parts(const pd_job *j, int64_t k, pd_cost *c) {
    write_to(j, part_bytes(j, &j->takes[j->rank], k), j->size - 1, c);
    read_of(j, others_bytes(j, j->takes, k), c);
}

void pd_cost_all_to_all_parts(const pd_job *j, int64_t k, pd_cost *c) {
    write_to(j, others_bytes(j, j->gives, k), 1, c);
    read_of(j, others_bytes(j, j->takes, k), c);
}

void pd_cost_reduce_scatter_parts(const pd_job *j, int64_t k, pd_cost *c) {
    write_to(j, others_bytes(j, j->gives, k), 1, c);
    read_of(j, part_bytes(j, &j->takes[j->rank], k) * (j->size - 1), c);
}

/* ---- algorithms in steps: the others read their working copy in place -------------------------------------------- */

static int64_t range_bytes(const pd_job *j, int64_t k, int parts, int lo, int hi) {
    int64_t n = pd_job_count(j, k), elements = pd_part_edge(n, parts, hi) - pd_part_edge(n, parts, lo);
    return elements * (int64_t)pd_dtype_size(pd_reduce_partial(j->dtype));
}

void pd_cost_schedule(const pd_job *j, int64_t k, pd_cost *c) {
    const pd_schedule *plan = j->schedule;
    int parts = plan->parts(j->size), steps = plan->steps(j->size);
    if (!j->messages) c->wrote[PD_LEVEL_MEMORY] += range_bytes(j, k, 1, 0, 1);
    for (int s = 0; s < steps; s++)
        for (int r = 0; r < j->size; r++) {
            pd_step step = plan->step(j->size, r, s);
            if (step.from < 0) continue;
            int64_t bytes = range_bytes(j, k, parts, step.lo, step.hi);
            if (r == j->rank) read_of(j, bytes, c);
            if (j->messages ? step.from == j->rank : r == j->rank) c->wrote[j->messages] += bytes;
        }
}

void pd_cost_hierarchical(const pd_job *j, int64_t k, pd_cost *c) {
    int own = j->rank % j->local, hosts = j->size / j->local;
    int64_t n = range_bytes(j, k, 1, 0, 1), part = range_bytes(j, k, j->local, own, own + 1);
    int64_t near = j->local;
    if (j->blocks) near = 0;
    for (int l = 0; j->blocks && l < j->local; l++) near += pd_blocks_of(j->blocks, j->rank - j->rank % j->local + l);
    /* Its input, then its part of the host's sum and of the sum of all hosts. */
    c->wrote[PD_LEVEL_MEMORY] += n * pd_job_own(j) + 2 * part;
    c->read[PD_LEVEL_MEMORY] += part * (near - pd_job_own(j)) + (pd_job_takes(j, j->rank) ? n - part : 0);
    c->wrote[PD_LEVEL_MESSAGES] += part * (hosts - 1);
    c->read[PD_LEVEL_MESSAGES] += part * (hosts - 1);
}
