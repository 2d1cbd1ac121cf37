#include "autograd/remote.h"

#include <string.h>

#include "base/mem.h"

/* ---- nodes of sent tensors --------------------------------------------------------------------------------------- */

static void pass_on(pd_vjp *v) {
    for (int i = 0; i < v->node->nin; i++) pd_vjp_set(v, i, v->g[i]);
}

static const pd_node_kind send_kind = {.name = "SendRpcBackward", .run = pass_on};

pd_status pd_node_send(pd_tensor *const *sent, int n, pd_node **out) {
    return pd_node_new(&send_kind, NULL, NULL, 0, sent, n, n, 0, out);
}

bool pd_node_is_send(const pd_node *n) { return n->kind == &send_kind; }

/* ---- where a graph leads ----------------------------------------------------------------------------------------- */

enum { MANY = 512, SLOTS = 2048 }; /* nodes that are looked at; a power of two above that */

typedef struct met {
    const pd_node *nodes[MANY];
    uint16_t slots[SLOTS]; /* open addressing: index + 1 */
    int n;
} met;

/* False: there are too many. */
static bool meet(met *m, const pd_node *n) {
    size_t i = (size_t)(((uintptr_t)n >> 4) * 0x9E3779B97F4A7C15u >> 20);
    for (; m->slots[i % SLOTS]; i++)
        if (m->nodes[m->slots[i % SLOTS] - 1] == n) return true;
    if (m->n == MANY) return false;
    m->nodes[m->n++] = n;
    m->slots[i % SLOTS] = (uint16_t)m->n;
    return true;
}

int pd_node_leads_to(const pd_node *n, const pd_node **found, int max) {
    met m;
    int nfound = 0;
    memset(m.slots, 0, sizeof m.slots);
    m.n = 0;
    bool known = meet(&m, n);
    for (int i = 0; i < m.n && known; i++) {
        for (int k = 0; k < m.nodes[i]->nin && known; k++)
            if (m.nodes[i]->edges[k].fn) known = meet(&m, m.nodes[i]->edges[k].fn);
        if (!known || !pd_node_delivers(m.nodes[i])) continue;
        if ((known = nfound < max)) found[nfound++] = m.nodes[i];
    }
    return known ? nfound : -1;
}

/* ---- nodes of received tensors ----------------------------------------------------------------------------------- */

static void deliver(pd_vjp *v) {
    pd_closure *c = v->node->extra;
    v->status = c->call(c->ctx, v);
}

static void drop(pd_node *n) {
    pd_closure *c = n->extra;
    if (c) pd_closure_drop(c);
    pd_free(c);
}

static const pd_node_kind recv_kind = {.name = "RecvRpcBackward", .run = deliver, .drop = drop, .always = true};

const pd_closure *pd_node_delivers(const pd_node *n) { return n->kind == &recv_kind ? n->extra : NULL; }

static pd_status own(pd_node *n, int index, pd_tensor *t) {
    pd_meta *m = NULL;
    if (pd_tensor_wants_grad(t) || pd_dtype_category((pd_dtype)t->dtype) < PD_CAT_FLOAT)
        return pd_fail(PD_E_RUNTIME,
                       "recv: tensor %d is %s%s (expected a floating or complex tensor without a history)", index,
                       pd_dtype_name((pd_dtype)t->dtype), t->requires_grad ? " and requires a gradient already" : "");
    PD_TRY(pd_node_own(n, index, t));
    PD_TRY(pd_meta_get(t, &m));
    m->sealed = t->base; /* the tape knows nothing of what else was received in this memory */
    return PD_OK;
}

pd_status pd_node_recv(pd_tensor *const *received, int n, pd_closure c, pd_node **out) {
    pd_closure *kept;
    pd_status status = pd_malloc(sizeof *kept, "recv", &kept);
    if (!status && (status = pd_node_new(&recv_kind, NULL, NULL, 0, NULL, 0, n, 0, out))) pd_free(kept);
    if (status) {
        pd_closure_drop(&c);
        return PD_TRAIL(status);
    }
    *kept = c;
    (*out)->extra = kept;
    for (int i = 0; i < n && !status; i++) status = own(*out, i, received[i]);
    if (status) pd_node_release(*out);
    return status;
}
