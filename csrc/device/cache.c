/* Free blocks are kept in bins, four for each power of two, with a bit for each bin that is not empty. So a block is
   found, cut, freed and joined with its neighbours in constant time. Requests up to 1 MiB share segments of 2 MiB,
   those up to 10 MiB segments of 20 MiB, larger ones get a segment of their own size (PyTorch's numbers). */
#include "device/cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

#define MIB ((size_t)1 << 20)
#define GRAIN ((size_t)512)
enum {
    BINS = 4 * 48, /* blocks have less than 2^48 bytes */
    BUCKETS = 4096,
    LOOK = 16 /* how many blocks of a bin, which may be too small, are looked at before a larger bin is used */
};

/* Another stream that uses a block. Once the block is freed, the event after which the use ends. */
typedef struct use {
    void *stream, *event;
    bool later; /* freed while the stream was captured, where events cannot be asked: recorded after the capture */
    struct use *next;
} use;

/* A part of a segment. The blocks of a segment form a list in the order of addresses. */
typedef struct block {
    struct block *before, *after;        /* in memory; NULL: the segment's end */
    struct block *last, *next;           /* in the bin; of used blocks only `next`, in their bucket */
    struct arena *arena;
    char *p;
    size_t bytes;
    bool used;
    use *uses;
} block;

/* The free blocks of a stream, small and large ones apart, since small tensors that live long should not fragment large
   segments. */
typedef struct arena {
    void *stream;
    bool small;
    int64_t pool; /* 0: none */
    struct arena *next;
    block *bins[BINS];
    uint64_t filled[BINS / 64];
} arena;

/* A pool whose graphs are gone. */
typedef struct ended {
    int64_t pool;
    struct ended *next;
    int n;
    void *streams[]; /* those that the graphs were launched in */
} ended;

struct pd_cache {
    pthread_mutex_t lock;
    const pd_cuda_library *lib;
    int index;
    const char *device;
    arena *arenas;
    block *used[BUCKETS];
    block *waiting; /* freed, but still used by other streams */
    int64_t pools, pool; /* how many pools were made; the open one */
    ended *ended;        /* pools whose graphs died while one was open */
    pd_cache_stats stats;
};

static atomic_int open_pools; /* of all devices */

/* Whether the stream is being captured. */
static bool captures(const pd_cache *c, void *stream) {
    bool yes = false;
    return stream && atomic_load_explicit(&open_pools, memory_order_relaxed) && !c->lib->capturing(stream, &yes) && yes;
}

static int bin_of(size_t bytes) { /* the bin in which a block of so many bytes is kept */
    int e = 63 - __builtin_clzll(bytes);
    return 4 * e + (int)(bytes >> (e - 2) & 3);
}
static block **bucket_of(pd_cache *c, const void *p) {
    return &c->used[((uintptr_t)p / GRAIN * 0x9E3779B97F4A7C15u) >> 52];
}

static void put_free(block *b) {
    arena *a = b->arena;
    int k = bin_of(b->bytes);
    b->used = false;
    b->last = NULL;
    if ((b->next = a->bins[k])) b->next->last = b;
    a->bins[k] = b;
    a->filled[k / 64] |= UINT64_C(1) << k % 64;
}

static void take_free(block *b) {
    arena *a = b->arena;
    int k = bin_of(b->bytes);
    if (b->last) b->last->next = b->next;
    else if (!(a->bins[k] = b->next)) a->filled[k / 64] &= ~(UINT64_C(1) << k % 64);
    if (b->next) b->next->last = b->last;
}

static block *find(arena *a, size_t bytes) {
    int k = bin_of(bytes), tries = LOOK;
    for (block *b = a->bins[k]; b && tries--; b = b->next)
        if (b->bytes >= bytes) return b;
    for (int word = ++k / 64; word < BINS / 64; word++) {
        uint64_t bits = a->filled[word] & (word == k / 64 ? ~UINT64_C(0) << k % 64 : ~UINT64_C(0));
        if (bits) return a->bins[64 * word + __builtin_ctzll(bits)];
    }
    return NULL;
}

/* Joins `b`, which is free and in no bin, with the block after it if that is free. */
static void join_next(block *b) {
    block *n = b->after;
    b->bytes += n->bytes;
    if ((b->after = n->after)) n->after->before = b;
    pd_free(n);
}

