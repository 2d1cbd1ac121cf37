/* Nodes whose gradient a function of the host language computes. */
#include <stdio.h>

#include "autograd/apply.h"
#include "base/mem.h"

typedef struct custom {
    pd_closure closure;
    char name[64];
} custom;

static void run(pd_vjp *v) {
    custom *f = v->node->extra;
    const bool plain = pd_parts_are_plain;
    pd_parts_are_plain = false; /* the host sees parts as such */
    v->status = f->closure.call(f->closure.ctx, v);
    pd_parts_are_plain = plain;
}

static void drop(pd_node *n) {
    custom *f = n->extra;
    if (f) pd_closure_drop(&f->closure);
    pd_free(f);
}

static const char *name_of(const pd_node *n) { return ((const custom *)n->extra)->name; }

static const pd_node_kind kind = {.name_of = name_of, .run = run, .drop = drop};

pd_status pd_node_custom(const char *name, pd_closure c, pd_tensor *const *in, int nin, int nout, int nsaved,
                         pd_node **out) {
    custom *f;
    pd_status status = pd_malloc(sizeof *f, "tape", &f);
    if (!status && (status = pd_node_new(&kind, NULL, NULL, 0, in, nin, nout, nsaved, out))) pd_free(f);
    if (status) {
        pd_closure_drop(&c);
        return PD_TRAIL(status);
    }
    f->closure = c;
    snprintf(f->name, sizeof f->name, "%s", name);
    (*out)->extra = f;
    return PD_OK;
}

const pd_closure *pd_node_closure(const pd_node *n) {
    return n->kind == &kind ? &((const custom *)n->extra)->closure : NULL;
}
