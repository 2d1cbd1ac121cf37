/* Memory that NCCL allocates. It is registered with the group's communicator as long as that lives, so NCCL may send it
   without a copy. */
#include "base/mem.h"
#include "comm/nccl/nccl_impl.h"

struct pd_nccl_memory {
    pd_group_memory base; /* first */
    pd_nccl *c;           /* retained */
    size_t bytes;
    void *handle;         /* NULL: not registered. c->use guards it and the list */
    pd_nccl_memory *next;
};

void pd_nccl_register(pd_nccl *c) {
    pthread_mutex_lock(&c->use);
    for (pd_nccl_memory *m = c->memory; m && c->comm; m = m->next) /* if NCCL refuses, it copies the data */
        if (!m->handle && c->lib->CommRegister(c->comm, m->base.p, m->bytes, &m->handle)) m->handle = NULL;
    pthread_mutex_unlock(&c->use);
}

void pd_nccl_deregister(pd_nccl *c, void *comm) {
    for (pd_nccl_memory *m = c->memory; m; m = m->next) {
        if (m->handle && comm) c->lib->CommDeregister(comm, m->handle);
        m->handle = NULL;
    }
}

static pd_status make(pd_group *g, const pd_device *d, size_t bytes, pd_nccl_memory *m) {
    pd_nccl *c;
    PD_TRY(pd_nccl_of("DistributedDataParallel", g, d, &c));
    PD_TRY(pd_nccl_on_device(c));
    PD_TRY(pd_nccl_result("DistributedDataParallel", c->lib->MemAlloc(&m->base.p, bytes), NULL));
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

pd_status pd_nccl_alloc(pd_group *g, const pd_device *d, size_t bytes, pd_group_memory **out) {
    pd_nccl_memory *m;
    PD_TRY(pd_calloc(sizeof *m, "nccl", &m));
    pd_status status = make(g, d, bytes, m);
    if (status) pd_free(m);
    else *out = &m->base;
    return status;
}

void pd_nccl_free(pd_group_memory *base) {
    pd_nccl_memory *m = (pd_nccl_memory *)base;
    pd_nccl *c = m->c;
    pthread_mutex_lock(&c->use);
    for (pd_nccl_memory **at = &c->memory; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            break;
        }
    if (m->handle && c->comm) c->lib->CommDeregister(c->comm, m->handle);
    pthread_mutex_unlock(&c->use);
    /* Kernels may still write there. If a kernel hangs that no abort could end, or CUDA has failed, the memory is
       leaked. */
    pthread_mutex_lock(&c->lock);
    bool hangs = atomic_load(&c->failed) && !c->ended;
    pthread_mutex_unlock(&c->lock);
    if (!hangs && !pd_cuda_wait(c->device, "DistributedDataParallel")) c->lib->MemFree(base->p);
    pd_free(m);
    pd_nccl_release(c);
}
