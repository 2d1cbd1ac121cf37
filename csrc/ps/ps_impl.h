/* The shared memory of a parameter server, and what the files of this folder ask of each other.

   All addresses in shared memory are offsets: a chunk's number and a byte in it (pd_ps_at). */
#ifndef PD_PS_IMPL_H
#define PD_PS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/os.h"
#include "comm/algo/reduce.h"
#include "ps/table.h"

#define STRIPE ((int64_t)1 << 18) /* elements under one lock */
#define PIECE ((int64_t)4096)     /* elements that are saved before they are written: they stay in the L2 cache */
#define LINE _Alignas(64)

typedef _Atomic uint64_t word;
static inline uint64_t get(const word *w) { return atomic_load_explicit(w, memory_order_acquire); }
static inline void put(word *w, uint64_t v) { atomic_store_explicit(w, v, memory_order_release); }
/* Doubles in words. */
static inline double get_number(const word *w) {
    uint64_t v = get(w);
    double d;
    memcpy(&d, &v, sizeof d);
    return d;
}
static inline void put_number(word *w, double d) {
    uint64_t v;
    memcpy(&v, &d, sizeof v);
    put(w, v);
}

/* A store after which others, or who comes after a death, see what was written before; tests kill the process around
   it. */
static inline void pd_ps_point(void) { pd_fault_end_process(PD_FAULT_STRIPE); }
static inline void pd_ps_say(word *w, uint64_t v) {
    pd_ps_point();
    put(w, v);
    atomic_thread_fence(memory_order_seq_cst); /* what follows is not written before */
    pd_ps_point();
}

typedef uint64_t place; /* chunk << 40 | byte; 0: none */

/* One worker in the store's memory. Only it writes its cells, but for `gone`. */
typedef struct worker {
    LINE word clock, pushes, refused;
    word committed; /* the number of its last call of push: with this store all gradients of the call are pushed */
    atomic_uint gone; /* it has died or left; nobody waits for it any more */
    atomic_uint has_left; /* without an error */
    atomic_uint closed;   /* it has released the store */
    word lags[PD_PS_BINS];
    LINE char saved[(PD_PS_STATES + 1) * PIECE * 8]; /* what it was about to write, see stripe.c */
} worker;

typedef struct store_head {
    LINE atomic_uint tick; /* grows when something happens that a worker may wait for */
    atomic_uint asleep;
    word chunks; /* how many there are */
    LINE word factors_count;
    word factors[PD_PS_BINS];
    worker workers[];
} store_head;

/* A worker's push of one key. The gradient lies in the slot; nobody writes it before the push is applied. */
typedef struct push {
    LINE word seq;     /* how many pushes it has made; above them the number of the call that made the last one */
    word lr, rescale;  /* of the last one */
    word base, own;    /* the version that it pulled, and its own pushes since then */
    word lag, lagged;  /* the staleness of push number `lagged`, found at the first stripe */
} push;

/* Under `lock`. `now` says what its holder was doing: see stripe.c. applied: by worker, the number of its last push
   here. */
typedef struct stripe {
    LINE pthread_mutex_t lock;
    word now, version;
    word applied[];
} stripe;

typedef struct key_head {
    pd_dtype dtype;
    int64_t n, stripes;
    size_t stripe_bytes;
    place value, slots, pushes, stripe; /* slots: n elements of each worker, each in whole cache lines */
    size_t slot_bytes;
    word lr, steps;        /* steps: updates before this store had it */
    word ruled;            /* the rule below is complete */
    pd_ps_rule rule;
    place states[PD_PS_STATES];
    word lags[PD_PS_BINS];
} key_head;

typedef struct chunk { pd_region region; size_t used; } chunk;

struct pd_ps {
    atomic_int refs;
    pd_group *group;
    pd_link *link; /* NULL: one worker, and memory of its own */
    pd_ps_options o;
    int rank, workers;
    uint32_t epoch, number; /* of the group, and of the store in it */
    const pd_transport *transport;
    int64_t warn_ns, timeout_ns;
    pthread_mutex_t lock;
    uint64_t calls;       /* of push */
    char *sums, *widened; /* room for one piece's sum, and for its float32 form */
    store_head *head;
    chunk *chunks;
    size_t nchunks, cap_chunks;
    pd_ps_key **keys;
    size_t nkeys, cap_keys;
    pd_table **tables;
    size_t ntables, cap_tables;
    bool settled[PD_PS_WORKERS]; /* gone workers whose pushes we know to be applied */
};

struct pd_ps_key {
    pd_ps *ps;
    key_head *head; /* what follows is what it says, as addresses here */
    char *value, *slots, *stripes;
    push *pushes; /* by worker */
    char *states[PD_PS_STATES];
    bool ruled;          /* states and step_dtype are those of the rule */
    pd_dtype step_dtype; /* of states and steps */
    pd_ps_past past;
    uint64_t sent;       /* pushes of this worker */
    uint64_t call;       /* of push, the last one with this key */
    bool skipped;        /* the last one was not finite, and is not applied */
    char name[];
};

