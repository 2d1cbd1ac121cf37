/* Our own convolution, for calls that cuDNN (kernels/cudnn) does not take. Each part is a product by tiles whose
   matrices are read in place (an implicit gemm), one group of channels at a time. */
#include "cuda/table.h"
#include "cuda/tile.h"

struct strides { int64_t image, channel, row, column; };

/* The shape, and the places of elements: x[n, c, h, w], w[k, c, r, s], y[n, k, p, q]. */
struct place {
    int64_t C, K, H, W, R, S, P, Q; /* channels of a group */
    int64_t stride[2], padding[2], dilation[2];
    strides x, w, y;
    bool channels_last; /* of x: a filter's numbers in the order r, s, c; else c, r, s */
};

struct tap { int64_t c, r, s; };
struct pixel { int64_t n, i, j; };

static __device__ tap tap_of(const place &p, int64_t k, int64_t channels) {
    if (p.channels_last) return {k % channels, k / channels / p.S, k / channels % p.S};
    return {k / (p.R * p.S), k / p.S % p.R, k % p.S};
}
static __device__ pixel pixel_of(int64_t at, int64_t rows, int64_t columns) { return {at / (rows * columns), at / columns % rows, at % columns}; }
static __device__ int64_t at(const strides &s, int64_t n, int64_t c, int64_t i, int64_t j) { return n * s.image + c * s.channel + i * s.row + j * s.column; }

/* x under tap t of the place o of y; zero in the padding. */
template <class E> static __device__ wide<E> under(const place &p, const E *x, const pixel &o, const tap &t) {
    int64_t h = o.i * p.stride[0] - p.padding[0] + t.r * p.dilation[0], w = o.j * p.stride[1] - p.padding[1] + t.s * p.dilation[1];
    return h >= 0 && h < p.H && w >= 0 && w < p.W ? widen(x[at(p.x, o.n, t.c, h, w)]) : (wide<E>)0;
}

template <class E> struct problem {
    typedef wide<E> sum;
    place p;
    const E *x, *w, *y, *bias;
    E *out;
    __device__ void enter(int64_t group) {
        x += group * p.C * p.x.channel;
        w += group * p.K * p.w.image;
        y += group * p.K * p.y.channel;
        if (bias) bias += group * p.K;
    }
};

/* [places of y, numbers of a filter] @ [numbers of a filter, filters] */
template <class E> struct forward : problem<E> {
    using typename problem<E>::sum;
    __device__ void enter(int64_t group) {
        problem<E>::enter(group);
        this->out += group * this->p.K * this->p.y.channel;
    }
    __device__ sum a(int64_t row, int64_t k) const { return under(this->p, this->x, pixel_of(row, this->p.P, this->p.Q), tap_of(this->p, k, this->p.C)); }
    __device__ sum b(int64_t k, int64_t filter) const {
        tap t = tap_of(this->p, k, this->p.C);
        return widen(this->w[at(this->p.w, filter, t.c, t.r, t.s)]);
    }
    __device__ void put(int64_t row, int64_t filter, sum v) const {
        pixel o = pixel_of(row, this->p.P, this->p.Q);
        if (this->bias) v += widen(this->bias[filter]);
        this->out[at(this->p.y, o.n, filter, o.i, o.j)] = narrow<E>(v);
    }
};

/* [places of x, taps over it] @ [taps over it, channels]; a tap's c is a filter */
template <class E> struct grad_input : problem<E> {
    using typename problem<E>::sum;
    __device__ void enter(int64_t group) {
        problem<E>::enter(group);
        this->out += group * this->p.C * this->p.x.channel;
    }
    __device__ sum a(int64_t row, int64_t k) const {
        const place &p = this->p;
        pixel i = pixel_of(row, p.H, p.W);
        tap t = tap_of(p, k, p.K);
        int64_t h = i.i + p.padding[0] - t.r * p.dilation[0], w = i.j + p.padding[1] - t.s * p.dilation[1];
        if (h < 0 || w < 0 || h % p.stride[0] || w % p.stride[1]) return 0;
        h /= p.stride[0];
        w /= p.stride[1];
        return h < p.P && w < p.Q ? widen(this->y[at(p.y, i.n, t.c, h, w)]) : (sum)0;
    }
    __device__ sum b(int64_t k, int64_t channel) const {
        tap t = tap_of(this->p, k, this->p.K);
        return widen(this->w[at(this->p.w, t.c, channel, t.r, t.s)]);
    }
    __device__ void put(int64_t row, int64_t channel, sum v) const {
        pixel i = pixel_of(row, this->p.H, this->p.W);
        this->out[at(this->p.x, i.n, channel, i.i, i.j)] = narrow<E>(v);
    }
};

template <class E> struct grad_weight : problem<E> { /* [filters, places of y] @ [places of y, numbers of a filter] */
    using typename problem<E>::sum;
    __device__ void enter(int64_t group) {
        problem<E>::enter(group);
        this->out += group * this->p.K * this->p.w.image;
    }
    __device__ sum a(int64_t filter, int64_t k) const {
        pixel o = pixel_of(k, this->p.P, this->p.Q);
        return widen(this->y[at(this->p.y, o.n, filter, o.i, o.j)]);
    }
    __device__ sum b(int64_t k, int64_t number) const { return under(this->p, this->x, pixel_of(k, this->p.P, this->p.Q), tap_of(this->p, number, this->p.C)); }
    __device__ void put(int64_t filter, int64_t number, sum v) const {
        tap t = tap_of(this->p, number, this->p.C);
        this->out[at(this->p.w, filter, t.c, t.r, t.s)] = narrow<E>(v);
    }
};

static strides strides_of(int64_t channels, int64_t rows, int64_t columns, bool last) {
    if (last) return {rows * columns * channels, 1, columns * channels, channels};
    return {channels * rows * columns, rows * columns, columns, 1};
}

void pd_cuda_conv(const pd_conv *c, pd_conv_part part, const void *a, const void *b, const void *bias, void *out) {
    place p = {c->C / c->groups, c->K / c->groups, c->H, c->W, c->R, c->S, c->P, c->Q,
               {c->stride[0], c->stride[1]}, {c->padding[0], c->padding[1]}, {c->dilation[0], c->dilation[1]},
               strides_of(c->C, c->H, c->W, c->x_nhwc), strides_of(c->C / c->groups, c->R, c->S, c->w_nhwc), strides_of(c->K, c->P, c->Q, c->y_nhwc),
               part == PD_CONV_INPUT ? c->y_nhwc : c->x_nhwc};
    int64_t filter = p.C * p.R * p.S;
    by_float(c->t, [&](auto e) {
        typedef typename decltype(e)::type E;
        E *to = (E *)out;
        const E *one = (const E *)a, *two = (const E *)b;
        if (part == PD_CONV_FORWARD)
            by_tiles(forward<E>{{p, one, two, nullptr, (const E *)bias, to}}, {c->groups, c->N * p.P * p.Q, p.K, filter, p.channels_last, !c->w_nhwc});
        else if (part == PD_CONV_INPUT)
            by_tiles(grad_input<E>{{p, nullptr, two, one, nullptr, to}}, {c->groups, c->N * p.H * p.W, p.C, p.K * p.R * p.S, p.channels_last, false});
        else by_tiles(grad_weight<E>{{p, two, nullptr, one, nullptr, to}}, {c->groups, p.K, filter, c->N * p.P * p.Q, !c->y_nhwc, false});
    });
}
