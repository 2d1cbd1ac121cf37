/* The kinds of instructions that the engine itself records. */
#include <string.h>

#include "autograd/apply.h"
#include "autograd/program_impl.h"
#include "base/mem.h"

static pd_status run_put(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    const struct pd_effect *e = attrs;
    (void)in, (void)nin, (void)out, (void)nout;
    return pd_storage_put(e->s, e->bytes);
}
static void drop_put(void *attrs) {
    pd_storage_release(((struct pd_effect *)attrs)->s);
    pd_tensor_release(((struct pd_effect *)attrs)->bytes);
}
const pd_instr_kind pd_instr_put = {.name = "the effect of a call", .run = run_put, .drop = drop_put};

const pd_instr_kind pd_instr_forgotten = {.name = "a call inside each_time"};

void pd_instr_fini(instr *i) {
    if (i->kind && i->kind->drop && i->attrs) i->kind->drop(i->attrs);
    pd_free(i->attrs);
    pd_free(i->slots);
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

typedef struct op_attrs {
    const pd_def *def;
    int draws; /* where the key of a random op lies; -1: there is none */
    uint64_t own[PD_MAX_ATTRS / 8];
} op_attrs;

static size_t op_bytes(const pd_def *def) { return offsetof(op_attrs, own) + def->op->attrs; }

static void make_op_attrs(const pd_def *def, const void *attrs, op_attrs *a) {
    a->def = def, a->draws = -1;
    memcpy(a->own, attrs ? attrs : def->defaults, def->op->attrs);
    for (int k = 0; k < def->nparams; k++)
        if (def->params[k].type == PD_T_RNG) a->draws = def->params[k].attr;
}

static bool same_ints(const pd_ints *a, const pd_ints *b) {
    return a->n == b->n && (a->n <= 0 || !memcmp(a->v, b->v, sizeof *a->v * (size_t)a->n));
}

static bool same_scalar(const pd_scalar *a, const pd_scalar *b) {
    if (a->cat != b->cat) return false;
    bool integral = a->cat <= PD_CAT_INT;
    return a->cat < 0 || (integral ? a->i == b->i
                                   : !memcmp(&a->d, &b->d, sizeof a->d) &&
                                         (a->cat != PD_CAT_COMPLEX || !memcmp(&a->im, &b->im, sizeof a->im)));
}

/* Parameter by parameter, since the unused rest of pd_ints may have any bytes. */
static bool same_op(const void *x, const void *y) {
    const op_attrs *a = x, *b = y;
    if (a->def != b->def) return false;
    for (int k = 0; k < a->def->nparams; k++) {
        const pd_param *p = &a->def->params[k];
        if (p->attr < 0 || p->type == PD_T_RNG) continue;
        const char *u = (const char *)a->own + p->attr, *v = (const char *)b->own + p->attr;
        bool same = p->type == PD_T_INTS || p->type == PD_T_INTS_OPT ? same_ints((const pd_ints *)u, (const pd_ints *)v)
                    : p->type == PD_T_OPERAND || p->type == PD_T_SCALAR
                        ? same_scalar((const pd_scalar *)u, (const pd_scalar *)v)
                        : !memcmp(u, v, p->type == PD_T_INT_N ? sizeof(int64_t) * (size_t)p->n : sizeof(int64_t));
        if (!same) return false;
    }
    return true;
}

/* The attributes for a run: random ops draw a key, except on meta. */
static const void *drawn(const op_attrs *a, const pd_tensor *in, uint64_t *room) {
    if (a->draws < 0 || (in && in->storage->device == &pd_device_meta)) return a->own;
    memcpy(room, a->own, a->def->op->attrs);
    *(pd_rng_key *)((char *)room + a->draws) = pd_rng_next();
    return room;
}

static pd_status run_op(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    const op_attrs *a = attrs;
    uint64_t room[PD_MAX_ATTRS / 8];
    pd_tensor *all[PD_MAX_OUTS];
    int n;
    PD_TRY(pd_apply(a->def, in, nin, drawn(a, nin ? in[0] : NULL, room), all, &n));
    for (int k = 0; k < n; k++) {
        if (k < nout) out[k] = all[k];
        else pd_tensor_release(all[k]);
    }
    return PD_OK;
}
const pd_instr_kind pd_instr_op = {.name = "op", .run = run_op, .same = same_op};

/* The last input is what the op writes. */
static pd_status run_op_into(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    const op_attrs *a = attrs;
    uint64_t room[PD_MAX_ATTRS / 8];
    (void)out, (void)nout;
    return pd_apply_into(a->def, in, nin - 1, drawn(a, in[0], room), in[nin - 1]);
}
const pd_instr_kind pd_instr_op_into = {.name = "in place", .run = run_op_into, .same = same_op};

void pd_record_op(uint32_t mark, const pd_def *def, const void *attrs, pd_tensor *const *in, int nin,
                  pd_tensor *const *out, int nout) {
    op_attrs a;
    if (!pd_is_recording()) return;
    make_op_attrs(def, attrs, &a);
    pd_record(mark, &pd_instr_op, &a, op_bytes(def), in, nin, out, nout);
}

void pd_record_op_into(uint32_t mark, const pd_def *def, const void *attrs, pd_tensor *const *in, int nin,
                       pd_tensor *into) {
    op_attrs a;
    pd_tensor *all[PD_MAX_PARAMS + 1];
    if (!pd_is_recording()) return;
    make_op_attrs(def, attrs, &a);
    memcpy(all, in, sizeof *in * (size_t)nin);
    all[nin] = into;
    pd_record(mark, &pd_instr_op_into, &a, op_bytes(def), all, nin + 1, NULL, 0);
}

const char *pd_instr_name(const instr *i) {
    bool op = i->kind == &pd_instr_op || i->kind == &pd_instr_op_into;
    return op ? ((const op_attrs *)i->attrs)->def->name : i->kind->name;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct backward_attrs {
    int nroots, ninputs;
    bool grads, inputs, accumulate, retain_graph, create_graph;
} backward_attrs;

/* in: the roots, their gradients if there are some, the inputs. */
static pd_status run_backward(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    const backward_attrs *a = attrs;
    (void)nin;
    pd_tensor *const *inputs = in + a->nroots * (a->grads ? 2 : 1);
    pd_backward b = {.roots = in, .nroots = a->nroots, .grads = a->grads ? in + a->nroots : NULL,
                     .retain_graph = a->retain_graph, .create_graph = a->create_graph,
                     .inputs = a->inputs ? inputs : NULL, .ninputs = a->ninputs, .accumulate = a->accumulate,
                     .out = nout ? out : NULL};
    return pd_engine_run(&b);
}
const pd_instr_kind pd_instr_backward = {.name = "backward", .run = run_backward};

void pd_record_backward(uint32_t mark, const pd_backward *b) {
    if (!pd_is_recording()) return;
    if (b->fed || b->sink) {
        pd_record_refuse("backward gets gradients from outside, or gives them away");
        return;
    }
    backward_attrs a;
    memset(&a, 0, sizeof a); /* also what lies between the members, since bytes are compared */
    a.nroots = b->nroots, a.ninputs = b->ninputs, a.grads = b->grads, a.inputs = b->inputs;
    a.accumulate = b->accumulate, a.retain_graph = b->retain_graph, a.create_graph = b->create_graph;
    int nin = b->nroots * (b->grads ? 2 : 1) + b->ninputs, nout = b->out && !b->accumulate ? b->ninputs : 0;
    pd_tensor **in, **to;
    pd_status status = pd_malloc(sizeof *in * (size_t)(nin + 1), "program", &in);
    if (status) {
        pd_record_refuse("%s", pd_error_get()->text);
        return;
    }
    memcpy(in, b->roots, sizeof *in * (size_t)b->nroots);
    to = in + b->nroots;
    if (b->grads) memcpy(to, b->grads, sizeof *in * (size_t)b->nroots), to += b->nroots;
    if (b->ninputs) memcpy(to, b->inputs, sizeof *in * (size_t)b->ninputs);
    if (b->grads) pd_record_given_away(b->grads, b->nroots); /* one may become a .grad */
    pd_record(mark, &pd_instr_backward, &a, sizeof a, in, nin, b->out, nout);
    pd_free(in);
}

/* ---- gradients and aliases --------------------------------------------------------------------------------------- */

static pd_status run_grad(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)attrs, (void)nin, (void)nout;
    out[0] = in[0]->meta ? pd_meta_grad(in[0]->meta) : NULL;
    if (out[0]) return PD_OK;
    return pd_fail(PD_E_RUNTIME, "replay: a tensor of shape %s has no gradient (expected one, as in the recorded step)",
                   pd_tensor_shape(in[0]));
}
const pd_instr_kind pd_instr_grad = {.name = "read .grad", .run = run_grad};

static pd_status run_no_grad(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)attrs, (void)in, (void)nin, (void)out, (void)nout;
    return PD_OK;
}
const pd_instr_kind pd_instr_no_grad = {.name = "find no .grad", .run = run_no_grad};

