/* Symmetric segments: a part of memory per rank that all ranks can address.

   The owner allocates it and publishes a record and a handle under "pd:<epoch>.<id>.<rank>". The others attach it, all
   agree that they have, and the record is deleted. A rank that fails publishes the reason in the place of its record,
   so nobody waits for it in vain. Between hosts a segment is private memory, and collectives use slots for it as for
   any other. Ranks of one host that are connected to the control server over tcp, which carries no handle, open each
   other's memory by a spot (memory/transport.h). */
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "comm/group/group_impl.h"

#define NAMED 8        /* missing ranks that a message names */
#define LOOKED_AT 1024 /* ranks that are looked at to find them */

typedef struct record {
    int32_t status;   /* not PD_OK: an error text follows */
    uint32_t far;     /* connected to the control server over tcp */
    uint64_t host;
    uint64_t setting; /* of the group; must be equal on all ranks */
    uint64_t bytes;
    pd_spot spot;
} record;

static void part_key(char *key, size_t size, uint32_t epoch, uint32_t id, int rank) {
    snprintf(key, size, "pd:%u.%u.%d", epoch, id, rank);
}

static uint64_t setting_of(const pd_group *g) {
    const char *algo = g->forced ? g->forced->name : "";
    return (uint64_t)(g->kind != NULL) << 63 | (uint64_t)g->fast << 62 | (uint64_t)g->slot << 16 |
           (uint64_t)(*algo << 8 | (uint8_t)strlen(algo));
}

pd_status pd_parts_publish(pd_group *g, uint32_t id, size_t bytes, const pd_region *own) {
    char key[64];
    record r = {.far = *g->link->here != 0, .host = g->link->host, .setting = setting_of(g), .bytes = bytes};
    pd_store_reply reply;
    if (g->transport->spot) g->transport->spot(own, &r.spot);
    part_key(key, sizeof key, g->epoch, id, g->rank);
    pd_store_call call = {.verb = PD_STORE_SET, .key = key, .key_bytes = strlen(key), .data = &r, .bytes = sizeof r,
                          .handle = own->handle};
    return g->link->ops->call(g->link, &call, &reply);
}

void pd_parts_refuse(pd_link *link, uint32_t epoch, uint32_t id, int rank) {
    char key[64], value[sizeof(record) + PD_ERROR_TEXT];
    pd_error e;
    pd_error_save(&e);
    record r = {.status = (int32_t)(e.kind == PD_E_PYTHON ? PD_E_DIST : e.kind)};
    memcpy(value, &r, sizeof r);
    strcpy(value + sizeof r, e.text);
    part_key(key, sizeof key, epoch, id, rank);
    pd_store_set(link, key, value, sizeof r + strlen(e.text));
    pd_error_restore(&e);
}

void pd_parts_forget(pd_group *g, uint32_t id) {
    char key[64];
    bool there;
    pd_error e;
    pd_error_save(&e);
    part_key(key, sizeof key, g->epoch, id, g->rank);
    pd_store_delete(g->link, key, &there);
    pd_error_restore(&e);
}

/* "rank 3", "ranks 1, 3 and more": this one and the others whose record is not there. */
static void missing(pd_group *g, uint32_t id, int rank, char *text, size_t size) {
    char key[64];
    int found = 0, n = 0;
    bool there;
    pd_error e;
    pd_error_save(&e);
    for (int r = 0; r < g->size && r < LOOKED_AT && found < NAMED; r++) {
        part_key(key, sizeof key, g->epoch, id, r);
        if (r != rank && (r == g->rank || pd_store_check(g->link, key, &there) || there)) continue;
        n += snprintf(text + n, size - (size_t)n, "%s%d", found ? ", " : "", pd_group_name(g, r));
        found++;
    }
    if (!found) n = snprintf(text, size, "%d", pd_group_name(g, rank));
    if (found == NAMED) snprintf(text + n, size - (size_t)n, " and more");
    pd_error_restore(&e);
}

