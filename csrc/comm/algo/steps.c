/* Algorithms that work on a piece in steps. The slot holds the working copy, as partial results. */
#include "comm/algo/algo.h"

static void load_into(const pd_job *j, int64_t k, char *slot) {
    pd_reduce_widen(j->dtype, j->from + pd_job_at(j, k), slot, pd_job_count(j, k));
}

/* Some parts of a piece: first element, number of elements, and their byte offset in the working copy. */
typedef struct range { int64_t lo, n; size_t at; } range;

static range range_of(const pd_job *j, int64_t k, int parts, int lo, int hi) {
    int64_t n = pd_job_count(j, k), from = pd_part_edge(n, parts, lo);
    return (range){from, pd_part_edge(n, parts, hi) - from, (size_t)from * pd_dtype_size(pd_reduce_partial(j->dtype))};
}

static void store(const pd_job *j, int64_t k, const char *slot, range r) {
    char *to = j->to + pd_job_at(j, k) + pd_job_bytes(j, r.lo);
    if (pd_job_takes(j, j->rank)) pd_reduce_round(j->dtype, slot + r.at, to, r.n, j->scale);
}

/* ---- ring, halving: a schedule ----------------------------------------------------------------------------------- */

static int schedule_steps(const pd_job *j) { return j->schedule->steps(j->size); }

static size_t kept_bytes(const pd_job *j, int64_t n) { return (size_t)n * pd_dtype_size(pd_reduce_partial(j->dtype)); }

static void schedule_load(const pd_job *j, int64_t k) {
    load_into(j, k, pd_job_slot(j, j->rank, k));
    pd_count_wrote(j, kept_bytes(j, pd_job_count(j, k)));
}

static range taken(const pd_job *j, int64_t k, pd_step step) {
    return range_of(j, k, j->schedule->parts(j->size), step.lo, step.hi);
}

static void schedule_run(const pd_job *j, int64_t k, int s) {
    pd_step step = j->schedule->step(j->size, j->rank, s);
    pd_dtype partial = pd_reduce_partial(j->dtype);
    char *slot = pd_job_slot(j, j->rank, k);
    if (step.from >= 0) {
        range r = taken(j, k, step);
        const char *in[] = {slot + r.at, pd_job_slot(j, step.from, k) + r.at};
        pd_count_read(j, kept_bytes(j, r.n));
        pd_count_wrote(j, kept_bytes(j, r.n));
        if (step.add) pd_reduce_run(partial, j->reduce, 2, in, 0, slot + r.at, r.n, 1);
        else memcpy(slot + r.at, in[1], (size_t)r.n * pd_dtype_size(partial));
    }
    if (s + 1 == schedule_steps(j)) store(j, k, slot, range_of(j, k, 1, 0, 1));
}

static pd_span schedule_serve(const pd_job *j, int64_t k, int s, int peer) {
    pd_step step = j->schedule->step(j->size, peer, s);
    if (step.from != j->rank) return (pd_span){0};
    range r = taken(j, k, step);
    return (pd_span){pd_job_slot(j, j->rank, k) + r.at, r.at, (size_t)r.n * pd_dtype_size(pd_reduce_partial(j->dtype))};
}

#define SCHEDULED \
    .depth = 1, .steps = schedule_steps, .load = schedule_load, .run = schedule_run, .serve = schedule_serve, \
    .cost = pd_cost_schedule
const pd_algo pd_algo_ring = {.name = "ring", .schedule = &pd_schedule_ring, SCHEDULED};
const pd_algo pd_algo_halving = {.name = "halving", .schedule = &pd_schedule_halving, SCHEDULED};

/* ---- hierarchical: H hosts of L ranks, which are subtrees of the order -------------------------------------------

   Step 0: rank l of a host sums part l of the host's L slots, which lie in memory that the host's ranks share, and
   sends it to the ranks l of the other hosts. Step 1: it sums the H sums. Step 2: everybody takes the host's L parts.
   Each part is written by its owner alone, so all of it happens in the slots. */

static char *near_slot(const pd_job *j, int rank, int64_t k) {
    return j->near[rank] + ((j->first + (uint64_t)k) & 1) * j->slot;
}

static int first_near(const pd_job *j) { return j->rank - j->rank % j->local; }

static int near_steps(const pd_job *j) { return (void)j, 3; }

