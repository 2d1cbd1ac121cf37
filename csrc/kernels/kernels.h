/* Numeric kernels on raw pointers, sizes and strides. No tensors, no allocation: scratch is the caller's.

   pd_here() gives the table of the device that the op runs on (device/device.h): on the CPU pd_cpu(), that of the best
   instruction set that the processor and PYDIST_ISA allow (kernels/cpu is compiled once per set); on CUDA csrc/cuda's,
   whose pointers are to the device's memory, but for loop.h's cells, and whose functions launch: what they return or
   write to the host they wait for. Products and convolutions
   choose a backend at run time (kernels/backend.h).
   Every kernel may use pd_parallel; results do not depend on the number of threads. Types: unless said otherwise F32,
   F64, F16, BF16 (the last two compute in float) and, where "any" is said, the integers and BOOL too. Calls with a type
   that a kernel does not have are the caller's bug: ops/ checks dtypes first. */
#ifndef PD_KERNELS_KERNELS_H
#define PD_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "base/rng.h"
#include "base/status.h"
#include "device/bad_index.h"
#ifndef __cplusplus
#include "device/device.h"
#endif
#include "kernels/loop.h"

typedef enum pd_unary {
#define PD_UNARY(name, domain, fwd, saved, grad, doc) PD_UNARY_##name,
#include "kernels/unary.def"
#undef PD_UNARY
    PD_UNARY_COUNT
} pd_unary;

typedef enum pd_binary {
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc) PD_BINARY_##name,
#include "kernels/binary.def"
#undef PD_BINARY
    PD_BINARY_COUNT
} pd_binary;

typedef enum pd_compare {
#define PD_COMPARE(name, expr, doc) PD_COMPARE_##name,
#include "kernels/compare.def"
#undef PD_COMPARE
    PD_COMPARE_COUNT
} pd_compare;

typedef enum pd_ternary {
#define PD_TERNARY(name, ...) PD_TERNARY_##name,
#include "kernels/ternary.def"
#undef PD_TERNARY
    PD_TERNARY_COUNT
} pd_ternary;

#define PD_POINTWISE_PARAMS 3
typedef enum pd_pointwise {
#define PD_POINTWISE1(name, ...) PD_POINTWISE_##name,
#define PD_POINTWISE2(name, ...) PD_POINTWISE_##name,
#include "kernels/pointwise.def"
#undef PD_POINTWISE1
#undef PD_POINTWISE2
    PD_POINTWISE_COUNT
} pd_pointwise;

/* Parts of complex numbers: |x|, its angle; and x with the other imaginary part. */
typedef enum pd_complex_part { PD_COMPLEX_ABS, PD_COMPLEX_ANGLE, PD_COMPLEX_CONJ } pd_complex_part;

typedef enum pd_fold {
    PD_FOLD_SUM,
    PD_FOLD_MEAN,
    PD_FOLD_SQUARES, /* their sum; floats only */
    PD_FOLD_PROD,
    PD_FOLD_MAX,
    PD_FOLD_MIN,
    PD_FOLD_ANY,
    PD_FOLD_ALL
} pd_fold;

/* A contiguous block seen as [outer, n, inner]; the kernel works along n. */
typedef struct pd_block { int64_t outer, n, inner; } pd_block;

/* One piece of an optimizer's state: parallel arrays of n elements of one dtype; m, v, w are NULL where the method does
   not use them. SGD: m momentum. Adam: m mean of g, v of g^2, w the largest v. Adadelta: m mean of the squared steps, v
   of g^2. RMSprop: m momentum, v mean of g^2, w of g. Adagrad: v sum of g^2. Moments (NAdam, RAdam): m mean of g, v of
   g^2. Adamax: m mean of g, v the largest |g|, fading. ASGD: m mean of p. Rprop: m the last gradient, v the step. Lion:
   m mean of g. low (or NULL): where p is written as F16 or BF16 too. chance (or 0): BF16 results are rounded up or down
   by chance, drawn by it and by the element's index in the list; else to the nearest. */
