/* Elementwise launches: from a pd_loop to threads. A map is a struct with

     typedef ... element          the largest operand's type: how many elements make 16 bytes
     template <int V> run(spot)   loads V elements of each operand by spot.get or spot.take, stores by spot.put

   If all operands are dense or one value, the loop runs flat, in vectors. Any other loop runs by strides, one element
   at a time. */
#ifndef PD_CUDA_EACH_H
#define PD_CUDA_EACH_H

#include <string.h>

#include "cuda/fold.h"

/* Divides n < 2^31 by d with a multiplication (Granlund and Montgomery, PLDI 1994). */
struct divisor {
    uint32_t d, by, shift;
    __host__ __device__ uint32_t of(uint32_t n) const { return (uint32_t)((((uint64_t)n * by >> 32) + n) >> shift); }
};
static inline divisor divisor_for(uint32_t d) {
    divisor r = {d, 0, 0};
    while (((uint64_t)1 << r.shift) < d) r.shift++;
    r.by = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << r.shift) - d)) / d + 1);
    return r;
}

struct operands {
    char *p[PD_MAX_OPERANDS];
    int64_t step[PD_MAX_OPERANDS]; /* flat: bytes from element to element */
    int64_t n;
    unsigned one, cells;           /* bit k: operand k is one value; is in cell[k] */
    signed char type[PD_MAX_OPERANDS];
    unsigned char cell[PD_MAX_OPERANDS][16];
};
struct strided {
    int ndim;
    divisor size[PD_MAX_DIMS];
    int64_t stride[PD_MAX_OPERANDS][PD_MAX_DIMS];
};

/* The place of V elements of each operand. */
struct spot {
    const operands *o;
    char *at[PD_MAX_OPERANDS];
    template <class E, int V> __device__ void get(int k, wide<E> (&x)[V]) const {
        if (o->one >> k & 1) {
            wide<E> e;
            if (o->cells >> k & 1) memcpy(&e, o->cell[k], sizeof e);
            else e = widen(*(const E *)at[k]);
            for (int i = 0; i < V; i++) x[i] = e;
        } else {
            pack<E, V> v = *(const pack<E, V> *)at[k];
            for (int i = 0; i < V; i++) x[i] = widen(v.e[i]);
        }
    }
    /* get; with MIXED of an operand that has its own type, which is the same for all threads. */
    template <class E, bool MIXED, int V> __device__ void take(int k, wide<E> (&x)[V]) const {
        if constexpr (!MIXED) get<E>(k, x);
        else if (o->type[k] == PD_F32) get<float>(k, x);
        else if (o->type[k] == PD_F16) get<pd_f16>(k, x);
        else get<pd_bf16>(k, x);
    }
    /* Returns what it has stored. */
    template <class E, int V> __device__ pack<E, V> put(const wide<E> (&y)[V]) const {
        pack<E, V> v;
        for (int i = 0; i < V; i++) v.e[i] = narrow<E>(y[i]);
        *(pack<E, V> *)at[0] = v;
        return v;
    }
};

template <class M, int V> __global__ void each_flat(M map, const __grid_constant__ operands o) {
    int64_t step = (int64_t)gridDim.x * blockDim.x * V;
    spot s;
    s.o = &o;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; i < o.n; i += step) {
        for (int k = 0; k < PD_MAX_OPERANDS; k++) s.at[k] = o.p[k] + i * o.step[k];
        if (i + V <= o.n) {
            map.template run<V>(s);
            continue;
        }
        for (int64_t left = o.n - i; left > 0; left--) {
            map.template run<1>(s);
            for (int k = 0; k < PD_MAX_OPERANDS; k++) s.at[k] += o.step[k];
        }
    }
}

/* A contiguous loop over [n, columns] that also sums the columns of the result, which map.run returns. */
template <class M, int V>
__global__ void each_columns(M map, const __grid_constant__ operands o, int64_t n, int64_t columns, const cut c,
                             float *folded, unsigned *counters, float *sums) {
    const place p(c, V, n, columns);
    float v[V] = {};
    spot s;
    s.o = &o;
    for (int64_t i = p.begin; i < p.end; i += p.slices) {
        for (int k = 0; k < PD_MAX_OPERANDS; k++) s.at[k] = o.p[k] + (i * columns + p.own) * o.step[k];
        auto y = map.template run<V>(s);
        for (int e = 0; e < V; e++) v[e] += widen(y.e[e]);
    }
    across_parts<plus>(v, c, p, columns, folded, counters, [&](int64_t k, float sum) { sums[k] = sum; });
}
template <int V, class M> static void each_with_sums(const M &map, const pd_loop *l, const operands &o, bool aligned) {
    const pd_block b = {1, l->numel / l->columns, l->columns};
    const cut c = cut_of(&b, aligned, sizeof(typename M::element));
    float *folded;
    unsigned *counters;
    if (!room_for_parts(c, b, &folded, &counters)) return;
    auto run = [&](auto kernel) {
        launch(kernel, c.groups * c.parts, THREADS, map, o, b.n, b.inner, c, folded, counters, l->sums);
    };
    if (c.V == V) run(each_columns<M, V>);
    else run(each_columns<M, 1>);
}

