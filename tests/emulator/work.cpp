/* What each kernel of kernels.def moves, from the arguments of a call. A launch counts each operand that it reads or
   writes once, and again where another launch of the call, or another pass over rows that the L2 cannot keep, reads
   it again. `launches` says for how many launches a formula is written: where a call makes more or fewer, the count
   says so, and the formula is to be mended with the kernel.

   Not counted: sectors of which a strided access uses a part, and what caches lose of operands that many blocks share
   (weights, keys and values of attention, places of indices). */
#include <type_traits>

#include "count.h"
#include "cuda/attention.h"
#include "cuda/fold.h"
#include "cuda/table.h"

/* ---- what formulas are made of ---- */

static const uint8_t sizes[] = {
#define PD_DTYPE(E, name, ctype, bytes, cat) bytes,
#include "base/dtype.def"
#undef PD_DTYPE
};
static const char *const names[] = {
#define PD_DTYPE(E, name, ctype, bytes, cat) #name,
#include "base/dtype.def"
#undef PD_DTYPE
};
static double size_of(pd_dtype t) { return sizes[t]; }
static double wide_size(pd_dtype t) { return t == PD_F64 ? 8 : 4; } /* of statistics and sums */
static std::string kind(const char *name, pd_dtype t, const char *part = "") {
    return std::string(name) + " " + names[t] + part;
}

/* How often memory gives a row that is read `passes` times. It comes from the L2, if that holds the rows of all
   blocks that run. */
static double reads(int passes, double rows, double bytes_of_row) {
    const double l2 = 50e6, running = 132 * 8;
    return (rows < running ? rows : running) * bytes_of_row > l2 ? passes : 1;
}

/* How many elements of operand k there are; one that is repeated counts once. */
static double elements(const pd_loop *l, int k) {
    double n = l->cells >> k & 1 ? 0 : 1;
    for (int d = 0; d < l->ndim; d++)
        if (l->stride[k][d]) n *= (double)l->size[d];
    return n;
}
static bool is_dense(const pd_loop *l, const double *size) {
    for (int k = 0; k < l->nop; k++)
        if (l->ndim > 1 ? elements(l, k) > 1 : l->ndim == 1 && l->stride[k][0] && l->stride[k][0] != (int64_t)size[k])
            return false;
    return true;
}
static bool is_again(const pd_loop *l, int k) { /* the same operand as one before */
    for (int i = 1; i < k; i++)
        if (l->ptr[i] == l->ptr[k] && !memcmp(l->stride[i], l->stride[k], (size_t)l->ndim * sizeof(int64_t)))
            return true;
    return false;
}
/* Each part of a long axis writes its result, of `wide` bytes, which the last one reads. */
static void add_parts(pd_work *w, const cut &c, const pd_block &b, double wide) {
    const double bytes = c.parts > 1 ? (double)(c.parts * b.outer * b.inner) * wide : 0;
    w->read += bytes;
    w->written += bytes;
}
static pd_work each(std::string kind, const pd_loop *l, double to, double a, double b, double c) {
    double size[] = {to, a, b, c};
    for (int k = 1; k < l->nop && l->mixed; k++) size[k] = size_of((pd_dtype)l->type[k]);
    bool dense = is_dense(l, size);
    pd_work w = {kind + (l->mixed ? ", mixed" : "") + (dense ? "" : ", strided"), 0, 0, 0,
                 l->numel <= 0                  ? 0
                 : dense || l->numel <= 1 << 30 ? 1
                                                : -1};
    if (l->numel <= 0) return w;
    w.written = elements(l, 0) * to;
    for (int k = 1; k < l->nop; k++)
        if (!is_again(l, k)) w.read += elements(l, k) * size[k];
    if (l->sums) {
        const pd_block b = {1, l->numel / l->columns, l->columns};
        bool aligned = true;
        for (int k = 0; k < l->nop; k++) aligned = aligned && (l->cells >> k & 1 || (uintptr_t)l->ptr[k] % 16 == 0);
        add_parts(&w, cut_of(&b, aligned, (size_t)to), b, 4);
        w.written += 4 * (double)l->columns;
    }
    return w;
}
static pd_work each(std::string kind, const pd_loop *l, double size) { return each(kind, l, size, size, size, size); }

/* ---- the kernels: work_of(row, arguments of the call) ---- */

