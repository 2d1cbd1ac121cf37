/* Private to a communicator: mover.c (its life, launches in order), calls.c (calls of NCCL), blocks.c (sums over
   logical shards), memory.c (registered memory) and watch.c (looks at what is under way, and ends it). */
#ifndef PD_COMM_NCCL_IMPL_H
#define PD_COMM_NCCL_IMPL_H

#include "comm/nccl/nccl.h"
#include "device/cuda.h"
#include "device/nccl.h"

typedef struct pd_nccl pd_nccl;
typedef struct pd_launch pd_launch;
typedef struct pd_nccl_memory pd_nccl_memory;

/* cudaEventDestroy may wait for the device, so events are used again. */
typedef struct pd_mark {
    void *event;
    struct pd_mark *next, *made; /* next: of the idle ones; made: of all */
} pd_mark;

enum { PD_LAUNCH_UNDER_WAY, PD_LAUNCH_DONE, PD_LAUNCH_FAILED };
struct pd_launch {
    atomic_int refs, state;
    pd_nccl *c;        /* retained */
    pd_mark *done;
    pd_launch *next;   /* in the order of the stream */
    pd_identity id;    /* for texts: */
    uint64_t site;
    uint32_t seq;
    void *captured;    /* the stream whose graph it is in, or NULL */
};

struct pd_nccl {
    atomic_int refs;
    pd_group *g;           /* borrowed, until pd_nccl_end */
    int rank, size, peer;  /* peer: for a pair, the peer's rank in the group; else -1 */
    const pd_nccl_library *lib;
    const pd_cuda_library *cuda;
    const pd_device *device;
    void *stream, *on;     /* on: the same, or in a capture the caller's */
    pthread_mutex_t use;   /* guards comm; taken for each call of NCCL, none of which blocks */
    void *comm;            /* NULL: not there yet, or ended */
    pd_nccl_memory *memory; /* guarded by `use`, too */
    pthread_mutex_t lock;  /* guards the rest */
    pthread_cond_t changed;
    pd_launch *first, **last;
    int64_t since;         /* when `first` became the first one */
    pd_mark *idle, *made;
    pd_error error;        /* set before `failed` */
    atomic_bool failed;
    bool connected;        /* used by the group's queue, under the group's lock */
    bool stop, watched;
    bool captured;         /* some of its collectives are in graphs, where nobody sees them; of the last one: */
    pd_identity captured_id;
    uint64_t captured_site;
    uint32_t captured_seq;
    bool closing, ended;   /* the communicator's end has begun; has been reached */
    pd_os_thread watcher;
};

/* mover.c */
/* The communicator of the whole group. If there is none it is made, but not connected. */
pd_status pd_nccl_of(const char *op, pd_group *g, const pd_device *device, pd_nccl **out);
void pd_nccl_release(pd_nccl *c);
pd_launch *pd_launch_retain(pd_launch *l); /* [borrowed] l */
void pd_launch_release(pd_launch *l);
pd_status pd_nccl_on_device(const pd_nccl *c); /* makes this thread's CUDA calls go to the communicator's device */

/* calls.c */
/* Fails if NCCL lacks the operation or the dtype. */
pd_status pd_nccl_fits(const pd_work *w);
/* Makes the communicator, with all other ranks of the group. */
pd_status pd_nccl_connect(pd_nccl *c, const pd_work *w);
/* Puts the collective, or the batch (not NULL), on c->stream. */
pd_status pd_nccl_issue(pd_nccl *c, const pd_work *w, const pd_batch *b);
/* Makes calls of NCCL for w, which return NCCL's result, and waits until NCCL has taken them. */
pd_status pd_nccl_ask(pd_nccl *c, const pd_work *w, int (*call)(pd_nccl *, const void *), const void *what);
/* Makes NCCL's call for the collective `coll`, for w's sake. */
pd_status pd_nccl_run(pd_nccl *c, const pd_work *w, const pd_job *j, int coll);

/* blocks.c */
/* An all_reduce or reduce_scatter over logical shards, on c->on, which is the calling thread's stream. */
pd_status pd_nccl_sum_blocks(pd_nccl *c, const pd_work *w);

/* memory.c */
pd_status pd_nccl_alloc(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out);
void pd_nccl_free(pd_group_memory *m);
void pd_nccl_register(pd_nccl *c);                 /* registers what the communicator does not have yet */
void pd_nccl_deregister(pd_nccl *c, void *comm);   /* all of it, before comm ends; NULL: it was aborted. Needs `use` */

/* watch.c */
/* The error of NCCL's result, or the control plane's error if that explains it better. */
pd_status pd_nccl_explain(pd_nccl *c, const pd_work *w, int result);
pd_status pd_nccl_start_watch(pd_nccl *c);          /* starts the thread, once */
void pd_nccl_watch(pd_nccl *c, pd_launch *l);       /* watches l from now on; retains it */
void pd_nccl_fail(pd_nccl *c);                      /* with the error in this thread's record; the thread then aborts */
void pd_nccl_finish(pd_nccl *c, bool gently);       /* ends the thread, and the communicator if that has not ended */

#endif
