/* Keys, pushes, pulls and clocks. */
#include "ps/ps.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "comm/group/group_impl.h"
#include "ps/ps_impl.h"

/* ---- the store --------------------------------------------------------------------------------------------------- */

pd_status pd_ps_open(pd_group *g, const pd_ps_options *o, pd_ps **out) {
    pd_ps *ps;
    if (pd_group_size(g) > PD_PS_WORKERS)
        return pd_fail(PD_E_VALUE, "create: the group has %d ranks (expected at most %d workers)", pd_group_size(g),
                       PD_PS_WORKERS);
    if (g->link && !g->link->ops->transport)
        return pd_fail(PD_E_NOTIMPL, "create: the ranks share no memory (expected workers of one host)");
    PD_TRY(pd_group_check(g));
    PD_TRY(pd_calloc(sizeof *ps, "create", &ps));
    atomic_init(&ps->refs, 1);
    pthread_mutex_init(&ps->lock, NULL);
    pd_group_retain(ps->group = g);
    if (g->link) pd_link_retain(ps->link = g->link);
    ps->o = *o, ps->rank = g->rank, ps->workers = g->size, ps->epoch = g->epoch;
    ps->number = atomic_fetch_add(&g->parameter_stores, 1);
    ps->transport = g->link ? g->link->ops->transport : &pd_transport_inproc;
    ps->warn_ns = g->warn_ns, ps->timeout_ns = g->timeout_ns;
    const size_t room = (size_t)(ps->workers > 1 ? PIECE : STRIPE);
    pd_status status = pd_malloc_aligned(room * 8, "create", &ps->sums);
    PD_THEN(pd_malloc_aligned(room * 4, "create", &ps->widened));
    if (!status) {
        void *token = pd_host_release();
        status = pd_ps_open_memory(ps);
        pd_host_acquire(token);
    }
    if (status) pd_ps_release(ps);
    else *out = ps;
    return PD_TRAIL(status);
}

void pd_ps_retain(pd_ps *ps) { atomic_fetch_add_explicit(&ps->refs, 1, memory_order_relaxed); }

void pd_ps_release(pd_ps *ps) {
    if (!ps || atomic_fetch_sub_explicit(&ps->refs, 1, memory_order_acq_rel) > 1) return;
    pd_ps_close_memory(ps);
    for (size_t i = 0; i < ps->nkeys; i++) pd_free(ps->keys[i]);
    for (size_t i = 0; i < ps->ntables; i++) pd_table_free(ps->tables[i]);
    for (size_t i = 0; i < ps->nchunks; i++) ps->transport->detach(&ps->chunks[i].region);
    pd_free(ps->keys), pd_free(ps->tables), pd_free(ps->chunks), pd_free(ps->sums), pd_free(ps->widened);
    pd_group_release(ps->group);
    if (ps->link) pd_link_release(ps->link);
    pthread_mutex_destroy(&ps->lock);
    pd_free(ps);
}

int pd_ps_rank(const pd_ps *ps) { return ps->rank; }
int pd_ps_workers(const pd_ps *ps) { return ps->workers; }

/* ---- rules ------------------------------------------------------------------------------------------------------- */

pd_status pd_ps_learn_rule(pd_ps_key *k) {
    if (k->ruled || !get(&k->head->ruled)) return PD_OK;
    for (int i = 0; i < PD_PS_STATES; i++)
        if (k->head->states[i]) PD_TRY(pd_ps_at(k->ps, k->head->states[i], &k->states[i]));
    k->step_dtype = k->head->rule.wide ? PD_F32 : k->head->dtype;
    k->ruled = true;
    return PD_OK;
}

