/* The Tensor type: the life of the wrapper. Attributes, methods and operators have files of their own; ops come from
   the table (ops.c).

   Who owns whom: normally the wrapper holds a reference to its pd_tensor. If the last Python reference goes while C
   still uses the tensor, and the wrapper has something of the user's (attributes, a subclass, weak references),
   ownership flips: the tensor keeps the wrapper until C lets go, so identity and attributes survive. Weak references
   and gc.get_objects() may find such a wrapper. So when C lets go, the wrapper gets the reference to the tensor back,
   and every wrapper has a tensor at all times. */
#include "py/py.h"

#include <structmember.h>

#include "base/mem.h"

/* ---- wrapper and tensor ------------------------------------------------------------------------------------------ */

static PyObject *new_wrapper(PyTypeObject *type, pd_tensor *t) {
    pd_tensor_retain(t); /* before the allocation, which may run the garbage collector and code that drops or wraps t */
    pd_pytensor *self = (pd_pytensor *)type->tp_alloc(type, 0);
    if (!self) {
        pd_tensor_release(t);
        return NULL;
    }
    self->t = t;
    if (!t->wrapper) {
        t->wrapper = self;
        return (PyObject *)self;
    }
    PyObject *other = pd_py_wrap(t);
    Py_DECREF(self);
    return other;
}

PyObject *pd_py_wrap(pd_tensor *t) {
    if (!t) Py_RETURN_NONE;
    if (!t->wrapper) return new_wrapper((PyTypeObject *)(t->spread && pd_py.Part ? pd_py.Part : pd_py.Tensor), t);
    PyObject *self = t->wrapper;
    if (!t->wrapper_owned) return Py_NewRef(self);
    pd_tensor_retain(t); /* the caller gets the tensor's reference to the wrapper */
    t->wrapper_owned = false;
    return self;
}

PyObject *pd_py_wrap_new(pd_tensor *t) {
    PyObject *o = pd_py_wrap(t);
    pd_tensor_release(t);
    return o;
}

static bool worth_keeping(pd_pytensor *self) {
    return self->weakrefs || (self->dict && PyDict_GET_SIZE(self->dict)) ||
           Py_TYPE(self) != (PyTypeObject *)pd_py.Tensor;
}

static bool flip(pd_pytensor *self) {
    pd_tensor *t = self->t;
    if (t->refs < 2 || !worth_keeping(self) || t->wrapper != self) return false;
    Py_SET_REFCNT((PyObject *)self, 1); /* the reference that the tensor holds */
    t->wrapper_owned = true;
    pd_tensor_release(t);
    return true;
}

static void tensor_dealloc(PyObject *o) {
    pd_pytensor *self = (pd_pytensor *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (flip(self)) return; /* its __del__ runs later */
    if (type->tp_finalize && (PyObject_CallFinalizerFromDealloc(o) < 0 || flip(self))) return;
    PyObject_GC_UnTrack(o);
    if (self->weakrefs) PyObject_ClearWeakRefs(o);
    Py_CLEAR(self->dict);
    if (self->t->wrapper == self) self->t->wrapper = NULL;
    pd_tensor_release(self->t);
    type->tp_free(o);
    Py_DECREF(type);
}

static int tensor_traverse(PyObject *o, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(o));
    return pd_py_visit_wrapper((pd_pytensor *)o, visit, arg);
}

static int tensor_clear(PyObject *o) {
    pd_pytensor *self = (pd_pytensor *)o;
    Py_CLEAR(self->dict);
    if (!self->t->wrapper_owned && self->t->refs == 1) pd_tensor_forget(self->t);
    return 0;
}

pd_tensor *pd_py_expect_tensor(PyObject *o, const char *op, const char *arg) {
    if (pd_py_is_tensor(o)) return pd_py_tensor(o);
    PyErr_Format(PyExc_TypeError, "%s: %s is %.100s (expected Tensor)", op, arg, Py_TYPE(o)->tp_name);
    return NULL;
}

/* Subclasses get our dealloc, too, since CPython's own would not let the wrapper flip. Ours does not handle
   __slots__. */
static PyObject *meta_new(PyTypeObject *meta, PyObject *args, PyObject *kwargs) {
    PyObject *made = PyType_Type.tp_new(meta, args, kwargs);
    PyTypeObject *cls = (PyTypeObject *)made;
    if (!made || !PyType_IsSubtype(cls, (PyTypeObject *)pd_py.Tensor)) return made;
    if (cls->tp_basicsize != sizeof(pd_pytensor)) {
        Py_DECREF(made);
        return PyErr_Format(PyExc_TypeError, "Tensor: a subclass has __slots__ (expected a subclass without them)");
    }
    cls->tp_dealloc = tensor_dealloc;
    return made;
}

/* ---- construction ------------------------------------------------------------------------------------------------ */

