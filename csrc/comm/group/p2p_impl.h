/* Messages between two ranks, for p2p.c (lanes, what moves) and p2p_wait.c (waiting for it). */
#ifndef PD_COMM_P2P_IMPL_H
#define PD_COMM_P2P_IMPL_H

#include "comm/group/p2p.h"

typedef struct pd_envelope {
    int64_t count;
    int32_t tag;
    uint32_t dtype;
} pd_envelope;

typedef struct pd_unexpected { /* a message that came before its receive */
    struct pd_unexpected *next;
    pd_envelope envelope;
    pd_work *taker; /* the receive that waits for the rest of it */
    size_t got;
    char data[];
} pd_unexpected;

struct pd_lane {
    _Alignas(128) atomic_uint head;
    _Alignas(128) atomic_uint ack;
    _Alignas(128) char ring[];
};

typedef struct pd_p2p_peer { /* what this rank knows of one peer */
    pd_work *first, **last; /* sends */
    pd_envelope out;
    uint32_t written;
    uint32_t taken, acked;
    pd_envelope in;
    size_t in_got; /* bytes of the envelope, then of its data */
    bool in_body;
    pd_work *into;  /* the receive that takes the data, if not NULL */
    pd_unexpected *aside;
    pd_unexpected *unexpected, **unexpected_last;
    _Atomic int64_t left; /* when it left the group; 0: it has not */
} pd_p2p_peer;

struct pd_p2p {
    pthread_mutex_t lock;
    size_t ring, at; /* bytes of a ring; offset of the lanes in a part */
    pd_work *receives, **receives_last;
    atomic_bool used, failed;
    pd_error error;
    uint32_t count;
    pd_flight flight; /* written under the lock */
    atomic_size_t moved; /* bytes moved so far */
    pd_p2p_peer peers[];
};

/* Ends the group with the error in this thread's record. A thread that holds the group's lock sees it at its next
   look. */
pd_status pd_p2p_lose(pd_group *g);
/* Calls pd_p2p_pump, under the group's lock if there is a mesh. If another thread holds that lock, its wait does this.
   May wait `ns` for `w`. */
pd_status pd_p2p_carry_on(pd_group *g, const pd_work *w, int64_t ns);

#endif
