/* The rows of binary.def, compare.def and ternary.def; where. */
#include "cuda/complex.h"
#include "cuda/each.h"
#include "cuda/later.h"
#include "cuda/table.h"
#include "kernels/cpu/lib/express.h"

#define EACH(expr) \
    for (int i = 0; i < V; i++) { T x = px[i], y = py[i]; out[i] = (T)(expr); }
#define ROW_ANY(expr) EACH(expr)
#define ROW_FLOAT(expr) if constexpr (is_real<T>::value) EACH(expr)
#define ROW_INT(expr) if constexpr (!is_real<T>::value) EACH(expr)

/* The exponent of x ** y, if it is one number for all elements, 2 or 3; else 0. As on the CPU, these are products. */
template <int V, class T> static __device__ int whole_power(pd_binary fn, const spot &s, int y, const T (&py)[V]) {
    if (fn != PD_BINARY_pow || !(s.o->one >> y & 1)) return 0;
    return py[0] == 2 ? 2 : py[0] == 3 ? 3 : 0;
}

template <class E, bool MIXED> struct binary_map {
    typedef E element;
    typedef wide<E> T;
    pd_binary fn;
    T a;
    template <int V> __device__ void run(const spot &s) const {
        T px[V], py[V], out[V] = {};
        s.take<E, MIXED>(1, px);
        s.take<E, MIXED>(2, py);
        int power = 0;
        if constexpr (is_real<T>::value) power = whole_power<V>(fn, s, 2, py);
        if (power) {
            for (int i = 0; i < V; i++) out[i] = power == 2 ? px[i] * px[i] : px[i] * px[i] * px[i];
            s.put<E>(out);
            return;
        }
        switch (fn) {
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc) case PD_BINARY_##name: ROW_##domain(fwd) break;
#include "kernels/binary.def"
#undef PD_BINARY
        default: return;
        }
        s.put<E>(out);
    }
};

template <class E, bool OF_Y, bool MIXED> struct binary_grad_map {
    typedef E element;
    typedef wide<E> T;
    pd_binary fn;
    T a;
    template <int V> __device__ void run(const spot &s) const {
        T pg[V], px[V], py[V], out[V] = {};
        s.take<E, MIXED>(1, pg);
        s.take<E, MIXED>(2, px);
        s.take<E, MIXED>(3, py);
        int power = OF_Y ? 0 : whole_power<V>(fn, s, 3, py);
        if (power) {
            for (int i = 0; i < V; i++) out[i] = power == 2 ? pg[i] * 2 * px[i] : pg[i] * 3 * (px[i] * px[i]);
            s.put<E>(out);
            return;
        }
        switch (fn) {
#define PD_BINARY(name, domain, fwd, needs, gx, gy, doc)                      \
    case PD_BINARY_##name:                                                    \
        for (int i = 0; i < V; i++) {                                         \
            T g = pg[i], x = px[i], y = py[i];                                \
            (void)x, (void)y;                                                 \
            if constexpr (OF_Y) out[i] = (T)(gy);                             \
            else out[i] = (T)(gx);                                            \
        }                                                                     \
        break;
#include "kernels/binary.def"
#undef PD_BINARY
        default: return;
        }
        s.put<E>(out);
    }
};

template <class E, bool MIXED> using grad_of_x = binary_grad_map<E, false, MIXED>;
template <class E, bool MIXED> using grad_of_y = binary_grad_map<E, true, MIXED>;

template <class E> struct compare_map {
    typedef E element;
    typedef wide<E> T;
    pd_compare fn;
    template <int V> __device__ void run(const spot &s) const {
        T px[V], py[V];
        uint8_t out[V] = {};
        s.get<E>(1, px);
        s.get<E>(2, py);
        switch (fn) {
#define PD_COMPARE(name, expr, doc)                                           \
    case PD_COMPARE_##name:                                                   \
        for (int i = 0; i < V; i++) { T x = px[i], y = py[i]; out[i] = (uint8_t)(expr); } \
        break;
#include "kernels/compare.def"
#undef PD_COMPARE
        default: return;
        }
        s.put<uint8_t>(out);
    }
};

template <class E> struct ternary_map {
    typedef E element;
    typedef wide<E> T;
    pd_ternary fn;
    T a;
    template <int V> __device__ void run(const spot &s) const {
        T px[V], py[V], pz[V], out[V] = {};
        s.get<E>(1, px);
        s.get<E>(2, py);
        s.get<E>(3, pz);
        switch (fn) {
#undef EACH
#define EACH(expr) \
    for (int i = 0; i < V; i++) { T x = px[i], y = py[i], z = pz[i]; out[i] = (T)(expr); }
#define PD_TERNARY(name, domain, params, fwd, ...) case PD_TERNARY_##name: ROW_##domain(fwd) break;
#include "kernels/ternary.def"
#undef PD_TERNARY
        default: return;
        }
        s.put<E>(out);
    }
};

template <class E> struct where_map {
    typedef E element;
    template <int V> __device__ void run(const spot &s) const {
        uint8_t c[V];
        E x[V], y[V];
        s.get<uint8_t>(1, c);
        s.get<E>(2, x);
        s.get<E>(3, y);
        for (int i = 0; i < V; i++) x[i] = c[i] ? x[i] : y[i];
        s.put<E>(x);
    }
};

void pd_cuda_binary(pd_binary fn, pd_dtype t, double a, const pd_loop *l) {
    if (pd_dtype_is_complex(t)) return pd_cuda_complex_binary(fn, t, a, l);
    /* BOOL's functions that differ from U8's arithmetic */
    if (t == PD_BOOL && (fn == PD_BINARY_add || fn == PD_BINARY_maximum)) {
        if (a == 0) {
            pd_loop first = *l;
            first.nop = 2;
            return pd_cuda_copy(t, t, &first);
        }
        fn = PD_BINARY_bitwise_or;
    }
    if (t == PD_BOOL && (fn == PD_BINARY_mul || fn == PD_BINARY_minimum)) fn = PD_BINARY_bitwise_and;
    if (l->later && l->ndim == 1 && l->numel > 0) return pd_cuda_add_later(t, l);
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        each_mixed<binary_map, E>(l, fn, (wide<E>)a);
    });
}
void pd_cuda_binary_grad(pd_binary fn, int which, pd_dtype t, double a, const pd_loop *l) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (which) each_mixed<grad_of_y, E>(l, fn, (wide<E>)a);
        else each_mixed<grad_of_x, E>(l, fn, (wide<E>)a);
    });
}
void pd_cuda_compare(pd_compare fn, pd_dtype t, const pd_loop *l) {
    if (pd_dtype_is_complex(t)) return pd_cuda_complex_compare(fn, t, l);
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        const size_t size[] = {1, sizeof(E), sizeof(E)};
        each(compare_map<E>{fn}, l, size);
    });
}
void pd_cuda_ternary(pd_ternary fn, pd_dtype t, double a, const pd_loop *l) {
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        const size_t size[] = {sizeof(E), sizeof(E), sizeof(E), sizeof(E)};
        each(ternary_map<E>{fn, (wide<E>)a}, l, size);
    });
}
void pd_cuda_where(size_t bytes, const pd_loop *l) {
    by_size(bytes, [&](auto e) {
        typedef typename decltype(e)::type E;
        const size_t size[] = {sizeof(E), 1, sizeof(E), sizeof(E)};
        each(where_map<E>{}, l, size);
    });
}
