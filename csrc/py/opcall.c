#include "py/opcall.h"

#include <string.h>

#include "base/mem.h"

#define INPUTS 64 /* at most so many, lists included */

typedef struct opcall {
    uint32_t op, name; /* its number, and a hash of its name: both sides have the same table */
    uint32_t nin, bytes; /* inputs, and bytes of attributes, which follow */
    uint64_t there;    /* bit i: input i is a tensor */
} opcall;

static uint32_t hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619u;
    return h;
}

PyObject *pd_opcall_pack(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs) {
    opcall c = {.op = (uint32_t)(def - pd_defs), .name = hash(def->name), .nin = (uint32_t)nin,
                .bytes = (uint32_t)def->op->attrs};
    PyObject *list = nin <= INPUTS ? PyList_New(0) : NULL;
    if (nin > INPUTS) Py_RETURN_NONE;
    for (int i = 0; list && i < nin; i++) {
        if (!in[i]) continue;
        c.there |= UINT64_C(1) << i;
        PyObject *o = pd_py_wrap(in[i]);
        if (!o || PyList_Append(list, o)) Py_CLEAR(list);
        Py_XDECREF(o);
    }
    PyObject *bytes = list ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(sizeof c + c.bytes)) : NULL;
    if (bytes) {
        memcpy(PyBytes_AS_STRING(bytes), &c, sizeof c);
        memcpy(PyBytes_AS_STRING(bytes) + sizeof c, attrs, c.bytes);
    }
    PyObject *both = bytes ? PyTuple_Pack(2, bytes, list) : NULL;
    Py_XDECREF(bytes);
    Py_XDECREF(list);
    return both;
}

/* ---- the other side: nothing is believed ------------------------------------------------------------------------- */

static int count_choices(const char *choices) {
    int n = 1;
    for (const char *c = choices; *c; c++) n += *c == '|';
    return n;
}

static bool ints_fit(const pd_ints *v, int least) { return v->n >= least && v->n <= PD_MAX_DIMS; }

static bool attr_fits(const pd_param *p, const void *at) {
    int64_t word = *(const int64_t *)at;
    switch (p->type) {
    case PD_T_OPERAND: case PD_T_SCALAR: {
        const pd_scalar *s = at;
        return s->cat >= -1 && s->cat <= PD_CAT_COMPLEX;
    }
    case PD_T_INTS_OPT: return ints_fit(at, -1);
    case PD_T_INTS: return ints_fit(at, 0);
    case PD_T_BOOL: return word == 0 || word == 1;
    case PD_T_DTYPE: return word == PD_NO_DTYPE || (word >= 0 && word < PD_DTYPE_COUNT);
    case PD_T_ENUM: return word >= 0 && word < count_choices(p->choices);
    case PD_T_FORMAT: return word >= 0 && word <= PD_FORMAT_CHANNELS_LAST_3D;
    default: return true;
    }
}

static bool input_fits(const pd_param *p, pd_tensor *const *in, const void *attrs) {
    if (p->type == PD_T_TENSOR) return in[p->input];
    if (p->type != PD_T_OPERAND) return true;
    return in[p->input] || p->optional || ((const pd_scalar *)((const char *)attrs + p->attr))->cat >= 0;
}

bool pd_opcall_allowed(const pd_def *def) {
    uint32_t flags = def->op->flags;
    if (flags & PD_VIEW || !(flags & (PD_FUNC | PD_NN)) || def->list >= 0 || def->op->names) return false;
    for (int i = 0; i < def->nparams; i++)
        if (def->params[i].type == PD_T_RNG) return false;
    return true;
}

static const pd_def *find(const opcall *c) {
    const pd_def *def = c->op < PD_OP_COUNT ? &pd_defs[c->op] : NULL;
    bool same = def && hash(def->name) == c->name && pd_opcall_allowed(def) && c->bytes == def->op->attrs;
    return same && c->nin == (uint32_t)def->ninputs ? def : NULL;
}

pd_status pd_opcall_run(const void *bytes, size_t n, pd_tensor *const *tensors, int count, pd_tensor **out) {
    opcall c;
    uint64_t attrs[PD_MAX_ATTRS / 8] = {0};
    pd_tensor *in[INPUTS], *made[PD_MAX_OUTS];
    int taken = 0, outs;
    bool fits = n >= sizeof c;
    if (fits) memcpy(&c, bytes, sizeof c);
    const pd_def *def = fits ? find(&c) : NULL;
    if (!def || n != sizeof c + c.bytes)
        return pd_fail(PD_E_DIST, "rpc: a call of an op that this worker does not have (expected the same version of "
                                  "pydist)");
    memcpy(attrs, (const char *)bytes + sizeof c, c.bytes);
    for (uint32_t i = 0; i < c.nin; i++) in[i] = c.there >> i & 1 ? taken < count ? tensors[taken++] : NULL : NULL;
    for (int i = 0; i < def->nparams; i++) {
        const pd_param *p = &def->params[i];
        fits = fits && (p->attr < 0 || attr_fits(p, (char *)attrs + p->attr));
        fits = fits && (p->input < 0 || input_fits(p, in, attrs));
    }
    if (!fits || taken != count || !taken)
        return pd_fail(PD_E_DIST, "%s: a call by rpc that makes no sense", def->name);
    PD_TRY(pd_apply(def, in, (int)c.nin, attrs, made, &outs));
    int visible = def->op->visible ? def->op->visible : outs;
    for (int i = 1; i < outs; i++) pd_tensor_release(made[i]);
    if (visible != 1) {
        pd_tensor_release(made[0]);
        return pd_fail(PD_E_DIST, "%s: a call by rpc of an op with several results", def->name);
    }
    *out = made[0];
    return PD_OK;
}
