#include "tensor/storage.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/shared.h"

_Thread_local bool pd_inference_mode;
static atomic_int_fast64_t live;

static pd_status make(const pd_device *device, size_t bytes, pd_storage **out) {
    pd_storage *s;
    PD_TRY(pd_malloc(sizeof *s, "storage", &s));
    *s = (pd_storage){.refs = 1, .bytes = bytes, .device = device, .shared = -1, .inference = pd_inference_mode};
    atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    *out = s;
    return PD_OK;
}

static void unmake(pd_storage *s) {
    atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    pd_free(s);
}

pd_status pd_storage_new(const pd_device *device, size_t bytes, pd_storage **out) {
    pd_storage *s = NULL;
    PD_TRY(make(device, bytes, &s));
    pd_status status = device->alloc(device, bytes, &s->data);
    if (status) {
        unmake(s);
        return PD_TRAIL(status);
    }
    *out = s;
    return PD_OK;
}

pd_status pd_storage_external(const pd_device *device, void *data, size_t bytes, void (*drop)(void *), void *ctx,
                             pd_storage **out) {
    PD_TRY(make(device, bytes, out));
    (*out)->data = data;
    (*out)->drop = drop;
    (*out)->ctx = ctx;
    return PD_OK;
}

/* ---- memory of several processes ---- */

typedef struct mapping {
    void *ptr;
    size_t bytes;
    int fd;
    pd_storage old; /* the memory that the shared one replaced, freed together with it; data NULL: none */
} mapping;

static void drop_bytes(const pd_storage *s) {
    if (s->drop) s->drop(s->ctx);
    else s->device->free(s->device, s->data, s->bytes);
}

static void drop_mapping(void *ctx) {
    mapping *m = ctx;
    pd_shared_unmap(m->ptr, m->bytes);
    close(m->fd);
    if (m->old.device) drop_bytes(&m->old);
    pd_free(m);
}

static void put(pd_storage *s, mapping *m) {
    s->data = m->ptr;
    s->drop = drop_mapping;
    s->ctx = m;
    s->shared = m->fd;
}

pd_status pd_storage_share(pd_storage *s) {
    mapping *m;
    if (s->shared >= 0) return PD_OK;
    if (s->device != &pd_device_cpu)
        return pd_fail(PD_E_NOTIMPL, "share_memory_: the tensor is on %s (expected the CPU)", s->device->name);
    PD_TRY(pd_storage_may_move("share_memory_", s));
    PD_TRY(pd_malloc(sizeof *m, "share_memory_", &m));
    *m = (mapping){.bytes = s->bytes ? s->bytes : 1};
    pd_status status = pd_shared_new(m->bytes, &m->ptr, &m->fd);
    if (status) {
        pd_free(m);
        return PD_TRAIL(status);
    }
    if (s->bytes) memcpy(m->ptr, s->data, s->bytes);
    m->old = *s;
    put(s, m);
    return PD_OK;
}

pd_status pd_storage_open(int fd, size_t bytes, pd_storage **out) {
    mapping *m = NULL;
    pd_status status = pd_malloc(sizeof *m, "shared memory", &m);
    if (!status) {
        *m = (mapping){.bytes = bytes ? bytes : 1, .fd = fd};
        status = pd_shared_map(fd, m->bytes, &m->ptr);
    }
    if (!status && (status = make(&pd_device_cpu, bytes, out))) pd_shared_unmap(m->ptr, m->bytes);
    if (status) {
        pd_free(m);
        close(fd);
        return PD_TRAIL(status);
    }
    put(*out, m);
    return PD_OK;
}

void pd_storage_release(pd_storage *s) {
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    drop_bytes(s);
    unmake(s);
}

int64_t pd_storage_live(void) { return live; }

/* ---- writers and borrowers ---- */

pd_status pd_storage_ask(const char *op, const pd_storage *s) {
    if (s->guard) return s->guard->before(s->guard, op);
    return pd_fail(PD_E_RUNTIME,
                   "%s: the tensor is over read-only memory of another library (expected a copy: clone())", op);
}

pd_status pd_storage_lend(const char *op, pd_storage *s, pd_borrower who, bool written) {
    if (written) PD_TRY(pd_storage_before_write(op, s));
    pd_storage_retain(s);
    atomic_fetch_add_explicit(&s->loans[who], 1, memory_order_relaxed);
    return PD_OK;
}

void pd_storage_give_back(pd_storage *s, pd_borrower who, bool written) {
    if (written) atomic_fetch_add_explicit(&s->writes, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&s->loans[who], 1, memory_order_release);
    pd_storage_release(s);
}

pd_status pd_storage_may_move(const char *op, const pd_storage *s) {
    static const char *const names[PD_BORROWERS] = {"NumPy array or other buffer", "DLPack capsule",
                                                    "collective in progress"};
    static const char *const many[PD_BORROWERS] = {"NumPy arrays or other buffers", "DLPack capsules",
                                                   "collectives in progress"};
    char text[160] = "";
    size_t used = 0;
    for (int i = 0; i < PD_BORROWERS; i++) {
        unsigned n = s->loans[i];
        if (n) used += (size_t)snprintf(text + used, sizeof text - used, "%s%u %s", used ? ", " : "", n,
                                        n > 1 ? many[i] : names[i]);
    }
    if (!used) return PD_OK;
    return pd_fail(
        PD_E_RUNTIME,
        "%s: the memory cannot move while it is lent to %s (expected the loan to end first, or a copy: clone())", op,
        text);
}
