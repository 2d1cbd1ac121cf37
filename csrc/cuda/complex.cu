/* The rows of complex.def; parts, and conversions. */
#include "cuda/complex.h"

#include "cuda/each.h"
#include "cuda/table.h"
#include "kernels/cpu/lib/express.h"

#define ZF(name) z_##name
#define AT(r, i) (Z{(T)(r), (T)(i)})
#define COMPLEX static __device__ inline

#define T float
#define Z pd_c64
#define MOST 0x1.fffffep127f
#include "kernels/complex.inc"
#undef T
#undef Z
#undef MOST
#define T double
#define Z pd_c128
#define MOST 0x1.fffffffffffffp1023
#include "kernels/complex.inc"
#undef T
#undef Z

template <class Z> struct part_of { typedef float type; };
template <> struct part_of<pd_c128> { typedef double type; };
template <class F> static void by_complex(pd_dtype t, F f) {
    if (t == PD_C64) f(tag<pd_c64>());
    else f(tag<pd_c128>());
}

#define PD_COMPLEX_UNARY(name, result)
#define PD_COMPLEX_BINARY(name, result)
#define PD_COMPLEX_COMPARE(name, result)

template <class E> struct complex_unary_map {
    typedef E element, Z;
    typedef typename part_of<E>::type T;
    pd_unary fn;
    template <int V> __device__ void run(const spot &s) const {
        Z in[V], out[V] = {};
        s.get<Z>(1, in);
        switch (fn) {
#undef PD_COMPLEX_UNARY
#define PD_COMPLEX_UNARY(name, result)                                     \
    case PD_UNARY_##name:                                                  \
        for (int i = 0; i < V; i++) { Z x = in[i]; out[i] = result; }      \
        break;
#include "kernels/complex.def"
#undef PD_COMPLEX_UNARY
#define PD_COMPLEX_UNARY(name, result)
        default: return;
        }
        s.put<Z>(out);
    }
};

template <class E> struct complex_binary_map {
    typedef E element, Z;
    typedef typename part_of<E>::type T;
    pd_binary fn;
    T a;
    template <int V> __device__ void run(const spot &s) const {
        Z px[V], py[V], out[V] = {};
        s.get<Z>(1, px);
        s.get<Z>(2, py);
        switch (fn) {
#undef PD_COMPLEX_BINARY
#define PD_COMPLEX_BINARY(name, result)                                           \
    case PD_BINARY_##name:                                                        \
        for (int i = 0; i < V; i++) { Z x = px[i], y = py[i]; out[i] = result; }  \
        break;
#include "kernels/complex.def"
#undef PD_COMPLEX_BINARY
#define PD_COMPLEX_BINARY(name, result)
        default: return;
        }
        s.put<Z>(out);
    }
};

template <class E> struct complex_compare_map {
    typedef E element, Z;
    pd_compare fn;
    template <int V> __device__ void run(const spot &s) const {
        Z px[V], py[V];
        uint8_t out[V] = {};
        s.get<Z>(1, px);
        s.get<Z>(2, py);
        switch (fn) {
#undef PD_COMPLEX_COMPARE
#define PD_COMPLEX_COMPARE(name, result)                                                     \
    case PD_COMPARE_##name:                                                                  \
        for (int i = 0; i < V; i++) { Z x = px[i], y = py[i]; out[i] = (uint8_t)(result); }  \
        break;
#include "kernels/complex.def"
        default: return;
        }
        s.put<uint8_t>(out);
    }
};

template <class E> struct size_map { /* |x|, or its angle */
    typedef E element;
    typedef typename part_of<E>::type T;
    bool angle;
    template <int V> __device__ void run(const spot &s) const {
        E x[V];
        T out[V];
        s.get<E>(1, x);
        for (int i = 0; i < V; i++) out[i] = angle ? V_ATAN2(x[i].im, x[i].re) : z_abs(x[i]);
        s.put<T>(out);
    }
};
template <class E> struct conj_map {
    typedef E element;
    template <int V> __device__ void run(const spot &s) const {
        E x[V];
        s.get<E>(1, x);
        for (int i = 0; i < V; i++) x[i].im = -x[i].im;
        s.put<E>(x);
    }
};

