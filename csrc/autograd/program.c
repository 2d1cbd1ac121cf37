/* Programs: when they may run, and how they run. */
#include "autograd/program.h"

#include <stdio.h>
#include <string.h>

#include "autograd/nan.h"
#include "autograd/program_impl.h"
#include "base/mem.h"

/* ---- life -------------------------------------------------------------------------------------------------------- */

void pd_program_retain(pd_program *p) { atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed); }

static void free_fixed(fixed *f, size_t n) {
    for (size_t k = 0; k < n; k++) pd_tensor_release(f[k].t);
    pd_free(f);
}

static void free_effects(pd_program *p) {
    for (size_t k = 0; k < p->neffects; k++) {
        pd_storage_release(p->effects[k].s);
        pd_tensor_release(p->effects[k].bytes);
    }
    p->neffects = 0;
}

void pd_program_release(pd_program *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    for (size_t k = 0; k < p->count; k++) pd_instr_fini(&p->instrs[k]);
    free_fixed(p->fixed, p->nfixed);
    free_fixed(p->body_fixed, p->nbody_fixed);
    for (size_t k = 0; k < p->nwritten; k++) pd_storage_release(p->written[k]);
    free_effects(p);
    pd_free(p->effects);
    pd_free(p->instrs);
    pd_free(p->modes);
    pd_free(p->drops);
    pd_free(p->inputs);
    pd_free(p->outputs);
    pd_free(p->written);
    pd_free(p->owned);
    pd_free(p);
}

int pd_program_size(const pd_program *p) { return p->size; }
int pd_program_outputs(const pd_program *p) { return p->noutputs; }
bool pd_program_needs_host(const pd_program *p) { return p->host; }

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* The index of the next instruction outside of host calls. */
static size_t next(const pd_program *p, size_t k) { return k + 1 + (size_t)p->instrs[k].body; }

static bool same_instr(const pd_program *a, const instr *x, const pd_program *b, const instr *y) {
    return x->kind == y->kind && x->bytes == y->bytes && x->nin == y->nin && x->nout == y->nout &&
           !memcmp(x->slots, y->slots, sizeof *x->slots * (size_t)(x->nin + x->nout)) &&
           pd_modes_equal(&a->modes[x->modes], &b->modes[y->modes]) &&
           (x->kind->same ? x->kind->same(x->attrs, y->attrs) : !memcmp(x->attrs, y->attrs, x->bytes));
}

static fixed *find_fixed(const pd_program *p, int32_t slot) {
    for (size_t k = 0; k < p->nfixed; k++)
        if (p->fixed[k].slot == slot) return &p->fixed[k];
    return NULL;
}

static bool same_fixed(const pd_program *a, const pd_program *b, const pd_tensor **other) {
    for (size_t k = 0; k < b->nfixed; k++) {
        const fixed *f = find_fixed(a, b->fixed[k].slot);
        *other = b->fixed[k].t;
        if (!f || f->constant != b->fixed[k].constant || (!f->constant && f->t != *other)) return false;
    }
    return true;
}

const char *pd_program_same(const pd_program *a, const pd_program *b) {
    static _Thread_local char text[200];
    const pd_tensor *other;
    size_t i = 0, k = 0;
    for (int n = 0; i < a->count && k < b->count; i = next(a, i), k = next(b, k), n++)
        if (!same_instr(a, &a->instrs[i], b, &b->instrs[k])) {
            snprintf(text, sizeof text, "call %d of the step was %s, and in the next step %s%s", n,
                     pd_instr_name(&a->instrs[i]), pd_instr_name(&b->instrs[k]),
                     pd_instr_name(&a->instrs[i]) == pd_instr_name(&b->instrs[k]) ? " with another argument" : "");
            return text;
        }
    if (a->size != b->size) {
        snprintf(text, sizeof text, "the step made %d calls, and the next one %d", a->size, b->size);
        return text;
    }
    if (!same_fixed(a, b, &other)) {
        snprintf(text, sizeof text, "the step uses a tensor of shape %s that is another one in each step",
                 pd_tensor_shape(other));
        return text;
    }
    bool outputs = a->noutputs == b->noutputs && a->ninputs == b->ninputs && a->nfixed == b->nfixed &&
                   !memcmp(a->outputs, b->outputs, sizeof *a->outputs * (size_t)a->noutputs);
    return outputs ? NULL : "the step returns other tensors in each step";
}

