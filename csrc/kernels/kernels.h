/* Numeric kernels on raw pointers, sizes and strides. They know no tensors and allocate nothing: callers give scratch.

   pd_here() returns the table of the device that the op runs on (device/device.h). On the CPU that is pd_cpu(), the
   table of the best instruction set that the processor and PYDIST_ISA allow; kernels/cpu is compiled once for each set.
   On CUDA it is the table of csrc/cuda: pointers are to the device's memory, except cells (loop.h), and functions only
   launch; they wait for what they return or write to the host. Products and convolutions choose a backend at run time
   (kernels/backend.h).

   A kernel may use pd_parallel; results do not depend on the number of threads. Kernels take F32, F64, F16 and BF16, of
   which the last two compute in float; where "any" is said, also the integers and BOOL. A call with another type is the
   caller's bug, since ops/ checks dtypes first. */
#ifndef PD_KERNELS_KERNELS_H
#define PD_KERNELS_KERNELS_H

#include "base/dtype.h"
#include "base/host_device.h"
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

/* |x|, the angle of x, and the conjugate of x. */
typedef enum pd_complex_part { PD_COMPLEX_ABS, PD_COMPLEX_ANGLE, PD_COMPLEX_CONJ } pd_complex_part;

typedef enum pd_fold {
    PD_FOLD_SUM,
    PD_FOLD_MEAN,
    PD_FOLD_SQUARES, /* the sum of squares; floats only */
    PD_FOLD_PROD,
    PD_FOLD_MAX,
    PD_FOLD_MIN,
    PD_FOLD_ANY,
    PD_FOLD_ALL
} pd_fold;

/* A contiguous block as [outer, n, inner]; the kernel works along n. */
typedef struct pd_block { int64_t outer, n, inner; } pd_block;

/* How the elements of a part count in what it is a part of: runs of `run` elements begin `row` numbers apart, the
   first one at `first`; run 0: it is one run. */
typedef struct pd_numbering { int64_t first, run, row; } pd_numbering;
PD_BOTH int64_t pd_number_of(const pd_numbering *n, int64_t i) {
    return n->run ? n->first + i / n->run * n->row + i % n->run : n->first + i;
}

/* One piece of an optimizer's state: arrays of n elements of one dtype. m, v, w are NULL if the method does not use
   them.

       method         m                          v                      w
       SGD            momentum
       Adam           mean of g                  mean of g^2            the largest v
       Adadelta       mean of squared steps      mean of g^2
       RMSprop        momentum                   mean of g^2            mean of g
       Adagrad                                   sum of g^2
       NAdam, RAdam   mean of g                  mean of g^2
       Adamax         mean of g                  largest |g|, decaying
       ASGD           mean of p
       Rprop          last gradient              step
       Lion           mean of g

   Some methods have a flag `keras`: Keras' formula, which places eps elsewhere. Then m of SGD and RMSprop includes the
   learning rate.

   low: NULL, or memory to which p is also written, as F16 or BF16. chance: 0, or the key of stochastic rounding: BF16
   results are rounded up or down at random, by this key and the element's number (drawn), which does not depend on how
   a parameter is cut over ranks. */
