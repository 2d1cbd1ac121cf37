/* Which implementation serves: the instruction set once, oneDNN or our own per call. */
#include "base/cpu.h"
#include "base/flags.h"
#include "kernels/cpu/conv_weight.h"
#include "kernels/cpu/lib/table.h"
#include "kernels/cpu/winograd.h"
#include "kernels/cublaslt/cublaslt.h"
#include "kernels/cudnn/cudnn.h"
#include "kernels/onednn/onednn.h"
#include "kernels/portable/portable.h"

/* What a file of kernels/cpu offers, by the instruction set that it was compiled for. */
#if defined(__x86_64__)
#define BY_ISA(name) \
    {[PD_ISA_PORTABLE] = &name##_portable, [PD_ISA_AVX2] = &name##_avx2, [PD_ISA_AVX512] = &name##_avx512}
#else
#define BY_ISA(name) {[PD_ISA_PORTABLE] = &name##_portable}
#endif

const pd_kernels *pd_cpu(void) {
    static const pd_kernels *const tables[PD_ISA_COUNT] = BY_ISA(pd_cpu_table);
    return tables[pd_cpu_isa()];
}

pd_gpu_settings pd_gpu = {.conv_tf32 = true};

/* Room for either: whether oneDNN has the product may depend on the bias, which is not known here. */
size_t pd_gemm_scratch(const pd_gemm *c) {
    if (pd_device_here->kernels) {
        size_t tiles = pd_here()->gemm_scratch(c), library = pd_cublaslt_scratch(c);
        return tiles > library ? tiles : library;
    }
    size_t ours = pd_cpu()->gemm_scratch(c),
           theirs = pd_onednn_takes_gemm(c, false) || pd_onednn_takes_gemm(c, true) ? pd_onednn_gemm_scratch(c) : 0;
    return ours > theirs ? ours : theirs;
}
pd_status pd_gemm_run(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch) {
    if (pd_device_here->kernels) {
        bool done;
        PD_TRY(pd_cublaslt_gemm(c, A, B, bias, NULL, C, scratch, &done));
        if (!done) pd_here()->gemm(c, A, B, bias, C, scratch);
        return PD_OK;
    }
    bool takes = pd_onednn_takes_gemm(c, bias != NULL);
    PD_TRY(pd_onednn_check_memory());
    if (takes) return pd_onednn_gemm(c, A, B, bias, C, scratch);
    pd_cpu()->gemm(c, A, B, bias, C, scratch);
    return PD_OK;
}

const pd_conv_weight *pd_conv_weight_of(const pd_conv *c) {
    static const pd_conv_weight *const tables[PD_ISA_COUNT] = BY_ISA(pd_conv_weight);
    const pd_conv_weight *w = tables[pd_cpu_isa()];
    return w->serves(c) ? w : NULL;
}

/* Nothing is made in oneDNN for a weight's gradient that it will not be asked for. */
static bool onednn_takes(const pd_conv *c) { return pd_onednn_takes_conv(c, !pd_conv_weight_of(c)); }

/* From so many tiles on making the filters pays. oneDNN's products of bf16 are faster than these, in float. */
#define WINOGRAD_TILES 64
#define WINOGRAD_CHANNELS 16 /* the vectors of all instruction sets */
#define WINOGRAD_WIDTH 1024  /* a row of tiles is worked with at once */
const pd_winograd *pd_winograd_of(const pd_conv *c) {
    static const pd_winograd *const tables[PD_ISA_COUNT] = BY_ISA(pd_winograd);
    bool shape = c->R == 3 && c->S == 3 && c->stride[0] == 1 && c->stride[1] == 1 && c->dilation[0] == 1 &&
                 c->dilation[1] == 1 && c->groups == 1 && c->padding[0] <= 2 && c->padding[1] <= 2 &&
                 c->C % WINOGRAD_CHANNELS == 0 && c->K % WINOGRAD_CHANNELS == 0 && c->C > 0 && c->K > 0 &&
                 c->W <= WINOGRAD_WIDTH && c->Q <= WINOGRAD_WIDTH;
    if (!shape || c->t == PD_F64 || c->N * ((c->P + 1) / 2) * ((c->Q + 1) / 2) < WINOGRAD_TILES) return NULL;
    if (!pd_flags_get()->WINOGRAD || (c->t == PD_BF16 && onednn_takes(c))) return NULL;
    return tables[pd_cpu_isa()];
}

pd_status pd_gemm_with_sums(const pd_gemm *c, const void *A, const void *B, void *sums, void *C, void *scratch,
                            bool *done) {
    *done = false;
    return pd_device_here->kernels ? pd_cublaslt_gemm(c, A, B, NULL, sums, C, scratch, done) : PD_OK;
}

/* A GPU's convolutions take what scratch they need themselves: how much is known when a plan has been made. */
static pd_status on_gpu(const pd_conv *c, pd_conv_part part, const void *a, const void *b, const void *bias,
                        void *out) {
    bool done;
    PD_TRY(pd_cudnn_conv(c, part, a, b, bias, out, &done));
    if (!done) pd_here()->conv(c, part, a, b, bias, out);
    return PD_OK;
}
size_t pd_conv_scratch(const pd_conv *c) {
    if (pd_device_here->kernels) return 0;
    const pd_winograd *w = pd_winograd_of(c);
    if (w) {
        size_t ours = w->scratch(c), bias = pd_conv_bias_scratch(c);
        return ours > bias ? ours : bias;
    }
    const pd_conv_weight *own = pd_conv_weight_of(c);
    size_t rest = onednn_takes(c) ? pd_onednn_conv_scratch(c, !own) : pd_portable_conv_scratch(c);
    size_t weight = own ? own->scratch(c) : 0;
    return rest > weight ? rest : weight;
}
pd_status pd_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    if (pd_device_here->kernels) return on_gpu(c, PD_CONV_FORWARD, x, w, bias, y);
    const pd_winograd *fast = pd_winograd_of(c);
    if (fast) return fast->forward(c, x, w, bias, y, scratch), PD_OK;
    bool takes = onednn_takes(c);
    PD_TRY(pd_onednn_check_memory());
    if (takes) return pd_onednn_conv_forward(c, x, w, bias, y, scratch);
    pd_portable_conv_forward(c, x, w, bias, y, scratch);
    return PD_OK;
}
pd_status pd_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    if (pd_device_here->kernels) return on_gpu(c, PD_CONV_INPUT, gy, w, NULL, gx);
    const pd_winograd *fast = pd_winograd_of(c);
    if (fast) return fast->grad_input(c, gy, w, gx, scratch), PD_OK;
    bool takes = onednn_takes(c);
    PD_TRY(pd_onednn_check_memory());
    if (takes) return pd_onednn_conv_grad_input(c, gy, w, gx, scratch);
    pd_portable_conv_grad_input(c, gy, w, gx, scratch);
    return PD_OK;
}
pd_status pd_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *gbias, void *scratch) {
    if (pd_device_here->kernels) return on_gpu(c, PD_CONV_WEIGHT, gy, x, NULL, gw);
    const pd_winograd *fast = gw ? pd_winograd_of(c) : NULL;
    const pd_conv_weight *own = gw && !fast ? pd_conv_weight_of(c) : NULL;
    if (fast || own) {
        if (gbias) pd_conv_grad_bias(c, gy, gbias, scratch);
        (fast ? fast->grad_weight : own->run)(c, gy, x, gw, scratch);
        return PD_OK;
    }
    bool takes = onednn_takes(c);
    PD_TRY(pd_onednn_check_memory());
    if (takes) return pd_onednn_conv_grad_weight(c, gy, x, gw, gbias, scratch);
    pd_portable_conv_grad_weight(c, gy, x, gw, gbias, scratch);
    return PD_OK;
}
