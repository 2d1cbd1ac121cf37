/* Parts of spread tensors (tensor/spread.h): what distributed.tensor needs to make its DTensors of them. */
#include "py/py.h"

#include <string.h>
#include <structmember.h>

/* The base class of descriptions. Python makes one object for equal ones, and its subclass says what they are. */
typedef struct {
    PyObject_HEAD
    pd_spread spread;
} pyspread;

#define OF(s) ((PyObject *)((char *)(s) - offsetof(pyspread, spread)))

static void unused(pd_spread *s) { pd_py_drop(OF(s)); }

static PyObject *spread_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    pyspread *self = (pyspread *)type->tp_alloc(type, 0);
    if (self) self->spread.unused = unused;
    return (PyObject *)self;
}

pd_spread *pd_py_spread(PyObject *of) {
    pd_spread *s = &((pyspread *)of)->spread;
    if (atomic_fetch_add(&s->users, 1) == 0) Py_INCREF(of); /* it lives as long as it has a user */
    return s;
}

static void put(pd_tensor *t, PyObject *of) {
    pd_spread *was = t->spread;
    t->spread = pd_py_spread(of);
    pd_spread_release(was);
}

PyObject *pd_py_respread(PyObject *part, pd_spread *to) {
    PyObject *placements = PyObject_GetAttrString(OF(to), "placements"),
             *moved = placements ? PyObject_CallMethod(part, "redistribute", "OO", Py_None, placements) : NULL;
    Py_XDECREF(placements);
    return moved;
}

static bool expect(PyObject *o, const char *op) {
    if (PyObject_TypeCheck(o, (PyTypeObject *)pd_py.Spread)) return true;
    PyErr_Format(PyExc_TypeError, "%s: of is %.100s (expected a Spread)", op, Py_TYPE(o)->tp_name);
    return false;
}

/* [new] a view with t's own geometry: recorded, if gradients flow through it. */
static pd_status same_view(pd_tensor *t, pd_tensor **out) {
    if (!pd_grad_mode || !pd_tensor_wants_grad(t)) return pd_tensor_alias(t, false, out);
    pd_shape_attrs same = {.shape = {.n = t->ndim}};
    const bool plain = pd_parts_are_plain;
    memcpy(same.shape.v, t->size, sizeof *t->size * (size_t)t->ndim);
    pd_parts_are_plain = true;
    pd_status status = pd_call1(PD_OP_view, t, &same, out);
    pd_parts_are_plain = plain;
    return status;
}

static PyObject *as_part(PyObject *module, PyObject *args) {
    PyObject *object, *of;
    pd_tensor *t, *out;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:as_part", &object, &of) || !expect(of, "as_part") ||
        !(t = pd_py_expect_tensor(object, "as_part", "local")))
        return NULL;
    PD_PY_TRY(same_view(t, &out));
    put(out, of);
    return pd_py_wrap_new(out);
}

static PyObject *local_part(PyObject *module, PyObject *object) {
    pd_tensor *t = pd_py_expect_tensor(object, "local_part", "part"), *out;
    (void)module;
    if (!t) return NULL;
    PD_PY_TRY(same_view(t, &out));
    pd_tensor_set_spread(out, NULL);
    return pd_py_wrap_new(out);
}

static PyObject *set_spread(PyObject *module, PyObject *args) {
    PyObject *object, *of;
    pd_tensor *t;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:set_spread", &object, &of) || !expect(of, "set_spread") ||
        !(t = pd_py_expect_tensor(object, "set_spread", "part")))
        return NULL;
    put(t, of);
    Py_RETURN_NONE;
}

static PyObject *spread_of(PyObject *module, PyObject *object) {
    pd_tensor *t = pd_py_expect_tensor(object, "spread_of", "part");
    (void)module;
    if (!t) return NULL;
    return t->spread ? Py_NewRef(OF(t->spread)) : Py_NewRef(Py_None);
}

static PyObject *set_part_class(PyObject *module, PyObject *cls) {
    (void)module;
    if (!PyType_Check(cls) || !PyType_IsSubtype((PyTypeObject *)cls, (PyTypeObject *)pd_py.Tensor))
        return PyErr_Format(PyExc_TypeError, "set_part_class: got %R (expected a subclass of Tensor)", cls);
    Py_XSETREF(pd_py.Part, Py_NewRef(cls));
    Py_RETURN_NONE;
}

/* What gradients of parts are parts of: where ranks have summands, each has the whole gradient. */
static PyObject *set_gradient(PyObject *self, PyObject *of) {
    pd_spread *s = &((pyspread *)self)->spread;
    if (!expect(of, "set_gradient")) return NULL;
    pd_spread *was = s->gradient;
    s->gradient = of == self ? NULL : pd_py_spread(of);
    pd_spread_release(was);
    Py_RETURN_NONE;
}

static void spread_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    pd_spread_release(((pyspread *)self)->spread.gradient);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"set_gradient", set_gradient, METH_O,
     "set_gradient(of)\n\nGradients of such parts are parts of what `of` describes."},
    {0},
};

static PyMemberDef members[] = {
    {"combined", T_BOOL, offsetof(pyspread, spread) + offsetof(pd_spread, combined), 0,
     "Whether the whole is the sum, mean, maximum, ... of the ranks' parts."},
    {0},
};

static PyMethodDef functions[] = {
    {"as_part", as_part, METH_VARARGS,
     "as_part(local, of)\n\nThe tensor as this rank's part of what the Spread `of` describes; gradients flow through."},
    {"local_part", local_part, METH_O, "local_part(part)\n\nThe part as a plain tensor; gradients flow through."},
    {"set_spread", set_spread, METH_VARARGS,
     "set_spread(part, of)\n\nThe tensor itself becomes this rank's part of what the Spread `of` describes."},
    {"spread_of", spread_of, METH_O, "spread_of(part)\n\nThe Spread of a part; None for a plain tensor."},
    {"set_part_class", set_part_class, METH_O,
     "set_part_class(cls)\n\nThe class of parts that ops return: a subclass of Tensor."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, spread_new},
    {Py_tp_dealloc, spread_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "What the parts of a spread tensor are parts of; a subclass describes it."},
    {0},
};
static PyType_Spec spec = {.name = "pydist._C.Spread", .basicsize = sizeof(pyspread), .slots = slots,
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE};

int pd_py_add_spread(PyObject *module) {
    if (!pd_py_type(module, &spec, NULL, &pd_py.Spread)) return -1;
    return PyModule_AddFunctions(module, functions);
}
