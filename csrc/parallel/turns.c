/* The data-parallel reducer over logical shards, which a rank runs in turn. */
#include <string.h>

#include "base/flags.h"
#include "base/mem.h"
#include "comm/algo/reduce.h"
#include "kernels/kernels.h"
#include "parallel/data_impl.h"
#include "parallel/hash.h"

enum { HOMES = 3 }; /* the first part of the sums, the second one, the stack's lowest level */

struct pd_turns {
    pd_blocks *blocks;  /* [strong] */
    bool plain;         /* each rank has one shard: what the ranks add up are leaves, in the parameters' dtype */
    pd_flat wide;       /* sums for parameters of 16 bits; unused: the reducer's own memory has the sums */
    pd_stack stack;
    int own;            /* shards of this rank */
    int at;             /* the one under way, of these; -1: none */
    bool last, closed;
    bool *added, *used; /* by parameter: in this shard, in this step */
    pd_dtype rounded;   /* gradients of shards, and their mean, are rounded to this 16-bit dtype; PD_NO_DTYPE: no */
    uint64_t *hashes;   /* by parameter: of this shard's gradient, 0: none; NULL: nobody asks for them */
    pd_tensor **homes;  /* [strong] HOMES by parameter: where backward may write a gradient; NULL: not made yet */
};

static bool on_host(const pd_reducer *r) { return r->device->kind == PD_DEVICE_CPU; }

static bool has_halves(const pd_layout *l) {
    for (int b = 0; b < l->nbuckets; b++)
        if (pd_reduce_partial(l->buckets[b].dtype) != l->buckets[b].dtype) return true;
    return false;
}

const pd_flat *pd_turns_sums(const pd_reducer *r) { return r->turns->wide.buckets ? &r->turns->wide : &r->flat; }
bool pd_turns_is_last(const pd_reducer *r) { return r->turns->last; }
bool pd_turns_is_closed(const pd_reducer *r) { return r->turns->own && r->turns->closed; }
bool pd_turns_reduces(const pd_reducer *r) { return r->turns->at >= r->turns->own - 1; }
bool pd_turns_used(const pd_reducer *r, int param) { return r->turns->used[param]; }
bool pd_turns_has(const pd_slot *s) { return s->r->turns->added[s - s->r->slots]; }
bool pd_reducer_is_closed(const pd_reducer *r) { return !r->turns || r->turns->closed; }

pd_status pd_reducer_hash_shards(pd_reducer *r) {
    return r->turns->hashes ? PD_OK : pd_calloc(sizeof *r->turns->hashes * (size_t)r->n, "hashes", &r->turns->hashes);
}
const uint64_t *pd_reducer_hashes(const pd_reducer *r) { return r->turns ? r->turns->hashes : NULL; }
int pd_reducer_shards(const pd_reducer *r) { return r->turns ? r->turns->own : -1; }

/* ---- making ------------------------------------------------------------------------------------------------------ */

static pd_status allocate(pd_reducer *r, pd_turns *t) {
    int rank = pd_group_rank(r->group), most = 1;
    for (int part = 0; part < pd_blocks_of(t->blocks, rank); part++) {
        const pd_shard_block *b = pd_blocks_at(t->blocks, rank, part);
        most = b->size > most ? b->size : most;
        t->own += b->size;
    }
    t->plain = t->blocks->shards == pd_group_size(r->group) && t->blocks->count == t->blocks->shards;
    for (int i = 0; i < t->blocks->count; i++) t->plain &= t->blocks->of[i].rank == i;
    bool wide = !t->plain && has_halves(&r->layout);
    pd_flat_kind sums = {PD_DDP, r->n, t->blocks->parts, wide}, own = {PD_DDP, 0, 1, false};
    PD_TRY(pd_flat_init(&r->flat, &r->layout, wide ? own : sums, wide ? NULL : r->group, r->device));
    if (wide) PD_TRY(pd_flat_init(&t->wide, &r->layout, sums, r->group, r->device));
    PD_TRY(pd_stack_init(&t->stack, pd_turns_sums(r), most));
    PD_TRY(pd_calloc(sizeof *t->added * (size_t)r->n, "logical shards", &t->added));
    PD_TRY(pd_calloc(sizeof *t->used * (size_t)r->n, "logical shards", &t->used));
    return pd_calloc(sizeof *t->homes * (size_t)r->n * HOMES, "logical shards", &t->homes);
}

