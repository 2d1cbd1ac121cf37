/* copy, with conversion; fill; range. */
#include "cuda/complex.h"
#include "cuda/each.h"
#include "cuda/table.h"

template <class E> struct copy_map {
    typedef E element;
    template <int V> __device__ void run(const spot &s) const {
        E x[V];
        s.get<E>(1, x);
        s.put<E>(x);
    }
};

/* Converts from any type, which is the same for all threads, to E. */
template <class E> struct cast_map {
    typedef E element;
    typedef wide<E> T;
    pd_dtype from;
    bool to_bool;
    template <class F, int V> __device__ void read(const spot &s, T (&y)[V]) const {
        wide<F> x[V];
        s.get<F>(1, x);
        for (int i = 0; i < V; i++) y[i] = to_bool ? (T)(x[i] != 0) : (T)x[i];
    }
    template <int V> __device__ void run(const spot &s) const {
        T y[V];
        switch (from) {
        case PD_BOOL: case PD_U8: read<uint8_t>(s, y); break;
        case PD_I8: read<int8_t>(s, y); break;
        case PD_I16: read<int16_t>(s, y); break;
        case PD_I32: read<int32_t>(s, y); break;
        case PD_I64: read<int64_t>(s, y); break;
        case PD_F16: read<pd_f16>(s, y); break;
        case PD_BF16: read<pd_bf16>(s, y); break;
        case PD_F32: read<float>(s, y); break;
        case PD_F64: read<double>(s, y); break;
        default: return;
        }
        s.put<E>(y);
    }
};

static size_t size_of(pd_dtype t) {
    size_t size = 0;
    if (pd_dtype_is_complex(t)) return t == PD_C128 ? sizeof(pd_c128) : sizeof(pd_c64);
    by_type(t, [&](auto e) { size = sizeof(typename decltype(e)::type); });
    return size;
}

void pd_cuda_copy(pd_dtype to, pd_dtype from, const pd_loop *l) {
    if (to == from) {
        by_size(size_of(to), [&](auto e) {
            typedef typename decltype(e)::type E;
            const size_t size[] = {sizeof(E), sizeof(E)};
            each(copy_map<E>{}, l, size);
        });
        return;
    }
    if (pd_dtype_is_complex(to) || pd_dtype_is_complex(from)) return pd_cuda_complex_cast(to, from, l);
    by_type(to, [&](auto e) {
        typedef typename decltype(e)::type E;
        const size_t size[] = {sizeof(E), size_of(from)};
        each(cast_map<E>{from, to == PD_BOOL}, l, size);
    });
}

void pd_cuda_fill(size_t bytes, const void *value, const pd_loop *l) {
    pd_loop with = *l;
    with.nop = 2;
    with.ptr[1] = (char *)(uintptr_t)value;
    with.cells |= 2;
    memset(with.stride[1], 0, sizeof with.stride[1]);
    by_size(bytes, [&](auto e) {
        typedef typename decltype(e)::type E;
        const size_t size[] = {sizeof(E), sizeof(E)};
        each(copy_map<E>{}, &with, size);
    });
}

template <class E> static __global__ void range_kernel(E *out, int64_t n, double start, double step) {
    typedef wide<E> T;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if constexpr (is_real<T>::value) out[i] = narrow<E>((T)(start + (double)i * step));
        else out[i] = (E)((int64_t)start + i * (int64_t)step);
    }
}
void pd_cuda_range(pd_dtype t, void *out, int64_t n, double start, double step) {
    by_type(t, [&](auto e) {
        typedef typename decltype(e)::type E;
        launch(range_kernel<E>, blocks_for(n, 256, 4), 256, (E *)out, n, start, step);
    });
}
