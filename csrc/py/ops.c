/* The Python functions of the op table: one callable type, which parses arguments by the op's signature. */
#include "py/py.h"

#include <structmember.h>

#include "base/mem.h"
#include "py/opcall.h"

enum { PLAIN, INPLACE };

typedef struct op_function {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    const pd_def *def;
    int mode;
    PyObject *names[PD_MAX_PARAMS]; /* interned */
    PyObject *result;               /* named tuple type for several outputs, or NULL */
    PyObject *elementwise;          /* the function of two tensors, or NULL */
    bool has_other_form;            /* see other_form() */
} op_function;

/* ---- one call's arguments ---------------------------------------------------------------------------------------- */

typedef struct parsed {
    pd_tensor *few[PD_MAX_PARAMS], **in;
    int nin;
    PyObject *seq;          /* keeps the tensors of a list */
    pd_tensor **list;
    Py_ssize_t nlist;
    uint64_t attrs[PD_MAX_ATTRS / 8];
    PyObject *out;          /* out= */
} parsed;

static bool wrong_type(const pd_def *def, const pd_param *p, PyObject *o, const char *want) {
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s: %s is %.100s (expected %s)", def->name, p->name, Py_TYPE(o)->tp_name, want);
    return false;
}

static bool set_enum(const pd_def *def, const pd_param *p, PyObject *o, int64_t *to) {
    const char *word = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL;
    int64_t k = 0;
    for (const char *c = p->choices; word && c; c = strchr(c, '|'), c = c ? c + 1 : NULL, k++) {
        size_t n = strcspn(c, "|");
        if (strlen(word) == n && !strncmp(c, word, n)) {
            *to = k;
            return true;
        }
    }
    if (!PyErr_Occurred())
        PyErr_Format(pd_py.E_VALUE, "%s: %s is %R (expected one of %s)", def->name, p->name, o, p->choices);
    return false;
}

/* Stores argument o in its place. */
static bool set(const pd_def *def, const pd_param *p, PyObject *o, parsed *a) {
    char *at = (char *)a->attrs + (p->attr < 0 ? 0 : p->attr);
    switch (p->type) {
    case PD_T_TENSOR_OPT:
        if (o == Py_None) return true; /* fall through */
    case PD_T_TENSOR:
        if (!pd_py_is_tensor(o)) return wrong_type(def, p, o, "Tensor");
        a->in[p->input] = pd_py_tensor(o);
        return true;
    case PD_T_OPERAND:
        if (pd_py_is_tensor(o)) a->in[p->input] = pd_py_tensor(o);
        else if (o == Py_None && p->optional) return true;
        else if (!pd_py_number(o, (pd_scalar *)at)) return wrong_type(def, p, o, "Tensor or a number");
        return true;
    case PD_T_TENSORS: case PD_T_TENSORS_OPT:
        return pd_py_tensors(o, def->name, p->name, &a->seq, &a->list, &a->nlist);
    case PD_T_SCALAR:
        if (o == Py_None && p->optional && ((pd_scalar *)at)->cat < 0) return true; /* its default */
        if (!pd_py_value(o, (pd_scalar *)at)) return wrong_type(def, p, o, "a number");
        return true;
    case PD_T_INT_OPT:
        if (o == Py_None) {
            *(int64_t *)at = PD_NONE_INT;
            return true;
        } /* fall through */
    case PD_T_INT: return pd_py_int(o, def->name, p->name, (int64_t *)at);
    case PD_T_INT_N: {
        pd_ints v;
        if (!pd_py_ints(o, def->name, p->name, &v)) return false;
        if (v.n != 1 && v.n != p->n) {
            PyErr_Format(pd_py.E_VALUE, "%s: %s has %lld entries (expected %d)", def->name, p->name, (long long)v.n,
                         p->n);
            return false;
        }
        for (int i = 0; i < p->n; i++) ((int64_t *)at)[i] = v.v[v.n == 1 ? 0 : i];
        return true;
    }
    case PD_T_INTS_OPT:
        if (o == Py_None) {
            ((pd_ints *)at)->n = -1;
            return true;
        } /* fall through */
    case PD_T_INTS: return pd_py_ints(o, def->name, p->name, (pd_ints *)at);
    case PD_T_FLOAT: return pd_py_double(o, def->name, p->name, (double *)at);
    case PD_T_BOOL: {
        int b = PyObject_IsTrue(o);
        *(int64_t *)at = b;
        return b >= 0;
    }
    case PD_T_DTYPE: return pd_py_dtype(o, def->name, p->name, (int64_t *)at);
    case PD_T_ENUM: return set_enum(def, p, o, (int64_t *)at);
    case PD_T_FORMAT:
        if (o == Py_None || o == pd_py.preserve_format) return true;
        *(int64_t *)at = o == pd_py.channels_last      ? PD_FORMAT_CHANNELS_LAST
                         : o == pd_py.channels_last_3d ? PD_FORMAT_CHANNELS_LAST_3D
                                                       : PD_FORMAT_CONTIGUOUS;
        return pd_py_format(o, def->name);
    case PD_T_RNG: break;
    }
    return true;
}