/* The memory that a constant was copied from, if it was lent. */
static const void *lent(const instr *i) {
    const constant *c = i->attrs;
    return i->kind == &pd_instr_constant && c->lent ? pd_tensor_data(c->lent) : NULL;
}

void pd_program_settle(pd_program *p, const pd_program *b) {
    for (size_t i = 0, k = 0; i < p->count; i = next(p, i), k = next(b, k)) {
        if (!lent(&p->instrs[i]) || lent(&p->instrs[i]) != lent(&b->instrs[k])) continue;
        fixed *f = find_fixed(p, p->instrs[i].slots[0]);
        pd_tensor_release(f->t);
        pd_tensor_retain(f->t = ((const constant *)p->instrs[i].attrs)->lent);
    }
}

void pd_program_forget_bodies(pd_program *p) {
    for (size_t k = 0; k < p->nbody_fixed; k++) pd_tensor_release(p->body_fixed[k].t);
    p->nbody_fixed = 0;
    free_effects(p);
    for (size_t k = 0; k < p->count; k++) {
        instr *i = &p->instrs[k];
        if (!i->inside || i->kind == &pd_instr_forgotten) continue;
        if (i->kind->drop) i->kind->drop(i->attrs);
        i->kind = &pd_instr_forgotten;
    }
}

/* ---- guards ------------------------------------------------------------------------------------------------------ */

void pd_program_look(pd_program *p) {
    for (size_t k = 0; k < p->nfixed; k++) pd_look_at(p->fixed[k].t, &p->fixed[k].look);
}

bool pd_is_fixed(const pd_program *p, const pd_storage *s) {
    for (size_t k = 0; k < p->nfixed; k++)
        if (p->fixed[k].t->storage == s) return true;
    for (size_t k = 0; k < p->nbody_fixed; k++)
        if (p->body_fixed[k].t->storage == s) return true;
    return false;
}

bool pd_program_fits(const pd_program *p, pd_tensor *const *in, int nin, bool with_fixed) {
    modes now = pd_modes_now();
    if (nin != p->ninputs || pd_recorder_here || pd_nan_armed || pd_anomaly.on || pd_saved_pack ||
        !pd_modes_equal(&now, &p->modes[0]))
        return false;
    for (int k = 0; k < nin; k++) {
        if (!pd_looks_like(in[k], &p->inputs[k].look)) return false;
        for (int j = 0; j < k; j++)
            if (in[j] == in[k]) return false;
    }
    for (size_t k = 0; k < p->nfixed && with_fixed; k++) {
        const fixed *f = &p->fixed[k];
        if (!f->constant && !pd_looks_like(f->t, &f->look)) return false;
    }
    return true;
}

void pd_program_visit(const pd_program *p, const pd_instr_kind *kind, int (*visit)(void *attrs, void *ctx), void *ctx) {
    for (size_t k = 0; k < p->count; k++)
        if (p->instrs[k].kind == kind && visit(p->instrs[k].attrs, ctx)) return;
}

