/* The elements of pooling's windows, for CPU and GPU kernels. */
#ifndef PD_KERNELS_POOL_WINDOW_H
#define PD_KERNELS_POOL_WINDOW_H

#include "kernels/kernels.h"

/* The window of a result along an axis: of its taps, at start + r * dilation, those with from <= r < to are inside
   x. */
typedef struct pd_span { int64_t start, from, to; } pd_span;

PD_BOTH int64_t pd_pool_in_size(const pd_pool *c, int axis) { return axis ? c->W : c->H; }
PD_BOTH int64_t pd_pool_out_size(const pd_pool *c, int axis) { return axis ? c->Q : c->P; }
/* a / b rounded up, a >= 0. */
PD_BOTH int64_t pd_pool_up(int64_t a, int64_t b) { return b == 1 ? a : b == 2 ? (a + 1) >> 1 : (a + b - 1) / b; }

PD_BOTH pd_span pd_pool_span(const pd_pool *c, int axis, int64_t o) {
    int64_t n = pd_pool_in_size(c, axis), m = pd_pool_out_size(c, axis);
    if (c->adaptive) {
        int64_t start = o * n / m;
        pd_span all = {start, 0, ((o + 1) * n + m - 1) / m - start};
        return all;
    }
    int64_t d = c->dilation[axis], start = o * c->stride[axis] - c->padding[axis];
    int64_t from = start < 0 ? pd_pool_up(-start, d) : 0, to = start < n ? pd_pool_up(n - start, d) : 0;
    if (to > c->kernel[axis]) to = c->kernel[axis];
    pd_span inside = {start, from, from < to ? to : from};
    return inside;
}
/* The number by which the mean divides, along one axis. */
PD_BOTH int64_t pd_pool_share(const pd_pool *c, int axis, pd_span s) {
    if (!c->include_pad) return s.to - s.from;
    int64_t end = pd_pool_in_size(c, axis) + c->padding[axis] - s.start;
    return end < c->kernel[axis] ? end : c->kernel[axis];
}
PD_BOTH double pd_pool_size(const pd_pool *c, int64_t rows, int64_t cols) {
    return c->divisor ? (double)c->divisor : (double)(rows * cols);
}
/* The results [lo, hi] whose windows extend over input i, though perhaps without a tap there. */
PD_BOTH void pd_pool_covers(const pd_pool *c, int axis, int64_t i, int64_t *lo, int64_t *hi) {
    int64_t n = pd_pool_in_size(c, axis), m = pd_pool_out_size(c, axis);
    if (c->adaptive) {
        *lo = i * m / n;
        *hi = ((i + 1) * m - 1) / n;
        return;
    }
    int64_t s = c->stride[axis], at = i + c->padding[axis], first = at - (c->kernel[axis] - 1) * c->dilation[axis];
    *lo = first > 0 ? pd_pool_up(first, s) : 0;
    *hi = at / s < m ? at / s : m - 1;
}
/* The number of the tap of window s at input i; -1: none. */
PD_BOTH int64_t pd_pool_tap_at(const pd_pool *c, int axis, pd_span s, int64_t i) {
    int64_t r = i - s.start, d = c->adaptive ? 1 : c->dilation[axis];
    if (r < 0 || (d > 1 && r % d)) return -1;
    r = d > 1 ? r / d : r;
    return r < s.to ? r : -1;
}

/* The position in its plane of tap number `tap` of window (p, q); -1: no tap. */
PD_BOTH int64_t pd_pool_position(const pd_pool *c, int64_t tap, int64_t p, int64_t q) {
    if (tap < 0) return -1;
    int64_t r = tap / c->kernel[1], s = tap % c->kernel[1];
    return (pd_pool_span(c, 0, p).start + r * (c->adaptive ? 1 : c->dilation[0])) * c->W + pd_pool_span(c, 1, q).start +
           s * (c->adaptive ? 1 : c->dilation[1]);
}

#endif
