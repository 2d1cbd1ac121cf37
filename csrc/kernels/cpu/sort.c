/* Stable sorting of rows by index.

   A key is mapped to an unsigned integer with the order of the values: -0 equals 0, NaN is above all; for descending
   order it is inverted, so that equal ones keep their order. Keys are sorted by their bytes, the lowest first; a byte
   that all keys share costs only its count. Short rows are sorted by counting (rank.h) or by insertion. */
#include "kernels/cpu/lib/rank.h"

typedef struct pair { uint64_t key; int64_t i; } pair;
typedef struct sort_job {
    bool descending;
    pd_dtype t;
    const pd_block *b;
    int64_t rows; /* of one slot */
    const char *x;
    int64_t *index;
    pair *scratch;
} sort_job;

#define SHORT 24

static int64_t sort_slots(const pd_block *b) {
    int64_t n = b->n > 0 ? b->n : 1, slots = (1 << 20) / n;
    if (slots > b->outer) slots = b->outer;
    if (slots > 64) slots = 64;
    return slots > 2 ? slots : 2;
}

static void load_keys(pd_dtype t, const char *x, int64_t n, pair *to, bool descending) {
    for (int64_t i = 0; i < n; i++) to[i] = (pair){pd_key_of(t, x, i, descending), i};
}
static void sort_short(pair *p, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        pair e = p[i];
        int64_t at = i;
        for (; at > 0 && p[at - 1].key > e.key; at--) p[at] = p[at - 1];
        p[at] = e;
    }
}
/* Sorts n pairs. Returns where they are: p or room. */
static pair *sort_long(pair *p, pair *room, int64_t n, int bytes) {
    for (int b = 0; b < bytes; b++) {
        int64_t count[256] = {0}, at = 0;
        for (int64_t i = 0; i < n; i++) count[p[i].key >> 8 * b & 255]++;
        if (count[p[0].key >> 8 * b & 255] == n) continue;
        for (int k = 0; k < 256; k++) {
            int64_t many = count[k];
            count[k] = at;
            at += many;
        }
        for (int64_t i = 0; i < n; i++) room[count[p[i].key >> 8 * b & 255]++] = p[i];
        pair *swap = p;
        p = room;
        room = swap;
    }
    return p;
}
static void sort_rows(void *ctx, int64_t begin, int64_t end) {
    const sort_job *j = ctx;
    int64_t n = j->b->n, size = (int64_t)pd_dtype_size(j->t);
    pair *p = j->scratch + begin / j->rows * 2 * n;
    for (int64_t r = begin; r < end; r++) {
        if (pd_can_rank(j->t, n)) {
            int64_t place[PD_RANKED];
            pd_rank(j->t, j->x + r * n * size, n, j->descending, place);
            for (int64_t i = 0; i < n; i++) j->index[r * n + place[i]] = i;
            continue;
        }
        load_keys(j->t, j->x + r * n * size, n, p, j->descending);
        pair *sorted = p;
        if (n <= SHORT) sort_short(p, n);
        else sorted = sort_long(p, p + n, n, pd_key_bytes(j->t));
        for (int64_t i = 0; i < n; i++) j->index[r * n + i] = sorted[i].i;
    }
}
PD_CPU_FUNCTION(size_t, sort_scratch, const pd_block *b) {
    return (size_t)(sort_slots(b) * 2 * (b->n > 0 ? b->n : 1)) * sizeof(pair);
}
PD_CPU_FUNCTION(void, sort, bool descending, pd_dtype t, const pd_block *b, const void *x, int64_t *index,
                void *scratch) {
    int64_t slots = sort_slots(b);
    sort_job j = {descending, t, b, (b->outer + slots - 1) / slots, x, index, scratch};
    if (b->outer > 0 && b->n > 0) pd_parallel(b->outer, j.rows, sort_rows, &j);
}
