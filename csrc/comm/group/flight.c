#include "comm/group/flight.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define ROWS_MAX (1 << 20)

enum {
    STATE,
    IDENTITY,
    SITE = IDENTITY + 3,
    POSTED,
    ENDED,
    WAITED
}; /* STATE: sequence number, then the state's byte */
_Static_assert(sizeof(pd_identity) == 24 && WAITED < 8, "a row is one cache line");

typedef struct row { /* a copy of a row */
    uint32_t seq;
    pd_flight_state state;
    pd_identity id;
    uint64_t site;
    int64_t posted, ended;
    int waited; /* for this rank; -1: none */
} row;

static inline int64_t ticks(void) {
#if defined __x86_64__
    return (int64_t)__builtin_ia32_rdtsc();
#elif defined __aarch64__
    int64_t t;
    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return pd_os_now();
#endif
}

static inline void put(pd_flight_row *r, int i, uint64_t v) {
    atomic_store_explicit(&r->word[i], v, memory_order_relaxed);
}

pd_status pd_flight_init(pd_flight *f, int rows) {
    uint32_t n = 1;
    if (rows <= 0) return PD_OK;
    while (n < (uint32_t)rows && n < ROWS_MAX) n *= 2;
    PD_TRY(pd_malloc_aligned(n * sizeof *f->rows, "flight record", &f->rows));
    memset(f->rows, 0, n * sizeof *f->rows);
    f->mask = n - 1;
    f->ticks = ticks();
    f->ns = pd_os_now();
    return PD_OK;
}

void pd_flight_fini(pd_flight *f) {
    pd_free(f->rows);
    f->rows = NULL;
}

void pd_flight_post(pd_flight *f, uint32_t seq, const pd_identity *id, uint64_t site) {
    if (!f->rows) return;
    pd_flight_row *r = &f->rows[seq & f->mask];
    uint64_t words[3];
    memcpy(words, id, sizeof words);
    put(r, STATE, 0);
    atomic_thread_fence(memory_order_release);
    for (int i = 0; i < 3; i++) put(r, IDENTITY + i, words[i]);
    put(r, SITE, site);
    put(r, POSTED, (uint64_t)ticks());
    put(r, ENDED, 0);
    put(r, WAITED, 0);
    atomic_store_explicit(&r->word[STATE], (uint64_t)seq << 8 | PD_FLIGHT_POSTED, memory_order_release);
    atomic_store_explicit(&f->last, seq, memory_order_release);
}

/* NULL: it has ended, or a newer one has its row, since messages end in any order. */
static pd_flight_row *own_row(pd_flight *f, uint32_t seq) {
    pd_flight_row *r = f->rows ? &f->rows[seq & f->mask] : NULL;
    uint64_t posted = (uint64_t)seq << 8 | PD_FLIGHT_POSTED;
    return r && atomic_load_explicit(&r->word[STATE], memory_order_relaxed) == posted ? r : NULL;
}

void pd_flight_wait(pd_flight *f, uint32_t seq, int rank) {
    pd_flight_row *r = own_row(f, seq);
    if (r) put(r, WAITED, (uint64_t)rank + 1);
}

void pd_flight_end(pd_flight *f, uint32_t seq, pd_flight_state state) {
    pd_flight_row *r = own_row(f, seq);
    if (!r) return;
    put(r, ENDED, (uint64_t)ticks());
    atomic_store_explicit(&r->word[STATE], (uint64_t)seq << 8 | state, memory_order_release);
}

/* False: the row does not belong, or no longer belongs, to `seq`. */
static bool read_row(const pd_flight *f, uint32_t seq, row *out) {
    const pd_flight_row *r = &f->rows[seq & f->mask];
    uint64_t words[8];
    uint64_t state = atomic_load_explicit(&r->word[STATE], memory_order_acquire);
    for (int i = 0; i < 8; i++) words[i] = atomic_load_explicit(&r->word[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&r->word[STATE], memory_order_relaxed) != state || state >> 8 != seq) return false;
    *out = (row){.seq = seq, .state = (pd_flight_state)(state & 255), .site = words[SITE],
                 .posted = (int64_t)words[POSTED], .ended = (int64_t)words[ENDED], .waited = (int)words[WAITED] - 1};
    memcpy(&out->id, words + IDENTITY, sizeof out->id);
    return true;
}

/* Nanoseconds in a tick, measured since the group was made. */
static double scale_of(const pd_flight *f, int64_t now) {
    int64_t passed = now - f->ticks;
    return passed > 0 ? (double)(pd_os_now() - f->ns) / (double)passed : 0;
}

static size_t call_text(const row *r, const pd_hooks *hooks, char *text, size_t size) {
    char site[256] = "", call[200];
    if (hooks && hooks->site && r->site) hooks->site(r->site, site, sizeof site);
    pd_identity_text(&r->id, call, sizeof call);
    int n = snprintf(text, size, "%s%s%s (#%u)", call, *site ? " at " : "", site, r->seq);
    return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

size_t pd_flight_text(const pd_flight *f, const pd_hooks *hooks, int rows, char *text, size_t size) {
    static const char *const states[] = {"", "waits", "done", "failed"};
    uint32_t last = f->rows ? atomic_load_explicit(&f->last, memory_order_acquire) : 0;
    uint32_t n = (uint32_t)(rows < 1 ? 1 : rows);
    int64_t now = ticks();
    double ns = f->rows ? scale_of(f, now) : 0;
    size_t at = 0;
    if (size) *text = 0;
    if (n > f->mask + 1) n = f->mask + 1;
    if (n > last) n = last;
    for (uint32_t seq = last - n + 1; n && at + 500 < size; seq++, n--) {
        row r;
        char call[400], waited[40] = "";
        if (!read_row(f, seq, &r)) continue;
        call_text(&r, hooks, call, sizeof call);
        if (r.waited >= 0) snprintf(waited, sizeof waited, ", waited for rank %d", r.waited);
        int64_t end = r.state == PD_FLIGHT_POSTED ? now : r.ended;
        at += (size_t)snprintf(text + at, size - at, "  %s: %s, %.3f ms%s, began %.3f s ago\n", call, states[r.state],
                               (double)(end - r.posted) * ns * 1e-6, waited, (double)(now - r.posted) * ns * 1e-9);
    }
    return at;
}

size_t pd_flight_last(const pd_flight *f, const pd_hooks *hooks, char *text, size_t size) {
    uint32_t last = f->rows ? atomic_load_explicit(&f->last, memory_order_acquire) : 0;
    int64_t now = ticks();
    row r;
    char call[400];
    if (size) *text = 0;
    if (!last || !read_row(f, last, &r)) return 0;
    bool going = r.state == PD_FLIGHT_POSTED;
    call_text(&r, hooks, call, sizeof call);
    double seconds = (double)(now - (going ? r.posted : r.ended)) * scale_of(f, now) * 1e-9;
    int n = snprintf(text, size, "%s %s %.1f s ago", going ? "began" : "ended", call, seconds);
    return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

size_t pd_flight_call(const pd_flight *f, const pd_hooks *hooks, uint32_t seq, char *text, size_t size) {
    row r;
    if (f->rows && read_row(f, seq, &r)) return call_text(&r, hooks, text, size);
    int n = snprintf(text, size, "#%u", seq);
    return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}
