/* Who reads common memory (common.h), and who writes it, without a collective.

   Each rank writes its own part, in sections: from the first write after something else to its end. Each rank reads
   all of it, between begin and end. Each rank has a line of words, which only it writes:

     reading   it is between begin and end
     writing   it is in a section
     sections  how many it has begun
     site      where its last section or reading began

   A reader stores its own word and then looks at the others': it waits for ranks that write, and for ranks that have
   begun fewer sections than itself, which will still change what it is about to read. While it waits it is no reader,
   so writers never wait for waiting readers. A rank that has begun more sections than a reader has changed its part,
   and the reader has not: an error that names both places. A writer stores its word and waits until nobody reads.

   A rank may read alone: evaluate, generate. So another rank may be about to read the present values when this one
   begins to write, and nothing of it is to be seen yet. Therefore all ranks meet at a barrier before a section, unless
   they have met since this rank has read the last time: at the end of a backward that reduces gradients. So the step of
   an optimizer costs two waits that are usually met, and other edits a barrier; all ranks make them. There is no
   circle: a writer waits for ranks that have not finished reading, and these wait for nobody's section.

   A section ends when the rank reads, when its thread calls a collective of any group, or by pd_readers_written: the
   end of an optimizer's step. Without that the others would wait for a rank that waits for them. */
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
    atomic_bool met;            /* all ranks have met since this one has read the last time */
    uint64_t seen;              /* the sum of all ranks' sections when this rank began to read the last time */
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

/* All ranks have met, and will not read before they have written what this rank will write. */
static inline void pd_readers_meet(pd_readers *r) { r->met = true; }
/* Begins a section, unless this rank is in one. early: this rank still reads, but all ranks have finished reading what
   it will write, so it does not wait. */
pd_status pd_readers_write(pd_readers *r, const char *op, uint64_t site, bool early);
void pd_readers_written(pd_readers *r); /* ends the section of this rank, if there is one */
void pd_readers_written_here(void);     /* ends all sections that this thread has opened */
void pd_readers_add(pd_readers *r, pd_readers_client *c);
void pd_readers_remove(pd_readers_client *c); /* also if it was not added */
extern atomic_int pd_readers_sections;  /* how many are open in this process */

#endif
