/* Frames on a non-blocking stream socket, each with at most one file descriptor.

   frame = {magic+version, kind, handles, payload bytes, id} + payload. A read asks the kernel for exactly the bytes
   that the frame still lacks, so a descriptor always belongs to the current frame. Until the peer is authenticated
   `limit` is small and descriptors are refused (the kernel closes them), so a stranger costs one short buffer and one
   file. */
#ifndef PD_COMM_WIRE_H
#define PD_COMM_WIRE_H

#include "base/status.h"

#define PD_WIRE_MAGIC 0x32434450u /* "PDC2": the last byte is the version */

typedef struct pd_frame {
    uint32_t magic;
    uint16_t kind;
    uint16_t handles;
    uint32_t bytes;
    uint32_t id;
} pd_frame;

typedef enum pd_wire_state { PD_WIRE_MORE, PD_WIRE_FRAME, PD_WIRE_CLOSED, PD_WIRE_BAD } pd_wire_state;

typedef struct pd_wire_out pd_wire_out;
typedef struct pd_wire {
    int fd;
    size_t limit;       /* the longest payload that is accepted now */
    bool handles;       /* descriptors are accepted now */
    const char *why;    /* the reason, after PD_WIRE_BAD and PD_WIRE_CLOSED */
    pd_wire_state ended; /* one of these two: nothing is read any more */
    pd_frame head;      /* with body and handle the frame, from PD_WIRE_FRAME until the next read */
    char *body;
    int handle;         /* -1: none; a caller that keeps it sets this to -1 */
    size_t got, cap;
    bool whole;
    pd_wire_out *first, **last; /* frames to send */
    size_t pending;             /* bytes to send */
} pd_wire;

void pd_wire_init(pd_wire *w, int fd, size_t limit); /* owns fd, which is non-blocking */
void pd_wire_fini(pd_wire *w);
pd_status pd_wire_reserve(pd_wire *w); /* allocates for the longest payload: reading cannot run out of memory */
/* Reads until a frame is whole (PD_WIRE_FRAME), nothing is left to read (MORE), the peer has closed (CLOSED) or has
   sent garbage (BAD). CLOSED and BAD are final: every later call returns the same. */
pd_wire_state pd_wire_read(pd_wire *w);
/* Appends a frame made of head and body. `handle` is duplicated; -1: none. */
pd_status pd_wire_queue(pd_wire *w, int kind, uint32_t id, const void *head, size_t head_bytes, const void *body,
                        size_t body_bytes, int handle);
pd_wire_state pd_wire_flush(pd_wire *w); /* MORE: w->pending bytes are left, perhaps 0. CLOSED: the peer is gone */

#endif
