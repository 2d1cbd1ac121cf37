/* The rows of unary.def. There is one kernel for each dtype: all threads take the same row, so the switch costs nothing
   compared with the memory traffic. */
#include "cuda/complex.h"
#include "cuda/each.h"
#include "cuda/table.h"
#include "kernels/cpu/lib/express.h"

#define EACH(expr) \
    for (int i = 0; i < V; i++) { T x = in[i]; out[i] = (T)(expr); }

template <class E> struct unary_map {
    typedef E element;
    typedef wide<E> T;
    pd_unary fn;
    template <int V> __device__ void run(const spot &s) const {
        T in[V], out[V] = {};
        s.get<E>(1, in);
        switch (fn) {
#define ROW_ANY(expr) EACH(expr)
#define ROW_FLOAT(expr) if constexpr (is_real<T>::value) EACH(expr)
#define PD_UNARY(name, domain, fwd, saved, grad, doc) case PD_UNARY_##name: ROW_##domain(fwd) break;
#include "kernels/unary.def"
#undef PD_UNARY
        default: return;
        }
        s.put<E>(out);
    }
};

template <class E> struct unary_grad_map {
    typedef E element;
    typedef wide<E> T;
    pd_unary fn;
    template <int V> __device__ pack<E, V> run(const spot &s) const {
        T in[V], kept[V], out[V] = {};
        s.get<E>(1, in);
        s.get<E>(2, kept);
        switch (fn) {
#define SAVED_X x
#define SAVED_Y y
#define SAVED_NONE x
#define PD_UNARY(name, domain, fwd, saved, grad, doc)      \
    case PD_UNARY_##name:                                  \
        for (int i = 0; i < V; i++) {                      \
            T g = in[i], SAVED_##saved = kept[i];          \
            (void)SAVED_##saved;                           \
            out[i] = (T)(grad);                            \
        }                                                  \
        break;
#include "kernels/unary.def"
#undef PD_UNARY
        default: break;
        }
        return s.put<E>(out);
    }
};

void pd_cuda_unary(pd_unary fn, pd_dtype t, const pd_loop *l) {
    if (pd_dtype_is_complex(t)) return pd_cuda_complex_unary(fn, t, l);
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        const size_t size[] = {sizeof(E), sizeof(E)};
        each(unary_map<E>{fn}, l, size);
    });
}
void pd_cuda_unary_grad(pd_unary fn, pd_dtype t, const pd_loop *l) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        const size_t size[] = {sizeof(E), sizeof(E), sizeof(E)};
        each<is_real<wide<E>>::value && sizeof(wide<E>) == 4>(unary_grad_map<E>{fn}, l, size);
    });
}
