/* Pooling over windows of two dimensions.

       [N, C, H, W]   forward: a row of results at a time, tap by tap, so that the innermost loop runs along the row
                      (short rows and adaptive windows: window by window)
                      gradient: each row of the input gathers from the windows over it. With stride s the row is held as
   s phases, acc[w % s][w / s], so that a tap adds contiguous numbers; small planes are scattered to instead [N, H, W,
   C]   both ways pixel by pixel, the innermost loop running along C

   Whoever writes an element is the only one to do so, in one order: the same bits for any number of threads. */
#include "kernels/cpu/real.h"

#define NOWHERE_BYTE 255 /* the place of a window that lies outside altogether: -1 */
#define SMALL_PLANE 1024 /* elements that are scattered to on the stack */
#define SHORT_ROW 8      /* results in a row under which it is not worth its loops */

typedef struct pool_job {
    const pd_pool *c;
    bool max;
    const void *x;       /* forward: the input; gradient: that of the output */
    const void *from;    /* places read */
    void *y, *place;     /* written */
    const int32_t *offset; /* of each tap in a plane, where taps are few */
} pool_job;

/* The window of result o along an axis: taps [from, to) of start + r * dilation lie inside. */
typedef struct span { int64_t start, from, to; } span;

static int64_t in_size(const pd_pool *c, int axis) { return axis ? c->W : c->H; }
static int64_t out_size(const pd_pool *c, int axis) { return axis ? c->Q : c->P; }
static int64_t up(int64_t a, int64_t b) { return b == 1 ? a : b == 2 ? (a + 1) >> 1 : (a + b - 1) / b; } /* a >= 0 */

static span span_of(const pd_pool *c, int axis, int64_t o) {
    int64_t n = in_size(c, axis), m = out_size(c, axis);
    if (c->adaptive) {
        int64_t start = o * n / m;
        return (span){start, 0, ((o + 1) * n + m - 1) / m - start};
    }
    int64_t d = c->dilation[axis], start = o * c->stride[axis] - c->padding[axis];
    int64_t from = start < 0 ? up(-start, d) : 0, to = start < n ? up(n - start, d) : 0;
    if (to > c->kernel[axis]) to = c->kernel[axis];
    return (span){start, from, from < to ? to : from};
}
/* What the mean divides by along an axis. */
static int64_t share(const pd_pool *c, int axis, span s) {
    if (!c->include_pad) return s.to - s.from;
    int64_t end = in_size(c, axis) + c->padding[axis] - s.start;
    return end < c->kernel[axis] ? end : c->kernel[axis];
}
static double divisor(const pd_pool *c, int64_t rows, int64_t cols) {
    return c->divisor ? (double)c->divisor : (double)(rows * cols);
}
/* Results [lo, hi] whose windows reach over input i; not each of them has a tap there. */
static void covers(const pd_pool *c, int axis, int64_t i, int64_t *lo, int64_t *hi) {
    int64_t n = in_size(c, axis), m = out_size(c, axis);
    if (c->adaptive) {
        *lo = i * m / n;
        *hi = ((i + 1) * m - 1) / n;
        return;
    }
    int64_t s = c->stride[axis], at = i + c->padding[axis], first = at - (c->kernel[axis] - 1) * c->dilation[axis];
    *lo = first > 0 ? up(first, s) : 0;
    *hi = at / s < m ? at / s : m - 1;
}
/* The tap of window s at input i, or -1. */
static int64_t tap_at(const pd_pool *c, int axis, span s, int64_t i) {
    int64_t r = i - s.start, d = c->adaptive ? 1 : c->dilation[axis];
    if (r < 0 || (d > 1 && r % d)) return -1;
    r = d > 1 ? r / d : r;
    return r < s.to ? r : -1;
}