static pd_status arena_of(pd_cache *c, void *stream, bool small, int64_t pool, arena **out) {
    for (*out = c->arenas; *out; *out = (*out)->next)
        if ((*out)->stream == stream && (*out)->small == small && (*out)->pool == pool) return PD_OK;
    PD_TRY(pd_calloc(sizeof **out, "tensor", out));
    (*out)->stream = stream;
    (*out)->small = small;
    (*out)->pool = pool;
    (*out)->next = c->arenas;
    c->arenas = *out;
    return PD_OK;
}

/* Frees a block that no stream uses any more. */
static void let_go(block *b) {
    if (b->after && !b->after->used) {
        take_free(b->after);
        join_next(b);
    }
    if (b->before && !b->before->used) {
        b = b->before;
        take_free(b);
        join_next(b);
    }
    put_free(b);
}

/* ---- waiting for streams ----------------------------------------------------------------------------------------- */

/* *event: a [new] event after the stream's work so far. Returns CUDA's error. */
static int event_behind(pd_cache *c, void *stream, void **event) {
    int was, error = c->lib->at(c->index, &was);
    if (error) return error;
    error = c->lib->event_new(event, false);
    if (!error && (error = c->lib->event_record(*event, stream))) {
        c->lib->event_free(*event);
        *event = NULL;
    }
    c->lib->at(was, &was);
    return error;
}

/* Waits for the whole device, if an event cannot be made. Not while a pool is open: that would break its capture. */
static void wait(pd_cache *c) {
    int was;
    c->lib->failed(); /* clears the error, or the next launch would be blamed */
    if (c->lib->at(c->index, &was)) return;
    c->lib->wait();
    c->lib->at(was, &was);
}

static void note(pd_cache *c, use *u) {
    if (u->event) return;
    u->later = captures(c, u->stream);
    if (u->later || !event_behind(c, u->stream, &u->event)) return;
    c->lib->failed();
    u->later = c->pool != 0;
    if (!u->later) wait(c);
}

/* Makes later work of `next` wait for the work of `stream` so far. */
static void order(pd_cache *c, void *stream, void *next) {
    void *event;
    int error = event_behind(c, stream, &event);
    if (!error) {
        error = c->lib->stream_after(next, event);
        c->lib->event_free(event);
    }
    if (error) wait(c);
}

/* Whether all streams that used a freed block are done with it. */
static bool is_idle(pd_cache *c, block *b) {
    for (bool done = true; b->uses;) {
        use *u = b->uses;
        if (u->later) return false;
        if (u->event && c->lib->event_done(u->event, &done)) {
            c->lib->failed();
            return false;
        }
        if (!done) return false;
        if (u->event) c->lib->event_free(u->event);
        b->uses = u->next;
        pd_free(u);
    }
    return true;
}

static void reap(pd_cache *c) {
    for (block **at = &c->waiting, *b; (b = *at);) {
        if (!is_idle(c, b)) at = &b->next;
        else {
            *at = b->next;
            let_go(b);
        }
    }
}

static void give_back(pd_cache *c) {
    reap(c);
    for (arena *a = c->arenas; a; a = a->next)
        for (int k = 0; k < BINS && !a->pool; k++)
            for (block *b = a->bins[k], *next; b; b = next) {
                next = b->next;
                if (b->before || b->after) continue; /* a part of its segment is used */
                take_free(b);
                c->lib->give(b->p);
                c->stats.reserved -= (int64_t)b->bytes;
                c->stats.segments--;
                pd_free(b);
            }
}