template <class To, class From> struct between_map { /* two complex types */
    typedef pd_c128 element;
    template <int V> __device__ void run(const spot &s) const {
        typedef typename part_of<To>::type T;
        From x[V];
        To out[V];
        s.get<From>(1, x);
        for (int i = 0; i < V; i++) out[i] = To{(T)x[i].re, (T)x[i].im};
        s.put<To>(out);
    }
};
/* Conversions from a real type, which has no imaginary part, and to one, which drops it. To BOOL: true if either part
   is not 0. */
template <class Z, class E> struct from_real_map {
    typedef Z element;
    template <int V> __device__ void run(const spot &s) const {
        typedef typename part_of<Z>::type T;
        wide<E> x[V];
        Z out[V];
        s.get<E>(1, x);
        for (int i = 0; i < V; i++) out[i] = Z{(T)x[i], 0};
        s.put<Z>(out);
    }
};
template <class E, class Z> struct to_real_map {
    typedef Z element;
    bool to_bool;
    template <int V> __device__ void run(const spot &s) const {
        Z x[V];
        wide<E> out[V];
        s.get<Z>(1, x);
        for (int i = 0; i < V; i++) out[i] = to_bool ? (wide<E>)((x[i].re != 0) | (x[i].im != 0)) : (wide<E>)x[i].re;
        s.put<E>(out);
    }
};

void pd_cuda_complex_unary(pd_unary fn, pd_dtype t, const pd_loop *l) {
    by_complex(t, [&](auto z) {
        typedef typename decltype(z)::type Z;
        const size_t size[] = {sizeof(Z), sizeof(Z)};
        each(complex_unary_map<Z>{fn}, l, size);
    });
}
void pd_cuda_complex_binary(pd_binary fn, pd_dtype t, double a, const pd_loop *l) {
    by_complex(t, [&](auto z) {
        typedef typename decltype(z)::type Z;
        const size_t size[] = {sizeof(Z), sizeof(Z), sizeof(Z)};
        each(complex_binary_map<Z>{fn, (typename part_of<Z>::type)a}, l, size);
    });
}
void pd_cuda_complex_compare(pd_compare fn, pd_dtype t, const pd_loop *l) {
    by_complex(t, [&](auto z) {
        typedef typename decltype(z)::type Z;
        const size_t size[] = {1, sizeof(Z), sizeof(Z)};
        each(complex_compare_map<Z>{fn}, l, size);
    });
}
void pd_cuda_complex_part(pd_complex_part part, pd_dtype t, const pd_loop *l) {
    by_complex(t, [&](auto z) {
        typedef typename decltype(z)::type Z;
        const size_t size[] = {part == PD_COMPLEX_CONJ ? sizeof(Z) : sizeof(Z) / 2, sizeof(Z)};
        if (part == PD_COMPLEX_CONJ) each(conj_map<Z>{}, l, size);
        else each(size_map<Z>{part == PD_COMPLEX_ANGLE}, l, size);
    });
}
void pd_cuda_complex_cast(pd_dtype to, pd_dtype from, const pd_loop *l) {
    if (pd_dtype_is_complex(to) && pd_dtype_is_complex(from)) {
        const size_t size[] = {to == PD_C128 ? sizeof(pd_c128) : sizeof(pd_c64), from == PD_C128 ? sizeof(pd_c128) : sizeof(pd_c64)};
        if (to == PD_C128) each(between_map<pd_c128, pd_c64>{}, l, size);
        else each(between_map<pd_c64, pd_c128>{}, l, size);
        return;
    }
    bool makes = pd_dtype_is_complex(to);
    by_complex(makes ? to : from, [&](auto z) {
        typedef typename decltype(z)::type Z;
        by_type(makes ? from : to, [&](auto e) {
            typedef typename decltype(e)::type E;
            const size_t size[] = {makes ? sizeof(Z) : sizeof(E), makes ? sizeof(E) : sizeof(Z)};
            if (makes) each(from_real_map<Z, E>{}, l, size);
            else each(to_real_map<E, Z>{to == PD_BOOL}, l, size);
        });
    });
}
