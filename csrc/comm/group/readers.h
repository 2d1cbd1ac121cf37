/* Who reads common memory (common.h), and who writes it: readers need no collective.

   Each rank writes its own part, in sections: from the first write after something else to its end. Each rank reads
   all of it, between begin and end. Each rank has a line, which only it writes, with the number of sections that it has
   ended.

   A rank that begins to read ends its own section and waits until every other rank has ended as many. A rank that has
   ended more has changed its part, and the reader has not: an error that names both. Before a section all ranks
   meet at a barrier. Therefore a rank may read alone at any time (generate, evaluate): until it comes to its own
   section nobody writes, and after it, it reads what all have written. So the step of an optimizer costs a barrier and
   a wait that is usually met. There is no circle: at the barrier a rank waits for ranks that have not come as far, and
   these wait for sections that have been ended before. tests/comm/test_readers_model.py explores all of it.

   A section ends when the rank reads, when its thread calls a collective of any group, or by pd_readers_written: the
   end of an optimizer's step. Without that the others would wait for a rank that waits for them. A rank that reads
   alone in the middle of the others' section may read values of its end; its next write is at a barrier to which they
   do not come, which is an error on all ranks. */
#ifndef PD_COMM_READERS_H
#define PD_COMM_READERS_H

#include "comm/group/common.h"

/* Somebody who has to do something before a section ends. */
typedef struct pd_readers_client {
    void (*ending)(void *ctx);
    void *ctx;
    struct pd_readers_client *next, **at;
} pd_readers_client;

typedef struct pd_readers {
    pd_group *group;            /* [borrowed] its own */
    pd_common *common;          /* [strong] the lines; NULL in a world of one, and where the ranks share no memory */
    struct pd_readers_line *lines;
    atomic_int inside;          /* begins that have not ended */
    atomic_bool open;           /* this rank is in a section */
    uint64_t thread;            /* that has opened it */
    uint64_t seen;              /* the sum of all ranks' sections when this rank began to read the last time */
    int units;                  /* how many the group has had: each has a number (parallel/unit.h) */
    pd_readers_client *clients;
    struct pd_readers *next, **at; /* in the list of open ones */
} pd_readers;

/* [borrowed from g] the group's. All ranks make the first call together. */
pd_status pd_group_readers(pd_group *g, pd_readers **out);
void pd_readers_free(pd_readers *r); /* the group calls it; NULL is fine */

/* Begins to read; calls nest. What fails leaves no reader behind: PD_E_RUNTIME if a rank is ahead; the errors of the
   group's collectives. */
pd_status pd_readers_begin(pd_readers *r, uint64_t site);
void pd_readers_end(pd_readers *r);

/* Begins a section, unless this rank is in one; all ranks call it together. early: this rank still reads, but all ranks
   have finished reading what it will write, so it does not wait. */
pd_status pd_readers_write(pd_readers *r, const char *op, uint64_t site, bool early);
void pd_readers_written(pd_readers *r); /* ends the section of this rank, if there is one */
void pd_readers_written_here(void);     /* ends all sections that this thread has opened */
void pd_readers_add(pd_readers *r, pd_readers_client *c);
void pd_readers_remove(pd_readers_client *c); /* also if it was not added */
extern atomic_int pd_readers_sections;  /* how many are open in this process */

#endif
