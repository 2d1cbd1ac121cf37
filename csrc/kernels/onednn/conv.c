#if defined(PD_HAVE_ONEDNN) && PD_HAVE_ONEDNN
#include "base/threads.h"
#include "kernels/onednn/lib.h"
#include "kernels/onednn/onednn.h"

/* Each operand has two layouts: the caller's (plain strides), and the one that the library wants ("any"; for
   activations only if the caller's is not channels_last). If they differ, there is a reorder before or after the main
   step:

       forward       x -> X'   w -> W'   [bias]   main -> Y' -> y
       grad_input    w -> W' (PREPARE), then for each part of the images, one thread each
                     gy -> Y'                     main -> X' -> gx      (READY: W' is given; INPUT: makes its own)
       grad_weight   for each part of the images, one thread each
                     gy -> Y'  x -> X'            main -> W'
                     W' of the parts added as a tree, then W' -> w (FINISH)

   Parts depend on the shape alone, since the library's own division among threads changes the order of sums (for
   gradients of inputs with stride 2 and all gradients of weights). Forward has no such sums: it is one primitive on all
   threads. */
typedef enum conv_kind { FORWARD, INPUT, READY, PREPARE, WEIGHT, FINISH } conv_kind;
enum {
    X,
    W,
    BIAS,
    Y,
    WANTED,
    X2,
    W2,
    Y2
}; /* buffers; WANTED: weights, or their gradient, in the library's layout */

typedef struct conv {
    const pd_conv *c;
    conv_kind kind;
    bool bias;
    int64_t N; /* how many images: all, or those of a part */
} conv;

typedef struct descs {
    dnnl_memory_desc_t x, w, y, bias, x_any, w_any, y_any, sum_any;
} descs; /* sum_any: a weight gradient, float */

static dnnl_status_t image(pd_dtype t, int64_t N, int64_t C, int64_t H, int64_t W_, bool nhwc, dnnl_memory_desc_t *md) {
    dnnl_dims_t dims = {N, C, H, W_}, plain = {C * H * W_, H * W_, W_, 1}, last = {C * H * W_, 1, W_ * C, C};
    return pd_dnn.memory_desc_create_with_strides(md, 4, dims, pd_dnn_type(t), nhwc ? last : plain);
}
static dnnl_status_t any_image(pd_dtype t, int64_t N, int64_t C, int64_t H, int64_t W_, dnnl_memory_desc_t *md) {
    dnnl_dims_t dims = {N, C, H, W_};
    return pd_dnn.memory_desc_create_with_tag(md, 4, dims, pd_dnn_type(t), dnnl_format_tag_any);
}
static dnnl_status_t filter(const pd_conv *c, dnnl_data_type_t t, bool any, dnnl_memory_desc_t *md) {
    int64_t Cg = c->C / c->groups, Kg = c->K / c->groups, R = c->R, S = c->S, one = Cg * R * S;
    int64_t sc = c->w_nhwc ? 1 : R * S, sr = c->w_nhwc ? S * Cg : S, ss = c->w_nhwc ? Cg : 1;
    dnnl_dims_t dims = {c->groups, Kg, Cg, R, S}, strides = {Kg * one, one, sc, sr, ss};
    int grouped = c->groups > 1; /* without groups the first dimension is left out */
    dnnl_dims_t d = {0}, s = {0};
    for (int i = 0; i < 4 + grouped; i++) d[i] = dims[i + 1 - grouped], s[i] = strides[i + 1 - grouped];
    if (any) return pd_dnn.memory_desc_create_with_tag(md, 4 + grouped, d, t, dnnl_format_tag_any);
    return pd_dnn.memory_desc_create_with_strides(md, 4 + grouped, d, t, s);
}