bool pd_py_set_attr(const pd_def *def, const pd_param *p, PyObject *o, void *attrs) {
    parsed a = {.in = a.few};
    memcpy(a.attrs, attrs, def->op->attrs);
    if (p->attr < 0 || !set(def, p, o, &a)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "%s: %s cannot be set (expected an attribute)", def->name, p->name);
        return false;
    }
    memcpy(attrs, a.attrs, def->op->attrs);
    return true;
}

static PyObject *ints(int64_t n, const int64_t *v) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);
    for (int64_t i = 0; tuple && i < n; i++) {
        PyObject *o = PyLong_FromLongLong(v[i]);
        if (o) PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, o);
        else Py_CLEAR(tuple);
    }
    return tuple;
}

static PyObject *number(const pd_scalar *s) {
    switch (s->cat) {
    case PD_CAT_BOOL: return PyBool_FromLong(s->i != 0);
    case PD_CAT_INT: return PyLong_FromLongLong(s->i);
    case PD_CAT_FLOAT: return PyFloat_FromDouble(s->d);
    case PD_CAT_COMPLEX: return PyComplex_FromDoubles(s->d, s->im);
    default: Py_RETURN_NONE;
    }
}

static PyObject *choice(const char *choices, int64_t k) {
    for (; k > 0; k--) choices = strchr(choices, '|') + 1;
    return PyUnicode_FromStringAndSize(choices, (Py_ssize_t)strcspn(choices, "|"));
}

PyObject *pd_py_attr(const pd_param *p, const void *attrs) {
    const void *at = (const char *)attrs + p->attr;
    const int64_t word = *(const int64_t *)at;
    switch (p->type) {
    case PD_T_OPERAND: case PD_T_SCALAR: return number(at);
    case PD_T_INT_OPT:
        if (word == PD_NONE_INT) Py_RETURN_NONE; /* fall through */
    case PD_T_INT: return PyLong_FromLongLong(word);
    case PD_T_INT_N: return ints(p->n, at);
    case PD_T_INTS_OPT:
        if (word < 0) Py_RETURN_NONE; /* fall through */
    case PD_T_INTS: return ints(word, ((const pd_ints *)at)->v);
    case PD_T_FLOAT: return PyFloat_FromDouble(*(const double *)at);
    case PD_T_BOOL: return PyBool_FromLong(word != 0);
    case PD_T_DTYPE: return Py_NewRef(word == PD_NO_DTYPE ? Py_None : pd_py.dtypes[word]);
    case PD_T_ENUM: return choice(p->choices, word);
    default: Py_RETURN_NONE;
    }
}

/* Other names of parameters that PyTorch accepts: NumPy's, and some of its own. */
static const struct { const char *name, *of; } also_named[] = {
    {"axis", "dim"}, {"keepdims", "keepdim"}, {"x", "input"}, {"a", "input"}, {"x1", "input"},
    {"self", "input"}, {"x2", "other"}, {"size", "shape"},
};

static int find_param(const op_function *f, PyObject *name) {
    for (int i = 0; i < f->def->nparams; i++)
        if (f->names[i] == name) return i;
    for (int i = 0; i < f->def->nparams; i++)
        if (f->names[i] && !PyUnicode_Compare(f->names[i], name)) return i;
    for (size_t k = 0; k < sizeof also_named / sizeof *also_named; k++)
        if (!PyUnicode_CompareWithASCIIString(name, also_named[k].name))
            for (int i = 0; i < f->def->nparams; i++)
                if (!strcmp(f->def->params[i].name, also_named[k].of)) return i;
    return -1;
}

