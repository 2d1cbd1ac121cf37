/* Algorithms that run a schedule: the working copy of a piece lies in the rank's slot, as partial results. */
#include "comm/algo/algo.h"

const pd_algo pd_algo_ring = {.name = "ring", .depth = 1, .schedule = &pd_schedule_ring};
const pd_algo pd_algo_halving = {.name = "halving", .depth = 1, .schedule = &pd_schedule_halving};

void pd_steps_load(const pd_job *j, int64_t k) {
    pd_reduce_widen(j->dtype, j->from + pd_job_at(j, k), pd_job_slot(j, j->rank, k), pd_job_count(j, k));
}

void pd_steps_store(const pd_job *j, int64_t k) {
    if (!pd_job_takes(j, j->rank)) return;
    pd_reduce_round(j->dtype, pd_job_slot(j, j->rank, k), j->to + pd_job_at(j, k), pd_job_count(j, k), j->scale);
}

void pd_steps_run(const pd_job *j, const pd_schedule *schedule, int64_t k, int s) {
    pd_step step = schedule->step(j->size, j->rank, s);
    if (step.from < 0) return;
    pd_dtype partial = pd_reduce_partial(j->dtype);
    int64_t n = pd_job_count(j, k), lo = pd_part_edge(n, schedule->parts(j->size), step.lo);
    int64_t count = pd_part_edge(n, schedule->parts(j->size), step.hi) - lo;
    size_t at = (size_t)lo * pd_dtype_size(partial);
    char *own = pd_job_slot(j, j->rank, k) + at;
    const char *in[] = {own, pd_job_slot(j, step.from, k) + at};
    if (step.add) pd_reduce_run(partial, j->reduce, 2, in, 0, own, count, 1);
    else memcpy(own, in[1], (size_t)count * pd_dtype_size(partial));
}

pd_span pd_steps_give(const pd_job *j, const pd_schedule *schedule, int64_t k, int s, int peer) {
    pd_step step = schedule->step(j->size, peer, s);
    if (step.from != j->rank) return (pd_span){0};
    size_t element = pd_dtype_size(pd_reduce_partial(j->dtype));
    int64_t n = pd_job_count(j, k), parts = schedule->parts(j->size);
    size_t at = (size_t)pd_part_edge(n, (int)parts, step.lo) * element;
    size_t end = (size_t)pd_part_edge(n, (int)parts, step.hi) * element;
    return (pd_span){pd_job_slot(j, j->rank, k) + at, at, end - at};
}