static pd_status set_rule(pd_ps_key *k, const pd_ps_rule *rule, double lr) {
    key_head *h = k->head;
    unsigned states;
    PD_TRY(pd_ps_rule_check("set_optimizer", rule, h->dtype, &states));
    if (k->ps->rank)
        return pd_fail(PD_E_RUNTIME, "set_optimizer: rank %d sets the optimizer of key '%s' (expected rank 0)",
                       k->ps->rank, k->name);
    for (int w = 0; w < k->ps->workers; w++)
        if (pushed(k, w))
            return pd_fail(PD_E_RUNTIME, "set_optimizer: key '%s' has been pushed to (expected to set it before)",
                           k->name);
    if (get(&h->ruled))
        return pd_fail(PD_E_RUNTIME, "set_optimizer: key '%s' has an optimizer, %s (expected to set it once)", k->name,
                       pd_ps_rule_name(h->rule.kind));
    const size_t bytes = (size_t)h->n * (rule->wide ? 4 : pd_dtype_size(h->dtype));
    for (int i = 0; i < PD_PS_STATES; i++)
        if (states >> i & 1) PD_TRY(pd_ps_take(k->ps, bytes, &h->states[i]));
    h->rule = *rule;
    put_number(&h->lr, lr);
    if (rule->wide) {
        char *copy;
        PD_TRY(pd_ps_at(k->ps, h->states[0], &copy));
        pd_reduce_widen(h->dtype, k->value, copy, h->n);
    }
    put(&h->ruled, 1);
    return pd_ps_learn_rule(k);
}

pd_status pd_ps_set_rule(pd_ps_key *k, const pd_ps_rule *rule, double lr) {
    pd_ps_enter(k->ps);
    pd_status status = set_rule(k, rule, lr);
    pd_ps_leave(k->ps);
    return PD_TRAIL(status);
}

pd_status pd_ps_state(pd_ps_key *k, int i, pd_dtype *dtype, void **out) {
    pd_ps_enter(k->ps);
    pd_status status = pd_ps_learn_rule(k);
    *dtype = k->step_dtype;
    *out = k->states[i];
    pd_ps_leave(k->ps);
    return PD_TRAIL(status);
}