static dnnl_status_t describe(const conv *v, descs *d) {
    const pd_conv *c = v->c;
    dnnl_status_t status = dnnl_success;
    PD_DNN_DO(image(c->t, v->N, c->C, c->H, c->W, c->x_nhwc, &d->x));
    PD_DNN_DO(image(c->t, v->N, c->K, c->P, c->Q, c->y_nhwc, &d->y));
    PD_DNN_DO(filter(c, pd_dnn_type(c->t), false, &d->w));
    PD_DNN_DO(filter(c, pd_dnn_type(c->t), true, &d->w_any));
    PD_DNN_DO(filter(c, dnnl_f32, true, &d->sum_any));
    if (!c->x_nhwc) PD_DNN_DO(any_image(c->t, v->N, c->C, c->H, c->W, &d->x_any));
    if (!c->y_nhwc) PD_DNN_DO(any_image(c->t, v->N, c->K, c->P, c->Q, &d->y_any));
    if (v->bias)
        PD_DNN_DO(pd_dnn.memory_desc_create_with_tag(&d->bias, 1, (dnnl_dims_t){c->K}, pd_dnn_type(c->t), dnnl_x));
done:
    return status;
}
static void descs_free(descs *d) {
    dnnl_memory_desc_t all[] = {d->x, d->w, d->y, d->bias, d->x_any, d->w_any, d->y_any, d->sum_any};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) pd_dnn.memory_desc_destroy(all[i]);
}

static dnnl_status_t create(const conv *v, const descs *d, dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *pd) {
    const pd_conv *c = v->c;
    dnnl_status_t status = dnnl_success;
    dnnl_primitive_desc_t hint = NULL;
    const_dnnl_memory_desc_t x = d->x_any ? d->x_any : d->x, y = d->y_any ? d->y_any : d->y;
    dnnl_dims_t strides = {c->stride[0], c->stride[1]}, dilates = {c->dilation[0] - 1, c->dilation[1] - 1},
                left = {c->padding[0], c->padding[1]};
    /* how far the last window reaches beyond the image; less than padding[] if rows are left over */
    dnnl_dims_t right = {(c->P - 1) * c->stride[0] + (c->R - 1) * c->dilation[0] + 1 - c->H - c->padding[0],
                         (c->Q - 1) * c->stride[1] + (c->S - 1) * c->dilation[1] + 1 - c->W - c->padding[1]};
    PD_DNN_DO(pd_dnn.convolution_forward_primitive_desc_create(v->kind == FORWARD ? pd : &hint, pd_dnn_engine,
        v->kind == FORWARD ? dnnl_forward_inference : dnnl_forward_training, dnnl_convolution_direct, x, d->w_any,
        d->bias, y, strides, dilates, left, right, attr));
    if (v->kind == INPUT || v->kind == READY || v->kind == PREPARE)
        PD_DNN_DO(pd_dnn.convolution_backward_data_primitive_desc_create(
            pd, pd_dnn_engine, dnnl_convolution_direct, x, d->w_any, y, strides, dilates, left, right, hint, attr));
    if (v->kind == WEIGHT || v->kind == FINISH)
        PD_DNN_DO(pd_dnn.convolution_backward_weights_primitive_desc_create(pd, pd_dnn_engine, dnnl_convolution_direct,
                                                                            x, d->sum_any, NULL, y, strides, dilates,
                                                                            left, right, hint, attr));
done:
    if (hint) pd_dnn.primitive_desc_destroy(hint);
    return status;
}

/* The buffer with an operand in the library's layout: the caller's, if the layouts agree, else a piece of scratch. */
static int buffer_for(pd_dnn_plan *p, const_dnnl_memory_desc_t users, const_dnnl_memory_desc_t wanted, int user,
                      int piece) {
    if (pd_dnn.memory_desc_equal(users, wanted)) return user;
    p->temp[piece] = pd_dnn.memory_desc_get_size(wanted);
    return piece;
}

