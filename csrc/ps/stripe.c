/* Updates of stripes, each applied exactly once, also if a worker is killed at any instruction.

   The lock of a stripe is robust: it tells its next holder that the last one has died. `now` says where that one was:

   FREE    it was not writing; the last push here was `who`'s number `seq`
   HELD    so many pieces of the update have been written
   DIRTY   it was writing the next piece, whose elements are in `saver`'s saved area
   DONE    all pieces have been written, applied and version perhaps not yet

   The next holder copies saved elements back, and goes on with that piece; it computes the same numbers, since
   gradients stay in their slots until their push is applied everywhere. SYNC: seq is the round, and all who wait for
   it apply stripes. ASYNC: a push walks through the stripes of its key and takes the next lock before it gives up the
   last one, so pushes cannot overtake each other. The worker that finds a dead one finishes that one's walk before it
   goes on with its own. */
#include <errno.h>

#include "ps/ps_impl.h"

enum { FREE, HELD, DIRTY, DONE };
#define SEQ_BITS 28
#define WHO_BITS 12
#define SEQ(seq) ((seq) & (((uint64_t)1 << SEQ_BITS) - 1))

typedef struct standing { int state, piece, saver, who; uint64_t seq; } standing;

static uint64_t pack(standing x) {
    return (uint64_t)x.state << 60 | (uint64_t)x.piece << (SEQ_BITS + 2 * WHO_BITS) |
           (uint64_t)x.saver << (SEQ_BITS + WHO_BITS) | (uint64_t)x.who << SEQ_BITS | SEQ(x.seq);
}

static standing unpack(uint64_t w) {
    const uint64_t who = ((uint64_t)1 << WHO_BITS) - 1;
    return (standing){(int)(w >> 60), (int)(w >> (SEQ_BITS + 2 * WHO_BITS) & 255),
                      (int)(w >> (SEQ_BITS + WHO_BITS) & who), (int)(w >> SEQ_BITS & who), SEQ(w)};
}

static void say(stripe *s, standing x) { pd_ps_say(&s->now, pack(x)); }

pd_status pd_ps_lock_init(pthread_mutex_t *lock) {
    pthread_mutexattr_t a;
    int e = pthread_mutexattr_init(&a);
    if (!e) e = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    if (!e) e = pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (!e) e = pthread_mutex_init(lock, &a);
    pthread_mutexattr_destroy(&a);
    return e ? pd_fail(PD_E_OS, "init: this system has no robust locks: %s", strerror(e)) : PD_OK;
}

/* ---- one update -------------------------------------------------------------------------------------------------- */

typedef struct update {
    const char *const *in; /* `count` gradients, as long as the key */
    int count;
    double scale, lr;
} update;

static int64_t piece_of(const pd_ps *ps) { return ps->workers > 1 ? PIECE : STRIPE; }

/* The arrays that an update writes: the value, then the states. */
static int arrays_of(pd_ps_key *k, char **at, size_t *size) {
    int n = 0;
    at[n] = k->value, size[n++] = pd_dtype_size(k->head->dtype);
    for (int i = 0; i < PD_PS_STATES; i++)
        if (k->states[i]) at[n] = k->states[i], size[n++] = pd_dtype_size(k->step_dtype);
    return n;
}

static void keep(pd_ps_key *k, int saver, int64_t at, int64_t n, bool back) {
    char *arrays[PD_PS_STATES + 1], *saved = worker_at(k->ps, saver)->saved;
    size_t size[PD_PS_STATES + 1];
    const int count = arrays_of(k, arrays, size);
    for (int i = 0; i < count; i++, saved += PIECE * 8) {
        char *here = arrays[i] + (size_t)at * size[i];
        if (back) memcpy(here, saved, (size_t)n * size[i]);
        else memcpy(saved, here, (size_t)n * size[i]);
    }
}

static void clip(pd_dtype t, void *g, int64_t n, double most) {
    float *f = g;
    double *d = g;
    if (t == PD_F64) for (int64_t i = 0; i < n; i++) d[i] = d[i] > most ? most : d[i] < -most ? -most : d[i];
    else
        for (int64_t i = 0; i < n; i++)
            f[i] = f[i] > (float)most ? (float)most : f[i] < (float)-most ? (float)-most : f[i];
}