typedef struct pd_segment_step {
    void *p, *g, *m, *v, *w;
    int64_t n;
    void *low;
    pd_dtype low_t;
    uint64_t chance;
    const float *skip; /* of a GPU: where it is not 0, nothing changes; NULL: always */
    /* Of a GPU, and the whole list's: the learning rate, and how many steps there were, this one being one more; NULL:
       those of the method's numbers, which are not looked at else. */
    const float *lr;
    float *step;
    float *own[2]; /* and numbers of the method, which its steps bring up to date: mu_product; eta and mu */
} pd_segment_step;
typedef struct pd_sgd { double lr, momentum, dampening, weight_decay; bool nesterov, maximize, first; } pd_sgd;
typedef struct pd_adam {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;
    bool amsgrad, decoupled, maximize;
} pd_adam;
typedef struct pd_adadelta { double lr, rho, eps, weight_decay; bool maximize; } pd_adadelta;
typedef struct pd_rmsprop { double lr, alpha, eps, weight_decay, momentum; bool centered, maximize; } pd_rmsprop;
typedef struct pd_adagrad { double lr, lr_decay, eps, weight_decay; int64_t step; bool maximize; } pd_adagrad;
/* NAdam (nesterov) or RAdam; mu_product: of the steps before this one (kernels/step_rules.h). */
typedef struct pd_moments {
    double lr, beta1, beta2, eps, weight_decay, momentum_decay, mu_product;
    int64_t step;
    bool nesterov, decoupled, maximize;
} pd_moments;
typedef struct pd_adamax { double lr, beta1, beta2, eps, weight_decay; int64_t step; bool maximize; } pd_adamax;
/* eta and mu: this step's; the rest is for those of the next one (kernels/step_rules.h). */
typedef struct pd_asgd {
    double eta, mu, lambd, weight_decay, lr, alpha, t0;
    int64_t step;
    bool maximize;
} pd_asgd;
typedef struct pd_rprop { double eta_minus, eta_plus, step_min, step_max; bool maximize; } pd_rprop;
typedef struct pd_lion { double lr, beta1, beta2, weight_decay; bool maximize; } pd_lion;

/* Batch normalisation over x[N, C, S] (contiguous) or x[N, S, C] (channels_last). Statistics in float (double for
   F64). */
/* params: of weight, bias, running statistics and the gradients of the first two; as x, or F32 where x has 16 bits. */
typedef struct pd_batch_norm { int64_t N, C, S; bool channels_last; double eps; pd_dtype params; } pd_batch_norm;

/* Rows [rows, n], each by its own mean (rms: 0) and deviation sqrt(var + eps). */
typedef struct pd_row_norm { int64_t rows, n; double eps; bool rms; } pd_row_norm;

/* x[N, C, S] (contiguous) or x[N, S, C] (channels_last), `groups` groups of the C channels of each of N images, each by
   its own mean and deviation. */
typedef struct pd_group_norm { int64_t N, C, S, groups; bool channels_last; double eps; } pd_group_norm;

/* One step of a recurrent layer over B rows of H, all dense, F32 or F64. x and u: the gates' parts from input and
   state, in PyTorch's order [B, gates, H]; gates: what the gradient needs of them, LSTM's i, f, g, o after their
   functions, GRU's r, z, n and the third of u. gh, gc: gradients of the new state, which become those of the old one,
   but for what passes through gu; g: a part of h1's still to be added, or NULL. LSTM and RNN have gu = gx. */
typedef enum pd_cell_kind { PD_RNN_TANH, PD_RNN_RELU, PD_LSTM, PD_GRU } pd_cell_kind;
typedef struct pd_cell {
    pd_dtype t;
    pd_cell_kind kind;
    int64_t B, H;
} pd_cell;
typedef struct pd_cell_step {
    const void *x, *u, *h0, *c0, *g;
    void *h1, *c1, *gates, *gh, *gc, *gx, *gu;
} pd_cell_step;

/* Attention over query[B, H, nq, d], key[B, Hkv, nk, d], value[B, Hkv, nk, dv], out and its gradient [B, H, nq, dv]:
   any strides (batch, head, row; rows dense), Hkv divides H. A mask [B, H, nq, nk], BOOL (which keys may be seen) or
   floats to be added, of any strides; causal: key j is seen by query i if j <= i. lse[B, H, nq]: float, double for
   F64. */
typedef struct pd_attention {
    pd_dtype t, mask_t;
    int64_t B, H, Hkv, nq, nk, d, dv, qs[3], ks[3], vs[3], os[3], gs[3], ms[4];
    double scale;
    bool causal;
} pd_attention;

/* Pooling of x[N, C, H, W] to y[N, C, P, Q], each contiguous or (nhwc) channels_last. The window of result p along rows
   has the taps p * stride - padding + r * dilation, r < kernel, of which those inside x count; adaptive: all of
   [floor(p H / P), ceil((p + 1) H / P)), at most kernel of them. A place is the tap r * kernel[1] + s that was largest,
   as a byte (fewer than 255 taps, else `wide`: int32), -1 for a window that lies outside altogether. divisor 0: the
   window's size. */