static bool parse(const op_function *f, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, parsed *a) {
    const pd_def *def = f->def;
    uint32_t given = 0;
    int p = 0;
    a->in = a->few;
    a->seq = a->out = NULL;
    a->list = NULL;
    a->nlist = 0;
    for (int i = 0; i < def->ninputs; i++) a->few[i] = NULL;
    memcpy(a->attrs, def->defaults, def->op->attrs);
    for (Py_ssize_t i = 0; i < n; i++, p++) {
        if (p >= def->nparams || def->params[p].type == PD_T_RNG) {
            PyErr_Format(PyExc_TypeError, "%s: got %zd positional arguments (expected at most %d)", def->name, n, p);
            return false;
        }
        const pd_param *param = &def->params[p];
        given |= 1u << p;
        if (param->type == PD_T_INTS && !PyTuple_Check(args[i]) && !PyList_Check(args[i])) { /* x.view(2, 3) */
            pd_ints *v = (pd_ints *)((char *)a->attrs + param->attr);
            for (v->n = 0; i < n && v->n < PD_MAX_DIMS; i++)
                if (!pd_py_int(args[i], def->name, param->name, &v->v[v->n++])) return false;
            i--;
            continue;
        }
        if (!set(def, param, args[i], a)) return false;
    }
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k), *value = args[n + k];
        int q = find_param(f, name);
        if (q < 0 && PyUnicode_CompareWithASCIIString(name, "out") == 0 && f->mode == PLAIN) {
            a->out = value == Py_None ? NULL : value;
            continue;
        }
        if (q < 0 || (given >> q & 1)) {
            PyErr_Format(
                PyExc_TypeError,
                q < 0 ? "%s: got an unexpected keyword argument %R" : "%s: got multiple values for argument %R",
                def->name, name);
            return false;
        }
        given |= 1u << q;
        if (!set(def, &def->params[q], value, a)) return false;
    }
    for (int q = 0; q < def->nparams; q++) {
        const pd_param *param = &def->params[q];
        if (param->type == PD_T_RNG) {
            bool drawn = !a->in[0] || a->in[0]->storage->device != &pd_device_meta; /* there is nothing to fill */
            if (drawn) *(pd_rng_key *)((char *)a->attrs + param->attr) = pd_rng_next();
        } else if (!param->optional && !(given >> q & 1)) {
            PyErr_Format(PyExc_TypeError, "%s: argument '%s' is missing", def->name, param->name);
            return false;
        }
    }
    a->nin = def->ninputs;
    return true;
}

