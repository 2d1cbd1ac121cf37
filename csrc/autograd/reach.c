/* What a run reaches, and which node comes next. */
#include <string.h>

#include "autograd/engine_impl.h"
#include "base/mem.h"

static void insert_slot(pd_run *r, uint32_t index) {
    size_t i = pd_run_hash(r->entries[index].key);
    while (r->slots[i & (r->nslots - 1)]) i++;
    r->slots[i & (r->nslots - 1)] = index + 1;
}

pd_status pd_run_find_or_add(pd_run *r, pd_node *node, pd_tensor *leaf, uint32_t *index) {
    const void *key = node ? (const void *)node : leaf;
    entry *e = r->nslots ? pd_run_find(r, key) : NULL;
    if (e) {
        *index = (uint32_t)(e - r->entries);
        return PD_OK;
    }
    bool written = !r->b->inputs || r->b->accumulate || r->b->split;
    if (leaf && written) { /* made under the host's lock, which runs of one leaf share */
        pd_meta *m = NULL;
        PD_TRY(pd_meta_get(leaf, &m));
    }
    if (2 * (r->count + 1) > r->nslots) {
        size_t n = r->nslots ? 2 * r->nslots : 64;
        uint32_t *slots;
        PD_TRY(pd_calloc(n * sizeof *slots, "backward", &slots));
        pd_free(r->slots);
        r->slots = slots;
        r->nslots = n;
        for (uint32_t i = 0; i < r->count; i++) insert_slot(r, i);
    }
    PD_TRY(pd_grow(&r->entries, &r->cap, r->count + 1, sizeof(entry), "backward"));
    if (r->b->fed) {
        size_t had = r->cap_boxes;
        PD_TRY(pd_grow(&r->boxes, &r->cap_boxes, r->count + 1, sizeof *r->boxes, "backward"));
        memset(r->boxes + had, 0, (r->cap_boxes - had) * sizeof *r->boxes);
    }
    e = &r->entries[r->count];
    *e = (entry){.key = key, .node = node, .leaf = leaf, .first_capture = -1};
    if (node) pd_node_retain(node);
    else pd_tensor_retain(leaf);
    *index = (uint32_t)r->count++;
    insert_slot(r, *index);
    return PD_OK;
}

pd_node *pd_run_reached(const pd_run *r, size_t i, pd_tensor **leaf) {
    *leaf = r->entries[i].leaf;
    return r->entries[i].node;
}

/* ---- discovery --------------------------------------------------------------------------------------------------- */

static pd_status has_run(const entry *e) {
    return pd_fail(PD_E_RUNTIME,
                   "backward: a node was discovered after the turn that ran %s, to which it sends gradients (expected "
                   "all nodes to be discovered before that turn)",
                   e->node ? pd_node_name(e->node) : "a leaf");
}

/* Walks depth first with a stack of its own. `needed` and `early` of a node are known once they are known for all that
   it leads to. */
typedef struct frame { uint32_t index; int edge; } frame;

static void lead(entry *from, const entry *to) {
    from->needed |= to->needed;
    from->early |= to->early;
}

pd_status pd_run_reach(pd_run *r, uint32_t root) {
    frame *stack = NULL;
    size_t depth = 0, cap = 0;
    bool all = !r->b->inputs || r->b->split;
    pd_status status = pd_grow(&stack, &cap, 1, sizeof *stack, "backward");
    if (status) return status;
    r->entries[root].expanded = true;
    stack[depth++] = (frame){root, 0};
    while (depth) {
        frame *f = &stack[depth - 1];
        pd_node *n = r->entries[f->index].node;
        if (!n || f->edge == n->nin) {
            entry *e = &r->entries[f->index];
            e->needed |= all || e->first_capture >= 0;
            e->early |= e->first_capture >= 0 || (e->node && !r->b->ninputs);
            if (n) r->work += n->work;
            depth--;
            if (depth) lead(&r->entries[stack[depth - 1].index], e);
            continue;
        }
        const pd_edge *edge = &n->edges[f->edge++];
        if (!edge->fn && !edge->leaf) continue;
        uint32_t child;
        PD_TRY_TO(done, pd_run_find_or_add(r, edge->fn, edge->leaf, &child));
        if (r->started && r->entries[child].expanded && !r->entries[child].waiting) {
            status = has_run(&r->entries[child]);
            goto done;
        }
        r->entries[child].waiting++;
        if (r->entries[child].expanded) {
            lead(&r->entries[stack[depth - 1].index], &r->entries[child]);
            continue;
        }
        r->entries[child].expanded = true;
        PD_TRY_TO(done, pd_grow(&stack, &cap, depth + 1, sizeof *stack, "backward"));
        stack[depth++] = (frame){child, 0};
    }
done:
    pd_free(stack);
    return status;
}

/* ---- the ready heap ---------------------------------------------------------------------------------------------- */

static bool later(const pd_run *r, uint32_t a, uint32_t b) { return r->entries[a].node->seq > r->entries[b].node->seq; }

pd_status pd_run_push(pd_run *r, uint32_t index) {
    PD_TRY(pd_grow(&r->heap, &r->cap_heap, r->nheap + 1, sizeof *r->heap, "backward"));
    size_t i = r->nheap++;
    for (; i && later(r, index, r->heap[(i - 1) / 2]); i = (i - 1) / 2) r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = index;
    return PD_OK;
}

uint32_t pd_run_pop(pd_run *r) {
    uint32_t top = r->heap[0], last = r->heap[--r->nheap];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < r->nheap; i = c) {
        if (c + 1 < r->nheap && later(r, r->heap[c + 1], r->heap[c])) c++;
        if (!later(r, r->heap[c], last)) break;
        r->heap[i] = r->heap[c];
    }
    r->heap[i] = last;
    return top;
}
