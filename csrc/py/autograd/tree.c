#include "py/autograd/tree.h"

#include "base/mem.h"

static PyObject *mark; /* in the place of a tensor */

int pd_py_add_tree(void) {
    mark = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    return mark ? 0 : -1;
}

void pd_py_leaves_free(pd_py_leaves *l) {
    for (size_t i = 0; i < l->n; i++) pd_tensor_release(l->t[i]);
    pd_free(l->t);
    *l = (pd_py_leaves){0};
}

static bool add_leaf(PyObject *o, pd_py_leaves *l) {
    pd_status status = pd_grow(&l->t, &l->cap, l->n + 1, sizeof *l->t, "replay");
    if (status) pd_py_raise(status);
    else pd_tensor_retain(l->t[l->n++] = pd_py_tensor(o));
    return !status;
}

/* Results of ops with several tensors, such as max(), are struct sequences. */
static bool is_struct(PyObject *o) { return PyObject_HasAttrString((PyObject *)Py_TYPE(o), "n_sequence_fields"); }

/* [new] a tuple of o's own type. */
static PyObject *tuple_like(PyObject *o, PyObject *items) {
    if (Py_TYPE(o) == &PyTuple_Type) return Py_NewRef(items);
    if (is_struct(o)) return PyObject_CallOneArg((PyObject *)Py_TYPE(o), items);
    PyObject *args = PyTuple_Pack(1, items), *made = args ? PyTuple_Type.tp_new(Py_TYPE(o), args, NULL) : NULL;
    Py_XDECREF(args);
    return made;
}

/* Whether o is a tuple, a named tuple or a struct sequence. */
static bool is_tuple(PyObject *o) {
    return PyTuple_Check(o) &&
           (Py_TYPE(o) == &PyTuple_Type || PyObject_HasAttrString(o, "_fields") || is_struct(o));
}

typedef PyObject *(*convert)(PyObject *item, void *ctx);

/* [new] the same container of converted items; NULL with the exception set. */
static PyObject *convert_all(PyObject *o, convert f, void *ctx) {
    if (PyDict_CheckExact(o)) {
        PyObject *made = PyDict_New(), *key, *value;
        for (Py_ssize_t at = 0; made && PyDict_Next(o, &at, &key, &value);) {
            PyObject *item = f(value, ctx);
            if (!item || PyDict_SetItem(made, key, item)) Py_CLEAR(made);
            Py_XDECREF(item);
        }
        return made;
    }
    bool list = PyList_CheckExact(o);
    Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    PyObject *made = list ? PyList_New(n) : PyTuple_New(n);
    for (Py_ssize_t i = 0; made && i < n; i++) {
        PyObject *item = f(PySequence_Fast_GET_ITEM(o, i), ctx);
        if (!item) Py_CLEAR(made);
        else if (list) PyList_SET_ITEM(made, i, item);
        else PyTuple_SET_ITEM(made, i, item);
    }
    if (list || !made) return made;
    PyObject *own = tuple_like(o, made);
    Py_DECREF(made);
    return own;
}

static bool is_container(PyObject *o) { return PyDict_CheckExact(o) || PyList_CheckExact(o) || is_tuple(o); }

static PyObject *split(PyObject *o, void *leaves) {
    if (pd_py_is_tensor(o)) return add_leaf(o, leaves) ? Py_NewRef(mark) : NULL;
    return is_container(o) ? convert_all(o, split, leaves) : Py_NewRef(o);
}

PyObject *pd_py_tree_split(PyObject *o, pd_py_leaves *l) { return split(o, l); }

typedef struct { pd_tensor *const *t; size_t *at; } joined;

static PyObject *join(PyObject *shape, void *ctx) {
    const joined *j = ctx;
    if (shape == mark) return pd_py_wrap(j->t[(*j->at)++]);
    return is_container(shape) ? convert_all(shape, join, ctx) : Py_NewRef(shape);
}

PyObject *pd_py_tree_join(PyObject *shape, pd_tensor *const *t, size_t *at) {
    joined j = {t, at};
    return join(shape, &j);
}

/* Constants of simple types are equal by value, all others by identity. */
static int same_constant(PyObject *a, PyObject *b) {
    if (a == b) return 1;
    if (Py_TYPE(a) != Py_TYPE(b)) return 0;
    bool simple = PyLong_CheckExact(a) || PyFloat_CheckExact(a) || PyUnicode_CheckExact(a) || PyBytes_CheckExact(a) ||
                  PyComplex_CheckExact(a) || PyMethod_Check(a) || Py_TYPE(a) == &PyMethodDescr_Type ||
                  Py_TYPE(a) == (PyTypeObject *)pd_py.device || Py_TYPE(a) == (PyTypeObject *)pd_py.Size;
    return simple ? PyObject_RichCompareBool(a, b, Py_EQ) : 0;
}

static int match_dict(PyObject *shape, PyObject *o, pd_py_leaves *l) {
    PyObject *key, *value, *other, *want;
    Py_ssize_t at = 0, to = 0;
    int same = PyDict_GET_SIZE(shape) == PyDict_GET_SIZE(o);
    while (same > 0 && PyDict_Next(shape, &at, &key, &want)) { /* in the same order: results are made in it */
        if (!PyDict_Next(o, &to, &other, &value)) return 0;
        if (key != other) same = PyObject_RichCompareBool(key, other, Py_EQ);
        if (same > 0) same = pd_py_tree_match(want, value, l);
    }
    return same;
}

int pd_py_tree_match(PyObject *shape, PyObject *o, pd_py_leaves *l) {
    if (shape == mark) return pd_py_is_tensor(o) ? add_leaf(o, l) ? 1 : -1 : o == mark;
    if (!is_container(shape)) return same_constant(shape, o);
    if (Py_TYPE(shape) != Py_TYPE(o)) return 0;
    if (PyDict_CheckExact(shape)) return match_dict(shape, o, l);
    Py_ssize_t n = PySequence_Fast_GET_SIZE(shape);
    int same = PySequence_Fast_GET_SIZE(o) == n;
    for (Py_ssize_t i = 0; i < n && same > 0; i++)
        same = pd_py_tree_match(PySequence_Fast_GET_ITEM(shape, i), PySequence_Fast_GET_ITEM(o, i), l);
    return same;
}