/* Puts the tensors of a list into the place of the list's one slot. */
static bool put_list(const pd_def *def, parsed *a) {
    int rest = def->ninputs - 1 - def->list;
    pd_tensor **all;
    pd_status status = pd_malloc(sizeof *all * (size_t)(a->nlist + def->ninputs), def->name, &all);
    if (status) {
        pd_py_raise(status);
        return false;
    }
    memcpy(all, a->few, sizeof *all * (size_t)def->list);
    memcpy(all + def->list, a->list, sizeof *all * (size_t)a->nlist);
    memcpy(all + def->list + a->nlist, a->few + def->list + 1, sizeof *all * (size_t)rest);
    for (Py_ssize_t i = 0; i < a->nlist; i++)
        if (!a->list[i]) {
            const pd_param *p = def->params;
            while (p->input != def->list) p++;
            if (p->type == PD_T_TENSORS_OPT) continue;
            PyErr_Format(PyExc_TypeError, "%s: entry %zd of %s is None (expected Tensor)", def->name, i, p->name);
            pd_free(all);
            return false;
        }
    a->in = all;
    a->nin = (int)(def->ninputs - 1 + a->nlist);
    return true;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static PyObject *wrap_results(const op_function *f, pd_tensor **out, int n) {
    int visible = f->def->op->visible ? f->def->op->visible : n;
    PyObject *tuple = NULL;
    if (visible == 1) {
        for (int i = 1; i < n; i++) pd_tensor_release(out[i]);
        return pd_py_wrap_new(out[0]);
    }
    tuple = f->result ? PyStructSequence_New((PyTypeObject *)f->result) : PyTuple_New(visible);
    for (int i = 0; i < n; i++) {
        PyObject *o = tuple && i < visible ? pd_py_wrap_new(out[i]) : NULL;
        if (!tuple || i >= visible) pd_tensor_release(out[i]);
        else if (!o) Py_CLEAR(tuple);
        else if (f->result) PyStructSequence_SetItem(tuple, i, o);
        else PyTuple_SET_ITEM(tuple, i, o);
    }
    return tuple;
}

/* out= for an op that cannot write into it: copies the results there. A tuple for several results. */
static PyObject *run_out(const op_function *f, parsed *a) {
    pd_tensor *out[PD_MAX_OUTS];
    int n;
    PD_PY_TRY(pd_apply(f->def, a->in, a->nin, a->attrs, out, &n));
    int visible = f->def->op->visible ? f->def->op->visible : n;
    bool tuple = PyTuple_Check(a->out) || PyList_Check(a->out), ok = (tuple ? PySequence_Size(a->out) : 1) == visible;
    if (!ok)
        PyErr_Format(PyExc_TypeError, "%s: out is %.100s (expected a tuple of %d tensors)", f->def->name,
                     Py_TYPE(a->out)->tp_name, visible);
    for (int i = 0; i < n; i++) {
        PyObject *to = i < visible && ok ? tuple ? PySequence_GetItem(a->out, i) : Py_NewRef(a->out) : NULL;
        ok = ok && (i >= visible || (to && pd_py_write_out(f->def->name, to, out[i])));
        Py_XDECREF(to);
        pd_tensor_release(out[i]);
    }
    return ok ? Py_NewRef(a->out) : NULL;
}

/* add(1, 2): the first number becomes a tensor without dimensions. *made [new], or NULL: there was nothing to do. */
static pd_status first_number(const pd_def *def, parsed *a, pd_tensor **made) {
    static const pd_dtype of[] = {[PD_CAT_BOOL] = PD_BOOL, [PD_CAT_INT] = PD_I64};
    const pd_param *first = NULL;
    *made = NULL;
    for (int i = 0; i < a->nin; i++)
        if (a->in[i]) return PD_OK;
    for (int i = 0; i < def->nparams && !first; i++)
        if (def->params[i].type == PD_T_OPERAND) first = &def->params[i];
    const pd_scalar *s = first ? (const pd_scalar *)((const char *)a->attrs + first->attr) : NULL;
    if (!s || s->cat < 0) return PD_OK;
    pd_dtype dtype = s->cat == PD_CAT_FLOAT     ? pd_default_dtype
                     : s->cat == PD_CAT_COMPLEX ? (pd_default_dtype == PD_F64 ? PD_C128 : PD_C64)
                                                : of[s->cat];
    PD_TRY(pd_scalar_tensor(s, dtype, made));
    a->in[first->input] = *made;
    return PD_OK;
}

static PyObject *run(const op_function *f, parsed *a) {
    const pd_def *def = f->def;
    pd_tensor *out[PD_MAX_OUTS], *made;
    int n;
    if (f->mode == INPLACE) {
        if (!a->in[0])
            return PyErr_Format(PyExc_TypeError, "%s_: the first argument is a number (expected Tensor)", def->name);
        PD_PY_TRY(pd_apply_into(def, a->in, a->nin, a->attrs, a->in[0]));
        return pd_py_wrap(a->in[0]);
    }
    if (a->out && !(def->op->flags & PD_INPLACE)) return run_out(f, a);
    if (a->out) {
        pd_tensor *into = pd_py_expect_tensor(a->out, def->name, "out");
        if (!into) return NULL;
        PD_PY_TRY(pd_apply_into(def, a->in, a->nin, a->attrs, into));
        return Py_NewRef(a->out);
    }
    PD_PY_TRY(first_number(def, a, &made));
    pd_status status = pd_apply(def, a->in, a->nin, a->attrs, out, &n);
    pd_tensor_release(made);
    return status ? pd_py_raise(status) : wrap_results(f, out, n);
}

/* Whether the second argument, or `other`, is a tensor. */
static bool is_of_two(PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    if (n > 1) return pd_py_is_tensor(args[1]);
    for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); k++)
        if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, k), "other"))
            return pd_py_is_tensor(args[n + k]);
    return false;
}

/* PyTorch's older order of arguments, add(x, alpha, other) and addcmul(x, value, tensor1, tensor2), which old
   optimizers use: moves the number behind the tensors. */
enum { OLD_ARGS = 4 };
static PyObject *const *in_new_order(const pd_def *def, PyObject *const *args, Py_ssize_t n, PyObject **room) {
    if (n < 3 || n > OLD_ARGS || n != def->nparams || def->params[n - 1].type != PD_T_SCALAR) return args;
    if (pd_py_is_tensor(args[1]) || !pd_py_is_tensor(args[n - 1])) return args;
    room[0] = args[0];
    for (Py_ssize_t i = 2; i < n; i++) room[i - 1] = args[i];
    room[n - 1] = args[1];
    return room;
}

static PyObject *round_at(const op_function *f, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    PyObject *module = PyImport_ImportModule("pydist._functions.elementwise"),
             *g = module ? PyObject_GetAttrString(module, f->mode == INPLACE ? "_round_at_" : "_round_at") : NULL,
             *result = g ? PyObject_Vectorcall(g, args, (size_t)n, kwnames) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(g);
    return result;
}

