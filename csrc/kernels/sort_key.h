/* Maps numbers to unsigned ones of the same order. -0 equals 0; NaN is above all. */
#ifndef PD_KERNELS_SORT_KEY_H
#define PD_KERNELS_SORT_KEY_H

#include "base/host_device.h"
#include "kernels/vmath.h"

PD_BOTH uint64_t pd_sort_key_f64(double v) {
    uint64_t u = vm_bits(v == 0.0 ? 0.0 : v), sign = UINT64_C(1) << 63;
    if (v != v) return ~UINT64_C(0);
    return u & sign ? ~u : u | sign;
}
PD_BOTH uint64_t pd_sort_key_f32(float v) {
    uint32_t u = vm_bitsf(v == 0.0f ? 0.0f : v), sign = 1u << 31;
    if (v != v) return 0xffffffffu;
    return u & sign ? ~u : u | sign;
}

#endif
