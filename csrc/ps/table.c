#include "ps/table.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ps/table_impl.h"

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static pd_status make_table(pd_table *t, const pd_table_options *o, double lr, bool file, place *at) {
    pd_ps *ps = t->ps;
    table_head *h;
    PD_TRY(pd_ps_take(ps, sizeof *h, at));
    PD_TRY(pd_ps_at(ps, *at, &t->head));
    h = t->head;
    h->o = *o;
    PD_TRY(pd_ps_take(ps, LOCKS * sizeof(lock), &h->locks));
    PD_TRY(pd_ps_take(ps, PARTS * (sizeof(part) + t->undo_bytes), &h->parts));
    PD_TRY(pd_ps_take(ps, sizeof *t->settling, &h->settling));
    PD_TRY(pd_ps_take_sparse(ps, (size_t)ps->workers * t->slot_bytes, &h->slots));
    if (!file) PD_TRY(pd_ps_take_sparse(ps, t->bulk_bytes, &h->bulk));
    put_number(&h->lr, lr);
    return PD_OK;
}

static pd_status map_table(pd_table *t, const char *path) {
    pd_ps *ps = t->ps;
    const table_head *h = t->head;
    PD_TRY(pd_ps_at(ps, h->locks, &t->locks));
    PD_TRY(pd_ps_at(ps, h->parts, &t->parts));
    PD_TRY(pd_ps_at(ps, h->settling, &t->settling));
    PD_TRY(pd_ps_at(ps, h->slots, &t->slots));
    if (h->bulk) PD_TRY(pd_ps_at(ps, h->bulk, &t->bulk));
    else PD_TRY(pd_table_open_file(t, path));
    if (ps->rank) return PD_OK;
    for (int i = 0; i < LOCKS; i++) PD_TRY(pd_ps_lock_init(&t->locks[i].mutex));
    for (int i = 0; i < PARTS; i++) PD_TRY(pd_ps_lock_init(&t->parts[i].mutex));
    if (!h->bulk) put(&t->head->version_before, get(&((file_head *)t->bulk)->version));
    return pd_ps_lock_init(t->settling);
}

static pd_status open_table(pd_table *t, const pd_table_options *o, double lr, const char *path) {
    struct { place at; pd_table_options o; } mine = {.o = *o}, theirs;
    pd_ps *ps = t->ps;
    if (!ps->rank) {
        PD_TRY(make_table(t, o, lr, path != NULL, &mine.at));
        PD_TRY(map_table(t, path));
        return pd_ps_publish(ps, "t", t->name, &mine, sizeof mine);
    }
    PD_TRY(pd_ps_fetch(ps, "t", t->name, &theirs, sizeof theirs));
    if (!pd_table_is_same(&theirs.o, o) || theirs.o.most != o->most ||
        memcmp(theirs.o.numbers, o->numbers, sizeof o->numbers))
        return pd_fail(PD_E_MISMATCH, "table: the options of table '%s' on rank %d differ from those of rank 0",
                       t->name, ps->rank);
    PD_TRY(pd_ps_at(ps, theirs.at, &t->head));
    return map_table(t, path);
}

const char *pd_table_name(const pd_table *t) { return t->name; }

void pd_table_free(pd_table *t) {
    if (t->fd >= 0) {
        if (t->bulk) munmap(t->bulk, t->bulk_bytes);
        close(t->fd);
    }
    pd_free(t->extents), pd_free(t->sorting);
    pd_free(t);
}

