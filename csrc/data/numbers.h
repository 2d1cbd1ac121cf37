/* The numbers of elements: a list, or the members of an arithmetic sequence. And rows of memory by their numbers. */
#ifndef PD_DATA_NUMBERS_H
#define PD_DATA_NUMBERS_H

#include "base/status.h"

typedef struct pd_numbers {
    const int64_t *list; /* NULL: first, first + step, ... */
    int64_t first, step, n;
} pd_numbers;

static inline int64_t pd_number_at(const pd_numbers *all, int64_t i) {
    return all->list ? all->list[i] : all->first + i * all->step;
}

/* PD_E_INDEX if a number is not in [0, n). `what` is counted: "rows". */
pd_status pd_numbers_check(const char *op, const pd_numbers *all, int64_t n, const char *what);

/* to[i] = from[number i], in rows of `each` bytes. Numbers have been checked. Gives up the host's lock for long
   copies. */
void pd_rows_gather(const void *from, size_t each, const pd_numbers *all, void *to);

/* to[i] = data[spans[2 i]] up to data[spans[2 i + 1]], `each` bytes. PD_E_VALUE if one of the n strings has another
   length or is not within the `bytes` of data. */
pd_status pd_strings_gather(const char *op, const char *data, int64_t bytes, const int64_t *spans, int64_t n,
                            int64_t each, char *to);

#endif
