/* Rank 0 allocates the memory and publishes its handle, as the owner of a segment's part does; the others attach it. */
#include "comm/group/common.h"

#include "base/mem.h"
#include "comm/group/group_impl.h"

struct pd_common {
    atomic_int refs;
    const pd_transport *transport;
    size_t bytes;
    pd_region region;
};

bool pd_group_is_near(const pd_group *g) { return !g->mesh; }

/* Every rank says how its part has ended. Returns our own failure, or that of the first rank that has failed. */
static pd_status agree(pd_group *g, size_t bytes, pd_status own, int32_t *all) {
    pd_error e;
    int32_t mine = (int32_t)(own == PD_E_PYTHON ? PD_E_DIST : own);
    pd_error_save(&e);
    pd_status rc = pd_group_exchange(g, PD_COLL_SEGMENT, (double)bytes, &mine, all, sizeof mine, 0);
    if (rc && !own) return rc; /* the group has failed */
    pd_error_restore(&e);
    if (own) return own;
    for (int r = 0; r < g->size; r++)
        if (all[r])
            return pd_fail((pd_status)all[r], "common memory: rank %d could not %s its %zu bytes", pd_group_name(g, r),
                           r ? "map" : "allocate", bytes);
    return PD_OK;
}

static pd_status share(pd_group *g, uint32_t id, pd_common *c) {
    if (g->rank == 0) return pd_parts_publish(g, id, c->bytes, &c->region);
    return pd_parts_attach(g, id, 0, c->bytes, pd_os_now() + g->timeout_ns, &c->region);
}

static pd_status make(pd_group *g, pd_common *c, int32_t *all) {
    const uint32_t id = ++g->segment_ids;
    pd_status status = g->rank ? PD_OK : g->transport->alloc(c->bytes, &c->region);
    if (g->size == 1) return status;
    PD_TRY(agree(g, c->bytes, status, all));
    status = share(g, id, c);
    if (status && g->rank == 0) pd_parts_refuse(g->link, g->epoch, id, 0);
    status = agree(g, c->bytes, status, all);
    if (g->rank == 0) {
        pd_parts_forget(g, id);
        g->transport->seal(&c->region);
    }
    return status;
}

pd_status pd_common_new(pd_group *g, size_t bytes, pd_common **out) {
    pd_common *c = NULL;
    int32_t *all = NULL;
    pd_status status = PD_OK;
    PD_TRY(pd_group_check(g));
    if (!pd_group_is_near(g))
        return pd_fail(PD_E_NOTIMPL, "common memory: the ranks of the group do not share memory (expected one host)");
    if (bytes > (size_t)1 << 52)
        return pd_fail(PD_E_VALUE, "common memory: bytes is %zu (expected at most 2^52)", bytes);
    /* If one of these two fails, the group is ended, since the others would wait for us. */
    status = pd_calloc(sizeof *c, "common memory", &c);
    PD_THEN(pd_calloc((size_t)g->size * sizeof *all, "common memory", &all));
    if (status) {
        pd_free(c);
        return g->size > 1 ? pd_group_fail(g, true) : status;
    }
    atomic_init(&c->refs, 1);
    c->transport = g->transport;
    c->bytes = pd_page_round(bytes ? bytes : 1);
    c->region.handle = -1;
    status = make(g, c, all);
    pd_free(all);
    if (status) {
        pd_common_release(c);
        return PD_TRAIL(status);
    }
    *out = c;
    return PD_OK;
}

void *pd_common_ptr(const pd_common *c) { return c->region.ptr; }
void pd_common_retain(pd_common *c) { atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed); }

void pd_common_release(pd_common *c) {
    if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) > 1) return;
    if (c->region.ptr) c->transport->detach(&c->region);
    pd_free(c);
}
