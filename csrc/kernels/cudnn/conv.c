/* Convolutions on a GPU by cuDNN's graph API, as a backend (backend.h). What it does not take, csrc/cuda/conv.cu
   computes. Plans are kept by shape: the first one of the heuristics, or, with cudnn.benchmark, the fastest one from a
   shape's third use on. Engines whose bits differ between runs, or that sum in 16 bits, are not used. */
#include <pthread.h>

#include "base/flags.h"
#include "base/log.h"
#include "device/cuda.h"
#include "device/gpu_timer.h"
#include "device/nvidia.h"
#include "device/plans.h"
#include "kernels/backend.h"
#include "kernels/cudnn/dnn.h"

enum {
    CONFIGS = 32, /* of which few may pass `acceptable` */
    RUNS = 3,     /* of each plan, timed */
    PLANS = 2048,
    HELD = 16 +
        2 * CONFIGS, /* descriptors that live with a plan: the graph's and those of two heuristics */
    ALIGNED = 16
};
#define WORKSPACE ((int64_t)1 << 30) /* plans that need more are not used */

/* ---- the library ------------------------------------------------------------------------------------------------- */

static struct {
#define MEMBER(name, arguments) int (*name) arguments;
    DNN_FUNCTIONS(MEMBER)
#undef MEMBER
    size_t (*GetVersion)(void);
} dnn;
/* Guards handles and plans, which are used by one call at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const pd_dl_symbol symbols[] = {
#define SYMBOL(name, arguments) {"cudnn" #name, (void **)&dnn.name},
    DNN_FUNCTIONS(SYMBOL)
#undef SYMBOL
    {"cudnnGetVersion", (void **)&dnn.GetVersion},
    {NULL, NULL}};
static pd_nvidia_server server = {
    .library = {"cuDNN", "libcudnn.so.9", "cudnn/lib", "nvidia-cudnn-cu13"},
    .major = 9,
    .instead = "pydist's own kernels",
    .symbols = symbols,
    .create = &dnn.Create,
    .get_version = &dnn.GetVersion,
};

const char *pd_cudnn_version(const char **reason) {
    return pd_nvidia_version(&server, pd_flags_get()->CUDNN, reason);
}

/* ---- a plan: one operation, and how it is done ------------------------------------------------------------------- */

typedef struct plan {
    pd_plan kept;
    bool made, timed;
    void *held[HELD]; /* descriptors */
    int nheld;
    void *run; /* the execution plan, one of `held`; NULL: cuDNN cannot do it */
    int64_t workspace;
} plan;

enum { X = 1, W, Y }; /* names of the tensors */

/* The making of a plan. After a failure later steps do nothing. */
typedef struct maker { plan *q; int failed; } maker;

static void *new_desc(maker *m, int type) {
    void *desc = NULL;
    if (m->failed) return NULL;
    m->failed = m->q->nheld == HELD || dnn.BackendCreateDescriptor(type, &desc);
    if (!m->failed) m->q->held[m->q->nheld++] = desc;
    return desc;
}
static void set(maker *m, void *desc, int name, int type, int64_t count, const void *values) {
    if (!m->failed) m->failed = dnn.BackendSetAttribute(desc, name, type, count, values);
}
static void set_desc(maker *m, void *desc, int name, void *value) { set(m, desc, name, DNN_T_DESCRIPTOR, 1, &value); }
static void finalize(maker *m, void *desc) {
    if (!m->failed) m->failed = dnn.BackendFinalize(desc);
}

static void *tensor(maker *m, int64_t id, int type, const int64_t dims[4], bool last) {
    const int64_t align = ALIGNED, c = dims[1], h = dims[2], w = dims[3];
    const int64_t strides[4] = {c * h * w, last ? 1 : h * w, last ? w * c : w, last ? c : 1};
    void *desc = new_desc(m, DNN_TENSOR);
    set(m, desc, DNN_A_TENSOR_TYPE, DNN_T_DATA_TYPE, 1, &type);
    set(m, desc, DNN_A_TENSOR_DIMS, DNN_T_INT64, 4, dims);
    set(m, desc, DNN_A_TENSOR_STRIDES, DNN_T_INT64, 4, strides);
    set(m, desc, DNN_A_TENSOR_ID, DNN_T_INT64, 1, &id);
    set(m, desc, DNN_A_TENSOR_ALIGNMENT, DNN_T_INT64, 1, &align);
    finalize(m, desc);
    return desc;
}

