/* Memory of NCCL's own, registered with the group's communicator from its making to its end: what lies there, it may
   send without a copy. */
#include "base/mem.h"
#include "comm/nccl/nccl_impl.h"

struct pd_group_memory {
    atomic_int refs;
    pd_nccl *c;    /* retained */
    void *p;
    size_t bytes;
    void *handle;  /* NULL: not registered. It and the list: under c->use */
    pd_group_memory *next;
};

void pd_nccl_register(pd_nccl *c) {
    pthread_mutex_lock(&c->use);
    for (pd_group_memory *m = c->memory; m && c->comm; m = m->next) /* where NCCL refuses, it copies */
        if (!m->handle && c->lib->CommRegister(c->comm, m->p, m->bytes, &m->handle)) m->handle = NULL;
    pthread_mutex_unlock(&c->use);
}

void pd_nccl_deregister(pd_nccl *c, void *comm) {
    for (pd_group_memory *m = c->memory; m; m = m->next) {
        if (m->handle && comm) c->lib->CommDeregister(comm, m->handle);
        m->handle = NULL;
    }
}

static pd_status new(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory *m) {
    PD_TRY(pd_group_check(g));
    if (!g->nccl) PD_TRY(pd_nccl_new("DistributedDataParallel", g, d, -1, &g->nccl));
    pd_nccl *c = g->nccl;
    PD_TRY(pd_nccl_on_device(c));
    PD_TRY(pd_nccl_result("DistributedDataParallel", c->lib->MemAlloc(&m->p, bytes), NULL));
    m->bytes = bytes;
    m->c = c;
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    pthread_mutex_lock(&c->use);
    m->next = c->memory;
    c->memory = m;
    pthread_mutex_unlock(&c->use);
    if (c->connected) pd_nccl_register(c);
    return PD_OK;
}

pd_status pd_group_memory_new(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out) {
    pd_group_memory *m;
    PD_TRY(pd_calloc(sizeof *m, "nccl", &m));
    atomic_init(&m->refs, 1);
    pd_status status = pd_group_enter(g);
    if (!status) {
        status = new(g, d, bytes, m);
        pd_group_leave(g);
    }
    if (status) pd_free(m);
    else *out = m;
    return status;
}

void *pd_group_memory_ptr(const pd_group_memory *m) { return m->p; }
void pd_group_memory_retain(pd_group_memory *m) { atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed); }

void pd_group_memory_release(pd_group_memory *m) {
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) > 1) return;
    pd_nccl *c = m->c;
    pthread_mutex_lock(&c->use);
    for (pd_group_memory **at = &c->memory; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    if (m->handle && c->comm) c->lib->CommDeregister(c->comm, m->handle);
    pthread_mutex_unlock(&c->use);
    /* Kernels may still write there; where one hangs that no abort has ended, or CUDA is lost, the memory stays. */
    pthread_mutex_lock(&c->lock);
    bool hangs = atomic_load(&c->failed) && !c->ended;
    pthread_mutex_unlock(&c->lock);
    if (!hangs && !pd_cuda_wait(c->device, "DistributedDataParallel")) c->lib->MemFree(m->p);
    pd_free(m);
    pd_nccl_release(c);
}
