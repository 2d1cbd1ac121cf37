/* all_reduce; reduce, in which only the root gets the result; reduce_scatter. */
#include "comm/algo/algo.h"

#define TILE 16384  /* bytes that are summed, then copied, while they are in the first-level cache */

void pd_job_gather(const pd_job *j, int64_t k, const char *own, size_t at) {
    for (int r = 0; !j->blocks && r < j->size; r++) j->in[r] = r == j->rank ? own : pd_job_slot(j, r, k) + at;
    for (int i = 0; j->blocks && i < j->blocks->count; i++) {
        const pd_shard_block *b = &j->blocks->of[i];
        size_t part = (size_t)b->part;
        j->in[i] = b->rank == j->rank ? own + part * j->apart : pd_job_slot(j, b->rank, k) + part * j->stride + at;
    }
}

/* Sets j->in to the inputs where they are in the ranks' memory. */
static void gather_in_place(const pd_job *j) {
    for (int r = 0; !j->blocks && r < j->size; r++) j->in[r] = j->peers[r];
    for (int i = 0; j->blocks && i < j->blocks->count; i++) {
        const pd_shard_block *b = &j->blocks->of[i];
        j->in[i] = j->peers[b->rank] + (size_t)b->part * j->apart;
    }
}

/* ---- gather_sum: everybody puts all, everybody sums all ---------------------------------------------------------- */

static void sum_all(const pd_job *j, int64_t k) {
    if (!pd_job_takes(j, j->rank)) return;
    pd_job_gather(j, k, j->from + pd_job_at(j, k), 0);
    pd_count_read(j, pd_job_bytes(j, pd_job_count(j, k)) * pd_job_others(j));
    pd_job_sum(j, 0, j->to + pd_job_at(j, k), pd_job_count(j, k));
}

const pd_algo pd_algo_gather_sum = {.name = "gather_sum", .depth = 1, .put = pd_job_put_all, .take = sum_all,
                                    .cost = pd_cost_all_to_takers};

/* ---- scatter_gather: the owner of a part sums it from the slots, then everybody copies the parts ----------------- */

static pd_span put_owners(const pd_job *j, int64_t k, int peer) {
    int64_t n = pd_job_count(j, k), lo = pd_job_edge(j, n, peer), hi = pd_job_edge(j, n, peer + 1);
    size_t at = pd_job_bytes(j, lo);
    return (pd_span){j->from + pd_job_at(j, k) + at, at, pd_job_bytes(j, hi - lo)};
}

static void sum_own(const pd_job *j, int64_t k) {
    int64_t all = pd_job_count(j, k), lo = pd_job_edge(j, all, j->rank), hi = pd_job_edge(j, all, j->rank + 1);
    int64_t tile = TILE / (int64_t)pd_dtype_size(j->dtype);
    bool takes = pd_job_takes(j, j->rank);
    char *to = j->to + pd_job_at(j, k), *share = pd_job_share(j, j->rank, k);
    pd_count_read(j, pd_job_bytes(j, hi - lo) * pd_job_others(j));
    pd_count_wrote(j, pd_job_bytes(j, hi - lo));
    pd_job_gather(j, k, j->from + pd_job_at(j, k), 0);
    for (int64_t at = lo; at < hi; at += tile) {
        int64_t n = hi - at < tile ? hi - at : tile;
        char *sum = share + pd_job_bytes(j, at - lo);
        pd_job_sum(j, at, sum, n);
        if (takes) memcpy(to + pd_job_bytes(j, at), sum, pd_job_bytes(j, n));
    }
}

static pd_span give_share(const pd_job *j, int64_t k, int peer) {
    int64_t n = pd_job_count(j, k), own = pd_job_edge(j, n, j->rank + 1) - pd_job_edge(j, n, j->rank);
    return (pd_span){pd_job_share(j, j->rank, k), 0, pd_job_takes(j, peer) ? pd_job_bytes(j, own) : 0};
}

static void take_shares(const pd_job *j, int64_t k) {
    if (!pd_job_takes(j, j->rank)) return;
    int64_t n = pd_job_count(j, k);
    char *to = j->to + pd_job_at(j, k);
    for (int d = 1; d < j->size; d++) { /* starting with the right neighbour, so that not all ranks read rank 0 first */
        int r = (j->rank + d) % j->size;
        int64_t lo = pd_job_edge(j, n, r), hi = pd_job_edge(j, n, r + 1);
        memcpy(to + pd_job_bytes(j, lo), pd_job_share(j, r, k), pd_job_bytes(j, hi - lo));
        pd_count_read(j, pd_job_bytes(j, hi - lo));
    }
}

const pd_algo pd_algo_scatter_gather = {
    .name = "scatter_gather", .depth = 2, .put = put_owners, .mix = sum_own, .give = give_share, .take = take_shares,
    .cost = pd_cost_scatter_gather,
};