pd_status pd_table_open(pd_ps *ps, const char *name, const pd_table_options *o, double lr, const char *path,
                        pd_table **out) {
    static const int per_row[] = {
        [PD_TABLE_SGD] = 0, [PD_TABLE_ADAGRAD] = 1, [PD_TABLE_ADAM] = -2, [PD_TABLE_FTRL] = -2};
    pd_table *t;
    if (o->rows < 1 || o->dim < 1 || o->dim > TABLE_DIM || o->most < 1 || o->most > 1 << 28)
        return pd_fail(PD_E_VALUE,
                       "table: %" PRId64 " rows of %d, at most %" PRId64
                       " ids in a push (expected at least 1 of each, rows "
                       "of at most %d, at most 2^28 ids)",
                       o->rows, o->dim, o->most, (int)TABLE_DIM);
    if (o->rows > ((int64_t)1 << 50) / o->dim)
        return pd_fail(PD_E_VALUE, "table: %" PRId64 " rows of %d (expected less than 2^50 elements)", o->rows, o->dim);
    PD_TRY(pd_calloc(sizeof *t + strlen(name) + 1, "table", &t));
    strcpy(t->name, name);
    t->ps = ps, t->fd = -1, t->rows = o->rows, t->dim = o->dim;
    t->per_row = per_row[o->rule] < 0 ? -per_row[o->rule] * o->dim : per_row[o->rule];
    t->undo_bytes = pd_whole_lines(8 + (size_t)(t->dim + t->per_row) * 4);
    t->slot_bytes = pages(sizeof(slot) + t->undo_bytes + (size_t)o->most * (8 + (size_t)t->dim * 4));
    t->at_rows = PAGE + pages((size_t)(o->rows + 63) / 64 * 8);
    t->at_states = t->at_rows + pages((size_t)o->rows * (size_t)t->dim * 4);
    t->bulk_bytes = t->at_states + pages((size_t)o->rows * (size_t)t->per_row * 4);
    pd_ps_enter(ps);
    void *host = pd_host_release();
    pd_status status = pd_grow(&ps->tables, &ps->cap_tables, ps->ntables + 1, sizeof *ps->tables, "table");
    PD_THEN(open_table(t, o, lr, path));
    if (status && !ps->rank) pd_ps_refuse(ps, "t", name);
    if (!status) t->sent = get(&slot_at(t, ps->rank)->seq);
    pd_host_acquire(host);
    if (status) pd_table_free(t);
    else *out = ps->tables[ps->ntables++] = t;
    pd_ps_leave(ps);
    return PD_TRAIL(status);
}

/* ---- sorting ----------------------------------------------------------------------------------------------------- */

typedef struct item { int64_t id, from; } item;
#define DIGIT 11

/* Sorts by id; equal ids keep their order. *out: one of the two arrays. */
static item *sort(item *a, item *b, int64_t n, int64_t rows) {
    uint32_t counts[1 << DIGIT];
    for (int shift = 0; (rows - 1) >> shift; shift += DIGIT) {
        memset(counts, 0, sizeof counts);
        for (int64_t i = 0; i < n; i++) counts[a[i].id >> shift & ((1 << DIGIT) - 1)]++;
        for (uint32_t d = 0, sum = 0; d < 1 << DIGIT; d++) {
            const uint32_t c = counts[d];
            counts[d] = sum, sum += c;
        }
        for (int64_t i = 0; i < n; i++) b[counts[a[i].id >> shift & ((1 << DIGIT) - 1)]++] = a[i];
        item *other = a;
        a = b, b = other;
    }
    return a;
}

static pd_status check_ids(const pd_table *t, const char *op, int64_t n, const int64_t *ids) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->rows)
            return pd_fail(PD_E_INDEX,
                           "%s: id %" PRId64 " at position %" PRId64 " of table '%s' (expected 0 to %" PRId64 ")", op,
                           ids[i], i, t->name, t->rows - 1);
    return PD_OK;
}

/* Writes the unique ids, sorted, and the sums of their gradients. Returns how many. */
static int64_t gather(pd_table *t, const item *sorted, int64_t n, const float *grads, int64_t *ids, float *sums) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; count++) {
        float *restrict to = sums + count * t->dim;
        ids[count] = sorted[i].id;
        memcpy(to, grads + sorted[i].from * t->dim, (size_t)t->dim * 4);
        for (i++; i < n && sorted[i].id == ids[count]; i++) {
            const float *restrict g = grads + sorted[i].from * t->dim;
            for (int d = 0; d < t->dim; d++) to[d] += g[d];
        }
    }
    return count;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

