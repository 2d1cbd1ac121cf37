/* How a program is recorded. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "autograd/apply.h"
#include "autograd/program_impl.h"
#include "base/mem.h"
#include "base/os.h"

typedef struct pd_recorder {
    pd_program *p;
    uint32_t base;      /* tensors that were met have marks from here on */
    int32_t *cells;     /* by mark: the slot */
    size_t ncells, cap_cells;
    int depth;          /* of host calls */
    size_t host;        /* the instruction of the outermost one */
    bool outside;       /* it has done what a rehearsal must not repeat */
    pd_storage **wrote; /* [strong] what it has written */
    size_t nwrote, cap_wrote;
    pd_tensor **inputs; /* [strong] */
    int ninputs, process;
    bool refused;
} recorder;

_Thread_local recorder *pd_recorder_here;
static _Thread_local char reason[256];
static atomic_bool busy;               /* a thread records */
static atomic_uint_fast64_t marks = 1; /* the next mark; tensors begin with 0 */
enum { MANY = 1 << 28 };              /* more than one recording has */

/* ---- looks and modes --------------------------------------------------------------------------------------------- */

void pd_look_at(const pd_tensor *t, look *l) {
    l->device = t->storage->device;
    l->dtype = t->dtype, l->ndim = t->ndim;
    l->requires_grad = t->requires_grad;
    l->made = t->meta && t->meta->grad_fn, l->grad = t->meta && t->meta->grad;
    memcpy(l->size, t->size, sizeof *t->size * (size_t)t->ndim);
    memcpy(l->stride, t->stride, sizeof *t->stride * (size_t)t->ndim);
}

bool pd_looks_like(const pd_tensor *t, const look *l) {
    size_t dims = sizeof *t->size * (size_t)t->ndim;
    return t->dtype == l->dtype && t->ndim == l->ndim && t->requires_grad == l->requires_grad &&
           (t->meta && t->meta->grad_fn) == l->made && (t->meta && t->meta->grad) == l->grad &&
           t->storage->device == l->device &&
           !memcmp(t->size, l->size, dims) && !memcmp(t->stride, l->stride, dims);
}

modes pd_modes_now(void) {
    return (modes){pd_grad_mode, pd_inference_mode, pd_autocast, pd_default_dtype, pd_device_here};
}

void pd_modes_set(const modes *m) {
    pd_grad_mode = m->grad;
    pd_inference_mode = m->inference;
    pd_autocast = m->autocast;
}

