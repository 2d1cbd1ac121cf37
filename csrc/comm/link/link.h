/* What ties one rank to the others outside of the data path: the store, events (what happened to peers), and how memory
   is shared.

   Two kinds: a connection to the control server (control.h), and a seat in a hub where ranks are threads of one process
   (hub.h). A group (group.h) is made over a link and listens to its events; a link outlives many groups, each with the
   next epoch. Threads: everything here may be called from any thread; listeners are called on the link's own
   thread (or the thread of the rank that caused the event), with the link locked, and must not call back or wait. */
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
#define PD_EPOCH_APART 0x40000000u /* epochs from here on come from the store: not all ranks of the link count them */

typedef enum pd_link_event_kind {
    PD_EVENT_LEFT = 1, /* left this group (epoch > 0), or everything: its program ended */
    PD_EVENT_ABORT,    /* a rank gave up a group: `status` and `text` say why */
    PD_EVENT_RAISED,   /* its program ended by an exception: `text` is the traceback */
    PD_EVENT_DEAD,     /* its process ended without a word: `text` is how */
    PD_EVENT_WHERE,    /* to rank `status`: what are you doing? */
    PD_EVENT_HERE,     /* the answer, to rank `status`; `epoch`: 0, or 1 + the rank for which it has waited too long */
    PD_EVENT_TASK,     /* it does something long, named `text`, for `status` seconds; 0: no more */
    PD_EVENT_LOST,     /* the control connection is gone, with it the server's process */
} pd_link_event_kind;

typedef struct pd_link_event {
    uint32_t kind;
    int32_t rank, pid; /* the rank it is about; stamped by the server or the hub */
    uint32_t epoch;    /* 0: every group */
    int32_t status;    /* of ABORT; a rank or seconds, see above */
} pd_link_event;

/* How much an event explains; a stronger one replaces a weaker one that nobody has acted upon. */
typedef enum pd_weight { PD_WEIGHT_LEFT = 1, PD_WEIGHT_GONE } pd_weight;
#define PD_LEFT_GRACE_NS 200000000 /* a clean leave is acted upon only after this: a traceback may follow it */

typedef struct pd_listener {
    uint32_t epoch;
    const int *ranks; /* whom it listens to: `size` ranks of the link; NULL: everybody */
    int size;
    void (*hear)(struct pd_listener *, pd_weight, const pd_error *);
    /* [text] the last `rows` collectives; 0: one line on what it waits in, or the last. *since: when it began to wait
       for rank *on; 0: it does not wait. */
    size_t (*report)(struct pd_listener *, int rows, int64_t *since, int *on, char *text, size_t size);
    struct pd_listener *next, **at;
} pd_listener;

#define PD_PLACES 8 /* ranks whose places are remembered */
typedef struct pd_place {
    int rank, on;   /* on: the rank for which it has waited for PYDIST_BLOCKED seconds; -1: for none */
    char text[400]; /* "": it has not answered */
} pd_place;

typedef struct pd_task {
    int64_t until; /* ns; 0: it has none */
    char name[64];
} pd_task;

typedef struct pd_link_ops {
    const pd_transport *transport; /* how to share memory with ranks of the same `host`; NULL: with nobody */
    pd_status (*call)(pd_link *, const pd_store_call *, pd_store_reply *);
    /* To all other ranks; never fails, never waits long. */
    void (*tell)(pd_link *, const pd_link_event *, const char *text);
    void (*close)(pd_link *); /* says goodbye (LEFT, epoch 0), ends the link's thread; events stop */
    void (*free)(pd_link *);
    bool answers; /* a thread of its own can be asked where its rank is */
} pd_link_ops;

struct pd_link {
    const pd_link_ops *ops;
    const pd_hooks *hooks;
    int rank, world;
    int host_rank;                 /* the rank in whose process the control server runs; -1: a launcher's */
    uint64_t host;                 /* the same on ranks that can address each other's memory */
    uint8_t token[PD_TOKEN_BYTES]; /* of the job: known to its ranks only */
    char here[64];                 /* our address on the way to the server; "": it is on this host */
    char way[320];                 /* that way and why it, in words; "" likewise */
    uint32_t forks;
    atomic_int refs;
    atomic_uint epochs;
    pthread_mutex_t lock; /* of the members below */
    pd_listener *listeners;
    pd_place places[PD_PLACES]; /* the newest questions */
    unsigned asked;
    pd_task *tasks; /* of every rank; NULL until there is one */
    pd_weight gone;       /* 0: everybody is there */
    pd_error why;
    uint8_t left[PD_RANKS_MAX]; /* by rank: its own pd_weight */
    bool closed;
};

void pd_link_init(pd_link *link, const pd_link_ops *ops, int rank, int world, const pd_hooks *hooks);
void pd_link_fini(pd_link *link);
void pd_link_retain(pd_link *link);
void pd_link_release(pd_link *link); /* the last one closes it */
void pd_link_close(pd_link *link);   /* once; later calls do nothing */
void pd_link_raised(pd_link *link, const char *traceback);

/* Listens to events of groups of this epoch, and of its ranks; past ones that still hold are told at once. */
void pd_link_listen(pd_link *link, pd_listener *l, uint32_t epoch);
void pd_link_unlisten(pd_link *link, pd_listener *l);

/* Asks a rank what it is doing; pd_link_place has the answer a moment later. False: nobody there can say. */
void pd_link_ask(pd_link *link, int rank);
bool pd_link_place(pd_link *link, int rank, char *text, size_t size);
int pd_link_waits_for(pd_link *link, int rank); /* as it has answered: for whom it has waited too long, -1: nobody */
/* Tells the others that this rank does something long: their timeouts leave it that time. 0 seconds: it is done. */
void pd_link_task(pd_link *link, const char *name, double seconds);
int64_t pd_link_task_of(pd_link *link, int rank, char *name, size_t size); /* until when (ns); 0: it has none */
/* [text] the flight records of all groups, each after a line that names it; rows as in pd_listener. */
size_t pd_link_flight(pd_link *link, int rows, char *text, size_t size);
/* [text] what this rank is doing. On the link's own thread; takes 200 ms at most. For whom it has waited too long, -1:
   nobody. */
int pd_link_here(pd_link *link, char *text, size_t size);
/* For whom this rank waits in this moment; -1: for nobody, or for anybody. On any thread. */
int pd_link_waits_now(pd_link *link);
/* The same where it stands in a wait; else *text is what it did last, and *since 0. On any thread. */
int pd_link_standing(pd_link *link, int64_t *since, char *text, size_t size);

/* For the two kinds of links. */
void pd_link_hear(pd_link *link, const pd_link_event *event, const char *text);
pd_status pd_link_gone(pd_link *link);                /* PD_OK, or the error of who died */
pd_weight pd_link_left(pd_link *link, int rank);      /* 0: it is there, as far as it is known */
pd_status pd_link_check(pd_link *link);               /* usable: not closed, not inherited by fork */

#endif
