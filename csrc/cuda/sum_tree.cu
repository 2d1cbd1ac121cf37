/* Sums in the order of a tree. Each thread adds a few elements of all inputs: it keeps the partial sums that wait for
   their other side in registers, the latest one first. An input comes first, then as many sums as are complete with it. */
#include "cuda/cuda.h"
#include "cuda/table.h"

enum { BLOCK = 256, SHALLOW = 4 }; /* partial sums that wait at a time: of up to 8 inputs in a balanced tree */

struct plus {
    template <class T> static __device__ T of(T a, T b) { return (T)(a + b); }
};
struct either {
    template <class T> static __device__ T of(T a, T b) { return (T)(a | b); }
};

template <class E, int V, class T> static __device__ void load(const char *p, int64_t i, T (&x)[V]) {
    pack<E, V> v = *(const pack<E, V> *)(p + i * (int64_t)sizeof(E));
    for (int e = 0; e < V; e++) x[e] = (T)widen(v.e[e]);
}

/* V elements from i on. L: the type of the last input. */
template <class E, class L, class Plus, int DEPTH, int V>
static __device__ void sum_elements(const pd_sum_tree &c, wide<E> scale, int64_t i) {
    typedef wide<E> T;
    T s[DEPTH][V] = {};
    const char *next = (const char *)c.in;
    ONE_BY_ONE
    for (int k = 0; k < c.inputs; k++) {
        const char *p = next;
        UNROLLED for (int d = DEPTH - 1; d > 0; d--)
            UNROLLED for (int e = 0; e < V; e++) s[d][e] = s[d - 1][e];
        if (k == c.at[0]) p = (const char *)c.own[0];
        else if (k == c.at[1]) p = (const char *)c.own[1];
        else next += c.apart;
        if (!p) UNROLLED for (int e = 0; e < V; e++) s[0][e] = 0;
        else if (k + 1 == c.inputs) load<L>(p, i, s[0]);
        else load<E>(p, i, s[0]);
        ONE_BY_ONE
        for (int sums = c.sums[k]; sums; sums--) {
            UNROLLED for (int e = 0; e < V; e++) s[0][e] = Plus::of(s[1][e], s[0][e]);
            UNROLLED for (int d = 1; d < DEPTH - 1; d++)
                UNROLLED for (int e = 0; e < V; e++) s[d][e] = s[d + 1][e];
        }
    }
    pack<E, V> v;
    for (int e = 0; e < V; e++) v.e[e] = narrow<E>(is_real<T>::value ? s[0][e] * scale : s[0][e]);
    *(pack<E, V> *)((char *)c.out + i * (int64_t)sizeof(E)) = v;
}

template <class E, class L, class Plus, int DEPTH, int V>
static __global__ void __launch_bounds__(BLOCK) sum_tree_kernel(const __grid_constant__ pd_sum_tree c, wide<E> scale) {
    int64_t step = (int64_t)gridDim.x * blockDim.x * V;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; i < c.n; i += step) {
        if (i + V <= c.n) sum_elements<E, L, Plus, DEPTH, V>(c, scale, i);
        else
            for (int64_t k = i; k < c.n; k++) sum_elements<E, L, Plus, DEPTH, 1>(c, scale, k);
    }
}

/* The most partial sums that wait at a time. */
static int depth_of(const pd_sum_tree &c) {
    int now = 0, most = 0;
    for (int k = 0; k < c.inputs; k++) {
        most = ++now > most ? now : most;
        now -= c.sums[k];
    }
    return most;
}

/* Whether every input and the output can be loaded in vectors of so many bytes. */
static bool is_aligned(const pd_sum_tree &c, size_t bytes) {
    uintptr_t all = (uintptr_t)c.out | (uintptr_t)c.in | (uintptr_t)c.apart;
    for (int k = 0; k < 2; k++) all |= c.at[k] >= 0 ? (uintptr_t)c.own[k] : 0;
    return all % bytes == 0;
}

template <class E, class L, class Plus> static void sum(const pd_sum_tree &c) {
    const wide<E> scale = (wide<E>)c.scale;
    auto run = [&](auto kernel, int each) { launch(kernel, blocks_for(c.n, BLOCK, each), BLOCK, c, scale); };
    const bool aligned = is_aligned(c, 4 * sizeof(E) < 16 ? 4 * sizeof(E) : 16), shallow = depth_of(c) <= SHALLOW;
    if (aligned && shallow) run(sum_tree_kernel<E, L, Plus, SHALLOW, 4>, 4);
    else if (aligned) run(sum_tree_kernel<E, L, Plus, PD_TREE_DEPTH, 4>, 4);
    else run(sum_tree_kernel<E, L, Plus, PD_TREE_DEPTH, 1>, 1);
}

/* Integers are added as unsigned ones, so that sums wrap. */
void pd_cuda_sum_tree(pd_dtype t, const pd_sum_tree *c) {
    if (t == PD_BOOL) return sum<uint8_t, uint8_t, either>(*c);
    if (t == PD_F32 && c->last == PD_F16) return sum<float, pd_f16, plus>(*c);
    if (t == PD_F32 && c->last == PD_BF16) return sum<float, pd_bf16, plus>(*c);
    switch (t) {
    case PD_U8: case PD_I8: return sum<uint8_t, uint8_t, plus>(*c);
    case PD_I16: return sum<uint16_t, uint16_t, plus>(*c);
    case PD_I32: return sum<uint32_t, uint32_t, plus>(*c);
    case PD_I64: return sum<uint64_t, uint64_t, plus>(*c);
    default:
        by_float(t, [&](auto e) { sum<typename decltype(e)::type, typename decltype(e)::type, plus>(*c); });
    }
}
