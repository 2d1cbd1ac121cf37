#include "optim/step.h"

#include <inttypes.h>
#include <string.h>

#include "autograd/autocast.h"
#include "autograd/program.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/profile.h"
#include "ops/ops.h"

/* All steps treat complex numbers as pairs of real ones, as in PyTorch. */
static pd_dtype part_of(const pd_tensor *t) { return pd_dtype_part((pd_dtype)t->dtype); }
static int64_t parts_of(const pd_tensor *t) {
    return pd_dtype_is_complex((pd_dtype)t->dtype) ? 2 * t->numel : t->numel;
}

/* Fails unless a gradient or state matches its parameter; the order in memory may differ. */
static pd_status check_like(const char *op, int64_t i, const char *what, const pd_tensor *t, const pd_tensor *p) {
    if (t->storage->device != p->storage->device)
        return pd_fail(PD_E_RUNTIME, "%s: %s of parameter %" PRId64 " is on %s (expected %s, like the parameter)", op,
                       what, i, t->storage->device->name, p->storage->device->name);
    if (pd_tensor_same_shape(t, p) && t->dtype == p->dtype) return PD_OK;
    return pd_fail(PD_E_SHAPE, "%s: %s of parameter %" PRId64 " is %s of shape %s (expected %s of shape %s)", op, what,
                   i, pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), pd_dtype_name((pd_dtype)p->dtype),
                   pd_tensor_shape(p));
}

/* ---- any order in memory ----------------------------------------------------------------------------------------- */

/* Kernels walk parameter, gradient and states side by side, without gaps, in the order of the parameter's memory. A
   tensor in another order is copied into that order, and copied back if it is written. */
typedef struct copies {
    struct copy {
        pd_tensor *of, *copy; /* of: borrowed */
        bool written;
    } *at;
    size_t count, room;
    bool made; /* the second pass, which takes the copies in order: `next` */
    size_t next;
} copies;

static bool is_dense(const pd_tensor *t) { return pd_shape_is_dense(t->ndim, t->size, t->stride); }

static bool is_in_order_of(const pd_tensor *t, const pd_tensor *dense) {
    for (int d = 0; d < t->ndim; d++)
        if (t->size[d] > 1 && t->stride[d] != dense->stride[d]) return false;
    return true;
}

/* Replaces *t by a copy in the order of `dense`, or contiguous if that is NULL. */
static pd_status take_copy(const char *op, const pd_tensor *dense, bool written, copies *c, pd_tensor **t) {
    pd_tensor *of = *t, *copy;
    const pd_device *was;
    if (c->made) {
        *t = c->at[c->next++].copy;
        return PD_OK;
    }
    if (written && pd_tensor_overlaps_itself(of))
        return pd_fail(
            PD_E_VALUE,
            "%s: a tensor of shape %s, which the step writes, has elements that share memory (expected clone())", op,
            pd_tensor_shape(of));
    PD_TRY(pd_grow(&c->at, &c->room, c->count + 1, sizeof *c->at, op));
    pd_status status = pd_device_enter(of->storage->device, &was);
    PD_THEN(pd_tensor_new(op, (pd_dtype)of->dtype, of->ndim, of->size, &copy));
    pd_device_here = was;
    PD_TRY(status);
    for (int d = 0; d < of->ndim && dense; d++) copy->stride[d] = dense->stride[d];
    c->at[c->count++] = (struct copy){of, copy, written};
    *t = copy;
    return pd_engine.copy_into(copy, of);
}

/* Copies back what was written and frees the copies. */
static pd_status end_copies(copies *c, pd_status status) {
    for (size_t i = 0; i < c->count; i++) {
        if (c->at[i].written && !status) status = pd_engine.copy_into(c->at[i].of, c->at[i].copy);
        pd_tensor_release(c->at[i].copy);
    }
    pd_free(c->at);
    return status;
}

