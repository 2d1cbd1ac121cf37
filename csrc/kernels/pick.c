/* Chooses implementations: the instruction set once, the backend (backend.h) for each call. */
#include "base/cpu.h"
#include "base/flags.h"
#include "kernels/backend.h"
#include "kernels/cpu/lib/table.h"
#include "kernels/onednn/onednn.h"

/* The functions of kernels/cpu, by the instruction set for which they were compiled. */
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

/* ---- products ---- */

/* The products of the device's table of kernels. */
static bool own_takes(const pd_gemm *c, bool bias) { return (void)c, (void)bias, true; }
static size_t own_scratch(const pd_gemm *c) { return pd_here()->gemm_scratch(c); }
static pd_status own_run(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch) {
    pd_here()->gemm(c, A, B, bias, C, scratch);
    return PD_OK;
}
static const pd_gemm_backend own_gemm = {.name = "own", .takes = own_takes, .scratch = own_scratch, .run = own_run};

static const pd_gemm_backend *const gemm_on_cpu[] = {&pd_onednn_gemm, &own_gemm, NULL};
static const pd_gemm_backend *const gemm_on_gpu[] = {&pd_cublaslt_gemm, &own_gemm, NULL};
static const pd_gemm_backend *const gemm_on_meta[] = {&own_gemm, NULL};

static const pd_gemm_backend *const *gemm_backends(void) {
    const pd_device *d = pd_device_here;
    return !d->kernels ? gemm_on_cpu : d == &pd_device_meta ? gemm_on_meta : gemm_on_gpu;
}

/* Scratch for any backend that may be used: which one that is may depend on the bias, which is not known here. */
size_t pd_gemm_scratch(const pd_gemm *c) {
    size_t most = 0;
    for (const pd_gemm_backend *const *b = gemm_backends(); *b; b++) {
        size_t bytes = (*b)->takes(c, false) || (*b)->takes(c, true) ? (*b)->scratch(c) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

pd_status pd_gemm_run(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch) {
    const pd_gemm_backend *const *b = gemm_backends();
    while (!(*b)->takes(c, bias != NULL)) b++;
    if (!pd_device_here->kernels) PD_TRY(pd_onednn_check_memory());
    return (*b)->run(c, A, B, bias, C, scratch);
}

bool pd_gemm_makes_sums(const pd_gemm *c) {
    for (const pd_gemm_backend *const *b = gemm_backends(); *b; b++)
        if ((*b)->makes_sums && (*b)->makes_sums(c)) return true;
    return false;
}

pd_status pd_gemm_with_sums(const pd_gemm *c, const void *A, const void *B, void *sums, void *C, void *scratch,
                            bool *done) {
    *done = false;
    for (const pd_gemm_backend *const *b = gemm_backends(); *b && !*done; b++)
        if ((*b)->makes_sums && (*b)->makes_sums(c)) PD_TRY((*b)->with_sums(c, A, B, sums, C, scratch, done));
    return PD_OK;
}

/* ---- convolutions ---- */

/* From so many tiles on the transform of the filters pays: for one image of 4 x 4 it does. For bf16, oneDNN's products
   are faster than these in float. */
#define WINOGRAD_TILES 4
#define WINOGRAD_CHANNELS 16 /* the vectors of all instruction sets */
#define WINOGRAD_WIDTH 1024  /* a row of tiles is processed at once */
bool pd_winograd_takes(const pd_conv *c, pd_conv_part part) {
    bool shape = c->R == 3 && c->S == 3 && c->stride[0] == 1 && c->stride[1] == 1 && c->dilation[0] == 1 &&
                 c->dilation[1] == 1 && c->groups == 1 && c->padding[0] <= 2 && c->padding[1] <= 2 &&
                 c->C % WINOGRAD_CHANNELS == 0 && c->K % WINOGRAD_CHANNELS == 0 && c->C > 0 && c->K > 0 &&
                 c->W <= WINOGRAD_WIDTH && c->Q <= WINOGRAD_WIDTH;
    if (!shape || c->t == PD_F64 || c->N * ((c->P + 1) / 2) * ((c->Q + 1) / 2) < WINOGRAD_TILES) return false;
    return pd_flags_get()->WINOGRAD && !(c->t == PD_BF16 && pd_onednn_conv.takes(c, part));
}

bool pd_conv_weight_takes(const pd_conv *c) {
    static const pd_conv_backend *const own[PD_ISA_COUNT] = BY_ISA(pd_conv_weight);
    return own[pd_cpu_isa()]->takes(c, PD_CONV_WEIGHT);
}

/* The convolution of the device's table of kernels. It and cuDNN allocate their scratch themselves, since its size is
   known only when a plan is made. */
static bool all(const pd_conv *c, pd_conv_part part) { return (void)c, (void)part, true; }
static size_t none(const pd_conv *c, pd_conv_part part) { return (void)c, (void)part, 0; }
static pd_status forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    return (void)scratch, pd_here()->conv(c, PD_CONV_FORWARD, x, w, bias, y), PD_OK;
}
static pd_status grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    return (void)scratch, pd_here()->conv(c, PD_CONV_INPUT, gy, w, NULL, gx), PD_OK;
}
static pd_status grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    return (void)scratch, pd_here()->conv(c, PD_CONV_WEIGHT, gy, x, NULL, gw), PD_OK;
}
static const pd_conv_backend own_conv = {"own", all, none, forward, grad_input, grad_weight};