void pd_record_grad(pd_tensor *of, pd_tensor *grad) {
    pd_record(pd_timespan_mark, grad ? &pd_instr_grad : &pd_instr_no_grad, NULL, 0, &of, 1, &grad, grad != NULL);
}

static pd_status run_set_grad(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    pd_meta *m;
    (void)attrs, (void)nin, (void)out, (void)nout;
    if (!in[1] && !in[0]->meta) return PD_OK;
    PD_TRY(pd_meta_get(in[0], &m));
    if (in[1]) pd_tensor_retain(in[1]);
    pd_meta_set_grad(m, in[1]);
    return PD_OK;
}
const pd_instr_kind pd_instr_set_grad = {.name = "set .grad", .run = run_set_grad};

void pd_record_set_grad(pd_tensor *of, pd_tensor *grad) {
    pd_record_given_away(&grad, 1);
    pd_record(pd_timespan_mark, &pd_instr_set_grad, NULL, 0, (pd_tensor *[]){of, grad}, 2, NULL, 0);
}

static pd_status run_requires_grad(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)nin, (void)out, (void)nout;
    in[0]->requires_grad = *(const bool *)attrs;
    return PD_OK;
}
const pd_instr_kind pd_instr_requires_grad = {.name = "set requires_grad", .run = run_requires_grad};