/* Handles calls that look like an op's in PyTorch but are others: x.view(dtype), where(condition), round(x,
   decimals=2). NULL without an exception: it is none of them. */
static PyObject *other_form(const op_function *f, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    const pd_def *def = f->def;
    Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    if (def == PD_DEF(round)) {
        for (Py_ssize_t i = 0; i < named; i++)
            if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "decimals"))
                return round_at(f, args, n, kwnames);
        return NULL;
    }
    if (def == PD_DEF(view) && n + named == 2 && Py_TYPE(args[1]) == (PyTypeObject *)pd_py.dtype &&
        pd_py_is_tensor(args[0])) {
        pd_cast_attrs to = {PD_NO_DTYPE};
        pd_tensor *out;
        if (!pd_py_dtype(args[1], "view", "dtype", &to.dtype)) return NULL;
        PD_PY_TRY(pd_call1(PD_OP_view_dtype, pd_py_tensor(args[0]), &to, &out));
        return pd_py_wrap_new(out);
    }
    if (def != PD_DEF(where) || n + named != 1 || !pd_py_is_tensor(args[0])) return NULL;
    PyObject *nonzero = PyObject_GetAttrString(args[0], "nonzero"), *none = PyTuple_New(0),
             *rows = Py_BuildValue("{s:O}", "as_tuple", Py_True),
             *result = nonzero && none && rows ? PyObject_Call(nonzero, none, rows) : NULL;
    Py_XDECREF(nonzero);
    Py_XDECREF(none);
    Py_XDECREF(rows);
    return result;
}

/* [borrowed] the first argument, also one within a list, of a foreign type that handles calls (__torch_function__). */
static PyObject *find_foreign(PyObject *const *args, Py_ssize_t n, bool deep) {
    for (Py_ssize_t i = 0; i < n; i++) {
        bool listed = deep && (PyList_Check(args[i]) || PyTuple_Check(args[i]));
        PyObject *found =
            listed ? find_foreign(PySequence_Fast_ITEMS(args[i]), PySequence_Fast_GET_SIZE(args[i]), false)
            : !pd_py_is_tensor(args[i]) && PyObject_HasAttrString((PyObject *)Py_TYPE(args[i]), "__torch_function__")
                ? args[i]
                : NULL;
        if (found) return found;
    }
    return NULL;
}

/* After a TypeError: PyTorch's protocol, by which the argument's own type handles the call. NULL with the TypeError if
   no argument does. */
