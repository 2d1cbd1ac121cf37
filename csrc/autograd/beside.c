#include "autograd/beside.h"

/* Both counters only rise, so their sum is the same only if both are. */
static unsigned writes(const pd_tensor *x) {
    const pd_tensor *copy = x->meta->low.copy;
    return x->storage->writes + (copy ? copy->storage->writes : 0);
}
static bool is_valid(const pd_tensor *x) {
    const pd_low *l = x->meta ? &x->meta->low : NULL;
    return l && l->of == x->storage && l->writes == writes(x) && pd_storage_is_private(x->storage);
}

void pd_beside_renew(pd_tensor *x) {
    x->meta->low.of = x->storage;
    x->meta->low.writes = writes(x);
}

void pd_beside_drop(pd_tensor *x) {
    if (!x->meta) return;
    pd_low *l = &x->meta->low;
    pd_tensor_release(l->copy);
    pd_tensor_release(l->sums);
    l->copy = l->sums = NULL;
    l->of = NULL;
}

pd_status pd_beside_set(pd_tensor *x, pd_tensor *copy, pd_tensor *sums) {
    pd_meta *m;
    PD_TRY(pd_meta_get(x, &m));
    if (copy) pd_tensor_retain(copy);
    if (sums) pd_tensor_retain(sums);
    pd_beside_drop(x);
    m->low.copy = copy;
    m->low.sums = sums;
    pd_beside_renew(x);
    return PD_OK;
}

pd_tensor *pd_beside_copy(const pd_tensor *x, pd_dtype t) {
    if (!is_valid(x)) return NULL;
    pd_tensor *copy = x->meta->low.copy;
    return copy && copy->dtype == (int)t && pd_tensor_same_layout(copy, x) ? copy : NULL;
}

pd_tensor *pd_beside_sums(const pd_tensor *x) { return is_valid(x) ? x->meta->low.sums : NULL; }

pd_tensor *pd_beside_take(pd_tensor *x, pd_dtype t) {
    pd_tensor *copy = pd_beside_copy(x, t);
    if (copy) x->meta->low.copy = NULL, x->meta->low.of = NULL;
    return copy;
}
