#include "autograd/spans.h"

#include <string.h>

#include "autograd/program.h"

enum { ROOM = 512 }; /* for the shapes of a call; those that do not fit are left out */

typedef struct dims { int64_t v[ROOM]; size_t n; } dims;

static void put(dims *d, const pd_tensor *t) {
    size_t ndim = t ? (size_t)t->ndim : 0;
    if (d->n + 1 + ndim > ROOM) return;
    d->v[d->n++] = t ? t->ndim : -1;
    if (t) memcpy(d->v + d->n, t->size, ndim * sizeof *t->size);
    d->n += ndim;
}

static int64_t bytes_of(pd_tensor *const *t, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        if (t[i]) sum += (int64_t)pd_tensor_bytes(t[i]);
    return sum;
}

/* `out`: one or more results. */
static void end(const pd_timespan *s, pd_timespan_kind kind, const char *name, int64_t bytes, pd_tensor *const *out,
                int nout, pd_tensor *const *in, int nin) {
    dims d;
    d.n = 0;
    if (pd_profile_shapes()) {
        d.v[d.n++] = nout;
        for (int i = 0; i < nout; i++) put(&d, out[i]);
        for (int i = 0; i < nin; i++) put(&d, in[i]);
    }
    pd_timespan_close(s, kind, name, bytes, d.v, d.n, NULL);
}

/* Work that an op does by calling other ops is counted by those. */
void pd_timespan_end_op(const pd_timespan *s, pd_timespan_kind kind, const pd_def *def, const void *attrs,
                        pd_tensor *const *in, int nin, pd_tensor *const *out, int nout) {
    if (kind == PD_SPAN_OP) pd_record_op(s->mark, def, attrs, in, nin, out, nout);
    else pd_record_op_into(s->mark, def, attrs, in, nin, out[0]);
    if (!pd_profile_is_on()) return;
    int64_t bytes = def->op->kernel ? bytes_of(in, nin) + bytes_of(out, nout) : 0;
    end(s, kind, def->name, bytes, out, nout, in, nin);
}

void pd_timespan_end_node(const pd_timespan *s, const pd_vjp *v) {
    const pd_node *n = v->node;
    bool own = n->def && n->def->op->vjp_fast && !v->create_graph; /* this gradient calls kernels, not ops */
    int64_t bytes = own ? bytes_of(v->g, n->nout) + bytes_of(v->gin, n->nin) : 0;
    for (int i = 0; own && i < n->nsaved; i++)
        if (n->saved[i].t) bytes += (int64_t)pd_tensor_bytes(n->saved[i].t);
    end(s, PD_SPAN_BACKWARD, pd_node_name(n), bytes, v->gin, n->nin, v->g, n->nout);
}