/* *to: t's data in the order of `dense`, in its own memory or in a copy. */
static pd_status lay(const char *op, const pd_tensor *dense, pd_tensor *t, bool written, copies *c, void **to) {
    if (!is_in_order_of(t, dense)) PD_TRY(take_copy(op, dense, written, c, &t));
    *to = pd_tensor_data(t);
    return PD_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static pd_status check_number(const char *op, const pd_tensor *t) {
    if (t->dtype == PD_F32 && t->numel == 1 && t->storage->device->kernels) return PD_OK;
    return pd_fail(PD_E_VALUE, "%s: got a number as %s of shape %s on %s (expected one float32 element on a GPU)", op,
                   pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name);
}

/* Checks the one-element tensors that the step reads or writes on a GPU. */
static pd_status check_numbers(const char *op, const pd_step_lists *l) {
    pd_tensor *numbers[] = {l->skip, l->lr, l->step, l->own[0], l->own[1]};
    for (int i = 0; i < 5; i++) {
        if (!numbers[i]) continue;
        PD_TRY(check_number(op, numbers[i]));
        if (i >= 2) PD_TRY(pd_check_writable(op, numbers[i]));
    }
    return PD_OK;
}

/* The address of such a number; it has to be on the parameter's device. */
static pd_status number_near(const char *op, int64_t i, const pd_tensor *p, pd_tensor *number, const char *what,
                             void **to) {
    if (number && number->storage->device != p->storage->device)
        return pd_fail(PD_E_RUNTIME, "%s: parameter %" PRId64 " is on %s (expected %s, %s)", op, i,
                       p->storage->device->name, number->storage->device->name, what);
    if (number) *to = pd_tensor_data(number);
    return PD_OK;
}

/* Puts the numbers that the host finds in tensors (l->now) into their places; NULL: the method has no such number. */
static pd_status read_numbers(const char *op, const pd_step_lists *l, double *lr, int64_t *step, double *product) {
    pd_scalar found[3];
    for (int i = 0; i < 3; i++) {
        const pd_tensor *t = l->now[i];
        if (!t) continue;
        if (t->numel != 1 || pd_dtype_is_complex((pd_dtype)t->dtype))
            return pd_fail(PD_E_VALUE, "%s: got a number as %s of shape %s (expected one real element)", op,
                           pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t));
        PD_TRY(pd_item(op, t, PD_WAIT, &found[i]));
    }
    if (l->now[0] && lr) *lr = found[0].d;
    if (l->now[1] && step) *step = (int64_t)found[1].d + 1;
    if (l->now[2] && product) *product = found[2].d;
    return PD_OK;
}

static pd_tensor *gradient(const pd_step_lists *l, int64_t i) {
    return l->grads ? l->grads[i] : l->params[i]->meta ? l->params[i]->meta->grad : NULL;
}

