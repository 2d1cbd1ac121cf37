/* Sorts rows. First a block sorts each tile by a bitonic network in shared memory. Then runs are merged in pairs: an
   element finds its place by counting the elements of the other run that come before it. Sorting is stable, and the
   same on every device. topk chooses elements by the digits of their keys, and sorts those. */
#include "cuda/sort.h"

#include "cuda/block.h"
#include "cuda/table.h"
#include "kernels/sort_key.h"

enum { TILE = 512 };

entry *pd_cuda_entries(int64_t rows, int64_t n) {
    return (entry *)pd_cuda_lent->room((size_t)(rows * n) * sizeof(entry));
}

/* size: a power of two, at least the elements of a tile, so that short rows cost little. */
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

/* Merges pairs of runs of `run` elements. */
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

/* How many bits a key has; that of a float16 has 19 of float32's. */
template <class E> struct bits_of { static constexpr int value = 8 * (int)sizeof(E); };
template <> struct bits_of<pd_f16> { static constexpr int value = 19; };

/* Keys of elements, in the order that was asked for. */
template <class E> struct elements {
    const E *x;
    bool descending;
    __device__ uint64_t key(int64_t at) const {
        constexpr int bits = bits_of<E>::value;
        constexpr uint64_t every = ~UINT64_C(0) >> (64 - bits);
        uint64_t key;
        if constexpr (is_real<wide<E>>::value && sizeof(E) == 8) key = pd_sort_key_f64((double)x[at]);
        else if constexpr (is_real<wide<E>>::value) key = pd_sort_key_f32(widen(x[at])) >> (32 - bits);
        else key = ((uint64_t)x[at] & every) ^ ((E)-1 < (E)1 ? UINT64_C(1) << (bits - 1) : 0);
        return descending ? key ^ every : key;
    }
    __device__ int64_t index(int64_t, int64_t i) const { return i; }
};
/* Keys of entries, which were made of elements. */
struct entries {
    const entry *e;
    __device__ uint64_t key(int64_t at) const { return e[at].key; }
    __device__ int64_t index(int64_t at, int64_t) const { return e[at].i; }
};

template <class E> static __global__ void number(elements<E> from, entry *e, int64_t count, int64_t n) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < count; p += step) e[p] = entry{from.key(p), p % n};
}

/* ---- the first k of each row ------------------------------------------------------------------------------------- */

enum { DIGIT = 11, BINS = 1 << DIGIT, PIECE = 16384 };

/* Chooses the first k of each piece of a row, in the order of their places; a piece has `piece` elements and a block.
   Digit by digit from the top, it counts how many elements have which digit, which tells where the k-th key is. All
   elements before that key are taken, and of those equal to it, as far as digits were looked at, the first ones. Counts
   are integers, so they do not depend on the order of adding. */