/* ---- slot_sum: the owner of a part sums it from the slots back into the slots, then each rank copies its own slot ---

   Each cache line of a slot goes to the core of its part's owner and back, and no other core has a copy that would have
   to be invalidated. That is half the traffic between cores of scatter_gather, which reads lines and writes others. */

static void sum_back(const pd_job *j, int64_t k) {
    int64_t all = pd_job_count(j, k), lo = pd_job_edge(j, all, j->rank), hi = pd_job_edge(j, all, j->rank + 1);
    int64_t tile = TILE / (int64_t)pd_dtype_size(j->dtype);
    char *own = j->to + pd_job_at(j, k);
    size_t readers = (size_t)(j->root < 0 ? j->size - 1 : j->rank != j->root);
    pd_count_read(j, pd_job_bytes(j, hi - lo) * pd_job_others(j));
    pd_count_wrote(j, pd_job_bytes(j, hi - lo) * readers);
    pd_job_gather(j, k, j->from + pd_job_at(j, k), 0);
    for (int64_t at = lo; at < hi; at += tile) {
        int64_t n = hi - at < tile ? hi - at : tile;
        size_t begin = pd_job_bytes(j, at), bytes = pd_job_bytes(j, n);
        char *sum = (pd_job_takes(j, j->rank) ? own : pd_job_slot(j, j->root, k)) + begin;
        pd_job_sum(j, at, sum, n);
        for (int r = 0; j->root < 0 && r < j->size; r++)
            if (r != j->rank) memcpy(pd_job_slot(j, r, k) + begin, sum, bytes);
    }
}

static void take_back(const pd_job *j, int64_t k) {
    if (!pd_job_takes(j, j->rank)) return;
    int64_t n = pd_job_count(j, k);
    size_t lo = pd_job_bytes(j, pd_job_edge(j, n, j->rank)), hi = pd_job_bytes(j, pd_job_edge(j, n, j->rank + 1));
    char *to = j->to + pd_job_at(j, k), *slot = pd_job_slot(j, j->rank, k);
    pd_count_read(j, pd_job_bytes(j, n) - (hi - lo));
    memcpy(to, slot, lo);
    memcpy(to + hi, slot + hi, pd_job_bytes(j, n) - hi);
}

const pd_algo pd_algo_slot_sum = {
    .name = "slot_sum", .depth = 2, .put = put_owners, .mix = sum_back, .take = take_back,
    .cost = pd_cost_slot_sum,
};

/* ---- direct_sum: the owner of a part sums it in place and writes it to all ranks --------------------------------- */

static void sum_in_place(const pd_job *j, int64_t k) {
    (void)k;
    int64_t lo = pd_job_edge(j, j->count, j->rank), hi = pd_job_edge(j, j->count, j->rank + 1);
    int64_t block = (int64_t)(j->block / pd_dtype_size(j->dtype));
    pd_count_read(j, pd_job_bytes(j, hi - lo) * pd_job_others(j));
    pd_count_wrote(j, pd_job_bytes(j, hi - lo) * (size_t)(j->size - 1));
    gather_in_place(j);
    for (int64_t at = lo; at < hi; at += block) {
        int64_t n = hi - at < block ? hi - at : block;
        char *own = j->to + pd_job_bytes(j, at);
        pd_job_sum(j, at, own, n);
        for (int d = 1; d < j->size; d++)
            memcpy(j->peers[(j->rank + d) % j->size] + pd_job_bytes(j, at), own, pd_job_bytes(j, n));
    }
}

const pd_algo pd_algo_direct_sum = {.name = "direct_sum", .depth = 0, .take = sum_in_place,
                                    .cost = pd_cost_direct_sum};

/* ---- reduce_scatter: rank r gets the sum of everybody's r-th part ------------------------------------------------ */

static void sum_parts(const pd_job *j, int64_t k) {
    int64_t n = pd_job_count(j, k);
    size_t at = pd_job_at(j, k), part = (size_t)j->rank * pd_job_bytes(j, n);
    const char *own = j->from + (size_t)j->rank * pd_job_bytes(j, j->count) + at;
    pd_job_gather(j, k, own, part);
    pd_count_read(j, pd_job_bytes(j, n) * pd_job_others(j));
    pd_job_sum(j, 0, j->to + at, n);
}

const pd_algo pd_algo_reduce_scatter = {
    .name = "reduce_scatter", .depth = 1, .put = pd_job_put_part, .take = sum_parts, .places = PD_PLACE_ALL,
    .cost = pd_cost_each_to_each,
};

static void sum_parts_in_place(const pd_job *j, int64_t k) {
    (void)k;
    gather_in_place(j);
    pd_count_read(j, pd_job_bytes(j, j->count) * pd_job_others(j));
    pd_job_sum(j, j->rank * j->count, j->to, j->count);
}

const pd_algo pd_algo_direct_reduce_scatter = {
    .name = "direct_reduce_scatter", .depth = 0, .take = sum_parts_in_place, .cost = pd_cost_direct_reduce_scatter,
};
