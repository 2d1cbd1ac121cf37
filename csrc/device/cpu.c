#include <stdatomic.h>

#include "base/mem.h"
#include "device/device.h"

static atomic_int_fast64_t held;

static pd_status cpu_alloc(const pd_device *d, size_t bytes, void **out) {
    (void)d;
    PD_TRY(pd_malloc_aligned(bytes, "tensor", out));
    atomic_fetch_add_explicit(&held, (int64_t)bytes, memory_order_relaxed);
    return PD_OK;
}

static void cpu_free(const pd_device *d, void *p, size_t bytes) {
    (void)d;
    atomic_fetch_sub_explicit(&held, (int64_t)bytes, memory_order_relaxed);
    pd_free(p);
}

const pd_device pd_device_cpu = {
    .kind = PD_DEVICE_CPU, .index = -1, .name = "cpu", .alloc = cpu_alloc, .free = cpu_free};

int64_t pd_device_cpu_bytes(void) { return held; }
