#include "parallel/vocab.h"

#include <string.h>

#include "autograd/autocast.h"
#include "base/host.h"
#include "base/mem.h"
#include "ops/ops.h"
#include "parallel/hash.h"

#define OP "vocab_cross_entropy"

typedef struct head { /* before a rank's numbers in the message */
    uint64_t hash;
    int64_t first, columns;
} head;

typedef struct job {
    pd_dtype t, computed;
    pd_vocab c;
    pd_tensor *logits, *target, *weight; /* [strong] contiguous, the weight in `computed` */
    double *weights;
} job;

static void drop(job *j) {
    pd_tensor_release(j->logits);
    pd_tensor_release(j->target);
    pd_tensor_release(j->weight);
    pd_free(j->weights);
}

static pd_status check(const pd_vocab_loss *v) {
    const pd_tensor *x = v->logits, *target = v->target, *weight = v->weight;
    const pd_dtype t = (pd_dtype)x->dtype;
    if (t != PD_F64 && t != PD_F32 && t != PD_F16 && t != PD_BF16)
        return pd_fail(PD_E_DTYPE, OP ": logits are %s (expected float64, float32, float16 or bfloat16)",
                       pd_dtype_name(t));
    if (x->ndim != 2 || target->ndim != 1 || target->size[0] != x->size[0])
        return pd_fail(PD_E_SHAPE, OP ": logits have shape %s, target %s (expected [rows, columns] and [rows])",
                       pd_tensor_shape(x), pd_tensor_shape(target));
    if (target->dtype != PD_I64)
        return pd_fail(PD_E_DTYPE, OP ": target is %s (expected int64 class indices)",
                       pd_dtype_name((pd_dtype)target->dtype));
    if (v->classes < 1 || v->first < 0 || v->first > v->classes || x->size[1] > v->classes - v->first)
        return pd_fail(PD_E_VALUE,
                       OP ": got %lld columns from %lld on (expected columns of [0, %lld), at least one in all)",
                       (long long)x->size[1], (long long)v->first, (long long)v->classes);
    if (weight && (weight->ndim != 1 || weight->size[0] != v->classes || !pd_dtype_is_float((pd_dtype)weight->dtype)))
        return pd_fail(PD_E_SHAPE, OP ": weight is %s of shape %s (expected floats of shape [%lld])",
                       pd_dtype_name((pd_dtype)weight->dtype), pd_tensor_shape(weight), (long long)v->classes);
    if (!(v->loss.smoothing >= 0 && v->loss.smoothing <= 1))
        return pd_fail(PD_E_VALUE, OP ": label_smoothing is %g (expected 0 to 1)", v->loss.smoothing);
    const pd_device *d[] = {x->storage->device, target->storage->device, weight ? weight->storage->device : NULL};
    for (int i = 0; i < 3; i++)
        if (d[i] && d[i] != &pd_device_cpu)
            return pd_fail(PD_E_NOTIMPL, OP ": a tensor is on %s (expected the CPU)", d[i]->name);
    return PD_OK;
}

static pd_status prepare(const pd_vocab_loss *v, job *j) {
    pd_tensor *weight = NULL;
    PD_TRY(check(v));
    j->t = (pd_dtype)v->logits->dtype;
    j->computed = j->t == PD_F64 ? PD_F64 : PD_F32;
    PD_TRY(pd_contiguous(v->logits, &j->logits));
    PD_TRY(pd_contiguous(v->target, &j->target));
    if (v->weight) {
        PD_TRY(pd_engine.cast(v->weight, j->computed, &weight));
        pd_status status = pd_contiguous(weight, &j->weight);
        pd_tensor_release(weight);
        PD_TRY(status);
    }
    j->c = (pd_vocab){.rows = j->logits->size[0], .columns = j->logits->size[1], .first = v->first,
                      .classes = v->classes, .target = pd_tensor_data(j->target),
                      .weight = j->weight ? pd_tensor_data(j->weight) : NULL,
                      .ignore_index = v->loss.ignore_index, .smoothing = v->loss.smoothing,
                      .each = v->loss.smoothing != 0 ? 4 : 3};
    return PD_OK;
}

