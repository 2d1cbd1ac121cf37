/* Sorting of rows: tiles by one block each (a bitonic network in shared memory), then runs merged in pairs, each element
   finding its place by how many of the other run come before it. Stable, and the same on every device. */
#include "cuda/sort.h"

#include "cuda/table.h"
#include "kernels/sort_key.h"

enum { TILE = 512, THREADS = 256 };

entry *pd_cuda_entries(int64_t rows, int64_t n) {
    return (entry *)pd_cuda_lent->room((size_t)(rows * n) * sizeof(entry));
}

/* size: a power of two of at least the elements of a tile, so that rows of few cost little. */
static __global__ void sort_tiles(entry *e, int64_t n, int64_t tiles, int size) {
    __shared__ entry s[TILE];
    int64_t begin = blockIdx.x % tiles * TILE, left = n - begin;
    entry *row = e + blockIdx.x / tiles * n + begin;
    for (int i = threadIdx.x; i < size; i += THREADS) s[i] = i < left ? row[i] : entry{~UINT64_C(0), INT64_MAX};
    for (int run = 2; run <= size; run *= 2)
        for (int apart = run / 2; apart; apart /= 2) {
            __syncthreads();
            for (int at = threadIdx.x; at < size / 2; at += THREADS) {
                int a = 2 * at - (at & (apart - 1)), b = a + apart;
                bool up = (a & run) == 0;
                if (s[b].before(s[a]) == up) {
                    entry swap = s[a];
                    s[a] = s[b];
                    s[b] = swap;
                }
            }
        }
    __syncthreads();
    for (int i = threadIdx.x; i < size && i < left; i += THREADS) row[i] = s[i];
}

/* Runs of `run` elements become runs of twice as many. */
static __global__ void merge_runs(const entry *from, entry *to, int64_t count, int64_t n, int64_t run) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < count; p += step) {
        int64_t at = p % n, row = p - at, pair = at / (2 * run) * (2 * run), middle = pair + run < n ? pair + run : n;
        int64_t end = middle + run < n ? middle + run : n;
        entry e = from[p];
        bool first = at < middle;
        int64_t low = first ? middle : pair, high = first ? end : middle, begin = low;
        while (low < high) {
            int64_t mid = (low + high) / 2;
            if (from[row + mid].before(e)) low = mid + 1;
            else high = mid;
        }
        to[row + pair + (at - (first ? pair : middle)) + (low - begin)] = e;
    }
}

entry *pd_cuda_sorted(entry *e, int64_t rows, int64_t n) {
    int64_t tiles = (n + TILE - 1) / TILE;
    int size = 2;
    while (size < n && size < TILE) size *= 2;
    if (n > 1) launch(sort_tiles, rows * tiles, THREADS, e, n, tiles, size);
    if (n <= TILE) return e;
    entry *other = pd_cuda_entries(rows, n);
    if (!other) return nullptr;
    for (int64_t run = TILE; run < n; run *= 2) {
        launch(merge_runs, blocks_for(rows * n, THREADS, 1), THREADS, (const entry *)e, other, rows * n, n, run);
        entry *swap = e;
        e = other;
        other = swap;
    }
    return e;
}

/* ---- values in order --------------------------------------------------------------------------------------------- */

template <class E> static __device__ uint64_t key_of(E v) {
    if constexpr (sizeof(wide<E>) == 8 && is_real<wide<E>>::value) return pd_sort_key_f64((double)v);
    else if constexpr (is_real<wide<E>>::value) return pd_sort_key_f32(widen(v));
    else return (uint64_t)(int64_t)v ^ UINT64_C(1) << 63;
}
template <class E> static __global__ void number(const E *x, entry *e, int64_t count, int64_t n, bool descending) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < count; p += step) {
        uint64_t key = key_of(x[p]);
        e[p] = entry{descending ? ~key : key, p % n};
    }
}
/* The first k of each row: their numbers and, unless values is NULL, what stands there. */
template <class E>
static __global__ void emit(const entry *e, const E *x, E *values, int64_t *index, int64_t count, int64_t n, int64_t k) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < count; p += step) {
        int64_t row = p / k, i = e[row * n + p % k].i;
        index[p] = i;
        if (values) values[p] = x[row * n + i];
    }
}
static void order(bool descending, pd_dtype t, const pd_block *b, int64_t k, const void *x, void *values, int64_t *index) {
    int64_t count = b->outer * b->n;
    if (count <= 0 || k <= 0) return;
    by_type(t, [&](auto type) {
        typedef typename decltype(type)::type E;
        entry *e = pd_cuda_entries(b->outer, b->n);
        if (!e) return;
        launch(number<E>, blocks_for(count, THREADS, 1), THREADS, (const E *)x, e, count, b->n, descending);
        e = pd_cuda_sorted(e, b->outer, b->n);
        if (!e) return;
        launch(emit<E>, blocks_for(b->outer * k, THREADS, 1), THREADS, (const entry *)e, (const E *)x, (E *)values, index,
               b->outer * k, b->n, k);
    });
}

void pd_cuda_sort(bool descending, pd_dtype t, const pd_block *b, const void *x, int64_t *index, void *) {
    order(descending, t, b, b->n, x, nullptr, index);
}
size_t pd_cuda_sort_scratch(const pd_block *) { return 0; }
void pd_cuda_topk(bool largest, pd_dtype t, const pd_block *b, int64_t k, const void *x, void *values, int64_t *index,
                  void *) {
    order(largest, t, b, k, x, values, index);
}
size_t pd_cuda_topk_scratch(const pd_block *) { return 0; }
