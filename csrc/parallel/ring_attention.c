#include "parallel/ring_attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/apply.h"
#include "base/profile.h"
#include "base/threads.h"
#include "comm/algo/reduce.h"
#include "kernels/kernels.h"

#define OP "ring_attention"
#define ROOMS 10

enum { Q, K, V, OUT, LSE, GRAD };

/* One pass, forward or backward. Keys and values of a block, and their gradients, are dense: [B, rows, Hkv, d], then
   [B, rows, Hkv, dv]. Temporary results are dense, too: [B, rows, H, width]. */
typedef struct pass {
    const pd_ring *r;
    pd_tensor *const *in;
    const int64_t *keys; /* of each rank */
    int rank, size;
    pd_attention c;    /* all own queries and keys */
    pd_dtype sum;      /* in which parts are added */
    char *block[2];    /* rotated: what is held, and what comes in; gathered: block[0] holds those of all ranks */
    char *behind[2];   /* the block's gradient: rotated as above, in `sum`; gathered: of all ranks */
    char *part, *wide; /* a result of the kernel; the same in `sum` */
    char *fresh, *fresh_wide; /* the same of a block's gradient */
    char *lse;                /* of the same, or for it */
    char *total;              /* out, or the query's gradient, in `sum` */
    pd_storage *room[ROOMS];
    int rooms;
} pass;

/* What a rank does with a block: queries from q0 on, and the first nk keys. */
typedef struct turn {
    int source;
    int64_t q0, nq, nk;
    bool causal;
} turn;

int64_t pd_ring_chunk(int64_t length, int size, int chunk) {
    return length / (2 * size) + (chunk < length % (2 * size));
}

/* ---- what the ranks agree on ------------------------------------------------------------------------------------- */

typedef struct said {
    int64_t right, dtype, B, H, Hkv, d, dv, causal, rotated, scale, nq, nk;
} said;
#define SAID (int64_t)(sizeof(said) / sizeof(int64_t))
static const char *const said_names[] = {
    "",          "dtype",   "batch size", "number of query heads", "number of key heads", "E", "Ev",
    "is_causal", "rotated", "scale",
};
#define SAID_EQUAL (int)(sizeof said_names / sizeof *said_names)

/* Word i for an error. */
static void said_text(const said *s, int i, char *text, size_t size) {
    const int64_t *word = (const int64_t *)s + i;
    double scale;
    memcpy(&scale, &s->scale, sizeof scale);
    if (word == &s->dtype)
        snprintf(text, size, "%s", pd_dtype_name((pd_dtype)*word));
    else if (word == &s->scale)
        snprintf(text, size, "%g", scale);
    else if (word == &s->causal || word == &s->rotated)
        snprintf(text, size, "%s", *word ? "True" : "False");
    else
        snprintf(text, size, "%lld", (long long)*word);
}

static pd_status check_own(pd_tensor *const *in) {
    static const char *const names[] = {"query", "key", "value"};
    const pd_tensor *q = in[Q], *k = in[K], *v = in[V];
    for (int i = 0; i < 3; i++) {
        if (in[i]->storage->device != &pd_device_cpu)
            return pd_fail(PD_E_VALUE, OP ": %s is on %s (expected cpu)", names[i], in[i]->storage->device->name);
        if (!pd_dtype_is_float((pd_dtype)in[i]->dtype) || in[i]->dtype != q->dtype)
            return pd_fail(PD_E_DTYPE, OP ": %s is %s (expected %s)", names[i], pd_dtype_name((pd_dtype)in[i]->dtype),
                           i ? "a floating dtype, that of query" : "a floating dtype");
    }
    bool good = q->ndim == 4 && k->ndim == 4 && v->ndim == 4;
    good = good && k->size[0] == q->size[0] && v->size[0] == q->size[0] && k->size[1] == v->size[1];
    good = good && k->size[2] == v->size[2] && k->size[3] == q->size[3];
    if (good && (k->size[1] ? q->size[1] % k->size[1] == 0 : q->size[1] == 0)) return PD_OK;
    return pd_fail(PD_E_SHAPE,
                   OP
                   ": query has shape %s, key %s, value %s (expected [B, H, T, E], [B, Hkv, S, E], [B, Hkv, S, Ev], "
                   "and an H that is a multiple of Hkv)",
                   pd_tensor_shape(q), pd_tensor_shape(k), pd_tensor_shape(v));
}