pd_status pd_ps_check_open(const pd_ps *ps) {
    if (atomic_load(&ps->group->destroyed)) return pd_group_check(ps->group);
    return ps->link ? pd_link_check(ps->link) : PD_OK;
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

#define NAME 900 /* bytes of a key */
#define IS 200   /* bytes of dtype and shape in words */
typedef struct record { place head; char is[IS]; } record;

/* Rank 0: takes the memory of a key and fills it. */
static pd_status make_key(pd_ps *ps, pd_dtype dtype, int64_t n, const void *value, place *at) {
    key_head *h;
    char *to;
    const size_t bytes = (size_t)n * pd_dtype_size(dtype), stripe_bytes =
        pd_whole_lines(sizeof(stripe) + (size_t)ps->workers * sizeof(word));
    const int64_t stripes = (n + STRIPE - 1) / STRIPE;
    PD_TRY(pd_ps_take(ps, sizeof *h, at));
    PD_TRY(pd_ps_at(ps, *at, &h));
    h->dtype = dtype, h->n = n, h->stripes = stripes, h->stripe_bytes = stripe_bytes;
    h->slot_bytes = pd_whole_lines(bytes);
    PD_TRY(pd_ps_take(ps, (size_t)stripes * stripe_bytes, &h->stripe));
    PD_TRY(pd_ps_take(ps, (size_t)ps->workers * sizeof(push), &h->pushes));
    PD_TRY(pd_ps_take(ps, bytes, &h->value));
    if (ps->workers > 1 && ps->o.mode != PD_PS_HOGWILD)
        PD_TRY(pd_ps_take(ps, (size_t)ps->workers * h->slot_bytes, &h->slots));
    PD_TRY(pd_ps_at(ps, h->value, &to));
    memcpy(to, value, bytes);
    return PD_OK;
}

static pd_status map_key(pd_ps_key *k, place at) {
    pd_ps *ps = k->ps;
    PD_TRY(pd_ps_at(ps, at, &k->head));
    PD_TRY(pd_ps_at(ps, k->head->value, &k->value));
    PD_TRY(pd_ps_at(ps, k->head->stripe, &k->stripes));
    PD_TRY(pd_ps_at(ps, k->head->pushes, &k->pushes));
    if (k->head->slots) PD_TRY(pd_ps_at(ps, k->head->slots, &k->slots));
    k->sent = pushed(k, ps->rank);
    k->step_dtype = k->head->dtype;
    for (int64_t i = 0; i < k->head->stripes && !ps->rank; i++) PD_TRY(pd_ps_lock_init(&stripe_at(k, i)->lock));
    return PD_OK;
}

static pd_status add(pd_ps *ps, const char *is, pd_dtype dtype, int64_t n, const void *value, const pd_ps_rule *rule,
                     double lr, pd_ps_key *k) {
    record mine = {0}, theirs = {0};
    snprintf(mine.is, sizeof mine.is, "%s", is);
    if (!ps->rank) {
        PD_TRY(make_key(ps, dtype, n, value, &mine.head));
        PD_TRY(map_key(k, mine.head));
        if (rule) PD_TRY(set_rule(k, rule, lr));
        return pd_ps_publish(ps, "k", k->name, &mine, sizeof mine);
    }
    PD_TRY(pd_ps_fetch(ps, "k", k->name, &theirs, sizeof theirs));
    if (strcmp(mine.is, theirs.is))
        return pd_fail(PD_E_MISMATCH, "init: key '%s' is %s on rank %d and %s on rank 0 (expected the same)", k->name,
                       mine.is, ps->rank, theirs.is);
    return map_key(k, theirs.head);
}

pd_status pd_ps_add(pd_ps *ps, const char *name, const char *is, pd_dtype dtype, int64_t n, const void *value,
                    const pd_ps_rule *rule, double lr, pd_ps_key **out) {
    pd_ps_key *k;
    PD_TRY(pd_ps_check_open(ps));
    if (strlen(name) > NAME)
        return pd_fail(PD_E_VALUE, "init: a key of %zu bytes (expected at most %d)", strlen(name), NAME);
    PD_TRY(pd_calloc(sizeof *k + strlen(name) + 1, "init", &k));
    k->ps = ps;
    strcpy(k->name, name);
    pd_ps_enter(ps);
    void *host = pd_host_release();
    pd_status status = pd_grow(&ps->keys, &ps->cap_keys, ps->nkeys + 1, sizeof *ps->keys, "init");
    PD_THEN(add(ps, is, dtype, n, value, rule, lr, k));
    if (status && !ps->rank) pd_ps_refuse(ps, "k", name);
    pd_host_acquire(host);
    if (status) pd_free(k);
    else *out = ps->keys[ps->nkeys++] = k;
    pd_ps_leave(ps);
    return PD_TRAIL(status);
}

void *pd_ps_value(const pd_ps_key *k) { return k->value; }
void *pd_ps_slot(const pd_ps_key *k) {
    return k->slots ? k->slots + (size_t)k->ps->rank * k->head->slot_bytes : NULL;
}
void pd_ps_set_version(pd_ps_key *k, uint64_t steps) {
    put(&k->head->steps, get(&k->head->steps) + steps - pd_ps_version(k));
}
void pd_ps_set_lr(pd_ps_key *k, double lr) { put_number(&k->head->lr, lr); }
double pd_ps_lr(const pd_ps_key *k) { return get_number(&k->head->lr); }
uint64_t pd_ps_version(const pd_ps_key *k) {
    return get(&k->head->steps) + (k->head->stripes ? get(&((stripe *)k->stripes)->version) : 0);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

typedef struct rounds { int n; pd_ps_key *const *keys; } rounds;

static bool is_applied(const pd_ps_key *k, uint64_t r) {
    for (int64_t i = 0; i < k->head->stripes; i++)
        if (get(&stripe_at(k, i)->version) < r) return false;
    return true;
}

/* Whether worker w has to push before round r can be applied. */
static bool is_awaited(const pd_ps_key *k, int w, uint64_t r) {
    return pushed(k, w) < r && !(k->ps->o.goes_on && atomic_load(&worker_at(k->ps, w)->gone));
}

static bool is_complete(const pd_ps_key *k, uint64_t r) {
    for (int w = 0; w < k->ps->workers; w++)
        if (is_awaited(k, w, r)) return false;
    return true;
}

/* Applies what it can of this worker's last rounds. Workers begin at different places, so they rarely meet. */
static bool rounds_done(pd_ps *ps, void *ctx) {
    const rounds *x = ctx;
    bool all = true, worked = false;
    for (int j = 0; j < x->n; j++) {
        pd_ps_key *k = x->keys[(j + (int64_t)x->n * ps->rank / ps->workers) % x->n];
        const int64_t stripes = k->head->stripes;
        if (is_applied(k, k->sent)) continue;
        if (is_complete(k, k->sent)) {
            for (int64_t i = 0; i < stripes; i++)
                pd_ps_stripe_round(k, (i + stripes * ps->rank / ps->workers) % stripes, k->sent);
            worked = true;
        }
        all &= is_applied(k, k->sent);
    }
    if (worked) pd_ps_tick(ps);
    return all;
}

static bool rounds_lack(pd_ps *ps, void *ctx, int w) {
    const rounds *x = ctx;
    (void)ps;
    for (int j = 0; j < x->n; j++)
        if (is_awaited(x->keys[j], w, x->keys[j]->sent)) return true;
    return false;
}

static pd_status end_rounds(pd_ps *ps, const char *what, int n, pd_ps_key *const *keys) {
    rounds x = {n, keys};
    char name[100];
    if (!n || rounds_done(ps, &x)) return PD_OK;
    snprintf(name, sizeof name, n > 1 ? "key '%.60s' and others" : "key '%.60s'", keys[0]->name);
    return pd_ps_wait(ps, &(wait){rounds_done, rounds_lack, what, name, keys[0]->sent, false, &x});
}

/* ---- push -------------------------------------------------------------------------------------------------------- */

/* Whether none of n elements is an infinity or NaN: those have all bits of the exponent. */
#define ALL_FINITE(T, EXPONENT)                                                     \
    {                                                                               \
        const T *x = p;                                                             \
        unsigned bad = 0;                                                           \
        for (int64_t i = 0; i < n; i++) bad |= (x[i] & (EXPONENT)) == (EXPONENT);   \
        return !bad;                                                                \
    }
bool pd_ps_is_finite(pd_dtype t, const void *p, int64_t n) {
    if (t == PD_F32) ALL_FINITE(uint32_t, 0x7f800000u)
    if (t == PD_F64) ALL_FINITE(uint64_t, 0x7ff0000000000000u)
    if (t == PD_F16) ALL_FINITE(uint16_t, 0x7c00)
    if (t == PD_BF16) ALL_FINITE(uint16_t, 0x7f80)
    return true;
}

pd_status pd_ps_refuse_gradient(pd_ps *ps, const char *what, const char *name) {
    atomic_fetch_add(&worker_at(ps, ps->rank)->refused, 1);
    if (ps->o.guard == PD_PS_SKIP) return PD_OK;
    return pd_fail(PD_E_VALUE,
                   "push: the gradient of %s '%s' has elements that are not finite (expected finite ones, nan=\"skip\" "
                   "or nan=\"apply\")",
                   what, name);
}

/* Copies a gradient to the slot, if there is one and it does not lie there already. *skip: it is not finite, and is not
   to be applied. */
static pd_status take_gradient(pd_ps_key *k, const char *in, char *slot, bool *skip) {
    pd_ps *ps = k->ps;
    const size_t size = pd_dtype_size(k->head->dtype);
    bool finite = true;
    for (int64_t at = 0; at < k->head->n; at += PIECE) { /* what is copied is in the cache when it is looked at */
        const int64_t n = k->head->n - at < PIECE ? k->head->n - at : PIECE;
        if (slot && slot != in) memcpy(slot + (size_t)at * size, in + (size_t)at * size, (size_t)n * size);
        if (ps->o.guard != PD_PS_APPLY) finite &= pd_ps_is_finite(k->head->dtype, in + (size_t)at * size, n);
    }
    *skip = !finite;
    return finite ? PD_OK : pd_ps_refuse_gradient(ps, "key", k->name);
}

/* Makes a push that counts once its call commits. */
static pd_status prepare(pd_ps_key *k, const void *in, double rescale, uint64_t call) {
    pd_ps *ps = k->ps;
    push *p = &k->pushes[ps->rank];
    char *slot = pd_ps_slot(k);
    bool skip;
    PD_TRY(take_gradient(k, in, slot, &skip));
    k->skipped = skip && (ps->o.mode != PD_PS_SYNC || ps->workers == 1);
    if (k->skipped) return PD_OK;
    if (skip) memset(slot, 0, (size_t)k->head->n * pd_dtype_size(k->head->dtype)); /* the others wait for this push */
    put_number(&p->lr, pd_ps_lr(k)), put_number(&p->rescale, rescale);
    put(&p->seq, call << CALL_BITS | ++k->sent);
    return PD_OK;
}

/* Applies a push whose call has committed, unless rounds do it later. */
static pd_status apply(pd_ps_key *k, const void *in) {
    pd_ps *ps = k->ps;
    push *p = &k->pushes[ps->rank];
    if (k->skipped) return PD_OK;
    atomic_fetch_add(&worker_at(ps, ps->rank)->pushes, 1);
    if (ps->workers == 1) pd_ps_apply_alone(k, in);
    else if (ps->o.mode == PD_PS_HOGWILD) pd_ps_apply_unlocked(k, in);
    else if (ps->o.mode == PD_PS_ASYNC) PD_TRY(pd_ps_apply(k, ps->rank, k->sent));
    if (pd_ps_in_rounds(ps)) pd_ps_count_lag(k, ps->rank, 0);
    else put(&p->own, get(&p->own) + 1);
    return PD_OK;
}

/* Takes back the first n pushes of a call that cannot commit. */
static void take_back(pd_ps *ps, int n, pd_ps_key *const *keys) {
    for (int i = 0; i < n; i++)
        if (!keys[i]->skipped) put(&keys[i]->pushes[ps->rank].seq, --keys[i]->sent);
}

static pd_status check_pushes(pd_ps *ps, int n, pd_ps_key *const *keys) {
    const uint64_t call = ++ps->calls;
    for (int i = 0; i < n; i++) {
        PD_TRY(pd_ps_learn_rule(keys[i]));
        if (!keys[i]->ruled && ps->o.mode != PD_PS_SYNC && ps->workers > 1)
            return pd_fail(PD_E_RUNTIME,
                           "push: key '%s' has no optimizer (expected set_optimizer() before asynchronous pushes)",
                           keys[i]->name);
        if (keys[i]->call == call)
            return pd_fail(PD_E_VALUE, "push: key '%s' is there twice (expected each key once in a call)",
                           keys[i]->name);
        keys[i]->call = call;
    }
    return PD_OK;
}

static pd_status push_all(pd_ps *ps, int n, pd_ps_key *const *keys, const void *const *in, double rescale) {
    worker *own = worker_at(ps, ps->rank);
    const uint64_t call = get(&own->committed) + 1;
    PD_TRY(check_pushes(ps, n, keys));
    if (ps->o.mode == PD_PS_SYNC && ps->workers > 1) PD_TRY(end_rounds(ps, "push", n, keys));
    else if (ps->workers > 1) /* what an earlier push that failed has left */
        for (int i = 0; i < n && ps->o.mode == PD_PS_ASYNC; i++) PD_TRY(pd_ps_apply(keys[i], ps->rank, keys[i]->sent));
    for (int i = 0; i < n; i++) {
        pd_status status = prepare(keys[i], in[i], rescale, call);
        if (!status) continue;
        take_back(ps, i, keys);
        return PD_TRAIL(status);
    }
    put(&own->committed, call);
    for (int j = 0; j < n; j++) { /* workers begin at different keys, so they rarely meet */
        const int i = (int)((j + (int64_t)n * ps->rank / ps->workers) % n);
        PD_TRY(apply(keys[i], in[i]));
    }
    return PD_OK;
}

#define RELEASE_BYTES ((size_t)4 << 20) /* more take about 1 ms */
static void *without_host(int n, pd_ps_key *const *keys) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += (size_t)keys[i]->head->n * pd_dtype_size(keys[i]->head->dtype);
    return bytes > RELEASE_BYTES ? pd_host_release() : NULL;
}

pd_status pd_ps_push(pd_ps *ps, int n, pd_ps_key *const *keys, const void *const *in, double rescale) {
    PD_TRY(pd_ps_check_open(ps));
    pd_ps_enter(ps);
    void *host = without_host(n, keys);
    pd_status status = push_all(ps, n, keys, in, rescale);
    pd_ps_tick(ps);
    pd_host_acquire(host);
    pd_ps_leave(ps);
    return PD_TRAIL(status);
}

/* ---- pull -------------------------------------------------------------------------------------------------------- */

static pd_status pull_all(pd_ps *ps, int n, pd_ps_key *const *keys, void *const *out, bool consistent) {
    for (int i = 0; i < n; i++) PD_TRY(pd_ps_learn_rule(keys[i]));
    if (ps->o.mode == PD_PS_SYNC) PD_TRY(end_rounds(ps, "pull", n, keys));
    for (int i = 0; i < n; i++) {
        pd_ps_key *k = keys[i];
        push *p = &k->pushes[ps->rank];
        uint64_t version = k->head->stripes ? get(&stripe_at(k, 0)->version) : 0;
        if (out[i] && (ps->o.mode != PD_PS_ASYNC || ps->workers == 1))
            memcpy(out[i], k->value, (size_t)k->head->n * pd_dtype_size(k->head->dtype));
        else if (out[i]) PD_TRY(pd_ps_read(k, out[i], consistent, &version));
        put(&p->base, version), put(&p->own, 0);
    }
    return PD_OK;
}

pd_status pd_ps_pull(pd_ps *ps, int n, pd_ps_key *const *keys, void *const *out, bool consistent) {
    PD_TRY(pd_ps_check_open(ps));
    pd_ps_enter(ps);
    void *host = without_host(n, keys);
    pd_status status = pull_all(ps, n, keys, out, consistent);
    pd_host_acquire(host);
    pd_ps_leave(ps);
    return PD_TRAIL(status);
}

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

static bool clock_lacks(pd_ps *ps, void *ctx, int w) {
    worker *c = worker_at(ps, w);
    (void)ctx;
    return w != ps->rank && !atomic_load(&c->gone) &&
           get(&c->clock) + (uint64_t)ps->o.staleness < get(&worker_at(ps, ps->rank)->clock);
}

static bool clock_done(pd_ps *ps, void *ctx) {
    for (int w = 0; w < ps->workers; w++)
        if (clock_lacks(ps, ctx, w)) return false;
    return true;
}

pd_status pd_ps_clock(pd_ps *ps, int64_t n) {
    PD_TRY(pd_ps_check_open(ps));
    pd_ps_enter(ps);
    word *clock = &worker_at(ps, ps->rank)->clock;
    put(clock, get(clock) + (uint64_t)n);
    pd_ps_tick(ps);
    pd_status status = PD_OK;
    if (ps->o.staleness >= 0 && !clock_done(ps, NULL))
        status = pd_ps_wait(ps, &(wait){clock_done, clock_lacks, "clock", "the store", get(clock), true, NULL});
    pd_ps_leave(ps);
    return PD_TRAIL(status);
}

uint64_t pd_ps_clock_of(const pd_ps *ps, int w) { return get(&worker_at(ps, w)->clock); }
uint64_t pd_ps_refused(const pd_ps *ps, int w) { return get(&worker_at(ps, w)->refused); }
static void copy_lags(const word *lags, uint64_t *out) {
    for (int i = 0; i < PD_PS_BINS; i++) out[i] = get(&lags[i]);
}
void pd_ps_worker_lags(const pd_ps *ps, int w, uint64_t *out) { copy_lags(worker_at(ps, w)->lags, out); }
void pd_ps_key_lags(const pd_ps_key *k, uint64_t *out) { copy_lags(k->head->lags, out); }

pd_status pd_ps_set_factors(pd_ps *ps, int n, const double *factors) {
    if (n < 1 || n > PD_PS_BINS)
        return pd_fail(PD_E_VALUE, "create: %d factors of the learning rate (expected 1 to %d)", n, PD_PS_BINS);
    for (int i = 0; i < n; i++) put_number(&ps->head->factors[i], factors[i]);
    put(&ps->head->factors_count, (uint64_t)n);
    return PD_OK;
}

bool pd_ps_is_gone(pd_ps *ps, int w) {
    return ps->link && (atomic_load(&worker_at(ps, w)->gone) ||
                        pd_link_left(ps->link, pd_group_link_rank(ps->group, w)));
}

pd_status pd_ps_settle(pd_ps *ps) {
    pd_ps_enter(ps);
    pd_status status = pd_ps_check_workers(ps);
    pd_ps_leave(ps);
    return PD_TRAIL(status);
}
