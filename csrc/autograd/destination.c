#include "autograd/destination.h"

#include <string.h>

#include "autograd/program.h"
#include "autograd/tape.h"

static void end(pd_grad_destination *d) {
    pd_grad_destination was = *d;
    *d = (pd_grad_destination){0};
    pd_storage_release(was.ahead);
    pd_tensor_release(was.view);
}

static pd_status ask(pd_tensor *leaf, const pd_grad_owner *now, const pd_grad_owner *next) {
    if (now->hand_over) return now->hand_over(now->ctx, leaf);
    return pd_fail(PD_E_VALUE,
                   "%s: the gradient of parameter %s already belongs to %s, which calls the parameter %s and does not "
                   "give it up (expected one owner at a time)",
                   next->name, next->leaf, now->name, now->leaf);
}

pd_status pd_grad_take(pd_tensor *leaf, const pd_grad_owner *owner, pd_tensor *view) {
    pd_meta *m = NULL;
    PD_TRY(pd_meta_get(leaf, &m));
    const pd_grad_owner *now = m->destination.owner;
    if (now && now != owner) PD_TRY(ask(leaf, now, owner));
    PD_TRY(pd_grad_clear(&m->destination, NULL));
    if (view) pd_tensor_retain(view);
    end(&m->destination);
    m->destination = (pd_grad_destination){.owner = owner, .view = view};
    return PD_OK;
}

void pd_grad_give_up(pd_tensor *leaf, const pd_grad_owner *owner) {
    if (leaf->meta && leaf->meta->destination.owner == owner) end(&leaf->meta->destination);
}

/* ---- gradients that a forward makes ------------------------------------------------------------------------------ */

static void drop_storage(void *storage) { pd_storage_release(storage); }

static pd_status open_ahead(pd_grad_destination *d) {
    const pd_tensor *view = d->view;
    PD_TRY(pd_storage_external(view->storage->device, pd_tensor_data(view), pd_tensor_bytes(view), drop_storage,
                               view->storage, &d->ahead));
    pd_storage_retain(view->storage);
    return PD_OK;
}

pd_status pd_grad_make_ahead(pd_tensor *leaf, pd_tensor **out) {
    pd_meta *m = leaf->meta;
    pd_grad_destination *d = m ? &m->destination : NULL;
    *out = NULL;
    if (!d || !d->view || !d->owner->lends || m->grad || pd_grad_is_ahead(d, NULL)) return PD_OK;
    if ((pd_saved_hooked && pd_saved_pack) || pd_is_recording() || !pd_tensor_is_contiguous(d->view)) return PD_OK;
    if (!d->ahead) PD_TRY(open_ahead(d));
    PD_TRY(pd_tensor_alias(d->view, false, out));
    pd_storage_release((*out)->storage);
    pd_storage_retain((*out)->storage = d->ahead);
    (*out)->offset = 0;
    return PD_OK;
}

bool pd_grad_is_ahead(const pd_grad_destination *d, const pd_tensor *g) {
    if (!d->ahead) return false;
    const bool own = g && g->refs == 1 && g->storage == d->ahead;
    return atomic_load(&d->ahead->refs) > 1 + own;
}

pd_status pd_grad_clear(pd_grad_destination *d, const pd_tensor *g) {
    pd_storage *s = d->ahead, *copy = NULL;
    if (!pd_grad_is_ahead(d, g)) return PD_OK;
    PD_TRY(pd_storage_new(s->device, s->bytes, &copy));
    memcpy(copy->data, s->data, s->bytes);
    void *data = s->data;
    s->data = copy->data, copy->data = data; /* whoever frees s now frees the copy, and the other way round */
    copy->drop = s->drop, copy->ctx = s->ctx;
    s->drop = NULL, s->ctx = NULL;
    d->ahead = NULL;
    pd_storage_release(s);
    pd_storage_release(copy);
    return PD_OK;
}