/* A token of pd_host_release if the loops over the logits take long. */
static void *release_host(const job *j) {
    return (double)j->c.rows * (double)j->c.columns > PD_RELEASE_NS ? pd_host_release() : NULL;
}

static double weights_of(const job *j, int64_t first, int64_t columns) {
    const void *w = j->c.weight;
    double sum = w ? 0 : (double)columns;
    for (int64_t i = first; w && i < first + columns; i++)
        sum += j->computed == PD_F64 ? ((const double *)w)[i] : (double)((const float *)w)[i];
    return sum;
}

/* Of all that has to be the same on all ranks. */
static uint64_t hash_of(const job *j, const pd_vocab_loss *v) {
    const uint64_t w = j->weight ? pd_hash64(j->c.weight, pd_tensor_bytes(j->weight)) : 0;
    uint64_t all[] = {pd_hash64(j->c.target, (size_t)j->c.rows * 8), w, (uint64_t)j->t, (uint64_t)v->classes,
                      (uint64_t)v->loss.ignore_index, (uint64_t)v->loss.reduction, 0};
    memcpy(&all[6], &v->loss.smoothing, sizeof all[6]);
    return pd_hash64(all, sizeof all);
}

/* Compares what the ranks say, and sets the weights of their columns. */
static pd_status compare(job *j, const char *all, size_t apart) {
    head own, h;
    int64_t next = 0;
    memcpy(&own, all + (size_t)j->c.rank * apart, sizeof own);
    for (int r = 0; r < j->c.ranks; r++) {
        memcpy(&h, all + (size_t)r * apart, sizeof h);
        if (h.hash != own.hash)
            return pd_fail(PD_E_VALUE,
                           OP ": target, weight or options differ between ranks %d and %d (expected the same on all)",
                           j->c.rank, r);
        if (h.first != next)
            return pd_fail(PD_E_VALUE, OP ": rank %d has columns [%lld, %lld) (expected them to begin at %lld)", r,
                           (long long)h.first, (long long)(h.first + h.columns), (long long)next);
        j->weights[r] = j->c.each > 3 ? weights_of(j, h.first, h.columns) : 0;
        next += h.columns;
    }
    if (next != j->c.classes)
        return pd_fail(PD_E_VALUE, OP ": the ranks' columns end at %lld (expected %lld)", (long long)next,
                       (long long)j->c.classes);
    return PD_OK;
}

/* *all: [new] what all ranks found. A rank with a bad target sends nothing useful, but it does send. */
static pd_status exchange(job *j, const pd_vocab_loss *v, pd_group *g, uint64_t site, bool bad, char **all) {
    const size_t numbers = (size_t)j->c.rows * (size_t)j->c.each * pd_dtype_size(j->computed);
    const size_t apart = sizeof(head) + (numbers + 7) / 8 * 8;
    PD_TRY(pd_calloc(apart * (size_t)j->c.ranks, OP, all));
    char *own = *all + apart * (size_t)j->c.rank;
    const head h = {hash_of(j, v), j->c.first, j->c.columns};
    memcpy(own, &h, sizeof h);
    if (!bad) {
        void *token = release_host(j);
        pd_here()->vocab_rows(j->t, &j->c, pd_tensor_data(j->logits), own + sizeof h);
        pd_host_acquire(token);
    }
    PD_TRY(pd_group_all_gather(g, own, *all, (int64_t)apart, PD_U8, site, NULL));
    j->c.apart = apart;
    return compare(j, *all, apart);
}

/* [new] the losses in their dtype, reduced. */
static pd_status reduce(const job *j, const pd_vocab_loss *v, const double *losses, double total, pd_tensor **out) {
    const bool each = v->loss.reduction == PD_LOSS_NONE;
    const bool wide = pd_autocast_reads(PD_DEF(cross_entropy)->op, &v->logits, 1);
    double sum = 0;
    PD_TRY(pd_tensor_new(OP, wide ? PD_F32 : j->t, each, &j->c.rows, out));
    for (int64_t r = 0; r < j->c.rows; r++) sum += losses[r];
    if (v->loss.reduction == PD_LOSS_MEAN) sum /= total;
    pd_convert((pd_dtype)(*out)->dtype, PD_F64, each ? j->c.rows : 1, each ? losses : &sum, pd_tensor_data(*out));
    return PD_OK;
}