static pd_status segment(const char *op, const pd_step_lists *l, int64_t i, pd_segment_step *s, copies *c) {
    pd_tensor *p = l->params[i], *g = gradient(l, i);
    if (!g) return pd_fail(PD_E_VALUE, "%s: parameter %" PRId64 " has no gradient (expected .grad to be set)", op, i);
    if (pd_dtype_category((pd_dtype)p->dtype) < PD_CAT_FLOAT)
        return pd_fail(PD_E_DTYPE, "%s: parameter %" PRId64 " is %s (expected a complex or floating dtype)", op, i,
                       pd_dtype_name((pd_dtype)p->dtype));
    if (p->storage->device != l->params[0]->storage->device)
        return pd_fail(PD_E_RUNTIME,
                       "%s: parameter %" PRId64 " is on %s, parameter 0 on %s (expected one device for all)", op, i,
                       p->storage->device->name, l->params[0]->storage->device->name);
    if (p->dtype != l->params[0]->dtype)
        return pd_fail(PD_E_DTYPE, "%s: parameter %" PRId64 " is %s, parameter 0 %s (expected one dtype for all)", op,
                       i, pd_dtype_name((pd_dtype)p->dtype), pd_dtype_name((pd_dtype)l->params[0]->dtype));
    PD_TRY(check_like(op, i, "the gradient", g, p));
    PD_TRY(pd_storage_before_write(op, p->storage));
    pd_tensor *dense = p;
    if (!is_dense(p)) PD_TRY(take_copy(op, NULL, true, c, &dense));
    *s = (pd_segment_step){.p = pd_tensor_data(dense), .n = parts_of(p), .chance = l->chance};
    PD_TRY(lay(op, dense, g, false, c, &s->g));
    PD_TRY(number_near(op, i, p, l->skip, "like the scaler's found_inf", (void **)(uintptr_t)&s->skip));
    PD_TRY(number_near(op, i, p, l->lr, "like the learning rate", (void **)(uintptr_t)&s->lr));
    PD_TRY(number_near(op, i, p, l->step, "like the number of steps", (void **)&s->step));
    for (int k = 0; k < 2; k++)
        PD_TRY(number_near(op, i, p, l->own[k], "like the other numbers of the step", (void **)&s->own[k]));
    pd_tensor *const *lists[] = {l->m, l->v, l->w};
    void **to[] = {&s->m, &s->v, &s->w};
    for (int k = 0; k < 3; k++) {
        if (!lists[k]) continue;
        PD_TRY(check_like(op, i, "the state", lists[k][i], p));
        PD_TRY(pd_storage_before_write(op, lists[k][i]->storage));
        PD_TRY(lay(op, dense, lists[k][i], true, c, to[k]));
    }
    return PD_OK;
}

/* The check before every write, for all that the step writes in place. Copies are checked when they are copied back. */
static pd_status before_writes(const char *op, const pd_step_lists *l, const pd_segment_step *s) {
    pd_tensor *numbers[] = {l->step, l->own[0], l->own[1]};
    for (int k = 0; k < 3; k++)
        if (numbers[k]) PD_TRY(pd_tensor_before_write(op, numbers[k]));
    for (int64_t i = 0; i < l->count; i++) {
        pd_tensor *written[] = {l->params[i], l->m ? l->m[i] : NULL, l->v ? l->v[i] : NULL, l->w ? l->w[i] : NULL};
        const void *at[] = {s[i].p, s[i].m, s[i].v, s[i].w};
        for (int k = 0; k < 4; k++)
            if (written[k] && pd_tensor_data(written[k]) == at[k]) PD_TRY(pd_tensor_before_write(op, written[k]));
    }
    return PD_OK;
}

/* *out and *held (5 for each entry) are in scratch memory, so a step without copies allocates nothing. Copies are made
   by ops, which use the scratch themselves, so after copying a second pass fills both again. */
static pd_status segments(const char *op, const pd_step_lists *l, copies *c, pd_segment_step **out,
                          pd_storage ***held, int64_t *total) {
    size_t n = (size_t)l->count;
    PD_TRY(check_numbers(op, l));
    do {
        *total = 0;
        c->made = c->count;
        PD_TRY(pd_scratch((sizeof **out + 5 * sizeof **held) * n, op, (void **)out));
        for (int64_t i = 0; i < l->count; i++) {
            pd_segment_step s;
            PD_TRY(segment(op, l, i, &s, c));
            s.drawn = l->numbers ? l->numbers[i] : (pd_numbering){.first = *total};
            *total += s.n;
            if (c->made || !c->count) (*out)[i] = s;
        }
    } while (c->count && !c->made);
    *held = (pd_storage **)(*out + n);
    for (int64_t i = 0; i < l->count; i++)
        if ((*out)[i].p == pd_tensor_data(l->params[i]))
            PD_TRY(pd_autocast_copy_begin(l->params[i], &(*out)[i].low, &(*out)[i].low_t));
    return before_writes(op, l, *out);
}