static void *convolution(maker *m, const pd_conv *c) {
    const int64_t dims = 2;
    const int mode = DNN_CROSS_CORRELATION, compute = c->t == PD_F64 ? DNN_DOUBLE : DNN_FLOAT;
    void *desc = new_desc(m, DNN_CONVOLUTION);
    set(m, desc, DNN_A_CONV_COMPUTE, DNN_T_DATA_TYPE, 1, &compute);
    set(m, desc, DNN_A_CONV_MODE, DNN_T_CONVOLUTION_MODE, 1, &mode);
    set(m, desc, DNN_A_CONV_DIMS, DNN_T_INT64, 1, &dims);
    set(m, desc, DNN_A_CONV_DILATIONS, DNN_T_INT64, 2, c->dilation);
    set(m, desc, DNN_A_CONV_STRIDES, DNN_T_INT64, 2, c->stride);
    set(m, desc, DNN_A_CONV_PRE_PADDINGS, DNN_T_INT64, 2, c->padding);
    set(m, desc, DNN_A_CONV_POST_PADDINGS, DNN_T_INT64, 2, c->padding);
    finalize(m, desc);
    return desc;
}

static void *graph(maker *m, void *handle, const pd_conv *c, pd_conv_part part) {
    static const int operations[] = {DNN_CONV_FORWARD, DNN_CONV_DATA, DNN_CONV_FILTER};
    static const int first[] = {DNN_A_FORWARD, DNN_A_DATA, DNN_A_FILTER};
    const int64_t x[4] = {c->N, c->C, c->H, c->W}, w[4] = {c->K, c->C / c->groups, c->R, c->S};
    const int64_t y[4] = {c->N, c->K, c->P, c->Q};
    const double scale[2] = {1, 0};
    const float scale_f[2] = {1, 0};
    bool wide = c->t == PD_F64;
    int type = wide              ? DNN_DOUBLE
               : c->t == PD_F16  ? DNN_HALF
               : c->t == PD_BF16 ? DNN_BFLOAT16
                                 : DNN_FLOAT,
        at = first[part];
    void *tx = tensor(m, X, type, x, c->x_nhwc), *tw = tensor(m, W, type, w, c->w_nhwc),
         *ty = tensor(m, Y, type, y, c->y_nhwc), *conv = convolution(m, c), *op = new_desc(m, operations[part]);
    for (int i = 0; i < 2; i++) /* alpha, beta */
        set(m, op, at + i, wide ? DNN_T_DOUBLE : DNN_T_FLOAT, 1, wide ? (const void *)&scale[i] : &scale_f[i]);
    set_desc(m, op, at + 2, conv);
    set_desc(m, op, at + 3, tw);
    set_desc(m, op, at + 4, tx);
    set_desc(m, op, at + 5, ty);
    finalize(m, op);
    void *desc = new_desc(m, DNN_GRAPH);
    set(m, desc, DNN_A_GRAPH_HANDLE, DNN_T_HANDLE, 1, &handle);
    set_desc(m, desc, DNN_A_GRAPH_OPS, op);
    finalize(m, desc);
    return desc;
}

/* Whether an engine's results have the promised precision and bits. */
static bool acceptable(void *config, const pd_conv *c) {
    int notes[16];
    int64_t count = 0;
    void *engine = NULL;
    if (dnn.BackendCreateDescriptor(DNN_ENGINE, &engine)) return false;
    bool good = !dnn.BackendGetAttribute(config, DNN_A_CONFIG_ENGINE, DNN_T_DESCRIPTOR, 1, &count, &engine) &&
                !dnn.BackendGetAttribute(engine, DNN_A_ENGINE_NOTES, DNN_T_NOTE, 16, &count, notes);
    for (int64_t i = 0; i < count && i < 16 && good; i++)
        good = notes[i] != DNN_NOTE_NONDETERMINISTIC && notes[i] != DNN_NOTE_REDUCED_PRECISION &&
               notes[i] != DNN_NOTE_DOWN_CONVERT &&
               !(notes[i] == DNN_NOTE_TENSOR_CORE && c->t == PD_F32 && !pd_gpu.conv_tf32);
    dnn.BackendDestroyDescriptor(engine);
    return good;
}

