/* What a collective costs, as numbers: the steps in which ranks wait for each other, and the bytes that one rank writes
   for others and reads of theirs, by level. A planner adds them up, `python -m pydist.doctor` and `pydist.tune` print
   them, docs/algorithms.md is made of them, and a group counts the same while it runs (pd_group_counted). */
#ifndef PD_COMM_COST_H
#define PD_COMM_COST_H

#include "comm/link/identity.h"

enum { PD_LEVEL_MEMORY, PD_LEVEL_MESSAGES, PD_LEVELS }; /* memory that ranks share; messages of a mesh */

typedef struct pd_cost {
    int64_t steps;             /* gates: one after the other, each opens when all ranks have come */
    int64_t wrote[PD_LEVELS];  /* into memory where others read it; sent */
    int64_t read[PD_LEVELS];   /* of what others wrote; received */
} pd_cost;

struct pd_algo;
struct pd_job;
struct pd_tuning;

/* Of `pieces` pieces of the job, which needs rank, size, root, dtype, count, piece, local, messages, and its tables
   where it has parts of different sizes. Exact, but for what the messages' own all_reduce sends. */
pd_cost pd_algo_cost(const struct pd_algo *a, const struct pd_job *j, int64_t pieces);

/* The same of parts of different sizes that are read where they lie (group/parts.c) instead of going through slots. */
pd_cost pd_parts_read_cost(const struct pd_algo *a, const struct pd_job *j);

/* The algorithm that a group takes for a collective; `bytes` of an all_reduce or a reduce. */
const struct pd_algo *pd_plan_pick(uint8_t coll, const struct pd_tuning *t, const struct pd_algo *forced, bool fast,
                                   bool hosts, size_t bytes);
/* Of a collective that finds its data in a symmetric segment; NULL: there is no such algorithm. */
const struct pd_algo *pd_plan_direct(uint8_t coll);

#endif