#define PD_KERNEL(devices, result, name, ...) \
    struct row_##name {};
#include "kernels/kernels.def"
#undef PD_KERNEL

/* A kernel without a formula: its bytes are unknown. */
template <class... A>
static pd_work work_of(const char *name, A...) {
    return {std::string(name) + ", no formula", 0, 0, 0, 0};
}

static pd_work work_of(row_unary, pd_unary fn, pd_dtype t, const pd_loop *l) {
    static const char *const of[] = {
#define PD_UNARY(name, ...) #name,
#include "kernels/unary.def"
#undef PD_UNARY
    };
    return each(kind(of[fn], t), l, size_of(t));
}
static pd_work work_of(row_unary_grad, pd_unary fn, pd_dtype t, const pd_loop *l) {
    pd_work w = work_of(row_unary(), fn, t, l);
    return w.kind += ", backward", w;
}
static pd_work work_of(row_binary, pd_binary fn, pd_dtype t, double, const pd_loop *l) {
    static const char *const of[] = {
#define PD_BINARY(name, ...) #name,
#include "kernels/binary.def"
#undef PD_BINARY
    };
    return each(kind(of[fn], t), l, size_of(t));
}
static pd_work work_of(row_binary_grad, pd_binary fn, int, pd_dtype t, double a, const pd_loop *l) {
    pd_work w = work_of(row_binary(), fn, t, a, l);
    return w.kind += ", backward", w;
}
static pd_work work_of(row_compare, pd_compare, pd_dtype t, const pd_loop *l) {
    return each(kind("compare", t), l, 1, size_of(t), size_of(t), 0);
}
static pd_work work_of(row_ternary, pd_ternary, pd_dtype t, double, const pd_loop *l) {
    return each(kind("ternary", t), l, size_of(t));
}
static pd_work work_of(row_pointwise, pd_pointwise fn, int which, pd_dtype t, const double *, const pd_loop *l) {
    static const char *const of[] = {
#define PD_POINTWISE1(name, ...) #name,
#define PD_POINTWISE2(name, ...) #name,
#include "kernels/pointwise.def"
#undef PD_POINTWISE1
#undef PD_POINTWISE2
    };
    return each(kind(of[fn], t, which ? ", backward" : ""), l, size_of(t));
}
static pd_work work_of(row_complex_part, pd_complex_part part, pd_dtype t, const pd_loop *l) {
    return each(kind("complex part", t), l, part == PD_COMPLEX_CONJ ? size_of(t) : size_of(t) / 2, size_of(t), 0, 0);
}
static pd_work work_of(row_where, size_t size, const pd_loop *l) {
    return each("where", l, (double)size, 1, (double)size, (double)size);
}
static pd_work work_of(row_copy, pd_dtype to, pd_dtype from, const pd_loop *l) {
    std::string what = to == from ? kind("copy", to) : kind("cast", from) + " to " + names[to];
    return each(what, l, size_of(to), size_of(from), 0, 0);
}
static pd_work work_of(row_fill, size_t size, const void *, const pd_loop *l) { return each("fill", l, (double)size); }
static pd_work work_of(row_range, pd_dtype t, void *, int64_t n, double, double) {
    return {"range", 0, (double)n * size_of(t), 0, n > 0};
}

static pd_work folded(std::string kind, pd_block b, const void *x, double size, double wide, double out) {
    const double count = (double)(b.outer * b.inner);
    if (count <= 0) return {kind, 0, 0, 0, 0};
    const size_t vector = (size_t)size * (size_t)vector_of((size_t)size);
    pd_work w = {kind, count * (double)b.n * size, count * out, 0, 1};
    add_parts(&w, cut_of(&b, (uintptr_t)x % vector == 0, (size_t)size), b, wide);
    return w;
}
static pd_work work_of(row_fold, pd_fold, pd_dtype t, pd_dtype out_t, const pd_block *b, const void *x, void *) {
    double wide = t == PD_F32 || t == PD_F16 || t == PD_BF16 ? 4 : 8;
    return folded(kind("fold", t), *b, x, size_of(t), wide, size_of(out_t));
}
static pd_work work_of(row_sum_squares, pd_dtype t, int64_t n, const void *x, double *) {
    return folded(kind("sum_squares", t), pd_block{1, n, 1}, x, size_of(t), 8, 8);
}
static double count_of(const pd_block *b) { return (double)(b->outer * b->n * b->inner); }
static pd_work work_of(row_softmax, bool, pd_dtype t, const pd_block *b, const void *, void *) {
    double all = count_of(b) * size_of(t);
    return {kind("softmax", t), all * reads(3, (double)b->outer, (double)b->n * size_of(t)), all, 0, all > 0};
}
static pd_work work_of(row_softmax_grad, bool, pd_dtype t, const pd_block *b, const void *, const void *, void *) {
    double all = count_of(b) * size_of(t);
    return {kind("softmax", t, ", backward"), 2 * all * reads(2, (double)b->outer, 2 * (double)b->n * size_of(t)), all,
            0, all > 0};
}

