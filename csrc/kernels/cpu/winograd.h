/* Convolutions of 3 x 3 by Winograd's minimal filtering F(2 x 2, 3 x 3): 16 products for four results where the
   definition takes 36 (winograd.c). One table per instruction set, of F32, F16 and BF16, computed in float. */
#ifndef PD_KERNELS_CPU_WINOGRAD_H
#define PD_KERNELS_CPU_WINOGRAD_H

#include "kernels/kernels.h"

typedef struct pd_winograd {
    size_t (*scratch)(const pd_conv *c); /* bytes, enough for each of the three */
    void (*forward)(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch);
    void (*grad_input)(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch);
    void (*grad_weight)(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch);
} pd_winograd;

extern const pd_winograd pd_winograd_portable;
#if defined(__x86_64__)
extern const pd_winograd pd_winograd_avx2, pd_winograd_avx512;
#endif

/* The table for this convolution, or NULL where another way serves. */
const pd_winograd *pd_winograd_of(const pd_conv *c);

#endif
