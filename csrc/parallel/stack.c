#include "parallel/stack.h"

#include <string.h>

#include "base/mem.h"
#include "base/threads.h"
#include "comm/algo/reduce.h"
#include "kernels/kernels.h"

#define GRAIN 32768 /* elements that a thread adds at least */
#define MOST_LEVELS 12

static int log2_of(int n) { return 31 - __builtin_clz((unsigned)n); }

pd_status pd_stack_init(pd_stack *s, const pd_flat *sums, int most) {
    const pd_layout *l = sums->layout;
    *s = (pd_stack){.sums = sums};
    pd_flat_kind kind = {.who = sums->kind.who, .wide = sums->kind.wide, .parts = log2_of(most) - 1};
    PD_TRY(pd_calloc(sizeof *s->seen * (size_t)l->npieces, "stack", &s->seen));
    return kind.parts > 0 ? pd_flat_init(&s->levels, l, kind, NULL, sums->device) : PD_OK;
}

void pd_stack_fini(pd_stack *s) {
    pd_flat_fini(&s->levels);
    pd_free(s->seen);
    *s = (pd_stack){0};
}

static bool is_top(pd_turn t, int level) { return level >= log2_of(t.size) - 1; }

/* The memory of a level for a block of this size. */
static const pd_flat *flat_of(const pd_stack *s, pd_turn t, int level, int *part) {
    *part = is_top(t, level) ? t.part : level;
    return is_top(t, level) ? s->sums : &s->levels;
}

static char *place_of(const pd_stack *s, pd_turn t, int level, const pd_piece *p) {
    int part;
    const pd_flat *f = flat_of(s, t, level, &part);
    return pd_flat_piece(f, p, part);
}

bool pd_stack_home(const pd_stack *s, pd_turn t, const pd_flat **flat, int *part) {
    *flat = flat_of(s, t, 0, part);
    return t.at % 2 == 0;
}

typedef struct addition { /* sums[0], ..., sums[n - 1] and then the leaf, the oldest first */
    const char *in[MOST_LEVELS];
    int n;
    char *out;
    pd_dtype dtype;
} addition;

/* Each sum is added to the sum of all later ones, as in the tree. */
static void add_range(void *ctx, int64_t begin, int64_t end) {
    static const int16_t one_on_the_left[MOST_LEVELS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const addition *a = ctx;
    pd_reduce_tree(a->dtype, PD_REDUCE_SUM, a->n, one_on_the_left, a->in, begin,
                   a->out + (size_t)begin * pd_dtype_size(a->dtype), end - begin, 1);
}

/* The leaf in the dtype of sums: the gradient itself, or a copy in this thread's scratch memory. */
static pd_status leaf_of(pd_dtype sum, const pd_piece *p, const void *gradient, const void **out) {
    size_t bytes = (size_t)p->numel * pd_dtype_size(sum);
    void *room;
    *out = gradient;
    if (gradient && sum == p->dtype) return PD_OK;
    PD_TRY(pd_scratch(bytes, "a gradient", &room));
    if (gradient) pd_reduce_widen(p->dtype, gradient, room, p->numel);
    else memset(room, 0, bytes);
    *out = room;
    return PD_OK;
}

/* The same on a GPU: as one sum of the levels below `to`, the oldest first, and of the leaf; NULL: zeros. */
static pd_status add_on_device(pd_stack *s, pd_turn t, const pd_piece *p, int levels, const void *gradient, void *to) {
    const pd_device *d = s->sums->device, *was;
    const int first = levels && is_top(t, levels - 1) ? levels - 2 : levels - 1; /* of the levels in s->levels */
    pd_sum_tree c = {.n = p->numel, .out = to, .scale = 1, .last = p->dtype, .inputs = levels + 1, .at = {-1, levels},
                     .own = {NULL, gradient}};
    if (first < levels - 1) c.at[0] = 0, c.own[0] = place_of(s, t, levels - 1, p);
    if (first >= 0) c.in = place_of(s, t, first, p), c.apart = -(int64_t)pd_flat_apart(&s->levels, p->bucket);
    c.sums[levels] = (uint8_t)levels;
    pd_status status = pd_device_enter(d, &was);
    if (!status && c.n) pd_here()->sum_tree(pd_flat_dtype(s->sums, p->bucket), &c);
    pd_device_here = was;
    return status ? status : pd_device_check(d, s->sums->kind.who);
}

static pd_status clear(const pd_stack *s, pd_turn t, int level, const pd_piece *p) {
    return pd_flat_clear(s->sums, place_of(s, t, level, p), p->numel, pd_flat_dtype(s->sums, p->bucket));
}

pd_status pd_stack_add(pd_stack *s, pd_turn t, const pd_piece *p, const void *gradient) {
    int piece = (int)(p - s->sums->layout->pieces), levels = __builtin_ctz((unsigned)t.at + 1);
    pd_dtype sum = pd_flat_dtype(s->sums, p->bucket);
    bool last = t.at == t.size - 1;
    if (t.at == 0) s->seen[piece] = false;
    if (!gradient && !s->seen[piece]) return last ? clear(s, t, log2_of(t.size), p) : PD_OK;
    for (int l = 0; !s->seen[piece] && l < log2_of(t.size); l++) /* earlier shards have not reached it */
        if (t.at >> l & 1) PD_TRY(clear(s, t, l, p));
    s->seen[piece] = true;
    char *to = place_of(s, t, levels, p);
    if (gradient == to) return PD_OK;
    if (!pd_flat_on_host(s->sums)) return add_on_device(s, t, p, levels, gradient, to);
    const void *leaf;
    PD_TRY(leaf_of(sum, p, gradient, &leaf));
    if (!levels) {
        memcpy(to, leaf, (size_t)p->numel * pd_dtype_size(sum));
        return PD_OK;
    }
    addition a = {.n = levels + 1, .out = to, .dtype = sum};
    for (int l = 0; l < levels; l++) a.in[levels - 1 - l] = place_of(s, t, l, p);
    a.in[levels] = leaf;
    pd_parallel(p->numel, GRAIN, add_range, &a);
    return PD_OK;
}
