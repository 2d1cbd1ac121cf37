/* Places from indices, and blocks taken from and put to such places. Sorting finds the blocks that go to one place. So
   the one that is put last stays, and blocks are added in order: the bits are the same in every run, without atomic
   operations. */
#include "cuda/block.h"
#include "cuda/sort.h"
#include "cuda/table.h"

static __global__ void places_kernel(const __grid_constant__ pd_places c, int64_t *out, bad_record *record) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; p < c.count; p += step) {
        int64_t place = c.base, rest = c.first + p;
        for (int d = c.ndim - 1; d >= 0; d--) {
            place += rest % c.size[d] * c.own[d];
            rest /= c.size[d];
        }
        for (int j = 0; j < c.nby && place >= 0; j++) {
            const pd_chooser &by = c.by[j];
            int64_t at = 0, add;
            rest = c.first + p;
            for (int d = c.ndim - 1; d >= 0; d--) {
                at += rest % c.size[d] * by.stride[d];
                rest /= c.size[d];
            }
            int64_t value = by.narrow ? ((const int32_t *)by.index)[at] : ((const int64_t *)by.index)[at];
            if (!pd_choose(&by, value, &add))
                complain(record, pd_bad_index{c.op, c.kind, {value, c.kind == PD_BAD_INDEX ? by.dim : by.all ? by.all : by.n, by.n, 0}});
            place = add < 0 ? -1 : place + add;
        }
        out[p] = place;
    }
}
bool pd_cuda_places(const pd_places *c, int64_t *out, pd_bad_index *) {
    bad_record *record = c->nby ? pd_cuda_bad_record() : nullptr;
    if (record || !c->nby) launch(places_kernel, blocks_for(c->count, THREADS, 1), THREADS, *c, out, record);
    return true;
}

/* ---- blocks of bytes, a word at a time --------------------------------------------------------------------------- */

/* Calls f(tag<word>()) for the largest word of which blocks of `bytes` bytes can be made. */
template <class F> static void by_word(size_t bytes, F f) {
    if (bytes % 16 == 0) f(tag<pack<uint64_t, 2>>());
    else if (bytes % 8 == 0) f(tag<uint64_t>());
    else if (bytes % 4 == 0) f(tag<uint32_t>());
    else if (bytes % 2 == 0) f(tag<uint16_t>());
    else f(tag<uint8_t>());
}
template <class W> static __device__ void move_word(char *to, const char *from) {
    if ((((uintptr_t)to | (uintptr_t)from) & (sizeof(W) - 1)) == 0) *(W *)to = *(const W *)from;
    else
        for (size_t k = 0; k < sizeof(W); k++) to[k] = from[k];
}

template <class W>
static __global__ void take_kernel(int64_t count, int64_t words, const int64_t *offset, const char *src, char *dst) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count * words; at += step) {
        int64_t from = offset[at / words], word = at % words * (int64_t)sizeof(W);
        W none = {};
        if (from >= 0) move_word<W>(dst + at * (int64_t)sizeof(W), src + from + word);
        else move_word<W>(dst + at * (int64_t)sizeof(W), (const char *)&none);
    }
}
void pd_cuda_take(int64_t count, size_t bytes, const int64_t *offset, const char *src, char *dst) {
    if (!bytes) return;
    by_word(bytes, [&](auto word) {
        typedef typename decltype(word)::type W;
        int64_t words = (int64_t)(bytes / sizeof(W));
        launch(take_kernel<W>, blocks_for(count * words, THREADS, 1), THREADS, count, words, offset, src, dst);
    });
}

/* ---- what goes to one place -------------------------------------------------------------------------------------- */

static __global__ void number_places(const int64_t *offset, entry *e, int64_t count) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        e[i] = entry{(uint64_t)offset[i], i}; /* -1 is sorted last */
}
static const entry *by_place(int64_t count, const int64_t *offset) {
    entry *e = pd_cuda_entries(1, count);
    if (!e) return nullptr;
    launch(number_places, blocks_for(count, THREADS, 1), THREADS, offset, e, count);
    return pd_cuda_sorted(e, 1, count);
}

template <class W>
static __global__ void put_kernel(const entry *e, int64_t count, int64_t words, const char *src, int64_t src_stride, char *dst) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count * words; at += step) {
        int64_t p = at / words, word = at % words * (int64_t)sizeof(W);
        uint64_t place = e[p].key;
        if (place == ~UINT64_C(0) || (p + 1 < count && e[p + 1].key == place)) continue;
        move_word<W>(dst + place + word, src + e[p].i * src_stride + word);
    }
}
void pd_cuda_put(int64_t count, size_t bytes, const int64_t *offset, const char *src, int64_t src_stride, char *dst) {
    const entry *e = count > 0 && bytes ? by_place(count, offset) : nullptr;
    if (!e) return;
    by_word(bytes, [&](auto word) {
        typedef typename decltype(word)::type W;
        int64_t words = (int64_t)(bytes / sizeof(W));
        launch(put_kernel<W>, blocks_for(count * words, THREADS, 1), THREADS, e, count, words, src, src_stride, dst);
    });
}