static pd_status run(job *j, const pd_vocab_loss *v, pd_group *g, uint64_t site, pd_tensor **loss, pd_tensor **stats,
                     double *total) {
    const pd_xent labels = {.rows = j->c.rows, .C = j->c.classes, .target = j->c.target, .weight = j->c.weight,
                            .ignore_index = j->c.ignore_index};
    pd_bad_index bad;
    char *all = NULL;
    double *losses = NULL;
    j->c.rank = pd_group_rank(g);
    j->c.ranks = pd_group_size(g);
    PD_TRY(pd_calloc(sizeof *j->weights * (size_t)j->c.ranks, OP, &j->weights));
    j->c.weights = j->weights;
    j->weights[j->c.rank] = j->c.each > 3 ? weights_of(j, j->c.first, j->c.columns) : 0;
    const bool good = pd_here()->labels(OP, j->computed, &labels, total, &bad);
    pd_status status = exchange(j, v, g, site, !good, &all);
    if (!good && (!status || status == PD_E_VALUE)) status = pd_bad_index_fail(&bad);
    PD_THEN(pd_tensor_new(OP, j->computed, 2, (int64_t[]){j->c.rows, 2}, stats));
    PD_THEN(pd_malloc(sizeof *losses * (size_t)(j->c.rows + 1), OP, &losses));
    if (!status) pd_here()->vocab_loss(j->t, &j->c, all + sizeof(head), pd_tensor_data(*stats), losses);
    PD_THEN(reduce(j, v, losses, *total, loss));
    pd_free(losses);
    pd_free(all);
    return status;
}

/* Runs on the CPU, whatever the caller's device is. */
pd_status pd_vocab_loss_run(const pd_vocab_loss *v, pd_group *g, uint64_t site, pd_tensor **loss, pd_tensor **stats,
                            double *total) {
    const pd_device *was = pd_device_here;
    job j = {0};
    *loss = *stats = NULL;
    pd_device_here = &pd_device_cpu;
    pd_status status = prepare(v, &j);
    PD_THEN(run(&j, v, g, site, loss, stats, total));
    pd_device_here = was;
    drop(&j);
    if (!status) return PD_OK;
    pd_tensor_release(*loss);
    pd_tensor_release(*stats);
    *loss = *stats = NULL;
    return status;
}

static pd_status gradient(job *j, const pd_vocab_loss *v, pd_tensor *stats, double total, pd_tensor *g,
                          pd_tensor **gx) {
    const bool each = v->loss.reduction == PD_LOSS_NONE;
    if (stats->dtype != (int)j->computed || stats->ndim != 2 || stats->size[0] != j->c.rows || stats->size[1] != 2 ||
        !pd_tensor_is_contiguous(stats) || g->ndim != each || g->numel != (each ? j->c.rows : 1))
        return pd_fail(PD_E_SHAPE, OP ": the gradient has shape %s, stats %s (expected what forward gave)",
                       pd_tensor_shape(g), pd_tensor_shape(stats));
    PD_TRY(pd_tensor_new(OP, j->t, 2, j->logits->size, gx));
    void *token = release_host(j);
    pd_here()->vocab_grad(j->t, &j->c, pd_tensor_data(j->logits), pd_tensor_data(stats), pd_tensor_data(g), each,
                          v->loss.reduction == PD_LOSS_MEAN ? 1 / total : 1, pd_tensor_data(*gx));
    pd_host_acquire(token);
    return PD_OK;
}

pd_status pd_vocab_loss_grad(const pd_vocab_loss *v, pd_tensor *stats, double total, pd_tensor *g, pd_tensor **gx) {
    const pd_device *was = pd_device_here;
    pd_tensor *cast = NULL, *plain = NULL;
    job j = {0};
    *gx = NULL;
    pd_device_here = &pd_device_cpu;
    pd_status status = prepare(v, &j);
    PD_THEN(pd_engine.cast(g, j.computed, &cast));
    PD_THEN(pd_contiguous(cast, &plain));
    PD_THEN(gradient(&j, v, stats, total, plain, gx));
    pd_device_here = was;
    pd_tensor_release(cast);
    pd_tensor_release(plain);
    drop(&j);
    return status;
}