typedef struct pd_segment_step {
    void *p, *g, *m, *v, *w;
    int64_t n;
    void *low;
    pd_dtype low_t;
    uint64_t chance;
    pd_numbering drawn;
    const float *skip; /* GPU only: if it is not 0, the step changes nothing; may be NULL */
    /* GPU only, shared by the whole list: learning rate and number of earlier steps; NULL: use the method's struct. */
    const float *lr;
    float *step;
    float *own[2]; /* numbers of the method that the step updates: mu_product; eta and mu */
} pd_segment_step;
typedef struct pd_sgd { double lr, momentum, dampening, weight_decay; bool nesterov, maximize, first, keras; } pd_sgd;
typedef struct pd_adam {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step;
    bool amsgrad, decoupled, maximize, keras;
} pd_adam;
typedef struct pd_adadelta { double lr, rho, eps, weight_decay; bool maximize; } pd_adadelta;
typedef struct pd_rmsprop { double lr, alpha, eps, weight_decay, momentum; bool centered, maximize, keras; } pd_rmsprop;
typedef struct pd_adagrad { double lr, lr_decay, eps, weight_decay; int64_t step; bool maximize, keras; } pd_adagrad;
/* NAdam (nesterov) or RAdam. mu_product: that of the earlier steps (kernels/step_rules.h). */
typedef struct pd_moments {
    double lr, beta1, beta2, eps, weight_decay, momentum_decay, mu_product;
    int64_t step;
    bool nesterov, decoupled, maximize;
} pd_moments;
typedef struct pd_adamax { double lr, beta1, beta2, eps, weight_decay; int64_t step; bool maximize, keras; } pd_adamax;
/* eta and mu: of this step; the other numbers give those of the next step (kernels/step_rules.h). */
typedef struct pd_asgd {
    double eta, mu, lambd, weight_decay, lr, alpha, t0;
    int64_t step;
    bool maximize;
} pd_asgd;
typedef struct pd_rprop { double eta_minus, eta_plus, step_min, step_max; bool maximize; } pd_rprop;
typedef struct pd_lion { double lr, beta1, beta2, weight_decay; bool maximize; } pd_lion;

/* Batch normalisation over x[N, C, S] (contiguous) or x[N, S, C] (channels_last). Statistics are float, or double for
   F64. */
/* params: the dtype of weight, bias, their gradients, and running statistics: x's dtype, or F32 if x has 16 bits. */
typedef struct pd_batch_norm { int64_t N, C, S; bool channels_last; double eps; pd_dtype params; } pd_batch_norm;

/* Rows [rows, n]: s = x + y, and s normalised by its own mean (rms: 0) and deviation sqrt(var + eps). The dtypes: of x,
   y, s, weight and bias, and of the normalised rows; F64 for all of them or for none. Without y, s is x. low: the dtype
   of a copy of the normalised rows, F16 or BF16, if there is one. */
typedef struct pd_row_norm {
    int64_t rows, n;
    double eps;
    bool rms;
    pd_dtype x, y, s, w, out, low;
} pd_row_norm;

/* x[N, C, S] (contiguous) or x[N, S, C] (channels_last). The C channels of each of N images form `groups` groups, each
   normalised by its own mean and deviation. */
typedef struct pd_group_norm { int64_t N, C, S, groups; bool channels_last; double eps; } pd_group_norm;

/* One step of a recurrent layer over B rows of H, all dense, F32 or F64. x and u: the gates' summands from input and
   from state, in PyTorch's order [B, gates, H]. gates: what the gradient needs: i, f, g, o of an LSTM after their
   functions; r, z, n of a GRU and the third of u. gh, gc: on entry the gradients of the new state, on return those of
   the old one, without the part that goes through gu. g: another gradient of h1 to be added, or NULL. LSTM and RNN have
   gu = gx.

   keep[B]: rows with 0 make no step: their state stays, and the gradients of their gates are 0. NULL: all rows make
   one; then LSTM and RNN do not write gh, which would be 0. */
typedef enum pd_cell_kind { PD_RNN_TANH, PD_RNN_RELU, PD_LSTM, PD_GRU } pd_cell_kind;
typedef struct pd_cell {
    pd_dtype t;
    pd_cell_kind kind;
    int64_t B, H;
} pd_cell;
typedef struct pd_cell_step {
    const void *x, *u, *h0, *c0, *g;
    const uint8_t *keep;
    void *h1, *c1, *gates, *gh, *gc, *gx, *gu;
} pd_cell_step;

