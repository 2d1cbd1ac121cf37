/* The table behind the store: a hash table without threads and waiting. Its owner, the control server or a hub, makes
   one call at a time and keeps the calls that have to wait. */
#ifndef PD_COMM_KV_H
#define PD_COMM_KV_H

#include "comm/link/store.h"

typedef struct pd_kv_entry pd_kv_entry;
typedef struct pd_kv {
    pd_kv_entry **slots;
    size_t count, cap;
    intptr_t (*handle_dup)(intptr_t); /* PD_NO_HANDLE on failure */
    void (*handle_drop)(intptr_t);
} pd_kv;

void pd_kv_init(pd_kv *kv, intptr_t (*dup)(intptr_t), void (*drop)(intptr_t));
void pd_kv_fini(pd_kv *kv);
/* Answers the call. If the key has to be waited for, *ready is false and *reply is not written. SET keeps a duplicate
   of call->handle; GET replies with another duplicate. */
pd_status pd_kv_run(pd_kv *kv, const pd_store_call *call, pd_store_reply *reply, bool *ready);

#endif
