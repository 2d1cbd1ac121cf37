/* Collectives that move data and sum nothing. */
#include "base/copy.h"
#include "comm/algo/algo.h"

pd_span pd_job_put_all(const pd_job *j, int64_t k, int peer) {
    size_t bytes = pd_job_takes(j, peer) ? pd_job_bytes(j, pd_job_count(j, k)) : 0;
    return (pd_span){j->from + pd_job_at(j, k), 0, bytes};
}

/* In the slot, piece k of part r follows piece k of part r - 1. */
pd_span pd_job_put_part(const pd_job *j, int64_t k, int peer) {
    size_t bytes = pd_job_bytes(j, pd_job_count(j, k));
    const char *part = j->from + (size_t)peer * pd_job_bytes(j, j->count);
    return (pd_span){part + pd_job_at(j, k), (size_t)peer * bytes, bytes};
}

/* ---- broadcast --------------------------------------------------------------------------------------------------- */

static pd_span put_root(const pd_job *j, int64_t k, int peer) {
    (void)peer;
    size_t bytes = j->rank == j->root ? pd_job_bytes(j, pd_job_count(j, k)) : 0;
    return (pd_span){j->from + pd_job_at(j, k), 0, bytes};
}

static void take_root(const pd_job *j, int64_t k) {
    if (j->rank == j->root) return;
    size_t bytes = pd_job_bytes(j, pd_job_count(j, k));
    pd_copy(j->to + pd_job_at(j, k), pd_job_slot(j, j->root, k), bytes, pd_job_bytes(j, j->count));
    pd_count_read(j, bytes);
}

const pd_algo pd_algo_broadcast = {
    .name = "broadcast", .depth = 1, .put = put_root, .take = take_root, .cost = pd_cost_broadcast,
};

static void take_in_place(const pd_job *j, int64_t k) {
    (void)k;
    if (j->rank == j->root) return;
    size_t bytes = pd_job_bytes(j, j->count);
    pd_copy(j->to, j->peers[j->root], bytes, bytes);
    pd_count_read(j, bytes);
}

const pd_algo pd_algo_direct_broadcast = {
    .name = "direct_broadcast", .depth = 0, .take = take_in_place, .cost = pd_cost_direct_broadcast,
};

/* ---- all_gather, gather: rank r's data lands at r * count -------------------------------------------------------- */

static void take_from_all(const pd_job *j, int64_t k, const char *own, size_t at) {
    size_t begin = pd_job_at(j, k), bytes = pd_job_bytes(j, pd_job_count(j, k)), part = pd_job_bytes(j, j->count);
    pd_count_read(j, bytes * (size_t)(j->size - 1));
    for (int d = 0; d < j->size; d++) {
        int r = (j->rank + d) % j->size;
        char *to = j->to + (size_t)r * part + begin;
        const char *from = d ? pd_job_slot(j, r, k) + at : own;
        if (to != from) pd_copy(to, from, bytes, (size_t)j->size * part); /* equal if the input is inside the output */
    }
}

static void take_all(const pd_job *j, int64_t k) {
    if (pd_job_takes(j, j->rank)) take_from_all(j, k, j->from + pd_job_at(j, k), 0);
}

const pd_algo pd_algo_all_gather = {
    .name = "all_gather", .depth = 1, .put = pd_job_put_all, .take = take_all, .cost = pd_cost_all_to_takers,
};

/* ---- scatter, all_to_all: rank r gets the r-th part -------------------------------------------------------------- */

static pd_span put_root_part(const pd_job *j, int64_t k, int peer) {
    return j->rank == j->root ? pd_job_put_part(j, k, peer) : (pd_span){0};
}

static void take_root_part(const pd_job *j, int64_t k) {
    size_t bytes = pd_job_bytes(j, pd_job_count(j, k));
    const char *part = pd_job_slot(j, j->root, k) + (size_t)j->rank * bytes;
    if (j->rank == j->root) part = pd_job_put_part(j, k, j->rank).data;
    else pd_count_read(j, bytes);
    char *to = j->to + pd_job_at(j, k);
    if (to != part) pd_copy(to, part, bytes, pd_job_bytes(j, j->count));
}

const pd_algo pd_algo_scatter = {
    .name = "scatter", .depth = 1, .put = put_root_part, .take = take_root_part, .places = PD_PLACE_ALL,
    .cost = pd_cost_scatter,
};

static void take_parts(const pd_job *j, int64_t k) {
    pd_span own = pd_job_put_part(j, k, j->rank);
    take_from_all(j, k, own.data, own.at);
}

const pd_algo pd_algo_all_to_all = {
    .name = "all_to_all", .depth = 1, .put = pd_job_put_part, .take = take_parts, .places = PD_PLACE_ALL,
    .cost = pd_cost_each_to_each,
};

const pd_algo pd_algo_barrier = {.name = "barrier", .depth = 1};
