#include "comm/link/store.h"

#include <string.h>

#include "base/mem.h"
#include "comm/link/link.h"

static pd_status run(pd_link *link, pd_store_call *call, const char *key, double timeout, pd_store_reply *reply) {
    call->key = key;
    call->key_bytes = strlen(key);
    call->handle = PD_NO_HANDLE;
    call->timeout_ns = timeout < 0 ? 0 : timeout > 1e9 ? (int64_t)1e18 : (int64_t)(timeout * 1e9);
    if (!call->key_bytes || call->key_bytes > PD_STORE_KEY)
        return pd_fail(PD_E_VALUE, "store: the key has %zu bytes (expected 1 to %d)", call->key_bytes, PD_STORE_KEY);
    if (call->bytes > PD_STORE_VALUE)
        return pd_fail(PD_E_VALUE, "store: the value has %zu bytes (expected at most %d)", call->bytes, PD_STORE_VALUE);
    PD_TRY(pd_link_check(link));
    return link->ops->call(link, call, reply);
}

pd_status pd_store_set(pd_link *link, const char *key, const void *data, size_t bytes) {
    pd_store_reply r;
    return run(link, &(pd_store_call){.verb = PD_STORE_SET, .data = data, .bytes = bytes}, key, 0, &r);
}

pd_status pd_store_get(pd_link *link, const char *key, double timeout, void **data, size_t *bytes) {
    pd_store_reply r;
    PD_TRY(run(link, &(pd_store_call){.verb = PD_STORE_GET}, key, timeout, &r));
    *data = r.data;
    *bytes = r.bytes;
    return PD_OK;
}

pd_status pd_store_wait(pd_link *link, const char *key, double timeout) {
    pd_store_reply r;
    return run(link, &(pd_store_call){.verb = PD_STORE_WAIT}, key, timeout, &r);
}

pd_status pd_store_add(pd_link *link, const char *key, int64_t amount, int64_t *sum) {
    pd_store_reply r;
    PD_TRY(run(link, &(pd_store_call){.verb = PD_STORE_ADD, .amount = amount}, key, 0, &r));
    *sum = r.amount;
    return PD_OK;
}

pd_status pd_store_check(pd_link *link, const char *key, bool *there) {
    pd_store_reply r;
    PD_TRY(run(link, &(pd_store_call){.verb = PD_STORE_CHECK}, key, 0, &r));
    *there = r.amount != 0;
    return PD_OK;
}

pd_status pd_store_delete(pd_link *link, const char *key, bool *was_there) {
    pd_store_reply r;
    PD_TRY(run(link, &(pd_store_call){.verb = PD_STORE_DELETE}, key, 0, &r));
    *was_there = r.amount != 0;
    return PD_OK;
}