/* Attention over query[B, H, nq, d], key[B, Hkv, nk, d], value[B, Hkv, nk, dv], out[B, H, nq, dv]: these and their
   gradients have any strides for batch, head and row, but rows are dense; Hkv divides H. mask[B, H, nq, nk], of any
   strides: BOOL (true: the query may see the key), or floats that are added. causal: query i may see key j if j <= i.
   lse[B, H, nq]: float, or double for F64. */
typedef struct pd_attention {
    pd_dtype t, mask_t;
    int64_t B, H, Hkv, nq, nk, d, dv, qs[3], ks[3], vs[3], os[3], gs[3], ms[4];
    int64_t gqs[3], gks[3], gvs[3]; /* of the gradients of q, k and v */
    /* of these: NULL, or, on a GPU, memory for sums over batches and rows, [heads, width]; not for F64 */
    float *sums[3];
    double scale;
    bool causal;
} pd_attention;

/* Pooling of x[N, C, H, W] to y[N, C, P, Q], each contiguous or (nhwc) channels_last. Along rows, the window of result
   p has the taps p * stride - padding + r * dilation for r < kernel; those inside x count. adaptive: its taps are
   [floor(p H / P), ceil((p + 1) H / P)), at most `kernel` of them. A place is the number r * kernel[1] + s of the
   largest tap, -1 for a window outside x. It is a byte, or, with 255 taps or more (`wide`), an int32. divisor 0: the
   window's size. */
typedef struct pd_pool {
    pd_dtype t;
    int64_t N, C, H, W, P, Q, kernel[2], stride[2], padding[2], dilation[2], divisor;
    bool nhwc, adaptive, include_pad, wide;
} pd_pool;

/* Along the middle axis of x[outer, from, inner], for j < to: y[j] = sum of weight[j][k] x[index[j][k]] over k < taps.
   transposed: y[index[j][k]] += weight[j][k] x[j]. F32 and F64. taps is even, or 1 with weight 1. */
typedef struct pd_resample {
    pd_dtype t;
    int64_t outer, from, to, inner, taps;
    bool transposed;
    const int64_t *index;
    const double *weight;
} pd_resample;

/* Places in memory that indices choose. They are computed for `count` positions at[] of an index space of shape `size`,
   in order, from number `first` on, which must begin a run of the last dimension. The place of a position, in bytes, is

       base + sum over d of own[d] * at[d] + sum over j of by[j].step * (the index of by[j] at this position)

   The indices' strides count elements. An index outside [0, n), or outside [-n, n) if it wraps, is bad, unless it is
   `skip`; both give the place -1. With `all` over 0 the n things are those from `first` on of so many: an index outside
   [0, all) is bad, and one of another thing has the place -1. */
#define PD_PLACE_DIMS (2 * PD_MAX_DIMS)
typedef struct pd_chooser {
    const void *index;
    bool narrow, wraps; /* narrow: int32, else int64 */
    int64_t n, step, skip, dim, stride[PD_PLACE_DIMS]; /* skip: -1 for none; dim: the dimension's number in messages */
    int64_t first, all;
} pd_chooser;
typedef struct pd_places {
    const char *op;
    pd_bad_kind kind;
    int ndim, nby;
    int64_t first, count, base, size[PD_PLACE_DIMS], own[PD_PLACE_DIMS];
    pd_chooser by[PD_MAX_DIMS];
} pd_places;
/* Turns index `value` of chooser c into a place; false: the index is bad. */
PD_BOTH bool pd_choose(const pd_chooser *c, int64_t value, int64_t *place) {
    const bool skip = value == c->skip && value >= 0;
    if (c->wraps && value < 0) value += c->n;
    const int64_t own = value < 0 ? -1 : value - c->first;
    const bool inside = own >= 0 && own < c->n, skips = skip || (!inside && value >= 0 && value < c->all);
    *place = inside && !skip ? own * c->step : -1;
    return skips || *place >= 0;
}

/* place[tokens, each]: where the copies of rows [tokens, width] are among `rows` rows, -1 for none. */
typedef struct pd_route {
    int64_t tokens, each, rows, width;
    const int64_t *place;
} pd_route;

