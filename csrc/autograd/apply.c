#include "autograd/apply.h"

#include <string.h>

#include "autograd/autocast.h"
#include "autograd/spans.h"
#include "autograd/nan.h"
#include "base/mem.h"

pd_dtype pd_default_dtype = PD_F32;
_Thread_local pd_status (*pd_selecting)(pd_call *c, bool *have);
_Thread_local void (*pd_between_kernels)(void);
_Thread_local bool pd_parts_are_plain;
pd_status (*pd_spread_call)(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into,
                            pd_tensor **out, int *nout);

/* ---- promotion --------------------------------------------------------------------------------------------------- */

static int combine(int higher, int lower) { /* PD_NO_DTYPE: no operands of that kind */
    if (higher == PD_NO_DTYPE) return lower;
    if (lower == PD_NO_DTYPE) return higher;
    pd_category h = pd_dtype_category((pd_dtype)higher), l = pd_dtype_category((pd_dtype)lower);
    if (l <= h) return higher;
    return h == PD_CAT_FLOAT ? (int)pd_dtype_with_parts((pd_dtype)higher)
                             : (int)pd_dtype_promote((pd_dtype)higher, (pd_dtype)lower);
}

static int join(int a, pd_dtype b) { return a == PD_NO_DTYPE ? (int)b : (int)pd_dtype_promote((pd_dtype)a, b); }

pd_dtype pd_result_type(pd_tensor *const *in, int nin, const pd_scalar *const *scalars, int nscalars) {
    int dims = PD_NO_DTYPE, zero = PD_NO_DTYPE, number = PD_NO_DTYPE;
    for (int i = 0; i < nin; i++)
        if (in[i]) {
            int *kind = in[i]->ndim ? &dims : &zero;
            *kind = join(*kind, (pd_dtype)in[i]->dtype);
        }
    for (int i = 0; i < nscalars; i++)
        if (scalars[i]->cat >= 0)
            number = join(number, scalars[i]->cat == PD_CAT_BOOL  ? PD_BOOL
                                  : scalars[i]->cat == PD_CAT_INT ? PD_I64
                                  : scalars[i]->cat == PD_CAT_FLOAT
                                      ? pd_default_dtype
                                      : pd_dtype_with_parts(pd_default_dtype));
    return (pd_dtype)combine(dims, combine(zero, number));
}

static bool all_of(pd_tensor *const *in, int nin, int dtype) {
    for (int i = 0; i < nin; i++)
        if (in[i] && in[i]->dtype != dtype) return false;
    return true;
}