static pd_work work_of(row_arg, bool, pd_dtype t, const pd_block *b, const void *, void *values, int64_t *) {
    double rows = (double)(b->outer * b->inner);
    return {kind("arg", t), count_of(b) * size_of(t), rows * (8 + (values ? size_of(t) : 0)), 0, rows > 0};
}
static pd_work work_of(row_cumsum, bool, pd_dtype t, pd_dtype out_t, const pd_block *b, const void *, void *) {
    return {kind("cumsum", t), count_of(b) * size_of(t), count_of(b) * size_of(out_t), 0, count_of(b) > 0};
}
/* Entries of 16 bytes are made of all elements of rows of n, sorted in tiles of 512, and merged in pairs of runs. */
static pd_work sorted(std::string kind, double all, double n, double size) {
    pd_work w = {kind, size * all, 16 * all, 0, 1};
    int passes = n > 1;
    for (double run = 512; run < n; run *= 2) passes++;
    w.read += 16 * all * passes;
    w.written += 16 * all * passes;
    w.launches += passes;
    return w;
}
static pd_work work_of(row_sort, bool, pd_dtype t, const pd_block *b, const void *, int64_t *, void *) {
    double all = count_of(b);
    if (all <= 0) return {kind("sort", t), 0, 0, 0, 0};
    pd_work w = sorted(kind("sort", t), all, (double)b->n, size_of(t));
    w.read += 8 * all; /* of an entry only its number */
    w.written += 8 * all;
    w.launches++;
    return w;
}

/* ---- losses ---- */

/* K sums of n doubles, by parts of 2048. */
static void add_up(pd_work *w, int K, double rows) {
    double parts = (double)blocks_for((int64_t)rows, 256, 8);
    w->read += 8 * K * rows;
    w->launches++;
    if (parts > 1) w->read += 8 * K * parts, w->written += 8 * K * parts;
    w->written += K == 2 ? 24 : 8;
}
static double loss_size(pd_dtype t, const pd_xent *c) { return c->wide ? wide_size(t) : size_of(t); }
static double weights(pd_dtype t, const pd_xent *c) { return c->weight ? (double)c->C * size_of(t) : 0; }
static pd_work work_of(row_labels, const char *, pd_dtype, const pd_xent *c, double *total, pd_bad_index *) {
    double rows = (double)c->rows;
    pd_work w = {"labels", 8 * rows, total ? 8 * rows : 0, 0, rows > 0};
    if (total) add_up(&w, 1, rows);
    return w;
}
/* Each row is read in one pass; smoothing needs another. */
static pd_work work_of(row_xent, pd_dtype t, const pd_xent *c, const void *, void *, void *losses, double *) {
    double rows = c->C > 0 ? (double)c->rows : 0, row = (double)c->C * size_of(t);
    pd_work w = {kind("cross_entropy", t), rows * (row * (c->smoothing != 0 ? reads(2, rows, row) : 1) + 8), 0, 0,
                 rows > 0};
    w.read += weights(t, c);
    w.written = rows * (wide_size(t) + 16 + (losses ? loss_size(t, c) : 0));
    add_up(&w, 2, rows);
    return w;
}
/* What the gradient of the losses reads besides: of each row or of all together, and the total weight. */
static double scales(pd_dtype t, const pd_xent *c, const void *g, bool each, const void *total) {
    return (g ? (each ? (double)c->rows : 1) * loss_size(t, c) : 0) + (total ? wide_size(t) : 0);
}
static pd_work work_of(row_xent_grad, pd_dtype t, const pd_xent *c, const void *, const void *, const void *g,
                       bool each, const void *total, double, void *) {
    double rows = (double)c->rows, row = (double)c->C * size_of(t);
    return {kind("cross_entropy", t, ", backward"),
            rows * (row + 8 + wide_size(t)) + scales(t, c, g, each, total) + weights(t, c), rows * row, 0, rows > 0};
}
static pd_work work_of(row_nll, pd_dtype t, const pd_xent *c, const void *, void *losses, double *) {
    double rows = c->C > 0 ? (double)c->rows : 0;
    pd_work w = {kind("nll", t), rows * (size_of(t) + 8), rows * (16 + (losses ? loss_size(t, c) : 0)), 0, rows > 0};
    add_up(&w, 2, rows);
    return w;
}
static pd_work work_of(row_nll_grad, pd_dtype t, const pd_xent *c, const void *g, bool each, const void *total, double,
                       void *) {
    double rows = (double)c->rows;
    return {kind("nll", t, ", backward"), rows * 8 + scales(t, c, g, each, total) + weights(t, c),
            rows * (double)c->C * size_of(t), 0, rows > 0};
}

