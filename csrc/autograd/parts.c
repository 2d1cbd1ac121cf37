/* Gradients of slices: each is a part of one gradient. */
#include "autograd/apply.h"
#include "autograd/beside.h"
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

static pd_slice part_of(const pd_node *n) { return n->def->op->part(n->attrs, n->edges[0].ndim, n->edges[0].size); }
static pd_status view_of(const pd_node *n, pd_tensor *t, pd_tensor **out) {
    return pd_apply(n->def, &t, 1, n->attrs, out, NULL);
}

/* Replaces *slot, the whole, by a copy without what lies in its place, but has not come. */
static pd_status take_out(parts *p, pd_tensor **slot) {
    pd_tensor *copy;
    PD_TRY(pd_engine.clone(*slot, &copy));
    pd_tensor_release(*slot);
    p->whole = *slot = copy;
    for (; p->nplaced; p->nplaced--) {
        pd_slice part = part_of(p->placed[p->nplaced - 1]);
        PD_TRY(zero(p, part.from, part.to));
    }
    return PD_OK;
}

static void drop_sums(parts *p) {
    pd_tensor_release(p->sums);
    p->sums = NULL;
}

pd_status pd_run_end_parts(parts *p, pd_tensor **slot) {
    if (!p->whole) return PD_OK;
    PD_TRY(zero(p, 0, p->from));
    PD_TRY(zero(p, p->to, p->whole->size[p->dim]));
    if (p->sums && !p->nplaced && p->summed == p->whole->size[p->dim])
        PD_TRY(pd_beside_set(p->whole, NULL, p->sums));
    drop_sums(p);
    if (p->nplaced) PD_TRY(take_out(p, slot));
    p->whole = NULL;
    return PD_OK;
}

static bool is_unwritten(const parts *p, const pd_slice *part) {
    return part->dim == p->dim && (part->to <= p->from || part->from >= p->to);
}

/* Extends what is written by a part, whose gradient follows. *fresh: nobody has written there. Else the part is zero
   where nobody has. */
