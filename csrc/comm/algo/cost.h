/* The cost of a collective: how many steps ranks wait for each other, and how many bytes a rank writes for others and
   reads of theirs, by level. A planner adds costs up, `python -m pydist.doctor` and `pydist.tune` print them,
   docs/algorithms.md is made from them, and a group counts the same numbers while it runs (pd_group_counted). */
#ifndef PD_COMM_COST_H
#define PD_COMM_COST_H

#include "comm/link/identity.h"

enum { PD_LEVEL_MEMORY, PD_LEVEL_MESSAGES, PD_LEVELS }; /* shared memory; messages of a mesh */

typedef struct pd_cost {
    int64_t steps;             /* gates, one after the other; each opens when all ranks have come */
    int64_t wrote[PD_LEVELS];  /* bytes written to memory that others read, or sent */
    int64_t read[PD_LEVELS];   /* bytes of others that were read, or received */
} pd_cost;

struct pd_algo;
struct pd_job;
struct pd_tuning;

/* The cost of `pieces` pieces of the job, which needs rank, size, root, dtype, count, piece, local, messages, and for
   parts of different sizes its tables. Exact, except for what the mesh's own all_reduce sends. */
pd_cost pd_algo_cost(const struct pd_algo *a, const struct pd_job *j, int64_t pieces);

/* The cost for parts of different sizes that ranks read in each other's memory (group/parts.c), without slots. */
pd_cost pd_parts_read_cost(const struct pd_algo *a, const struct pd_job *j);

/* The algorithm that a group uses for a collective. `bytes`: of an all_reduce or a reduce. */
const struct pd_algo *pd_plan_pick(uint8_t coll, const struct pd_tuning *t, const struct pd_algo *forced, bool fast,
                                   bool hosts, size_t bytes);
/* The algorithm for data in a symmetric segment; NULL: there is none. */
const struct pd_algo *pd_plan_direct(uint8_t coll);

#endif