/* ---- random numbers and indices ---- */

static pd_work work_of(row_dropout, pd_dtype t, int64_t n, double, pd_rng_key, const void *, void *) {
    return {kind("dropout", t), (double)n * size_of(t), (double)n * size_of(t), 0, n > 0};
}
static pd_work drawn(pd_dtype t, int64_t n) { return {kind("random", t), 0, (double)n * size_of(t), 0, n > 0}; }
static pd_work work_of(row_uniform, pd_dtype t, int64_t n, double, double, pd_rng_key, void *) { return drawn(t, n); }
static pd_work work_of(row_normal, pd_dtype t, int64_t n, double, double, pd_rng_key, void *) { return drawn(t, n); }
static pd_work work_of(row_randint, pd_dtype t, int64_t n, int64_t, int64_t, pd_rng_key, void *) { return drawn(t, n); }
static pd_work work_of(row_bernoulli, pd_dtype t, int64_t n, double, pd_rng_key, void *) { return drawn(t, n); }

static pd_work work_of(row_places, const pd_places *c, int64_t *, pd_bad_index *) {
    pd_work w = {"places", 0, 8 * (double)c->count, 0, c->count > 0};
    for (int j = 0; j < c->nby; j++) {
        double n = 1;
        for (int d = 0; d < c->ndim; d++)
            if (c->by[j].stride[d]) n *= (double)c->size[d];
        w.read += (n < (double)c->count ? n : (double)c->count) * (c->by[j].narrow ? 4 : 8);
    }
    return w;
}
static pd_work work_of(row_take, int64_t count, size_t bytes, const int64_t *, const char *, char *) {
    double all = (double)count * (double)bytes;
    return {"take", 8 * (double)count + all, all, 0, all > 0};
}
static pd_work work_of(row_put, int64_t count, size_t bytes, const int64_t *, const char *, int64_t, char *) {
    if (count <= 0 || !bytes) return {"put", 0, 0, 0, 0};
    pd_work w = sorted("put", (double)count, (double)count, 8);
    w.read += (double)count * (16 + (double)bytes);
    w.written += (double)count * (double)bytes;
    w.launches++;
    return w;
}
/* As if all places were different. */
static pd_work work_of(row_put_reduce, pd_fold, pd_dtype t, int64_t count, int64_t n, const int64_t *, const char *src,
                       int64_t, char *) {
    double rows = (double)count, all = rows * (double)n * size_of(t), spans = (double)((count - 1) / 64);
    if (count <= 0 || n <= 0) return {kind("put_reduce", t), 0, 0, 0, 0};
    if (!src) return {kind("put_reduce", t), 8 * rows, all, 0, 1};
    pd_work w = sorted(kind("put_reduce", t), rows, rows, 8);
    w.read += 16 * rows + 2 * all + 32 * spans;
    w.written += all;
    w.launches += 1 + (spans > 0);
    return w;
}

/* ---- norms ---- */

