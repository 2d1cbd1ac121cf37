#include "parallel/ready.h"

#include <string.h>

#include "base/mem.h"

pd_status pd_ready_init(pd_ready *r, const pd_layout *l, pd_status (*start)(void *ctx, int b), void *ctx) {
    *r = (pd_ready){.layout = l, .start = start, .ctx = ctx};
    PD_TRY(pd_calloc(sizeof *r->waiting * (size_t)l->nbuckets + (size_t)l->npieces, "buckets", &r->waiting));
    r->came = (bool *)(r->waiting + l->nbuckets);
    return PD_OK;
}

void pd_ready_fini(pd_ready *r) {
    pd_free(r->waiting);
    *r = (pd_ready){0};
}

void pd_ready_begin(pd_ready *r) { memset(r->waiting, 0, sizeof *r->waiting * (size_t)r->layout->nbuckets); }

pd_status pd_ready_came(pd_ready *r, int piece) {
    r->came[piece] = true;
    r->waiting[r->layout->pieces[piece].bucket]--;
    while (r->next < r->layout->nbuckets && r->waiting[r->next] == 0) {
        PD_TRY(r->start(r->ctx, r->next));
        r->next++;
    }
    return PD_OK;
}

pd_status pd_ready_rest(pd_ready *r) {
    for (; r->next < r->layout->nbuckets; r->next++) PD_TRY(r->start(r->ctx, r->next));
    return PD_OK;
}

void pd_ready_reset(pd_ready *r) {
    memset(r->came, 0, sizeof *r->came * (size_t)r->layout->npieces);
    r->next = 0;
}

bool pd_ready_all_came(const pd_ready *r) {
    for (int i = 0; i < r->layout->npieces; i++)
        if (!r->came[i]) return false;
    return true;
}
