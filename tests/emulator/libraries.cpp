/* For tests: cuBLASLt and cuDNN over the emulated device, as far as pydist calls them (PYDIST_CUBLASLT and PYDIST_CUDNN name
   the emulator's library). Written from their documentation: what they are told is taken at its word, so a wrong description gives
   wrong numbers. Sums are made in double. Some of what the heuristics propose fails, or must not be taken. */
#include <unistd.h>

#include <map>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "count.h"
#include "cuda_runtime.h"
#include "kernels/cublaslt/lt.h"
#include "kernels/cudnn/dnn.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
enum { OK = 0, INVALID = 7, UNSUPPORTED = 15, BAD = 2000 };

/* ---- numbers ---- */

enum kind { K_F32, K_F64, K_F16, K_BF16, K_NONE };
static double get(kind k, const void *p, int64_t i) {
    switch (k) {
    case K_F64: return ((const double *)p)[i];
    case K_F32: return ((const float *)p)[i];
    case K_F16: return pd_f16_to_f32(((const pd_f16 *)p)[i]);
    default: return pd_bf16_to_f32(((const pd_bf16 *)p)[i]);
    }
}
static void put(kind k, void *p, int64_t i, double v) {
    switch (k) {
    case K_F64: ((double *)p)[i] = v; break;
    case K_F32: ((float *)p)[i] = (float)v; break;
    case K_F16: ((pd_f16 *)p)[i] = pd_f32_to_f16((float)v); break;
    default: ((pd_bf16 *)p)[i] = pd_f32_to_bf16((float)v);
    }
}
static double size_of(kind k) { return k == K_F64 ? 8 : k == K_F32 ? 4 : 2; }
static const char *name_of(kind k) { return k == K_F64 ? "float64" : k == K_F32 ? "float32" : k == K_F16 ? "float16" : "bfloat16"; }
static double tf32(double v) { /* 10 bits of fraction */
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits &= ~UINT32_C(0x1fff);
    memcpy(&f, &bits, 4);
    return f;
}

/* ---- cuBLASLt ---- */

struct lt_layout {
    kind type;
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t count;
};
struct lt_desc {
    int compute, scale;
    int32_t turned[2];
    uint32_t epilogue;
    const void *bias;
};
struct lt_preference {
    uint64_t workspace;
    uint32_t reductions;
};

/* For tests, who find them by name: how often algorithms were asked for, descriptors that live, bits of the algorithms
   (0 to 2), of sums made in passing (3) and of all else (4) that take 3 ms, or that are refused when they are to run, and
   the algorithm that ran last. */
extern "C" {
__attribute__((visibility("default"))) int pd_lt_proposals, pd_lt_living, pd_lt_slow, pd_lt_refused, pd_lt_served;
}

static kind lt_kind(int type) { return type == LT_R_32F ? K_F32 : type == LT_R_64F ? K_F64 : type == LT_R_16F ? K_F16 : type == LT_R_16BF ? K_BF16 : K_NONE; }