static const pd_conv_backend *const *conv_backends(bool gpu) {
#define ON_CPU(isa) {&pd_winograd_##isa, &pd_conv_weight_##isa, &pd_onednn_conv, &pd_portable_conv, NULL}
    static const pd_conv_backend *const on_cpu[PD_ISA_COUNT][5] = {
        [PD_ISA_PORTABLE] = ON_CPU(portable),
#if defined(__x86_64__)
        [PD_ISA_AVX2] = ON_CPU(avx2),
        [PD_ISA_AVX512] = ON_CPU(avx512),
#endif
    };
    static const pd_conv_backend *const on_gpu[] = {&pd_cudnn_conv, &own_conv, NULL};
    return !gpu ? on_cpu[pd_cpu_isa()] : pd_device_here == &pd_device_meta ? on_gpu + 1 : on_gpu;
}

static const pd_conv_backend *first_for(const pd_conv *c, pd_conv_part part) {
    const pd_conv_backend *const *b = conv_backends(pd_device_here->kernels != NULL);
    while (!(*b)->takes(c, part)) b++;
    return *b;
}
static pd_status find(const pd_conv *c, pd_conv_part part, const pd_conv_backend **out) {
    *out = first_for(c, part);
    return pd_device_here->kernels ? PD_OK : pd_onednn_check_memory();
}

size_t pd_conv_scratch(const pd_conv *c, pd_conv_part part) { return first_for(c, part)->scratch(c, part); }
pd_status pd_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    const pd_conv_backend *b;
    PD_TRY(find(c, PD_CONV_FORWARD, &b));
    return b->forward(c, x, w, bias, y, scratch);
}
pd_status pd_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    const pd_conv_backend *b;
    PD_TRY(find(c, PD_CONV_INPUT, &b));
    return b->grad_input(c, gy, w, gx, scratch);
}
pd_status pd_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    const pd_conv_backend *b;
    PD_TRY(find(c, PD_CONV_WEIGHT, &b));
    return b->grad_weight(c, gy, x, gw, scratch);
}

/* ---- names ---- */

const char *pd_gemm_backend_name(bool gpu, int i) {
    const pd_gemm_backend *b = (gpu ? gemm_on_gpu : gemm_on_cpu)[i];
    return b ? b->name : NULL;
}
const char *pd_conv_backend_name(bool gpu, int i) {
    const pd_conv_backend *b = conv_backends(gpu)[i];
    return b ? b->name : NULL;
}