/* Waits for the record of a peer. Writes one warning if that takes long; fails if the group was given up. */
static pd_status fetch(pd_group *g, uint32_t id, int rank, int64_t deadline, pd_store_reply *reply) {
    char key[64], who[16 * (NAMED + 1)];
    part_key(key, sizeof key, g->epoch, id, rank);
    int64_t left = deadline - pd_os_now();
    if (left < 0) left = 0;
    bool warns = g->warn_ns > 0 && g->warn_ns < left;
    pd_store_call call = {.verb = PD_STORE_GET, .key = key, .key_bytes = strlen(key), .handle = PD_NO_HANDLE,
                          .timeout_ns = warns ? g->warn_ns : left, .stop = &g->abort};
    pd_status status = g->link->ops->call(g->link, &call, reply);
    if (status == PD_E_TIMEOUT && warns) {
        missing(g, id, rank, who, sizeof who);
        pd_log(PD_LOG_WARN, "rank %d has waited %.0f s for rank%s %s to join group %u", pd_group_name(g, g->rank),
               (double)g->warn_ns * 1e-9, strchr(who, ',') ? "s" : "", who, g->epoch);
        call.timeout_ns = left - g->warn_ns;
        status = g->link->ops->call(g->link, &call, reply);
    }
    if (status != PD_E_TIMEOUT) return status;
    missing(g, id, rank, who, sizeof who);
    return pd_fail(PD_E_TIMEOUT, "init: rank %d waited %.1f s for rank%s %s to join group %u",
                   pd_group_name(g, g->rank), (double)(id ? g->timeout_ns : g->patience_ns) * 1e-9,
                   strchr(who, ',') ? "s" : "", who, g->epoch);
}

/* A wait that was cancelled because the group has failed: the error that says why. A lost link may say it before the
   group has heard; that error does not name the call. */
static pd_status cancelled(pd_group *g, uint32_t id, size_t bytes, pd_status status) {
    const pd_work w = {.group = g, .id = {.coll = PD_COLL_SEGMENT, .scale = (double)bytes}};
    pd_error e, named;
    if (!id) return PD_TRAIL(status); /* the group is still being made */
    pd_error_save(&e);
    PD_TRY(pd_group_heard(g, &w));
    named = e;
    if (status == PD_E_PEER)
        snprintf(named.text, sizeof named.text, "segment: %.*s", (int)sizeof e.text - 16, e.text);
    pd_error_restore(&named);
    return status;
}

static pd_status attach(pd_group *g, uint32_t id, int rank, size_t bytes, int64_t deadline, pd_region *part,
                        pd_placement *placement) {
    pd_store_reply reply;
    record r = {0};
    pd_status status = fetch(g, id, rank, deadline, &reply);
    if (status) return cancelled(g, id, bytes, status);
    if (reply.bytes >= sizeof r) memcpy(&r, reply.data, sizeof r);
    if (r.status > PD_OK && r.status < PD_STATUS_COUNT)
        status = pd_fail(PD_E_DIST, "init: rank %d failed: %.*s", pd_group_name(g, rank), (int)(reply.bytes - sizeof r),
                         (char *)reply.data + sizeof r);
    else if (r.setting != setting_of(g) || r.bytes != bytes)
        status = pd_fail(PD_E_DIST,
                         "init: the settings of rank %d differ from those of rank %d (expected the same order, "
                         "PYDIST_ALGO and slot)",
                         pd_group_name(g, rank), pd_group_name(g, g->rank));
    else if (r.host != g->link->host)
        placement->apart = true;
    else if (r.far) { /* tcp carries no handle: shared memory by a spot, or messages (group.c) */
        placement->apart |= !(!g->mesh && g->transport->open && g->transport->open(&r.spot, bytes, part));
    }
    else if (reply.handle == PD_NO_HANDLE)
        status = pd_fail(PD_E_DIST,
                         "init: rank %d shares no memory with the ranks of its host (expected a handle in the store)",
                         pd_group_name(g, rank));
    else {
        status = g->transport->attach(reply.handle, bytes, part);
        reply.handle = PD_NO_HANDLE;
    }
    placement->far |= r.far != 0;
    if (placement->hosts) placement->hosts[rank] = r.host;
    pd_free(reply.data);
    if (reply.handle != PD_NO_HANDLE) { /* a handle of memory that is not wanted; attach can close it */
        pd_region unwanted = {0};
        pd_error e;
        pd_error_save(&e);
        if (g->transport->attach(reply.handle, 1, &unwanted) == PD_OK) g->transport->detach(&unwanted);
        pd_error_restore(&e);
    }
    return status;
}

