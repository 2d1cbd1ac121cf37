/* Which bytes of the device's memory kernels touch: `build.py --traced FILE` compiles them so that they call these
   functions at each load and store (the compiler's -fsanitize=thread, without its library). Slow; it checks the
   formulas of work.cpp. */
#include <stddef.h>
#include <sys/mman.h>

#include "count.h"

void pd_emulated_arena(const char **begin, size_t *bytes);

/* last[w][byte]: the launch that touched it last. */
static void touch(int w, const void *p, size_t size) {
    static uint32_t *last[2];
    const char *arena = nullptr;
    size_t bytes = 0;
    pd_emulated_arena(&arena, &bytes);
    size_t at = (size_t)((const char *)p - arena);
    if (!arena || (const char *)p < arena || at >= bytes) return;
    if (!last[w]) {
        void *map =
            mmap(nullptr, 4 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (map == MAP_FAILED) __builtin_trap();
        last[w] = (uint32_t *)map;
    }
    for (size_t i = at; i < at + size; i++)
        if (last[w][i] != pd_launch_now) last[w][i] = pd_launch_now, pd_touched[w]++;
}

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
char __tsan_atomic8_load(const volatile char *p, int) { return *p; } /* the host's, of csrc/cuda/later.h */
void __tsan_atomic8_store(volatile char *p, char v, int) { *p = v; }
void __tsan_read_range(void *p, size_t n) { touch(0, p, n); }
void __tsan_write_range(void *p, size_t n) { touch(1, p, n); }
#define ACCESS(n)                                               \
    void __tsan_read##n(void *p) { touch(0, p, n); }            \
    void __tsan_write##n(void *p) { touch(1, p, n); }           \
    void __tsan_unaligned_read##n(void *p) { touch(0, p, n); }  \
    void __tsan_unaligned_write##n(void *p) { touch(1, p, n); } \
    void __tsan_volatile_read##n(void *p) { touch(0, p, n); }   \
    void __tsan_volatile_write##n(void *p) { touch(1, p, n); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
#undef ACCESS
}
