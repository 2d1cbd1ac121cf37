/* Private to a group: group.c (its life), collectives.c, rounds.c (how one runs), queue.c, gate.c (waiting), failure.c,
   segment.c. */
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

#define PD_CLOSED_NS 1000000000 /* how long a closed connection may stay unexplained before the peer counts as dead */

typedef struct pd_p2p pd_p2p;
typedef struct pd_mover pd_mover;
typedef struct pd_moving pd_moving;

typedef struct pd_standing { /* the wait that a thread of this rank is in; the control plane's thread reads it */
    _Atomic int64_t since; /* ns; 0: it does not wait */
    atomic_int on;         /* the first missing rank, by its number in the job; -1: any rank will do */
    atomic_uint seq;
    atomic_bool message;
} pd_standing;

struct pd_group {
    atomic_int refs;
    int rank, size;
    int *ranks; /* of the link, by rank of the group; NULL: all of the link's */
    uint32_t epoch, forks;
    atomic_uint parameter_stores; /* that were made over it (ps/) */
    pd_link *link; /* NULL: a world of one */
    const pd_hooks *hooks;
    const pd_transport *transport;
    const pd_mesh_kind *kind; /* NULL: shared memory, or tcp if ranks are on several hosts */
    pd_mesh *mesh; /* not NULL: the peers' parts are mirrors, filled from the wire */
    int64_t timeout_ns, patience_ns, warn_ns, blocked_ns;
    pd_standing standing;
    int spins, spins_max; /* how often a wait looks at a word before it yields the core */
    bool check; /* identities are compared */
    bool fast;  /* sums may be in any order */
    const pd_algo *forced;
    pd_tuning tuning; /* rank 0's */

    /* The control memory of each rank: a board, then slots and shares (algo.h). parts[rank] is our own. */
    size_t slot, share;
    pd_region *parts;
    pd_board **boards;
    char **memory;
    int local; /* over 1: so many ranks of each host, a subtree of the tree, share memory besides the mesh: */
    pd_region *near;    /* by rank: for ranks of our host, else zeros; of near_transport */
    char **near_memory; /* their slots and shares */
    const pd_transport *near_transport;
    pd_peek *peeks;  /* by rank; NULL: not all ranks' memory can be read in place */
    uint64_t word;   /* the others read it to try whether they can */
    size_t read_from; /* parts are read in place if the largest has so many bytes; rank 0's number */
    char **peers;    /* for a job's pointers, since one collective runs at a time */
    const char **in;

    pthread_mutex_t lock; /* of the queue and the counters; held while a collective runs or waits */
    _Atomic uintptr_t owner;
    pd_work *first, **last;
    uint32_t seq, step, piece; /* equal on all ranks: collectives posted, rounds gated, pieces moved */
    pd_cost counted; /* what its collectives have moved since it was made */
    pd_flight flight;
    pd_p2p *p2p; /* messages between two ranks; NULL in a group of one */
    const pd_mover *mover; /* of what is on a GPU (mover.h); NULL: such collectives are refused */
    pd_moving *moving;     /* the mover's data on this group; NULL: nothing has been on a GPU yet */

    atomic_bool failed, destroyed;
    pd_error error; /* set once, before `failed` */

    pd_listener listener;
    atomic_uint abort;            /* 0, or the weight of `failure`: polled by every wait */
    _Atomic(atomic_uint *) sleeping; /* the word on which this rank sleeps */
    pthread_mutex_t failure_lock;
    pd_error failure;
    int64_t failure_at;

    struct pd_readers *readers; /* readers.h; NULL: none were asked for */

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
    pd_segment *segment; /* [strong] the segment in which the data are, or NULL */
    pd_blocks *blocks;   /* [strong] the job's, or NULL */
    bool direct;         /* the data are large enough to use the segment */
    bool not_put;        /* piece 0 is put if the ranks do not agree to read the data where they are */
    uint64_t site, hash;
    uint32_t seq;
    int64_t pieces, round;
    pd_part *parts;  /* NULL; or for parts of different sizes 2 * size of them, the job's gives and takes */
    int64_t largest; /* elements of the largest part that it gives; of all parts, if all ranks know the sizes */
    uint64_t sizes;  /* pd_parts_balance, or pd_parts_hash */
    uint64_t places; /* of all_gather's parts, where all of them lie in symmetric segments; 0: they do not */
    uint32_t shows;  /* flags in the line of a work with parts */
    bool read;       /* large parts are read in place */
    bool placed;     /* and all ranks' parts lie in symmetric segments */
    pd_timespan span;       /* for the profiler, from the moment it began to run */
    /* The gate that ends this round: opens when every rank's word has reached the target. */
    bool at_board;    /* the word: line[seq & 1].seq, else step */
    uint32_t target;
    int arrived;      /* ranks seen there so far, counted from our right neighbour */
    bool waits; /* a synchronous one: its caller waits */
    /* For data on a GPU (mover.h): */
    const pd_device *device; /* NULL: the data are in the host's memory */
    const pd_mover *mover;   /* NULL: the data are in the host's memory */
    void *stream;            /* the caller's stream */
    bool captured;           /* it is captured into a CUDA graph */
    bool narrow;             /* 16-bit sums may be rounded at each step */
    void *ready;             /* the mover's mark of when its input will have been written */
    void *launch;            /* [strong] the mover's; NULL until it has been launched */
    /* For a send or a receive: */
    int peer, tag;    /* peer -1: the rank that sends first */
    size_t sent;
};