static void put_places(const pd_pool *c, void *place, int64_t at, int64_t n, const int32_t *tap) {
    if (c->wide) {
        memcpy((int32_t *)place + at, tap, (size_t)n * 4);
        return;
    }
    typedef int32_t ints __attribute__((vector_size(4 * PD_LANES_F)));
    typedef uint8_t bytes __attribute__((vector_size(PD_LANES_F)));
    uint8_t *to = (uint8_t *)place + at;
    int64_t i = 0;
    for (; i + PD_LANES_F <= n; i += PD_LANES_F) {
        ints v;
        memcpy(&v, tap + i, sizeof v);
        bytes b = __builtin_convertvector(v, bytes);
        memcpy(to + i, &b, sizeof b);
    }
    for (; i < n; i++) to[i] = (uint8_t)tap[i];
}
static int64_t place_of(const pd_pool *c, const void *place, int64_t i) {
    if (c->wide) return ((const int32_t *)place)[i];
    uint8_t p = ((const uint8_t *)place)[i];
    return p == NOWHERE_BYTE ? -1 : p;
}
/* The place as a position in its plane, -1 for none. */
static int64_t position(const pd_pool *c, int64_t tap, int64_t p, int64_t q) {
    if (tap < 0) return -1;
    int64_t r = tap / c->kernel[1], s = tap % c->kernel[1];
    return (span_of(c, 0, p).start + r * (c->adaptive ? 1 : c->dilation[0])) * c->W + span_of(c, 1, q).start +
           s * (c->adaptive ? 1 : c->dilation[1]);
}

/* Units of work on a thread, of `each` elements. */
static int64_t pool_grain(int64_t each) {
    int64_t n = PD_GRAIN / (each > 0 ? each : 1);
    return n > 0 ? n : 1;
}
static int64_t taps_of(const pd_pool *c) { return c->kernel[0] * c->kernel[1]; }

#define PD_INCLUDED "kernels/cpu/pool.inc"
#include "kernels/cpu/each_type.h"

PD_CPU_FUNCTION(void, max_pool, const pd_pool *c, const void *x, void *y, void *place) {
    pool_job j = {.c = c, .max = true, .x = x, .y = y, .place = place};
    switch (pd_compute_of(c->t)) {
        case PD_IN_F32: pool_f32(&j); break;
        case PD_IN_F64: pool_f64(&j); break;
        case PD_IN_I64: pool_i64(&j); break;
    }
}
PD_CPU_FUNCTION(void, avg_pool, const pd_pool *c, const void *x, void *y) {
    pool_job j = {.c = c, .x = x, .y = y};
    if (c->t == PD_F64) pool_f64(&j);
    else pool_f32(&j);
}
PD_CPU_FUNCTION(void, max_pool_grad, const pd_pool *c, const void *g, const void *place, void *gx) {
    pool_job j = {.c = c, .max = true, .x = g, .from = place, .y = gx};
    if (c->t == PD_F64) pool_grad_f64(&j);
    else pool_grad_f32(&j);
}
PD_CPU_FUNCTION(void, avg_pool_grad, const pd_pool *c, const void *g, void *gx) {
    pool_job j = {.c = c, .x = g, .y = gx};
    if (c->t == PD_F64) pool_grad_f64(&j);
    else pool_grad_f32(&j);
}

/* Walks the results: position in the plane of each, and where the element stands in x. */
static void places_part(void *ctx, int64_t begin, int64_t end) {
    const pool_job *j = ctx;
    const pd_pool *c = j->c;
    int64_t size = (int64_t)pd_dtype_size(c->t);
    for (int64_t i = begin; i < end; i++) {
        int64_t k = c->nhwc ? i % c->C : 0, rest = c->nhwc ? i / c->C : i, q = rest % c->Q, p = rest / c->Q % c->P,
                plane = rest / c->Q / c->P;
        int64_t at = position(c, place_of(c, j->from, i), p, q);
        if (!j->x) {
            ((int64_t *)j->y)[i] = at < 0 ? 0 : at;
            continue;
        }
        int64_t from = c->nhwc ? (plane * c->H * c->W + at) * c->C + k : plane * c->H * c->W + at;
        if (at < 0) memset((char *)j->y + i * size, 0, (size_t)size);
        else memcpy((char *)j->y + i * size, (const char *)j->x + from * size, (size_t)size);
    }
}
PD_CPU_FUNCTION(void, max_pool_take, const pd_pool *c, const void *x, const void *place, void *y) {
    pool_job j = {.c = c, .x = x, .from = place, .y = y};
    pd_parallel(c->N * c->C * c->P * c->Q, PD_GRAIN / 4, places_part, &j);
}
PD_CPU_FUNCTION(void, max_pool_index, const pd_pool *c, const void *place, int64_t *index) {
    pool_job j = {.c = c, .from = place, .y = index};
    pd_parallel(c->N * c->C * c->P * c->Q, PD_GRAIN / 4, places_part, &j);
}