/* EMULATED_LT: another version */
EXPORT size_t cublasLtGetVersion() { return getenv("EMULATED_LT") ? atol(getenv("EMULATED_LT")) : 130100; }
EXPORT int cublasLtCreate(void **handle) {
    *handle = malloc(1);
    return OK;
}
EXPORT int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    if (lt_kind(type) == K_NONE || ld < (int64_t)rows) return INVALID;
    *out = new lt_layout{lt_kind(type), rows, cols, ld, 0, 1};
    return OK;
}
EXPORT int cublasLtMatrixLayoutDestroy(void *layout) {
    delete (lt_layout *)layout;
    return OK;
}
template <class T> static int take(T *to, const void *value, size_t bytes) {
    if (bytes != sizeof(T)) return INVALID;
    memcpy(to, value, bytes);
    return OK;
}
EXPORT int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes) {
    lt_layout *l = (lt_layout *)layout;
    if (attribute == LT_LAYOUT_BATCH_COUNT) return take(&l->count, value, bytes);
    return attribute == LT_LAYOUT_STRIDED_BATCH_OFFSET ? take(&l->stride, value, bytes) : INVALID;
}
EXPORT int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    pd_lt_living++;
    *out = new lt_desc{compute, scale, {LT_OP_N, LT_OP_N}, LT_EPILOGUE_DEFAULT, nullptr};
    return OK;
}
EXPORT int cublasLtMatmulDescDestroy(void *desc) {
    pd_lt_living--;
    delete (lt_desc *)desc;
    return OK;
}
EXPORT int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes) {
    lt_desc *d = (lt_desc *)desc;
    if (attribute == LT_DESC_TRANSA || attribute == LT_DESC_TRANSB) return take(&d->turned[attribute - LT_DESC_TRANSA], value, bytes);
    if (attribute == LT_DESC_EPILOGUE) return take(&d->epilogue, value, bytes);
    return attribute == LT_DESC_BIAS_POINTER ? take(&d->bias, value, bytes) : INVALID;
}
EXPORT int cublasLtMatmulPreferenceCreate(void **out) {
    *out = new lt_preference{0, 7};
    return OK;
}
EXPORT int cublasLtMatmulPreferenceDestroy(void *preference) {
    delete (lt_preference *)preference;
    return OK;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    uint32_t alignment;
    if (attribute == LT_PREF_MAX_WORKSPACE_BYTES) return take(&((lt_preference *)preference)->workspace, value, bytes);
    if (attribute == LT_PREF_REDUCTION_SCHEME_MASK) return take(&((lt_preference *)preference)->reductions, value, bytes);
    return attribute >= LT_PREF_MIN_ALIGNMENT_A_BYTES && attribute <= LT_PREF_MIN_ALIGNMENT_A_BYTES + 3 ? take(&alignment, value, bytes) : INVALID;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *, void *desc, void *, void *, void *c, void *, void *preference, int wanted, lt_heuristic *out, int *found) {
    const lt_desc *d = (lt_desc *)desc;
    const kind result = ((lt_layout *)c)->type;
    *found = 0;
    pd_lt_proposals++;
    if ((result == K_F16 || result == K_BF16) && ((lt_preference *)preference)->reductions != LT_REDUCTION_COMPUTE_TYPE) return INVALID;
    if (d->epilogue != LT_EPILOGUE_DEFAULT && !d->bias) return INVALID; /* its alignment would not be known */
    for (; *found < wanted && *found < 3; ++*found) {
        out[*found] = lt_heuristic{};
        out[*found].algo.data[0] = 40 + (uint64_t)*found;
        out[*found].workspace = ((lt_preference *)preference)->workspace;
    }
    return OK;
}

