/* What ties a rank to the others beside the data: the store, events (what happened to peers), and how memory is shared.

   There are two kinds: a connection to the control server (control.h), and a seat in a hub for ranks that are threads
   of one process (hub.h). A group (group.h) is made over a link and listens to its events. A link outlives many groups,
   each with the next epoch. Any thread may call these functions. Listeners are called by the link's own thread, or by
   the thread of the rank that caused the event, with the link locked; they must not call back or wait. */
#ifndef PD_COMM_LINK_H
#define PD_COMM_LINK_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/limits.h"
#include "comm/link/store.h"
#include "comm/memory/transport.h"
#include "comm/net/fork.h"
#include "comm/net/hooks.h"

#define PD_TOKEN_BYTES 32
#define PD_EPOCH_APART 0x40000000u /* epochs from here on are the store's: not all ranks of the link count them */

typedef enum pd_link_event_kind {
    PD_EVENT_LEFT = 1, /* it left this group (epoch > 0), or all of them, since its program ended */
    PD_EVENT_ABORT,    /* it gave up a group: `status` and `text` say why */
    PD_EVENT_RAISED,   /* its program ended with an exception: `text` is the traceback */
    PD_EVENT_DEAD,     /* its process ended without a goodbye: `text` says how */
    PD_EVENT_WHERE,    /* asks rank `status` what it is doing */
    PD_EVENT_HERE,     /* answers rank `status`; `epoch`: 0, or 1 + the rank for which it has waited too long */
    PD_EVENT_TASK,     /* it does a long task, named `text`, for `status` seconds; 0: the task has ended */
    PD_EVENT_LOST,     /* the control connection is gone, and so is the server's process */
} pd_link_event_kind;

typedef struct pd_link_event {
    uint32_t kind;
    int32_t rank, pid; /* the rank that the event is about; set by the server or the hub */
    uint32_t epoch;    /* 0: every group */
    int32_t status;    /* of ABORT its status; else a rank or seconds, see above */
} pd_link_event;

/* How much an event explains. A stronger one replaces a weaker one that nobody has acted on. */
typedef enum pd_weight { PD_WEIGHT_LEFT = 1, PD_WEIGHT_GONE } pd_weight;
#define PD_LEFT_GRACE_NS 200000000 /* a clean leave counts only after this time, since a traceback may follow it */

typedef struct pd_listener {
    uint32_t epoch;
    const int *ranks; /* the `size` ranks of the link whose events it wants; NULL: all */
    int size;
    void (*hear)(struct pd_listener *, pd_weight, const pd_error *);
    /* Writes the last `rows` collectives; rows 0: one line on the one in which it waits, or on the last. *since: when
       it began to wait for rank *on; 0: it does not wait. */
    size_t (*report)(struct pd_listener *, int rows, int64_t *since, int *on, char *text, size_t size);
    struct pd_listener *next, **at;
} pd_listener;

#define PD_PLACES 8 /* of so many ranks the places are kept */
typedef struct pd_place {
    int rank, on;   /* on: the rank for which it has waited for PYDIST_BLOCKED seconds; -1: none */
    char text[400]; /* "": it has not answered */
} pd_place;

typedef struct pd_task {
    int64_t until; /* ns; 0: it has no long task */
    char name[64];
} pd_task;

typedef struct pd_link_ops {
    const pd_transport *transport; /* how ranks of the same `host` share memory; NULL: they do not */
    pd_status (*call)(pd_link *, const pd_store_call *, pd_store_reply *);
    /* Sends an event to all other ranks. Never fails and never waits long. */
    void (*tell)(pd_link *, const pd_link_event *, const char *text);
    void (*close)(pd_link *); /* says goodbye (LEFT, epoch 0), ends the link's thread; events stop */
    void (*free)(pd_link *);
    bool answers; /* it has a thread that can say where its rank is */
} pd_link_ops;

struct pd_link {
    const pd_link_ops *ops;
    const pd_hooks *hooks;
    int rank, world;
    int host_rank;                 /* the rank in whose process the control server runs; -1: it runs in a launcher */
    uint64_t host;                 /* equal on ranks that can address each other's memory */
    uint8_t token[PD_TOKEN_BYTES]; /* the job's; only its ranks know it */
    char here[64];                 /* our address on the connection to the server; "": the server is on this host */
    char way[320];                 /* that connection's interface and why it was chosen, in words; "": the same */
    bool open, wide; /* ranks come and go (control.h); some may be on other hosts */
    uint32_t forks;
    atomic_int refs;
    atomic_uint epochs;
    pthread_mutex_t lock; /* guards the members below */
    pd_listener *listeners;
    pd_place places[PD_PLACES]; /* of the ranks that were asked last */
    unsigned asked;
    pd_task *tasks; /* by rank; NULL until a rank has one */
    pd_weight gone;       /* 0: all ranks are there */
    pd_error why;
    uint8_t left[PD_RANKS_MAX]; /* by rank: its pd_weight */
    bool closed;
};

void pd_link_init(pd_link *link, const pd_link_ops *ops, int rank, int world, const pd_hooks *hooks);
void pd_link_fini(pd_link *link);
void pd_link_retain(pd_link *link);
void pd_link_release(pd_link *link); /* the last release closes it */
void pd_link_close(pd_link *link);   /* later calls do nothing */
void pd_link_raised(pd_link *link, const char *traceback);

/* Adds a listener for events of this epoch's group and of its ranks. It hears past events that still hold at once. */
void pd_link_listen(pd_link *link, pd_listener *l, uint32_t epoch);
void pd_link_unlisten(pd_link *link, pd_listener *l);

/* Asks a rank what it is doing; pd_link_place has the answer a moment later. False: no thread of it can answer. */
void pd_link_ask(pd_link *link, int rank);
bool pd_link_place(pd_link *link, int rank, char *text, size_t size);
int pd_link_waits_for(pd_link *link, int rank); /* by its last answer, for which rank it waits too long; -1: none */
/* Tells the others that this rank does a long task, for which their timeouts leave it time. 0 seconds: it is done. */
void pd_link_task(pd_link *link, const char *name, double seconds);
int64_t pd_link_task_of(pd_link *link, int rank, char *name, size_t size); /* its end (ns); 0: no long task */
/* Writes the flight records of all groups, each after a line that names the group; rows as in pd_listener. */
size_t pd_link_flight(pd_link *link, int rows, char *text, size_t size);
/* Writes what this rank is doing, within 200 ms; called by the link's own thread. Returns the rank for which it has
   waited too long; -1: none. */
int pd_link_here(pd_link *link, char *text, size_t size);
/* The rank for which this rank waits now; -1: none, or any. Any thread may call. */
int pd_link_waits_now(pd_link *link);
/* The same, and what it waits in; if it does not wait, *since is 0 and *text what it did last. Any thread may call. */
int pd_link_standing(pd_link *link, int64_t *since, char *text, size_t size);

/* For the two kinds of links. */
void pd_link_hear(pd_link *link, const pd_link_event *event, const char *text);
pd_status pd_link_gone(pd_link *link);                /* PD_OK, or the error that names a dead rank */
pd_weight pd_link_left(pd_link *link, int rank);      /* 0: it is there, as far as this rank knows */
pd_status pd_link_check(pd_link *link);               /* fails if it was closed or inherited by a fork */

#endif
