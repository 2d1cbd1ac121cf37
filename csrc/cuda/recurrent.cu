/* One step of a recurrent layer after its products, with a thread for each element of the state. Formulas are those of
   kernels/cpu/recurrent.inc. */
#include "cuda/block.h"
#include "cuda/table.h"

/* Element k of row b, in rows of `wide` numbers. */
template <class T> static __device__ T *row(const void *p, int64_t b, int64_t wide) { return p ? (T *)(uintptr_t)p + b * wide : nullptr; }

template <class T> static __device__ void lstm(const pd_cell_step &s, int64_t H, int64_t b, int64_t k) {
    const T *x = row<T>(s.x, b, 4 * H) + k, *u = row<T>(s.u, b, 4 * H) + k;
    T *gates = row<T>(s.gates, b, 4 * H) + k;
    T i = V_SIGMOID(x[0] + u[0]), f = V_SIGMOID(x[H] + u[H]), g = V_TANH(x[2 * H] + u[2 * H]), o = V_SIGMOID(x[3 * H] + u[3 * H]);
    T c = f * row<T>(s.c0, b, H)[k] + i * g;
    gates[0] = i, gates[H] = f, gates[2 * H] = g, gates[3 * H] = o;
    row<T>(s.c1, b, H)[k] = c;
    row<T>(s.h1, b, H)[k] = o * V_TANH(c);
}
template <class T> static __device__ void lstm_grad(const pd_cell_step &s, int64_t H, int64_t b, int64_t k, T gh) {
    const T *gates = row<T>(s.gates, b, 4 * H) + k;
    T *gc = row<T>(s.gc, b, H) + k, *gx = row<T>(s.gx, b, 4 * H) + k;
    T i = gates[0], f = gates[H], g = gates[2 * H], o = gates[3 * H], t = V_TANH(row<T>(s.c1, b, H)[k]);
    T dc = *gc + gh * o * (1 - t * t);
    gx[0] = dc * g * i * (1 - i);
    gx[H] = dc * row<T>(s.c0, b, H)[k] * f * (1 - f);
    gx[2 * H] = dc * i * (1 - g * g);
    gx[3 * H] = gh * t * o * (1 - o);
    *gc = dc * f;
}
template <class T> static __device__ void gru(const pd_cell_step &s, int64_t H, int64_t b, int64_t k) {
    const T *x = row<T>(s.x, b, 3 * H) + k, *u = row<T>(s.u, b, 3 * H) + k;
    T *gates = row<T>(s.gates, b, 4 * H) + k;
    T r = V_SIGMOID(x[0] + u[0]), z = V_SIGMOID(x[H] + u[H]), un = u[2 * H], n = V_TANH(x[2 * H] + r * un);
    gates[0] = r, gates[H] = z, gates[2 * H] = n, gates[3 * H] = un;
    row<T>(s.h1, b, H)[k] = n + z * (row<T>(s.h0, b, H)[k] - n);
}
template <class T> static __device__ T gru_grad(const pd_cell_step &s, int64_t H, int64_t b, int64_t k, T gh) {
    const T *gates = row<T>(s.gates, b, 4 * H) + k;
    T *gx = row<T>(s.gx, b, 3 * H) + k, *gu = row<T>(s.gu, b, 3 * H) + k;
    T r = gates[0], z = gates[H], n = gates[2 * H], un = gates[3 * H];
    T dn = gh * (1 - z) * (1 - n * n), dr = dn * un * r * (1 - r), dz = gh * (row<T>(s.h0, b, H)[k] - n) * z * (1 - z);
    gx[0] = gu[0] = dr;
    gx[H] = gu[H] = dz;
    gx[2 * H] = dn;
    gu[2 * H] = dn * r;
    return gh * z;
}

/* A row that makes no step. */
template <class T> static __device__ void carry(const pd_cell_step &s, int64_t at) {
    ((T *)s.h1)[at] = ((const T *)s.h0)[at];
    if (s.c1) ((T *)s.c1)[at] = ((const T *)s.c0)[at];
}
template <class T> static __device__ void carry_grad(const pd_cell_step &s, int64_t H, int64_t wide, int64_t b, int64_t k) {
    for (; k < wide; k += H) row<T>(s.gx, b, wide)[k] = row<T>(s.gu, b, wide)[k] = 0;
}

template <class T> static __global__ void cell_kernel(const pd_cell c, const pd_cell_step s) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < c.B * c.H; at += step) {
        int64_t b = at / c.H, k = at % c.H;
        if (s.keep && !s.keep[b]) carry<T>(s, at);
        else if (c.kind == PD_LSTM) lstm<T>(s, c.H, b, k);
        else if (c.kind == PD_GRU) gru<T>(s, c.H, b, k);
        else {
            T a = ((const T *)s.x)[at] + ((const T *)s.u)[at];
            ((T *)s.h1)[at] = c.kind == PD_RNN_RELU ? (a < 0 ? (T)0 : a) : V_TANH(a);
        }
    }
}
template <class T> static __global__ void cell_grad_kernel(const pd_cell c, const pd_cell_step s) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < c.B * c.H; at += step) {
        int64_t b = at / c.H, k = at % c.H;
        T gh = ((const T *)s.gh)[at], h1 = ((const T *)s.h1)[at];
        if (s.g) gh += ((const T *)s.g)[at];
        if (s.keep && !s.keep[b]) carry_grad<T>(s, c.H, c.H * (c.kind == PD_LSTM ? 4 : c.kind == PD_GRU ? 3 : 1), b, k);
        else if (c.kind == PD_LSTM) lstm_grad<T>(s, c.H, b, k, gh);
        else if (c.kind == PD_GRU) gh = gru_grad<T>(s, c.H, b, k, gh);
        else ((T *)s.gx)[at] = c.kind == PD_RNN_RELU ? (h1 > 0 ? gh : (T)0) : gh * (1 - h1 * h1);
        ((T *)s.gh)[at] = s.keep && s.keep[b] && c.kind != PD_GRU ? (T)0 : gh;
    }
}

void pd_cuda_cell(const pd_cell *c, const pd_cell_step *s) {
    int64_t blocks = blocks_for(c->B * c->H, THREADS, 1);
    if (c->t == PD_F64) launch(cell_kernel<double>, blocks, THREADS, *c, *s);
    else launch(cell_kernel<float>, blocks, THREADS, *c, *s);
}
void pd_cuda_cell_grad(const pd_cell *c, const pd_cell_step *s) {
    int64_t blocks = blocks_for(c->B * c->H, THREADS, 1);
    if (c->t == PD_F64) launch(cell_grad_kernel<double>, blocks, THREADS, *c, *s);
    else launch(cell_grad_kernel<float>, blocks, THREADS, *c, *s);
}