struct lt_call {
    lt_desc d;
    lt_layout a, b, c;
    const void *A, *B, *C;
    void *D;
    double alpha, beta;
};
static void lt_run(const lt_call &r) {
    auto at = [](const lt_layout &l, int32_t batch, bool turned, uint64_t i, uint64_t j) {
        return batch * l.stride + (int64_t)(turned ? j : i) + (int64_t)(turned ? i : j) * l.ld;
    };
    uint64_t K = r.d.turned[0] ? r.a.rows : r.a.cols;
    bool rounds = r.d.compute == LT_COMPUTE_32F_FAST_TF32;
    for (uint64_t j = 0; r.d.epilogue == LT_EPILOGUE_BGRADB && j < r.c.cols; j++) {
        double sum = 0;
        for (uint64_t k = 0; k < K; k++) sum += get(r.b.type, r.B, at(r.b, 0, r.d.turned[1], k, j));
        put(r.c.type, (void *)(uintptr_t)r.d.bias, (int64_t)j, sum);
    }
    for (int32_t n = 0; n < r.c.count; n++)
        for (uint64_t i = 0; i < r.c.rows; i++)
            for (uint64_t j = 0; j < r.c.cols; j++) {
                double sum = 0;
                for (uint64_t k = 0; k < K; k++) {
                    double x = get(r.a.type, r.A, at(r.a, n, r.d.turned[0], i, k)), y = get(r.b.type, r.B, at(r.b, n, r.d.turned[1], k, j));
                    sum += rounds ? tf32(x) * tf32(y) : x * y;
                }
                int64_t to = at(r.c, n, false, i, j);
                sum = r.alpha * sum + (r.beta != 0 ? r.beta * get(r.c.type, r.C, to) : 0);
                if (r.d.epilogue == LT_EPILOGUE_BIAS) sum += get(r.c.type, r.d.bias, (int64_t)i);
                put(r.c.type, r.D, to, sum);
            }
}
/* Each operand once; C only where it is added to. */
static pd_work lt_work(const lt_call &r, uint64_t k) {
    auto bytes = [](const lt_layout &l) { return (double)l.count * (double)(l.rows * l.cols) * size_of(l.type); };
    double out = bytes(r.c),
           bias = r.d.epilogue == LT_EPILOGUE_DEFAULT
                      ? 0
                      : (double)(r.d.epilogue == LT_EPILOGUE_BGRADB ? r.c.cols : r.c.rows) * size_of(r.c.type);
    bool sums = r.d.epilogue == LT_EPILOGUE_BGRADB;
    return {std::string("product ") + name_of(r.a.type) + (r.c.type != r.a.type ? " to float32" : ""),
            bytes(r.a) + bytes(r.b) + (r.beta != 0 ? out : 0) + (sums ? 0 : bias), out + (sums ? bias : 0),
            2.0 * (double)r.c.count * (double)(r.c.rows * r.c.cols * k), 1};
}
EXPORT int cublasLtMatmul(void *, void *desc, const void *alpha, const void *A, void *a, const void *B, void *b,
                          const void *beta, const void *C, void *c, void *D, void *d, const lt_algo *algo,
                          void *workspace, size_t bytes, void *stream) {
    lt_call r = {*(lt_desc *)desc, *(lt_layout *)a, *(lt_layout *)b, *(lt_layout *)c, A, B, C, D, 0, 0};
    bool wide = r.d.scale == LT_R_64F;
    uint64_t m = r.d.turned[0] ? r.a.cols : r.a.rows, k = r.d.turned[0] ? r.a.rows : r.a.cols;
    uint64_t kb = r.d.turned[1] ? r.b.cols : r.b.rows, n = r.d.turned[1] ? r.b.rows : r.b.cols;
    if (m != r.c.rows || n != r.c.cols || k != kb || c != d || r.a.count != r.c.count || r.b.count != r.c.count) return INVALID;
    if ((wide ? r.a.type != K_F64 || r.d.compute != LT_COMPUTE_64F : r.a.type == K_F64) || r.a.type != r.b.type) return INVALID;
    if (r.c.type != r.a.type && r.c.type != K_F32) return INVALID;
    if (r.d.epilogue == LT_EPILOGUE_BGRADB && (r.c.count != 1 || algo->data[0] == 40)) return UNSUPPORTED;
    if (!workspace || bytes < (1 << 20) || algo->data[0] < 40 || algo->data[0] > 42) return INVALID;
    if (algo->data[0] == 41) return UNSUPPORTED; /* proposed, but not to be had */
    const int bits = 1 << (algo->data[0] - 40) | (r.d.epilogue == LT_EPILOGUE_BGRADB ? 8 : 16);
    if (pd_lt_refused & bits) return UNSUPPORTED;
    if (pd_lt_slow & bits) usleep(3000);
    pd_lt_served = (int)algo->data[0] - 40;
    r.alpha = wide ? *(const double *)alpha : *(const float *)alpha;
    r.beta = wide ? *(const double *)beta : *(const float *)beta;
    if (pd_counts()) pd_count(lt_work(r, k));
    pd_emulate_work((cudaStream_t)stream, [=] { lt_run(r); });
    return OK;
}

