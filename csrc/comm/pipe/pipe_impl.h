/* Shared by pipe.c (opening, closing, news), door.c (connecting), send.c and receive.c. */
#ifndef PD_COMM_PIPE_IMPL_H
#define PD_COMM_PIPE_IMPL_H

#include "comm/net/auth.h"
#include "comm/pipe/arena.h"
#include "comm/pipe/pipe.h"

#define PD_PIPE_MAGIC 0x31504450u /* "PDP1": the last byte is the version */
#define PD_PIPE_INLINE ((size_t)16 << 10) /* shorter parcels travel through the socket */
#define PD_PIPE_STAGE ((size_t)64 << 10)
#define PD_PIPE_GUESTS 64
#define PD_PIPE_PATIENCE INT64_C(20000000000) /* how long connecting may take */

/* message = head, an entry for each parcel, the body, and the data of parcels that travel through the socket.
   PD_PIPE_SLAB has neither: id is the slab's number, bytes its size, and its descriptor comes with the head. */
typedef struct pd_pipe_head {
    uint32_t magic;
    uint16_t kind, parcels;
    uint64_t id, bytes;
} pd_pipe_head;

typedef enum pd_pipe_way { PD_WAY_SOCKET, PD_WAY_SLAB, PD_WAY_BACK } pd_pipe_way;
typedef struct pd_pipe_entry {
    uint64_t bytes, offset; /* offset: in the slab */
    uint32_t way, slab;     /* PD_WAY_SLAB: a slab of the sender; PD_WAY_BACK: a slab of the receiver, whose parcel it
                               gets back */
} pd_pipe_entry;

typedef struct pd_hello {
    uint32_t magic, number;
    int32_t from, to;
    uint8_t nonce[PD_NONCE_BYTES], proof[32];
} pd_hello;

typedef struct pd_guest { /* a connection that has not proved yet who it is; fd -1: none */
    int fd;
    size_t got;
    int64_t deadline;
    uint8_t nonce[PD_NONCE_BYTES];
    pd_hello hello;
} pd_guest;

typedef enum pd_pipe_stage {
    PD_STAGE_HEAD, PD_STAGE_TABLE, PD_STAGE_BODY, PD_STAGE_PARCEL, PD_STAGE_SKIP,
} pd_pipe_stage;

typedef struct pd_inlet { /* what one rank sends us */
    atomic_bool taken;  /* a thread has its turn: only that one touches what follows */
    atomic_bool missed; /* somebody wanted the turn meanwhile: who ends it looks again */
    atomic_bool backlog; /* counted in p->backlogs: messages may lie in the stage, of which epoll knows nothing; written
                            with the turn, read also without */
    int fd;            /* -1: not connected (any more) */
    atomic_int next;   /* a newer connection of the same rank, read after this one has ended; -1: none */
    pd_fork_watch watch;
    pd_pipe_stage stage;
    char *to;          /* where the next bytes go, unless they are skipped */
    size_t left;
    char *stage_bytes; /* [PD_PIPE_STAGE] received, not taken yet from `begin` on; NULL until there is a connection */
    size_t begin, end;
    pd_pipe_head head;
    int handle;        /* a descriptor that came with the head */
    pd_pipe_entry *table;
    size_t table_cap;
    int parcel;        /* whose data come */
    pd_mail mail;
    pd_slab **slabs;   /* [PD_SLABS] those of this rank that we have mapped; NULL until there is one */
} pd_inlet;

typedef struct pd_outlet { /* what we send to one rank */
    pthread_mutex_t lock;
    int fd;
    pd_fork_watch watch;
} pd_outlet;

typedef struct pd_fate { /* how a rank has ended */
    pd_weight weight; /* 0: it is there */
    bool told;        /* a receiver has got the news */
    int64_t since;
    pd_error why;
} pd_fate;

/* A clean leave counts only after a moment, since a traceback may follow it. */
static inline bool pd_fate_holds(const pd_fate *f) {
    return f->weight && (f->weight > PD_WEIGHT_LEFT || pd_os_now() - f->since >= PD_LEFT_GRACE_NS);
}

struct pd_pipes {
    pd_link *link;
    pd_listener listener;
    uint32_t number;
    int rank, world;
    bool spread; /* some ranks are on other hosts */
    int poll, bell, near, far; /* epoll; eventfd of pd_pipes_wake; listening sockets, unix and tcp (or -1) */
    pd_fork_watch watches[4];
    pd_arena arena;
    pthread_mutex_t lock; /* of fates and guests */
    atomic_bool stopped;  /* nobody sends any more */
    atomic_int news;      /* fates that no receiver knows yet */
    atomic_int backlogs;  /* inlets whose turn is free and whose stage has bytes */
    pd_fate *fates;       /* by rank; our own: the control plane is gone */
    pd_guest guests[PD_PIPE_GUESTS];
    pd_inlet *inlets;
    pd_outlet *outlets;
    struct pd_door { uint64_t host; char name[64]; } *doors; /* by rank */
    uint32_t taken_kind;
    pd_pipes_taker take; /* NULL: none */
    void *take_ctx;
    atomic_ullong sent, received, bytes_sent, bytes_received, copied, moved;
};

enum { PD_TAG_NEAR, PD_TAG_FAR, PD_TAG_BELL, PD_TAG_GUEST, PD_TAG_INLET };
static inline uint64_t pd_pipe_tag(int what, int index) { return (uint64_t)what << 32 | (uint32_t)index; }

/* ---- door.c ---- */
pd_status pd_door_open(pd_pipes *p, int64_t deadline);
pd_status pd_door_dial(pd_pipes *p, int to, int64_t until, int *fd);
void pd_door_let_in(pd_pipes *p, int listening);
void pd_door_hear(pd_pipes *p, int guest);
void pd_door_close(pd_pipes *p);
/* ---- receive.c ---- */
void pd_inlet_close(pd_inlet *in);
/* Connects a rank, or keeps the descriptor until the older connection has ended. False: it keeps one already. */
bool pd_inlet_settle(pd_pipes *p, int rank, int fd);

#endif
