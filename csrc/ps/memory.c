/* The store's memory: chunks that rank 0 allocates and every worker maps. Their handles stay in the rendezvous store,
   so the memory outlives each of its workers, and one that comes later finds it. */
#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "comm/group/group_impl.h"
#include "ps/ps_impl.h"

#define CHUNK ((size_t)4 << 20) /* bytes at least, so small keys share one */
#define OFFSET_BITS 40

static pd_status call(pd_ps *ps, pd_store_verb verb, const char *kind, const char *name, const void *data, size_t bytes,
                      intptr_t handle, pd_store_reply *reply) {
    char key[PD_STORE_KEY];
    const int n = snprintf(key, sizeof key, "pd:ps%u.%u.%s.%s", ps->epoch, ps->number, kind, name);
    pd_store_call c = {.verb = verb, .key = key, .key_bytes = (size_t)n, .data = data, .bytes = bytes, .handle = handle,
                       .timeout_ns = ps->timeout_ns};
    return ps->link->ops->call(ps->link, &c, reply);
}

/* What is published begins with a status; if that is not PD_OK, an error's text follows. */
pd_status pd_ps_publish(pd_ps *ps, const char *kind, const char *name, const void *data, size_t bytes) {
    char value[4 + PD_ERROR_TEXT] = {0};
    pd_store_reply reply;
    if (!ps->link) return PD_OK;
    memcpy(value + 4, data, bytes);
    return call(ps, PD_STORE_SET, kind, name, value, 4 + bytes, PD_NO_HANDLE, &reply);
}

void pd_ps_refuse(pd_ps *ps, const char *kind, const char *name) {
    char value[4 + PD_ERROR_TEXT];
    pd_store_reply reply;
    pd_error e;
    if (!ps->link) return;
    pd_error_save(&e);
    const int32_t status = e.kind == PD_E_PYTHON ? PD_E_DIST : e.kind;
    memcpy(value, &status, 4);
    strcpy(value + 4, e.text);
    call(ps, PD_STORE_SET, kind, name, value, 4 + strlen(e.text), PD_NO_HANDLE, &reply);
    pd_error_restore(&e);
}

pd_status pd_ps_fetch(pd_ps *ps, const char *kind, const char *name, void *data, size_t bytes) {
    pd_store_reply reply;
    int32_t status = PD_E_DIST;
    pd_status got = call(ps, PD_STORE_GET, kind, name, NULL, 0, PD_NO_HANDLE, &reply);
    if (got == PD_E_TIMEOUT)
        return pd_fail(PD_E_TIMEOUT, "%s: rank %d waited %.1f s for rank 0, which has not called it",
                       *kind == 'k' ? "init" : "create", ps->rank, (double)ps->timeout_ns * 1e-9);
    PD_TRY(got);
    if (reply.bytes >= 4) memcpy(&status, reply.data, 4);
    if (!status && reply.bytes == 4 + bytes) memcpy(data, (char *)reply.data + 4, bytes);
    else status = pd_fail(status > 0 && status < PD_STATUS_COUNT ? (pd_status)status : PD_E_DIST, "%.*s",
                          (int)(reply.bytes > 4 ? reply.bytes - 4 : 0), (char *)reply.data + 4);
    pd_free(reply.data);
    return (pd_status)status;
}

static pd_status new_chunk(pd_ps *ps, size_t bytes, bool sparse) {
    char number[32];
    pd_store_reply reply;
    if (bytes >> OFFSET_BITS) return pd_fail(PD_E_MEMORY, "init: out of memory: tried to allocate %zu bytes", bytes);
    PD_TRY(pd_grow(&ps->chunks, &ps->cap_chunks, ps->nchunks + 1, sizeof *ps->chunks, "init"));
    chunk *c = &ps->chunks[ps->nchunks];
    *c = (chunk){0};
    PD_TRY((sparse && ps->transport->alloc_sparse ? ps->transport->alloc_sparse : ps->transport->alloc)(bytes,
                                                                                                        &c->region));
    snprintf(number, sizeof number, "%zu", ps->nchunks);
    uint64_t size = bytes;
    pd_status status =
        ps->link ? call(ps, PD_STORE_SET, "c", number, &size, sizeof size, c->region.handle, &reply) : PD_OK;
    if (status) ps->transport->detach(&c->region);
    else ps->transport->seal(&c->region), ps->nchunks++;
    if (ps->head) put(&ps->head->chunks, ps->nchunks);
    return status;
}

pd_status pd_ps_take(pd_ps *ps, size_t bytes, place *out) {
    bytes = pd_whole_lines(bytes);
    chunk *last = ps->nchunks ? &ps->chunks[ps->nchunks - 1] : NULL;
    if (!last || last->region.bytes - last->used < bytes) PD_TRY(new_chunk(ps, bytes > CHUNK ? bytes : CHUNK, false));
    last = &ps->chunks[ps->nchunks - 1];
    *out = (place)ps->nchunks << OFFSET_BITS | last->used;
    last->used += bytes;
    return PD_OK;
}