/* ---- cuDNN ---- */

struct dnn_item { int type; std::vector<char> bytes; };
struct dnn_desc {
    int type;
    bool done;
    int engine; /* of an engine, a configuration or a plan */
    std::map<int, dnn_item> at;
    template <class T> T one(int name, int i = 0) const {
        T v{};
        auto found = at.find(name);
        if (found != at.end() && found->second.bytes.size() >= (size_t)(i + 1) * sizeof v) memcpy(&v, &found->second.bytes[(size_t)i * sizeof v], sizeof v);
        return v;
    }
    const dnn_desc *desc(int name) const { return one<const dnn_desc *>(name); }
};
enum { ENGINES = 3 }; /* 0: differs from run to run; 1: tensor cores; 2: exact */

EXPORT size_t cudnnGetVersion() { return 91900; }
EXPORT int cudnnCreate(void **handle) {
    *handle = calloc(1, sizeof(cudaStream_t));
    return OK;
}
EXPORT int cudnnSetStream(void *handle, void *stream) {
    *(cudaStream_t *)handle = (cudaStream_t)stream;
    return OK;
}
EXPORT int cudnnBackendCreateDescriptor(int type, void **out) {
    *out = new dnn_desc{type, false, -1, {}};
    return OK;
}
EXPORT int cudnnBackendDestroyDescriptor(void *desc) {
    delete (dnn_desc *)desc;
    return OK;
}
EXPORT int cudnnBackendSetAttribute(void *desc, int name, int type, int64_t count, const void *values) {
    dnn_desc *d = (dnn_desc *)desc;
    bool small = type == DNN_T_DATA_TYPE || type == DNN_T_FLOAT || type == DNN_T_CONVOLUTION_MODE || type == DNN_T_HEUR_MODE || type == DNN_T_NOTE;
    if (d->done) return BAD;
    d->at[name] = {type, {(const char *)values, (const char *)values + count * (small ? 4 : 8)}};
    if (name == DNN_A_PLAN_CONFIG) d->engine = (*(dnn_desc *const *)values)->engine;
    if (name == DNN_A_PLAN_CONFIG && !(*(dnn_desc *const *)values)->at.count(DNN_A_HEUR_GRAPH)) return BAD;
    if (name == DNN_A_PLAN_CONFIG) d->at[DNN_A_HEUR_GRAPH] = (*(dnn_desc *const *)values)->at[DNN_A_HEUR_GRAPH];
    return OK;
}
static int needs(const dnn_desc *d, std::initializer_list<int> names) {
    for (int name : names)
        if (!d->at.count(name)) return BAD;
    return OK;
}
EXPORT int cudnnBackendFinalize(void *desc) {
    dnn_desc *d = (dnn_desc *)desc;
    d->done = true;
    switch (d->type) {
    case DNN_TENSOR: return needs(d, {DNN_A_TENSOR_TYPE, DNN_A_TENSOR_DIMS, DNN_A_TENSOR_STRIDES, DNN_A_TENSOR_ID, DNN_A_TENSOR_ALIGNMENT});
    case DNN_CONVOLUTION:
        return needs(d, {DNN_A_CONV_COMPUTE, DNN_A_CONV_MODE, DNN_A_CONV_DIMS, DNN_A_CONV_DILATIONS, DNN_A_CONV_STRIDES, DNN_A_CONV_PRE_PADDINGS, DNN_A_CONV_POST_PADDINGS});
    case DNN_GRAPH: return needs(d, {DNN_A_GRAPH_HANDLE, DNN_A_GRAPH_OPS});
    case DNN_ENGINEHEUR: return needs(d, {DNN_A_HEUR_GRAPH, DNN_A_HEUR_MODE});
    case DNN_PLAN: return needs(d, {DNN_A_PLAN_HANDLE, DNN_A_PLAN_CONFIG});
    case DNN_PACK: return needs(d, {DNN_A_PACK_IDS, DNN_A_PACK_POINTERS, DNN_A_PACK_WORKSPACE});
    default: return OK;
    }
}
EXPORT int cudnnBackendGetAttribute(void *desc, int name, int, int64_t most, int64_t *count, void *values) {
    dnn_desc *d = (dnn_desc *)desc;
    if (name == DNN_A_HEUR_RESULTS) {
        for (*count = 0; *count < most && *count < ENGINES; ++*count) {
            dnn_desc *config = ((dnn_desc **)values)[*count];
            config->engine = (int)*count;
            config->at[DNN_A_HEUR_GRAPH] = d->at[DNN_A_HEUR_GRAPH];
        }
    } else if (name == DNN_A_CONFIG_ENGINE) {
        (*(dnn_desc **)values)->engine = d->engine;
        *count = 1;
    } else if (name == DNN_A_ENGINE_NOTES) {
        *count = d->engine < 2;
        if (*count) *(int *)values = d->engine ? DNN_NOTE_TENSOR_CORE : DNN_NOTE_NONDETERMINISTIC;
    } else if (name == DNN_A_PLAN_WORKSPACE) {
        *(int64_t *)values = 4096;
        *count = 1;
    } else return BAD;
    return OK;
}