/* The first place in a slot's ids that is not before `id`. */
static int64_t find(const int64_t *ids, int64_t n, int64_t id) {
    int64_t low = 0;
    while (low < n) {
        const int64_t middle = (low + n) / 2;
        if (ids[middle] < id) low = middle + 1;
        else n = middle;
    }
    return low;
}

typedef struct merge { /* of the workers' pushes */
    const int64_t *ids[PD_PS_WORKERS];
    const float *grads[PD_PS_WORKERS];
    int64_t at[PD_PS_WORKERS], end[PD_PS_WORKERS];
    int n;
} merge;

/* The next row of part: its id, and the sum of all workers' gradients in `sum`; false: there is none. */
static bool next_row(const pd_table *t, merge *m, int64_t *id, float *restrict sum) {
    *id = INT64_MAX;
    for (int i = 0; i < m->n; i++)
        if (m->at[i] < m->end[i] && m->ids[i][m->at[i]] < *id) *id = m->ids[i][m->at[i]];
    if (*id == INT64_MAX) return false;
    bool first = true;
    for (int i = 0; i < m->n; i++) {
        if (m->at[i] >= m->end[i] || m->ids[i][m->at[i]] != *id) continue;
        const float *restrict g = m->grads[i] + m->at[i]++ * t->dim;
        if (first) memcpy(sum, g, (size_t)t->dim * 4);
        else for (int d = 0; d < t->dim; d++) sum[d] += g[d];
        first = false;
    }
    return true;
}

static bool is_in(const pd_table *t, int w, uint64_t r) { return get(&slot_at(t, w)->seq) >= r; }

/* Part p of round r: the rows between two of the ids of the longest push. */
static const slot *part_of(pd_table *t, int p, uint64_t r, merge *m) {
    slot *longest = NULL, *first = NULL;
    m->n = 0;
    for (int w = 0; w < t->ps->workers; w++) {
        slot *s = slot_at(t, w);
        if (!is_in(t, w, r)) continue;
        if (!first) first = s;
        if (!longest || get(&s->count) > get(&longest->count)) longest = s;
    }
    const int64_t most = (int64_t)get(&longest->count), *cuts = ids_of(t, longest);
    const int64_t low = p && most ? cuts[p * most / PARTS] : 0;
    const int64_t high = p + 1 < PARTS && most ? cuts[(p + 1) * most / PARTS] : t->rows;
    for (int w = 0; w < t->ps->workers; w++) {
        slot *s = slot_at(t, w);
        if (!is_in(t, w, r)) continue;
        m->ids[m->n] = ids_of(t, s), m->grads[m->n] = grads_of(t, s);
        m->at[m->n] = find(m->ids[m->n], (int64_t)get(&s->count), p && most ? low : 0);
        m->end[m->n] = find(m->ids[m->n], (int64_t)get(&s->count), high);
        m->n++;
    }
    return first;
}

static void run_part(pd_table *t, int p, uint64_t r) {
    part *q = &t->parts[p];
    merge m;
    float *sum = (float *)t->ps->sums;
    int64_t id;
    if (get(&q->version) >= r) return;
    int e = pthread_mutex_trylock(&q->mutex);
    if (e == EOWNERDEAD) pd_row_mend(t, &q->position, part_undo(t, p)), pthread_mutex_consistent(&q->mutex);
    else if (e) return;
    if (get(&q->version) < r) {
        const slot *first = part_of(t, p, r, &m);
        const float scale = (float)(get_number(&first->rescale) * (t->ps->o.mean ? 1.0 / m.n : 1.0));
        const row_step c = pd_row_step_of(t, scale, get_number(&first->lr), r + get(&t->head->version_before));
        if (get(&q->position.at) >> 32 != r) pd_ps_say(&q->position.at, r << 32);
        for (uint64_t k = 0; next_row(t, &m, &id, sum); k++) {
            if (t->ps->workers == 1) { /* nobody would go on after its death */
                pd_row_make(t, id);
                pd_row_run(t, id, sum, &c);
            } else if (k >= (get(&q->position.at) & UINT32_MAX) / 2) {
                pd_row_update(t, &q->position, part_undo(t, p), r << 32 | k * 2, id, sum, &c);
            }
        }
        put(&q->version, r);
    }
    pthread_mutex_unlock(&q->mutex);
}