/* [new] the plan of a configuration, or NULL. */
static void *plan_by(void *handle, void *config, int64_t *workspace) {
    void *made = NULL;
    int64_t count;
    if (dnn.BackendCreateDescriptor(DNN_PLAN, &made)) return NULL;
    if (!dnn.BackendSetAttribute(made, DNN_A_PLAN_HANDLE, DNN_T_HANDLE, 1, &handle) &&
        !dnn.BackendSetAttribute(made, DNN_A_PLAN_CONFIG, DNN_T_DESCRIPTOR, 1, &config) && !dnn.BackendFinalize(made) &&
        !dnn.BackendGetAttribute(made, DNN_A_PLAN_WORKSPACE, DNN_T_INT64, 1, &count, workspace) &&
        *workspace <= WORKSPACE)
        return made;
    dnn.BackendDestroyDescriptor(made);
    return NULL;
}

/* Launches a plan. Its workspace is freed at once, for later work of the stream. -1: no memory for it. */
static int execute(void *handle, void *made, int64_t workspace, void *const pointers[3]) {
    static const int64_t ids[3] = {X, W, Y};
    const pd_device *d = pd_device_here;
    void *pack = NULL, *room = NULL;
    if (workspace && d->alloc(d, (size_t)workspace, &room)) return -1;
    int status = dnn.BackendCreateDescriptor(DNN_PACK, &pack);
    if (!status) status = dnn.BackendSetAttribute(pack, DNN_A_PACK_POINTERS, DNN_T_POINTER, 3, pointers);
    if (!status) status = dnn.BackendSetAttribute(pack, DNN_A_PACK_IDS, DNN_T_INT64, 3, ids);
    if (!status) status = dnn.BackendSetAttribute(pack, DNN_A_PACK_WORKSPACE, DNN_T_POINTER, 1, &room);
    if (!status) status = dnn.BackendFinalize(pack);
    if (!status) status = dnn.BackendExecute(handle, made, pack);
    if (pack) dnn.BackendDestroyDescriptor(pack);
    if (room) d->free(d, room, (size_t)workspace);
    return status;
}

/* Milliseconds that a plan takes; negative: it cannot run. */
static float time_of(void *handle, void *made, int64_t workspace, void *const pointers[3], const pd_gpu_timer *timer) {
    bool failed = execute(handle, made, workspace, pointers) || !pd_gpu_timer_begin(timer);
    for (int i = 0; i < RUNS && !failed; i++) failed = execute(handle, made, workspace, pointers) != 0;
    return failed ? -1 : pd_gpu_timer_end(timer);
}

/* Chooses the first plan of the heuristics that can be made, or, with `timed`, the fastest of them. */
static void choose(maker *m, void *handle, const pd_conv *c, void *of, int mode, void *const pointers[3], bool timed) {
    plan *q = m->q;
    void *configs[CONFIGS], *heuristics = new_desc(m, DNN_ENGINEHEUR);
    int64_t count = 0;
    float best = -1;
    pd_gpu_timer timer = {NULL, NULL, NULL};
    bool times = timed && pd_gpu_timer_open(&timer, pd_cuda_stream(pd_device_here));
    set_desc(m, heuristics, DNN_A_HEUR_GRAPH, of);
    set(m, heuristics, DNN_A_HEUR_MODE, DNN_T_HEUR_MODE, 1, &mode);
    finalize(m, heuristics);
    for (int i = 0; i < CONFIGS; i++) configs[i] = new_desc(m, DNN_ENGINECFG);
    if (!m->failed)
        m->failed = dnn.BackendGetAttribute(heuristics, DNN_A_HEUR_RESULTS, DNN_T_DESCRIPTOR, CONFIGS, &count, configs);
    for (int64_t i = 0; i < count && !m->failed && (times || !q->run); i++) {
        int64_t workspace = 0;
        void *one = acceptable(configs[i], c) ? plan_by(handle, configs[i], &workspace) : NULL;
        float ms = one && times ? time_of(handle, one, workspace, pointers, &timer) : 0;
        if (one && ms >= 0 && (!q->run || ms < best)) {
            if (q->run) dnn.BackendDestroyDescriptor(q->run);
            best = ms;
            q->run = one;
            q->workspace = workspace;
        } else if (one) dnn.BackendDestroyDescriptor(one);
    }
    pd_gpu_timer_close(&timer);
    pd_cuda_open()->failed(); /* clears the error of a plan that could not run */
}