struct dnn_tensor {
    kind type;
    int64_t dims[4], strides[4];
    void *p;
};
static dnn_tensor tensor_of(const dnn_desc *t, const dnn_desc *pack) {
    int type = t->one<int>(DNN_A_TENSOR_TYPE);
    dnn_tensor r = {type == DNN_DOUBLE ? K_F64 : type == DNN_HALF ? K_F16 : type == DNN_BFLOAT16 ? K_BF16 : K_F32, {}, {}, nullptr};
    for (int i = 0; i < 4; i++) r.dims[i] = t->one<int64_t>(DNN_A_TENSOR_DIMS, i), r.strides[i] = t->one<int64_t>(DNN_A_TENSOR_STRIDES, i);
    for (int i = 0; i < 3; i++)
        if (pack->one<int64_t>(DNN_A_PACK_IDS, i) == t->one<int64_t>(DNN_A_TENSOR_ID)) r.p = pack->one<void *>(DNN_A_PACK_POINTERS, i);
    return r;
}
struct dnn_call {
    int what;
    bool rounds;
    dnn_tensor w, x, y;
    int64_t stride[2], padding[2], dilation[2];
};
static void dnn_run(const dnn_call &r) {
    const dnn_tensor &out = r.what == DNN_CONV_FORWARD ? r.y : r.what == DNN_CONV_DATA ? r.x : r.w;
    std::map<int64_t, double> sums;
    int64_t i[7], groups = r.x.dims[1] / r.w.dims[1], Kg = r.y.dims[1] / groups;
    auto at = [](const dnn_tensor &t, int64_t n, int64_t c, int64_t h, int64_t w) { return n * t.strides[0] + c * t.strides[1] + h * t.strides[2] + w * t.strides[3]; };
    auto value = [&](const dnn_tensor &t, int64_t p) { return r.rounds ? tf32(get(t.type, t.p, p)) : get(t.type, t.p, p); };
    for (int64_t a = 0; a < out.dims[0]; a++)
        for (int64_t b = 0; b < out.dims[1]; b++)
            for (int64_t c = 0; c < out.dims[2]; c++)
                for (int64_t d = 0; d < out.dims[3]; d++) sums[at(out, a, b, c, d)] = 0;
    for (i[0] = 0; i[0] < r.y.dims[0]; i[0]++)
        for (i[1] = 0; i[1] < r.y.dims[1]; i[1]++)
            for (i[2] = 0; i[2] < r.y.dims[2]; i[2]++)
                for (i[3] = 0; i[3] < r.y.dims[3]; i[3]++)
                    for (i[4] = 0; i[4] < r.w.dims[1]; i[4]++)
                        for (i[5] = 0; i[5] < r.w.dims[2]; i[5]++)
                            for (i[6] = 0; i[6] < r.w.dims[3]; i[6]++) {
                                int64_t h = i[2] * r.stride[0] - r.padding[0] + i[5] * r.dilation[0], v = i[3] * r.stride[1] - r.padding[1] + i[6] * r.dilation[1];
                                if (h < 0 || h >= r.x.dims[2] || v < 0 || v >= r.x.dims[3]) continue;
                                int64_t px = at(r.x, i[0], i[1] / Kg * r.w.dims[1] + i[4], h, v), pw = at(r.w, i[1], i[4], i[5], i[6]), py = at(r.y, i[0], i[1], i[2], i[3]);
                                if (r.what == DNN_CONV_FORWARD) sums[py] += value(r.x, px) * value(r.w, pw);
                                else if (r.what == DNN_CONV_DATA) sums[px] += value(r.y, py) * value(r.w, pw);
                                else sums[pw] += value(r.y, py) * value(r.x, px);
                            }
    for (auto &sum : sums) put(out.type, out.p, sum.first, sum.second);
}
static pd_work dnn_work(const dnn_call &r) {
    auto bytes = [](const dnn_tensor &t) {
        return (double)(t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3]) * size_of(t.type);
    };
    double out = bytes(r.what == DNN_CONV_FORWARD ? r.y : r.what == DNN_CONV_DATA ? r.x : r.w);
    double results = bytes(r.y) / size_of(r.y.type), taps = (double)(r.w.dims[1] * r.w.dims[2] * r.w.dims[3]);
    return {std::string("convolution ") + name_of(r.x.type), bytes(r.w) + bytes(r.x) + bytes(r.y) - out, out,
            2 * results * taps, 1};
}
EXPORT int cudnnBackendExecute(void *handle, void *plan, void *pack) {
    const dnn_desc *p = (dnn_desc *)plan, *given = (dnn_desc *)pack, *graph = p->desc(DNN_A_HEUR_GRAPH), *op = graph ? graph->desc(DNN_A_GRAPH_OPS) : nullptr;
    if (!p->done || !given->done || !op || !op->done || p->engine <= 0 || !given->one<void *>(DNN_A_PACK_WORKSPACE)) return BAD;
    int first = op->type == DNN_CONV_FORWARD ? DNN_A_FORWARD : op->type == DNN_CONV_DATA ? DNN_A_DATA : DNN_A_FILTER;
    const dnn_desc *conv = op->desc(first + 2);
    dnn_call r = {op->type, false, tensor_of(op->desc(first + 3), given), tensor_of(op->desc(first + 4), given), tensor_of(op->desc(first + 5), given), {}, {}, {}};
    double alpha = r.x.type == K_F64 ? op->one<double>(first) : op->one<float>(first);
    if (alpha != 1 || !r.x.p || !r.y.p || !r.w.p || conv->one<int>(DNN_A_CONV_MODE) != DNN_CROSS_CORRELATION || conv->one<int64_t>(DNN_A_CONV_DIMS) != 2) return BAD;
    r.rounds = p->engine == 1 && r.x.type == K_F32;
    for (int i = 0; i < 2; i++) {
        r.stride[i] = conv->one<int64_t>(DNN_A_CONV_STRIDES, i);
        r.padding[i] = conv->one<int64_t>(DNN_A_CONV_PRE_PADDINGS, i);
        r.dilation[i] = conv->one<int64_t>(DNN_A_CONV_DILATIONS, i);
    }
    if (pd_counts()) pd_count(dnn_work(r));
    pd_emulate_work(*(cudaStream_t *)handle, [=] { dnn_run(r); });
    return OK;
}
