/* How this rank's part of a spread tensor (tensor/spread.h) becomes its part of the same tensor spread otherwise: a
   list of steps, which the host makes once for two spreads. A list of moves also has the steps that the gradient takes
   back; the gradient of that way back takes the moves themselves. All ranks of the steps' groups run them together. */
#ifndef PD_PARALLEL_MOVE_H
#define PD_PARALLEL_MOVE_H

#include "autograd/tape.h"
#include "comm/algo/reduce.h"
#include "comm/group/group.h"

typedef enum pd_step_kind {
    PD_STEP_NARROW,   /* indices [from, from + size) of dimension `dim` */
    PD_STEP_GATHER,   /* all ranks' parts along `dim`, of these sizes, one after the other */
    PD_STEP_REDUCE,   /* the sum, or what `op` says, of all ranks' tensors */
    PD_STEP_SCATTER,  /* this rank's part along `dim`, of these sizes, of that */
    PD_STEP_EXCHANGE, /* a part along `dim`, of these sizes, for one along `other`, of those sizes */
    PD_STEP_FILL,     /* the same shape, all `value` */
    PD_STEP_SCALE,    /* times `value` */
    PD_STEP_REFUSE,   /* an error: that of a gradient that is not there */
} pd_step_kind;

typedef struct pd_step {
    pd_step_kind kind;
    int dim, other;
    int64_t from, size;
    double value;
    pd_reduce op;
    pd_group *group;              /* [strong] NULL: none */
    int64_t *sizes, *other_sizes; /* [owned] of each rank of the group */
} pd_step;

typedef struct pd_moves {
    atomic_int_fast64_t refs;
    int n[2];          /* steps of the move, and of its way back */
    pd_step *steps[2]; /* [owned] */
} pd_moves;

/* [new] a move without steps yet: the host fills it, and pd_moves_release frees what it has. */
pd_status pd_moves_new(int there, int back, pd_moves **out);
static inline void pd_moves_retain(pd_moves *m) { atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed); }
void pd_moves_release(pd_moves *m); /* NULL is fine */

/* [new] the part that t, a part or a plain tensor, becomes; recorded if gradients flow through t. `back`: takes the way
   back. `apart`: in memory of its own, though no step might need it. `site`: the caller's line. Errors: those of
   collectives. */
pd_status pd_moves_run(pd_moves *m, bool back, pd_tensor *t, bool apart, uint64_t site, pd_tensor **out);

/* pd_moves_run, or what it gave last time, which t keeps until it is written: several ops that take t in the same way
   share one message, in backward, too. Not so for leaves of a graph. */
pd_status pd_moves_once(pd_moves *m, pd_tensor *t, uint64_t site, pd_tensor **out);

#endif