/* Labels other than ignore_index and outside [0, C) do not count; pd_here()->labels finds them and fails. */
typedef struct pd_xent {
    int64_t rows, C;              /* logits[rows, C], contiguous; class along the last axis */
    const int64_t *target;        /* [rows] */
    const void *weight;           /* [C], of the logits' dtype, or NULL */
    int64_t ignore_index;
    double smoothing;             /* label smoothing; 0: none */
    bool wide;                    /* losses and their gradient are F32, the logits F16 or BF16; no weight */
} pd_xent;

/* Columns [first, first + columns) of logits of all classes, those of rank `rank` of `ranks`. T is double for F64, else
   float. */
typedef struct pd_vocab {
    int64_t rows, columns, first, classes; /* logits[rows, columns], contiguous */
    const int64_t *target;                 /* [rows], classes of the whole */
    const void *weight;                    /* T[classes], or NULL */
    int64_t ignore_index;
    double smoothing;
    int rank, ranks, each; /* each: numbers that a rank finds for a row: 3, or 4 with smoothing */
    size_t apart;          /* bytes between what two ranks found */
    const double *weights; /* [ranks] with smoothing: the sum of the weights of each rank's columns */
} pd_vocab;

/* C[b] = A[b] @ B[b] + bias, for b < batch. bias is a row of N, or NULL; relu clamps at 0 afterwards. Strides count
   elements; one stride of a matrix must be 1, unless that dimension has size 1. beta 1 adds to C, 0 overwrites it. A
   batch stride of 0 broadcasts. F32, F64, F16, BF16; the last two are added in F32. K = 0 gives bias or zeros. The bits
   are the same for any number of threads, even if K is long and M, N are short. wide: C is F32 while A and B are F16 or
   BF16; there is no bias then. reuse: for products with the same B and scratch, the first of them and those after it,
   which may use what the first one packed there. */
typedef enum { PD_GEMM_ONCE, PD_GEMM_FIRST, PD_GEMM_AGAIN } pd_gemm_reuse;
typedef struct pd_gemm {
    pd_dtype t;
    int64_t batch, M, N, K;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col, c_batch, c_row; /* C's columns are unit stride */
    bool relu, wide;
    int beta;
    pd_gemm_reuse reuse;
} pd_gemm;
#ifndef __cplusplus
/* The product of dense matrices: A [M, K], or [K, M] if turned; B [K, N], or [N, K] if turned; C [M, N]. */
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
/* FORWARD: y from x and w. INPUT: gx from gy and w. WEIGHT: gw from gy and x. */
typedef enum pd_conv_part { PD_CONV_FORWARD, PD_CONV_INPUT, PD_CONV_WEIGHT } pd_conv_part;

/* A sum of arrays of n elements in the order of a tree (comm/algo/reduce.h), times scale; only floats have one that is
   not 1. Input at[0] is own[0], input at[1] own[1] (at -1: there is none; own NULL: it is zeros), and the others, in
   order, are at `in`, in + apart, ... bytes. After input k come sums[k] additions, each of the latest two partial sums;
   no more than PD_TREE_DEPTH of them wait at a time. The last input has the dtype `last`, which is t, or F16 or BF16
   where t is F32. out may be one of the inputs. */
#define PD_TREE_INPUTS 1024
#define PD_TREE_DEPTH 12
typedef struct pd_sum_tree {
    int64_t n, apart;
    const void *in, *own[2];
    void *out;
    double scale;
    pd_dtype last;
    int inputs;
    int16_t at[2];
    uint8_t sums[PD_TREE_INPUTS];
} pd_sum_tree;

/* Expand to the arguments if a row's kernel is on that device, else to nothing. */
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

