#include "base/mem.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define out_of_memory(bytes, what) \
    pd_fail(PD_E_MEMORY, "%s: out of memory: tried to allocate %zu bytes", what, (size_t)(bytes))

/* Each thread keeps its freed blocks for later requests, in lists by size class: one class for each 16 bytes up to 1
   KiB, then four for each power of two. So a step gets the blocks that the step before has freed, however many they are
   (the C library keeps seven of a size), and a step that repeats asks the system for nothing. */
enum { FINE = 64, CLASSES = FINE + 4 * 7 }; /* up to 128 KiB */
#define MOST ((size_t)2 << 20)              /* bytes that a thread keeps at most */

typedef struct block { struct block *next; } block;
typedef struct pool { block *free[CLASSES]; size_t bytes; } pool;

static _Thread_local pool *mine;
static pthread_key_t pool_key;
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;
static atomic_int_fast64_t asked; /* how often the system was asked for memory */

int64_t pd_mem_asked(void) { return asked; }

static size_t size_of(int c) {
    return c < FINE ? (size_t)(c + 1) * 16 : ((size_t)1024 << (c - FINE) / 4) / 4 * (size_t)((c - FINE) % 4 + 5);
}

/* The smallest class whose blocks have at least so many bytes; CLASSES or more: none. */
static int class_for(size_t bytes) {
    if (bytes <= 1024) return bytes ? (int)((bytes - 1) / 16) : 0;
    int e = 63 - __builtin_clzll(bytes - 1); /* 2^e < bytes <= 2^(e + 1) */
    size_t step = (size_t)1 << (e - 2);
    return e > 40 ? CLASSES : FINE + 4 * (e - 10) + (int)((bytes + step - 1) / step) - 5;
}

static void free_blocks(pool *p) {
    for (int c = 0; c < CLASSES; c++)
        for (block *b = p->free[c]; b; b = p->free[c]) {
            p->free[c] = b->next;
            free(b);
        }
    p->bytes = 0;
}

static void end_pool(void *p) {
    mine = NULL;
    free_blocks(p);
    free(p);
}
static void make_pool_key(void) { pthread_key_create(&pool_key, end_pool); }

static pool *make_pool(void) {
    pthread_once(&pool_once, make_pool_key);
    if ((mine = calloc(1, sizeof *mine))) pthread_setspecific(pool_key, mine);
    return mine;
}

void pd_mem_trim(size_t most) {
    if (mine && mine->bytes > most) free_blocks(mine);
}

static void *take(size_t bytes) {
    int c = class_for(bytes);
    pool *p = mine;
    /* the system's blocks may have 16 bytes more than requested, so one class higher is searched, too */
    for (int from = c; p && from <= c + 1 && from < CLASSES; from++) {
        block *b = p->free[from];
        if (!b) continue;
        p->free[from] = b->next;
        p->bytes -= size_of(from);
        return b;
    }
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    return malloc(c < CLASSES ? size_of(c) : bytes);
}

/* A block goes to the largest class that it is large enough for. */
static void give(void *p) {
    size_t bytes = p ? malloc_usable_size(p) : 0;
    if (!PD_KEEPS_FREED || bytes < 16 || bytes > size_of(CLASSES - 1)) {
        free(p);
        return;
    }
    pool *to = mine ? mine : make_pool();
    int c = class_for(bytes);
    if (size_of(c) > bytes) c--;
    if (!to || to->bytes + size_of(c) > MOST) {
        free(p);
        return;
    }
    block *b = p;
    b->next = to->free[c];
    to->free[c] = b;
    to->bytes += size_of(c);
}

pd_status pd_malloc(size_t bytes, const char *what, void *out) {
    void *p = pd_fault_hit() ? NULL : take(bytes);
    if (!p) return out_of_memory(bytes, what);
    *(void **)out = p;
    return PD_OK;
}

pd_status pd_calloc(size_t bytes, const char *what, void *out) {
    PD_TRY(pd_malloc(bytes, what, out));
    memset(*(void **)out, 0, bytes);
    return PD_OK;
}

pd_status pd_malloc_aligned(size_t bytes, const char *what, void *out) {
    if (bytes > SIZE_MAX - 64) return out_of_memory(bytes, what);
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    void *p = pd_fault_hit() ? NULL : aligned_alloc(64, bytes ? pd_whole_lines(bytes) : 64);
    if (!p) return out_of_memory(bytes, what);
#ifdef MADV_HUGEPAGE
    if (bytes >= PD_LARGE) {
        const uintptr_t low = PD_HUGE_PAGE - 1, from = ((uintptr_t)p + low) & ~low, to = ((uintptr_t)p + bytes) & ~low;
        madvise((void *)from, to - from, MADV_HUGEPAGE);
    }
#endif
    *(void **)out = p;
    return PD_OK;
}

pd_status pd_grow(void *ptr, size_t *cap, size_t want, size_t size, const char *what) {
    if (want <= *cap) return PD_OK;
    size_t n = *cap ? *cap * 2 : 8;
    if (n < want) n = want;
    void *p = pd_fault_hit() ? NULL : take(n * size);
    if (!p) return out_of_memory(n * size, what);
    if (*cap) memcpy(p, *(void **)ptr, *cap * size);
    give(*(void **)ptr);
    *(void **)ptr = p;
    *cap = n;
    return PD_OK;
}

void pd_free(void *p) { give(p); }

void pd_free_aligned(void *p) { free(p); }

static _Thread_local struct { void *p; size_t bytes; } scratch;
static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static void make_scratch_key(void) { pthread_key_create(&scratch_key, pd_free); }

pd_status pd_scratch(size_t bytes, const char *what, void **out) {
    if (bytes > scratch.bytes) {
        void *p;
        PD_TRY(pd_malloc_aligned(bytes, what, &p));
        pthread_once(&scratch_once, make_scratch_key);
        pd_free(scratch.p);
        scratch.p = p;
        scratch.bytes = bytes;
        pthread_setspecific(scratch_key, p); /* freed at thread end */
    }
    *out = scratch.p;
    return PD_OK;
}
