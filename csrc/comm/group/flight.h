/* The flight record of a group: its last PYDIST_FLIGHT collectives, and as many messages in a record of their own, for
   the text that explains a failure.

   There is one writer at a time: the thread that runs the queue, or that holds the messages' lock. Any thread may read
   without a lock: a row has eight words, and the writer clears the first one before and stores it after the others.
   Times are the processor's ticks, which cost a third of a call of the clock. */
#ifndef PD_COMM_FLIGHT_H
#define PD_COMM_FLIGHT_H

#include "comm/link/identity.h"
#include "comm/net/hooks.h"

typedef enum pd_flight_state { PD_FLIGHT_POSTED = 1, PD_FLIGHT_DONE, PD_FLIGHT_FAILED } pd_flight_state;

typedef struct pd_flight_row { _Alignas(64) _Atomic uint64_t word[8]; } pd_flight_row;

typedef struct pd_flight {
    pd_flight_row *rows; /* NULL: nothing is recorded */
    uint32_t mask;
    _Atomic uint32_t last;   /* sequence number of the newest row */
    int64_t ticks, ns;       /* one moment in ticks and in ns */
} pd_flight;

pd_status pd_flight_init(pd_flight *f, int rows); /* rounded up to a power of two; 0: no record */
void pd_flight_fini(pd_flight *f);
void pd_flight_post(pd_flight *f, uint32_t seq, const pd_identity *id, uint64_t site);
void pd_flight_wait(pd_flight *f, uint32_t seq, int rank); /* it had to wait for this rank, and perhaps others */
void pd_flight_end(pd_flight *f, uint32_t seq, pd_flight_state state);

/* Writes the last `rows` collectives, a line each, the oldest first. Returns the length. */
size_t pd_flight_text(const pd_flight *f, const pd_hooks *hooks, int rows, char *text, size_t size);
/* Writes the newest: "began barrier() at train.py:12 (#17) 3.0 s ago", or "ended ...". Returns the length; 0: none. */
size_t pd_flight_last(const pd_flight *f, const pd_hooks *hooks, char *text, size_t size);
/* Writes "barrier() at train.py:12 (#17)" and returns the length. */
size_t pd_flight_call(const pd_flight *f, const pd_hooks *hooks, uint32_t seq, char *text, size_t size);

#endif