static double count_of(const pd_batch_norm *c) { return (double)(c->N * c->C * c->S); }
/* Statistics, and then y: each reads x. */
static pd_work work_of(row_batch_norm_train, pd_dtype t, const pd_batch_norm *c, const void *, const void *,
                       const void *, double, void *, void *, void *, void *, void *) {
    double all = count_of(c) * size_of(t);
    return {kind("batch_norm", t), 2 * all, all, 0, all > 0 ? 3 : 0};
}
static pd_work work_of(row_batch_norm_eval, pd_dtype t, const pd_batch_norm *c, const void *, const void *,
                       const void *, const void *, const void *, void *) {
    double all = count_of(c) * size_of(t);
    return {kind("batch_norm", t), all, all, 0, all > 0 ? 2 : 0};
}
/* Sums, and then gx: each reads x and g. */
static pd_work work_of(row_batch_norm_grad, pd_dtype t, const pd_batch_norm *c, bool, const void *, const void *,
                       const void *, const void *, const void *, void *gx, void *, void *) {
    double all = count_of(c) * size_of(t);
    return {kind("batch_norm", t, ", backward"), (gx ? 4 : 2) * all, gx ? all : 0, 0,
            all > 0 ? 2 + (gx != nullptr) : -1};
}

static double row_of(pd_dtype t, const pd_row_norm *c) { return (double)c->n * size_of(t); }
/* How often memory gives a row that threads do not keep in registers. */
static double reads_of(const pd_row_norm *c, int passes, double row) {
    return c->n <= (c->s == PD_F64 ? 1024 : 8192) ? 1 : reads(passes, (double)c->rows, row);
}
/* Up to three passes: the mean, the deviation, the result. */
static pd_work work_of(row_row_norm, const pd_row_norm *c, const void *, const void *y, const void *w, const void *b,
                       void *, void *, void *low, void *, void *) {
    const double rows = (double)c->rows, x = row_of(c->x, c), s = y ? row_of(c->s, c) : 0, T = wide_size(c->s);
    if (rows * x <= 0) return {kind(y ? "add, norm" : "norm", c->s), 0, 0, 0, 0};
    return {kind(y ? "add, norm" : "norm", c->s),
            rows * (x * (y ? 1 : reads_of(c, c->rms ? 2 : 3, x)) + (y ? row_of(c->y, c) : 0) +
                    s * (reads_of(c, 3, s) - 1)) +
                row_of(c->w, c) * ((w != nullptr) + (b != nullptr)),
            rows * (s + row_of(c->out, c) + (low ? row_of(c->low, c) : 0) + 2 * T), 0, 1};
}
/* One pass; the parts of gw, gb and sums are written and read. */
static pd_work work_of(row_row_norm_grad, const pd_row_norm *c, const void *, const void *gs, const void *,
                       const void *w, const void *, const void *, void *gx, void *gy, void *gw, void *gb,
                       float *sums, void *) {
    const int64_t length = c->rows <= 8 * 256 ? 8 : (c->rows + 255) / 256;
    const double rows = (double)c->rows, T = wide_size(c->s), row = row_of(c->out, c) + row_of(c->s, c),
                 parts = (sums ? 3 : 2) * (double)((c->rows + length - 1) / length) * (double)c->n * T;
    pd_work of = {kind("norm", c->s, ", backward"), 0, 0, 0, 0};
    if (rows * row <= 0) return of;
    of.read = rows * (row * (gx ? reads_of(c, 2, row) : 1) + (gx && gs ? row_of(c->s, c) : 0) + 2 * T) +
              (w ? row_of(c->w, c) : 0);
    of.written = rows * ((gx ? row_of(c->x, c) : 0) + (gy ? row_of(c->y, c) : 0));
    of.launches = 1;
    if (!gw && !gb && !sums) return of;
    of.read += parts;
    of.written += parts + row_of(c->w, c) * ((gw != nullptr) + (gb != nullptr)) + (sums ? 4 * (double)c->n : 0);
    return of;
}

/* ---- attention: operations are those of pairs that causality leaves ---- */

static double pairs(const pd_attention *c) {
    double nq = (double)c->nq, nk = (double)c->nk, seen = nq < nk ? nq : nk; /* query i sees min(i + 1, nk) keys */
    return (double)(c->B * c->H) * (c->causal ? seen * (seen + 1) / 2 + (nq - seen) * nk : nq * nk);
}
static double queries(const pd_attention *c, int64_t width) {
    return (double)(c->B * c->H * c->nq * width) * size_of(c->t);
}
static double keys(const pd_attention *c, int64_t width) {
    return (double)(c->B * c->Hkv * c->nk * width) * size_of(c->t);
}
static double logs(const pd_attention *c) { return (double)(c->B * c->H * c->nq) * wide_size(c->t); }
static pd_work work_of(row_attention, const pd_attention *c, const void *, const void *, const void *, const void *,
                       void *, void *, void *) {
    return {kind("attention", c->t), queries(c, c->d) + keys(c, c->d) + keys(c, c->dv), queries(c, c->dv) + logs(c),
            2 * pairs(c) * (double)(c->d + c->dv), 1};
}
/* gq and sums of g * out, for which the scores and their gradient are made again (3 products); then gk and gv, which
   make both, too (4). Tensor cores make gk and gv of heads above 128 apart, and the scores for each; gv needs no v. Sums
   of columns are made of parts of 64 rows; of heads above PD_ATTENTION_SUMS, and without tensor cores, by kernels that
   read the gradients again. */