/* Equal places stand side by side in e, which is cut into stretches of SPAN entries, so that a place of thousands is not
   one thread's work. Of each stretch a thread folds the entries of one place: into dst where it has all of them, else
   into parts[stretch][0], if they go on from the stretch before, or parts[stretch][1], with what stood in dst. */
enum { SPAN = 64 };
template <class F, class E>
static __global__ void reduce_spans(const entry *e, int64_t count, int64_t n, const char *src, int64_t src_stride, char *dst, wide<E> *parts) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count * n; at += step) {
        int64_t p = at / n, k = at % n, span = p / SPAN, end = (span + 1) * SPAN < count ? (span + 1) * SPAN : count;
        uint64_t place = e[p].key;
        bool begins = !p || e[p - 1].key != place;
        if (place == ~UINT64_C(0) || (!begins && p % SPAN)) continue;
        E *to = (E *)(dst + place) + k;
        auto all = begins ? widen(*to) : F::none();
        for (; p < end && e[p].key == place; p++) all = F::of(all, widen(((const E *)(src + e[p].i * src_stride))[k]));
        if (begins && (p == count || e[p].key != place)) *to = narrow<E>(all);
        else parts[(2 * span + begins) * n + k] = all;
    }
}
/* Folds the parts of the place that ends a stretch, if it begins there and goes on in the next. */
template <class F, class E>
static __global__ void reduce_parts(const entry *e, int64_t count, int64_t n, char *dst, const wide<E> *parts) {
    int64_t step = (int64_t)gridDim.x * blockDim.x, spans = (count - 1) / SPAN;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < spans * n; at += step) {
        int64_t span = at / n, k = at % n;
        uint64_t place = e[(span + 1) * SPAN].key;
        if (place == ~UINT64_C(0) || e[(span + 1) * SPAN - 1].key != place || (span && e[span * SPAN - 1].key == place)) continue;
        auto all = parts[(2 * span + 1) * n + k];
        for (span++; span * SPAN < count && e[span * SPAN].key == place; span++) all = F::of(all, parts[2 * span * n + k]);
        ((E *)(dst + place))[k] = narrow<E>(all);
    }
}
/* Writes the value with which a fold begins to all places. Equal writes to one place do no harm. */
template <class F, class E> static __global__ void neutral_kernel(const int64_t *offset, int64_t count, int64_t n, char *dst) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < count * n; at += step)
        if (offset[at / n] >= 0) ((E *)(dst + offset[at / n]))[at % n] = narrow<E>(F::none());
}
template <class C> struct complex_times {
    static __device__ C none() { return {1, 0}; }
    static __device__ C of(C a, C b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
};
template <class F, class E>
static void reduce(int64_t count, int64_t n, const int64_t *offset, const char *src, int64_t src_stride, char *dst) {
    int64_t blocks = blocks_for(count * n, THREADS, 1), spans = (count - 1) / SPAN;
    if (!src) return launch(neutral_kernel<F, E>, blocks, THREADS, offset, count, n, dst);
    const entry *e = by_place(count, offset);
    wide<E> *parts = e && spans ? (wide<E> *)pd_cuda_lent->room(sizeof(wide<E>) * (size_t)(2 * (spans + 1) * n)) : nullptr;
    if (!e || (spans && !parts)) return;
    launch(reduce_spans<F, E>, blocks, THREADS, e, count, n, src, src_stride, dst, parts);
    launch(reduce_parts<F, E>, blocks_for(spans * n, THREADS, 1), THREADS, e, count, n, dst, (const wide<E> *)parts);
}
void pd_cuda_put_reduce(pd_fold how, pd_dtype t, int64_t count, int64_t n, const int64_t *offset, const char *src,
                        int64_t src_stride, char *dst) {
    if (count <= 0 || n <= 0) return;
    if (pd_dtype_is_complex(t) && how == PD_FOLD_PROD) {
        if (t == PD_C64) reduce<complex_times<pd_c64>, pd_c64>(count, n, offset, src, src_stride, dst);
        else reduce<complex_times<pd_c128>, pd_c128>(count, n, offset, src, src_stride, dst);
        return;
    }
    if (pd_dtype_is_complex(t)) t = pd_dtype_part(t), n *= 2;
    if (t == PD_BOOL) how = how == PD_FOLD_SUM ? PD_FOLD_MAX : how == PD_FOLD_PROD ? PD_FOLD_MIN : how; /* or; and */
    by_type(t, [&](auto type) {
        typedef typename decltype(type)::type E;
        typedef wide<E> T;
        switch (how) {
        case PD_FOLD_SUM: return reduce<plus<T>, E>(count, n, offset, src, src_stride, dst);
        case PD_FOLD_PROD: return reduce<times<T>, E>(count, n, offset, src, src_stride, dst);
        case PD_FOLD_MAX: return reduce<larger<T>, E>(count, n, offset, src, src_stride, dst);
        default: return reduce<smaller<T>, E>(count, n, offset, src, src_stride, dst);
        }
    });
}
