#include "parallel/spread.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "ops/ops.h"

pd_spread_host pd_spread_hosted;

/* ---- plans ------------------------------------------------------------------------------------------------------- */

pd_status pd_plan_new(int nin, pd_plan **out) {
    pd_plan *p;
    PD_TRY(pd_calloc(sizeof *p, "plan", &p));
    pd_status status = pd_calloc(sizeof *p->moves * (size_t)(nin + 1), "plan", &p->moves);
    p->refs = 1;
    p->nin = nin;
    if (status)
        pd_plan_release(p);
    else
        *out = p;
    return status;
}

void pd_plan_release(pd_plan *p) {
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) > 1) return;
    for (int i = 0; p->moves && i < p->nin; i++) pd_moves_release(p->moves[i]);
    for (int i = 0; i < PD_MAX_OUTS; i++) pd_spread_release(p->out[i]);
    if (p->host) p->drop(p->host);
    pd_free(p->moves);
    pd_free(p);
}

/* ---- the table of plans ------------------------------------------------------------------------------------------ */

enum { SLOTS = 4096, INPUTS = 12, WORDS = 1 + 2 * INPUTS + PD_MAX_ATTRS / 8 };

typedef struct key { /* of a call; what it does not use is not written */
    int n, nspreads;
    uint64_t words[WORDS];
    pd_spread *spreads[INPUTS];
} key;

typedef struct slot {
    key *of; /* [owned] its spreads are [strong], so that no other one has their address */
    pd_plan *plan;
} slot;