typedef struct pd_pool {
    pd_dtype t;
    int64_t N, C, H, W, P, Q, kernel[2], stride[2], padding[2], dilation[2], divisor;
    bool nhwc, adaptive, include_pad, wide;
} pd_pool;

/* Along the middle axis of x[outer, from, inner]: y[j] = sum of weight[j][k] x[index[j][k]] over k < taps, for j < to;
   transposed: y[index[j][k]] += weight[j][k] x[j]. F32 and F64; taps 1 (the weight then is 1) or even. */
typedef struct pd_resample {
    pd_dtype t;
    int64_t outer, from, to, inner, taps;
    bool transposed;
    const int64_t *index;
    const double *weight;
} pd_resample;

/* Places in memory that indices choose: base + sum of own[d] at[d] + sum of by[j].step times the index that by[j] has
   there, for `count` positions at[0], at[1], ... of `size`, in order from number `first` on, which begins a run of the
   last dimension; all in bytes, the indices' strides in elements. An index
   that lies outside [0, n) ([-n, n) where it wraps) is a bad one, unless it is `skip`; the place of both is -1. */
#define PD_PLACE_DIMS (2 * PD_MAX_DIMS)
typedef struct pd_chooser {
    const void *index;
    bool narrow, wraps; /* narrow: int32, else int64 */
    int64_t n, step, skip, dim, stride[PD_PLACE_DIMS]; /* skip: -1 for none; dim: as an error calls it */
} pd_chooser;
typedef struct pd_places {
    const char *op;
    pd_bad_kind kind;
    int ndim, nby;
    int64_t first, count, base, size[PD_PLACE_DIMS], own[PD_PLACE_DIMS];
    pd_chooser by[PD_MAX_DIMS];
} pd_places;
/* Index `value` of chooser c as a place: false for a bad one. */
PD_BOTH bool pd_choose(const pd_chooser *c, int64_t value, int64_t *place) {
    bool skips = value == c->skip && value >= 0;
    if (c->wraps && value < 0) value += c->n;
    if (skips || value < 0 || value >= c->n) *place = -1;
    else *place = value * c->step;
    return skips || *place >= 0;
}

/* Labels outside [0, C) other than ignore_index do not count, and are an error that pd_here()->labels finds. */
typedef struct pd_xent {
    int64_t rows, C;              /* logits[rows, C], contiguous; class along the last axis */
    const int64_t *target;        /* [rows] */
    const void *weight;           /* [C] of the logits' dtype, or NULL */
    int64_t ignore_index;
    double smoothing;             /* label smoothing, 0 for none */
} pd_xent;

/* C[b] = A[b] @ B[b] + bias (a row of N, or NULL), for b < batch; relu clamps at 0 afterwards. Strides in elements; a
   matrix must have one unit stride (transposed or not), or size 1 there. beta 1 adds to C, 0 overwrites it. Batch
   stride 0 broadcasts. F32, F64, F16, BF16 (fp32 accumulators). K = 0 gives bias or zeros. `deterministic` results: the
   same bits for any number of threads, also where K is long and M, N short. wide: C is F32 though A and B are F16 or
   BF16 (no bias then). */
typedef struct pd_gemm {
    pd_dtype t;
    int64_t batch, M, N, K;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row; /* C's columns are unit stride */
    bool relu, wide;
    int beta;
} pd_gemm;
#ifndef __cplusplus
/* Of dense matrices: A [M, K], or [K, M] where turned; B [K, N], or [N, K] where turned; C [M, N]. */
static inline pd_gemm pd_gemm_dense(pd_dtype t, int64_t M, int64_t N, int64_t K, bool a_turned, bool b_turned) {
    return (pd_gemm){.t = t, .batch = 1, .M = M, .N = N, .K = K, .a_row = a_turned ? 1 : K, .a_col = a_turned ? M : 1,
                     .b_row = b_turned ? 1 : N, .b_col = b_turned ? K : 1, .c_row = N};
}
#endif
static inline pd_dtype pd_gemm_result(const pd_gemm *c) { return c->wide ? PD_F32 : c->t; }

/* 2-D convolution, x[N, C, H, W], w[K, C / groups, R, S], y[N, K, P, Q]; each image contiguous or channels_last
   (nhwc). */
typedef struct pd_conv {
    pd_dtype t;
    int64_t N, C, H, W, K, R, S, P, Q, groups, stride[2], padding[2], dilation[2];
    bool x_nhwc, y_nhwc, w_nhwc;
} pd_conv;
/* gx of gy and w; gw of gy and x. */
typedef enum pd_conv_part { PD_CONV_FORWARD, PD_CONV_INPUT, PD_CONV_WEIGHT } pd_conv_part;

