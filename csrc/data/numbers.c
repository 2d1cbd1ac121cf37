#include "data/numbers.h"

#include <string.h>

#include "base/host.h"
#include "base/threads.h"

pd_status pd_numbers_check(const char *op, const pd_numbers *all, int64_t n, const char *what) {
    int64_t low = 0, high = 0;
    if (!all->n) return PD_OK;
    if (all->list) {
        low = high = all->list[0];
        for (int64_t i = 1; i < all->n; i++) {
            low = all->list[i] < low ? all->list[i] : low;
            high = all->list[i] > high ? all->list[i] : high;
        }
    } else {
        int64_t last;
        bool over =
            __builtin_mul_overflow(all->n - 1, all->step, &last) || __builtin_add_overflow(last, all->first, &last);
        low = over ? -1 : last < all->first ? last : all->first;
        high = last > all->first ? last : all->first;
    }
    if (low >= 0 && high < n) return PD_OK;
    return pd_fail(PD_E_INDEX, "%s: number %lld is out of range (expected 0 to %lld, since there are %lld %s)", op,
                   (long long)(low < 0 ? low : high), (long long)n - 1, (long long)n, what);
}

typedef struct gather {
    const char *from;
    char *to;
    size_t each;
    const pd_numbers *all;
} gather;

#define ROWS_OF(type)                                                                \
    do {                                                                             \
        const type *from = (const type *)g->from;                                    \
        type *to = (type *)g->to;                                                    \
        for (int64_t i = begin; i < end; i++) to[i] = from[pd_number_at(g->all, i)]; \
    } while (0)

static void some(void *ctx, int64_t begin, int64_t end) {
    const gather *g = ctx;
    switch (g->each) {
    case 1: ROWS_OF(uint8_t); return;
    case 2: ROWS_OF(uint16_t); return;
    case 4: ROWS_OF(uint32_t); return;
    case 8: ROWS_OF(uint64_t); return;
    default:
        for (int64_t i = begin; i < end; i++)
            memcpy(g->to + (size_t)i * g->each, g->from + (size_t)pd_number_at(g->all, i) * g->each, g->each);
    }
}

enum { BYTES_PER_NS = 4 }; /* about; of memory that is in no cache */

void pd_rows_gather(const void *from, size_t each, const pd_numbers *all, void *to) {
    gather g = {from, to, each, all};
    if (!all->n || !each) return;
    double bytes = (double)all->n * (double)each;
    void *token = bytes > PD_RELEASE_NS * BYTES_PER_NS ? pd_host_release() : NULL;
    int64_t width = (int64_t)(each > 8 ? each / 8 : 1);
    pd_parallel(all->n, pd_grain(all->n, width, 4 * PD_GRAIN), some, &g);
    pd_host_acquire(token);
}

pd_status pd_strings_gather(const char *op, const char *data, int64_t bytes, const int64_t *spans, int64_t n,
                            int64_t each, char *to) {
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = spans[2 * i], end = spans[2 * i + 1];
        if (begin < 0 || end < begin || end > bytes || end - begin != each)
            return pd_fail(PD_E_VALUE, "%s: string %lld has %lld bytes (expected %lld, as the first one)", op,
                           (long long)i, (long long)(end - begin), (long long)each);
        memcpy(to + i * each, data + begin, (size_t)each);
    }
    return PD_OK;
}
