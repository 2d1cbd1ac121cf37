/* Messages between any two ranks of a link, for requests and answers (docs/internals/rpc.md).

   A message is a body and any number of parcels: memory that travels beside it, such as tensors' data. For each
   direction between two ranks there is one connection, made by the sender with its first message. On one host it is a
   unix socket, between hosts tcp. Both ends prove that they know the job's token before anything is read. Messages of
   one sender arrive in the order in which they were sent.

   No thread lives here. Every thread that waits in pd_pipes_receive is ready to take the next message, whoever sends
   it. A thread that waits for an answer may take messages of that one sender (pd_pipes_await), which saves it a change
   of threads. Whoever has taken a message has the sender's turn until pd_pipes_resume: what has to happen in the order
   of messages is done before that.

   On one host a large parcel is copied once, into shared memory (arena.h), and its receiver uses it there. When that
   is sent back whole, by the only one who has it, nothing is copied.

   Every thread may call everything but open and close. Waits give up the host's lock. */
#ifndef PD_COMM_PIPE_H
#define PD_COMM_PIPE_H

#include "comm/link/link.h"

typedef struct pd_pipes pd_pipes;

typedef struct pd_parcel {
    void *data;
    size_t bytes;
    void (*drop)(void *ctx); /* gives the memory back; NULL: nothing to do */
    void *ctx;
    bool given; /* of a parcel that is sent: nobody but the caller has the memory, and the caller drops it soon */
} pd_parcel;

enum { PD_PIPE_NEWS = 0xff00 }; /* kinds from here on are our own: */
typedef enum pd_pipe_news {
    PD_PIPE_GONE = PD_PIPE_NEWS, /* the rank is gone, and all that it had sent was received: the body says why; rank -1:
                                    the control plane is gone, and so is everybody */
    PD_PIPE_SLAB,                /* internal: new shared memory */
} pd_pipe_news;

typedef struct pd_mail {
    int from;        /* -1: nothing has come in time, or pd_pipes_wake was called */
    uint32_t kind;   /* the sender's, below PD_PIPE_NEWS; or news */
    uint64_t id;     /* the sender's */
    char *body;      /* [new] pd_free */
    size_t bytes;
    pd_parcel *parcels; /* [new] pd_free; the receiver drops each of them */
    int nparcels;
    bool lost;          /* it could not be taken, and has neither body nor parcels: pd_mail_lose */
    bool resumed;       /* the sender's turn has ended */
    void *made;         /* what the taker has made of it (pd_pipes_take); NULL: nothing */
} pd_mail;

#define PD_PIPE_BODY ((size_t)1 << 31)     /* the longest body */
#define PD_PIPE_PARCELS 65535

/* [new] All ranks of the link call it with the same `number`, which none of them uses twice. It returns when all have
   done so, after `timeout` seconds at most (PD_E_TIMEOUT names one that has not). arena: bytes of shared memory at
   most. */
pd_status pd_pipes_open(pd_link *link, uint32_t number, double timeout, size_t arena, pd_pipes **out);
/* In an open job pd_pipes_open waits for nobody. So this must be called once before something is sent to a rank, which
   has come there; from then on any thread may send. */
pd_status pd_pipes_meet(pd_pipes *p, int rank);
/* Ends all connections. Nobody may be in another function; parcels that were received stay valid. */
void pd_pipes_close(pd_pipes *p);

/* Sends a message to another rank, and waits until the kernel has all of it. The parcels stay the caller's. held: NULL,
   or whether the caller has the turn of `to`, which is given up (*held false) if the sending has to wait: two ranks
   that wait for each other's full sockets must go on reading. Errors: PD_E_PEER, `to` is gone; PD_E_TIMEOUT, it has not
   taken the message before `until` (of pd_os_now; INT64_MAX: any time); PD_E_PYTHON, interrupted. The message will not
   arrive then. */
pd_status pd_pipes_send(pd_pipes *p, int to, uint32_t kind, uint64_t id, const void *body, size_t bytes,
                        pd_parcel *parcels, int n, int64_t until, bool *held);
/* The same, but if the message could not leave at once it does not leave at all, and *sent is false. */
pd_status pd_pipes_try_send(pd_pipes *p, int to, uint32_t kind, uint64_t id, const void *body, size_t bytes,
                            pd_parcel *parcels, int n, bool *sent);
/* Messages of this kind are given to `take` by the thread that has received them, without the host's lock and with the
   sender's turn ended. True: it has done all, and has dropped the message. Else the message is received as any other,
   with what the taker has left in m->made. It must not wait for anybody. */
typedef bool (*pd_pipes_taker)(void *ctx, pd_mail *m);
void pd_pipes_take(pd_pipes *p, uint32_t kind, pd_pipes_taker take, void *ctx);
/* The next message of any rank; waits up to `ns`. */
pd_status pd_pipes_receive(pd_pipes *p, int64_t ns, pd_mail *out);
/* Takes the turn of a rank, so that only pd_pipes_await takes its messages. False: another thread has it, or the rank
   has not connected yet. */
bool pd_pipes_hold(pd_pipes *p, int from);
/* With the turn: the next message of `from`; waits up to `ns`, below 0 not at all. Without one the turn has ended. */
pd_status pd_pipes_await(pd_pipes *p, int from, int64_t ns, pd_mail *out);
/* The next message of this rank may be taken, by a thread that comes to receive. A thread that does not come back at
   once calls pd_pipes_nudge before it leaves. */
void pd_pipes_resume(pd_pipes *p, int from);
void pd_pipes_nudge(pd_pipes *p);
void pd_pipes_wake(pd_pipes *p); /* one pd_pipes_receive returns */
/* Who waits to send gives up: the next thing is pd_pipes_close. */
void pd_pipes_stop(pd_pipes *p);
/* PD_OK, or the PD_E_PEER that says how this rank ended; PD_E_DIST after pd_pipes_stop. */
pd_status pd_pipes_check(pd_pipes *p, int rank);
void pd_mail_drop(pd_mail *m);
/* There was no memory or no descriptor for what it brings: who waits for its answer should hear of it. */
void pd_mail_lose(pd_mail *m);

typedef struct pd_pipes_counts {
    uint64_t sent, received, bytes_sent, bytes_received; /* messages, and all their bytes */
    uint64_t arena, lent, copied, moved; /* bytes of shared memory, of it lent; bytes copied into it, sent back whole */
} pd_pipes_counts;
void pd_pipes_count(pd_pipes *p, pd_pipes_counts *out);

#endif
