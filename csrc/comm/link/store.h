/* The rendezvous store: bytes under names, shared by all ranks; a handle (a file descriptor, a block of memory) may
   travel with a value.

   Every operation is one pd_store_call. The table (kv.h) answers it; a rank reaches the table through its link: over
   the control socket in processes, under a lock where ranks are threads. Names that begin with "pd:" belong to the
   engine. */
#ifndef PD_COMM_STORE_H
#define PD_COMM_STORE_H

#include <stdatomic.h>

#include "base/status.h"

#define PD_STORE_KEY 1024       /* longest name */
#define PD_STORE_VALUE (1 << 20) /* longest value */
#define PD_NO_HANDLE ((intptr_t)-1)

typedef enum pd_store_verb {
    PD_STORE_SET,    /* key = data, handle */
    PD_STORE_GET,    /* waits for the key; data and handle */
    PD_STORE_WAIT,   /* waits for the key */
    PD_STORE_ADD,    /* key += amount, as decimal text, from 0; the sum */
    PD_STORE_CHECK,  /* amount 1 where the key is there */
    PD_STORE_DELETE, /* amount 1 where the key was there */
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
    const atomic_uint *stop;  /* NULL: any rank's death ends the wait; else this word alone (PD_E_DIST), once not 0 */
} pd_store_call;

typedef struct pd_store_reply {
    void *data;      /* [new] pd_free; NULL where bytes is 0 */
    size_t bytes;
    int64_t amount;
    intptr_t handle; /* [new] the caller's, or PD_NO_HANDLE */
} pd_store_reply;

typedef struct pd_link pd_link;

/* Thread-safe. Errors: PD_E_VALUE (name or value too long), PD_E_TIMEOUT, PD_E_PEER (a rank died during the wait),
   PD_E_DIST (the control plane is gone), PD_E_PYTHON (interrupted). timeout in seconds. */
pd_status pd_store_set(pd_link *link, const char *key, const void *data, size_t bytes);
pd_status pd_store_get(pd_link *link, const char *key, double timeout, void **data, size_t *bytes); /* [new] pd_free */
pd_status pd_store_wait(pd_link *link, const char *key, double timeout);
pd_status pd_store_add(pd_link *link, const char *key, int64_t amount, int64_t *sum);
pd_status pd_store_check(pd_link *link, const char *key, bool *there);
pd_status pd_store_delete(pd_link *link, const char *key, bool *was_there);

#endif