static size_t segment_of(size_t bytes) {
    return bytes <= MIB ? 2 * MIB : bytes < 10 * MIB ? 20 * MIB : (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

static pd_status out_of_memory(pd_cache *c, size_t bytes) {
    size_t left = 0, total = 0;
    c->stats.failures++;
    c->lib->memory(&left, &total);
    return pd_fail(PD_E_MEMORY,
                   "tensor: out of memory on %s: tried to allocate %zu bytes; tensors hold %lld bytes, the cache holds "
                   "%lld more, and %zu of the device's %zu bytes are free",
                   c->device, bytes, (long long)c->stats.allocated, (long long)(c->stats.reserved - c->stats.allocated),
                   left, total);
}

static pd_status grow(pd_cache *c, arena *a, size_t bytes, block **out) {
    size_t size = segment_of(bytes);
    block *b;
    void *p = NULL;
    PD_TRY(pd_calloc(sizeof *b, "tensor", &b));
    int error = pd_fault_hit() ? 2 : c->lib->take(&p, size);
    if (error && !c->pool && !pd_fault_armed(PD_FAULT_MALLOC)) {
        wait(c);
        give_back(c);
        c->stats.retries++;
        error = c->lib->take(&p, size);
    }
    if (error) {
        c->lib->failed();
        pd_free(b);
        return out_of_memory(c, bytes);
    }
    *b = (block){.arena = a, .p = p, .bytes = size};
    c->stats.segments++;
    c->stats.reserved += (int64_t)size;
    if (c->stats.reserved > c->stats.most_reserved) c->stats.most_reserved = c->stats.reserved;
    put_free(b);
    *out = b;
    return PD_OK;
}

static pd_status cut(block *b, size_t bytes) {
    size_t rest = b->bytes - bytes;
    block *r;
    if (rest < (b->arena->small ? GRAIN : MIB)) return PD_OK;
    PD_TRY(pd_calloc(sizeof *r, "tensor", &r));
    *r = (block){.arena = b->arena, .p = b->p + bytes, .bytes = rest, .before = b, .after = b->after};
    if (b->after) b->after->before = r;
    b->after = r;
    b->bytes = bytes;
    put_free(r);
    return PD_OK;
}

static pd_status alloc(pd_cache *c, void *stream, size_t bytes, void **out) {
    arena *a;
    bool captured = captures(c, stream);
    if (captured && !c->pool)
        return pd_fail(PD_E_RUNTIME,
                       "tensor: a stream of %s takes part in the capture of another device's graph, which has no "
                       "memory there (expected streams of one device)",
                       c->device);
    PD_TRY(arena_of(c, stream, bytes <= MIB, captured ? c->pool : 0, &a));
    if (c->waiting) reap(c);
    block *b = find(a, bytes);
    if (!b) PD_TRY(grow(c, a, bytes, &b));
    take_free(b);
    pd_status status = cut(b, bytes);
    if (status) {
        put_free(b);
        return status;
    }
    b->used = true;
    block **bucket = bucket_of(c, b->p);
    b->next = *bucket;
    *bucket = b;
    c->stats.allocated += (int64_t)b->bytes;
    if (c->stats.allocated > c->stats.most_allocated) c->stats.most_allocated = c->stats.allocated;
    *out = b->p;
    return PD_OK;
}

pd_status pd_cache_alloc(pd_cache *c, void *stream, size_t bytes, void **out) {
    size_t size = bytes ? (bytes + GRAIN - 1) / GRAIN * GRAIN : GRAIN;
    pthread_mutex_lock(&c->lock);
    pd_status status = bytes >> BINS / 4 ? out_of_memory(c, bytes) : alloc(c, stream, size, out);
    pthread_mutex_unlock(&c->lock);
    return status;
}

static block **find_used(pd_cache *c, const void *p) {
    block **at = bucket_of(c, p);
    while (*at && (*at)->p != p) at = &(*at)->next;
    return at;
}

void pd_cache_free(pd_cache *c, void *p) {
    pthread_mutex_lock(&c->lock);
    block **at = find_used(c, p), *b = *at;
    *at = b->next;
    c->stats.allocated -= (int64_t)b->bytes;
    for (use *u = b->uses; u; u = u->next) note(c, u);
    if (is_idle(c, b)) let_go(b);
    else {
        b->next = c->waiting;
        c->waiting = b;
    }
    pthread_mutex_unlock(&c->lock);
}

pd_status pd_cache_record(pd_cache *c, const void *p, void *stream) {
    pd_status status = PD_OK;
    use *u = NULL;
    pthread_mutex_lock(&c->lock);
    block *b = *find_used(c, p);
    bool known = !b || b->arena->stream == stream;
    for (use *k = b ? b->uses : NULL; k; k = k->next) known = known || (k->stream == stream && !k->event);
    if (!known && !(status = pd_calloc(sizeof *u, "record_stream", &u))) {
        *u = (use){.stream = stream, .next = b->uses};
        b->uses = u;
    }
    pthread_mutex_unlock(&c->lock);
    return PD_TRAIL(status);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

pd_status pd_cache_pool_begin(pd_cache *c, int64_t *pool) {
    pthread_mutex_lock(&c->lock);
    bool open = c->pool != 0;
    if (!open) {
        if (!*pool) *pool = ++c->pools;
        c->pool = *pool;
        atomic_fetch_add_explicit(&open_pools, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&c->lock);
    return open ? pd_fail(PD_E_RUNTIME, "CUDAGraph: another graph is being captured on %s (expected one at a time)",
                          c->device)
                : PD_OK;
}

/* Notes that the streams of the graphs use b, too. */
static pd_status use_by(block *b, const ended *e) {
    for (int i = 0; i < e->n; i++) {
        use *u;
        PD_TRY(pd_calloc(sizeof *u, "CUDAGraph", &u));
        *u = (use){.stream = e->streams[i], .next = b->uses};
        b->uses = u;
    }
    return PD_OK;
}

/* Moves every block of arena a to arena b. When a tensor that is alive now is freed, its block waits for the graphs'
   streams. */
static pd_status move_blocks(pd_cache *c, arena *a, arena *b, const ended *e) {
    for (int k = 0; k < BUCKETS; k++)
        for (block *x = c->used[k]; x; x = x->next)
            if (x->arena == a) PD_TRY(use_by(x, e));
    for (int k = 0; k < BUCKETS; k++)
        for (block *x = c->used[k]; x; x = x->next)
            if (x->arena == a) x->arena = b;
    for (block *x = c->waiting; x; x = x->next)
        if (x->arena == a) x->arena = b;
    for (int k = 0; k < BINS; k++)
        for (block *x; (x = a->bins[k]);) {
            take_free(x);
            x->arena = b;
            put_free(x);
        }
    return PD_OK;
}

/* Gives the memory of a pool to everybody. If it runs out of memory, the rest of the pool is lost. */
static pd_status dissolve(pd_cache *c, const ended *e) {
    arena *b;
    for (arena **at = &c->arenas, *a; (a = *at);) {
        if (a->pool != e->pool) {
            at = &a->next;
            continue;
        }
        PD_TRY(arena_of(c, a->stream, a->small, 0, &b));
        for (int i = 0; i < e->n; i++)
            if (e->streams[i] != a->stream) order(c, e->streams[i], a->stream);
        PD_TRY(move_blocks(c, a, b, e));
        for (at = &c->arenas; *at != a;) at = &(*at)->next; /* a new arena may be in front of it */
        *at = a->next;
        pd_free(a);
    }
    return PD_OK;
}

pd_status pd_cache_pool_free(pd_cache *c, int64_t pool, void *const *streams, int n) {
    ended *e;
    PD_TRY(pd_calloc(sizeof *e + (size_t)n * sizeof *streams, "CUDAGraph", &e));
    e->pool = pool;
    e->n = n;
    if (n) memcpy(e->streams, streams, (size_t)n * sizeof *streams);
    pthread_mutex_lock(&c->lock);
    bool now = !c->pool;
    pd_status status = now ? dissolve(c, e) : PD_OK;
    if (!now) { /* its streams may be in the capture that is under way */
        e->next = c->ended;
        c->ended = e;
    }
    pthread_mutex_unlock(&c->lock);
    if (now) pd_free(e);
    return PD_TRAIL(status);
}

pd_status pd_cache_pool_end(pd_cache *c) {
    pd_status status = PD_OK;
    pthread_mutex_lock(&c->lock);
    c->pool = 0;
    atomic_fetch_sub_explicit(&open_pools, 1, memory_order_relaxed);
    for (block *b = c->waiting; b; b = b->next)
        for (use *u = b->uses; u; u = u->next)
            if (u->later) note(c, u);
    for (ended *e; (e = c->ended);) {
        c->ended = e->next;
        PD_THEN(dissolve(c, e));
        pd_free(e);
    }
    pthread_mutex_unlock(&c->lock);
    return PD_TRAIL(status);
}

bool pd_cache_pool_is_open(pd_cache *c) {
    pthread_mutex_lock(&c->lock);
    bool open = c->pool != 0;
    pthread_mutex_unlock(&c->lock);
    return open;
}

void pd_cache_trim(pd_cache *c) {
    pthread_mutex_lock(&c->lock);
    if (!c->pool) {
        wait(c);
        give_back(c);
    }
    pthread_mutex_unlock(&c->lock);
}

void pd_cache_lock(pd_cache *c) { pthread_mutex_lock(&c->lock); }
void pd_cache_unlock(pd_cache *c) { pthread_mutex_unlock(&c->lock); }

pd_cache_stats pd_cache_read(pd_cache *c) {
    pthread_mutex_lock(&c->lock);
    pd_cache_stats s = c->stats;
    pthread_mutex_unlock(&c->lock);
    return s;
}

void pd_cache_reset_most(pd_cache *c) {
    pthread_mutex_lock(&c->lock);
    c->stats.most_allocated = c->stats.allocated;
    c->stats.most_reserved = c->stats.reserved;
    pthread_mutex_unlock(&c->lock);
}

pd_status pd_cache_new(const pd_cuda_library *lib, int index, const char *device, pd_cache **out) {
    PD_TRY(pd_calloc(sizeof **out, "tensor", out));
    pthread_mutex_init(&(*out)->lock, NULL);
    (*out)->lib = lib;
    (*out)->index = index;
    (*out)->device = device;
    return PD_OK;
}