pd_status pd_parts_exchange(pd_group *g, uint32_t id, size_t bytes, pd_region *parts, pd_placement *placement) {
    placement->apart = false;
    placement->far = *g->link->here != 0;
    if (placement->hosts) placement->hosts[g->rank] = g->link->host;
    int64_t deadline = pd_os_now() + (id ? g->timeout_ns : g->patience_ns);
    pd_status status = pd_parts_publish(g, id, bytes, &parts[g->rank]);
    if (status) return cancelled(g, id, bytes, status);
    for (int d = 1; d < g->size; d++) {
        int r = (g->rank + d) % g->size;
        PD_TRY(attach(g, id, r, bytes, deadline, &parts[r], placement));
    }
    return PD_OK;
}

pd_status pd_parts_agree(pd_group *g, bool *apart) {
    pd_store_reply reply;
    char key[64];
    record r = {.far = *apart};
    part_key(key, sizeof key, g->epoch, PD_PARTS_AGREED, g->rank);
    PD_TRY(pd_store_set(g->link, key, &r, sizeof r));
    for (int d = 1; d < g->size; d++) {
        PD_TRY(fetch(g, PD_PARTS_AGREED, (g->rank + d) % g->size, pd_os_now() + g->patience_ns, &reply));
        memset(&r, 0, sizeof r);
        if (reply.bytes >= sizeof r) memcpy(&r, reply.data, sizeof r);
        *apart |= r.far != 0;
        pd_free(reply.data);
    }
    return PD_OK;
}

pd_status pd_parts_attach(pd_group *g, uint32_t id, int rank, size_t bytes, int64_t deadline, pd_region *part) {
    pd_placement placement = {0};
    PD_TRY(attach(g, id, rank, bytes, deadline, part, &placement));
    if (part->ptr) return PD_OK;
    return pd_fail(PD_E_DIST, "segment: rank %d is on another host (expected ranks that share memory)",
                   pd_group_name(g, rank));
}

/* ---- the public segments ----------------------------------------------------------------------------------------- */

size_t pd_page_round(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) & ~(page - 1);
}

static void enlist(pd_group *g, pd_segment *s) {
    pthread_mutex_lock(&g->segments_lock);
    s->next = g->segments;
    s->at = &g->segments;
    if (s->next) s->next->at = &s->next;
    g->segments = s;
    pthread_mutex_unlock(&g->segments_lock);
}

/* All ranks learn the status of all. Returns our own failure, or that of the first rank that has failed. */
static pd_status agree(pd_group *g, size_t bytes, pd_status own, const int32_t *all) {
    if (own) return own;
    for (int r = 0; r < g->size; r++)
        if (all[r])
            return pd_fail((pd_status)all[r], "segment: rank %d could not allocate its %zu bytes", pd_group_name(g, r),
                           bytes);
    return PD_OK;
}

static pd_status make(pd_group *g, size_t bytes, pd_segment *s, int32_t *all) {
    pd_error e;
    pd_region *own = &s->parts[g->rank];
    pd_status status = g->transport->alloc(s->bytes, own), rc;
    int32_t mine = (int32_t)status;
    pd_error_save(&e);
    rc = pd_group_exchange(g, PD_COLL_SEGMENT, (double)bytes, &mine, all, sizeof mine, 0);
    if (rc) return rc; /* the group has failed */
    if (status) pd_error_restore(&e);
    PD_TRY(agree(g, bytes, status, all));
    if (g->size == 1 || g->mesh) return PD_OK; /* with a mesh it is private */
    pd_placement placement = {0};
    status = pd_parts_exchange(g, s->id, s->bytes, s->parts, &placement);
    for (int r = 0; r < g->size && !status; r++)
        if (!s->parts[r].ptr)
            status = pd_fail(PD_E_DIST, "segment: this rank cannot reach the memory of rank %d (expected one host)",
                             pd_group_name(g, r));
    if (status) pd_parts_refuse(g->link, g->epoch, s->id, g->rank);
    mine = (int32_t)(status == PD_E_PYTHON ? PD_E_DIST : status);
    pd_error_save(&e);
    rc = pd_group_exchange(g, PD_COLL_SEGMENT, (double)bytes, &mine, all, sizeof mine, 0);
    if (status) pd_error_restore(&e);
    pd_parts_forget(g, s->id);
    g->transport->seal(own);
    if (rc && !status) return rc;
    return agree(g, bytes, status, all);
}

