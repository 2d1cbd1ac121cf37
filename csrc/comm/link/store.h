/* The rendezvous store: bytes under names, shared by all ranks. A handle (a file descriptor, or a block of memory) may
   travel with a value.

   Every operation is one pd_store_call, which the table (kv.h) answers. A rank reaches the table through its link: over
   the control socket, or, if ranks are threads, under a lock. Names that begin with "pd:" belong to the engine. */
#ifndef PD_COMM_STORE_H
#define PD_COMM_STORE_H

#include <stdatomic.h>

#include "base/status.h"

#define PD_STORE_KEY 1024       /* longest name */
#define PD_STORE_VALUE (1 << 20) /* longest value */
#define PD_NO_HANDLE ((intptr_t)-1)

typedef enum pd_store_verb {
    PD_STORE_SET,    /* key = data, handle */
    PD_STORE_GET,    /* waits for the key; returns data and handle */
    PD_STORE_WAIT,   /* waits for the key */
    PD_STORE_ADD,    /* key += amount, as decimal text, starting at 0; returns the sum */
    PD_STORE_CHECK,  /* returns amount 1 if the key is there */
    PD_STORE_DELETE, /* returns amount 1 if the key was there */
    PD_STORE_VERBS
} pd_store_verb;

typedef struct pd_store_call {
    pd_store_verb verb;
    const char *key;
    size_t key_bytes;
    const void *data;
    size_t bytes;
    int64_t amount;
    intptr_t handle;          /* borrowed; PD_NO_HANDLE: none */
    int64_t timeout_ns;       /* for GET and WAIT */
    const atomic_uint *stop;  /* NULL: any rank's death ends the wait; else only this word, once not 0 (PD_E_DIST) */
} pd_store_call;

typedef struct pd_store_reply {
    void *data;      /* [new] freed by pd_free; NULL if bytes is 0 */
    size_t bytes;
    int64_t amount;
    intptr_t handle; /* [new] the caller's, or PD_NO_HANDLE */
} pd_store_reply;

typedef struct pd_link pd_link;

/* Any thread may call these. Errors: PD_E_VALUE (name or value too long), PD_E_TIMEOUT, PD_E_PEER (a rank died during
   the wait), PD_E_DIST (the control plane is gone), PD_E_PYTHON (interrupted). timeout is in seconds. */
pd_status pd_store_set(pd_link *link, const char *key, const void *data, size_t bytes);
pd_status pd_store_get(pd_link *link, const char *key, double timeout, void **data, size_t *bytes); /* [new] pd_free */
pd_status pd_store_wait(pd_link *link, const char *key, double timeout);
pd_status pd_store_add(pd_link *link, const char *key, int64_t amount, int64_t *sum);
pd_status pd_store_check(pd_link *link, const char *key, bool *there);
pd_status pd_store_delete(pd_link *link, const char *key, bool *was_there);

#endif