bool pd_modes_equal(const modes *a, const modes *b) {
    const pd_autocast_state *x = &a->autocast, *y = &b->autocast;
    return a->grad == b->grad && a->inference == b->inference && a->floating == b->floating && a->device == b->device &&
           x->dtype == y->dtype && x->cuda == y->cuda && x->keep == y->keep && x->kind == y->kind;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void refuse(const char *why, va_list args) {
    if (!pd_recorder_here || pd_recorder_here->refused) return;
    vsnprintf(reason, sizeof reason, why, args);
    pd_recorder_here->refused = true;
}

void pd_record_refuse(const char *why, ...) {
    va_list args;
    va_start(args, why);
    refuse(why, args);
    va_end(args);
}

void pd_record_outside(const char *why, ...) {
    va_list args;
    va_start(args, why);
    if (pd_recorder_here && pd_recorder_here->depth) pd_recorder_here->outside = true;
    else refuse(why, args);
    va_end(args);
}

void pd_record_read(const char *op) {
    if (pd_recorder_here && !pd_recorder_here->depth) pd_record_refuse("%s reads values of a tensor", op);
}

/* Whether something is recorded now; a failure to record it is a refusal. */
static bool active(void) { return pd_recorder_here && !pd_recorder_here->refused; }
static bool done(pd_status status) {
    if (status) pd_record_refuse("%s", pd_error_get()->text);
    return !status;
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

static int32_t *cell_of(const recorder *r, const pd_tensor *t) {
    uint32_t k = t->mark - r->base;
    return k < r->ncells ? &r->cells[k] : NULL;
}

/* From now on t is known by that slot. */
static pd_status know(recorder *r, pd_tensor *t, int32_t slot) {
    int32_t *cell = cell_of(r, t);
    if (cell) {
        *cell = slot;
        return PD_OK;
    }
    PD_TRY(pd_grow(&r->cells, &r->cap_cells, r->ncells + 1, sizeof *r->cells, "program"));
    t->mark = r->base + (uint32_t)r->ncells;
    r->cells[r->ncells++] = slot;
    return PD_OK;
}

static int32_t new_slot(recorder *r, bool inside) { return inside ? -++r->p->nbody : r->p->nslots++; }

static pd_status add_fixed(recorder *r, pd_tensor *t, bool inside, int32_t *slot) {
    pd_program *p = r->p;
    fixed **list = inside ? &p->body_fixed : &p->fixed;
    size_t *n = inside ? &p->nbody_fixed : &p->nfixed, *cap = inside ? &p->cap_body_fixed : &p->cap_fixed;
    PD_TRY(pd_grow(list, cap, *n + 1, sizeof **list, "program"));
    *slot = new_slot(r, inside);
    PD_TRY(know(r, t, *slot));
    fixed *f = &(*list)[(*n)++];
    *f = (fixed){.t = t, .slot = *slot};
    pd_tensor_retain(t);
    return PD_OK;
}

static pd_status slot_of(recorder *r, pd_tensor *t, int32_t *slot) {
    *slot = 0;
    if (!t) return PD_OK;
    const int32_t *cell = cell_of(r, t);
    if (!cell || (*cell < 0 && !r->depth)) /* also what a host call has made: in the next step that is another tensor */
        return add_fixed(r, t, r->depth, slot);
    *slot = *cell;
    return PD_OK;
}

int pd_recorder_slot(const pd_tensor *t) {
    const recorder *r = pd_recorder_here;
    const int32_t *cell = r ? cell_of(r, t) : NULL;
    if (!cell || *cell <= r->p->ninputs) return 0; /* an input, or from inside a host call */
    for (size_t i = 0; i < r->p->nfixed; i++)
        if (r->p->fixed[i].slot == *cell) return 0;
    for (size_t i = 0; i < r->p->count; i++) /* results of host calls may be the host's */
        for (int k = 0; k < r->p->instrs[i].nout && r->p->instrs[i].host_call; k++)
            if (r->p->instrs[i].slots[r->p->instrs[i].nin + k] == *cell) return 0;
    return *cell;
}

/* ---- writes ------------------------------------------------------------------------------------------------------ */

static bool is_written(const pd_program *p, const pd_storage *s) {
    for (size_t i = p->nwritten; i-- > 0;)
        if (p->written[i] == s) return true;
    return false;
}

/* Somebody has written t, or may do so after the step. */
static void note(const pd_tensor *t) {
    pd_program *p = pd_recorder_here->p;
    if (!t || is_written(p, t->storage)) return;
    if (done(pd_grow(&p->written, &p->cap_written, p->nwritten + 1, sizeof *p->written, "program")))
        pd_storage_retain(p->written[p->nwritten++] = t->storage);
}

static void note_in_host_call(recorder *r, pd_storage *s) {
    for (size_t i = r->nwrote; i-- > 0;)
        if (r->wrote[i] == s) return;
    if (done(pd_grow(&r->wrote, &r->cap_wrote, r->nwrote + 1, sizeof *r->wrote, "program")))
        pd_storage_retain(r->wrote[r->nwrote++] = s);
}

/* Writes by backward to what it has made itself are left out, since the host cannot see such tensors. */
static void note_write(const pd_tensor *t) {
    recorder *r = pd_recorder_here;
    if (!active() || !(r->depth || t->wrapper || (t->base && t->base->wrapper))) return;
    note(t);
    if (r->depth) note_in_host_call(r, t->storage);
}

void pd_record_given_away(pd_tensor *const *t, int n) {
    for (int k = 0; k < n && active(); k++) note(t[k]);
}

void pd_record_requires_grad(pd_tensor *of, bool want) {
    if (pd_recorder_here && !pd_recorder_here->depth && !pd_recorder_slot(of))
        pd_record_refuse("it changes requires_grad of a tensor that was there before");
    pd_record(pd_timespan_mark, &pd_instr_requires_grad, &want, sizeof want, &of, 1, NULL, 0);
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static pd_status current_modes(pd_program *p, int *index) {
    modes now = pd_modes_now();
    for (size_t k = p->nmodes; k-- > 0;)
        if (pd_modes_equal(&p->modes[k], &now)) {
            *index = (int)k;
            return PD_OK;
        }
    if (p->nmodes && (now.device != p->modes[0].device || now.floating != p->modes[0].floating))
        pd_record_refuse("it changes the current device or the default dtype");
    PD_TRY(pd_grow(&p->modes, &p->cap_modes, p->nmodes + 1, sizeof now, "program"));
    p->modes[p->nmodes] = now;
    *index = (int)p->nmodes++;
    return PD_OK;
}

/* Whether an instruction, or what was there before, sets the slot: those of dropped instructions are not set. */
static bool is_set(const pd_program *p, int32_t slot) {
    if (slot <= p->ninputs) return true;
    for (size_t i = 0; i < p->nfixed; i++)
        if (p->fixed[i].slot == slot) return true;
    for (size_t i = p->count; i-- > 0;)
        for (int k = p->instrs[i].nin; k < p->instrs[i].nin + p->instrs[i].nout; k++)
            if (p->instrs[i].slots[k] == slot) return true;
    return false;
}

/* Whether an op has returned one of its inputs, which keeps its slot then. So does, inside host calls, what is known
   outside: a gradient that was read before. */
static bool is_among(const pd_tensor *t, pd_tensor *const *in, int n) {
    for (int k = 0; k < n; k++)
        if (in[k] == t) return true;
    return false;
}

/* Fills in all of i but attrs. */
static pd_status fill(recorder *r, instr *i, pd_tensor *const *in, int nin, pd_tensor *const *out, int nout) {
    i->nin = nin, i->nout = nout, i->inside = r->depth;
    PD_TRY(current_modes(r->p, &i->modes));
    PD_TRY(pd_calloc(sizeof *i->slots * (size_t)(nin + nout + 1), "program", &i->slots));
    for (int k = 0; k < nin; k++) PD_TRY(slot_of(r, in[k], &i->slots[k]));
    for (int k = 0; k < nout; k++) {
        if (!out[k]) continue;
        i->slots[nin + k] = new_slot(r, r->depth);
        const int32_t *cell = cell_of(r, out[k]);
        bool known = is_among(out[k], in, nin) || (r->depth && cell && *cell > 0 && is_set(r->p, *cell));
        if (!known) PD_TRY(know(r, out[k], i->slots[nin + k]));
    }
    return PD_OK;
}

static void truncate_to(recorder *r, size_t mark) {
    while (r->p->count > mark) pd_instr_fini(&r->p->instrs[--r->p->count]);
    pd_timespan_mark = (uint32_t)r->p->count;
}

void pd_record(uint32_t mark, const pd_instr_kind *kind, const void *attrs, size_t bytes, pd_tensor *const *in, int nin,
               pd_tensor *const *out, int nout) {
    recorder *r = pd_recorder_here;
    instr i = {.kind = kind, .bytes = bytes};
    pd_status status = PD_OK;
    if (!active()) goto drop;
    truncate_to(r, mark);
    PD_TRY_TO(drop, pd_malloc(bytes + 1, "program", &i.attrs));
    memcpy(i.attrs, attrs ? attrs : "", bytes);
    PD_TRY_TO(drop, pd_grow(&r->p->instrs, &r->p->cap, r->p->count + 1, sizeof i, "program"));
    PD_TRY_TO(drop, fill(r, &i, in, nin, out, nout));
    r->p->instrs[r->p->count++] = i;
    pd_timespan_mark = (uint32_t)r->p->count;
    return;
drop:
    done(status);
    if (!i.attrs && kind->drop) kind->drop((void *)(uintptr_t)attrs);
    pd_instr_fini(&i);
}

void pd_record_host_begin(pd_tensor *const *in, int nin) {
    recorder *r = pd_recorder_here;
    if (!r || r->depth++) return;
    pd_record_given_away(in, nin);
    r->depth = 0; /* the arguments come from outside */
    pd_record(pd_timespan_mark, &pd_instr_op, NULL, 0, in, nin, NULL, 0); /* the kind follows */
    r->depth = 1;
    r->host = r->p->count - 1;
    if (active()) r->p->instrs[r->host].kind = NULL;
}

void pd_record_effect(pd_storage *s) {
    pd_program *p = pd_recorder_here ? pd_recorder_here->p : NULL;
    struct pd_effect e = {.s = s};
    if (!active() || !done(pd_grow(&p->effects, &p->cap_effects, p->neffects + 1, sizeof e, "program")) ||
        !done(pd_storage_copy(s, &e.bytes)))
        return;
    pd_storage_retain(s);
    p->effects[p->neffects++] = e;
}

/* What the host call has written takes the place of its body, and so do its results. */
static void keep_effects(recorder *r, pd_tensor *const *out, int nout) {
    const uint32_t mark = (uint32_t)r->host + 1;
    truncate_to(r, mark);
    for (int k = 0; k < nout; k++) {
        const int32_t *cell = out[k] ? cell_of(r, out[k]) : NULL;
        if (out[k] && !(cell && *cell > 0)) pd_record_constant(out[k], true); /* else it was there before the call */
    }
    for (size_t k = 0; k < r->nwrote && active(); k++) {
        struct pd_effect e = {.s = r->wrote[k]};
        uint32_t now = pd_timespan_mark; /* the copy is an op */
        if (!done(pd_storage_copy(e.s, &e.bytes))) return;
        pd_storage_retain(e.s);
        pd_record(now, &pd_instr_put, &e, sizeof e, NULL, 0, NULL, 0);
    }
}

static void forget_writes(recorder *r) {
    for (size_t k = 0; k < r->nwrote; k++) pd_storage_release(r->wrote[k]);
    r->nwrote = 0;
    r->outside = false;
}

/* Gives the result t of a host call a slot outside of it; *inside: the one that it has had. */
static pd_status publish(recorder *r, pd_tensor *t, int32_t *outside, int32_t *inside) {
    *outside = *inside = 0;
    if (!t) return PD_OK;
    r->depth = 1;
    pd_status status = slot_of(r, t, inside);
    r->depth = 0;
    PD_TRY(status);
    return know(r, t, *outside = new_slot(r, false));
}

void pd_record_host_end(const pd_instr_kind *kind, const void *attrs, size_t bytes, pd_tensor *const *out, int nout) {
    recorder *r = pd_recorder_here;
    if (!r || r->depth != 1) {
        if (r) r->depth--;
        goto drop;
    }
    if (r->outside) keep_effects(r, out, nout);
    forget_writes(r);
    r->depth = 0;
    if (!active()) goto drop;
    instr *i = &r->p->instrs[r->host];
    int32_t *slots;
    if (!done(pd_calloc(sizeof *slots * (size_t)(i->nin + 2 * nout + 1), "program", &slots))) goto drop;
    memcpy(slots, i->slots, sizeof *slots * (size_t)i->nin);
    pd_free(i->slots);
    i->slots = slots, i->nout = nout, i->host_call = true;
    i->body = (int)(r->p->count - r->host - 1);
    for (int k = 0; k < nout; k++)
        if (!done(publish(r, out[k], &slots[i->nin + k], &slots[i->nin + nout + k]))) goto drop;
    void *own;
    if (!done(pd_malloc(bytes + 1, "program", &own))) goto drop;
    memcpy(own, attrs, bytes);
    pd_free(i->attrs);
    i->attrs = own, i->bytes = bytes, i->kind = kind;
    return;
drop:
    if (kind->drop) kind->drop((void *)(uintptr_t)attrs);
}

/* ---- the recording ----------------------------------------------------------------------------------------------- */

static void free_recorder(recorder *r) {
    for (int i = 0; r->inputs && i < r->ninputs; i++) pd_tensor_release(r->inputs[i]);
    for (size_t i = 0; i < r->nwrote; i++) pd_storage_release(r->wrote[i]);
    pd_free(r->wrote);
    pd_free(r->inputs);
    pd_free(r->cells);
    pd_free(r);
}

pd_status pd_recorder_begin(pd_tensor *const *inputs, int n) {
    recorder *r = NULL;
    if (atomic_exchange(&busy, true))
        return pd_fail(PD_E_RUNTIME, "replay: another recording is under way (expected one at a time)");
    pd_status status = PD_OK;
    if (marks > UINT32_MAX - MANY) status = pd_fail(PD_E_RUNTIME, "replay: there are no numbers left for tensors");
    PD_THEN(pd_calloc(sizeof *r, "program", &r));
    PD_THEN(pd_calloc(sizeof *r->p, "program", &r->p));
    if (status) goto fail;
    r->base = (uint32_t)marks;
    r->process = pd_os_pid();
    r->ninputs = n;
    atomic_init(&r->p->refs, 1);
    r->p->nslots = n + 1, r->p->ninputs = n;
    PD_TRY_TO(fail, pd_calloc(sizeof *r->p->inputs * (size_t)(n + 1), "program", &r->p->inputs));
    PD_TRY_TO(fail, current_modes(r->p, &(int){0}));
    PD_TRY_TO(fail, pd_calloc(sizeof *r->inputs * (size_t)(n + 1), "program", &r->inputs));
    for (int i = 0; i < n; i++) {
        pd_tensor_retain(r->inputs[i] = inputs[i]);
        pd_look_at(inputs[i], &r->p->inputs[i].look);
        PD_TRY_TO(fail, know(r, inputs[i], i + 1));
    }
    pd_recorder_here = r;
    pd_timespan_mark = 0;
    pd_note_write = note_write;
    atomic_fetch_or(&pd_profile_run, PD_TIMESPAN_TRACED);
    return PD_OK;
fail:
    if (r) {
        pd_program_release(r->p);
        free_recorder(r);
    }
    atomic_store(&busy, false);
    return status;
}

/* Ends the recording; returns its program. */
static pd_program *stop(recorder *r) {
    pd_program *p = r->p;
    atomic_fetch_and(&pd_profile_run, ~PD_TIMESPAN_TRACED);
    pd_note_write = NULL;
    pd_recorder_here = NULL;
    marks += r->ncells;
    free_recorder(r);
    atomic_store(&busy, false);
    return p;
}

bool pd_recorder_is_busy(void) { return busy; }

void pd_recorder_abandon(void) {
    if (pd_recorder_here) pd_program_release(stop(pd_recorder_here));
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Notes who sets each slot. False: an instruction reads one that nobody sets, so something was made inside a call that
   did not return it. */
static bool find_owners(pd_program *p) {
    for (size_t k = 0; k < p->nfixed; k++) p->owned[p->fixed[k].slot] = PD_SET_BEFORE;
    for (int k = 1; k <= p->ninputs; k++) p->owned[k] = PD_SET_BEFORE;
    for (size_t k = 0; k < p->count; k++) {
        const instr *i = &p->instrs[k];
        for (int s = 0; s < i->nin; s++)
            if (i->slots[s] > 0 && !p->owned[i->slots[s]]) return false;
        for (int s = i->nin; s < i->nin + i->nout; s++)
            if (i->slots[s] > 0) p->owned[i->slots[s]] = PD_SET_BY_INSTR;
        if (i->nin + i->nout > p->most) p->most = i->nin + i->nout;
        p->size += !i->inside;
        p->host |= i->kind->host && !i->inside;
    }
    for (int k = 0; k < p->noutputs; k++)
        if (p->outputs[k] > 0 && !p->owned[p->outputs[k]]) return false;
    return true;
}

/* Constants that nobody writes are made once, as fixed tensors. */
static pd_status share_constants(pd_program *p) {
    for (size_t k = 0; k < p->count; k++) {
        instr *i = &p->instrs[k];
        if (i->kind != &pd_instr_constant || i->inside) continue;
        const constant *c = i->attrs;
        if (c->lent && is_written(p, c->of)) pd_record_refuse("it writes to memory that another library has lent");
        if (is_written(p, c->of)) continue;
        PD_TRY(pd_grow(&p->fixed, &p->cap_fixed, p->nfixed + 1, sizeof *p->fixed, "program"));
        p->fixed[p->nfixed++] = (fixed){.t = c->t, .slot = i->slots[0], .constant = true};
        pd_tensor_retain(c->t);
        p->owned[i->slots[0]] = PD_SET_BEFORE;
        i->nout = 0;
    }
    return PD_OK;
}

/* last[slot]: after which instruction a result is dropped; -1: never. What a body needs lives until its host call. */
static pd_status find_drops(pd_program *p) {
    int32_t *last;
    PD_TRY(pd_malloc(sizeof *last * (size_t)p->nslots, "program", &last));
    for (int s = 0; s < p->nslots; s++) last[s] = -1;
    for (size_t k = 0, at = 0; k < p->count; k++) {
        const instr *i = &p->instrs[k];
        if (!i->inside) at = k;
        for (int s = 0; s < i->nin + i->nout; s++)
            if (i->slots[s] > 0 && p->owned[i->slots[s]] == PD_SET_BY_INSTR) last[i->slots[s]] = (int32_t)at;
    }
    for (int k = 0; k < p->noutputs; k++)
        if (p->outputs[k] > 0) last[p->outputs[k]] = -1;
    for (int s = 0; s < p->nslots; s++) /* counts, then starts, then slots */
        if (last[s] >= 0) p->instrs[last[s]].ndrop++;
    for (size_t k = 0; k < p->count; k++) {
        p->instrs[k].drop = (int)p->ndrops;
        p->ndrops += (size_t)p->instrs[k].ndrop;
        p->instrs[k].ndrop = 0;
    }
    pd_status status = pd_malloc(sizeof *p->drops * (p->ndrops + 1), "program", &p->drops);
    for (int32_t s = 0; s < p->nslots && !status; s++)
        if (last[s] >= 0) p->drops[p->instrs[last[s]].drop + p->instrs[last[s]].ndrop++] = s;
    pd_free(last);
    return status;
}

/* Whether an instruction reads the slot, or the results include it. */
static bool is_used(const pd_program *p, int32_t slot) {
    for (size_t k = 0; k < p->count; k++) {
        const instr *i = &p->instrs[k];
        int end = i->nin + (i->host_call ? 2 * i->nout : 0); /* a host call may return what it has found */
        for (int s = 0; s < end; s++)
            if (i->slots[s] == slot) return true;
    }
    for (int k = 0; k < p->noutputs; k++)
        if (p->outputs[k] == slot) return true;
    return false;
}

/* Drops fixed tensors that only dropped instructions named. */
static void forget_unused(const pd_program *p, fixed *list, size_t *n) {
    size_t kept = 0;
    for (size_t k = 0; k < *n; k++) {
        if (is_used(p, list[k].slot)) list[kept++] = list[k];
        else pd_tensor_release(list[k].t);
    }
    *n = kept;
}

/* Whether a backward may reach what the step has not made and the program does not know. */
static bool reaches_outside(const pd_program *p) {
    bool backward = false, made = false;
    for (size_t k = 0; k < p->count; k++) backward = backward || p->instrs[k].kind == &pd_instr_backward;
    for (int k = 0; k < p->ninputs; k++) made = made || p->inputs[k].look.made;
    for (size_t k = 0; k < p->nfixed; k++) made = made || (p->fixed[k].t->meta && p->fixed[k].t->meta->grad_fn);
    return backward && made;
}

/* Keeps, of what was written, the memory of fixed tensors. */
static void forget_others(pd_program *p) {
    size_t n = 0;
    for (size_t k = 0; k < p->nwritten; k++) {
        if (pd_is_fixed(p, p->written[k])) p->written[n++] = p->written[k];
        else pd_storage_release(p->written[k]);
    }
    p->nwritten = n;
}

static pd_status finish(recorder *r, pd_tensor *const *outputs, int n) {
    pd_program *p = r->p;
    modes now = pd_modes_now();
    p->noutputs = n;
    PD_TRY(pd_calloc(sizeof *p->outputs * (size_t)(n + 1), "program", &p->outputs));
    for (int k = 0; k < n; k++) PD_TRY(slot_of(r, outputs[k], &p->outputs[k]));
    pd_record_given_away(outputs, n);
    PD_TRY(pd_calloc((size_t)p->nslots, "program", &p->owned));
    if (r->depth || r->process != pd_os_pid()) pd_record_refuse("the recording was cut short");
    if (!pd_modes_equal(&p->modes[0], &now)) pd_record_refuse("it changes a mode, such as grad mode or autocast");
    if (r->refused) return PD_OK;
    forget_unused(p, p->fixed, &p->nfixed);
    forget_unused(p, p->body_fixed, &p->nbody_fixed);
    if (reaches_outside(p)) pd_record_refuse("backward goes through a history from outside of the step");
    if (!find_owners(p)) {
        pd_record_refuse("it uses a tensor that a call made inside, but did not return");
        return PD_OK;
    }
    for (int k = 0; k < p->ninputs; k++) p->inputs[k].written = is_written(p, r->inputs[k]->storage);
    PD_TRY(share_constants(p));
    forget_others(p);
    return r->refused ? PD_OK : find_drops(p);
}

pd_status pd_recorder_end(pd_tensor *const *outputs, int noutputs, pd_program **out, const char **why) {
    recorder *r = pd_recorder_here;
    *out = NULL;
    if (!r) return pd_fail(PD_E_RUNTIME, "replay: this thread does not record (expected a recording)");
    pd_status status = finish(r, outputs, noutputs);
    bool refused = r->refused;
    pd_program *p = stop(r);
    if (status || refused) pd_program_release(p);
    else *out = p;
    *why = reason;
    return status;
}