/* One step on elements [at, at + n). */
static void step(pd_ps_key *k, const update *u, uint64_t number, int64_t at, int64_t n) {
    const pd_ps_rule *r = &k->head->rule;
    const pd_dtype t = k->head->dtype;
    const size_t size = pd_dtype_size(t), wide = pd_dtype_size(k->step_dtype);
    const bool half = size == 2 && pd_dtype_is_float(t), widens = half && (r->wide || r->clip != 0);
    char *sum = k->ps->sums, *g = (char *)(uintptr_t)u->in[0] + (size_t)at * size;
    if (u->count > 1 || u->scale != 1.0 || r->clip != 0) {
        pd_reduce_run(t, PD_REDUCE_SUM, u->count, u->in, at, sum, n, u->scale);
        g = sum;
    }
    if (widens) {
        pd_reduce_widen(t, g, k->ps->widened, n);
        if (r->clip != 0) clip(PD_F32, k->ps->widened, n, r->clip);
        if (r->wide) g = k->ps->widened;
        else pd_reduce_round(t, k->ps->widened, g = sum, n, 1.0);
    } else if (r->clip != 0 && pd_dtype_is_float(t)) clip(t, g, n, r->clip);
#define AT(i) (k->states[i] ? k->states[i] + (size_t)at * wide : NULL)
    char *value = k->value + (size_t)at * size;
    pd_segment_step s = {.p = r->wide ? AT(0) : value, .g = g, .m = AT(1), .v = AT(2), .w = AT(3), .n = n,
                         .low = r->wide ? value : NULL, .low_t = t};
    pd_ps_rule_run(r, r->wide ? PD_F32 : t, u->lr, number, &k->past, &s);
}

static void finish(pd_ps_key *k, stripe *s, standing x) {
    uint64_t version = 0;
    if (pd_ps_in_rounds(k->ps)) {
        version = get(&s->version);
        version += SEQ(version) != x.seq; /* unless it was set already */
    } else {
        put(&s->applied[x.who], pushed(k, x.who));
        for (int w = 0; w < k->ps->workers; w++) version += get(&s->applied[w]);
    }
    pd_ps_point();
    put(&s->version, version);
    x.state = FREE;
    say(s, x);
}

/* Writes what is left of the update x of stripe i, which is locked. */
static void write_pieces(pd_ps_key *k, int64_t i, const update *u, standing x) {
    pd_ps *ps = k->ps;
    stripe *s = stripe_at(k, i);
    const int64_t first = i * STRIPE, last = first + STRIPE < k->head->n ? first + STRIPE : k->head->n;
    const int64_t piece = piece_of(ps);
    const uint64_t number = get(&k->head->steps) + get(&s->version) + 1;
    standing before = unpack(get(&s->now));
    if (before.state == HELD && before.who == x.who && before.seq == SEQ(x.seq)) x.piece = before.piece;
    x.saver = ps->rank, x.state = HELD;
    for (say(s, x); first + x.piece * piece < last; x.piece++, x.state = HELD, say(s, x)) {
        const int64_t at = first + x.piece * piece, n = at + piece < last ? piece : last - at;
        if (ps->workers > 1) {
            keep(k, ps->rank, at, n, false);
            x.state = DIRTY;
            say(s, x);
        }
        step(k, u, number, at, n);
    }
    x.state = DONE;
    say(s, x);
    finish(k, s, unpack(get(&s->now)));
}

/* ---- locks ------------------------------------------------------------------------------------------------------- */

/* Stripe i as it was before the piece that a dead worker was writing. */
static void mend(pd_ps_key *k, int64_t i) {
    stripe *s = stripe_at(k, i);
    standing x = unpack(get(&s->now));
    if (x.state == DIRTY) {
        const int64_t at = i * STRIPE + x.piece * PIECE, left = k->head->n - at;
        keep(k, x.saver, at, left < PIECE ? left : PIECE, true);
        x.state = HELD;
        say(s, x);
    }
    if (x.state == DONE) finish(k, s, x);
    pthread_mutex_consistent(&s->lock);
}

static void unlock(pd_ps_key *k, int64_t i) { pthread_mutex_unlock(&stripe_at(k, i)->lock); }
static pd_status walk(pd_ps_key *k, int who, uint64_t seq, int64_t i, bool held);