/* The dtype in which the op computes; PD_NO_DTYPE: the inputs stay as they are. */
static pd_status compute_dtype(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_dtype *out) {
    const pd_scalar *scalars[PD_MAX_PARAMS];
    int count = 0, category = -1;
    *out = PD_NO_DTYPE;
    pd_promote promote = def->op->promote;
    if (promote == PD_NONE) return PD_OK;
    if (promote == PD_SAME) {
        int first = -1;
        for (int i = 0; i < nin; i++)
            if (in[i] && first < 0) first = i;
        for (int i = 0; i < nin; i++)
            if (in[i] && in[i]->dtype != in[first]->dtype)
                return pd_fail(PD_E_DTYPE,
                               "%s: the tensors differ in dtype: input %d is %s, input %d is %s (expected one dtype)",
                               def->name, first, pd_dtype_name((pd_dtype)in[first]->dtype), i,
                               pd_dtype_name((pd_dtype)in[i]->dtype));
        return PD_OK;
    }
    if (promote == PD_GIVEN) {
        for (int p = 0; p < def->nparams; p++)
            if (def->params[p].type == PD_T_DTYPE)
                *out = (pd_dtype) * (const int64_t *)((const char *)attrs + def->params[p].attr);
        return PD_OK;
    }
    for (int p = 0; p < def->nparams; p++)
        if (def->params[p].type == PD_T_OPERAND) {
            scalars[count] = (const pd_scalar *)((const char *)attrs + def->params[p].attr);
            if (scalars[count]->cat > category) category = (int)scalars[count]->cat;
            count++;
        }
    int first = -1;
    for (int i = 0; i < nin && first < 0; i++)
        if (in[i]) first = i;
    if (first < 0)
        return pd_fail(def->list < 0 ? PD_E_TYPE : PD_E_VALUE, "%s: no argument is a tensor (expected at least one)",
                       def->name);
    pd_dtype t = (pd_dtype)in[first]->dtype;
    if (!all_of(in, nin, t) || category > (int)pd_dtype_category(t)) t = pd_result_type(in, nin, scalars, count);
    if (promote == PD_INT_TO_FLOAT && pd_dtype_category(t) < PD_CAT_FLOAT) t = pd_default_dtype;
    *out = t;
    return PD_OK;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

pd_status pd_check_writable(const char *op, const pd_tensor *t) {
    PD_TRY(pd_storage_before_write(op, t->storage));
    if (pd_tensor_overlaps_itself(t))
        return pd_fail(PD_E_RUNTIME,
                       "%s: more than one element of the written-to tensor refers to a single memory location: got "
                       "shape %s (expected clone() first, because elements share memory)",
                       op, pd_tensor_shape(t));
    if (t->storage->inference && !pd_inference_mode)
        return pd_fail(
            PD_E_RUNTIME,
            "%s: Inplace update to inference tensor outside InferenceMode is not allowed (expected clone() first)", op);
    if (!pd_grad_mode) return PD_OK;
    if ((t->meta && t->meta->sealed) || (t->base && t->base->meta && t->base->meta->sealed))
        return pd_fail(PD_E_RUNTIME,
                       "%s: an in-place op writes to the result of a custom Function that is a view, or an unchanged "
                       "input (expected clone() in forward, or mark_dirty for an input that forward writes)",
                       op);
    if (t->requires_grad && (!t->meta || !t->meta->grad_fn) && !t->base)
        return pd_fail(
            PD_E_RUNTIME,
            "%s: a leaf Variable that requires grad is being used in an in-place operation (expected pydist.no_grad())",
            op);
    /* The base requires grad, or did when the view was made. A leaf that is a result of itself would never be freed. */
    if (t->base && (t->base->requires_grad || t->requires_grad) && (!t->base->meta || !t->base->meta->grad_fn))
        return pd_fail(PD_E_RUNTIME,
                       "%s: a view of a leaf Variable that requires grad is being used in an in-place operation "
                       "(expected pydist.no_grad())",
                       op);
    const pd_meta *bm = t->base ? t->base->meta : NULL;
    if (t->base && t->base->requires_grad && !t->requires_grad &&
        (bm ? bm->rebased : 0) == (t->meta ? t->meta->base_rebased : 0))
        return pd_fail(PD_E_RUNTIME,
                       "%s: an in-place op writes to a view that no_grad mode made of a tensor that requires grad "
                       "(expected pydist.no_grad(), or a new view)",
                       op);
    return PD_OK;
}

/* ---- parts of spread tensors ------------------------------------------------------------------------------------- */

static bool has_parts(pd_tensor *const *in, int nin) {
    for (int i = 0; i < nin; i++)
        if (in[i] && in[i]->spread) return !pd_parts_are_plain;
    return false;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

static double work_of(const pd_call *c) {
    if (c->def->op->work) return c->def->op->work(c);
    int64_t n = 0;
    for (int i = 0; i < c->nin; i++)
        if (c->in[i]) n += c->in[i]->numel;
    for (int i = 0; i < c->nout; i++) n += c->out[i]->numel;
    return (double)n * 0.25; /* 4-byte elements at 16 GB/s */
}

static pd_status check_complex(const pd_def *def, pd_tensor *const *in, int nin) {
    for (int i = 0; i < nin && !def->on_complex; i++)
        if (in[i] && pd_dtype_is_complex((pd_dtype)in[i]->dtype))
            return pd_fail(PD_E_DTYPE, "%s: input %d is %s (expected real numbers)", def->name, i,
                           pd_dtype_name((pd_dtype)in[i]->dtype));
    return PD_OK;
}

static bool wants_record(const pd_def *def, pd_tensor *const *in, int nin) {
    if (!pd_grad_mode || !(def->op->vjp || def->op->vjp_fast)) return false;
    for (int i = 0; i < nin; i++)
        if (in[i] && (in[i]->requires_grad || (in[i]->base && pd_tensor_wants_grad(in[i])))) return true;
    return false;
}

static pd_status record(const pd_call *c, pd_tensor *const *saved_in, double work, pd_node **out) {
    const pd_op *op = c->def->op;
    pd_node *n;
    PD_TRY(pd_node_new(&pd_node_of_op, c->def, c->attrs, op->attrs, c->in, c->nin, c->nout,
                       __builtin_popcount(op->save), &n));
    n->work = work;
    int slot = 0;
    for (uint32_t bits = op->save; bits; bits &= bits - 1) {
        int k = __builtin_ctz(bits);
        bool is_out = k >= 16;
        pd_tensor *t = is_out ? c->out[k - 16] : k < c->nin ? saved_in[k] : NULL;
        pd_status status = pd_node_save(n, slot++, t, is_out, is_out ? k - 16 : k);
        if (status) {
            pd_node_release(n);
            return PD_TRAIL(status);
        }
    }
    *out = n;
    return PD_OK;
}

/* Kernels of a device are only launched: they cost this thread nothing, and leave no result when they return. */
static pd_status launch(pd_call *c) {
    const pd_op *op = c->def->op;
    const pd_device *d = pd_device_here;
    if (d == &pd_device_meta) return PD_OK; /* shapes are all there is */
    PD_TRY(d->scratch(d, op->scratch ? op->scratch(c) : 0, c->def->name, &c->scratch));
    PD_TRY(op->kernel(c));
    return d->check(d, c->def->name);
}

/* Runs the kernel without the host's lock. Meanwhile other threads may change memory and geometry of all tensors that
   they can see, so copies of the tensors are held. */
static pd_status run_unlocked(pd_call *c) {
    pd_tensor **in = c->in, *out = c->out[0], **held;
    int n = c->nin;
    PD_TRY(pd_malloc(sizeof *held * (size_t)(n + 1), c->def->name, &held));
    pd_status status = pd_tensor_hold(in, n, held);
    if (!status && (status = pd_tensor_hold(&out, 1, held + n))) pd_tensor_let_go(held, n);
    if (!status) {
        c->in = held, c->out[0] = held[n]; /* the only result that may be a tensor of the caller */
        void *token = pd_host_release();
        status = c->def->op->kernel(c);
        pd_host_acquire(token);
        c->in = in, c->out[0] = out;
        pd_tensor_let_go(held, n + 1);
    }
    pd_free(held);
    return status;
}

static pd_status run_kernel(pd_call *c, double *work) {
    const pd_op *op = c->def->op;
    if (!op->kernel) return PD_OK;
    if (__builtin_expect(pd_between_kernels != NULL, 0)) pd_between_kernels();
    if (pd_device_here->kernels) return launch(c);
    PD_TRY(pd_scratch(op->scratch ? op->scratch(c) : 0, c->def->name, &c->scratch));
    bool finite = pd_nan_armed && pd_nan_inputs_finite(c);
    *work = work_of(c);
    pd_status status = *work > PD_RELEASE_NS ? run_unlocked(c) : op->kernel(c);
    for (int i = 0; finite && i < c->nout && !status; i++)
        if (!pd_nan_finite(c->out[i])) status = pd_nan_report("result", c->def->name, i, c->out[i]);
    return status;
}

static void release_all(pd_tensor **t, int n) {
    for (int i = 0; i < n; i++) {
        pd_tensor_release(t[i]);
        t[i] = NULL;
    }
}

/* Puts t into the gradient's destination if it fits there, else into memory of its own. */
static pd_status place(pd_tensor *t, pd_tensor *to) {
    size_t dims = (size_t)t->ndim * sizeof *t->size;
    if (!to || to->storage->device != pd_device_here || t->dtype != to->dtype || t->ndim != to->ndim ||
        memcmp(t->size, to->size, dims) || memcmp(t->stride, to->stride, dims))
        return pd_tensor_allocate(t);
    PD_TRY(pd_tensor_before_write("backward", to));
    pd_storage_retain(t->storage = to->storage);
    t->offset = to->offset;
    return PD_OK;
}

/* *have: a selective checkpoint has kept the results. */
static pd_status make_outputs(pd_call *c, bool *have) {
    const pd_op *op = c->def->op;
    for (int i = 0; i < c->nout; i++) PD_TRY(pd_tensor_shell(&c->out[i]));
    PD_TRY(op->infer(c));
    if (pd_selecting && op->kernel) PD_TRY(pd_selecting(c, have));
    for (int i = 0; i < c->nout; i++)
        if (!c->out[i]->storage) PD_TRY(place(c->out[i], i ? NULL : c->destination));
    return PD_OK;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* The device on which the op runs: that of its tensors, and of `into` if there is one. A 0-d tensor on the CPU counts
   as a number: *moves says that some have to be moved to the others' device. */
static pd_status place_of(const pd_def *def, pd_tensor *const *in, int nin, const pd_tensor *into,
                          const pd_device **out, bool *moves) {
    const pd_device *d = into ? into->storage->device : NULL;
    bool numbers = false;
    for (int i = 0; i < nin; i++) {
        const pd_device *own = in[i] ? in[i]->storage->device : NULL;
        if (!own || own == d) continue;
        if (own == &pd_device_cpu && in[i]->ndim == 0) numbers = true;
        else if (!d) d = own;
        else
            return pd_fail(
                PD_E_RUNTIME,
                "%s: Expected all tensors to be on the same device: got %s and, for input %d, %s (expected one device)",
                def->name, d->name, i, own->name);
    }
    *moves = numbers && d && d != &pd_device_cpu;
    *out = d ? d : numbers ? &pd_device_cpu : pd_device_here;
    return PD_OK;
}

/* moved[]: all inputs, on d. own[]: those that were made here. */
static pd_status move_inputs(pd_tensor *const *in, int nin, const pd_device *d, pd_tensor **moved, pd_tensor **own) {
    for (int i = 0; i < nin; i++) own[i] = NULL;
    for (int i = 0; i < nin; i++) {
        moved[i] = in[i];
        if (!in[i] || in[i]->storage->device == d) continue;
        PD_TRY(pd_engine.move(in[i], d, PD_NO_WAIT, &own[i]));
        moved[i] = own[i];
    }
    return PD_OK;
}

static pd_status run_here(pd_call *c) {
    const pd_op *op = c->def->op;
    c->nout = op->nout ? op->nout : 1;
    bool wants = c->wants = wants_record(c->def, c->in, c->nin), have = false;
    pd_status status;
    PD_TRY(check_complex(c->def, c->in, c->nin));
    if (op->compose) {
        bool mode = pd_grad_mode;
        pd_grad_mode = mode && !(op->vjp || op->vjp_fast); /* the op's own gradient replaces that of its parts */
        status = op->compose(c);
        pd_grad_mode = mode;
    } else {
        status = make_outputs(c, &have);
    }
    double work = 0;
    if (!have) PD_THEN(run_kernel(c, &work));
    if (pd_selecting && op->kernel && !have) PD_THEN(pd_selecting(c, NULL));
    if (!status && wants) {
        pd_node *n;
        status = record(c, c->in, work, &n);
        if (!status) {
            for (int i = 0; i < c->nout && !status; i++)
                if (pd_dtype_category((pd_dtype)c->out[i]->dtype) >= PD_CAT_FLOAT)
                    status = pd_node_own(n, i, c->out[i]);
            pd_node_release(n);
        }
    }
    if (!status) return PD_OK;
    release_all(c->out, c->nout);
    return PD_TRAIL(status);
}

static pd_status run_moved(pd_call *c, const pd_device *d) {
    int nin = c->nin;
    pd_tensor *few[2 * PD_MAX_PARAMS], **moved = few;
    if (nin > PD_MAX_PARAMS) PD_TRY(pd_malloc(sizeof *moved * 2 * (size_t)nin, c->def->name, &moved));
    pd_status status = move_inputs(c->in, nin, d, moved, moved + nin);
    c->in = moved;
    PD_THEN(run_here(c));
    release_all(moved + nin, nin);
    if (moved != few) pd_free(moved);
    return status;
}

/* Runs the op on inputs that have their final dtypes. */
static pd_status run(pd_call *c) {
    const pd_device *d = pd_device_here, *was;
    bool moves = false;
    if (!(c->def->op->flags & PD_ANY_DEVICE)) PD_TRY(place_of(c->def, c->in, c->nin, NULL, &d, &moves));
    if (d == pd_device_here && !moves) return run_here(c);
    pd_status status = pd_device_enter(d, &was);
    PD_THEN(moves ? run_moved(c, d) : run_here(c));
    pd_device_here = was;
    return status;
}

/* The dtype in which the kernel gets x. number: x is a 0-d tensor beside others that are not, so it may be wider than
   t. */
static pd_dtype dtype_of_input(const pd_def *def, const pd_tensor *x, bool number, pd_dtype t) {
    if (!(def->op->flags & PD_MIXED) || pd_dtype_computed(t) != PD_F32) return t;
    bool is_float = pd_dtype_computed((pd_dtype)x->dtype) == PD_F32;
    if (number && !(def->op->flags & PD_EXACT)) return t;
    return is_float ? (pd_dtype)x->dtype : number ? PD_F32 : t;
}

/* Casts inputs for a call in dtype t. cast[]: all inputs; own[]: those that were made here. */
static pd_status cast_inputs(const pd_def *def, pd_tensor *const *in, int nin, pd_dtype t, pd_tensor **cast,
                             pd_tensor **own) {
    bool dims = false;
    for (int i = 0; i < nin; i++) {
        own[i] = NULL;
        dims = dims || (in[i] && in[i]->ndim);
    }
    for (int i = 0; i < nin; i++) {
        cast[i] = in[i];
        pd_dtype to = in[i] ? dtype_of_input(def, in[i], dims && !in[i]->ndim, t) : t;
        if (!in[i] || in[i]->dtype == (int)to) continue;
        PD_TRY(pd_engine.cast(in[i], to, &own[i]));
        cast[i] = own[i];
    }
    return PD_OK;
}

static pd_status run_cast(pd_call *c, pd_dtype t) {
    /* Only lists are long; they get memory of their own. */
    int nin = c->nin;
    pd_tensor *few[2 * PD_MAX_PARAMS], **cast = few;
    if (nin > PD_MAX_PARAMS) PD_TRY(pd_malloc(sizeof *cast * 2 * (size_t)nin, c->def->name, &cast));
    pd_tensor **own = cast + nin;
    pd_status status = cast_inputs(c->def, c->in, nin, t, cast, own);
    c->in = cast;
    PD_THEN(run(c));
    release_all(own, nin);
    if (cast != few) pd_free(cast);
    return status;
}

/* c's inputs belong to the caller. What a step below puts into their place is freed when that step returns. */
static pd_status apply(pd_call *c) {
    pd_dtype t;
    PD_TRY(compute_dtype(c->def, c->in, c->nin, c->attrs, &t));
    return t == PD_NO_DTYPE || all_of(c->in, c->nin, t) ? run(c) : run_cast(c, t);
}

pd_status pd_apply_to(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *destination,
                      pd_tensor **out, int *nout) {
    pd_dtype t;
    if (__builtin_expect(has_parts(in, nin), 0)) return pd_spread_call(def, in, nin, attrs, NULL, out, nout);
    if (pd_autocast.dtype != PD_NO_DTYPE && (t = pd_autocast_dtype(def->op, in, nin)) != PD_NO_DTYPE)
        return pd_autocast_apply(def, in, nin, attrs, out, nout, t); /* calls apply() again: an op has one span */
    pd_call c = {.def = def, .attrs = attrs ? attrs : def->defaults, .in = (pd_tensor **)(uintptr_t)in, .nin = nin,
                 .destination = destination};
    pd_timespan span = pd_timespan_begin();
    PD_TRY(apply(&c));
    for (int i = 0; i < c.nout; i++) out[i] = c.out[i];
    if (nout) *nout = c.nout;
    if (pd_timespan_is_on(&span)) pd_timespan_end_op(&span, PD_SPAN_OP, def, attrs, in, nin, out, c.nout);
    return PD_OK;
}

pd_status pd_apply(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor **out, int *nout) {
    return pd_apply_to(def, in, nin, attrs, NULL, out, nout);
}

/* ---- results into a given tensor --------------------------------------------------------------------------------- */

static pd_status check_into(const pd_call *c, const pd_tensor *into, bool inplace) {
    const pd_tensor *o = c->out[0];
    if (!pd_tensor_same_shape(o, into))
        return pd_fail(PD_E_SHAPE, "%s%s: the result has shape %s, the output tensor %s (expected equal shapes)",
                       c->def->name, inplace ? "_" : " (out=)", pd_tensor_shape(o), pd_tensor_shape(into));
    pd_category from = pd_dtype_category((pd_dtype)o->dtype), to = pd_dtype_category((pd_dtype)into->dtype);
    if (from > to)
        return pd_fail(
            PD_E_DTYPE,
            "%s%s: result type %s can't be cast to the desired output type %s (expected a dtype at least as general)",
            c->def->name, inplace ? "_" : " (out=)", pd_dtype_name((pd_dtype)o->dtype),
            pd_dtype_name((pd_dtype)into->dtype));
    return PD_OK;
}

/* Whether an input overlaps the tensor that is written, other than element by element. */
static bool partly_overlaps(pd_tensor *const *in, int nin, const pd_tensor *into) {
    for (int i = 0; i < nin; i++) {
        const pd_tensor *t = in[i];
        if (!t || t == into || !pd_tensor_shares(t, into)) continue;
        if (!pd_tensor_same_shape(t, into) || t->offset != into->offset || t->dtype != into->dtype) return true;
        for (int d = 0; d < t->ndim; d++)
            if (t->size[d] > 1 && t->stride[d] != into->stride[d]) return true;
    }
    return false;
}

static pd_status run_into_here(const pd_def *def, pd_tensor **in, int nin, const void *attrs, pd_tensor *into) {
    const pd_op *op = def->op;
    bool inplace = nin > 0 && in[0] == into;
    pd_call c = {.def = def, .attrs = attrs, .in = in, .nin = nin, .nout = 1};
    pd_tensor *shell, *copy = NULL, *const *saved_in = in;
    pd_tensor *saved[PD_MAX_PARAMS];
    pd_node *node = NULL;
    PD_TRY(check_complex(def, in, nin));
    PD_TRY(pd_tensor_shell(&shell));
    c.out[0] = shell;
    pd_status status = op->infer(&c);
    PD_THEN(check_into(&c, into, inplace));
    if (status) goto done;
    bool direct = shell->dtype == into->dtype && !partly_overlaps(in, nin, into) &&
                  (!(op->flags & PD_CONTIGUOUS) || pd_tensor_is_contiguous(into));
    if (direct) c.out[0] = into;
    else PD_TRY_TO(done, pd_tensor_allocate(shell));
    /* The gradient needs the input as it was before the write. */
    if (inplace && (op->save & PD_SAVE_IN(0)) && wants_record(def, in, nin)) {
        PD_TRY_TO(done, pd_engine.clone(into, &copy));
        memcpy(saved, in, sizeof *in * (size_t)nin);
        saved[0] = copy;
        saved_in = saved;
    }
    double work = 0;
    if (direct) PD_TRY_TO(done, pd_tensor_before_write(def->name, into));
    PD_TRY_TO(done, run_kernel(&c, &work));
    if (!direct) PD_TRY_TO(done, pd_engine.copy_into(into, shell));
    if (pd_dtype_category((pd_dtype)into->dtype) >= PD_CAT_FLOAT && wants_record(def, in, nin)) {
        c.out[0] = into;
        PD_TRY_TO(done, record(&c, saved_in, work, &node));
        PD_TRY_TO(done, pd_node_rebase(node, into, 0, 0));
    }
done:
    pd_node_release(node);
    pd_tensor_release(copy);
    pd_tensor_release(shell);
    return status;
}

static pd_status run_into(const pd_def *def, pd_tensor **in, int nin, const void *attrs, pd_tensor *into) {
    const pd_device *d, *was;
    pd_tensor *moved[2 * PD_MAX_PARAMS];
    bool moves;
    PD_TRY(place_of(def, in, nin, into, &d, &moves));
    if (d == pd_device_here && !moves) return run_into_here(def, in, nin, attrs, into);
    for (int i = 0; i < 2 * nin && moves; i++) moved[i] = NULL;
    pd_status status = pd_device_enter(d, &was);
    if (!status && moves) status = move_inputs(in, nin, d, moved, moved + nin);
    PD_THEN(run_into_here(def, moves ? moved : in, nin, attrs, into));
    if (moves) release_all(moved + nin, nin);
    pd_device_here = was;
    return status;
}

static pd_status apply_into(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into) {
    pd_dtype t;
    bool inplace = nin > 0 && in[0] == into;
    PD_TRY(pd_check_writable(def->name, into));
    if (!inplace && wants_record(def, in, nin))
        return pd_fail(PD_E_RUNTIME,
                       "%s: out= does not support automatic differentiation, but an argument requires grad (expected "
                       "pydist.no_grad(), or no out=)",
                       def->name);
    if (nin > PD_MAX_PARAMS) return pd_fail(PD_E_VALUE, "%s: too many tensors for out=", def->name);
    PD_TRY(compute_dtype(def, in, nin, attrs, &t));
    pd_tensor *cast[PD_MAX_PARAMS], *own[PD_MAX_PARAMS];
    memcpy(cast, in, sizeof *in * (size_t)nin);
    for (int i = 0; i < nin; i++) own[i] = NULL;
    pd_status status = PD_OK;
    if (t != PD_NO_DTYPE && !all_of(in, nin, t)) {
        if (inplace && in[0]->dtype != (int)t) { /* computed in t in new memory, then copied, and recorded as such */
            pd_tensor *result, *first = NULL;
            /* The gradient needs the input as it was before the write. */
            if ((def->op->save & PD_SAVE_IN(0)) && wants_record(def, in, nin)) PD_TRY(pd_engine.clone(into, &first));
            if (first) cast[0] = first;
            status = pd_apply(def, cast, nin, attrs, &result, NULL);
            pd_tensor_release(first);
            PD_TRY(status);
            pd_category from = pd_dtype_category((pd_dtype)result->dtype),
                        to = pd_dtype_category((pd_dtype)into->dtype);
            if (from > to)
                status =
                    pd_fail(PD_E_DTYPE,
                            "%s_: result type %s can't be cast to the desired output type %s (expected a dtype at "
                            "least as general)",
                            def->name, pd_dtype_name((pd_dtype)result->dtype), pd_dtype_name((pd_dtype)into->dtype));
            else if (!pd_tensor_same_shape(result, into))
                status = pd_fail(PD_E_SHAPE, "%s_: the result has shape %s, this tensor %s (expected equal shapes)",
                                 def->name, pd_tensor_shape(result), pd_tensor_shape(into));
            else status = pd_engine.write(into, result);
            pd_tensor_release(result);
            return status;
        }
        status = cast_inputs(def, in, nin, t, cast, own);
    }
    PD_THEN(run_into(def, cast, nin, attrs, into));
    release_all(own, nin);
    return status;
}

pd_status pd_apply_into(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into) {
    if (__builtin_expect((into->spread && !pd_parts_are_plain) || has_parts(in, nin), 0))
        return pd_spread_call(def, in, nin, attrs, into, NULL, NULL);
    pd_timespan span = pd_timespan_begin();
    pd_status status = apply_into(def, in, nin, attrs ? attrs : def->defaults, into);
    if (pd_timespan_is_on(&span) && !status) pd_timespan_end_op(&span, PD_SPAN_INPLACE, def, attrs, in, nin, &into, 1);
    return status;
}