static PyObject *foreign_call(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    PyObject *type, *error, *trace, *foreign, *result = NULL;
    PyErr_Fetch(&type, &error, &trace);
    if (!(foreign = find_foreign(args, n + named, true))) {
        PyErr_Restore(type, error, trace);
        return NULL;
    }
    Py_INCREF(foreign);
    PyObject *handler = PyObject_GetAttrString(foreign, "__torch_function__"),
             *types = PyTuple_Pack(1, (PyObject *)Py_TYPE(foreign)), *all = PyTuple_New(n), *kwargs = PyDict_New();
    bool ok = handler && types && all && kwargs;
    for (Py_ssize_t i = 0; ok && i < n; i++) PyTuple_SET_ITEM(all, i, Py_NewRef(args[i]));
    for (Py_ssize_t k = 0; ok && k < named; k++)
        ok = !PyDict_SetItem(kwargs, PyTuple_GET_ITEM(kwnames, k), args[n + k]);
    if (ok) result = PyObject_CallFunctionObjArgs(handler, self, types, all, kwargs, NULL);
    Py_XDECREF(handler);
    Py_XDECREF(types);
    Py_XDECREF(all);
    Py_XDECREF(kwargs);
    Py_DECREF(foreign);
    if (result == Py_NotImplemented) {
        Py_DECREF(result);
        PyErr_Restore(type, error, trace);
        return NULL;
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

static PyObject *op_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    const op_function *f = (op_function *)self;
    parsed a;
    PyObject *result = NULL;
    if (f->elementwise && is_of_two(args, PyVectorcall_NARGS(nargsf), kwnames))
        return op_vectorcall(f->elementwise, args, nargsf, kwnames);
    pd_py_drain();
    if (f->has_other_form) {
        result = other_form(f, args, PyVectorcall_NARGS(nargsf), kwnames);
        if (result || PyErr_Occurred()) return result;
    }
    PyObject *room[OLD_ARGS];
    if (!kwnames) args = in_new_order(f->def, args, PyVectorcall_NARGS(nargsf), room);
    if (parse(f, args, PyVectorcall_NARGS(nargsf), kwnames, &a) && (f->def->list < 0 || put_list(f->def, &a)))
        result = run(f, &a);
    if (f->def->list >= 0) {
        if (a.in != a.few) pd_free(a.in);
        pd_free(a.list);
        Py_XDECREF(a.seq);
    }
    if (__builtin_expect(!result, 0) && PyErr_ExceptionMatches(PyExc_TypeError))
        return foreign_call(self, args, PyVectorcall_NARGS(nargsf), kwnames);
    return result;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

/* Reads a tensor or a number. 1: done, 0: o is neither, -1: an exception is set. */
static int operand(PyObject *o, pd_tensor **t, pd_scalar *s) {
    s->cat = -1;
    *t = NULL;
    if (pd_py_is_tensor(o)) {
        *t = pd_py_tensor(o);
        return 1;
    }
    if (pd_py_number(o, s)) return 1;
    return PyErr_Occurred() ? -1 : 0;
}

typedef struct { pd_scalar x, y, alpha; } binary_attrs;

static int operands(PyObject *a, PyObject *b, pd_tensor **in, binary_attrs *attrs) {
    int left = operand(a, &in[0], &attrs->x), right = left == 1 ? operand(b, &in[1], &attrs->y) : left;
    attrs->alpha = pd_number(1);
    pd_py_drain();
    return right;
}

PyObject *pd_py_foreign(pd_op_id op, PyObject *a, PyObject *b) {
    if (!pd_py.foreign_operands) Py_RETURN_NOTIMPLEMENTED;
    return PyObject_CallFunction(pd_py.foreign_operands, "sOO", pd_defs[op].name, a, b);
}

PyObject *pd_py_binary(pd_op_id op, PyObject *a, PyObject *b) {
    pd_tensor *in[2], *out;
    binary_attrs attrs;
    int ok = operands(a, b, in, &attrs);
    if (ok < 1) return ok ? NULL : pd_py_foreign(op, a, b);
    PD_PY_TRY(pd_apply(&pd_defs[op], in, 2, &attrs, &out, NULL));
    return pd_py_wrap_new(out);
}

PyObject *pd_py_inplace(pd_op_id op, PyObject *a, PyObject *b) {
    pd_tensor *in[2];
    binary_attrs attrs;
    int ok = operands(a, b, in, &attrs);
    if (ok < 1) return ok ? NULL : Py_NewRef(Py_NotImplemented);
    PD_PY_TRY(pd_apply_into(&pd_defs[op], in, 2, &attrs, in[0]));
    return Py_NewRef(a);
}

PyObject *pd_py_unary(pd_op_id op, PyObject *a) {
    pd_tensor *out, *in = pd_py_tensor(a);
    PD_PY_TRY(pd_apply(&pd_defs[op], &in, 1, NULL, &out, NULL));
    return pd_py_wrap_new(out);
}

/* ---- the type ---------------------------------------------------------------------------------------------------- */

static PyObject *op_get(PyObject *self, PyObject *instance, PyObject *type) {
    (void)type;
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

static PyObject *op_name(PyObject *self, void *unused) {
    const op_function *f = (op_function *)self;
    (void)unused;
    return PyUnicode_FromFormat("%s%s", f->def->name, f->mode == INPLACE ? "_" : "");
}

static PyObject *op_signature(PyObject *self, void *unused) {
    const op_function *f = (op_function *)self;
    char text[512] = "(", value[40];
    (void)unused;
    for (int i = 0; i < f->def->nparams; i++) {
        const pd_param *p = &f->def->params[i];
        if (p->type == PD_T_RNG) continue;
        pd_param_default(f->def, p, value, sizeof value);
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s%s%s", i ? ", " : "", p->name, *value ? "=" : "", value);
    }
    return PyUnicode_FromFormat("%s)", text);
}

static PyObject *op_doc(PyObject *self, void *unused) {
    const op_function *f = (op_function *)self;
    PyObject *name = op_name(self, unused), *sig = op_signature(self, unused);
    PyObject *doc = name && sig ? PyUnicode_FromFormat("%U%U\n\n%s%s", name, sig, f->def->op->doc,
                                                       f->mode == INPLACE ? "\n\nIn place." : "")
                                : NULL;
    Py_XDECREF(name);
    Py_XDECREF(sig);
    return doc;
}

static PyObject *op_repr(PyObject *self) {
    PyObject *name = op_name(self, NULL), *repr = name ? PyUnicode_FromFormat("<op %U>", name) : NULL;
    Py_XDECREF(name);
    return repr;
}

static PyObject *op_reduce(PyObject *self, PyObject *unused) { /* pickled by name */
    (void)unused;
    return op_name(self, NULL);
}

static PyObject *op_module(PyObject *self, void *unused) {
    (void)self, (void)unused;
    return PyUnicode_FromString("pydist");
}

static void op_dealloc(PyObject *self) {
    op_function *f = (op_function *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < PD_MAX_PARAMS; i++) Py_XDECREF(f->names[i]);
    Py_XDECREF(f->result);
    Py_XDECREF(f->elementwise);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyGetSetDef op_getset[] = {
    {"__name__", op_name, NULL, NULL, NULL},     {"__qualname__", op_name, NULL, NULL, NULL},
    {"__doc__", op_doc, NULL, NULL, NULL},       {"__text_signature__", op_signature, NULL, NULL, NULL},
    {"__module__", op_module, NULL, NULL, NULL}, {0}};
static PyMethodDef op_methods[] = {{"__reduce__", op_reduce, METH_NOARGS, NULL}, {0}};
static PyMemberDef op_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(op_function, vectorcall), READONLY, NULL},
    {"result", T_OBJECT, offsetof(op_function, result), READONLY, "The type of several results, or None."},
    {0}};
static PyType_Slot op_slots[] = {
    {Py_tp_dealloc, op_dealloc}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, op_get}, {Py_tp_getset, op_getset},
    {Py_tp_methods, op_methods}, {Py_tp_members, op_members},     {Py_tp_repr, op_repr},     {0}};
static PyType_Spec op_spec = {
    .name = "pydist._C.Op",
    .basicsize = sizeof(op_function),
    .slots = op_slots,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* [new] a named tuple type pydist.return_types.<op>, from names such as "values indices". */
static PyObject *named_tuple(const pd_def *def) {
    char *names = strdup(def->op->names), name[64]; /* both must live as long as the type */
    PyStructSequence_Field *fields = calloc(PD_MAX_OUTS + 1, sizeof *fields);
    snprintf(name, sizeof name, "pydist.return_types.%s", def->name);
    char *full = strdup(name);
    if (!names || !fields || !full) return PyErr_NoMemory();
    int n = 0;
    for (char *save = NULL, *word = strtok_r(names, " ", &save); word; word = strtok_r(NULL, " ", &save))
        fields[n++].name = word;
    PyStructSequence_Desc desc = {.name = full, .doc = def->op->doc, .fields = fields, .n_in_sequence = n};
    return (PyObject *)PyStructSequence_NewType(&desc);
}

static PyObject *op_new(const pd_def *def, int mode) {
    PyTypeObject *type = (PyTypeObject *)pd_py.Op;
    op_function *f = (op_function *)type->tp_alloc(type, 0);
    if (!f) return NULL;
    f->vectorcall = op_vectorcall;
    f->def = def;
    f->mode = mode;
    for (int i = 0; i < def->nparams; i++)
        if (def->params[i].type != PD_T_RNG && !(f->names[i] = PyUnicode_InternFromString(def->params[i].name)))
            goto fail;
    if (def->op->names && mode == PLAIN && !(f->result = named_tuple(def))) goto fail;
    f->has_other_form = def == PD_DEF(view) || def == PD_DEF(where) || def == PD_DEF(round);
    for (int i = 0; i < PD_OP_COUNT && def->op->elementwise; i++)
        if (pd_defs[i].op == def->op->elementwise && !(f->elementwise = op_new(&pd_defs[i], mode))) goto fail;
    return (PyObject *)f;
fail:
    Py_DECREF(f);
    return NULL;
}

/* Puts the op into the module and, if it is a method, on Tensor. */
static int publish(PyObject *module, const pd_def *def, int mode) {
    char name[48];
    snprintf(name, sizeof name, "%s%s", def->name, mode == INPLACE ? "_" : "");
    PyObject *f = op_new(def, mode);
    int bad = f ? 0 : -1;
    uint32_t flags = def->op->flags;
    if (!bad && (flags & (PD_FUNC | PD_NN))) bad = PyModule_AddObjectRef(module, name, f);
    if (!bad && (flags & PD_METHOD)) bad = PyObject_SetAttrString(pd_py.Tensor, name, f);
    Py_XDECREF(f);
    return bad;
}

static PyObject *op_table(PyObject *module, PyObject *unused) {
    /* [(name, signature, doc, flags, has gradient, names of several results)]: for tests, stubs and docs, which loop
       over the table. */
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < PD_OP_COUNT; i++) {
        const pd_def *d = &pd_defs[i];
        PyObject *row =
            Py_BuildValue("(sssIis)", d->name, d->op->sig, d->op->doc, d->op->flags,
                          d->op->vjp || d->op->vjp_fast || d->op->compose, d->op->names ? d->op->names : "");
        if (!row || PyList_Append(list, row)) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* For rpc: (bytes, tensors) of a call that another process can run without Python; None: of any other call. */
static PyObject *op_pack(PyObject *module, PyObject *args) {
    PyObject *self, *positional, *kwargs, *none = Py_None;
    parsed a;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO!O:_op_pack", &self, &PyTuple_Type, &positional, &kwargs)) return NULL;
    const op_function *f = (op_function *)self;
    bool is_op = Py_TYPE(self) == (PyTypeObject *)pd_py.Op && kwargs == Py_None && f->mode == PLAIN;
    if (!is_op || f->has_other_form) return Py_NewRef(none);
    PyObject *const *items = ((PyTupleObject *)positional)->ob_item, *room[OLD_ARGS];
    Py_ssize_t n = PyTuple_GET_SIZE(positional);
    if (f->elementwise && is_of_two(items, n, NULL)) f = (const op_function *)f->elementwise;
    if (!pd_opcall_allowed(f->def)) return Py_NewRef(none);
    items = in_new_order(f->def, items, n, room);
    if (!parse(f, items, n, NULL, &a)) { /* the callee says what is wrong */
        PyErr_Clear();
        return Py_NewRef(none);
    }
    int there = 0;
    for (int i = 0; i < a.nin; i++) there += a.in[i] != NULL;
    if (!there) return Py_NewRef(none);
    for (int i = 0; i < a.nin; i++)
        if (a.in[i] && (a.in[i]->requires_grad || a.in[i]->storage->device != &pd_device_cpu ||
                        !pd_tensor_is_contiguous(a.in[i])))
            return Py_NewRef(none);
    return pd_opcall_pack(f->def, a.in, a.nin, a.attrs);
}

static PyObject *write_out(PyObject *module, PyObject *args) {
    const char *op;
    PyObject *out, *result;
    (void)module;
    if (!PyArg_ParseTuple(args, "sOO!:_write_out", &op, &out, pd_py.Tensor, &result) ||
        !pd_py_write_out(op, out, pd_py_tensor(result)))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *set_foreign_operands(PyObject *module, PyObject *function) {
    (void)module;
    Py_XSETREF(pd_py.foreign_operands, function == Py_None ? NULL : Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_set_foreign_operands", set_foreign_operands, METH_O,
     "_set_foreign_operands(function)\n\nfunction(op, a, b) computes an operator of which one operand is neither "
     "tensor nor number, or returns NotImplemented. None: Python raises TypeError, as in PyTorch."},
    {"_op_pack", op_pack, METH_VARARGS,
     "_op_pack(function, args, kwargs) -> (bytes, tensors) or None: a call that another process runs without Python."},
    {"_write_out", write_out, METH_VARARGS,
     "_write_out(op, out, result): copies a function's result into the tensor given as out=."},
    {"op_table", op_table, METH_NOARGS,
     "op_table()\n\nA list with a tuple for every op: (name, signature, doc, flags, differentiable, names of the "
     "results where there are several). _OP_FLAGS names the bits of flags."},
    {0}};

int pd_py_add_ops(PyObject *module) {
    if (!pd_py_type(NULL, &op_spec, NULL, &pd_py.Op)) return -1;
    for (int i = 0; i < PD_OP_COUNT; i++) {
        const pd_def *def = &pd_defs[i];
        if ((def->op->flags & (PD_FUNC | PD_METHOD | PD_NN)) &&
            (def->op->flags & PD_INPLACE ? publish(module, def, INPLACE) : 0))
            return -1;
        bool only_inplace = (def->op->flags & PD_INPLACE) && !(def->op->flags & (PD_FUNC | PD_NN));
        if ((def->op->flags & (PD_FUNC | PD_METHOD | PD_NN)) && !only_inplace && publish(module, def, PLAIN)) return -1;
    }
    PyType_Modified((PyTypeObject *)pd_py.Tensor);
    PyObject *flags = Py_BuildValue("{sIsIsIsIsI}", "FUNC", PD_FUNC, "METHOD", PD_METHOD, "NN", PD_NN, "INPLACE",
                                    PD_INPLACE, "VIEW", PD_VIEW);
    int bad = flags ? PyModule_AddObjectRef(module, "_OP_FLAGS", flags) : -1; /* the bits of op_table()'s flags */
    Py_XDECREF(flags);
    return bad ? bad : PyModule_AddFunctions(module, functions);
}