pd_status pd_turns_new(pd_reducer *r, pd_blocks *b) {
    if (!on_host(r) && pd_flags_get()->CUDA_TUNE)
        return pd_fail(PD_E_VALUE,
                       "DistributedDataParallel: PYDIST_CUDA_TUNE is 1 with logical shards on %s (expected 0: ranks "
                       "would choose algorithms with different bits)",
                       r->device->name);
    if (b->ranks != pd_group_size(r->group))
        return pd_fail(PD_E_VALUE, "DistributedDataParallel: logical shards are dealt out to %d ranks (expected %d)",
                       b->ranks, pd_group_size(r->group));
    PD_TRY(pd_calloc(sizeof *r->turns, "logical shards", &r->turns));
    pd_blocks_retain(r->turns->blocks = b);
    r->turns->at = -1;
    r->turns->closed = true;
    r->turns->rounded = PD_NO_DTYPE;
    r->divisor = b->shards;
    return allocate(r, r->turns);
}

void pd_turns_free(pd_turns *t) {
    if (!t) return;
    for (int i = 0; t->homes && i < HOMES * t->stack.sums->layout->npieces; i++) pd_tensor_release(t->homes[i]);
    pd_free(t->homes);
    pd_free(t->added);
    pd_free(t->used);
    pd_free(t->hashes);
    pd_stack_fini(&t->stack);
    if (t->wide.layout) pd_flat_fini(&t->wide);
    pd_blocks_release(t->blocks);
    pd_free(t);
}

/* ---- a shard ----------------------------------------------------------------------------------------------------- */

static pd_turn turn_of(const pd_reducer *r) {
    const pd_turns *t = r->turns;
    const pd_shard_block *b = pd_blocks_at(t->blocks, pd_group_rank(r->group), 0);
    if (t->at < b->size) return (pd_turn){b->size, t->at, 0};
    int before = b->size;
    b = pd_blocks_at(t->blocks, pd_group_rank(r->group), 1);
    return (pd_turn){b->size, t->at - before, 1};
}

/* The place where this shard's gradient should be written, or NULL. */
static pd_status home_of(pd_slot *s, pd_tensor **out) {
    pd_turns *t = s->r->turns;
    const pd_flat *flat;
    int part;
    *out = NULL;
    if (!pd_stack_home(&t->stack, turn_of(s->r), &flat, &part)) return PD_OK;
    if (pd_flat_dtype(flat, s->piece->bucket) != s->piece->dtype) return PD_OK; /* it is widened on its way */
    pd_tensor **home = &t->homes[(s - s->r->slots) * HOMES + (flat == t->stack.sums ? part : HOMES - 1)];
    if (!*home) PD_TRY(pd_flat_tensor(flat, s->piece, part, s->param, home));
    PD_TRY(pd_flat_mend(flat, s->piece, part, s->param, *home));
    *out = *home;
    return PD_OK;
}

pd_status pd_reducer_open_shard(pd_reducer *r, int k, uint64_t site) {
    pd_turns *t = r->turns;
    if (k < 0 || k >= t->own)
        return pd_fail(PD_E_INDEX, "open_shard: k is %d (expected 0 to %d)", k, t->own - 1);
    if (k && (k != t->at + 1 || !t->closed))
        return pd_fail(PD_E_RUNTIME,
                       "open_shard: k is %d after shard %d, which is %s (expected one after the other, from 0 on, each "
                       "closed)",
                       k, t->at, t->closed ? "closed" : "open");
    PD_TRY(pd_reducer_prepare(r, site));
    t->at = k;
    t->last = t->closed = false;
    memset(t->added, 0, sizeof *t->added * (size_t)r->n);
    if (!k) memset(t->used, 0, sizeof *t->used * (size_t)r->n);
    for (int i = 0; i < r->n; i++) {
        pd_slot *s = &r->slots[i];
        pd_tensor *home;
        pd_meta_set_grad(s->param->meta, NULL);
        PD_TRY(home_of(s, &home));
        PD_TRY(pd_grad_take(s->param, &s->owner, home));
    }
    return PD_OK;
}