/* Bytes moved, for the profiler: parameters and states are read and written, gradients are read. */
static int64_t moved(const pd_step_lists *l, int64_t total) {
    int streams = 3 + 2 * ((l->m != NULL) + (l->v != NULL) + (l->w != NULL));
    return total * streams * (int64_t)pd_dtype_size(part_of(l->params[0]));
}

/* Keeps all memory of the step while other threads may run, which may replace a parameter's data or drop its
   gradient. */
static void hold_all(const pd_step_lists *l, pd_storage **held) {
    for (int64_t i = 0; i < l->count; i++, held += 5) {
        const pd_tensor *all[] = {l->params[i], gradient(l, i), l->m ? l->m[i] : NULL, l->v ? l->v[i] : NULL,
                                  l->w ? l->w[i] : NULL};
        for (int k = 0; k < 5; k++)
            if ((held[k] = all[k] ? all[k]->storage : NULL)) pd_storage_retain(held[k]);
    }
}

static void let_all_go(const pd_step_lists *l, pd_storage **held) {
    for (int64_t i = 0; i < 5 * l->count; i++) pd_storage_release(held[i]);
}

/* ---- for recorded programs (autograd/program.h) ------------------------------------------------------------------ */

enum { LISTS = 5, NUMBERS = 8, METHOD_BYTES = 128 };
typedef struct step_attrs {
    int64_t count;
    uint64_t chance;
    int64_t lists; /* bit k: there is a list k of params, m, v, w, grads */
    uint64_t numbers[METHOD_BYTES / 8]; /* those of the method */
} step_attrs;

/* in: the lists, then skip, lr, step, own and now. */
static pd_step_lists lists_of(const step_attrs *a, pd_tensor *const *in) {
    pd_tensor *const *list[LISTS] = {NULL};
    for (int k = 0; k < LISTS; k++)
        if (a->lists >> k & 1) list[k] = in, in += a->count;
    return (pd_step_lists){.params = list[0], .m = list[1], .v = list[2], .w = list[3], .grads = list[4],
                           .count = a->count, .chance = a->chance, .skip = in[0], .lr = in[1], .step = in[2],
                           .own = {in[3], in[4]}, .now = {in[5], in[6], in[7]}};
}

static void record(uint32_t mark, const pd_instr_kind *kind, const pd_step_lists *l, const void *method, size_t bytes) {
    if (l->numbers) {
        pd_record_refuse("an optimizer's step rounds parts of parameters at random (expected whole parameters)");
        return;
    }
    pd_tensor *const *lists[LISTS] = {l->params, l->m, l->v, l->w, l->grads}, **in, **to;
    pd_tensor *numbers[] = {l->skip, l->lr, l->step, l->own[0], l->own[1], l->now[0], l->now[1], l->now[2]};
    step_attrs a = {.count = l->count, .chance = l->chance};
    memcpy(a.numbers, method, bytes);
    if (pd_malloc(sizeof *in * ((size_t)l->count * LISTS + NUMBERS), "program", &in)) {
        pd_record_refuse("%s", pd_error_get()->text);
        return;
    }
    to = in;
    for (int k = 0; k < LISTS; k++) {
        if (!lists[k]) continue;
        a.lists |= 1 << k;
        memcpy(to, lists[k], sizeof *to * (size_t)l->count);
        to += l->count;
    }
    memcpy(to, numbers, sizeof numbers);
    pd_record(mark, kind, &a, sizeof a, in, (int)(to - in) + NUMBERS, NULL, 0);
    pd_free(in);
}

