/* The weight gradient of a bf16 convolution where AVX512-BF16 makes its products (conv_weight.c). One table per
   instruction set; only AVX-512's serves anything. */
#ifndef PD_KERNELS_CPU_CONV_WEIGHT_H
#define PD_KERNELS_CPU_CONV_WEIGHT_H

#include "kernels/kernels.h"

typedef struct pd_conv_weight {
    bool (*serves)(const pd_conv *c);
    size_t (*scratch)(const pd_conv *c); /* bytes */
    void (*run)(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch);
} pd_conv_weight;

extern const pd_conv_weight pd_conv_weight_portable;
#if defined(__x86_64__)
extern const pd_conv_weight pd_conv_weight_avx2, pd_conv_weight_avx512;
#endif

/* The table for this convolution, or NULL where another way serves. */
const pd_conv_weight *pd_conv_weight_of(const pd_conv *c);

#endif
