/* Pooling over windows of two dimensions.

       [N, C, H, W]   forward: a row of results at a time. If windows are 1 or 2 apart, a vector of windows at once;
                      else tap by tap, so that the innermost loop runs along the row; for short rows and adaptive
                      windows, window by window
                      gradient: results scatter to their plane. For 2 x 2 windows side by side, rows are interleaved
                      from what the windows give. For few or 16-bit planes, and for means in long rows, each row of the
                      input gathers from the windows over it. With stride s the row is stored as s phases,
                      acc[w % s][w / s], so that a tap adds contiguous numbers
       [N, H, W, C]   both ways pixel by pixel; the innermost loop runs along C

   Only one thread writes an element, in one order, so the bits are the same for any number of threads. */
#include "kernels/cpu/lib/real.h"
#include "kernels/pool_window.h"

#define NOWHERE_BYTE 255 /* the place of a window outside x, as a byte: -1 */
#define SMALL_PLANE 1024 /* a plane of at most so many elements is summed on the stack */
#define MANY_PLANES 16   /* enough for all threads */
#define LONG_WINDOW 16   /* from so many neighbouring taps on vectors pay */
#define FEW 3            /* for so few results a vector does not pay */
#define SHORT_ROW 8      /* for fewer results in a row its loops do not pay */

typedef struct pool_job {
    const pd_pool *c;
    bool max;
    const void *x;       /* forward: the input; gradient: the gradient of the output */
    const void *from;    /* the places to read */
    void *y, *place;     /* to write */
    const int32_t *offset; /* the offset in a plane of each tap, if taps are few */
} pool_job;

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
/* The grain, in units of work of `each` elements. */
static int64_t pool_grain(int64_t each) {
    int64_t n = PD_GRAIN / (each > 0 ? each : 1);
    return n > 0 ? n : 1;
}
static int64_t taps_of(const pd_pool *c) { return c->kernel[0] * c->kernel[1]; }

#define PD_INCLUDED "kernels/cpu/pool_planes.inc"
#include "kernels/cpu/lib/each_type.h"
#define PD_INCLUDED "kernels/cpu/pool_pixels.inc"
#include "kernels/cpu/lib/each_type.h"
#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/pool_grad_planes.inc"
#include "kernels/cpu/lib/each_type.h"
#define PD_FLOATS_ONLY
#define PD_INCLUDED "kernels/cpu/pool_grad_pixels.inc"
#include "kernels/cpu/lib/each_type.h"

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

/* Walks the results and computes each one's position in its plane, and its element's place in x. */
static void places_part(void *ctx, int64_t begin, int64_t end) {
    const pool_job *j = ctx;
    const pd_pool *c = j->c;
    int64_t size = (int64_t)pd_dtype_size(c->t);
    for (int64_t i = begin; i < end; i++) {
        int64_t k = c->nhwc ? i % c->C : 0, rest = c->nhwc ? i / c->C : i, q = rest % c->Q, p = rest / c->Q % c->P,
                plane = rest / c->Q / c->P;
        int64_t at = pd_pool_position(c, place_of(c, j->from, i), p, q);
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