pd_status pd_group_segment_new(pd_group *g, size_t bytes, pd_segment **out) {
    pd_segment *s = NULL;
    int32_t *all = NULL;
    pd_status status = PD_OK;
    PD_TRY(pd_group_check(g));
    if (bytes > (size_t)1 << 52) return pd_fail(PD_E_VALUE, "segment: bytes is %zu (expected at most 2^52)", bytes);
    /* If one of these two fails, the group is ended, since the others would wait for us. */
    status = pd_calloc(sizeof *s + (size_t)g->size * sizeof *s->parts, "segment", &s);
    PD_THEN(pd_calloc((size_t)g->size * sizeof *all, "segment", &all));
    if (status) {
        pd_free(s);
        return g->size > 1 ? pd_group_fail(g, true) : status;
    }
    atomic_init(&s->refs, 1);
    s->bytes = pd_page_round(bytes ? bytes : 1); /* an empty one has an address, too */
    s->rank = g->rank;
    s->size = g->size;
    s->id = ++g->segment_ids;
    for (int r = 0; r < g->size; r++) s->parts[r].handle = -1;
    status = make(g, bytes, s, all);
    pd_free(all);
    if (status) {
        for (int r = 0; r < g->size; r++) g->transport->detach(&s->parts[r]);
        pd_free(s);
        return status;
    }
    s->group = g;
    pd_group_retain(g);
    enlist(g, s);
    *out = s;
    return PD_OK;
}

void *pd_segment_peer(const pd_segment *s, int rank) { return s->parts[rank].ptr; }
void *pd_segment_ptr(const pd_segment *s) { return s->parts[s->rank].ptr; }
size_t pd_segment_bytes(const pd_segment *s) { return s->bytes; }
int pd_segment_size(const pd_segment *s) { return s->size; }
void pd_segment_retain(pd_segment *s) { atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed); }

void pd_segment_release(pd_segment *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) > 1) return;
    pd_group *g = s->group;
    pthread_mutex_lock(&g->segments_lock);
    *s->at = s->next;
    if (s->next) s->next->at = s->at;
    pthread_mutex_unlock(&g->segments_lock);
    for (int r = 0; r < s->size; r++) g->transport->detach(&s->parts[r]);
    pd_free(s);
    pd_group_release(g);
}

/* Retains it if somebody still holds it. */
static bool retain_alive(pd_segment *s) {
    int refs = atomic_load(&s->refs);
    while (refs > 0)
        if (atomic_compare_exchange_weak(&s->refs, &refs, refs + 1)) return true;
    return false;
}

pd_segment *pd_segment_of(pd_group *g, const char *data, size_t bytes) {
    pthread_mutex_lock(&g->segments_lock);
    pd_segment *s = g->segments;
    for (; s; s = s->next) {
        const char *begin = pd_segment_ptr(s);
        if (data >= begin && data + bytes <= begin + s->bytes) break;
    }
    if (s && !retain_alive(s)) s = NULL;
    pthread_mutex_unlock(&g->segments_lock);
    return s;
}

void pd_segments_detach(pd_group *g) {
    pthread_mutex_lock(&g->segments_lock);
    for (pd_segment *s = g->segments; s; s = s->next)
        for (int r = 0; r < s->size; r++)
            if (r != s->rank) g->transport->detach(&s->parts[r]);
    pthread_mutex_unlock(&g->segments_lock);
}

void pd_segments_privatise(pd_group *g) {
    pthread_mutex_lock(&g->segments_lock);
    for (pd_segment *s = g->segments; s; s = s->next) g->transport->privatise(&s->parts[s->rank]);
    pthread_mutex_unlock(&g->segments_lock);
}