static slot slots[SLOTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held for a look or an exchange */

/* Whether the plan depends on the attribute's value. */
static bool decides(pd_type t) { return t != PD_T_SCALAR && t != PD_T_OPERAND && t != PD_T_RNG; }

/* Of a number a plan knows its category, and whether it is 0: padding with zeros is linear. */
static uint64_t kind_of(const pd_scalar *s) {
    const bool whole = s->cat == PD_CAT_BOOL || s->cat == PD_CAT_INT;
    const bool zero = whole ? s->i == 0 : s->d == 0 && (s->cat != PD_CAT_COMPLEX || s->im == 0);
    return (uint64_t)(s->cat + 1) << 1 | (s->cat >= 0 && zero);
}

static void add_attr(key *k, const pd_param *p, const void *at) {
    size_t bytes = pd_param_bytes(p);
    if (p->type == PD_T_RNG) return;
    if (!decides(p->type)) {
        k->words[k->n++] = kind_of(at);
        return;
    }
    if (p->type == PD_T_INTS || p->type == PD_T_INTS_OPT) { /* what lies behind the last entry means nothing */
        const pd_ints *v = at;
        bytes = sizeof v->n + (v->n > 0 ? (size_t)v->n * sizeof *v->v : 0);
    }
    memcpy(&k->words[k->n], at, bytes);
    k->n += (int)(bytes / 8);
}

/* False: no plan is kept for such a call. */
static bool key_of(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, const pd_tensor *into,
                   bool wants, key *k) {
    if (nin > INPUTS || (into && into != in[0])) return false;
    k->n = k->nspreads = 0;
    k->words[k->n++] =
        (uint64_t)(def - pd_defs) | (uint64_t)nin << 16 | (uint64_t)(into != NULL) << 32 | (uint64_t)wants << 33;
    for (int i = 0; i < nin; i++) {
        const pd_tensor *t = in[i];
        k->words[k->n++] = t ? (uintptr_t)t->spread : 1;
        k->words[k->n++] = t ? 1 | (uint64_t)(uint8_t)t->dtype << 8 | (uint64_t)(uint8_t)t->ndim << 16 : 0;
        if (t && t->spread) k->spreads[k->nspreads++] = t->spread;
    }
    for (int p = 0; p < def->nparams; p++)
        if (def->params[p].attr >= 0) add_attr(k, &def->params[p], (const char *)attrs + def->params[p].attr);
    return true;
}

static size_t slot_of(const key *k) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < k->n; i++) h = (h ^ k->words[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return (size_t)(h >> 17) % SLOTS;
}

static bool same(const key *a, const key *b) {
    return a && a->n == b->n && !memcmp(a->words, b->words, sizeof *a->words * (size_t)a->n);
}

/* [new] or NULL */
static pd_plan *find(const key *k) {
    pd_plan *found = NULL;
    slot *s = &slots[slot_of(k)];
    pthread_mutex_lock(&lock);
    if (same(s->of, k)) {
        found = s->plan;
        atomic_fetch_add_explicit(&found->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Puts them into the slot, which owns them from now on, and drops what was there. NULL: empties it. */
static void put(slot *s, key *of, pd_plan *plan) {
    pthread_mutex_lock(&lock);
    slot was = *s;
    *s = (slot){of, plan};
    pthread_mutex_unlock(&lock);
    for (int i = 0; was.of && i < was.of->nspreads; i++) pd_spread_release(was.of->spreads[i]);
    pd_free(was.of);
    pd_plan_release(was.plan);
}

static pd_status keep(const key *k, pd_plan *plan) {
    key *own;
    PD_TRY(pd_malloc(sizeof *own, "plan", &own));
    own->n = k->n, own->nspreads = k->nspreads;
    memcpy(own->words, k->words, sizeof *k->words * (size_t)k->n);
    for (int i = 0; i < k->nspreads; i++) pd_spread_retain(own->spreads[i] = k->spreads[i]);
    atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
    put(&slots[slot_of(k)], own, plan);
    return PD_OK;
}

void pd_spread_forget(void) {
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].of) put(&slots[i], NULL, NULL);
}

int pd_spread_plans(void) {
    int n = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < SLOTS; i++) n += slots[i].of != NULL;
    pthread_mutex_unlock(&lock);
    return n;
}

static bool wants_grad(pd_tensor *const *in, int nin) {
    for (int i = 0; pd_grad_mode && i < nin; i++)
        if (in[i] && pd_tensor_wants_grad(in[i])) return true;
    return false;
}

/* [new] the plan of a call: a kept one, or the host's. */
static pd_status plan_of(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into,
                         pd_plan **out) {
    key k;
    bool wants = wants_grad(in, nin), may = key_of(def, in, nin, attrs, into, wants, &k), lasts = false;
    if (may && (*out = find(&k))) return PD_OK;
    PD_TRY(pd_spread_hosted.plan(def, in, nin, attrs, into, wants, out, &lasts));
    pd_status status = may && lasts ? keep(&k, *out) : PD_OK;
    if (status) pd_plan_release(*out);
    return status;
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

/* The plan's attributes, with the numbers and random keys of this call. */
static const void *attrs_of(const pd_plan *p, const pd_def *def, const void *attrs, uint64_t *own) {
    if (!p->changed) return attrs;
    memcpy(own, p->attrs, def->op->attrs);
    for (int q = 0; q < def->nparams; q++) {
        const pd_param *param = &def->params[q];
        if (param->attr >= 0 && !decides(param->type))
            memcpy((char *)own + param->attr, (const char *)attrs + param->attr, pd_param_bytes(param));
    }
    return own;
}

/* Runs the op on moved inputs as on plain tensors. */
static pd_status run(const pd_plan *p, const pd_def *def, pd_tensor **in, int nin, const void *attrs, pd_tensor *into,
                     pd_tensor **out, int *nout) {
    uint64_t own[PD_MAX_ATTRS / 8];
    const bool plain = pd_parts_are_plain;
    attrs = attrs_of(p, def, attrs, own);
    if (p->runs) def = p->runs;
    pd_parts_are_plain = true;
    pd_status status = into ? pd_apply_into(def, in, nin, attrs, into) : pd_apply(def, in, nin, attrs, out, nout);
    pd_parts_are_plain = plain;
    for (int i = 0; !status && !into && i < *nout; i++) pd_tensor_set_spread(out[i], p->out[i]);
    return status;
}

static pd_status call(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs, pd_tensor *into,
                      pd_tensor **out, int *nout) {
    pd_tensor *few[INPUTS], **moved = few;
    pd_plan *p = NULL;
    int n = 0, ignored;
    if (!nout) nout = &ignored;
    if (!attrs) attrs = def->defaults;
    PD_TRY(plan_of(def, in, nin, attrs, into, &p));
    pd_status status = PD_OK;
    if (p->host) {
        status = pd_spread_hosted.call(p, def, in, nin, attrs, into, out, nout);
        pd_plan_release(p);
        return status;
    }
    if (nin > INPUTS) status = pd_malloc(sizeof *moved * (size_t)nin, def->name, &moved);
    uint64_t site = 0;
    for (; !status && n < nin; n++) {
        pd_moves *m = p->moves[n];
        if (m && in[n]) {
            if (!site && (m->n[0] || (m->n[1] && pd_grad_mode))) site = pd_spread_hosted.site();
            if ((status = pd_moves_once(m, in[n], site, &moved[n]))) break;
        } else if ((moved[n] = in[n]))
            pd_tensor_retain(in[n]);
    }
    PD_THEN(run(p, def, moved, nin, attrs, into, out, nout));
    while (n-- > 0) pd_tensor_release(moved[n]);
    if (moved != few) pd_free(moved);
    pd_plan_release(p);
    return status;
}

void pd_spread_init(void) { pd_spread_call = call; }