static pd_status extend(parts *p, pd_tensor **slot, const pd_slice *part, bool *fresh) {
    int64_t from = part->from, to = part->to;
    *fresh = is_unwritten(p, part);
    if (part->dim != p->dim || (!*fresh && p->nplaced)) return pd_run_end_parts(p, slot);
    if (from == to) return PD_OK;
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

/* Where the gradient lies to which n's part belongs. *slot NULL: it may not be shared. Where the part will be the first
   of several, the gradient is made. */
static pd_status whole_of(const pd_run *r, const pd_node *n, const pd_slice *part, entry **to, pd_tensor ***slot) {
    const pd_edge *e = &n->edges[0];
    *to = pd_run_target(r, e);
    *slot = NULL;
    if (!*to || !(*to)->needed || r->b->fed || r->b->create_graph || pd_device_here->index != e->device) return PD_OK;
    pd_tensor **at = NULL;
    PD_TRY(pd_run_slot(*to, e->leaf ? 0 : e->index, &at));
    parts *p = &(*to)->parts;
    if (!*at) {
        if ((*to)->waiting == 1 || p->nplaced) return PD_OK; /* the only part: zeros in one go, and a copy, cost less */
        PD_TRY(pd_run_end_parts(p, NULL));
        PD_TRY(pd_tensor_new("backward", (pd_dtype)e->dtype, e->ndim, e->size, at));
        *p = (parts){.whole = *at, .dim = part->dim, .from = part->from, .to = part->from};
    } else if (*at != p->whole && (!pd_run_may_grow(*to, *at) || (*at)->dtype != e->dtype ||
                                   !pd_shape_equal((*at)->ndim, (*at)->size, e->ndim, e->size))) {
        return PD_OK;
    }
    *slot = at;
    return PD_OK;
}

/* Whether the gradient of slice n was to be made in its place. It comes now. */
static bool was_placed(parts *p, const pd_node *n) {
    for (int i = 0; i < p->nplaced; i++)
        if (p->placed[i] == n) {
            pd_slice part = part_of(n);
            p->summed += p->with_sums[i] ? part.to - part.from : 0;
            p->placed[i] = p->placed[--p->nplaced];
            p->with_sums[i] = p->with_sums[p->nplaced];
            return true;
        }
    return false;
}

bool pd_vjp_put_part(pd_vjp *v) {
    const pd_run *r = v->run;
    entry *to;
    pd_tensor **slot, *own = NULL, *g = v->g[0];
    if (v->status || !r) return false;
    pd_slice part = part_of(v->node);
    if ((v->status = whole_of(r, v->node, &part, &to, &slot))) return true;
    if (!slot) return false;
    bool fresh = was_placed(&to->parts, v->node);
    if (fresh && g->storage == (*slot)->storage) return true;
    drop_sums(&to->parts); /* of what lies there in place */
    if (!fresh && *slot == to->parts.whole) v->status = extend(&to->parts, slot, &part, &fresh);
    if (!v->status) v->status = view_of(v->node, *slot, &own);
    if (!v->status) v->status = fresh ? pd_engine.copy_into(own, g) : pd_engine.add_into(own, g);
    pd_tensor_release(own);
    return true;
}

/* ---- gradients made in their place ------------------------------------------------------------------------------- */

enum { LONGEST = 8 }; /* views between an op and the slice whose gradient it makes */

/* Where the gradient of n's output will lie: n is the slice, or a view of it. Else NULL. *slice: that slice. */
static pd_status find_place(const pd_run *r, const pd_node *n, int views, const pd_node **slice, pd_tensor **out) {
    const entry *own = n && n->kind == &pd_node_of_op && !n->hooks && views < LONGEST ? pd_run_find(r, n) : NULL;
    pd_tensor *inner = NULL;
    pd_status status = PD_OK;
    *out = NULL;
    if (!own || !own->needed || own->waiting != 1 || own->one || own->first_capture >= 0) return PD_OK;
    if (n->def->op->part) {
        entry *to;
        pd_tensor **slot;
        pd_slice part = part_of(*slice = n);
        PD_TRY(whole_of(r, n, &part, &to, &slot));
        const parts *p = slot && *slot == to->parts.whole ? &to->parts : NULL;
        bool unwritten = p && p->nplaced < (int)(sizeof p->placed / sizeof *p->placed) && part.dense &&
                         part.from < part.to && is_unwritten(p, &part);
        return unwritten ? view_of(n, *slot, out) : PD_OK;
    }
    if (n->def->op->flags & PD_REARRANGES) status = find_place(r, n->edges[0].fn, views + 1, slice, &inner);
    if (!status && inner) status = view_of(n, inner, out);
    pd_tensor_release(inner);
    return status == PD_E_SHAPE ? PD_OK : status; /* the strides do not allow this view */
}

pd_tensor *pd_vjp_place(pd_vjp *v, int i) {
    const pd_run *r = v->run;
    const pd_node *slice = NULL;
    pd_tensor *place = NULL;
    bool fresh;
    if (v->status || !r) return NULL;
    if ((v->status = find_place(r, v->node->edges[i].fn, 0, &slice, &place)) || !place) return NULL;
    if (!pd_vjp_keep(v, PD_OK, place)) return NULL;
    pd_slice part = part_of(slice);
    parts *p = &pd_run_target(r, &slice->edges[0])->parts;
    v->status = extend(p, NULL, &part, &fresh);
    p->with_sums[p->nplaced] = false;
    p->placed[p->nplaced++] = slice;
    return v->status ? NULL : place;
}

pd_tensor *pd_vjp_place_sums(pd_vjp *v, int i, int64_t width) {
    const pd_node *n = v->node->edges[i].fn;
    while (!n->def->op->part) n = n->edges[0].fn; /* as find_place has gone */
    entry *to = pd_run_target(v->run, &n->edges[0]);
    parts *p = &to->parts;
    const pd_slice part = part_of(n);
    const bool first = p->from == part.from && p->to == part.to; /* nothing else has been written */
    if (v->status || p->whole->storage->device->index < 0 || p->whole->dtype == PD_F64 || !p->whole->numel) return NULL;
    if (p->dim != p->whole->ndim - 1 || part.to - part.from != width) return NULL;
    if (!pd_run_wants_sums(to) || (!p->sums && !first)) return NULL;
    if (!p->sums) {
        v->status = pd_tensor_new("backward", PD_F32, 1, &p->whole->size[p->dim], &p->sums);
        p->summed = 0;
    }
    pd_tensor *own = NULL;
    pd_status status = v->status ? v->status : pd_tensor_alias(p->sums, false, &own);
    if (!(own = pd_vjp_keep(v, status, own))) return NULL;
    own->offset += part.from;
    own->size[0] = own->numel = width;
    p->with_sums[p->nplaced - 1] = true;
    return own;
}