static void near_load(const pd_job *j, int64_t k) {
    pd_job part = *j;
    for (int i = 0; i < pd_job_own(j); i++) {
        load_into(&part, k, near_slot(j, j->rank, k) + (size_t)i * j->stride);
        part.from += j->apart;
        pd_count_near(j, kept_bytes(j, pd_job_count(j, k)), 0);
    }
}

/* Sums the ranks of this host, at byte `at` of their slots, into `out`. */
static void near_sum(const pd_job *j, int64_t k, size_t at, char *out, int64_t n) {
    int inputs = j->local, first = 0;
    const int16_t *split = NULL;
    const int shards = j->blocks ? j->blocks->shards / (j->size / j->local) : 0;
    if (j->blocks) pd_blocks_inside(j->blocks, first_near(j) / j->local * shards, shards, &first, &inputs, &split);
    for (int i = 0; i < inputs; i++) {
        const pd_shard_block *b = j->blocks ? &j->blocks->of[first + i] : NULL;
        j->in[i] = near_slot(j, b ? b->rank : first_near(j) + i, k) + (b ? (size_t)b->part * j->stride : 0) + at;
    }
    pd_reduce_tree(pd_reduce_partial(j->dtype), j->reduce, inputs, split, j->in, 0, out, n, 1);
}

/* How many blocks the other ranks of this host have. */
static size_t near_others(const pd_job *j) {
    int n = 0;
    for (int l = 0; l < j->local; l++)
        n += j->blocks ? pd_blocks_of(j->blocks, first_near(j) + l) : 1;
    return (size_t)(n - pd_job_own(j));
}

static void near_run(const pd_job *j, int64_t k, int s) {
    int own = j->rank % j->local, hosts = j->size / j->local;
    range r = range_of(j, k, j->local, own, own + 1);
    char *slot = near_slot(j, j->rank, k);
    size_t bytes = kept_bytes(j, r.n), all = kept_bytes(j, pd_job_count(j, k));
    if (s == 0) pd_count_near(j, bytes, bytes * near_others(j));
    if (s == 1) pd_count_near(j, bytes, 0), pd_count_read(j, bytes * (size_t)(hosts - 1));
    if (s == 2 && pd_job_takes(j, j->rank)) pd_count_near(j, 0, all - bytes);
    if (s == 0) near_sum(j, k, r.at, slot + r.at, r.n);
    for (int h = 0; s == 1 && h < hosts; h++) {
        int rank = h * j->local + own;
        j->in[h] = (rank == j->rank ? slot : pd_job_slot(j, rank, k)) + r.at;
    }
    if (s == 1) pd_reduce_run(pd_reduce_partial(j->dtype), j->reduce, hosts, j->in, 0, slot + r.at, r.n, 1);
    for (int l = 0; s == 2 && l < j->local; l++)
        store(j, k, near_slot(j, first_near(j) + l, k), range_of(j, k, j->local, l, l + 1));
}

static pd_span near_serve(const pd_job *j, int64_t k, int s, int peer) {
    int own = j->rank % j->local;
    if (s != 1 || peer % j->local != own) return (pd_span){0};
    range r = range_of(j, k, j->local, own, own + 1);
    return (pd_span){near_slot(j, j->rank, k) + r.at, r.at, (size_t)r.n * pd_dtype_size(pd_reduce_partial(j->dtype))};
}

const pd_algo pd_algo_hierarchical = {
    .name = "hierarchical", .depth = 1, .steps = near_steps, .load = near_load, .run = near_run, .serve = near_serve,
    .cost = pd_cost_hierarchical,
};

/* ---- outside: the messages' own all_reduce, in a place of theirs ------------------------------------------------- */

static int outside_steps(const pd_job *j) { return (void)j, 2; }

static void outside_load(const pd_job *j, int64_t k) { (void)j, (void)k; } /* all ranks have to agree first */

static void outside_run(const pd_job *j, int64_t k, int s) {
    if (s == 0) memcpy(j->room, j->from + pd_job_at(j, k), pd_job_bytes(j, pd_job_count(j, k)));
    else if (pd_job_takes(j, j->rank))
        pd_reduce_round(j->dtype, j->room, j->to + pd_job_at(j, k), pd_job_count(j, k), j->scale);
}

static pd_span outside_serve(const pd_job *j, int64_t k, int s, int peer) {
    return (void)j, (void)k, (void)s, (void)peer, (pd_span){0};
}

const pd_algo pd_algo_outside = {
    .name = "outside", .depth = 1, .steps = outside_steps, .load = outside_load, .run = outside_run,
    .serve = outside_serve,
};
