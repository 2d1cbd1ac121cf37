/* What sharded.c and messages.c share. */
#ifndef PD_PARALLEL_SHARDED_IMPL_H
#define PD_PARALLEL_SHARDED_IMPL_H

#include "parallel/ready.h"
#include "parallel/sharded.h"

#define PD_SHARDED_OP "fully_shard"
#define RING 3

typedef struct pd_member { /* a parameter of a unit */
    struct pd_sharded *s;
    int unit, piece;       /* piece: its number in s->layout */
    pd_unit_param *p;
    pd_grad_owner owner, shard_owner;
    uint64_t hook;
    pd_tensor *view;       /* [strong] the whole's gradient in the unit's slot; NULL: there is no slot yet */
    pd_tensor *wide;       /* [strong] `sum` there; NULL: the unit never widens it */
    pd_tensor *sum;        /* [strong] of the whole's gradients that wait, wider than these; NULL: there is none */
    pd_tensor *own;        /* [strong] the shard's .grad, when the unit makes it */
    pd_tensor *made;       /* [strong] this backward's sum: own, or another one if .grad is there already */
    pd_tensor *held;       /* [strong] sums of the shard group that the replicas have not added yet; NULL: none */
    pd_tensor *seen;       /* the shard that own and shard_owner belong to (only compared) */
    bool used;             /* by any rank, in this backward */
} pd_member;

typedef struct pd_section { /* a unit */
    pd_unit *unit;         /* [strong] */
    int first, count;      /* its members */
    pd_segment *slot;      /* [borrowed] NULL: none yet */
    size_t flags;          /* where they are in the slot, one byte for each member, after the gradients */
    pd_sharded_options o;
    bool has_slot;         /* the wholes' gradients go there */
    bool delivered;        /* in this backward */
} pd_section;

typedef struct pd_bundle { /* messages of one unit, under way */
    pd_work **works;       /* room for each parameter, and two more */
    int n, params;
    uint8_t *used;         /* by parameter: whether this rank has used it, and then whether any has */
    pd_tensor **sent;      /* [strong] by parameter; NULL: it is packed, or not sent */
    pd_tensor **sums;      /* [strong] by parameter: what comes; NULL: it is packed, or not sent */
    pd_storage *packed;    /* [strong] room for small ones, which go together */
    size_t *at;            /* by message: where its packed bytes begin, and */
    size_t *done;          /* by rank: how many there are so far */
    pd_part *parts;        /* room for a table */
} pd_bundle;

struct pd_sharded {
    atomic_int refs;       /* the owner's, and one while a backward will call it at its end */
    pd_group *group, *replicas;
    pd_readers *readers;
    pd_unit_kind kind;
    int nunits, nmembers;
    pd_section *units;
    pd_member *members;
    pd_layout layout;      /* pieces of all units; a bucket for each unit */
    pd_ready ready;
    pd_segment *ring[RING], *outer; /* [strong] */
    bool last_is_outer, dead;
    bool new_slots;        /* in this backward, after its first gradients were made */
    int depth;
    bool running, reading;
    int begun, adding;     /* the units that shard group and replicas are summing; -1: none */
    pd_bundle reducing, added; /* their messages */
    pd_work *gate;
    uint64_t site, seen, writes;
    pd_closure end;
    pd_windows *windows;   /* [strong] of gathered units; NULL: they are not gathered */
};

/* By what sums are multiplied, once: the replicas' if there are replicas, else those of the shard group. */
double pd_sharded_scale(const pd_sharded *s, const pd_section *u);
/* The dtype to which sums are rounded. */
static inline pd_dtype rounded_to(const pd_section *u, const pd_member *m) {
    return u->o.reduced != PD_NO_DTYPE ? u->o.reduced : (pd_dtype)m->p->whole->dtype;
}
/* Sets m->made to where the sum will be: the unit's own .grad of the shard, unless that has a value already. */
pd_status pd_sharded_prepare_sum(pd_member *m);

/* Messages (messages.c). A bundle has room for a unit of so many parameters in a group of so many ranks. */
pd_status pd_bundle_init(pd_bundle *b, int params, int ranks);
void pd_bundle_fini(pd_bundle *b);
void pd_bundle_drop(pd_bundle *b); /* waits for messages of a backward that has failed */
/* The sums over the shard group of a gathered unit's gradients: begins, and ends with the shards' sums in `made`. */
pd_status pd_bundle_reduce(pd_sharded *s, pd_section *u);
pd_status pd_bundle_reduced(pd_sharded *s, pd_section *u);
/* The same over the replicas, of what is in `made`. */
pd_status pd_bundle_add(pd_sharded *s, pd_section *u);
pd_status pd_bundle_added(pd_sharded *s, pd_section *u);

static inline bool wants(const pd_member *m) { return m->p->whole->requires_grad; }
static inline pd_tensor *whole_grad(const pd_member *m) { return m->p->whole->meta ? m->p->whole->meta->grad : NULL; }
/* What this rank gives: the whole's gradient, or the sum that it was added to; NULL: nothing. */
static inline pd_tensor *gradient_of(const pd_member *m) { return m->sum ? m->sum : whole_grad(m); }
void pd_sharded_gave(pd_member *m); /* forgets what this rank gives */

#endif
