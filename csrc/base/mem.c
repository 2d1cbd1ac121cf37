#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define out_of_memory(bytes, what) pd_fail(PD_E_MEMORY, "%s: out of memory: tried to allocate %zu bytes", what, (size_t)(bytes))

pd_status pd_malloc(size_t bytes, const char *what, void *out) {
    void *p = pd_fault_hit() ? NULL : malloc(bytes ? bytes : 1);
    if (!p) return out_of_memory(bytes, what);
    *(void **)out = p;
    return PD_OK;
}

pd_status pd_calloc(size_t bytes, const char *what, void *out) {
    void *p = pd_fault_hit() ? NULL : calloc(1, bytes ? bytes : 1);
    if (!p) return out_of_memory(bytes, what);
    *(void **)out = p;
    return PD_OK;
}

pd_status pd_malloc_aligned(size_t bytes, const char *what, void *out) {
    if (bytes > SIZE_MAX - 64) return out_of_memory(bytes, what);
    void *p = pd_fault_hit() ? NULL : aligned_alloc(64, bytes ? (bytes + 63) & ~(size_t)63 : 64);
    if (!p) return out_of_memory(bytes, what);
    *(void **)out = p;
    return PD_OK;
}

pd_status pd_grow(void *ptr, size_t *cap, size_t want, size_t size, const char *what) {
    if (want <= *cap) return PD_OK;
    size_t n = *cap ? *cap * 2 : 8;
    if (n < want) n = want;
    void *p = pd_fault_hit() ? NULL : realloc(*(void **)ptr, n * size);
    if (!p) return out_of_memory(n * size, what);
    *(void **)ptr = p;
    *cap = n;
    return PD_OK;
}

void pd_free(void *p) { free(p); }

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