static bool is_awaited(const pd_table *t, int w, uint64_t r) {
    return !is_in(t, w, r) && !(t->ps->o.goes_on && atomic_load(&worker_at(t->ps, w)->gone));
}

static bool round_lacks(pd_ps *ps, void *ctx, int w) {
    (void)ps;
    return is_awaited(ctx, w, ((pd_table *)ctx)->sent);
}

/* A file says how many updates it has seen. */
static void remember(const pd_table *t) {
    if (t->fd >= 0) put(&((file_head *)t->bulk)->version, pd_table_version(t));
}

static bool round_done(pd_ps *ps, void *ctx) {
    pd_table *t = ctx;
    bool all = true;
    for (int w = 0; w < ps->workers; w++)
        if (is_awaited(t, w, t->sent)) return false;
    for (int p = 0; p < PARTS; p++) run_part(t, (p + PARTS * ps->rank / ps->workers) % PARTS, t->sent);
    for (int p = 0; p < PARTS; p++) all &= get(&t->parts[p].version) >= t->sent;
    if (all) remember(t);
    pd_ps_tick(ps);
    return all;
}

static pd_status end_round(pd_table *t, const char *what) {
    if (!pd_ps_in_rounds(t->ps) || !t->sent || round_done(t->ps, t)) return PD_OK;
    return pd_ps_wait(t->ps, &(wait){round_done, round_lacks, what, t->name, t->sent, false, t});
}

/* ---- pushes that are applied when they come ---------------------------------------------------------------------- */

static lock *lock_of(const pd_table *t, int64_t id) {
    return &t->locks[((uint64_t)id * 0x9E3779B97F4A7C15u) >> 54];
}

static pd_status lock_row(pd_table *t, int64_t id) {
    lock *l = lock_of(t, id);
    bool died;
    PD_TRY(pd_ps_lock(t->ps, &l->mutex, &died));
    if (!died) return PD_OK;
    for (int w = 0; w < t->ps->workers; w++) { /* a row under this lock that a dead worker was writing */
        slot *s = slot_at(t, w);
        int64_t row;
        memcpy(&row, undo_of(s), 8);
        if (get(&s->position.at) & 1 && lock_of(t, row) == l) pd_row_mend(t, &s->position, undo_of(s));
    }
    pthread_mutex_consistent(&l->mutex);
    return PD_OK;
}

uint64_t pd_table_version(const pd_table *t) {
    uint64_t version = 0;
    if (!pd_ps_in_rounds(t->ps)) {
        for (int w = 0; w < t->ps->workers; w++) version += get(&slot_at(t, w)->applied);
    } else {
        version = UINT64_MAX;
        for (int p = 0; p < PARTS; p++)
            if (get(&t->parts[p].version) < version) version = get(&t->parts[p].version);
    }
    return version + get(&t->head->version_before);
}