static said own_words(const pd_ring *r, pd_tensor *const *in, bool right) {
    said s = {.right = right, .causal = r->causal, .rotated = r->rotated};
    memcpy(&s.scale, &r->scale, sizeof s.scale);
    if (!right) return s;
    const pd_tensor *q = in[Q], *k = in[K];
    s.dtype = q->dtype, s.B = q->size[0], s.H = q->size[1], s.Hkv = k->size[1], s.d = q->size[3];
    s.dv = in[V]->size[3], s.nq = q->size[2], s.nk = k->size[2];
    return s;
}

/* The rows of causal ranks have to be those of the balanced split. */
static pd_status check_rows(const int64_t *keys, int size) {
    int64_t length = 0;
    for (int s = 0; s < size; s++)
        if (__builtin_add_overflow(length, keys[s], &length))
            return pd_fail(PD_E_SHAPE, OP ": the ranks have too many rows (expected fewer than 2^63)");
    for (int s = 0; s < size; s++) {
        int64_t want = pd_ring_chunk(length, size, s) + pd_ring_chunk(length, size, 2 * size - 1 - s);
        if (keys[s] != want)
            return pd_fail(PD_E_SHAPE,
                           OP
                           ": rank %d has %lld rows (expected %lld, its two of %d chunks of a sequence of %lld, with "
                           "is_causal)",
                           s, (long long)keys[s], (long long)want, 2 * size, (long long)length);
    }
    return PD_OK;
}

static pd_status compare(const said *all, int size, const pd_ring *r, int64_t *keys) {
    for (int s = 0; s < size; s++)
        if (!all[s].right)
            return pd_fail(PD_E_MISMATCH, OP ": the arguments of rank %d are wrong (its own error says which)", s);
    for (int s = 1; s < size; s++)
        for (int i = 1; i < SAID_EQUAL; i++)
            if (((const int64_t *)&all[s])[i] != ((const int64_t *)&all[0])[i]) {
                char here[32], want[32];
                said_text(&all[s], i, here, sizeof here);
                said_text(&all[0], i, want, sizeof want);
                return pd_fail(PD_E_MISMATCH, OP ": %s is %s on rank %d (expected %s, as on rank 0)", said_names[i],
                               here, s, want);
            }
    for (int s = 0; s < size; s++)
        if (r->causal && all[s].nq != all[s].nk)
            return pd_fail(PD_E_SHAPE, OP ": rank %d has %lld queries and %lld keys (expected as many, with is_causal)",
                           s, (long long)all[s].nq, (long long)all[s].nk);
    for (int s = 0; s < size; s++) keys[s] = all[s].nk;
    return PD_OK;
}