static void drop(pd_plan *kept) {
    plan *q = (plan *)kept;
    if (q->run) dnn.BackendDestroyDescriptor(q->run);
    while (q->nheld) dnn.BackendDestroyDescriptor(q->held[--q->nheld]);
    q->run = NULL;
}

static void make(void *handle, const pd_conv *c, pd_conv_part part, plan *q, void *const pointers[3], bool timed) {
    maker m = {.q = q};
    void *one = graph(&m, handle, c, part);
    choose(&m, handle, c, one, DNN_HEUR_A, pointers, timed);
    if (!m.failed && !q->run) choose(&m, handle, c, one, DNN_HEUR_FALLBACK, pointers, timed);
    q->made = true;
    q->timed = timed;
    if (!q->run) drop(&q->kept);
}

/* ---- plans that are kept ----------------------------------------------------------------------------------------- */

/* The plan of a convolution; NULL: no memory. */
static plan *plan_of(const pd_conv *c, pd_conv_part part, int device) {
    static pd_plans plans = {.most = PLANS, .drop = drop};
    const int64_t key[PD_PLAN_KEY] = {
        device, part, (int64_t)c->t, c->N, c->C, c->H, c->W, c->K, c->R, c->S, c->groups, c->stride[0], c->stride[1],
        c->padding[0], c->padding[1], c->dilation[0], c->dilation[1], c->x_nhwc, c->y_nhwc, c->w_nhwc,
        pd_gpu.conv_tf32, pd_gpu.conv_tune};
    return (plan *)pd_plan_of(&plans, key, sizeof(plan));
}

/* y += bias, which has a number for each channel. */
static void add_bias(const pd_conv *c, const void *bias, void *y) {
    const int64_t size = (int64_t)pd_dtype_size(c->t), places = c->P * c->Q;
    pd_loop l = {.ndim = 3, .nop = 3, .numel = c->N * c->K * places, .size = {c->N, c->K, places},
                 .ptr = {y, y, (char *)(uintptr_t)bias}};
    if (c->y_nhwc) l.size[1] = places, l.size[2] = c->K;
    for (int k = 0; k < 2; k++) {
        l.stride[k][0] = c->K * places * size, l.stride[k][1] = l.size[2] * size, l.stride[k][2] = size;
    }
    l.stride[2][c->y_nhwc ? 2 : 1] = size;
    pd_here()->binary(PD_BINARY_add, c->t, 1, &l);
}

/* ---- one layout for all: engines for mixed ones are few and slow ------------------------------------------------- */

typedef struct operand {
    void *given, *p; /* p: given, or a copy in the common layout */
    int64_t dims[4];
    bool last, out;
} operand;

static bool lies_alike(const operand *o, bool last) {
    return o->last == last || o->dims[1] == 1 || o->dims[2] * o->dims[3] == 1;
}
static size_t bytes_of(const operand *o, pd_dtype t) {
    return (size_t)(o->dims[0] * o->dims[1] * o->dims[2] * o->dims[3]) * pd_dtype_size(t);
}

/* Copies an operand's elements from one layout to the other. */
static void relay(const operand *o, pd_dtype t, void *to, bool to_last, const void *from) {
    const int64_t *d = o->dims, size = (int64_t)pd_dtype_size(t), plane = d[2] * d[3];
    pd_loop l = {.ndim = 3, .nop = 2, .numel = d[0] * d[1] * plane, .size = {d[0], d[1], plane},
                 .ptr = {to, (char *)(uintptr_t)from}};
    for (int k = 0; k < 2; k++) {
        bool last = (k == 0) == to_last;
        l.stride[k][0] = d[1] * plane * size;
        l.stride[k][1] = last ? size : plane * size;
        l.stride[k][2] = last ? d[1] * size : size;
    }
    pd_here()->copy(t, t, &l);
}