template <class M>
__global__ void each_strided(M map, const __grid_constant__ operands o, const __grid_constant__ strided d) {
    uint32_t step = gridDim.x * blockDim.x;
    spot s;
    s.o = &o;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < (uint32_t)o.n; i += step) {
        uint32_t rest = i;
        for (int k = 0; k < PD_MAX_OPERANDS; k++) s.at[k] = o.p[k];
        for (int a = d.ndim - 1; a >= 0; a--) {
            uint32_t q = d.size[a].of(rest), r = rest - q * d.size[a].d;
            for (int k = 0; k < PD_MAX_OPERANDS; k++) s.at[k] += r * d.stride[k][a];
            rest = q;
        }
        map.template run<1>(s);
    }
}

/* Runs by strides. A loop of more than 2^30 elements is split by halving its largest dimension. */
template <class M> static void each_large(const M &map, const pd_loop *l, const operands &o) {
    int64_t most = (int64_t)1 << 30;
    if (l->numel > most) {
        int d = 0;
        for (int k = 1; k < l->ndim; k++)
            if (l->size[k] > l->size[d]) d = k;
        for (int half = 0; half < 2; half++) {
            pd_loop part = *l;
            int64_t first = l->size[d] / 2;
            part.size[d] = half ? l->size[d] - first : first;
            part.numel = l->numel / l->size[d] * part.size[d];
            operands at = o;
            for (int k = 0; k < l->nop && half; k++) at.p[k] += first * l->stride[k][d];
            each_large(map, &part, at);
        }
        return;
    }
    strided s = {l->ndim, {}, {}};
    operands part = o;
    part.n = l->numel;
    for (int d = 0; d < l->ndim; d++) s.size[d] = divisor_for((uint32_t)l->size[d]);
    for (int k = 0; k < l->nop; k++)
        for (int d = 0; d < l->ndim; d++) s.stride[k][d] = l->stride[k][d];
    launch(each_strided<M>, blocks_for(part.n, 256, 1), 256, map, part, s);
}

/* SUMS: the map's run returns the result, so the loop may ask for sums of it. size[k]: bytes of an element of operand
   k. A cell has the type in which the map's element is computed. */
template <bool SUMS = false, class M> static void each(const M &map, const pd_loop *l, const size_t *size) {
    constexpr int V = sizeof(typename M::element) >= 4 ? 16 / sizeof(typename M::element) : 8;
    operands o = {};
    bool flat = true, aligned = true;
    if (l->numel <= 0) return;
    o.n = l->numel;
    for (int k = 0; k < l->nop; k++) {
        bool moves = false, dense = l->ndim <= 1;
        for (int d = 0; d < l->ndim; d++) moves = moves || l->stride[k][d] != 0;
        o.p[k] = l->ptr[k];
        o.type[k] = l->mixed ? l->type[k] : 0;
        if (l->cells >> k & 1) {
            o.cells |= 1u << k;
            memcpy(o.cell[k], l->ptr[k], sizeof(wide<typename M::element>));
        }
        if (!moves && k) {
            o.one |= 1u << k;
            continue;
        }
        o.step[k] = (int64_t)size[k];
        if (l->ndim == 1) dense = l->stride[k][0] == (int64_t)size[k];
        flat = flat && dense;
        size_t whole = size[k] * V < 16 ? size[k] * V : 16;
        aligned = aligned && (uintptr_t)l->ptr[k] % whole == 0;
    }
    if constexpr (SUMS)
        if (l->sums) return each_with_sums<V>(map, l, o, aligned);
    if (!flat) each_large(map, l, o);
    else if (aligned) launch(each_flat<M, V>, blocks_for(o.n, 256, V), 256, map, o);
    else launch(each_flat<M, 1>, blocks_for(o.n, 256, 1), 256, map, o);
}

/* each() for a map M<E, MIXED>: the result is of type E, and so are the operands unless they have their own types. */
template <template <class, bool> class M, class E, class... A>
static void each_mixed(const pd_loop *l, A... args) {
    size_t size[PD_MAX_OPERANDS] = {sizeof(E), sizeof(E), sizeof(E), sizeof(E)};
    if constexpr (is_real<wide<E>>::value && sizeof(wide<E>) == 4)
        if (l->mixed) {
            for (int k = 1; k < l->nop; k++) size[k] = l->type[k] == PD_F32 ? 4 : 2;
            return each(M<E, true>{args...}, l, size);
        }
    each(M<E, false>{args...}, l, size);
}

#endif