/* Compares the arguments of all ranks, so that a wrong one is an error on each rank. */
static pd_status agree(const pd_ring *r, pd_tensor *const *in, int64_t *keys) {
    const int size = pd_group_size(r->group);
    pd_status own = check_own(in);
    pd_error e;
    pd_error_save(&e);
    said mine = own_words(r, in, !own);
    pd_storage *room = NULL;
    PD_TRY(pd_storage_new(&pd_device_cpu, sizeof(said) * (size_t)size, &room));
    pd_status status = pd_group_all_gather(r->group, &mine, room->data, SAID, PD_I64, r->site, NULL);
    if (own) {
        pd_error_restore(&e);
        status = own;
    }
    PD_THEN(compare(room->data, size, r, keys));
    pd_storage_release(room);
    return PD_TRAIL(status);
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

static void dense(int64_t *stride, int64_t rows, int64_t heads, int64_t width) {
    stride[0] = rows * heads * width, stride[1] = width, stride[2] = heads * width;
}

/* Whether the bytes of all ranks' blocks can be counted. */
static bool is_countable(const pass *p) {
    int64_t rows = p->c.nq, n = p->c.d + p->c.dv;
    for (int s = 0; s < p->size; s++)
        if (__builtin_add_overflow(rows, p->keys[s], &rows)) return false;
    for (int i = 0; i < 3; i++)
        if (__builtin_mul_overflow(n, (const int64_t[]){p->c.B, p->c.H, 8}[i], &n)) return false;
    return !__builtin_mul_overflow(n, rows, &n);
}

static pd_status begin(pass *p, const pd_ring *r, pd_tensor *const *in, const int64_t *keys) {
    const pd_tensor *q = in[Q], *k = in[K], *v = in[V];
    *p = (pass){.r = r, .in = in, .keys = keys};
    p->rank = pd_group_rank(r->group), p->size = pd_group_size(r->group);
    p->sum = pd_dtype_computed((pd_dtype)q->dtype);
    p->c = (pd_attention){.t = (pd_dtype)q->dtype,
                          .B = q->size[0],
                          .H = q->size[1],
                          .Hkv = k->size[1],
                          .nq = q->size[2],
                          .nk = k->size[2],
                          .d = q->size[3],
                          .dv = v->size[3],
                          .scale = r->scale,
                          .causal = r->causal};
    memcpy(p->c.qs, q->stride, sizeof p->c.qs);
    if (!is_countable(p))
        return pd_fail(PD_E_SHAPE, OP ": the ranks have too many rows (expected fewer than 2^63 bytes)");
    return r->causal ? check_rows(keys, p->size) : PD_OK;
}

static void end(pass *p) {
    for (int i = 0; i < p->rooms; i++) pd_storage_release(p->room[i]);
}

/* Memory until the end of the pass. */
static pd_status take(pass *p, int64_t elements, pd_dtype t, char **out) {
    pd_storage **at = &p->room[p->rooms];
    PD_TRY(pd_storage_new(&pd_device_cpu, (size_t)elements * pd_dtype_size(t), at));
    p->rooms++;
    *out = (*at)->data;
    return PD_OK;
}

static bool is_low(const pass *p) { return p->sum != p->c.t; }
static int64_t key_elements(const pass *p, int64_t rows) { return p->c.B * rows * p->c.Hkv * p->c.d; }
static int64_t block_elements(const pass *p, int source) {
    return p->c.B * p->keys[source] * p->c.Hkv * (p->c.d + p->c.dv);
}
static int64_t largest_block(const pass *p) {
    int64_t most = 0;
    for (int s = 0; s < p->size; s++) most = block_elements(p, s) > most ? block_elements(p, s) : most;
    return most;
}
/* The elements of all blocks before that of rank s. */
static int64_t place_of(const pass *p, int s) {
    int64_t at = 0;
    for (int i = 0; i < s; i++) at += block_elements(p, i);
    return at;
}
static int source_at(const pass *p, int step) { return (p->rank - step + p->size) % p->size; }

static turn turn_of(const pass *p, int step) {
    const int s = source_at(p, step);
    turn t = {.source = s, .nq = p->c.nq, .nk = p->keys[s]};
    if (!p->r->causal) return t;
    if (s == p->rank) {
        t.causal = true;
        return t;
    }
    int64_t length = 0;
    for (int i = 0; i < p->size; i++) length += p->keys[i];
    if (s < p->rank) {
        t.nk = pd_ring_chunk(length, p->size, s);
    } else {
        t.q0 = pd_ring_chunk(length, p->size, p->rank);
        t.nq -= t.q0;
    }
    return t;
}

/* The shape of the kernel's call: q is the caller's, the rest dense. */
static pd_attention shape_at(const pass *p, const turn *t) {
    pd_attention c = p->c;
    c.nq = t->nq, c.nk = t->nk, c.causal = t->causal;
    dense(c.ks, p->keys[t->source], c.Hkv, c.d), dense(c.vs, p->keys[t->source], c.Hkv, c.dv);
    dense(c.os, c.nq, c.H, c.dv);
    memcpy(c.gks, c.ks, sizeof c.gks), memcpy(c.gvs, c.vs, sizeof c.gvs);
    dense(c.gqs, c.nq, c.H, c.d);
    return c;
}

static const char *rows_from(const pd_tensor *x, int64_t row) {
    return (const char *)pd_tensor_data(x) + row * x->stride[2] * (int64_t)pd_dtype_size((pd_dtype)x->dtype);
}

/* Copies x[B, heads, rows, width] to dense memory [B, rows, heads, width]. */
static void pack(const pd_tensor *x, char *to) {
    const int64_t each = (int64_t)pd_dtype_size((pd_dtype)x->dtype), row = x->size[3] * each;
    const char *from = pd_tensor_data(x);
    for (int64_t b = 0; b < x->size[0]; b++)
        for (int64_t i = 0; i < x->size[2]; i++)
            for (int64_t h = 0; h < x->size[1]; h++, to += row)
                memcpy(to, from + (b * x->stride[0] + h * x->stride[1] + i * x->stride[2]) * each, (size_t)row);
}

static void pack_own(const pass *p, char *to) {
    pack(p->in[K], to);
    pack(p->in[V], to + key_elements(p, p->c.nk) * (int64_t)pd_dtype_size(p->c.t));
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* One part for each rank, of blocks that follow each other. */
static pd_status all_parts(pass *p, char *at, pd_part **out) {
    char *parts;
    const int64_t each = (int64_t)pd_dtype_size(p->c.t);
    PD_TRY(take(p, (int64_t)sizeof(pd_part) * p->size, PD_U8, &parts));
    *out = (pd_part *)(void *)parts;
    for (int s = 0; s < p->size; s++)
        (*out)[s] = (pd_part){.data = at + place_of(p, s) * each, .count = block_elements(p, s)};
    return PD_OK;
}

static pd_status gather(pass *p) {
    pd_part *parts;
    PD_TRY(take(p, place_of(p, p->size), p->c.t, &p->block[0]));
    PD_TRY(all_parts(p, p->block[0], &parts));
    pack_own(p, parts[p->rank].data);
    if (p->size == 1) return PD_OK;
    return pd_group_all_gather_parts(p->r->group, parts[p->rank].data, parts, p->c.t, 0, p->r->site, NULL);
}

/* Each rank gives the block that it holds at this step to the next rank. work NULL: waits. */
static pd_status rotate(pass *p, int step, const char *from, char *to, pd_dtype t, pd_work **work) {
    const int next = (p->rank + 1) % p->size, before = (p->rank + p->size - 1) % p->size;
    pd_storage *room = NULL;
    PD_TRY(pd_storage_new(&pd_device_cpu, sizeof(pd_part) * 2 * (size_t)p->size, &room));
    pd_part *gives = room->data, *takes = gives + p->size;
    for (int s = 0; s < 2 * p->size; s++) gives[s] = (pd_part){.data = to};
    gives[next] = (pd_part){.data = (char *)(uintptr_t)from, .count = block_elements(p, source_at(p, step))};
    takes[before] = (pd_part){.data = to, .count = block_elements(p, source_at(p, step + 1))};
    pd_status status = pd_group_all_to_all_parts(p->r->group, gives, takes, t, 0, p->r->site, work);
    pd_storage_release(room);
    return PD_TRAIL(status);
}

/* Fetches the first blocks. */
static pd_status fetch(pass *p) {
    if (!p->r->rotated || p->size == 1) return gather(p);
    for (int i = 0; i < 2; i++) PD_TRY(take(p, largest_block(p), p->c.t, &p->block[i]));
    pack_own(p, p->block[0]);
    return PD_OK;
}

static const char *block_of(const pass *p, int source) {
    if (p->r->rotated && p->size > 1) return p->block[0];
    return p->block[0] + place_of(p, source) * (int64_t)pd_dtype_size(p->c.t);
}

/* Runs one step of the pass while the block goes on to the next rank. */
static pd_status step_of(pass *p, int step, pd_status (*run)(pass *p, int step)) {
    pd_work *work = NULL;
    const bool moves = p->r->rotated && step + 1 < p->size;
    if (moves) PD_TRY(rotate(p, step, p->block[0], p->block[1], p->c.t, &work));
    pd_status status = run(p, step);
    if (pd_between_kernels) pd_between_kernels(); /* other groups' works */
    if (moves) {
        pd_error e;
        if (status) pd_error_save(&e);
        pd_status moved = pd_work_wait(work, -1); /* also after a failure: it uses the blocks */
        pd_work_release(work);
        if (status)
            pd_error_restore(&e);
        else
            status = moved;
        char *held = p->block[0];
        p->block[0] = p->block[1], p->block[1] = held;
    }
    return PD_TRAIL(status);
}

static pd_status all_steps(pass *p, pd_status (*run)(pass *p, int step)) {
    for (int step = 0; step < p->size; step++) PD_TRY(step_of(p, step, run));
    return PD_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

typedef struct merging {
    const pass *p;
    const turn *t;
    const char *part;
} merging;

/* total = total * a + part * b */
static void merge_row(pd_dtype t, char *total, const char *part, int64_t n, double a, double b) {
    if (t == PD_F64) {
        double *x = (double *)(void *)total;
        const double *y = (const double *)(const void *)part;
        for (int64_t e = 0; e < n; e++) x[e] = x[e] * a + y[e] * b;
    } else {
        float *x = (float *)(void *)total, fa = (float)a, fb = (float)b;
        const float *y = (const float *)(const void *)part;
        for (int64_t e = 0; e < n; e++) x[e] = x[e] * fa + y[e] * fb;
    }
}

static double number(pd_dtype t, const char *x, int64_t i) {
    return t == PD_F64 ? ((const double *)(const void *)x)[i] : (double)((const float *)(const void *)x)[i];
}
static void set_number(pd_dtype t, char *x, int64_t i, double v) {
    if (t == PD_F64)
        ((double *)(void *)x)[i] = v;
    else
        ((float *)(void *)x)[i] = (float)v;
}

/* Merges rows [from, to) of [B, nq]: what has been computed so far, and what one more block adds. */
static void merge_rows(void *ctx, int64_t from, int64_t to) {
    const merging *m = ctx;
    const pass *p = m->p;
    const turn *t = m->t;
    const int64_t H = p->c.H, dv = p->c.dv, each = (int64_t)pd_dtype_size(p->sum);
    char *all_lse = pd_tensor_data(p->in[LSE]);
    for (int64_t row = from; row < to; row++) {
        const int64_t b = row / t->nq, i = row % t->nq;
        for (int64_t h = 0; h < H; h++) {
            const int64_t at = (b * H + h) * p->c.nq + t->q0 + i;
            const double old = number(p->sum, all_lse, at), add = number(p->sum, p->lse, (b * H + h) * t->nq + i);
            const double top = old > add ? old : add;
            if (top == -INFINITY) continue; /* neither has seen a key */
            const double a = exp(old - top), w = exp(add - top), sum = a + w;
            merge_row(p->sum, p->total + ((b * p->c.nq + t->q0 + i) * H + h) * dv * each,
                      m->part + ((b * t->nq + i) * H + h) * dv * each, dv, a / sum, w / sum);
            set_number(p->sum, all_lse, at, top + log(sum));
        }
    }
}

static pd_status attend(pass *p, int step) {
    const turn t = turn_of(p, step);
    const pd_attention c = shape_at(p, &t);
    const bool first = step == 0; /* own keys, and all queries */
    const char *k = block_of(p, t.source), *v = k + key_elements(p, p->keys[t.source]) * (int64_t)pd_dtype_size(c.t);
    const int64_t n = c.B * c.nq * c.H * c.dv;
    if (!first && (!c.nq || !c.nk)) return PD_OK;
    pd_storage *scratch;
    PD_TRY(pd_storage_new(&pd_device_cpu, pd_here()->attention_scratch(&c, false), &scratch));
    pd_timespan span = pd_timespan_begin();
    char *to = first && !is_low(p) ? p->total : p->part;
    pd_here()->attention(&c, rows_from(p->in[Q], t.q0), k, v, NULL, to, first ? pd_tensor_data(p->in[LSE]) : p->lse,
                         scratch->data);
    pd_storage_release(scratch);
    if (is_low(p)) pd_reduce_widen(c.t, p->part, first ? p->total : p->wide, n);
    if (!first) {
        merging m = {p, &t, is_low(p) ? p->wide : p->part};
        pd_parallel(c.B * c.nq, pd_grain(c.B * c.nq, c.H * c.dv, PD_GRAIN), merge_rows, &m);
    }
    pd_timespan_end(&span, PD_SPAN_CALL, OP " block", 0);
    return PD_OK;
}

/* [new] [B, heads, rows, width], whose memory is ordered [B, rows, heads, width]. */
static pd_status rows_before_heads(const pd_attention *c, int64_t heads, int64_t rows, int64_t width, pd_tensor **out) {
    PD_TRY(pd_tensor_new(OP, c->t, 4, (int64_t[]){c->B, heads, rows, width}, out));
    dense((*out)->stride, rows, heads, width);
    return PD_OK;
}

static pd_status forward(pass *p, pd_tensor *out) {
    const int64_t n = p->c.B * p->c.nq * p->c.H * p->c.dv;
    PD_TRY(fetch(p));
    if (p->size > 1 || is_low(p)) PD_TRY(take(p, n, p->c.t, &p->part));
    if (p->size > 1) PD_TRY(take(p, p->c.B * p->c.H * p->c.nq, p->sum, &p->lse));
    if (is_low(p)) {
        PD_TRY(take(p, n, p->sum, &p->total));
        PD_TRY(take(p, n, p->sum, &p->wide));
    } else {
        p->total = pd_tensor_data(out);
    }
    PD_TRY(all_steps(p, attend));
    if (is_low(p)) pd_reduce_round(p->c.t, p->total, pd_tensor_data(out), n, 1);
    return PD_OK;
}

pd_status pd_ring_attention(const pd_ring *r, pd_tensor *const in[3], int64_t *keys, pd_tensor **out, pd_tensor **lse) {
    pd_tensor *x[5] = {in[Q], in[K], in[V]};
    pass p;
    PD_TRY(agree(r, in, keys));
    PD_TRY(begin(&p, r, x, keys));
    pd_status status = rows_before_heads(&p.c, p.c.H, p.c.nq, p.c.dv, &x[OUT]);
    PD_THEN(pd_tensor_new(OP, p.sum, 3, x[Q]->size, &x[LSE]));
    PD_THEN(forward(&p, x[OUT]));
    end(&p);
    if (status) {
        pd_tensor_release(x[OUT]);
        pd_tensor_release(x[LSE]);
        return PD_TRAIL(status);
    }
    *out = x[OUT], *lse = x[LSE];
    return PD_OK;
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

static void add(pd_dtype t, char *to, const char *from, int64_t n) {
    pd_reduce_run(t, PD_REDUCE_SUM, 2, (const char *const[]){to, from}, 0, to, n, 1);
}

/* total += the query's gradient of this turn, in p->part. */
static void add_queries(pass *p, const turn *t) {
    const int64_t row = p->c.H * p->c.d, each = (int64_t)pd_dtype_size(p->sum), n = t->nq * row;
    const char *from = p->part;
    if (is_low(p)) pd_reduce_widen(p->c.t, p->part, p->wide, p->c.B * n), from = p->wide;
    for (int64_t b = 0; b < p->c.B; b++)
        add(p->sum, p->total + (b * p->c.nq + t->q0) * row * each, from + b * n * each, n);
}

/* The gradient of the keys that a turn has not seen. */
static void clear_unseen(const pass *p, const turn *t, char *gk) {
    const int64_t each = (int64_t)pd_dtype_size(p->c.t), rows = p->keys[t->source], seen = t->nq ? t->nk : 0;
    for (int of = 0; of < 2; of++) {
        const int64_t row = p->c.Hkv * (of ? p->c.dv : p->c.d) * each;
        for (int64_t b = 0; b < p->c.B; b++, gk += rows * row)
            memset(gk + seen * row, 0, (size_t)((rows - seen) * row));
    }
}

static const char *lse_from(const pass *p, const turn *t) {
    const int64_t each = (int64_t)pd_dtype_size(p->sum);
    const char *all = pd_tensor_data(p->in[LSE]);
    if (!t->q0) return all;
    for (int64_t i = 0; i < p->c.B * p->c.H; i++)
        memcpy(p->lse + i * t->nq * each, all + (i * p->c.nq + t->q0) * each, (size_t)(t->nq * each));
    return p->lse;
}

/* Computes this turn's gradients: adds the query's to the total, and writes those of the block to gk. */
static pd_status attend_grad(pass *p, const turn *t, char *gk) {
    pd_attention c = shape_at(p, t);
    const int64_t each = (int64_t)pd_dtype_size(c.t), apart = key_elements(p, p->keys[t->source]) * each;
    const char *k = block_of(p, t->source);
    const bool first = t->source == p->rank, direct = first && !is_low(p);
    clear_unseen(p, t, gk);
    if (!first && (!c.nq || !c.nk)) return PD_OK;
    memcpy(c.os, p->in[OUT]->stride, sizeof c.os), memcpy(c.gs, p->in[GRAD]->stride, sizeof c.gs);
    pd_storage *scratch;
    PD_TRY(pd_storage_new(&pd_device_cpu, pd_here()->attention_scratch(&c, true), &scratch));
    pd_timespan span = pd_timespan_begin();
    pd_here()->attention_grad(&c, rows_from(p->in[GRAD], t->q0), rows_from(p->in[Q], t->q0), k, k + apart, NULL,
                              rows_from(p->in[OUT], t->q0), lse_from(p, t), direct ? p->total : p->part, gk, gk + apart,
                              scratch->data);
    pd_storage_release(scratch);
    if (first && !direct)
        pd_reduce_widen(c.t, p->part, p->total, c.B * c.nq * c.H * c.d);
    else if (!first)
        add_queries(p, t);
    pd_timespan_end(&span, PD_SPAN_CALL, OP " block backward", 0);
    return PD_OK;
}

static pd_status gathered_grad(pass *p, int step) {
    const turn t = turn_of(p, step);
    return attend_grad(p, &t, p->behind[0] + place_of(p, t.source) * (int64_t)pd_dtype_size(p->c.t));
}

/* The gradient of the block that comes along is that of the ranks before: adds this rank's. */
static pd_status rotated_grad(pass *p, int step) {
    const turn t = turn_of(p, step);
    const int64_t n = block_elements(p, t.source);
    PD_TRY(attend_grad(p, &t, p->fresh));
    if (is_low(p)) pd_reduce_widen(p->c.t, p->fresh, p->fresh_wide, n);
    const char *own = is_low(p) ? p->fresh_wide : p->fresh;
    if (!step) {
        memcpy(p->behind[0], own, (size_t)n * pd_dtype_size(p->sum));
        return PD_OK;
    }
    PD_TRY(rotate(p, step - 1, p->behind[0], p->behind[1], p->sum, NULL));
    char *held = p->behind[0];
    p->behind[0] = p->behind[1], p->behind[1] = held;
    add(p->sum, p->behind[0], own, n);
    return PD_OK;
}

/* Dense gradients of own keys and values, as tensors. */
static void unpack_own(const char *from, pd_tensor **grads) {
    memcpy(pd_tensor_data(grads[K]), from, pd_tensor_bytes(grads[K]));
    memcpy(pd_tensor_data(grads[V]), from + pd_tensor_bytes(grads[K]), pd_tensor_bytes(grads[V]));
}

static pd_status backward_gathered(pass *p, pd_tensor **grads) {
    pd_part *parts;
    PD_TRY(take(p, place_of(p, p->size), p->c.t, &p->behind[0]));
    PD_TRY(all_steps(p, gathered_grad));
    PD_TRY(all_parts(p, p->behind[0], &parts));
    char *own = parts[p->rank].data;
    if (p->size > 1)
        PD_TRY(pd_group_reduce_scatter_parts(p->r->group, parts, own, p->c.t, PD_REDUCE_SUM, 1, 0, p->r->site, NULL));
    unpack_own(own, grads);
    return PD_OK;
}

static pd_status backward_rotated(pass *p, pd_tensor **grads) {
    for (int i = 0; i < 2; i++) PD_TRY(take(p, largest_block(p), p->sum, &p->behind[i]));
    PD_TRY(take(p, largest_block(p), p->c.t, &p->fresh));
    if (is_low(p)) PD_TRY(take(p, largest_block(p), p->sum, &p->fresh_wide));
    PD_TRY(all_steps(p, rotated_grad));
    PD_TRY(rotate(p, p->size - 1, p->behind[0], p->behind[1], p->sum, NULL)); /* home */
    if (is_low(p)) pd_reduce_round(p->c.t, p->behind[1], p->block[0], block_elements(p, p->rank), 1);
    unpack_own(is_low(p) ? p->block[0] : p->behind[1], grads);
    return PD_OK;
}

static pd_status backward(pass *p, pd_tensor **grads) {
    const int64_t n = p->c.B * p->c.nq * p->c.H * p->c.d;
    const bool low = is_low(p), rotated = p->r->rotated && p->size > 1;
    PD_TRY(fetch(p));
    PD_TRY(take(p, n, p->c.t, &p->part));
    PD_TRY(take(p, p->c.B * p->c.H * p->c.nq, p->sum, &p->lse));
    p->total = pd_tensor_data(grads[Q]);
    if (low) PD_TRY(take(p, n, p->sum, &p->wide));
    if (low) PD_TRY(take(p, n, p->sum, &p->total));
    PD_TRY(rotated ? backward_rotated(p, grads) : backward_gathered(p, grads));
    if (low) pd_reduce_round(p->c.t, p->total, pd_tensor_data(grads[Q]), n, 1);
    return PD_OK;
}

pd_status pd_ring_attention_grad(const pd_ring *r, pd_tensor *const of[6], const int64_t *keys, pd_tensor *grads[3]) {
    pass p;
    PD_TRY(begin(&p, r, of, keys));
    memset(grads, 0, 3 * sizeof *grads);
    pd_status status = rows_before_heads(&p.c, p.c.H, p.c.nq, p.c.d, &grads[Q]);
    PD_THEN(rows_before_heads(&p.c, p.c.Hkv, p.c.nk, p.c.d, &grads[K]));
    PD_THEN(rows_before_heads(&p.c, p.c.Hkv, p.c.nk, p.c.dv, &grads[V]));
    PD_THEN(backward(&p, grads));
    end(&p);
    for (int i = 0; i < 3 && status; i++) {
        pd_tensor_release(grads[i]);
        grads[i] = NULL;
    }
    return PD_TRAIL(status);
}
