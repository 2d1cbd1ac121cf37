#include "comm/algo/algo.h"

/* ---- broadcast --------------------------------------------------------------------------------------------------- */

static void put_root(const pd_job *j, int64_t k) {
    if (j->rank == j->root) pd_job_put(j, k);
}

static void take_root(const pd_job *j, int64_t k) {
    if (j->rank == j->root) return;
    memcpy(j->to + pd_job_at(j, k), pd_job_slot(j, j->root, k), pd_job_bytes(j, pd_job_count(j, k)));
}

const pd_algo pd_algo_broadcast = {.name = "broadcast", .depth = 1, .put = put_root, .take = take_root};

static void take_in_place(const pd_job *j, int64_t k) {
    (void)k;
    if (j->rank != j->root) memcpy(j->to, j->peers[j->root], pd_job_bytes(j, j->count));
}

const pd_algo pd_algo_direct_broadcast = {.name = "direct_broadcast", .depth = 0, .take = take_in_place};

/* ---- all_gather: rank r's data lands at r * count ---------------------------------------------------------------- */

static void take_all(const pd_job *j, int64_t k) {
    size_t begin = pd_job_at(j, k), bytes = pd_job_bytes(j, pd_job_count(j, k));
    for (int d = 0; d < j->size; d++) {
        int r = (j->rank + d) % j->size;
        memcpy(j->to + (size_t)r * pd_job_bytes(j, j->count) + begin, pd_job_slot(j, r, k), bytes);
    }
}

const pd_algo pd_algo_all_gather = {.name = "all_gather", .depth = 1, .put = pd_job_put, .take = take_all};

const pd_algo pd_algo_barrier = {.name = "barrier", .depth = 1};