static pd_status run_alias(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)nin, (void)nout;
    return pd_tensor_alias(in[0], *(const bool *)attrs, out);
}
const pd_instr_kind pd_instr_alias = {.name = "alias", .run = run_alias};

void pd_record_alias(pd_tensor *of, bool own_version, pd_tensor *out) {
    pd_record(pd_timespan_mark, &pd_instr_alias, &own_version, sizeof own_version, &of, 1, &out, 1);
}

static pd_status run_autocast_clear(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    (void)attrs, (void)in, (void)nin, (void)out, (void)nout;
    pd_autocast_clear();
    return PD_OK;
}
const pd_instr_kind pd_instr_autocast_clear = {.name = "end of autocast", .run = run_autocast_clear};

void pd_record_autocast_clear(void) {
    pd_record(pd_timespan_mark, &pd_instr_autocast_clear, NULL, 0, NULL, 0, NULL, 0);
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

static pd_status run_constant(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    const constant *c = attrs;
    bool mode = pd_grad_mode;
    (void)in, (void)nin, (void)nout;
    pd_grad_mode = false;
    pd_status status = pd_engine.clone(c->t, out);
    pd_grad_mode = mode;
    return status;
}
static bool same_constant(const void *x, const void *y) {
    bool same;
    return !pd_bits_equal(((const constant *)x)->t, ((const constant *)y)->t, &same) && same;
}
static void drop_constant(void *attrs) {
    pd_tensor_release(((constant *)attrs)->t);
    pd_tensor_release(((constant *)attrs)->lent);
}
const pd_instr_kind pd_instr_constant = {
    .name = "constant", .run = run_constant, .same = same_constant, .drop = drop_constant};

static pd_status run_empty(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    const look *l = attrs;
    const pd_device *was;
    (void)in, (void)nin, (void)nout;
    PD_TRY(pd_device_enter(l->device, &was));
    pd_status status = pd_tensor_new("empty", (pd_dtype)l->dtype, l->ndim, l->size, out);
    if (!status) memcpy((*out)->stride, l->stride, sizeof *l->stride * (size_t)l->ndim);
    pd_device_here = was;
    return status;
}
static bool same_empty(const void *x, const void *y) {
    const look *a = x, *b = y;
    return a->device == b->device && a->dtype == b->dtype && pd_shape_equal(a->ndim, a->size, b->ndim, b->size) &&
           !memcmp(a->stride, b->stride, sizeof *a->stride * (size_t)a->ndim);
}
const pd_instr_kind pd_instr_empty = {.name = "empty", .run = run_empty, .same = same_empty};

void pd_record_constant(pd_tensor *t, bool defined) {
    if (!pd_is_recording()) return;
    if (!defined) {
        look l;
        pd_look_at(t, &l);
        pd_record(pd_timespan_mark, &pd_instr_empty, &l, sizeof l, NULL, 0, &t, 1);
        return;
    }
    constant c = {.of = t->storage};
    uint32_t mark = pd_timespan_mark; /* the copy is an op */
    bool mode = pd_grad_mode;
    pd_grad_mode = false;
    pd_status status = pd_engine.clone(t, &c.t);
    pd_grad_mode = mode;
    if (!status && t->storage->drop) pd_tensor_retain(c.lent = t);
    if (status) pd_record_refuse("%s", pd_error_get()->text);
    else pd_record(mark, &pd_instr_constant, &c, sizeof c, NULL, 0, &t, 1);
}