static pd_work work_of(row_attention_grad, const pd_attention *c, const void *g, const void *q, const void *k,
                       const void *v, const void *, const void *out, const void *, void *gq, void *gk, void *gv,
                       void *) {
    const bool cores = pd_cuda_attention_fits(c, q, k, v, g) && pd_cuda_attention_grad_fits(c, out, gq, gk, gv),
               apart = cores && c->d > 128, within = cores && c->d <= PD_ATTENTION_SUMS;
    const double operands = queries(c, c->d) + queries(c, c->dv) + keys(c, c->d) + keys(c, c->dv),
                 made[] = {queries(c, c->d), keys(c, c->d), keys(c, c->dv)};
    pd_work w = {kind("attention", c->t, ", backward"),
                 queries(c, c->dv) + (2 + apart) * operands - apart * keys(c, c->dv) + (3 + 2 * apart) * logs(c),
                 logs(c) + queries(c, c->d) + keys(c, c->d) + keys(c, c->dv),
                 2 * pairs(c) * (double)((4 + apart) * c->d + 3 * c->dv), 2 + apart};
    for (int i = 0; i < 3; i++) {
        const int64_t n = i ? c->nk : c->nq, columns = (i ? c->Hkv : c->H) * (i == 2 ? c->dv : c->d);
        const pd_block all = {1, c->B * n, columns}, parts = {1, c->B * ((n + 63) / 64), columns};
        if (!c->sums[i]) continue;
        cut cut = cut_of(&all, false, (size_t)size_of(c->t));
        if (within) cut.parts = parts.n;
        else w.read += made[i], w.launches++;
        if (within && parts.n == 1) w.read += 4 * (double)columns, w.written += 4 * (double)columns;
        add_parts(&w, cut, all, 4);
        w.written += 4 * (double)columns;
    }
    return w;
}

/* ---- pooling ---- */

static double inputs(const pd_pool *c) { return (double)(c->N * c->C * c->H * c->W) * size_of(c->t); }
static double results(const pd_pool *c) { return (double)(c->N * c->C * c->P * c->Q); }
static double place_size(const pd_pool *c) { return c->wide ? 4 : 1; }
static pd_work work_of(row_max_pool, const pd_pool *c, const void *, void *, void *place) {
    return {kind("max_pool", c->t), inputs(c), results(c) * (size_of(c->t) + (place ? place_size(c) : 0)), 0,
            results(c) > 0};
}
static pd_work work_of(row_max_pool_grad, const pd_pool *c, const void *, const void *, void *) {
    return {kind("max_pool", c->t, ", backward"), results(c) * (size_of(c->t) + place_size(c)), inputs(c), 0,
            inputs(c) > 0};
}
static pd_work work_of(row_avg_pool, const pd_pool *c, const void *, void *) {
    return {kind("avg_pool", c->t), inputs(c), results(c) * size_of(c->t), 0, results(c) > 0};
}
static pd_work work_of(row_avg_pool_grad, const pd_pool *c, const void *, void *) {
    return {kind("avg_pool", c->t, ", backward"), results(c) * size_of(c->t), inputs(c), 0, inputs(c) > 0};
}

/* ---- optimizers: a launch takes 160 tensors; another comes first, if numbers of the step are on the device ---- */

