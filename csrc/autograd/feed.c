/* Gradients that come into a run from outside, and the fixed order in which a fed run adds. */
#include <stdlib.h>

#include "autograd/engine_impl.h"
#include "base/mem.h"

static inbox *box_of(const pd_run *r, const entry *e) { return &r->boxes[e - r->entries]; }

pd_status pd_run_keep(pd_run *r, const entry *e, uint64_t seq, int edge, int index, pd_tensor *g) {
    inbox *box = box_of(r, e);
    PD_TRY(pd_grow(&box->parts, &box->cap, box->n + 1, sizeof *box->parts, "backward"));
    box->parts[box->n++] = (part){.g = g, .seq = seq, .edge = edge, .index = index};
    if (g) pd_tensor_retain(g);
    return PD_OK;
}

/* The order: gradients from outside first, then by node, the latest first, then by edge. */
static int by_edge(const void *a, const void *b) {
    const part *p = a, *q = b;
    if (p->seq != q->seq) return p->seq > q->seq ? -1 : 1;
    return (p->edge > q->edge) - (p->edge < q->edge);
}

static void drop_parts(inbox *box) {
    for (size_t i = 0; i < box->n; i++) pd_tensor_release(box->parts[i].g);
    pd_free(box->parts);
    box->parts = NULL;
    box->n = box->cap = 0;
}

pd_status pd_run_settle(pd_run *r, entry *e) {
    inbox *box = box_of(r, e);
    pd_status status = PD_OK;
    if (box->n > 1) qsort(box->parts, box->n, sizeof *box->parts, by_edge);
    for (size_t i = 0; i < box->n && !status; i++) {
        part *p = &box->parts[i];
        if (p->g && e->needed) status = pd_run_add(r, e, p->index, p->g);
        pd_tensor_release(p->g); /* if it is the first, only the sum has it now */
        p->g = NULL;
    }
    drop_parts(box);
    return status;
}

void pd_run_free_boxes(pd_run *r) {
    for (size_t i = 0; i < r->count; i++) drop_parts(&r->boxes[i]);
    pd_free(r->boxes);
}

static pd_status discover(pd_run *r, pd_node *node) {
    uint32_t index;
    PD_TRY(pd_run_find_or_add(r, node, NULL, &index));
    entry *e = &r->entries[index];
    if (r->boxes[index].expected)
        return pd_fail(PD_E_RUNTIME, "backward: %s was discovered already (expected once)", pd_node_name(node));
    if (e->expanded && r->started && !e->waiting)
        return pd_fail(PD_E_RUNTIME,
                       "backward: %s is discovered after the turn that ran it (expected before that turn)",
                       pd_node_name(node));
    e->waiting += node->nout;
    r->boxes[index].expected = node->nout;
    r->missing += node->nout;
    return e->expanded ? PD_OK : pd_run_reach(r, index);
}

pd_status pd_run_discover(pd_run *r, pd_node *node) {
    PD_TRY(pd_run_enter(r));
    pd_status status = r->b->fed ? discover(r, node)
                                 : pd_fail(PD_E_RUNTIME,
                                           "backward: the run takes no gradients from outside, so it discovers no "
                                           "nodes (expected a run opened with fed=True)");
    r->failed = status;
    pd_run_leave(r);
    return status;
}

static pd_status feed(pd_run *r, pd_node *node, int index, pd_tensor *g) {
    entry *e = r->nslots ? pd_run_find(r, node) : NULL;
    inbox *box = e && r->b->fed ? box_of(r, e) : NULL;
    if (!box || !box->expected)
        return pd_fail(PD_E_RUNTIME,
                       "backward: %s waits for no gradient from outside (expected to be discovered first, and to be "
                       "fed once for each output)",
                       pd_node_name(node));
    if (index < 0 || index >= node->nout)
        return pd_fail(PD_E_INDEX, "backward: the output's number is %d for %s (expected 0 to %d)", index,
                       pd_node_name(node), node->nout - 1);
    for (size_t i = 0; i < box->n; i++)
        if (box->parts[i].seq == UINT64_MAX && box->parts[i].index == index)
            return pd_fail(PD_E_RUNTIME, "backward: output %d of %s was fed already (expected once)", index,
                           pd_node_name(node));
    PD_TRY(pd_run_keep(r, e, UINT64_MAX, index, index, g));
    box->expected--;
    r->missing--;
    pd_status status = --e->waiting ? PD_OK : pd_run_push(r, (uint32_t)(e - r->entries));
    r->failed = status;
    return status;
}

/* A gradient that is refused leaves the run as it was. */
pd_status pd_run_feed(pd_run *r, pd_node *node, int index, pd_tensor *g) {
    PD_TRY(pd_run_enter(r));
    pd_status status = feed(r, node, index, g);
    pd_run_leave(r);
    return status;
}