/* ---- memory.c ---- */
/* [new] zeroed bytes in the store's memory. */
pd_status pd_ps_take(pd_ps *ps, size_t bytes, place *out);
/* The same, of which only what is touched takes memory. If there is none then, the kernel ends a process. */
pd_status pd_ps_take_sparse(pd_ps *ps, size_t bytes, place *out);
/* The address of a place; other workers' chunks are attached when they are first asked for. */
pd_status pd_ps_at(pd_ps *ps, place p, void *out);
pd_status pd_ps_open_memory(pd_ps *ps);
pd_status pd_ps_publish(pd_ps *ps, const char *kind, const char *name, const void *data, size_t bytes);
pd_status pd_ps_fetch(pd_ps *ps, const char *kind, const char *name, void *data, size_t bytes);
void pd_ps_refuse(pd_ps *ps, const char *kind, const char *name); /* the others get this thread's error */
void pd_ps_close_memory(pd_ps *ps); /* the last worker that is there frees the memory for good */

/* ---- stripe.c ---- */
#define CALL_BITS 32
/* How many pushes of a key worker w has made. One whose call has not committed does not count. */
static inline uint64_t pushed(const pd_ps_key *k, int w) {
    const uint64_t x = get(&k->pushes[w].seq), seq = x & UINT32_MAX;
    return seq - (seq && x >> CALL_BITS > get(&k->ps->head->workers[w].committed));
}
static inline stripe *stripe_at(const pd_ps_key *k, int64_t i) {
    return (stripe *)(k->stripes + (size_t)i * k->head->stripe_bytes);
}
/* Whether updates are rounds, in which each worker has one push. */
static inline bool pd_ps_in_rounds(const pd_ps *ps) { return ps->o.mode == PD_PS_SYNC || ps->workers == 1; }
static inline worker *worker_at(const pd_ps *ps, int w) { return &ps->head->workers[w]; }
pd_status pd_ps_lock_init(pthread_mutex_t *lock); /* one that tells when its holder has died */
double pd_ps_factor(const pd_ps *ps, uint64_t lag); /* of the learning rate */
/* Applies round r of stripe i if nobody has and nobody is about to. */
void pd_ps_stripe_round(pd_ps_key *k, int64_t i, uint64_t r);
/* Applies push number `seq` of a worker wherever it is not applied yet. The rule has been learnt. */
pd_status pd_ps_apply(pd_ps_key *k, int contributor, uint64_t seq);
/* Copies the value to `out`; *version: that of its first stripe. */
pd_status pd_ps_read(pd_ps_key *k, char *out, bool consistent, uint64_t *version);
/* Apply this worker's last push without locks: that of the only worker, and in HOGWILD. */
void pd_ps_apply_alone(pd_ps_key *k, const char *in);
void pd_ps_apply_unlocked(pd_ps_key *k, const char *in);
void pd_ps_count_lag(pd_ps_key *k, int who, uint64_t lag);
void pd_ps_count_worker_lag(pd_ps *ps, int who, uint64_t lag);

/* ---- ps.c ---- */
pd_status pd_ps_check_open(const pd_ps *ps);
pd_status pd_ps_learn_rule(pd_ps_key *k); /* maps the states of a rule that was set since the last look */
bool pd_ps_is_finite(pd_dtype t, const void *p, int64_t n);
/* Counts a gradient that is not finite. PD_OK: it is left out; what: "key", "table". */
pd_status pd_ps_refuse_gradient(pd_ps *ps, const char *what, const char *name);

/* ---- table.c ---- */
pd_status pd_table_settle(pd_table *t, int worker); /* finishes the last push of one that has gone */
void pd_table_free(pd_table *t);
const char *pd_table_name(const pd_table *t);

/* ---- wait.c ---- */
/* Waits until done(ps, ctx); lacks(ps, ctx, worker) says whether it waits for that worker. */
typedef struct wait {
    bool (*done)(pd_ps *ps, void *ctx); /* may do some of the work that it waits for */
    bool (*lacks)(pd_ps *ps, void *ctx, int worker);
    const char *what, *name;            /* "pull", "key 'w'" */
    uint64_t number;                    /* "round 7" */
    bool all;                           /* it ends with an error when any worker has died */
    void *ctx;
} wait;
pd_status pd_ps_wait(pd_ps *ps, const wait *w);
pd_status pd_ps_interrupted(pd_ps *ps);
void pd_ps_tick(pd_ps *ps);
pd_status pd_ps_check_workers(pd_ps *ps); /* learns who has gone, finishes their pushes */
/* Takes a lock of the shared memory. *died: its last holder has, so what it guards has to be mended before
   pthread_mutex_consistent. PD_E_TIMEOUT, PD_E_PYTHON: it is not taken. */
pd_status pd_ps_lock(pd_ps *ps, pthread_mutex_t *lock, bool *died);
void pd_ps_enter(pd_ps *ps); /* takes the store's lock: one call at a time */
void pd_ps_leave(pd_ps *ps);

#endif
