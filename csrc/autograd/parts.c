/* Gradients of slices: each is a part of one gradient. */
#include "autograd/engine_impl.h"
#include "kernels/kernels.h"
#include "tensor/iter.h"

/* Fills the indices [from, to) with zeros. */
static pd_status zero(const parts *p, int64_t from, int64_t to) {
    if (from >= to) return PD_OK;
    pd_tensor part = *p->whole, *t = &part;
    const pd_device *d = part.storage->device, *was;
    pd_loop l;
    part.offset += from * part.stride[p->dim];
    part.numel = part.numel / part.size[p->dim] * (to - from);
    part.size[p->dim] = to - from;
    pd_status status = pd_device_enter(d, &was);
    if (!status) {
        pd_loop_build(&l, 1, &t);
        pd_here()->fill(pd_dtype_size((pd_dtype)part.dtype), (uint64_t[2]){0}, &l);
        status = pd_device_check(d, "backward");
    }
    pd_device_here = was;
    return status;
}

pd_status pd_run_fill_parts(parts *p) {
    if (!p->whole) return PD_OK;
    PD_TRY(zero(p, 0, p->from));
    PD_TRY(zero(p, p->to, p->whole->size[p->dim]));
    p->whole = NULL;
    return PD_OK;
}

/* Extends what is written by a part, whose gradient follows. *fresh: nobody has written there. Else the part is zero
   where nobody has. */
static pd_status extend(parts *p, const pd_slice *part, bool *fresh) {
    int64_t from = part->from, to = part->to;
    if (part->dim != p->dim) return pd_run_fill_parts(p);
    if (from == to) return PD_OK;
    *fresh = to <= p->from || from >= p->to;
    if (*fresh && !part->dense) PD_TRY(zero(p, from, to));
    if (from < p->from) {
        PD_TRY(zero(p, *fresh ? to : from, p->from));
        p->from = from;
    }
    if (to > p->to) {
        PD_TRY(zero(p, p->to, *fresh ? from : to));
        p->to = to;
    }
    return PD_OK;
}

/* Makes the gradient of which a part comes first. */
static pd_status begin(parts *p, const pd_edge *e, const pd_slice *part, pd_tensor **slot) {
    PD_TRY(pd_tensor_new("backward", (pd_dtype)e->dtype, e->ndim, e->size, slot));
    *p = (parts){.whole = *slot, .dim = part->dim, .from = part->from, .to = part->to};
    return part->dense ? PD_OK : zero(p, p->from, p->to);
}

pd_tensor *pd_vjp_part(pd_vjp *v, int i, const pd_slice *part, bool *fresh) {
    const pd_edge *e = &v->node->edges[i];
    const pd_run *r = v->run;
    entry *to = r && !v->status ? pd_run_target(r, e) : NULL;
    pd_tensor **slot = NULL;
    *fresh = false;
    if (!to || !to->needed || r->b->fed || v->create_graph || pd_device_here->index != e->device) return NULL;
    if ((v->status = pd_run_slot(to, e->leaf ? 0 : e->index, &slot))) return NULL;
    pd_tensor *sum = *slot;
    if (!sum) {
        if (to->waiting == 1) return NULL; /* the only part: zeros in one go, and a copy, cost less */
        *fresh = true;
        if (!(v->status = pd_run_fill_parts(&to->parts))) v->status = begin(&to->parts, e, part, slot);
    } else if (sum == to->parts.whole) {
        v->status = extend(&to->parts, part, fresh);
    } else if (!pd_run_may_grow(to, sum) || sum->dtype != e->dtype ||
               !pd_shape_equal(sum->ndim, sum->size, e->ndim, e->size)) {
        return NULL;
    }
    return v->status ? NULL : *slot;
}
