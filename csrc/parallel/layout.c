#include "parallel/layout.h"

#include "base/mem.h"

static int64_t aligned(int64_t n, pd_dtype t) { /* to 64 bytes, in elements */
    int64_t unit = 64 / (int64_t)pd_dtype_size(t);
    return (n + unit - 1) / unit * unit;
}

pd_status pd_layout_init(pd_layout *l, int nparams, const int64_t *numel, const pd_dtype *dtype, size_t first,
                         size_t cap) {
    *l = (pd_layout){0};
    PD_TRY(pd_calloc(sizeof *l->pieces * (size_t)nparams, "layout", &l->pieces));
    pd_status status = pd_calloc(sizeof *l->buckets * (size_t)nparams, "layout", &l->buckets);
    if (status) {
        pd_layout_fini(l);
        return status;
    }
    int open[PD_DTYPE_COUNT]; /* the bucket that is being filled, by dtype */
    for (int t = 0; t < PD_DTYPE_COUNT; t++) open[t] = -1;
    for (int i = nparams - 1; i >= 0; i--) {
        pd_dtype t = dtype[i];
        int64_t size = (int64_t)pd_dtype_size(t);
        int64_t limit = (int64_t)(open[t] == 0 || l->nbuckets == 0 ? first : cap) / size;
        int b = open[t];
        if (b < 0 || l->buckets[b].numel + numel[i] > limit) {
            b = open[t] = l->nbuckets++;
            l->buckets[b].dtype = t;
        }
        int64_t at = l->buckets[b].numel;
        l->pieces[i] = (pd_piece){.param = i, .bucket = b, .offset = at, .numel = numel[i], .dtype = t};
        l->buckets[b].numel = aligned(l->buckets[b].numel + numel[i], t);
        l->buckets[b].count++;
    }
    /* Put the pieces in order: by bucket, within it as they were added (descending parameter). */
    for (int b = 0, at = 0; b < l->nbuckets; at += l->buckets[b++].count) l->buckets[b].first = at;
    pd_piece *sorted;
    status = pd_calloc(sizeof *sorted * (size_t)nparams, "layout", &sorted);
    if (status) {
        pd_layout_fini(l);
        return status;
    }
    for (int b = 0; b < l->nbuckets; b++) {
        int at = l->buckets[b].first;
        for (int i = nparams - 1; i >= 0; i--)
            if (l->pieces[i].bucket == b) sorted[at++] = l->pieces[i];
    }
    pd_free(l->pieces);
    l->pieces = sorted;
    l->npieces = nparams;
    return PD_OK;
}

void pd_layout_fini(pd_layout *l) {
    pd_free(l->pieces);
    pd_free(l->buckets);
    *l = (pd_layout){0};
}
