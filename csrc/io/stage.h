/* Staging: threads copy parts of memory into an arena, with the checksums of their blocks made on the way, while the
   caller goes on. Whoever wants to write to such memory goes through the door first: it is open when nothing copies.

   The arena is a memfd of fixed size, or a new file, the parts from an offset on: a folder in memory can hold what
   outlives the process, without another copy. After a fork the child has no threads: there a staging that was under
   way has failed, and the door is open. Locks: one for the process, which no thread holds while it waits for
   something else. */
#ifndef PD_IO_STAGE_H
#define PD_IO_STAGE_H

#include "io/parts.h"

typedef struct pd_stage {
    pd_parts parts;
    int fd;      /* of the memfd; -1 for a file */
    char *arena; /* parts.bytes bytes, the parts one after the other; NULL if there are none */
    struct pd_stage_impl *impl;
} pd_stage;

/* Starts `threads` threads. Takes over what *parts holds, also if it fails; the memory of the parts must stay until the
   copy has ended. path: the file to make, which must not exist, and which gets the parts from `offset` (a multiple of
   PD_DIRECT_ALIGN) on; NULL: a memfd. from: NULL, or an ended staging whose memfd is taken, and its pages with it, if
   it has this size; nobody may read its arena. The caller frees *out by pd_stage_free. */
pd_status pd_stage_start(const char *op, pd_parts *parts, int threads, const char *path, int64_t offset,
                         pd_stage *from, pd_stage **out);
/* Whether the copy has ended: done, failed or cancelled. Waits for that up to `ns` (less than a second). */
bool pd_stage_ended(pd_stage *s, int64_t ns);
/* Of one that has ended: PD_OK, its error, or PD_E_RUNTIME where it was cancelled or cut off by a fork. */
pd_status pd_stage_result(pd_stage *s);
/* Stops the copy if it has not ended, and waits for its threads. */
void pd_stage_cancel(pd_stage *s);
void pd_stage_free(pd_stage *s); /* cancels first */

extern atomic_int pd_stages_open; /* stagings that copy */
bool pd_stage_wait_at_door(void);
/* Whether nothing copies: one load if so. Else waits for that up to 50 ms; call again, without the host's lock. */
static inline bool pd_stage_door(void) {
    return !atomic_load_explicit(&pd_stages_open, memory_order_acquire) || pd_stage_wait_at_door();
}

#endif