template <class S>
static __global__ void choose(S from, entry *to, int64_t n, int64_t piece, int64_t pieces, int64_t k, int64_t chosen, int bits) {
    __shared__ unsigned many[BINS], digit, before;
    int64_t row = blockIdx.x / pieces, part = blockIdx.x % pieces, begin = part * piece, base = row * n + begin;
    int64_t count = n - begin < piece ? n - begin : piece;
    unsigned left = (unsigned)(k < count ? k : count);
    uint64_t prefix = 0;
    int shift = bits;
    for (bool found = false; shift > 0 && !found;) {
        int width = shift < DIGIT ? shift : (int)DIGIT;
        shift -= width;
        __syncthreads();
        for (int b = threadIdx.x; b < BINS; b += THREADS) many[b] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < count; i += THREADS) {
            uint64_t key = from.key(base + i) >> shift;
            if (key >> width == prefix) atomicAdd(&many[key & ((1u << width) - 1)], 1u);
        }
        __syncthreads();
        unsigned own = 0, all, first = threadIdx.x * (BINS / THREADS);
        for (unsigned b = first; b < first + BINS / THREADS; b++) own += many[b];
        unsigned past = block_before(own, &all);
        if (past < left && left <= past + own) { /* true for one thread */
            for (; past + many[first] < left; first++) past += many[first];
            digit = first;
            before = past;
        }
        __syncthreads();
        prefix = prefix << width | digit;
        left -= before;
        found = many[digit] == left;
    }
    /* For each warp, which has a part of the piece: how many are less, in the upper half how many are equal; later the
       place of each. */
    __shared__ uint64_t parts[WARPS];
    int64_t each = (count + THREADS - 1) / THREADS * WARP, first = threadIdx.x / WARP * each + threadIdx.x % WARP;
    uint64_t own = 0, all;
    for (int64_t i = first; i < first - threadIdx.x % WARP + each && i < count; i += WARP) {
        uint64_t key = from.key(base + i) >> shift;
        own += key < prefix ? 1 : key == prefix ? UINT64_C(1) << 32 : 0;
    }
    uint64_t past = block_before(own, &all);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = past;
    __syncthreads();
    past = parts[threadIdx.x / WARP];
    unsigned less = (unsigned)past, equal = (unsigned)(past >> 32), earlier = (1u << threadIdx.x % WARP) - 1;
    to += row * chosen + part * k;
    for (int64_t step = 0; step < each; step += WARP) {
        int64_t i = first + step;
        uint64_t key = i < count ? from.key(base + i) : 0, top = key >> shift;
        bool is_less = i < count && top < prefix, is_equal = i < count && top == prefix;
        unsigned lesses = __ballot_sync(0xffffffffu, is_less), equals = __ballot_sync(0xffffffffu, is_equal);
        unsigned nth = equal + __popc(equals & earlier), at = less + __popc(lesses & earlier) + (nth < left ? nth : left);
        if (is_less || (is_equal && nth < left)) to[at] = entry{key, from.index(base + i, begin + i)};
        less += __popc(lesses);
        equal += __popc(equals);
    }
}
/* Chooses among rows of n elements, into *to. Returns how many are left of a row; after enough calls that is k. */
template <class S> static int64_t fewer(S from, entry **to, int64_t rows, int64_t n, int64_t k, int64_t piece, int bits) {
    int64_t pieces = (n + piece - 1) / piece, last = n - (pieces - 1) * piece, chosen = (pieces - 1) * k + (last < k ? last : k);
    *to = pd_cuda_entries(rows, chosen);
    if (*to) launch(choose<S>, rows * pieces, THREADS, from, *to, n, piece, pieces, k, chosen, bits);
    return chosen;
}

/* e: rows of `n` entries, the first k of which are the result. Stores their numbers and, unless values is NULL, the
   elements at these places in rows of `width`. */
template <class E>
static __global__ void emit(const entry *e, const E *x, E *values, int64_t *index, int64_t count, int64_t n, int64_t k, int64_t width) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < count; p += step) {
        int64_t row = p / k, i = e[row * n + p % k].i;
        index[p] = i;
        if (values) values[p] = x[row * width + i];
    }
}

/* Whether to choose before sorting. Rows of one tile are sorted in one launch, which is less than choosing and sorting.
   Of longer rows the first k are chosen if the others are more, and if there are pieces, of which at most an eighth is
   left, to be processed in parallel; otherwise a few blocks would read for longer than all of them need to sort. */
static bool is_chosen(const pd_block *b, int64_t k) {
    return b->n > TILE && 2 * k <= b->n && (8 * k <= PIECE || b->outer * b->n >= 512 * k);
}
static void order(bool descending, pd_dtype t, const pd_block *b, int64_t k, const void *x, void *values, int64_t *index) {
    int64_t rows = b->outer, n = b->n;
    if (rows <= 0 || n <= 0 || k <= 0) return;
    by_type(t, [&](auto type) {
        typedef typename decltype(type)::type E;
        elements<E> from = {(const E *)x, descending};
        entry *e = nullptr;
        if (is_chosen(b, k)) {
            int64_t piece = 8 * k < PIECE ? (int64_t)PIECE : 8 * k;
            constexpr int bits = bits_of<E>::value;
            n = fewer(from, &e, rows, n, k, piece, bits);
            while (e && n > k) n = fewer(entries{e}, &e, rows, n, k, piece, bits);
        } else if ((e = pd_cuda_entries(rows, n)))
            launch(number<E>, blocks_for(rows * n, THREADS, 1), THREADS, from, e, rows * n, n);
        if (e) e = pd_cuda_sorted(e, rows, n);
        if (!e) return;
        launch(emit<E>, blocks_for(rows * k, THREADS, 1), THREADS, (const entry *)e, (const E *)x, (E *)values, index, rows * k, n, k,
               b->n);
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