pd_status pd_reducer_last_backward(pd_reducer *r) {
    if (r->turns->closed)
        return pd_fail(PD_E_RUNTIME, "last_backward: no logical shard is open (expected open_shard before it)");
    r->turns->last = true;
    return PD_OK;
}

/* The gradient's elements in the order of the piece's; *copy: [new] or NULL, holds them. The device is entered. */
static pd_status elements_of(const pd_slot *s, pd_tensor *g, const void **out, pd_tensor **copy) {
    bool same = g->numel < 2 || !memcmp(g->stride, s->view->stride, sizeof *g->stride * (size_t)g->ndim);
    *copy = NULL;
    if (!same) {
        PD_TRY(pd_tensor_shell(copy));
        (*copy)->dtype = s->view->dtype;
        (*copy)->ndim = s->view->ndim;
        (*copy)->numel = s->view->numel;
        memcpy((*copy)->size, s->view->size, sizeof s->view->size);
        memcpy((*copy)->stride, s->view->stride, sizeof s->view->stride);
        pd_status status = pd_tensor_allocate(*copy);
        PD_THEN(pd_engine.copy_into(*copy, g));
        if (status) {
            pd_tensor_release(*copy);
            return status;
        }
        g = *copy;
    }
    *out = pd_tensor_data(g);
    return PD_OK;
}

static void round_on_host(pd_dtype half, char *data, int64_t n) {
    uint16_t tile[512];
    for (int64_t at = 0; at < n; at += 512) {
        int64_t m = n - at < 512 ? n - at : 512;
        char *here = data + (size_t)at * sizeof(float);
        pd_reduce_round(half, here, (char *)tile, m, 1);
        pd_reduce_widen(half, (char *)tile, here, m);
    }
}

/* The device is entered. */
static pd_status round_in_place(const pd_reducer *r, pd_dtype half, char *data, int64_t n) {
    void *room;
    if (on_host(r)) {
        round_on_host(half, data, n);
        return PD_OK;
    }
    PD_TRY(r->device->scratch(r->device, (size_t)n * sizeof(uint16_t), PD_DDP, &room));
    pd_convert(half, PD_F32, n, data, room);
    pd_convert(PD_F32, half, n, room, data);
    return pd_device_check(r->device, PD_DDP);
}

static pd_status hash_of(const pd_reducer *r, const void *data, size_t bytes, uint64_t *out) {
    char *copy = NULL;
    if (on_host(r)) {
        *out = pd_hash64(data, bytes);
        return PD_OK;
    }
    PD_TRY(pd_malloc(bytes + 1, "hashes", &copy));
    pd_status status = r->device->copy(r->device, PD_DDP, PD_TO_HOST, copy, data, bytes, PD_WAIT);
    if (!status) *out = pd_hash64(copy, bytes);
    pd_free(copy);
    return status;
}

static bool is_rounded(const pd_turns *t, pd_dtype dtype) { return t->rounded != PD_NO_DTYPE && dtype == PD_F32; }

pd_status pd_reducer_round_shards(pd_reducer *r, pd_dtype half) {
    if (half != PD_F16 && half != PD_BF16)
        return pd_fail(PD_E_VALUE, "round_shards: dtype is %s (expected float16 or bfloat16)", pd_dtype_name(half));
    r->turns->rounded = half;
    return PD_OK;
}