static dnnl_status_t build(const void *what, int threads, pd_dnn_plan *p) {
    const conv *v = what;
    dnnl_status_t status = dnnl_success;
    descs d = {0};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    (void)threads;
    PD_DNN_DO(describe(v, &d));
    PD_DNN_DO(pd_dnn_attr(&attr, false, false));
    PD_DNN_DO(create(v, &d, attr, &pd));
    bool input = v->kind == INPUT || v->kind == READY || v->kind == PREPARE,
         weight = v->kind == WEIGHT || v->kind == FINISH;
    dnnl_query_t qx = input ? dnnl_query_diff_src_md : dnnl_query_src_md;
    dnnl_query_t qw = weight ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    dnnl_query_t qy = v->kind == FORWARD ? dnnl_query_dst_md : dnnl_query_diff_dst_md;
    const_dnnl_memory_desc_t mx = pd_dnn.primitive_desc_query_md(pd, qx, 0),
                             mw = pd_dnn.primitive_desc_query_md(pd, qw, 0),
                             my = pd_dnn.primitive_desc_query_md(pd, qy, 0);
    p->result = pd_dnn.memory_desc_get_size(mw);
    if (v->kind == FINISH || v->kind == PREPARE) {
        if (v->kind == FINISH) PD_DNN_DO(pd_dnn_add_reorder(p, mw, WANTED, d.w, W));
        else PD_DNN_DO(pd_dnn_add_reorder(p, d.w, W, mw, WANTED));
        goto done;
    }
    int x = buffer_for(p, d.x, mx, X, X2), y = buffer_for(p, d.y, my, Y, Y2);
    int w = v->kind == WEIGHT || v->kind == READY ? WANTED : buffer_for(p, d.w, mw, W, W2);
    if (!input && x != X) PD_DNN_DO(pd_dnn_add_reorder(p, d.x, X, mx, X2));
    if (w == W2) PD_DNN_DO(pd_dnn_add_reorder(p, d.w, W, mw, W2));
    if (v->kind != FORWARD && y != Y) PD_DNN_DO(pd_dnn_add_reorder(p, d.y, Y, my, Y2));
    dnnl_primitive_desc_t main = pd;
    pd = NULL;
    if (v->kind == FORWARD)
        status =
            pd_dnn_add(p, main, v->bias ? 4 : 3, (int[]){DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
                       (int[]){x, w, y, BIAS});
    else if (input)
        status =
            pd_dnn_add(p, main, 3, (int[]){DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC}, (int[]){y, w, x});
    else
        status =
            pd_dnn_add(p, main, 3, (int[]){DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS}, (int[]){y, x, w});
    if (status != dnnl_success) goto done;
    const pd_dnn_step *last = &p->steps[p->nsteps - 1]; /* pd is freed, but its descriptions live in the primitive */
    if (v->kind == FORWARD && y != Y) PD_DNN_DO(pd_dnn_add_reorder(p, last->md[2], Y2, d.y, Y));
    if (input && x != X) PD_DNN_DO(pd_dnn_add_reorder(p, last->md[2], X2, d.x, X));
done:
    if (pd) pd_dnn.primitive_desc_destroy(pd);
    if (attr) pd_dnn.primitive_attr_destroy(attr);
    descs_free(&d);
    return status;
}

static pd_dnn_plan *plan_of(const pd_conv *c, conv_kind kind, bool bias, int64_t N, int threads) {
    conv v = {c, kind, bias, N};
    pd_dnn_key key = {{2 + kind,
                       threads,
                       c->t,
                       bias,
                       N,
                       c->C,
                       c->H,
                       c->W,
                       c->K,
                       c->R,
                       c->S,
                       c->P,
                       c->Q,
                       c->groups,
                       c->stride[0],
                       c->stride[1],
                       c->padding[0],
                       c->padding[1],
                       c->dilation[0],
                       c->dilation[1],
                       c->x_nhwc | c->y_nhwc << 1 | c->w_nhwc << 2}};
    return pd_dnn_plan_get(&key, build, &v, threads);
}

/* ---- gradients: parts of the images ---- */

#define PARTS_MAX 8
#define PARTS_MIN 4
#define PARTS_BYTES \
    (24 << 20) /* bytes of the weight gradients of more than PARTS_MIN parts; more take too long to add */

/* `count` parts of `images` images, the last one of `rest` */
typedef struct parts { int64_t count, images, rest; } parts;

static parts cut(const pd_conv *c, conv_kind kind) {
    int64_t bytes = c->K * (c->C / c->groups) * c->R * c->S * 4, most = PARTS_BYTES / (bytes > 0 ? bytes : 1);
    most = most < PARTS_MIN ? PARTS_MIN : most > PARTS_MAX || kind != WEIGHT ? PARTS_MAX : most;
    parts p = {.images = (c->N + most - 1) / most};
    p.count = (c->N + p.images - 1) / p.images;
    p.rest = c->N - (p.count - 1) * p.images;
    return p;
}

/* part, rest: the plans for each part and for a shorter last one; once: before (PREPARE) or after them (FINISH).
   layout: bytes of the weights in the library's layout. */
typedef struct plans { pd_dnn_plan *part, *rest, *once; size_t layout, each; } plans;

static bool plans_get(const pd_conv *c, conv_kind kind, plans *w) {
    parts p = cut(c, kind);
    w->part = plan_of(c, kind == WEIGHT ? WEIGHT : READY, false, p.images, 1);
    w->rest = p.rest == p.images ? NULL : plan_of(c, kind, false, p.rest, 1);
    w->once = plan_of(c, kind == WEIGHT ? FINISH : PREPARE, false, p.images, 1);
    bool good = w->part && w->part->nsteps && w->once && w->once->nsteps &&
                (p.rest == p.images || (w->rest && w->rest->nsteps));
    if (!good || w->once->result != w->part->result) return false;
    if (kind == WEIGHT && w->rest && w->rest->result != w->part->result)
        return false; /* the parts are added element by element, so their layouts must agree */
    w->layout = (w->part->result + 63) & ~(size_t)63;
    w->each = w->part->scratch;
    if (w->rest && w->rest->scratch > w->each) w->each = w->rest->scratch;
    if (w->once->scratch > w->each) w->each = w->once->scratch;
    w->each = (w->each + 63) & ~(size_t)63;
    return true;
}
static void plans_release(plans *w) {
    pd_dnn_plan_release(w->part);
    pd_dnn_plan_release(w->rest);
    pd_dnn_plan_release(w->once);
}
/* [weights in the library's layout, for a weight gradient one per part | the parts' own scratch] */
static size_t plans_scratch(const pd_conv *c, conv_kind kind, const plans *w) {
    int64_t count = cut(c, kind).count;
    return (size_t)(kind == WEIGHT ? count : 1) * w->layout + (size_t)count * w->each;
}

typedef struct grad_job {
    const pd_conv *c;
    conv_kind kind;
    plans w;
    parts p;
    /* x: the input or its gradient; weights: the weights or their gradient */
    char *gy, *x, *weights, *layouts, *scratch;
    int failed; /* the first failure is kept, for the calling thread */
    pd_error error;
} grad_job;

static void grad_part(void *ctx, int64_t begin, int64_t end) {
    grad_job *j = ctx;
    const pd_conv *c = j->c;
    size_t size = pd_dtype_size(c->t);
    for (int64_t i = begin; i < end; i++) {
        pd_dnn_plan *plan = i == j->p.count - 1 && j->w.rest ? j->w.rest : j->w.part;
        int64_t n = i * j->p.images;
        void *user[PD_DNN_USER] = {j->x + (size_t)(n * c->C * c->H * c->W) * size, j->weights, NULL,
                                   j->gy + (size_t)(n * c->K * c->P * c->Q) * size,
                                   j->layouts + (j->kind == WEIGHT ? (size_t)i * j->w.layout : 0)};
        if (pd_dnn_plan_run(plan, user, j->scratch + (size_t)i * j->w.each, 1) != PD_OK &&
            !__atomic_exchange_n(&j->failed, 1, __ATOMIC_RELAXED))
            pd_error_save(&j->error);
    }
}

/* layouts[0] = the tree sum of the parts, elements [begin, end). */
static void weight_join(void *ctx, int64_t begin, int64_t end) {
    grad_job *j = ctx;
    for (int64_t step = 1; step < j->p.count; step *= 2)
        for (int64_t i = 0; i + step < j->p.count; i += 2 * step) {
            float *a = (float *)(void *)(j->layouts + (size_t)i * j->w.layout);
            const float *b = (const float *)(const void *)((char *)a + (size_t)step * j->w.layout);
            for (int64_t k = begin; k < end; k++) a[k] += b[k];
        }
}

static pd_status gradient(const pd_conv *c, conv_kind kind, const void *gy, const void *x, const void *weights,
                          void *scratch) {
    grad_job j = {.c = c, .kind = kind, .p = cut(c, kind), .gy = (char *)(uintptr_t)gy, .x = (char *)(uintptr_t)x,
                  .weights = (char *)(uintptr_t)weights, .layouts = scratch};
    pd_status status = PD_OK;
    if (!plans_get(c, kind, &j.w)) status = pd_fail(PD_E_RUNTIME, "oneDNN: it has no gradient for this convolution");
    j.scratch = j.layouts + (size_t)(kind == WEIGHT ? j.p.count : 1) * j.w.layout;
    void *user[PD_DNN_USER] = {NULL, j.weights, NULL, NULL, j.layouts};
    if (status == PD_OK && kind == INPUT) status = pd_dnn_plan_run(j.w.once, user, j.scratch, 1);
    if (status == PD_OK) {
        pd_parallel(j.p.count, 1, grad_part, &j);
        if (j.failed) status = pd_error_restore(&j.error);
    }
    if (status == PD_OK && kind == WEIGHT) {
        pd_parallel((int64_t)(j.w.part->result / sizeof(float)), PD_GRAIN, weight_join, &j);
        status = pd_dnn_plan_run(j.w.once, user, j.scratch, 1);
    }
    plans_release(&j.w);
    return status;
}

static pd_status grad_input(const pd_conv *c, const void *gy, const void *w, void *gx, void *scratch) {
    return gradient(c, INPUT, gy, gx, w, scratch);
}
static pd_status grad_weight(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch) {
    return pd_dnn_columns_serve(c) ? pd_dnn_columns_run(c, gy, x, gw, scratch)
                                   : gradient(c, WEIGHT, gy, x, gw, scratch);
}

/* ---- forward, and what can be done ---- */

/* Whether all three parts, or all but the weight's gradient, can be done here. *scratch: as much as any of them
   needs. */
static bool look(const pd_conv *c, bool with_weight, size_t *scratch) {
    bool can = true;
    int threads = pd_threads_get();
    for (int bias = 0; bias < 2 && can; bias++) {
        pd_dnn_plan *p = plan_of(c, FORWARD, bias, c->N, threads);
        can = p && p->nsteps;
        if (can && p->scratch > *scratch) *scratch = p->scratch;
        pd_dnn_plan_release(p);
    }
    for (int weight = 0; weight < 1 + with_weight && can; weight++) {
        plans w;
        conv_kind kind = weight ? WEIGHT : INPUT;
        can = plans_get(c, kind, &w);
        size_t bytes = can ? plans_scratch(c, kind, &w) : 0;
        if (bytes > *scratch) *scratch = bytes;
        plans_release(&w);
    }
    return can;
}

bool pd_onednn_takes_conv(const pd_conv *c, bool weight) {
    if (c->t == PD_F64 || c->N <= 0 || c->C <= 0 || c->K <= 0 || c->P <= 0 || c->Q <= 0 || c->R <= 0 || c->S <= 0)
        return false;
    size_t scratch = 0;
    return pd_dnn_serves(c->t) && look(c, weight, &scratch);
}

static size_t scratch_of(const pd_conv *c, pd_conv_part part) {
    const bool weight = part == PD_CONV_WEIGHT;
    size_t scratch = 0;
    size_t columns = weight && pd_dnn_columns_serve(c) ? pd_dnn_columns_scratch(c) : 0;
    look(c, weight, &scratch);
    return scratch > columns ? scratch : columns;
}

static pd_status forward(const pd_conv *c, const void *x, const void *w, const void *bias, void *y, void *scratch) {
    int threads = pd_threads_get();
    void *user[PD_DNN_USER] = {(void *)(uintptr_t)x, (void *)(uintptr_t)w, (void *)(uintptr_t)bias, y};
    pd_dnn_plan *p = plan_of(c, FORWARD, bias != NULL, c->N, threads);
    pd_status status = !p          ? PD_TRAIL(PD_E_MEMORY)
                       : p->nsteps ? pd_dnn_plan_run(p, user, scratch, threads)
                                   : pd_fail(PD_E_RUNTIME, "oneDNN: it does not support this convolution");
    pd_dnn_plan_release(p);
    return status;
}

/* If conv_weight takes the weight's gradient, this backend is never called for it and prepares nothing. */
static bool takes(const pd_conv *c, pd_conv_part part) {
    return (void)part, pd_onednn_takes_conv(c, !pd_conv_weight_takes(c));
}

const pd_conv_backend pd_onednn_conv = {"oneDNN", takes, scratch_of, forward, grad_input, grad_weight};
#endif
