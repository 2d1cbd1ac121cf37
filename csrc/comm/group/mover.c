/* What a group asks its mover for besides collectives (mover.h). */
#include "comm/group/mover.h"

pd_status pd_mover_check(const pd_group *g, const char *op) {
    if (g->mover) return PD_OK;
    return pd_fail(PD_E_VALUE,
                   "%s: the tensors are on %s (expected the CPU: this group has no NCCL for tensors on a GPU)", op,
                   pd_device_here->name);
}

static pd_status alloc(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out) {
    PD_TRY(pd_group_check(g));
    PD_TRY(pd_mover_check(g, "DistributedDataParallel"));
    PD_TRY(g->mover->alloc(g, d, bytes, out));
    atomic_init(&(*out)->refs, 1);
    (*out)->mover = g->mover;
    return PD_OK;
}

pd_status pd_group_memory_new(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out) {
    PD_TRY(pd_group_enter(g));
    pd_status status = alloc(g, d, bytes, out);
    pd_group_leave(g);
    return status;
}

void *pd_group_memory_ptr(const pd_group_memory *m) { return m->p; }
void pd_group_memory_retain(pd_group_memory *m) { atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed); }

void pd_group_memory_release(pd_group_memory *m) {
    if (m && atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) == 1) m->mover->free(m);
}