pd_tensor *pd_program_fixed(const pd_program *p, int k, int *own) {
    size_t i = (size_t)k;
    *own = (int)p->nfixed;
    if (i < p->nfixed) return p->fixed[i].t;
    return i - p->nfixed < p->nbody_fixed ? p->body_fixed[i - p->nfixed].t : NULL;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct frame {
    pd_tensor **main, **inside; /* by slot, and by -slot */
    pd_tensor **room;           /* for the inputs and results of an instruction */
} frame;

static inline pd_tensor **place(const frame *f, int32_t slot) {
    return slot < 0 ? &f->inside[-slot] : &f->main[slot];
}

static pd_status run_instr(const frame *f, const instr *i) {
    pd_tensor **in = f->room, **out = f->room + i->nin;
    for (int k = 0; k < i->nin; k++) in[k] = *place(f, i->slots[k]);
    for (int k = 0; k < i->nout; k++) out[k] = NULL;
    PD_TRY(i->kind->run(i->attrs, in, i->nin, out, i->nout));
    for (int k = 0; k < i->nout; k++) {
        int32_t slot = i->slots[i->nin + k];
        if (slot) *place(f, slot) = out[k];
        else pd_tensor_release(out[k]); /* nobody has looked at it */
    }
    return PD_OK;
}

/* The results of a host call, after its body was run in the place of it. */
static void publish(const frame *f, const instr *i) {
    for (int k = 0; k < i->nout; k++) {
        int32_t to = i->slots[i->nin + k], from = i->slots[i->nin + i->nout + k];
        if (!to) continue;
        pd_tensor_retain(*place(f, from));
        *place(f, to) = *place(f, from);
    }
}

static void drop(const pd_program *p, const frame *f, const instr *i) {
    for (int k = 0; k < i->ndrop; k++) {
        pd_tensor **t = &f->main[p->drops[i->drop + k]];
        pd_tensor_release(*t);
        *t = NULL;
    }
}

/* *current: the index of the thread's modes. */
static pd_status run_range(const pd_program *p, const frame *f, size_t from, size_t to, bool rehearsal, int *current) {
    for (size_t k = from; k < to; k = next(p, k)) {
        const instr *i = &p->instrs[k];
        if (i->modes != *current) pd_modes_set(&p->modes[*current = i->modes]);
        if (i->host_call && rehearsal) {
            PD_TRY(run_range(p, f, k + 1, next(p, k), rehearsal, current));
            publish(f, i);
        } else if (i->nout || i->kind != &pd_instr_constant) { /* else it is shared */
            PD_TRY(run_instr(f, i));
        }
        drop(p, f, i);
    }
    return PD_OK;
}

static void free_frame(const pd_program *p, const frame *f, bool rehearsal) {
    for (int32_t s = p->ninputs + 1; s < p->nslots; s++)
        if (p->owned[s] == PD_SET_BY_INSTR) pd_tensor_release(f->main[s]);
    for (int32_t s = 1; s <= p->nbody && rehearsal; s++) pd_tensor_release(f->inside[s]);
}

pd_status pd_program_execute(const pd_program *p, pd_tensor *const *in, pd_tensor **out, bool rehearsal) {
    size_t main = (size_t)p->nslots, inside = rehearsal ? (size_t)p->nbody + 1 : 0;
    frame f;
    PD_TRY(pd_calloc(sizeof *f.main * (main + inside + (size_t)p->most), "program", &f.main));
    f.inside = f.main + main, f.room = f.inside + inside;
    for (int k = 0; k < p->ninputs; k++) f.main[k + 1] = in[k];
    for (size_t k = 0; k < p->nfixed; k++) f.main[p->fixed[k].slot] = p->fixed[k].t;
    for (size_t k = 0; k < p->nbody_fixed && rehearsal; k++)
        pd_tensor_retain(f.inside[-p->body_fixed[k].slot] = p->body_fixed[k].t);
    int current = 0;
    pd_status status = run_range(p, &f, 0, p->count, rehearsal, &current);
    if (status && pd_autocast.dtype != p->modes[0].autocast.dtype) pd_autocast_clear(); /* as a region's end does */
    pd_modes_set(&p->modes[0]);
    for (int k = 0; k < p->noutputs; k++) {
        out[k] = status ? NULL : f.main[p->outputs[k]];
        if (out[k]) pd_tensor_retain(out[k]);
    }
    free_frame(p, &f, rehearsal);
    pd_free(f.main);
    return status;
}

pd_status pd_program_run(const pd_program *p, pd_tensor *const *in, pd_tensor **out) {
    return pd_program_execute(p, in, out, false);
}
