#include "autograd/destination.h"

#include "autograd/tape.h"

static void end(pd_grad_destination *d) {
    pd_tensor *view = d->view;
    *d = (pd_grad_destination){0};
    pd_tensor_release(view);
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
    if (view) pd_tensor_retain(view);
    end(&m->destination);
    m->destination = (pd_grad_destination){owner, view};
    return PD_OK;
}

void pd_grad_give_up(pd_tensor *leaf, const pd_grad_owner *owner) {
    if (leaf->meta && leaf->meta->destination.owner == owner) end(&leaf->meta->destination);
}