/* A number that differs between tables with other members or another numbering of functions. */
#define PD_KERNELS_LAYOUT                                                                        \
    (sizeof(pd_kernels) + UINT64_C(1000) * PD_UNARY_COUNT + UINT64_C(100000) * PD_BINARY_COUNT + \
     UINT64_C(10000000) * PD_POINTWISE_COUNT + UINT64_C(1000000000) * PD_COMPARE_COUNT +         \
     UINT64_C(100000000000) * PD_TERNARY_COUNT)

#ifndef __cplusplus /* csrc/cuda, which fills a table and calls none */
const pd_kernels *pd_cpu(void);
static inline const pd_kernels *pd_here(void) { return pd_device_here->kernels ? pd_device_here->kernels : pd_cpu(); }

/* Converts n contiguous elements from one type to another. */
static inline void pd_convert(pd_dtype to, pd_dtype from, int64_t n, const void *x, void *out) {
    pd_loop l = {.ndim = 1, .nop = 2, .numel = n, .size = {n}, .ptr = {out, (char *)(uintptr_t)x}};
    l.stride[0][0] = (int64_t)pd_dtype_size(to);
    l.stride[1][0] = (int64_t)pd_dtype_size(from);
    pd_here()->copy(to, from, &l);
}

/* Multiplies n contiguous elements by *factor, a cell (loop.h). */
static inline void pd_multiply(pd_dtype t, int64_t n, const void *factor, void *x) {
    pd_loop l = {.ndim = 1, .nop = 3, .cells = 4, .numel = n, .size = {n}, .ptr = {x, x, (char *)(uintptr_t)factor}};
    l.stride[0][0] = l.stride[1][0] = (int64_t)pd_dtype_size(t);
    pd_here()->binary(PD_BINARY_mul, t, 1, &l);
}
#endif

/* What a GPU's libraries may do, under PyTorch's names. */
typedef struct pd_gpu_settings {
    bool matmul_tf32, conv_tf32; /* F32 on tensor cores, whose factors have 10 bits */
    bool conv_tune;              /* cudnn.benchmark */
    bool conv_own;               /* use our own convolutions (cudnn.enabled is false) */
    bool matmul_tune;            /* cuda.tunable.enable: the algorithms of products are timed */
} pd_gpu_settings;
extern pd_gpu_settings pd_gpu;
/* "13.1.0", after opening the library if that was not tried before. NULL, and *why, if our own kernels are used. */
const char *pd_cublaslt_version(const char **why);
const char *pd_cudnn_version(const char **why);
/* The name of the i-th backend for products (for convolutions), in their order of preference; NULL behind the last. */
const char *pd_gemm_backend_name(bool gpu, int i);
const char *pd_conv_backend_name(bool gpu, int i);

size_t pd_gemm_scratch(const pd_gemm *c); /* bytes, 64-byte aligned */
pd_status pd_gemm_run(const pd_gemm *c, const void *A, const void *B, const void *bias, void *C, void *scratch);
/* pd_gemm_run that also computes sums[m], in C's type, of A's row m, if a GPU's library can do that on its way. *done:
   whether one did; if not, nothing was written. For one batch; scratch as for pd_gemm_run. makes_sums: whether to
   try. */
bool pd_gemm_makes_sums(const pd_gemm *c);
pd_status pd_gemm_with_sums(const pd_gemm *c, const void *A, const void *B, void *sums, void *C, void *scratch,
                            bool *done);

/* The three parts of a 2-D convolution. */
size_t pd_conv_scratch(const pd_conv *c, pd_conv_part part);
pd_status pd_conv_forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch);
pd_status pd_conv_grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch);
pd_status pd_conv_grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch);

/* Sets the files that may be oneDNN, tried in order at first use (pydist/_onednn.py finds them). They are copied. */
void pd_onednn_paths(const char *const *paths, int count);
/* "3.2.0 (OMP)", after opening oneDNN if that was not tried before; NULL: the portable kernels are used. */
const char *pd_onednn_version(void);
/* The number of primitives in the cache; and empties it, for the leak tests. */
int64_t pd_onednn_cached(void);
void pd_onednn_trim(void);

#endif
