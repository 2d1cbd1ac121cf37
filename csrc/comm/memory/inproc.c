#include "comm/memory/inproc.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "comm/memory/transport.h"

typedef struct block {
    atomic_int refs;
    void *ptr;
    size_t bytes;
} block;

intptr_t pd_inproc_dup(intptr_t handle) {
    atomic_fetch_add_explicit(&((block *)handle)->refs, 1, memory_order_relaxed);
    return handle;
}

void pd_inproc_drop(intptr_t handle) {
    block *b = (block *)handle;
    if (atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) > 1) return;
    munmap(b->ptr, b->bytes);
    pd_free(b);
}

static pd_status alloc(size_t bytes, pd_region *out) {
    block *b;
    PD_TRY(pd_malloc(sizeof *b, "segment", &b));
    void *p = MAP_FAILED;
    if (!pd_fault_hit()) p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        pd_free(b);
        return pd_fail(PD_E_MEMORY, "segment: out of memory: tried to allocate %zu bytes", bytes);
    }
    atomic_init(&b->refs, 1);
    b->ptr = p;
    b->bytes = bytes;
    *out = (pd_region){.ptr = p, .bytes = bytes, .handle = (intptr_t)b};
    return PD_OK;
}

static pd_status attach(intptr_t handle, size_t bytes, pd_region *out) {
    block *b = (block *)handle;
    if (b->bytes < bytes) {
        pd_inproc_drop(handle);
        return pd_fail(PD_E_DIST,
                       "segment: another rank's segment is too small (expected the %zu bytes that it announced)",
                       bytes);
    }
    *out = (pd_region){.ptr = b->ptr, .bytes = b->bytes, .handle = handle};
    return PD_OK;
}

static void seal(pd_region *own) { (void)own; } /* the handle keeps the memory alive */

static void detach(pd_region *r) {
    if (r->ptr) pd_inproc_drop(r->handle);
    *r = (pd_region){0};
}

static void privatise(pd_region *own) { (void)own; }

const pd_transport pd_transport_inproc = {
    .name = "inproc", .alloc = alloc, .attach = attach, .seal = seal, .detach = detach, .privatise = privatise,
};
