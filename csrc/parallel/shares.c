#include "parallel/shares.h"

#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "ops/ops.h"

#define OP "backward"
#define LARGEST (1 << 20) /* bytes: larger gradients travel alone, at once, without a copy */

typedef struct share {
    pd_tensor *leaf, *g;                /* [strong] */
    pd_group *groups[PD_SHARES_GROUPS]; /* [strong] */
    int ngroups;
    uint64_t site;
} share;

typedef struct waiting { /* of one backward */
    share *shares;
    size_t n, cap;
    uint64_t run;
} waiting;

static _Thread_local waiting *now;

static void drop_share(share *s) {
    pd_tensor_release(s->leaf);
    pd_tensor_release(s->g);
    for (int i = 0; i < s->ngroups; i++) pd_group_release(s->groups[i]);
}

static void drop(void *ctx) {
    waiting *w = ctx;
    for (size_t i = 0; i < w->n; i++) drop_share(&w->shares[i]);
    if (now == w) now = NULL;
    pd_free(w->shares);
    pd_free(w);
}

static bool together(const share *a, const share *b) {
    return a->g->dtype == b->g->dtype && a->g->storage->device == b->g->storage->device && a->ngroups == b->ngroups &&
           !memcmp(a->groups, b->groups, sizeof *a->groups * (size_t)a->ngroups);
}

static pd_status add_up(pd_tensor *flat, const share *first) {
    const pd_dtype t = pd_dtype_part((pd_dtype)flat->dtype);
    const int each = pd_dtype_is_complex((pd_dtype)flat->dtype) ? 2 : 1;
    pd_status status = PD_OK;
    void *token = pd_host_release(); /* this may wait for peers */
    for (int i = 0; i < first->ngroups && !status; i++)
        status = pd_group_all_reduce(first->groups[i], pd_tensor_data(flat), flat->numel * each, t,
                                     PD_REDUCE_SUM, 1, first->site, NULL);
    pd_host_acquire(token);
    return status;
}

/* Adds up those of w that go together with the first one that is left, and gives them to their leaves. */
static pd_status finish_some(waiting *w, size_t first) {
    const share *f = &w->shares[first];
    pd_tensor *flat = NULL, *part = NULL;
    int64_t total = 0, at = 0;
    for (size_t i = first; i < w->n; i++)
        if (w->shares[i].leaf && together(f, &w->shares[i])) total += w->shares[i].g->numel;
    PD_TRY(pd_tensor_new(OP, (pd_dtype)f->g->dtype, 1, &total, &flat));
    pd_status status = PD_OK;
    for (size_t i = first; i < w->n && !status; i++) {
        if (!w->shares[i].leaf || !together(f, &w->shares[i])) continue;
        PD_TRY_TO(done, pd_tensor_within(flat, at, w->shares[i].g, &part));
        status = pd_engine.copy_into(part, w->shares[i].g);
        pd_tensor_release(part);
        at += w->shares[i].g->numel;
    }
    if (total) PD_THEN(add_up(flat, f));
    at = 0;
    for (size_t i = first; i < w->n && !status; i++) {
        share *s = &w->shares[i];
        if (!s->leaf || !together(f, s)) continue;
        PD_TRY_TO(done, pd_tensor_within(flat, at, s->g, &part));
        at += s->g->numel;
        status = pd_leaf_give(s->leaf, part);
        pd_tensor_release(part);
        if (i == first) continue; /* the others are compared with it */
        drop_share(s);
        *s = (share){0};
    }
    drop_share(&w->shares[first]);
    w->shares[first] = (share){0};
done:
    pd_tensor_release(flat);
    return status;
}

static pd_status finish(void *ctx, void *arg) {
    waiting *w = ctx;
    pd_status status = PD_OK;
    (void)arg;
    if (now == w) now = NULL;
    for (size_t i = 0; i < w->n && !status; i++) {
        const pd_device *was;
        if (!w->shares[i].leaf) continue;
        PD_TRY(pd_device_enter(w->shares[i].g->storage->device, &was));
        status = finish_some(w, i);
        pd_device_here = was;
    }
    return status;
}

bool pd_shares_may_wait(const pd_vjp *v, const pd_tensor *leaf) {
    const pd_run *r = v->run;
    bool some;
    if (!leaf || v->create_graph || r->b->sink || !pd_engine_current(&some) || some) return false;
    if (leaf->meta && (leaf->meta->hooks || leaf->meta->destination.view)) return false;
    return pd_tensor_bytes(leaf) <= LARGEST;
}

pd_status pd_shares_wait(pd_tensor *leaf, pd_tensor *g, pd_group *const *groups, int ngroups, uint64_t site) {
    bool some;
    const uint64_t run = pd_engine_current(&some);
    if (!now || now->run != run) {
        waiting *w;
        PD_TRY(pd_calloc(sizeof *w, OP, &w));
        w->run = run;
        pd_status status = pd_engine_at_end((pd_closure){.call = finish, .drop = drop, .ctx = w});
        if (status) {
            pd_free(w);
            return status;
        }
        now = w;
    }
    PD_TRY(pd_grow(&now->shares, &now->cap, now->n + 1, sizeof *now->shares, OP));
    share *s = &now->shares[now->n++];
    *s = (share){.leaf = leaf, .g = g, .ngroups = ngroups, .site = site};
    pd_tensor_retain(leaf);
    pd_tensor_retain(g);
    for (int i = 0; i < ngroups; i++) pd_group_retain(s->groups[i] = groups[i]);
    return PD_OK;
}
