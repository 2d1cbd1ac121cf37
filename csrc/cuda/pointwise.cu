/* The rows of pointwise.def: activations and terms of losses, and their gradients. */
#include "cuda/each.h"
#include "cuda/table.h"
#include "kernels/cpu/lib/express.h"

/* WHICH 0: the value of x (, y); 1 and 2: the gradient of x and of y, from g. */
template <class E, int WHICH> struct pointwise_map {
    typedef E element;
    typedef wide<E> T;
    pd_pointwise fn;
    int y_at; /* the number of the operand y; 0: there is none */
    T P[PD_POINTWISE_PARAMS];
    template <int V> __device__ pack<E, V> run(const spot &s) const {
        T pg[V], px[V], py[V], out[V] = {};
        s.get<E>(1, pg);
        s.get<E>(WHICH ? 2 : 1, px);
        for (int i = 0; i < V; i++) py[i] = 0;
        if (y_at == 2) s.get<E>(2, py);
        if (y_at == 3) s.get<E>(3, py);
        switch (fn) {
#define ROW(name, fwd, gx, gy)                             \
    case PD_POINTWISE_##name:                              \
        for (int i = 0; i < V; i++) {                      \
            T g = pg[i], x = px[i], y = py[i];             \
            (void)g, (void)y;                              \
            if constexpr (WHICH == 0) out[i] = (T)(fwd);   \
            else if constexpr (WHICH == 1) out[i] = (T)(gx); \
            else out[i] = (T)(gy);                         \
        }                                                  \
        break;
#define PD_POINTWISE1(name, who, count, params, fwd, grad, doc) ROW(name, fwd, grad, 0)
#define PD_POINTWISE2(name, count, params, fwd, gx, gy, doc) ROW(name, fwd, gx, gy)
#include "kernels/pointwise.def"
#undef PD_POINTWISE1
#undef PD_POINTWISE2
        default: break;
        }
        return s.put<E>(out);
    }
};

template <class E, int WHICH> static void run(pd_pointwise fn, const double *params, const pd_loop *l) {
    const size_t size[] = {sizeof(E), sizeof(E), sizeof(E), sizeof(E)};
    int last = l->nop - 1, x_at = WHICH ? 2 : 1;
    pointwise_map<E, WHICH> map = {fn, last > x_at ? last : 0, {}};
    for (int i = 0; i < PD_POINTWISE_PARAMS; i++) map.P[i] = (wide<E>)params[i];
    each<(WHICH > 0 && sizeof(wide<E>) == 4)>(map, l, size);
}

void pd_cuda_pointwise(pd_pointwise fn, int which, pd_dtype t, const double *params, const pd_loop *l) {
    by_float(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        if (which == 0) run<E, 0>(fn, params, l);
        else if (which == 1) run<E, 1>(fn, params, l);
        else run<E, 2>(fn, params, l);
    });
}
