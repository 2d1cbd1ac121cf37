#include "comm/link/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct pd_kv_entry {
    pd_kv_entry *next;
    uint64_t hash;
    size_t key_bytes, bytes;
    void *data;
    intptr_t handle;
    char key[];
};

static uint64_t hash_of(const char *key, size_t n) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)key[i]) * 0x100000001b3u;
    return h;
}

void pd_kv_init(pd_kv *kv, intptr_t (*dup)(intptr_t), void (*drop)(intptr_t)) {
    *kv = (pd_kv){.handle_dup = dup, .handle_drop = drop};
}

static void free_entry(pd_kv *kv, pd_kv_entry *e) {
    if (e->handle != PD_NO_HANDLE) kv->handle_drop(e->handle);
    pd_free(e->data);
    pd_free(e);
}

void pd_kv_fini(pd_kv *kv) {
    for (size_t i = 0; i < kv->cap; i++)
        for (pd_kv_entry *e = kv->slots[i], *next; e; e = next) {
            next = e->next;
            free_entry(kv, e);
        }
    pd_free(kv->slots);
    *kv = (pd_kv){0};
}

static pd_kv_entry **find(pd_kv *kv, const char *key, size_t n, uint64_t hash) {
    pd_kv_entry **at = &kv->slots[hash & (kv->cap - 1)];
    while (*at && ((*at)->hash != hash || (*at)->key_bytes != n || memcmp((*at)->key, key, n))) at = &(*at)->next;
    return at;
}

static pd_status grow(pd_kv *kv) {
    if (kv->cap && kv->count < kv->cap) return PD_OK;
    size_t cap = kv->cap ? kv->cap * 2 : 64;
    pd_kv_entry **slots;
    PD_TRY(pd_calloc(cap * sizeof *slots, "store", &slots));
    for (size_t i = 0; i < kv->cap; i++)
        for (pd_kv_entry *e = kv->slots[i], *next; e; e = next) {
            next = e->next;
            e->next = slots[e->hash & (cap - 1)];
            slots[e->hash & (cap - 1)] = e;
        }
    pd_free(kv->slots);
    kv->slots = slots;
    kv->cap = cap;
    return PD_OK;
}

/* Replaces or makes the entry. All that can fail comes first, so a call that fails changes nothing. */
static pd_status put(pd_kv *kv, pd_kv_entry **at, const pd_store_call *call, uint64_t hash, const void *data,
                     size_t bytes) {
    pd_status status = PD_OK;
    void *copy = NULL;
    pd_kv_entry *e = *at, *made = NULL;
    intptr_t handle = PD_NO_HANDLE;
    PD_TRY_TO(fail, pd_malloc(bytes, "store", &copy));
    if (bytes) memcpy(copy, data, bytes);
    if (!e) {
        PD_TRY_TO(fail, pd_malloc(sizeof *e + call->key_bytes, "store", &made));
        *made = (pd_kv_entry){.hash = hash, .key_bytes = call->key_bytes, .handle = PD_NO_HANDLE};
        memcpy(made->key, call->key, call->key_bytes);
        e = made;
    }
    if (call->handle != PD_NO_HANDLE && (handle = kv->handle_dup(call->handle)) == PD_NO_HANDLE)
        PD_TRY_TO(fail,
                  pd_fail(PD_E_OS, "store: cannot keep another file descriptor: the process has too many open files"));
    if (made) {
        *at = made;
        kv->count++;
    }
    pd_free(e->data);
    if (e->handle != PD_NO_HANDLE) kv->handle_drop(e->handle);
    e->data = copy;
    e->bytes = bytes;
    e->handle = handle;
    return PD_OK;
fail:
    pd_free(copy);
    pd_free(made);
    return status;
}

static pd_status add(pd_kv *kv, pd_kv_entry **at, const pd_store_call *call, uint64_t hash, int64_t *sum) {
    char text[32] = "";
    int64_t value = 0;
    if (*at) {
        char *end;
        size_t n = (*at)->bytes < sizeof text ? (*at)->bytes : sizeof text - 1;
        memcpy(text, (*at)->data, n);
        value = strtoll(text, &end, 10);
        if (!n || *end)
            return pd_fail(PD_E_VALUE, "store.add: the key's value is not a number: got '%s' (expected decimal digits)",
                           text);
    }
    *sum = (int64_t)((uint64_t)value + (uint64_t)call->amount);
    int n = snprintf(text, sizeof text, "%lld", (long long)*sum);
    return put(kv, at, call, hash, text, (size_t)n);
}

pd_status pd_kv_run(pd_kv *kv, const pd_store_call *call, pd_store_reply *reply, bool *ready) {
    PD_TRY(grow(kv));
    uint64_t hash = hash_of(call->key, call->key_bytes);
    pd_kv_entry **at = find(kv, call->key, call->key_bytes, hash), *e = *at;
    pd_store_reply r = {.handle = PD_NO_HANDLE};
    *ready = true;
    switch (call->verb) {
    case PD_STORE_SET: PD_TRY(put(kv, at, call, hash, call->data, call->bytes)); break;
    case PD_STORE_ADD: PD_TRY(add(kv, at, call, hash, &r.amount)); break;
    case PD_STORE_CHECK: r.amount = e != NULL; break;
    case PD_STORE_DELETE:
        if ((r.amount = e != NULL)) {
            *at = e->next;
            kv->count--;
            free_entry(kv, e);
        }
        break;
    case PD_STORE_WAIT:
        if (!e) *ready = false;
        break;
    case PD_STORE_GET:
        if (!e) {
            *ready = false;
            break;
        }
        if (e->bytes) {
            PD_TRY(pd_malloc(e->bytes, "store", &r.data));
            memcpy(r.data, e->data, r.bytes = e->bytes);
        }
        if (e->handle != PD_NO_HANDLE && (r.handle = kv->handle_dup(e->handle)) == PD_NO_HANDLE) {
            pd_free(r.data);
            return pd_fail(PD_E_OS, "store: cannot pass on a file descriptor: the process has too many open files");
        }
        break;
    default:
        return pd_fail(PD_E_VALUE,
                       "store: the operation is unknown: got number %d (expected that of a store operation)",
                       (int)call->verb);
    }
    if (*ready) *reply = r;
    return PD_OK;
}