pd_status pd_ps_take_sparse(pd_ps *ps, size_t bytes, place *out) {
    PD_TRY(new_chunk(ps, bytes, true));
    ps->chunks[ps->nchunks - 1].used = bytes;
    *out = (place)ps->nchunks << OFFSET_BITS;
    return PD_OK;
}

static pd_status attach(pd_ps *ps, size_t i) {
    char number[32];
    pd_store_reply reply;
    uint64_t bytes = 0;
    snprintf(number, sizeof number, "%zu", i);
    PD_TRY(call(ps, PD_STORE_GET, "c", number, NULL, 0, PD_NO_HANDLE, &reply));
    if (reply.bytes == sizeof bytes) memcpy(&bytes, reply.data, sizeof bytes);
    pd_free(reply.data);
    if (reply.handle == PD_NO_HANDLE)
        return pd_fail(PD_E_NOTIMPL, "create: rank %d shares no memory with rank 0 (expected workers of one host)",
                       ps->rank);
    return ps->transport->attach(reply.handle, bytes, &ps->chunks[i].region);
}

pd_status pd_ps_at(pd_ps *ps, place p, void *out) {
    const size_t i = (size_t)(p >> OFFSET_BITS) - 1;
    PD_TRY(pd_grow(&ps->chunks, &ps->cap_chunks, i + 1, sizeof *ps->chunks, "init"));
    while (ps->nchunks <= i) ps->chunks[ps->nchunks++] = (chunk){0};
    if (!ps->chunks[i].region.ptr) PD_TRY(attach(ps, i));
    *(void **)out = (char *)ps->chunks[i].region.ptr + (p & (((place)1 << OFFSET_BITS) - 1));
    return PD_OK;
}

typedef struct meeting { uint64_t host; place head; pd_ps_options o; } meeting;

static pd_status meet(pd_ps *ps) {
    meeting mine = {.o = ps->o}, theirs;
    if (ps->link) mine.host = ps->link->host;
    if (!ps->rank) {
        PD_TRY(pd_ps_take(ps, sizeof(store_head) + (size_t)ps->workers * sizeof(worker), &mine.head));
        PD_TRY(pd_ps_publish(ps, "open", "", &mine, sizeof mine));
        PD_TRY(pd_ps_at(ps, mine.head, &ps->head));
        put(&ps->head->chunks, ps->nchunks);
        return PD_OK;
    }
    PD_TRY(pd_ps_fetch(ps, "open", "", &theirs, sizeof theirs));
    if (theirs.host != mine.host)
        return pd_fail(PD_E_NOTIMPL, "create: rank %d is on another host than rank 0 (expected workers of one host)",
                       ps->rank);
    if (theirs.o.mode != mine.o.mode || theirs.o.guard != mine.o.guard || theirs.o.staleness != mine.o.staleness ||
        theirs.o.mean != mine.o.mean || theirs.o.goes_on != mine.o.goes_on)
        return pd_fail(PD_E_MISMATCH, "create: the options of rank %d differ from those of rank 0", ps->rank);
    return pd_ps_at(ps, theirs.head, &ps->head);
}

pd_status pd_ps_open_memory(pd_ps *ps) {
    char rank[16];
    pd_status status = meet(ps);
    if (!ps->link) return status;
    if (status && !ps->rank) pd_ps_refuse(ps, "open", "");
    snprintf(rank, sizeof rank, "%d", ps->rank);
    if (status) {
        pd_ps_refuse(ps, "here", rank);
        return status;
    }
    PD_TRY(pd_ps_publish(ps, "here", rank, "", 0));
    for (int r = 0; r < ps->workers; r++) {
        snprintf(rank, sizeof rank, "%d", r);
        PD_TRY(pd_ps_fetch(ps, "here", rank, NULL, 0));
    }
    return PD_OK;
}

static void forget(pd_ps *ps, const char *kind, size_t number, const char *name) {
    char text[32];
    pd_store_reply reply;
    snprintf(text, sizeof text, "%zu", number);
    call(ps, PD_STORE_DELETE, kind, name ? name : text, NULL, 0, PD_NO_HANDLE, &reply);
}

void pd_ps_close_memory(pd_ps *ps) {
    pd_error e;
    if (!ps->head || !ps->link) return;
    atomic_store(&worker_at(ps, ps->rank)->closed, 1);
    for (int w = 0; w < ps->workers; w++)
        if (!atomic_load(&worker_at(ps, w)->closed) && !pd_ps_is_gone(ps, w)) return;
    pd_error_save(&e);
    for (size_t i = 0; i < ps->nkeys; i++) forget(ps, "k", 0, ps->keys[i]->name);
    for (size_t i = 0; i < ps->ntables; i++) forget(ps, "t", 0, pd_table_name(ps->tables[i]));
    for (size_t i = get(&ps->head->chunks); i-- > 0;) forget(ps, "c", i, NULL);
    for (int w = 0; w < ps->workers; w++) forget(ps, "here", (size_t)w, NULL);
    forget(ps, "open", 0, "");
    pd_error_restore(&e);
}