struct pd_segment {
    atomic_int refs;
    uint32_t id;
    size_t bytes;
    pd_group *group; /* retained, but only its memory: the group may have been destroyed */
    pd_segment *next, **at;
    int rank, size;
    pd_region parts[];
};

/* The number by which people know it: its rank in the job. */
static inline int pd_group_name(const pd_group *g, int rank) { return g->ranks ? g->ranks[rank] : rank; }

/* gate.c */
bool pd_gate_open(pd_group *g, pd_work *w);
/* Waits for the gate. deadline: in ns; INT64_MAX: the group's timeout only. After a failure, *fatal says whether the
   group has failed, or only the caller's deadline has passed. */
pd_status pd_gate_wait(pd_group *g, pd_work *w, int64_t deadline, bool *fatal);
void pd_gate_ring(pd_group *g, atomic_uint *word); /* after a store to a word of ours: wakes ranks that sleep on it */
void pd_gate_send_line(pd_group *g, const pd_line *line); /* over messages: sends the line; its word follows */
/* Writes "all_reduce(float32[4], SUM) at train.py:12 (#17)" and returns the length. */
int pd_work_text(const pd_group *g, const pd_work *w, char *text, size_t size);

/* failure.c */
void pd_group_hear(pd_listener *l, pd_weight weight, const pd_error *e);
/* Writes the flight record; any thread may call. *since: when this rank began to wait for rank *on; 0: it does not
   wait. */
size_t pd_group_report(pd_listener *l, int rows, int64_t *since, int *on, char *text, size_t size);
/* PD_OK, or the failure of another rank that ends this wait. */
pd_status pd_group_heard(pd_group *g, const pd_work *w);
pd_status pd_group_mismatch(pd_group *g, const pd_work *w);
void pd_group_tell(pd_group *g, const pd_error *e); /* tells the other ranks that this one has ended the group with e */
/* Ends the group with the error in this thread's record, and returns it. `tell`: also tells the other ranks. */
pd_status pd_group_fail(pd_group *g, bool tell);

/* rounds.c */
pd_status pd_rounds_begin(pd_group *g, pd_work *w); /* shows its line on the board */
pd_status pd_rounds_run(pd_group *g, pd_work *w, bool *done); /* runs as far as the gates allow */

/* parts.c */
/* Whether each rank knows its own sizes only. Then the number of pieces is known once all lines are there, which show
   each rank's largest part. */
static inline bool pd_parts_own_sizes(const pd_work *w) {
    return w->id.coll == PD_COLL_ALL_TO_ALL_PARTS;
}
void pd_parts_begin(pd_group *g, pd_work *w); /* sets what its line will show, and not_put */
pd_status pd_parts_meet(pd_group *g, pd_work *w, bool *again); /* as meet() in rounds.c */
pd_status pd_parts_read(pd_group *g, pd_work *w); /* if w->read is set */

/* queue.c */
pd_status pd_group_enter(pd_group *g); /* also ends the sections of this thread (readers.h) */
pd_status pd_group_lock(pd_group *g);  /* the same without that */
void pd_group_leave(pd_group *g);
pd_status pd_group_submit(pd_work *w, pd_work **out); /* out NULL: runs it to its end; else w is copied */

/* collectives.c */
pd_status pd_group_exchange(pd_group *g, pd_collective coll, double tag, const void *mine, void *all, size_t bytes,
                            uint64_t site);

/* segment.c */
/* Where the ranks are. apart: not all of them share memory; far: some are on other hosts; hosts: NULL, or an array that
   gets each rank's host. */
typedef struct pd_placement { bool apart, far; uint64_t *hosts; } pd_placement;
size_t pd_page_round(size_t bytes); /* up to whole pages */
/* The two halves of pd_parts_exchange: puts our region into the store, and attaches that of a rank, which has to share
   memory with us. */
pd_status pd_parts_publish(pd_group *g, uint32_t id, size_t bytes, const pd_region *own);
pd_status pd_parts_attach(pd_group *g, uint32_t id, int rank, size_t bytes, int64_t deadline, pd_region *part);
/* Publishes parts[rank] in the store under (epoch, id), and attaches the parts of ranks on the same host. */
pd_status pd_parts_exchange(pd_group *g, uint32_t id, size_t bytes, pd_region *parts, pd_placement *placement);
/* For a group of which some ranks attach by spots, each for itself: *apart becomes true if it is so on any rank. */
#define PD_PARTS_AGREED UINT32_MAX /* its records' id, which is that of no segment */
pd_status pd_parts_agree(pd_group *g, bool *apart);
/* Our part will not come: the others, who wait for it, get this thread's error. */
void pd_parts_refuse(pd_link *link, uint32_t epoch, uint32_t id, int rank);
void pd_parts_forget(pd_group *g, uint32_t id); /* once all have attached it: the store drops the handle */
/* [new] the segment that contains these bytes of ours, or NULL. */
pd_segment *pd_segment_of(pd_group *g, const char *data, size_t bytes);
void pd_segments_detach(pd_group *g);           /* of a destroyed group: detaches the peers' parts */
void pd_segments_privatise(pd_group *g);

#endif