/* Locks stripe i. If its last holder has died in the middle of a push, that push is applied first. */
static pd_status lock(pd_ps_key *k, int64_t i) {
    stripe *s = stripe_at(k, i);
    bool died;
    pd_status status = pd_ps_lock(k->ps, &s->lock, &died);
    if (status == PD_E_TIMEOUT)
        return pd_fail(PD_E_TIMEOUT,
                       "push: rank %d waited %.1f s for rank %d, which updates elements from %lld on of key '%s'",
                       k->ps->rank, (double)k->ps->timeout_ns * 1e-9, unpack(get(&s->now)).saver,
                       (long long)(i * STRIPE), k->name);
    if (status || !died) return status;
    mend(k, i);
    standing x = unpack(get(&s->now));
    const uint64_t seq = pushed(k, x.who);
    status = SEQ(seq) == x.seq ? walk(k, x.who, seq, i, true) : PD_OK;
    if (status) unlock(k, i);
    return status;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

void pd_ps_stripe_round(pd_ps_key *k, int64_t i, uint64_t r) {
    stripe *s = stripe_at(k, i);
    const char *in[PD_PS_WORKERS];
    update u = {.in = in};
    if (get(&s->version) >= r) return;
    int e = pthread_mutex_trylock(&s->lock);
    if (e == EOWNERDEAD) mend(k, i);
    else if (e) return;
    if (get(&s->version) < r) {
        const push *first = NULL;
        for (int w = 0; w < k->ps->workers; w++) {
            const push *p = &k->pushes[w];
            if (pushed(k, w) < r) continue;
            if (!first) first = p;
            in[u.count++] = k->slots + (size_t)w * k->head->slot_bytes;
        }
        u.lr = get_number(&first->lr);
        u.scale = get_number(&first->rescale) * (k->ps->o.mean ? 1.0 / u.count : 1.0);
        write_pieces(k, i, &u, (standing){.seq = r});
    }
    unlock(k, i);
}

/* ---- pushes that are applied when they come ---------------------------------------------------------------------- */

static void count(word *lags, uint64_t lag) {
    atomic_fetch_add_explicit(&lags[lag < PD_PS_BINS ? lag : PD_PS_BINS - 1], 1, memory_order_relaxed);
}

void pd_ps_count_worker_lag(pd_ps *ps, int who, uint64_t lag) { count(worker_at(ps, who)->lags, lag); }

void pd_ps_count_lag(pd_ps_key *k, int who, uint64_t lag) {
    pd_ps_count_worker_lag(k->ps, who, lag);
    count(k->head->lags, lag);
}

/* The staleness of a push, found once: when it comes to the key's first stripe. */
static uint64_t lag_of(pd_ps_key *k, int who, uint64_t seq) {
    push *p = &k->pushes[who];
    if (get(&p->lagged) != seq) {
        const uint64_t since = get(&stripe_at(k, 0)->version) - get(&p->base), own = get(&p->own);
        put(&p->lag, since > own ? since - own : 0);
        put(&p->lagged, seq);
        pd_ps_count_lag(k, who, get(&p->lag));
    }
    return get(&p->lag);
}

double pd_ps_factor(const pd_ps *ps, uint64_t lag) {
    const uint64_t n = get(&ps->head->factors_count);
    return n ? get_number(&ps->head->factors[lag < n ? lag : n - 1]) : 1.0;
}

/* Applies a push from stripe i on. held: stripe i is locked, and stays so. */
static pd_status walk(pd_ps_key *k, int who, uint64_t seq, int64_t i, bool held) {
    const int64_t mine = held ? i : -1; /* not to be unlocked */
    int64_t locked = held ? i : -1;
    const push *p = &k->pushes[who];
    const char *in = k->slots + (size_t)who * k->head->slot_bytes;
    update u = {.in = &in, .count = 1};
    pd_status status = PD_OK;
    for (; i < k->head->stripes; i++) {
        if (locked != i) {
            PD_THEN(lock(k, i));
            if (locked >= 0 && locked != mine) unlock(k, locked);
            if (status) return status;
            locked = i;
        }
        if (get(&stripe_at(k, i)->applied[who]) >= seq) continue;
        u.scale = get_number(&p->rescale);
        u.lr = get_number(&p->lr) * pd_ps_factor(k->ps, lag_of(k, who, seq));
        write_pieces(k, i, &u, (standing){.who = who, .seq = seq});
    }
    if (locked >= 0 && locked != mine) unlock(k, locked);
    return PD_OK;
}

pd_status pd_ps_apply(pd_ps_key *k, int contributor, uint64_t seq) {
    return k->head->n ? walk(k, contributor, seq, 0, false) : PD_OK;
}

pd_status pd_ps_read(pd_ps_key *k, char *out, bool consistent, uint64_t *version) {
    const size_t size = pd_dtype_size(k->head->dtype);
    *version = 0;
    for (int64_t i = 0; i < k->head->stripes; i++) {
        const int64_t first = i * STRIPE, n = k->head->n - first < STRIPE ? k->head->n - first : STRIPE;
        pd_status status = lock(k, i);
        if (consistent && i) unlock(k, i - 1);
        PD_TRY(status);
        if (!i) *version = get(&stripe_at(k, 0)->version);
        memcpy(out + (size_t)first * size, k->value + (size_t)first * size, (size_t)n * size);
        if (!consistent || i == k->head->stripes - 1) unlock(k, i);
    }
    return PD_OK;
}

/* ---- without locks ----------------------------------------------------------------------------------------------- */

static update last_push(pd_ps_key *k, const char *const *in) {
    const push *p = &k->pushes[k->ps->rank];
    return (update){.in = in, .count = 1, .scale = get_number(&p->rescale), .lr = get_number(&p->lr)};
}

void pd_ps_apply_alone(pd_ps_key *k, const char *in) {
    const update u = last_push(k, &in);
    for (int64_t i = 0; i < k->head->stripes; i++) write_pieces(k, i, &u, (standing){.seq = k->sent});
}

void pd_ps_apply_unlocked(pd_ps_key *k, const char *in) {
    update u = last_push(k, &in);
    if (!k->head->n) return;
    u.lr *= pd_ps_factor(k->ps, lag_of(k, k->ps->rank, k->sent));
    const uint64_t number = get(&k->head->steps) + 1 + atomic_fetch_add(&stripe_at(k, 0)->version, 1);
    for (int64_t at = 0; at < k->head->n; at += PIECE)
        step(k, &u, number, at, k->head->n - at < PIECE ? k->head->n - at : PIECE);
}