static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *data = NULL;
    if (type != (PyTypeObject *)
                    pd_py.Tensor) { /* _make_subclass makes a subclass; its __init__ gets the arguments */
        pd_tensor *t;
        int64_t zero = 0;
        PD_PY_TRY(pd_tensor_new("Tensor", pd_default_dtype, 1, &zero, &t));
        PyObject *self = new_wrapper(type, t);
        pd_tensor_release(t);
        return self;
    }
    if (kwargs && PyDict_GET_SIZE(kwargs))
        return PyErr_Format(PyExc_TypeError,
                            "Tensor: got keyword arguments (expected none; pydist.tensor takes dtype= and device=)");
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    if (n == 1) data = PyTuple_GET_ITEM(args, 0);
    pd_tensor *t;
    if (pd_is_recording()) pd_record_refuse("it calls Tensor()");
    if (n != 1 || PyLong_Check(data)) { /* Tensor(2, 3): uninitialised, as in PyTorch */
        pd_ints size;
        if (!pd_py_ints(args, "Tensor", "size", &size)) return NULL;
        if (n == 0) size = (pd_ints){.n = 1};
        PD_PY_TRY(pd_tensor_new("Tensor", pd_default_dtype, (int)size.n, size.v, &t));
    } else if (!(t = pd_py_from_data("Tensor", data, pd_default_dtype, PD_PY_COPY_ALWAYS))) {
        return NULL;
    }
    return pd_py_wrap_new(t);
}

PyObject *pd_py_make_subclass(PyObject *unused, PyObject *args) {
    PyObject *cls, *data;
    int requires_grad = 0;
    (void)unused;
    if (!PyArg_ParseTuple(args, "O!O!|p:_make_subclass", &PyType_Type, &cls, pd_py.Tensor, &data, &requires_grad))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)cls, (PyTypeObject *)pd_py.Tensor))
        return PyErr_Format(PyExc_TypeError, "_make_subclass: cls is %R (expected a subclass of Tensor)", cls);
    pd_tensor *t;
    if (requires_grad && pd_dtype_category((pd_dtype)pd_py_tensor(data)->dtype) < PD_CAT_FLOAT)
        return PyErr_Format(PyExc_RuntimeError,
                            "requires_grad: only Tensors of floating point and complex dtype can require gradients: "
                            "got %s (expected a floating or complex dtype)",
                            pd_dtype_name((pd_dtype)pd_py_tensor(data)->dtype));
    PD_PY_TRY(pd_tensor_alias(pd_py_tensor(data), false, &t));
    t->requires_grad = requires_grad;
    if (pd_is_recording()) pd_record_refuse("it makes a %.60s", ((PyTypeObject *)cls)->tp_name);
    PyObject *self = new_wrapper((PyTypeObject *)cls, t);
    pd_tensor_release(t);
    return self;
}

/* ---- the type ---------------------------------------------------------------------------------------------------- */

static PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(pd_pytensor, weakrefs), READONLY, NULL},
                                {"__dictoffset__", T_PYSSIZET, offsetof(pd_pytensor, dict), READONLY, NULL}, {0}};
static const PyType_Slot core[] = {
    {Py_tp_new, tensor_new},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_traverse, tensor_traverse},
    {Py_tp_clear, tensor_clear},
    {Py_tp_getset, pd_py_tensor_getset},
    {Py_tp_methods, pd_py_tensor_methods},
    {Py_tp_members, members},
    {Py_tp_repr, pd_py_tensor_repr},
    {Py_bf_getbuffer, pd_py_getbuffer},
    {Py_bf_releasebuffer, pd_py_releasebuffer},
    {Py_tp_doc,
     "A dense array with a dtype and strides. With requires_grad it also has a history, which backward() uses."},
};
static PyType_Slot slots[64]; /* those of this file, then the operators */
static PyType_Spec spec = {.name = "pydist.Tensor", .basicsize = sizeof(pd_pytensor), .slots = slots,
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC};

static PyType_Slot meta_slots[] = {{Py_tp_new, meta_new}, {0}};
static PyType_Spec meta_spec = {
    .name = "pydist._C.TensorMeta", .slots = meta_slots, .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE};

int pd_py_add_tensor(PyObject *module) {
    size_t n = sizeof core / sizeof *core;
    memcpy(slots, core, sizeof core);
    for (const PyType_Slot *s = pd_py_tensor_operators; s->slot; s++) slots[n++] = *s;
    PyObject *bases = PyTuple_Pack(1, &PyType_Type);
    bool ok = bases && pd_py_type(module, &meta_spec, bases, &pd_py.TensorMeta) &&
              pd_py_type(module, &spec, NULL, &pd_py.Tensor);
    Py_XDECREF(bases);
    if (!ok) return -1;
    /* PyType_FromMetaclass needs Python 3.12; but a heap type may change its class to one of the same layout. */
    Py_SET_TYPE(pd_py.Tensor, (PyTypeObject *)Py_NewRef(pd_py.TensorMeta));
    pd_tensor_drop_wrapper = pd_py_drop;
    return 0;
}