/* What a row of kernels.def is where its kernel is on that device; nothing else. */
#define PD_ON_CPU_both(...) __VA_ARGS__
#define PD_ON_CPU_cpu(...) __VA_ARGS__
#define PD_ON_CPU_cuda(...)
#define PD_ON_CUDA_both(...) __VA_ARGS__
#define PD_ON_CUDA_cpu(...)
#define PD_ON_CUDA_cuda(...) __VA_ARGS__

/* A device's kernels: kernels.def says what each does. */
typedef struct pd_kernels {
#define PD_KERNEL(devices, result, name, ...) result (*name)(__VA_ARGS__);
#include "kernels/kernels.def"
#undef PD_KERNEL
} pd_kernels;

/* Differs between tables that a caller could confuse: of other members, or other functions behind the numbers. */
#define PD_KERNELS_LAYOUT                                                                        \
    (sizeof(pd_kernels) + UINT64_C(1000) * PD_UNARY_COUNT + UINT64_C(100000) * PD_BINARY_COUNT + \
     UINT64_C(10000000) * PD_POINTWISE_COUNT + UINT64_C(1000000000) * PD_COMPARE_COUNT +         \
     UINT64_C(100000000000) * PD_TERNARY_COUNT)

#ifndef __cplusplus /* csrc/cuda, which fills a table and calls none */
const pd_kernels *pd_cpu(void);
static inline const pd_kernels *pd_here(void) { return pd_device_here->kernels ? pd_device_here->kernels : pd_cpu(); }

/* n contiguous elements of one type as another. */
static inline void pd_convert(pd_dtype to, pd_dtype from, int64_t n, const void *x, void *out) {
    pd_loop l = {.ndim = 1, .nop = 2, .numel = n, .size = {n}, .ptr = {out, (char *)(uintptr_t)x}};
    l.stride[0][0] = (int64_t)pd_dtype_size(to);
    l.stride[1][0] = (int64_t)pd_dtype_size(from);
    pd_here()->copy(to, from, &l);
}

/* n contiguous elements times *factor, a number of their type. */
static inline void pd_multiply(pd_dtype t, int64_t n, const void *factor, void *x) {
    pd_loop l = {.ndim = 1, .nop = 3, .cells = 4, .numel = n, .size = {n}, .ptr = {x, x, (char *)(uintptr_t)factor}};
    l.stride[0][0] = l.stride[1][0] = (int64_t)pd_dtype_size(t);
    pd_here()->binary(PD_BINARY_mul, t, 1, &l);
}
#endif

/* What a GPU's libraries may do, under PyTorch's names. */
typedef struct pd_gpu_settings {
    bool matmul_tf32, conv_tf32; /* F32 by tensor cores, with factors of 10 bits */
    bool conv_tune;              /* cudnn.benchmark */
    bool conv_own;               /* our own convolutions: not cudnn.enabled */
} pd_gpu_settings;
extern pd_gpu_settings pd_gpu;
/* "13.1.0", opened now if that has not been tried; NULL, and why, where our own kernels serve. */
const char *pd_cublaslt_version(const char **why);
const char *pd_cudnn_version(const char **why);

size_t pd_gemm_scratch(const pd_gemm *c); /* bytes, 64-byte aligned */
pd_status pd_gemm_run(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch);
/* The same, and sums[m] (in C's type): of A's row m, where a library of a GPU makes them in passing; *done: whether one
   did, else nothing was written. One batch, scratch as for pd_gemm_run. */
pd_status pd_gemm_with_sums(const pd_gemm *c, const void *A, const void *B, void *sums, void *C, void *scratch,
                            bool *done);

/* The three parts of a 2-D convolution. */
size_t pd_conv_scratch(const pd_conv *c, pd_conv_part part);
pd_status pd_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch);
pd_status pd_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch);
pd_status pd_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch);

/* Where oneDNN may lie, tried in order at first use (py/ fills it from importlib.metadata and sys.prefix); copied. */
void pd_onednn_paths(const char *const *paths, int count);
/* Opens it now if that has not been tried. "3.2.0 (OMP)" or NULL where the portable kernels serve. */
const char *pd_onednn_version(void);
/* Primitives in the cache, and emptying it (for the leak tests). */
int64_t pd_onednn_cached(void);
void pd_onednn_trim(void);

#endif