static pd_status launch(const pd_conv *c, pd_conv_part part, void *const pointers[3], bool *done) {
    const pd_device *d = pd_device_here;
    const bool captured = pd_cuda_capturing(d);
    plan *q = NULL;
    pthread_mutex_lock(&lock);
    void *handle = pd_nvidia_handle(&server, pd_flags_get()->CUDNN, d);
    if (handle && dnn.SetStream(handle, pd_cuda_stream(d))) handle = NULL;
    pd_status status = handle && !(q = plan_of(c, part, d->index)) ? PD_E_MEMORY : PD_OK;
    if (q && captured) q->kept.stays = true;
    if (q && !q->made)
        make(handle, c, part, q, pointers, false);
    else if (q && q->run && pd_gpu.conv_tune && !q->timed && !captured && q->kept.uses >= PD_PLAN_TIMED_AT) {
        drop(&q->kept);
        make(handle, c, part, q, pointers, true);
    }
    if (q && q->run) {
        int failed = execute(handle, q->run, q->workspace, pointers);
        *done = !failed;
        if (failed < 0) status = PD_E_MEMORY;
        else if (failed)
            pd_log(PD_LOG_WARN, "cuDNN refused a convolution (status %d): using pydist's own kernel", failed);
    }
    pthread_mutex_unlock(&lock);
    return PD_TRAIL(status);
}

/* *done: whether it was launched; false: the library has nothing for this convolution. */
static pd_status try(const pd_conv *c, pd_conv_part part, const void *a, const void *b, const void *bias, void *out,
                     bool *done) {
    void *const one = (void *)(uintptr_t)a, *const two = (void *)(uintptr_t)b;
    const pd_device *d = pd_device_here;
    const bool last = c->x_nhwc || c->y_nhwc;
    pd_conv all = *c;
    operand o[3] = {{.dims = {c->N, c->C, c->H, c->W}, .last = c->x_nhwc, .out = part == PD_CONV_INPUT},
                    {.dims = {c->K, c->C / c->groups, c->R, c->S}, .last = c->w_nhwc, .out = part == PD_CONV_WEIGHT},
                    {.dims = {c->N, c->K, c->P, c->Q}, .last = c->y_nhwc, .out = part == PD_CONV_FORWARD}};
    o[0].given = o[0].out ? out : part == PD_CONV_FORWARD ? one : two;
    o[1].given = o[1].out ? out : two;
    o[2].given = o[2].out ? out : one;
    all.x_nhwc = all.y_nhwc = all.w_nhwc = last;
    *done = false;
    for (int i = 0; i < 3; i++)
        if (lies_alike(&o[i], last) && (uintptr_t)o[i].given % ALIGNED) return PD_OK;
    pd_status status = PD_OK;
    for (int i = 0; i < 3 && !status; i++) {
        if (lies_alike(&o[i], last)) {
            o[i].p = o[i].given;
            continue;
        }
        status = d->alloc(d, bytes_of(&o[i], c->t), &o[i].p);
        if (!status && !o[i].out) relay(&o[i], c->t, o[i].p, last, o[i].given);
    }
    PD_THEN(launch(&all, part, (void *const[]){o[0].p, o[1].p, o[2].p}, done));
    for (int i = 0; i < 3; i++) {
        if (!o[i].p || o[i].p == o[i].given) continue;
        if (o[i].out && *done) relay(&o[i], c->t, o[i].given, !last, o[i].p);
        d->free(d, o[i].p, bytes_of(&o[i], c->t));
    }
    if (status) return PD_TRAIL(status);
    if (*done && bias) add_bias(c, bias, out);
    return PD_OK;
}

/* ---- the backend ---- */

static bool takes(const pd_conv *c, pd_conv_part part) {
    const char *reason;
    (void)part;
    if (pd_gpu.conv_own) return false;
    return pd_dtype_is_float(c->t) && c->N > 0 && c->C > 0 && c->K > 0 && pd_cudnn_version(&reason);
}
static size_t scratch_of(const pd_conv *c, pd_conv_part part) { return (void)c, (void)part, 0; }

static pd_status run(const pd_conv *c, pd_conv_part part, const void *a, const void *b, const void *bias, void *out) {
    bool done;
    PD_TRY(try(c, part, a, b, bias, out, &done));
    if (!done) pd_here()->conv(c, part, a, b, bias, out);
    return PD_OK;
}
static pd_status forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    return (void)scratch, run(c, PD_CONV_FORWARD, x, w, bias, y);
}
static pd_status grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    return (void)scratch, run(c, PD_CONV_INPUT, gy, w, NULL, gx);
}
static pd_status grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    return (void)scratch, run(c, PD_CONV_WEIGHT, gy, x, NULL, gw);
}

const pd_conv_backend pd_cudnn_conv = {"cuDNN", takes, scratch_of, forward, grad_input, grad_weight};