static pd_work step_of(const char *name, pd_dtype t, const pd_segment_step *s, int64_t count) {
    pd_work w = {kind(name, t), 0, 0, 0, (int)((count + 159) / 160) + (count > 0 && (s->lr || s->step))};
    for (int64_t i = 0; i < count; i++, s++) {
        int kept = 1 + (s->m != nullptr) + (s->v != nullptr) + (s->w != nullptr);
        w.read += (double)s->n * size_of(t) * (kept + 1);
        w.written += (double)s->n * (size_of(t) * kept + (s->low ? 2 : 0));
    }
    return w;
}
#define STEP(name)                                                                                               \
    static pd_work work_of(row_##name, pd_dtype t, const pd_##name *, const pd_segment_step *s, int64_t count) { \
        return step_of(#name, t, s, count);                                                                      \
    }
STEP(sgd)
STEP(adam)
STEP(adadelta)
STEP(rmsprop) STEP(adagrad) STEP(moments) STEP(adamax) STEP(asgd) STEP(rprop) STEP(lion)
#undef STEP
    static pd_work work_of(row_unscale, pd_dtype t, int64_t n, const float *, float *, void *) {
    return {kind("unscale", t), (double)n * size_of(t) + 4, (double)n * size_of(t), 0, n > 0};
}
static pd_work work_of(row_scale, pd_dtype t, int64_t n, double, void *) {
    return {kind("scale", t), (double)n * size_of(t), (double)n * size_of(t), 0, n > 0};
}

static pd_work work_of(row_sum_tree, pd_dtype t, const pd_sum_tree *c) {
    double n = (double)c->n, read = n * size_of(t) * (c->inputs - 1) + n * size_of(c->last);
    for (int k = 0; k < 2; k++)
        if (c->at[k] >= 0 && !c->own[k]) read -= n * size_of(c->at[k] + 1 == c->inputs ? c->last : t);
    return {kind("sum in order", t), read, n * size_of(t), 0, c->n > 0};
}

/* ---- products and convolutions of our own ---- */

static pd_work work_of(row_gemm, const pd_gemm *c, const void *, const void *, const void *bias, void *, void *) {
    double s = size_of(c->t), M = (double)c->M, N = (double)c->N, K = (double)c->K, batch = (double)c->batch,
           out = c->wide ? 4 : s;
    double a = M * K * (c->a_batch ? batch : 1), b = K * N * (c->b_batch ? batch : 1);
    return {kind("own product", c->t), (a + b + (bias ? N : 0)) * s + (c->beta ? batch * M * N * out : 0),
            batch * M * N * out, 2 * batch * M * N * K, -1};
}
static pd_work work_of(row_conv, const pd_conv *c, pd_conv_part part, const void *, const void *, const void *,
                       void *) {
    double x = (double)(c->N * c->C * c->H * c->W), w = (double)(c->K * c->C / c->groups * c->R * c->S),
           y = (double)(c->N * c->K * c->P * c->Q);
    double out = part == PD_CONV_FORWARD ? y : part == PD_CONV_INPUT ? x : w, s = size_of(c->t);
    return {kind("own convolution", c->t), (x + w + y - out) * s, out * s,
            2 * y * (double)(c->C / c->groups * c->R * c->S), -1};
}

/* ---- the table: each kernel behind a function that counts ---- */

template <class Row, class... A>
static auto find(int, const char *, A... a) -> decltype(work_of(Row(), a...)) {
    return work_of(Row(), a...);
}
template <class Row, class... A>
static pd_work find(long, const char *name, A... a) {
    return work_of(name, a...);
}

template <class Row, class F>
struct counted;
template <class Row, class R, class... A>
struct counted<Row, R (*)(A...)> {
    static const char *name;
    static R (*real)(A...);
    static R call(A... a) {
        pd_work w;
        if (pd_counts()) w = find<Row>(0, name, a...);
        pd_counted_call call(pd_counts() ? &w : nullptr);
        return real(a...);
    }
};
template <class Row, class R, class... A>
const char *counted<Row, R (*)(A...)>::name;
template <class Row, class R, class... A>
R (*counted<Row, R (*)(A...)>::real)(A...);

pd_kernels pd_emulated_kernels(const pd_kernels &from) {
    pd_kernels k = from;
#define PD_KERNEL(devices, result, member, ...)                                         \
    if (from.member && !std::is_same<result, size_t>::value) { /* size_t: of scratch */ \
        typedef counted<row_##member, decltype(from.member)> wrapper;                   \
        wrapper::name = #member;                                                        \
        wrapper::real = from.member;                                                    \
        k.member = wrapper::call;                                                       \
    }
#include "kernels/kernels.def"
#undef PD_KERNEL
    return k;
}
