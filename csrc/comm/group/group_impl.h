/* The inside of a group, for group.c (life), collectives.c, rounds.c (how one runs), queue.c, gate.c (waiting),
   failure.c (failure), segment.c. */
#ifndef PD_COMM_GROUP_IMPL_H
#define PD_COMM_GROUP_IMPL_H

#include "base/profile.h"
#include "comm/algo/algo.h"
#include "comm/algo/tuning.h"
#include "comm/group/flight.h"
#include "comm/group/group.h"
#include "comm/memory/peek.h"
#include "comm/mesh/mesh.h"
#include "device/device.h"

#define PD_CLOSED_NS 1000000000 /* a closed connection without an explanation, before it counts as a peer's death */

typedef struct pd_p2p pd_p2p;
typedef struct pd_mover pd_mover;
typedef struct pd_moving pd_moving;

typedef struct pd_standing { /* the wait in which a thread of this rank stands; read by the control plane's thread */
    _Atomic int64_t since; /* ns; 0: in none */
    atomic_int on;         /* the first missing rank, by its name; -1: any would do */
    atomic_uint seq;
    atomic_bool message;
} pd_standing;

struct pd_group {
    atomic_int refs;
    int rank, size;
    int *ranks; /* of the link, by rank of the group; NULL: all of the link's */
    uint32_t epoch, forks;
    pd_link *link; /* NULL: a world of one */
    const pd_hooks *hooks;
    const pd_transport *transport;
    const pd_mesh_kind *kind; /* NULL: shared memory, and tcp where ranks are on several hosts */
    pd_mesh *mesh; /* not NULL: the peers' parts are mirrors, filled from the wire */
    int64_t timeout_ns, patience_ns, warn_ns, blocked_ns;
    pd_standing standing;
    int spins, spins_max; /* looks at a word before anybody else gets the core */
    bool check; /* identities are compared */
    bool fast;  /* sums may be in any order */
    const pd_algo *forced;
    pd_tuning tuning; /* rank 0's */

    /* The control memory: a board, then slots and shares (algo.h). parts[rank] is our own. */
    size_t slot, share;
    pd_region *parts;
    pd_board **boards;
    char **memory;
    int local; /* over 1: the ranks of each host, which are a subtree of the order, share memory besides the mesh: */
    pd_region *near;    /* by rank: of our host's, else zeros; of near_transport */
    char **near_memory; /* their slots and shares */
    const pd_transport *near_transport;
    pd_peek *peeks;  /* by rank; NULL: not all ranks' memory can be read where it lies */
    uint64_t word;   /* for the others to try it */
    size_t read_from; /* bytes of the largest part; rank 0's */
    char **peers;    /* room for a job's pointers: one collective runs at a time */
    const char **in;

    pthread_mutex_t lock; /* of the queue and the counters; held while a collective runs or waits */
    _Atomic uintptr_t owner;
    pd_work *first, **last;
    uint32_t seq, step, piece; /* equal on all ranks: collectives posted, rounds gated, pieces moved */
    pd_cost counted; /* by collectives, since the group was made */
    pd_flight flight;
    pd_p2p *p2p; /* messages between two ranks; NULL in a group of one */
    const pd_mover *mover; /* of what is on a GPU (mover.h); NULL: such collectives are refused */
    pd_moving *moving;     /* the mover's: what it keeps of this group; NULL: nothing has been on a GPU yet */

    atomic_bool failed, destroyed;
    pd_error error; /* set once, before `failed` */

    pd_listener listener;
    atomic_uint abort;            /* 0, or the weight of `failure`: polled by every wait */
    _Atomic(atomic_uint *) sleeping; /* the word on which this rank sleeps */
    pthread_mutex_t failure_lock;
    pd_error failure;
    int64_t failure_at;

    pthread_mutex_t segments_lock;
    pd_segment *segments;
    uint32_t segment_ids;
};

enum { PD_WORK_QUEUED, PD_WORK_POSTED, PD_WORK_DONE, PD_WORK_FAILED };

struct pd_work {
    atomic_int refs, state;
    pd_group *group; /* retained by works on the heap */
    pd_work *next;
    pd_identity id;
    pd_job job;
    const pd_algo *algo;
    pd_segment *segment; /* [strong] NULL, or where the data lie */
    bool direct;         /* large enough to use that */
    uint64_t site, hash;
    uint32_t seq;
    int64_t pieces, round;
    pd_part *parts;  /* NULL, or of parts of different sizes: 2 * size of them, the job's gives and takes */
    int64_t largest; /* of what it gives; of all ranks' where all know the sizes */
    uint64_t sizes;  /* pd_parts_balance, or pd_parts_hash */
    bool read;       /* large parts are read where they lie */
    pd_timespan span;       /* the profiler's: since it began to run */
    /* The gate that ends this round: opens when every rank's word has reached the target. */
    bool at_board;    /* the word: line[seq & 1].seq, else step */
    uint32_t target;
    int arrived;      /* ranks seen there so far, counted from our right neighbour */
    bool waits; /* the caller goes on after it: a synchronous one */
    /* Of one on a GPU (mover.h): */
    const pd_device *device; /* NULL: the data are in the host's memory */
    const pd_mover *mover;   /* NULL likewise */
    void *stream;            /* the caller's */
    bool captured;           /* it is written into a CUDA graph */
    bool narrow;             /* 16-bit sums may be rounded at each step */
    void *ready;             /* the mover's: when what it reads will have been written */
    void *launch;            /* [strong] the mover's: NULL until it has been launched */
    /* Of a send or a receive: */
    int peer, tag;    /* peer -1: the first that has sent */
    size_t sent;
};