/* Adds the gradient g, or zeros (NULL), of a parameter. */
static pd_status add(pd_slot *s, pd_tensor *g) {
    pd_reducer *r = s->r;
    pd_turns *t = r->turns;
    pd_tensor *copy = NULL;
    const void *elements = NULL;
    uint64_t *hash = t->hashes ? &t->hashes[s - r->slots] : NULL;
    if (g) PD_TRY(elements_of(s, g, &elements, &copy));
    pd_status status = PD_OK;
    if (g && is_rounded(t, s->piece->dtype))
        status = round_in_place(r, t->rounded, (char *)(uintptr_t)elements, s->piece->numel);
    if (hash) *hash = 0;
    if (hash && g)
        PD_THEN(hash_of(r, elements, (size_t)s->piece->numel * pd_dtype_size(s->piece->dtype), hash));
    PD_THEN(pd_stack_add(&t->stack, turn_of(r), s->piece, elements));
    pd_tensor_release(copy);
    return status;
}

pd_status pd_turns_add(pd_slot *s) {
    pd_reducer *r = s->r;
    pd_turns *t = r->turns;
    pd_tensor *g = s->param->meta->grad;
    const pd_device *was;
    if (!t->own || pd_turns_has(s)) return PD_OK;
    pd_status status = pd_device_enter(r->device, &was);
    PD_THEN(add(s, g));
    pd_device_here = was;
    if (status) return status;
    t->added[s - r->slots] = true;
    t->used[s - r->slots] |= g != NULL;
    if (g) pd_meta_set_grad(s->param->meta, NULL);
    return PD_OK;
}

pd_status pd_turns_end(pd_reducer *r, bool *reduces) {
    pd_turns *t = r->turns;
    for (int i = 0; i < r->n; i++) PD_TRY(pd_turns_add(&r->slots[i]));
    t->last = false;
    t->closed = true;
    *reduces = pd_turns_reduces(r);
    return PD_OK;
}

/* ---- the sum of all shards --------------------------------------------------------------------------------------- */

pd_status pd_turns_all_reduce(pd_reducer *r, int b, int64_t count, pd_work **work) {
    const pd_flat *sums = pd_turns_sums(r);
    const pd_turns *t = r->turns;
    const pd_device *was;
    void *data = sums->buckets[b].data;
    pd_dtype dtype = pd_flat_dtype(sums, b);
    double scale = 1.0 / t->blocks->shards;
    if (t->plain && on_host(r)) /* whose order is the tree's */
        return pd_group_all_reduce(r->group, data, count, dtype, PD_REDUCE_SUM, scale, r->site, work);
    pd_status status = pd_device_enter(r->device, &was);
    PD_THEN(pd_group_all_reduce_blocks(r->group, data, pd_flat_apart(sums, b), count, dtype, t->blocks, scale, r->site,
                                       work));
    pd_device_here = was;
    return status;
}

/* Puts the mean of a bucket into r->flat, rounded as is wanted. The device is entered. */
static pd_status deliver(const pd_reducer *r, int b) {
    const pd_flat *sums = pd_turns_sums(r);
    const pd_bucket_span *span = &r->layout.buckets[b];
    char *from = sums->buckets[b].data, *to = r->flat.buckets[b].data;
    if (sums != &r->flat && on_host(r)) pd_reduce_round(span->dtype, from, to, span->numel, 1);
    else if (sums != &r->flat) pd_convert(span->dtype, pd_flat_dtype(sums, b), span->numel, from, to);
    if (is_rounded(r->turns, span->dtype)) return round_in_place(r, r->turns->rounded, to, span->numel);
    return pd_device_check(r->device, PD_DDP);
}

pd_status pd_turns_deliver(pd_reducer *r) {
    const pd_device *was;
    pd_status status = pd_device_enter(r->device, &was);
    for (int b = 0; b < r->layout.nbuckets; b++) PD_THEN(deliver(r, b));
    pd_device_here = was;
    for (int i = 0; i < r->n && !status; i++) {
        pd_slot *s = &r->slots[i];
        status = pd_grad_take(s->param, &s->owner, s->view);
    }
    r->turns->at = -1;
    return status;
}
