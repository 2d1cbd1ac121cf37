#include "comm/pipe/arena.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "comm/net/fork.h"
#include "device/shared.h"

#define SMALLEST ((size_t)64 << 10)
#define COARSE ((size_t)2 << 20) /* larger slabs are multiples of this; smaller ones are powers of two */

static void unmap(pd_slab *s) {
    pd_shared_unmap(s->base, s->bytes);
    if (s->fd >= 0) close(s->fd);
    pd_free(s);
}

void pd_slab_release(pd_slab *s) {
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) unmap(s);
}

static pd_status wrap(void *base, size_t bytes, int owner, uint32_t number, int fd, pd_slab **out) {
    pd_slab *s;
    PD_TRY(pd_malloc(sizeof *s, "pipe", &s));
    *s = (pd_slab){.base = base, .bytes = bytes, .owner = owner, .number = number, .fd = fd, .lent = -1,
                   .forks = pd_forks};
    atomic_init(&s->refs, 1);
    *out = s;
    return PD_OK;
}

pd_status pd_slab_open(int fd, size_t bytes, int owner, uint32_t number, pd_slab **out) {
    void *base = NULL;
    pd_status status = bytes > PD_SLAB_HEAD ? pd_shared_map(fd, bytes, &base)
                                            : pd_fail(PD_E_DIST, "pipe: a slab of %zu bytes", bytes);
    close(fd);
    if (!status && (status = wrap(base, bytes, owner, number, -1, out))) pd_shared_unmap(base, bytes);
    return PD_TRAIL(status);
}

/* ---- leases ------------------------------------------------------------------------------------------------------ */

pd_status pd_lease_new(pd_slab *s, pd_lease **out) {
    PD_TRY(pd_malloc(sizeof **out, "pipe", out));
    **out = (pd_lease){.slab = s};
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return PD_OK;
}

void pd_lease_drop(void *ctx) {
    pd_lease *l = ctx;
    pd_slab *s = l->slab;
    bool moved = l->moved;
    pd_free(l);
    if (pd_forked_since(s->forks)) return; /* the parcel is the parent's */
    if (!moved) atomic_fetch_sub_explicit(pd_slab_busy(s), 1, memory_order_release);
    pd_slab_release(s);
}

/* ---- the sender's slabs ------------------------------------------------------------------------------------------ */

pd_status pd_arena_init(pd_arena *a, int rank, int world, size_t limit) {
    *a = (pd_arena){.rank = rank, .world = world, .limit = limit};
    PD_TRY(pd_calloc((size_t)world * PD_SLABS, "pipe", &a->known));
    pthread_mutex_init(&a->lock, NULL);
    return PD_OK;
}

void pd_arena_fini(pd_arena *a) {
    for (int i = 0; i < PD_SLABS; i++)
        if (a->slabs[i]) pd_slab_release(a->slabs[i]);
    pd_free(a->known);
    pthread_mutex_destroy(&a->lock);
}

static size_t size_for(size_t bytes) {
    size_t want = bytes + PD_SLAB_HEAD, size = SMALLEST;
    if (want > COARSE) return (want + COARSE - 1) / COARSE * COARSE;
    while (size < want) size *= 2;
    return size;
}

static bool is_free(const pd_slab *s) {
    return atomic_load_explicit(pd_slab_busy(s), memory_order_acquire) == 0;
}

static void discard(pd_arena *a, int i) {
    a->bytes -= a->slabs[i]->bytes;
    pd_slab_release(a->slabs[i]);
    a->slabs[i] = NULL;
}

/* Drops slabs that are free until there is room. Receivers learn of it when the number is used again. */
static bool make_room(pd_arena *a, size_t bytes) {
    for (int i = 0; i < PD_SLABS && a->bytes + bytes > a->limit; i++)
        if (a->slabs[i] && is_free(a->slabs[i])) discard(a, i);
    return a->bytes + bytes <= a->limit;
}

static pd_slab *make(pd_arena *a, size_t bytes) {
    void *base;
    int fd, number = 0;
    if (!make_room(a, bytes)) return NULL;
    while (number < PD_SLABS && a->slabs[number]) number++;
    if (number == PD_SLABS || pd_shared_new(bytes, &base, &fd)) return NULL;
    if (wrap(base, bytes, a->rank, (uint32_t)number, fd, &a->slabs[number])) {
        pd_shared_unmap(base, bytes);
        close(fd);
        return a->slabs[number] = NULL;
    }
    for (int r = 0; r < a->world; r++)
        atomic_store_explicit(&a->known[(size_t)r * PD_SLABS + (size_t)number], 0, memory_order_relaxed);
    a->bytes += bytes;
    return a->slabs[number];
}

/* Prefers a slab that this receiver has mapped already, then the smallest. */
pd_slab *pd_arena_take(pd_arena *a, size_t bytes, int to, int parcels) {
    size_t size = size_for(bytes);
    pd_slab *best = NULL;
    bool best_known = false;
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < PD_SLABS; i++) {
        pd_slab *s = a->slabs[i];
        if (!s || s->bytes < size || s->bytes / 4 > size || !is_free(s)) continue;
        bool known = atomic_load_explicit(&a->known[(size_t)to * PD_SLABS + (size_t)i], memory_order_relaxed);
        if (best && (best_known > known || (best_known == known && best->bytes <= s->bytes))) continue;
        best = s;
        best_known = known;
    }
    if (!best && size <= a->limit) best = make(a, size);
    if (best) {
        best->lent = to;
        atomic_fetch_add_explicit(&best->refs, 1, memory_order_relaxed);
        atomic_store_explicit(pd_slab_busy(best), (unsigned)parcels, memory_order_relaxed);
    }
    pthread_mutex_unlock(&a->lock);
    return best;
}

void pd_arena_forget(pd_arena *a, int rank) {
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < PD_SLABS; i++)
        if (a->slabs[i] && a->slabs[i]->lent == rank && !is_free(a->slabs[i])) discard(a, i);
    pthread_mutex_unlock(&a->lock);
}

void pd_arena_count(pd_arena *a, uint64_t *bytes, uint64_t *lent) {
    *lent = 0;
    pthread_mutex_lock(&a->lock);
    *bytes = a->bytes;
    for (int i = 0; i < PD_SLABS; i++)
        if (a->slabs[i] && !is_free(a->slabs[i])) *lent += a->slabs[i]->bytes;
    pthread_mutex_unlock(&a->lock);
}