struct pd_segment {
    atomic_int refs;
    uint32_t id;
    size_t bytes;
    pd_group *group; /* retained: its memory only, the group may long be destroyed */
    pd_segment *next, **at;
    int rank, size;
    pd_region parts[];
};

/* How people call it: its rank in the job. */
static inline int pd_group_name(const pd_group *g, int rank) { return g->ranks ? g->ranks[rank] : rank; }

/* gate.c */
bool pd_gate_open(pd_group *g, pd_work *w);
/* Waits for the gate. deadline: ns, INT64_MAX for none but the group's own timeout. On failure *fatal says whether the
   group is lost (or only the caller's patience). */
pd_status pd_gate_wait(pd_group *g, pd_work *w, int64_t deadline, bool *fatal);
void pd_gate_ring(pd_group *g, atomic_uint *word); /* after a store to an own word: wakes who sleeps on it */
void pd_gate_send_line(pd_group *g, const pd_line *line); /* over tcp: what its word announces */
/* [text] "all_reduce(float32[4], SUM) at train.py:12 (#17)" */
int pd_work_text(const pd_group *g, const pd_work *w, char *text, size_t size);

/* failure.c */
void pd_group_hear(pd_listener *l, pd_weight weight, const pd_error *e);
/* What the flight record says, on any thread. *since: when this rank began to wait for rank *on, 0: it does not. */
size_t pd_group_report(pd_listener *l, int rows, int64_t *since, int *on, char *text, size_t size);
/* The failure elsewhere that ends this wait, in this thread's record; PD_OK where there is none (yet). */
pd_status pd_group_heard(pd_group *g, const pd_work *w);
pd_status pd_group_mismatch(pd_group *g, const pd_work *w);
void pd_group_tell(pd_group *g, const pd_error *e); /* the other ranks, that this one has ended the group so */
/* Ends the group with the error in this thread's record; `tell`: the others have to be told. Returns that error. */
pd_status pd_group_fail(pd_group *g, bool tell);

/* rounds.c */
pd_status pd_rounds_begin(pd_group *g, pd_work *w); /* shows its line on the board */
pd_status pd_rounds_run(pd_group *g, pd_work *w, bool *done); /* as far as the gates allow */

/* parts.c */
/* How many pieces there are is known once all lines are there: when all have shown their largest part. */
static inline bool pd_parts_own_sizes(const pd_work *w) {
    return w->id.coll == PD_COLL_ALL_TO_ALL_PARTS;
}
void pd_parts_begin(const pd_group *g, pd_work *w, pd_line *l); /* of a work that has them: its line */
pd_status pd_parts_meet(pd_group *g, pd_work *w); /* all lines are there: compares them */
pd_status pd_parts_read(pd_group *g, pd_work *w); /* where w->read says so */

/* queue.c */
pd_status pd_group_enter(pd_group *g);
void pd_group_leave(pd_group *g);
pd_status pd_group_submit(pd_work *w, pd_work **out); /* NULL out: to its end; w is copied where it has to last */

/* collectives.c */
pd_status pd_group_exchange(pd_group *g, pd_collective coll, double tag, const void *mine, void *all, size_t bytes,
                            uint64_t site);

/* segment.c */
/* Where the ranks are. apart: not all of them share memory; far: some are on other hosts; hosts: NULL, or an array that
   gets each rank's host. */
typedef struct pd_placement { bool apart, far; uint64_t *hosts; } pd_placement;
/* Publishes parts[rank] under (epoch, id) and attaches those of ranks on the same host. */
pd_status pd_parts_exchange(pd_group *g, uint32_t id, size_t bytes, pd_region *parts, pd_placement *placement);
/* The others wait for our part that will not come: they get this thread's error. */
void pd_parts_refuse(pd_link *link, uint32_t epoch, uint32_t id, int rank);
void pd_parts_forget(pd_group *g, uint32_t id); /* all have attached: the store drops the handle */
/* [new] the segment that these bytes of ours lie in, or NULL. */
pd_segment *pd_segment_of(pd_group *g, const char *data, size_t bytes);
void pd_segments_detach(pd_group *g);           /* of a destroyed group: the peers' parts go */
void pd_segments_privatise(pd_group *g);

#endif