/* Applies what is left of a worker's last push. */
static pd_status apply(pd_table *t, int w) {
    slot *s = slot_at(t, w);
    const uint64_t seq = get(&s->seq), count = get(&s->count);
    if (get(&s->applied) == seq) return PD_OK;
    const uint64_t version = pd_table_version(t), since = version - get(&s->base), own = get(&s->own);
    const uint64_t lag = since > own ? since - own : 0;
    const row_step c = pd_row_step_of(t, (float)get_number(&s->rescale), get_number(&s->lr) * pd_ps_factor(t->ps, lag),
                                      version + 1);
    if (get(&s->position.at) >> 32 != seq) pd_ps_say(&s->position.at, seq << 32);
    for (uint64_t k = (get(&s->position.at) & UINT32_MAX) / 2; k < count; k++) {
        const int64_t id = ids_of(t, s)[k];
        const float *g = grads_of(t, s) + k * (uint64_t)t->dim;
        if (t->ps->o.mode == PD_PS_HOGWILD) {
            pd_row_make(t, id);
            pd_row_run(t, id, g, &c);
            continue;
        }
        PD_TRY(lock_row(t, id));
        pd_row_update(t, &s->position, undo_of(s), seq << 32 | k * 2, id, g, &c);
        pthread_mutex_unlock(&lock_of(t, id)->mutex);
    }
    put(&s->applied, seq);
    remember(t);
    if (w == t->ps->rank) pd_ps_count_worker_lag(t->ps, w, lag);
    return PD_OK;
}