/* ns: the kernel's time for an element; a long step gives up the GIL. lr, step, product: where l->now goes. */
#define STEP(name, ns, lr, step, product)                                                               \
    static pd_status run_##name(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) { \
        const step_attrs *a = attrs;                                                                    \
        pd_step_lists l = lists_of(a, in);                                                              \
        (void)nin, (void)out, (void)nout;                                                               \
        return pd_step_##name(&l, (const pd_##name *)a->numbers);                                       \
    }                                                                                                   \
    static const pd_instr_kind name##_kind = {#name "_step", run_##name, NULL, NULL, false};            \
    _Static_assert(sizeof(pd_##name) <= METHOD_BYTES, "room for the method's numbers");                 \
    pd_status pd_step_##name(const pd_step_lists *l, const pd_##name *c) {                              \
        const uint32_t mark = pd_timespan_mark;                                                         \
        pd_segment_step *s;                                                                             \
        pd_storage **held;                                                                              \
        copies copied = {0};                                                                            \
        pd_##name now = *c;                                                                             \
        int64_t total;                                                                                  \
        if (!l->count) return PD_OK;                                                                    \
        PD_TRY(read_numbers(#name, l, lr, step, product));                                              \
        pd_status status = segments(#name, l, &copied, &s, &held, &total);                              \
        if (!status) {                                                                                  \
            pd_timespan span = pd_timespan_begin();                                                     \
            const pd_device *d = l->params[0]->storage->device, *was;                                   \
            bool unlocked = !d->kernels && (double)total * (ns) > PD_RELEASE_NS;                        \
            if (unlocked) hold_all(l, held);                                                            \
            void *token = unlocked ? pd_host_release() : NULL;                                          \
            status = pd_device_enter(d, &was);                                                          \
            if (!status) pd_here()->name(part_of(l->params[0]), &now, s, l->count);                     \
            PD_THEN(pd_device_check(d, #name));                                                         \
            pd_device_here = was;                                                                       \
            pd_host_acquire(token);                                                                     \
            if (unlocked) let_all_go(l, held);                                                          \
            if (!status) pd_timespan_end(&span, PD_SPAN_CALL, #name "_step", moved(l, total));          \
        }                                                                                               \
        for (int64_t i = 0; i < l->count && !status; i++)                                               \
            if (s[i].low) pd_autocast_copy_end(l->params[i]);                                           \
        status = end_copies(&copied, status);                                                           \
        if (!status && pd_is_recording()) record(mark, &name##_kind, l, c, sizeof *c);                  \
        return PD_TRAIL(status);                                                                        \
    }
STEP(sgd, 1.0, &now.lr, NULL, NULL)
STEP(adam, 1.5, &now.lr, &now.step, NULL)
STEP(adadelta, 2.0, &now.lr, NULL, NULL)
STEP(rmsprop, 2.0, &now.lr, NULL, NULL)
STEP(adagrad, 1.5, &now.lr, &now.step, NULL)
STEP(moments, 1.5, &now.lr, &now.step, &now.mu_product)
STEP(adamax, 1.5, &now.lr, &now.step, NULL)
STEP(asgd, 1.0, NULL, NULL, NULL)
STEP(rprop, 1.5, NULL, NULL, NULL)
STEP(lion, 1.0, &now.lr, NULL, NULL)

/* For one tensor, on its device: adds its squares to the exact sum, or, on a GPU, puts the sum of its squares into the
   double. Or, if sum is NULL, multiplies it by `by`; *finite: whether all elements were finite. */
static pd_status over(pd_tensor *t, const char *op, void *sum, double by, bool *finite) {
    copies copied = {0};
    const pd_device *d = t->storage->device, *was;
    pd_status status = !is_dense(t) ? take_copy(op, NULL, !sum, &copied, &t)
                       : sum        ? PD_OK
                                    : pd_tensor_before_write(op, t);
    if (status) return end_copies(&copied, status);
    pd_storage *held = t->storage; /* another thread may replace t's memory or shape */
    pd_storage_retain(held);
    void *data = pd_tensor_data(t);
    pd_dtype part = part_of(t);
    int64_t n = parts_of(t);
    void *token = !d->kernels && (double)t->numel > PD_RELEASE_NS ? pd_host_release() : NULL;
    status = pd_device_enter(d, &was);
    if (!status && sum && !d->kernels) pd_here()->exact_squares(part, n, data, sum);
    else if (!status && sum) pd_here()->sum_squares(part, n, data, sum);
    else if (!status) *finite = pd_here()->scale(part, n, by, data);
    PD_THEN(pd_device_check(d, op));
    pd_device_here = was;
    pd_host_acquire(token);
    pd_storage_release(held);
    return end_copies(&copied, status);
}

static pd_status check_float(const char *op, int64_t i, const pd_tensor *t) {
    if (pd_dtype_category((pd_dtype)t->dtype) >= PD_CAT_FLOAT) return PD_OK;
    return pd_fail(PD_E_DTYPE, "%s: tensor %" PRId64 " is %s (expected a complex or floating dtype)", op, i,
                   pd_dtype_name((pd_dtype)t->dtype));
}

static pd_status run_sums(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)attrs, (void)nout;
    return pd_sums_of_squares(in, nin, out);
}
static const pd_instr_kind sums_kind = {.name = "sums_of_squares", .run = run_sums};

pd_status pd_sums_of_squares(pd_tensor *const *tensors, int64_t count, pd_tensor **out) {
    const uint32_t mark = pd_timespan_mark;
    const char *op = "sums_of_squares";
    const pd_device *d = count ? tensors[0]->storage->device : &pd_device_cpu, *was;
    for (int64_t i = 0; i < count; i++) {
        PD_TRY(check_float(op, i, tensors[i]));
        if (tensors[i]->storage->device != d)
            return pd_fail(PD_E_RUNTIME, "%s: tensor %" PRId64 " is on %s (expected %s, like tensor 0)", op, i,
                           tensors[i]->storage->device->name, d->name);
    }
    pd_status status = pd_device_enter(d, &was);
    PD_THEN(pd_tensor_new(op, PD_F64, 1, &count, out));
    pd_device_here = was;
    for (int64_t i = 0; i < count && !status && d != &pd_device_meta; i++) {
        double *to = (double *)pd_tensor_data(*out) + i;
        int64_t sum[PD_EXACT] = {0};
        status = over(tensors[i], op, d->kernels ? (void *)to : sum, 0, NULL);
        if (status) pd_tensor_release(*out);
        else if (!d->kernels) *to = pd_exact_value(sum, false);
    }
    if (!status && pd_is_recording()) pd_record(mark, &sums_kind, NULL, 0, tensors, (int)count, out, 1);
    return status;
}

static pd_status run_exact(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)nout;
    return pd_exact_squares(in, nin, *(const double *)attrs, out);
}
static const pd_instr_kind exact_kind = {.name = "exact_squares", .run = run_exact};

pd_status pd_exact_squares(pd_tensor *const *tensors, int64_t count, double more, pd_tensor **out) {
    enum { CARRY_AFTER = 1024 };
    const uint32_t mark = pd_timespan_mark;
    const char *op = "exact_squares";
    int64_t sum[PD_EXACT] = {0}, size = PD_EXACT;
    for (int64_t i = 0; i < count; i++) {
        PD_TRY(check_float(op, i, tensors[i]));
        if (tensors[i]->storage->device != &pd_device_cpu)
            return pd_fail(PD_E_RUNTIME, "%s: tensor %" PRId64 " is on %s (expected cpu)", op, i,
                           tensors[i]->storage->device->name);
        PD_TRY(over(tensors[i], op, sum, 0, NULL));
        if (i % CARRY_AFTER == CARRY_AFTER - 1) pd_exact_carry(sum);
    }
    pd_exact_add_double(sum, more);
    pd_exact_carry(sum);
    PD_TRY(pd_tensor_new(op, PD_I64, 1, &size, out));
    memcpy(pd_tensor_data(*out), sum, sizeof sum);
    if (pd_is_recording()) pd_record(mark, &exact_kind, &more, sizeof more, tensors, (int)count, out, 1);
    return PD_OK;
}

static pd_status run_scale(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    bool finite;
    (void)out, (void)nout;
    return pd_scale_tensors(in, nin, *(const double *)attrs, &finite);
}
static const pd_instr_kind scale_kind = {.name = "scale_tensors", .run = run_scale};

pd_status pd_scale_tensors(pd_tensor *const *tensors, int64_t count, double by, bool *finite) {
    const uint32_t mark = pd_timespan_mark;
    *finite = true;
    for (int pass = 0; pass < 2; pass++) /* the first pass checks, so that a failure writes nothing */
        for (int64_t i = 0; i < count; i++) {
            pd_tensor *t = tensors[i];
            if (pass) {
                bool all = true;
                PD_TRY(over(t, "scale_tensors", NULL, by, &all));
                *finite &= all;
                continue;
            }
            PD_TRY(pd_check_writable("scale_tensors", t));
            PD_TRY(check_float("scale_tensors", i, t));
        }
    if (!pd_is_recording()) return PD_OK;
    pd_record(mark, &scale_kind, &by, sizeof by, tensors, (int)count, NULL, 0);
    pd_record_read("scale_tensors"); /* whether all are finite */
    return PD_OK;
}

pd_status pd_unscale(pd_tensor *const *tensors, int64_t count, pd_tensor *by, pd_tensor *found) {
    if (pd_is_recording()) pd_record_refuse("unscale() of a GPU's gradients");
    const pd_device *d = by->storage->device, *was;
    PD_TRY(check_number("unscale", by));
    PD_TRY(check_number("unscale", found));
    for (int64_t i = -1; i < count; i++) {
        pd_tensor *t = i < 0 ? found : tensors[i];
        if (t->storage->device != d)
            return pd_fail(PD_E_RUNTIME, "unscale: got tensors on %s and on %s (expected one device)", d->name,
                           t->storage->device->name);
        PD_TRY(pd_check_writable("unscale", t));
        PD_TRY(check_float("unscale", i, t));
    }
    PD_TRY(pd_tensor_before_write("unscale", found));
    pd_status status = pd_device_enter(d, &was);
    for (int64_t i = 0; i < count && !status; i++) {
        copies copied = {0};
        pd_tensor *t = tensors[i];
        status = is_dense(t) ? pd_tensor_before_write("unscale", t) : take_copy("unscale", NULL, true, &copied, &t);
        if (!status)
            pd_here()->unscale(part_of(t), parts_of(t), pd_tensor_data(by), pd_tensor_data(found), pd_tensor_data(t));
        status = end_copies(&copied, status);
    }
    PD_THEN(pd_device_check(d, "unscale"));
    pd_device_here = was;
    return PD_TRAIL(status);
}

static pd_status run_zero_grads(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)out, (void)nout;
    return pd_zero_grads(in, nin, *(const bool *)attrs);
}
static const pd_instr_kind zero_grads_kind = {.name = "zero_grads", .run = run_zero_grads};

pd_status pd_zero_grads(pd_tensor *const *params, int64_t count, bool set_to_none) {
    const uint32_t mark = pd_timespan_mark;
    for (int64_t i = 0; i < count; i++) {
        pd_meta *m = params[i]->meta;
        if (!m || !m->grad) continue;
        if (set_to_none) {
            pd_meta_set_grad(m, NULL);
            continue;
        }
        if (m->grad->meta && m->grad->meta->grad_fn) { /* made with create_graph: detached, as in PyTorch */
            pd_tensor *plain;
            PD_TRY(pd_engine.zeros_like(m->grad, &plain));
            pd_meta_set_grad(m, plain);
            continue;
        }
        PD_TRY(pd_tensor_before_write("zero_grad", m->grad));
        const pd_device *was;
        PD_TRY(pd_device_enter(m->grad->storage->device, &was));
        pd_fill(m->grad, &(pd_scalar){.cat = PD_CAT_INT});
        pd_device_here = was;
    }
    if (pd_is_recording())
        pd_record(mark, &zero_grads_kind, &set_to_none, sizeof set_to_none, params, (int)count, NULL, 0);
    return PD_OK;
}