pd_status pd_table_settle(pd_table *t, int w) {
    bool died;
    PD_TRY(pd_ps_lock(t->ps, t->settling, &died));
    if (died) pthread_mutex_consistent(t->settling);
    pd_status status = apply(t, w);
    pthread_mutex_unlock(t->settling);
    return status;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static pd_status push_rows(pd_table *t, int64_t n, const int64_t *ids, const float *grads, double rescale) {
    pd_ps *ps = t->ps;
    slot *s = slot_at(t, ps->rank);
    PD_TRY(check_ids(t, "push", n, ids));
    if (n > t->head->o.most)
        return pd_fail(PD_E_VALUE,
                       "push: %" PRId64 " ids for table '%s' (expected at most %" PRId64 ": its `capacity`)", n,
                       t->name, t->head->o.most);
    bool finite = ps->o.guard == PD_PS_APPLY || pd_ps_is_finite(PD_F32, grads, n * t->dim);
    if (!finite) {
        PD_TRY(pd_ps_refuse_gradient(ps, "table", t->name));
        n = 0;
    }
    PD_TRY(pd_grow(&t->sorting, &t->sorting_cap, (size_t)n * 2 * sizeof(item) + 1, 1, "push"));
    item *a = (item *)t->sorting;
    for (int64_t i = 0; i < n; i++) a[i] = (item){ids[i], i};
    a = sort(a, a + n, n, t->rows);
    PD_TRY(pd_table_give_places(t, ids, n));
    if (pd_ps_in_rounds(ps)) PD_TRY(end_round(t, "push"));
    else PD_TRY(apply(t, ps->rank)); /* what an earlier push that failed has left */
    put(&s->count, (uint64_t)gather(t, a, n, grads, ids_of(t, s), grads_of(t, s)));
    put_number(&s->lr, pd_table_lr(t)), put_number(&s->rescale, rescale);
    put(&s->seq, ++t->sent);
    atomic_fetch_add(&worker_at(ps, ps->rank)->pushes, 1);
    if (pd_ps_in_rounds(ps)) {
        pd_ps_count_worker_lag(ps, ps->rank, 0);
        if (ps->workers == 1) PD_TRY(end_round(t, "push"));
    } else {
        PD_TRY(apply(t, ps->rank));
        put(&s->own, get(&s->own) + 1);
    }
    pd_ps_tick(ps);
    return PD_OK;
}

pd_status pd_table_push(pd_table *t, int64_t n, const int64_t *ids, const float *grads, double rescale) {
    PD_TRY(pd_ps_check_open(t->ps));
    pd_ps_enter(t->ps);
    void *host = n > 4096 ? pd_host_release() : NULL;
    pd_status status = push_rows(t, n, ids, grads, rescale);
    pd_host_acquire(host);
    pd_ps_leave(t->ps);
    return PD_TRAIL(status);
}

static pd_status lookup(pd_table *t, int64_t n, const int64_t *ids, float *out) {
    const bool locks = !pd_ps_in_rounds(t->ps) && t->ps->o.mode == PD_PS_ASYNC;
    slot *s = slot_at(t, t->ps->rank);
    PD_TRY(check_ids(t, "lookup", n, ids));
    PD_TRY(end_round(t, "lookup"));
    put(&s->base, pd_table_version(t)), put(&s->own, 0);
    for (int64_t i = 0; i < n; i++, out += t->dim) {
        if (i + 8 < n) __builtin_prefetch(row_at(t, ids[i + 8]));
        if (!is_made(t, ids[i])) {
            pd_row_start(t, ids[i], out);
            continue;
        }
        if (locks) PD_TRY(lock_row(t, ids[i]));
        memcpy(out, row_at(t, ids[i]), (size_t)t->dim * 4);
        if (locks) pthread_mutex_unlock(&lock_of(t, ids[i])->mutex);
    }
    return PD_OK;
}

pd_status pd_table_lookup(pd_table *t, int64_t n, const int64_t *ids, float *out) {
    PD_TRY(pd_ps_check_open(t->ps));
    pd_ps_enter(t->ps);
    void *host = n > 4096 ? pd_host_release() : NULL;
    pd_status status = lookup(t, n, ids, out);
    pd_host_acquire(host);
    pd_ps_leave(t->ps);
    return PD_TRAIL(status);
}

pd_status pd_table_prefetch(pd_table *t, int64_t n, const int64_t *ids) {
    PD_TRY(check_ids(t, "prefetch", n, ids));
    for (int64_t i = 0; i < n && t->fd >= 0; i++) {
        char *row = (char *)row_at(t, ids[i]), *page = row - ((uintptr_t)row & (PAGE - 1));
        madvise(page, (size_t)(row - page) + (size_t)t->dim * 4, MADV_WILLNEED);
    }
    return PD_OK;
}

void pd_table_set_lr(pd_table *t, double lr) { put_number(&t->head->lr, lr); }
double pd_table_lr(const pd_table *t) { return get_number(&t->head->lr); }
int pd_table_per_row(const pd_table *t) { return t->per_row; }

int64_t pd_table_made(const pd_table *t) {
    int64_t n = 0;
    for (int64_t i = 0; i < (t->rows + 63) / 64; i++) n += __builtin_popcountll(get(&bits_of(t)[i]));
    return n;
}

pd_status pd_table_export(pd_table *t, int64_t *ids, float *rows, float *states) {
    pd_ps_enter(t->ps);
    int64_t n = 0;
    for (int64_t id = 0; id < t->rows; id++) {
        if (!(id & 63) && !get(&bits_of(t)[id >> 6])) id += 63;
        else if (is_made(t, id)) {
            ids[n] = id;
            memcpy(rows + n * t->dim, row_at(t, id), (size_t)t->dim * 4);
            memcpy(states + n * t->per_row, states_at(t, id), (size_t)t->per_row * 4);
            n++;
        }
    }
    pd_ps_leave(t->ps);
    return PD_OK;
}

pd_status pd_table_import(pd_table *t, int64_t n, const int64_t *ids, const float *rows, const float *states,
                          uint64_t version) {
    PD_TRY(check_ids(t, "load", n, ids));
    pd_ps_enter(t->ps);
    pd_status status = pd_table_give_places(t, ids, n);
    for (int64_t i = 0; i < n && !status; i++) {
        pd_row_make(t, ids[i]);
        memcpy(row_at(t, ids[i]), rows + i * t->dim, (size_t)t->dim * 4);
        memcpy(states_at(t, ids[i]), states + i * t->per_row, (size_t)t->per_row * 4);
    }
    put(&t->head->version_before, get(&t->head->version_before) + version - pd_table_version(t));
    remember(t);
    pd_ps_leave(t->ps);
    return PD_TRAIL(status);
}
