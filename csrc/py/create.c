/* Making tensors: from data, filled, counted, drawn at random. */
#include "base/mem.h"
#include "kernels/kernels.h"
#include "py/py.h"

/* ---- from nested sequences --------------------------------------------------------------------------------------- */

typedef struct { int ndim; int64_t size[PD_MAX_DIMS]; int dtype; } nest;

static bool is_leaf(PyObject *o) {
    if (PyList_Check(o) || PyTuple_Check(o)) return false;
    if (pd_py_is_tensor(o)) return pd_py_tensor(o)->ndim == 0;
    if (!PySequence_Check(o) || PyUnicode_Check(o) || PyBytes_Check(o)) return true;
    bool sized = PyObject_Size(o) >= 0; /* a 0-d array has none */
    PyErr_Clear();
    return !sized;
}

/* A number and the dtype that it brings: NumPy's scalars have one of their own. */
static bool read_leaf(PyObject *o, pd_scalar *s, pd_dtype *dtype) {
    if (pd_py_is_tensor(o)) {
        if (!pd_py_scalar(pd_py_tensor(o), s)) return false;
        *dtype = (pd_dtype)pd_py_tensor(o)->dtype;
        return true;
    }
    if (!pd_py_number(o, s)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "tensor: an element is %.100s (expected a number)", Py_TYPE(o)->tp_name);
        return false;
    }
    *dtype = s->cat == PD_CAT_BOOL ? PD_BOOL : s->cat == PD_CAT_INT ? PD_I64 : pd_default_dtype;
    if (PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyBool_Check(o) || !PyObject_CheckBuffer(o)) return true;
    pd_tensor *t = pd_py_from_buffer(o, false);
    if (t) *dtype = (pd_dtype)t->dtype;
    pd_tensor_release(t);
    return t != NULL;
}

/* Finds shape and dtype; every branch must have the same shape. */
static bool measure(PyObject *o, int depth, nest *n, bool first) {
    if (is_leaf(o)) {
        pd_scalar s;
        pd_dtype dtype;
        if (!read_leaf(o, &s, &dtype)) return false;
        if (first && depth > n->ndim) n->ndim = depth;
        if (depth != n->ndim) {
            PyErr_Format(PyExc_ValueError, "tensor: nesting differs: a number at depth %d (expected depth %d)", depth,
                         n->ndim);
            return false;
        }
        n->dtype = n->dtype == PD_NO_DTYPE ? (int)dtype : (int)pd_dtype_promote((pd_dtype)n->dtype, dtype);
        return true;
    }
    Py_ssize_t len = PyObject_Length(o);
    if (len < 0) return false;
    if (depth >= PD_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "tensor: nested deeper than %d", PD_MAX_DIMS);
        return false;
    }
    if (first) n->size[depth] = len;
    if (first && depth + 1 > n->ndim) n->ndim = depth + 1;
    if (depth >= n->ndim || n->size[depth] != len) {
        PyErr_Format(PyExc_ValueError, "tensor: sequences at depth %d have lengths %lld and %zd (expected equal)",
                     depth, depth < n->ndim ? (long long)n->size[depth] : 0LL, len);
        return false;
    }
    for (Py_ssize_t i = 0; i < len; i++) {
        PyObject *item = PySequence_GetItem(o, i);
        bool ok = item && measure(item, depth + 1, n, first && i == 0);
        Py_XDECREF(item);
        if (!ok) return false;
    }
    return true;
}

static bool fill_nested(PyObject *o, pd_dtype t, char **to) {
    if (is_leaf(o)) {
        pd_scalar s;
        if (pd_py_is_tensor(o)) {
            if (!pd_py_scalar(pd_py_tensor(o), &s)) return false;
        } else if (!pd_py_number(o, &s)) { /* changed since it was measured */
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "tensor: the data changed while it was read");
            return false;
        }
        pd_status status = pd_scalar_fits("tensor", &s, t);
        if (status) {
            pd_py_raise(status);
            return false;
        }
        pd_scalar_store(&s, t, *to);
        *to += pd_dtype_size(t);
        return true;
    }
    Py_ssize_t len = PyObject_Length(o);
    for (Py_ssize_t i = 0; i < len; i++) {
        PyObject *item = PySequence_GetItem(o, i);
        bool ok = item && fill_nested(item, t, to);
        Py_XDECREF(item);
        if (!ok) return false;
    }
    return len >= 0;
}

static pd_tensor *from_nested(PyObject *data, int64_t dtype) {
    nest n = {.dtype = PD_NO_DTYPE};
    pd_tensor *t;
    if (!measure(data, 0, &n, true)) return NULL;
    if (dtype == PD_NO_DTYPE) dtype = n.dtype == PD_NO_DTYPE ? (int64_t)pd_default_dtype : n.dtype;
    pd_status status = pd_tensor_new("tensor", (pd_dtype)dtype, n.ndim, n.size, &t);
    if (status) {
        pd_py_raise(status);
        return NULL;
    }
    char *to = pd_tensor_data(t);
    if (!fill_nested(data, (pd_dtype)dtype, &to)) {
        pd_tensor_release(t);
        return NULL;
    }
    return t;
}

pd_tensor *pd_py_from_data(PyObject *data, int64_t dtype, bool copy) {
    pd_tensor *t = NULL, *out = NULL;
    if (pd_py_is_tensor(data)) {
        pd_status status = pd_tensor_alias(pd_py_tensor(data), false, &t);
        if (status) pd_py_raise(status);
    } else if (PyObject_CheckBuffer(data) && !PyBytes_Check(data) && !PyByteArray_Check(data)) {
        t = pd_py_from_buffer(data, false); /* NumPy's scalars too, which keep their dtype so */
    } else {
        t = from_nested(data, dtype);
        copy = false;
    }
    if (!t) return NULL;
    bool mode = pd_grad_mode;
    pd_grad_mode = false;
    pd_status status = PD_OK;
    if (dtype != PD_NO_DTYPE && t->dtype != dtype) status = pd_engine.cast(t, (pd_dtype)dtype, &out);
    else if (copy) status = pd_call1(PD_OP_clone, t, &(int64_t){PD_FORMAT_CONTIGUOUS}, &out);
    else pd_tensor_retain(out = t);
    pd_grad_mode = mode;
    pd_tensor_release(t);
    if (status) pd_py_raise(status);
    return status ? NULL : out;
}

/* ---- keyword arguments that all have ----------------------------------------------------------------------------- */

typedef struct { PyObject *dtype, *device, *requires_grad, *generator, *pin, *layout, *out, *size, *format; } options;
typedef struct {
    int64_t dtype;
    bool requires_grad;
    pd_rng_key key;
    const pd_device *device;
} chosen; /* device NULL: not given */

/* Takes the common keywords out; leaves an unknown one as an error. */
static bool read_options(const char *op, PyObject *kwargs, options *o, chosen *c, int64_t dtype) {
    static const char *const names[] = {"dtype",  "device", "requires_grad", "generator",    "pin_memory",
                                        "layout", "out",    "size",          "memory_format"};
    PyObject **to[] = {&o->dtype,  &o->device, &o->requires_grad, &o->generator, &o->pin,
                       &o->layout, &o->out,    &o->size,          &o->format},
             *key, *value;
    *o = (options){0};
    for (Py_ssize_t at = 0; kwargs && PyDict_Next(kwargs, &at, &key, &value);) {
        size_t i = 0;
        while (i < sizeof names / sizeof *names && PyUnicode_CompareWithASCIIString(key, names[i])) i++;
        if (i == sizeof names / sizeof *names) {
            PyErr_Format(PyExc_TypeError, "%s: unexpected keyword argument %R", op, key);
            return false;
        }
        *to[i] = value;
    }
    if (o->out && o->out != Py_None) {
        PyErr_Format(PyExc_NotImplementedError, "%s: out= is not supported", op);
        return false;
    }
    if (o->format == Py_None) o->format = NULL;
    if (o->format && !pd_py_format(o->format, op)) return false;
    c->dtype = dtype;
    c->requires_grad = false;
    c->device = NULL;
    if (o->dtype && o->dtype != Py_None && !pd_py_dtype(o->dtype, op, "dtype", &c->dtype)) return false;
    if (o->device && o->device != Py_None && !(c->device = pd_py_device(o->device, op))) return false;
    if (o->requires_grad) {
        int want = PyObject_IsTrue(o->requires_grad);
        if (want < 0) return false;
        c->requires_grad = want;
    }
    return true;
}

static PyObject *finish(pd_tensor *t, const chosen *c) {
    if (c->requires_grad && !pd_dtype_is_float((pd_dtype)t->dtype)) {
        PyErr_Format(PyExc_RuntimeError, "only floating tensors can require gradients, got %s",
                     pd_dtype_name((pd_dtype)t->dtype));
        pd_tensor_release(t);
        return NULL;
    }
    if (c->device && c->device != t->storage->device) {
        pd_tensor *there;
        pd_status status = pd_move(t, c->device, true, &there);
        pd_tensor_release(t);
        PD_PY_TRY(status);
        t = there;
    }
    t->requires_grad = c->requires_grad;
    return pd_py_wrap_new(t);
}

/* A new tensor on the device that was asked for, filled there, unless value is NULL. */
static bool made_there(const char *op, const chosen *c, int ndim, const int64_t *size, const int64_t *stride,
                       const pd_scalar *value, pd_tensor **out) {
    const pd_device *was;
    if (!pd_py_at(c->device ? c->device : &pd_device_cpu, &was)) return false;
    pd_status status = pd_tensor_new(op, (pd_dtype)c->dtype, ndim, size, out);
    if (!status) {
        if (stride) memcpy((*out)->stride, stride, sizeof *stride * (size_t)ndim);
        if (value) pd_fill(*out, value);
        status = pd_device_check(pd_device_here, op);
        if (status) pd_tensor_release(*out);
    }
    pd_device_here = was;
    if (status) pd_py_raise(status);
    return !status;
}

/* Sizes as f(2, 3), f((2, 3)) or f(size=(2, 3)); from `first` on. */
static bool read_size(const char *op, PyObject *args, Py_ssize_t first, const options *o, pd_ints *size) {
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    if (o->size) return pd_py_ints(o->size, op, "size", size);
    if (n == first + 1 && (PyTuple_Check(PyTuple_GET_ITEM(args, first)) || PyList_Check(PyTuple_GET_ITEM(args, first))))
        return pd_py_ints(PyTuple_GET_ITEM(args, first), op, "size", size);
    PyObject *rest = PyTuple_GetSlice(args, first, n);
    bool ok = rest && pd_py_ints(rest, op, "size", size);
    Py_XDECREF(rest);
    return ok;
}

/* ---- Generator: a key of its own --------------------------------------------------------------------------------- */

typedef struct { PyObject_HEAD pd_rng_key key; } generator;
static PyObject *generator_type;

static PyObject *generator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"device", NULL};
    PyObject *device = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Generator", names, &device) ||
        !pd_py_device(device, "Generator"))
        return NULL;
    generator *g = (generator *)type->tp_alloc(type, 0);
    if (g) g->key.seed = 67280421310721u;
    return (PyObject *)g;
}

static bool seed_of(PyObject *o, const char *op, uint64_t *seed) {
    PyObject *i = PyNumber_Index(o);
    *seed = i ? PyLong_AsUnsignedLongLongMask(i) : 0; /* negative seeds wrap, as in PyTorch */
    (void)op;
    Py_XDECREF(i);
    return !PyErr_Occurred();
}

static PyObject *generator_seed(PyObject *self, PyObject *seed) {
    generator *g = (generator *)self;
    if (!seed_of(seed, "manual_seed", &g->key.seed)) return NULL;
    g->key.call = 0;
    return Py_NewRef(self);
}
static PyObject *generator_initial(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((generator *)self)->key.seed);
}
static PyObject *key_as_tuple(const pd_rng_key *k) {
    return Py_BuildValue("(KKk)", (unsigned long long)k->seed, (unsigned long long)k->call, (unsigned long)k->stream);
}

/* A state is a tensor of bytes, as in PyTorch, so that scripts can move and save it; the same as three numbers costs
   less. */
enum { STATE_BYTES = 8 + 8 + 4 };

static PyObject *key_as_state(const pd_rng_key *k) {
    pd_tensor *t;
    PD_PY_TRY(pd_tensor_new("get_rng_state", PD_U8, 1, &(int64_t){STATE_BYTES}, &t));
    char *bytes = pd_tensor_data(t);
    memcpy(bytes, &k->seed, 8);
    memcpy(bytes + 8, &k->call, 8);
    memcpy(bytes + 16, &k->stream, 4);
    return pd_py_wrap_new(t);
}
static bool key_from(PyObject *o, pd_rng_key *k) {
    unsigned long long seed, call;
    unsigned long stream;
    if (pd_py_is_tensor(o)) {
        pd_tensor *t = pd_py_tensor(o);
        if (t->dtype != PD_U8 || t->ndim != 1 || t->numel != STATE_BYTES || t->stride[0] != 1) {
            PyErr_Format(PyExc_TypeError, "set_rng_state: expected the %d bytes that get_rng_state gave", STATE_BYTES);
            return false;
        }
        const char *bytes = pd_tensor_data(t);
        memcpy(&k->seed, bytes, 8);
        memcpy(&k->call, bytes + 8, 8);
        memcpy(&k->stream, bytes + 16, 4);
        return true;
    }
    if (!PyTuple_Check(o) || !PyArg_ParseTuple(o, "KKk:set_rng_state", &seed, &call, &stream)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "set_rng_state: expected what get_rng_state gave");
        return false;
    }
    *k = (pd_rng_key){.seed = seed, .call = call, .stream = (uint32_t)stream};
    return true;
}
static PyObject *generator_get(PyObject *self, PyObject *unused) {
    (void)unused;
    return key_as_state(&((generator *)self)->key);
}
static PyObject *generator_key(PyObject *self, PyObject *unused) {
    (void)unused;
    return key_as_tuple(&((generator *)self)->key);
}
static PyObject *generator_set(PyObject *self, PyObject *state) {
    return key_from(state, &((generator *)self)->key) ? Py_NewRef(self) : NULL;
}
static PyObject *generator_device(PyObject *self, void *unused) {
    (void)self, (void)unused;
    return Py_NewRef(pd_py.cpu);
}
static void generator_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef generator_methods[] = {
    {"manual_seed", generator_seed, METH_O, "manual_seed(seed)\n\nStarts the stream of `seed` anew."},
    {"initial_seed", generator_initial, METH_NOARGS, "initial_seed()\n\nThe seed."},
    {"get_state", generator_get, METH_NOARGS, "get_state()\n\nA tensor of bytes: seed, next call, stream."},
    {"_key", generator_key, METH_NOARGS, "_key(): (seed, next call, stream), which set_state takes too."},
    {"set_state", generator_set, METH_O, "set_state(state)\n\nAs get_state gave it."},
    {0}};
static PyGetSetDef generator_getset[] = {{"device", generator_device, NULL, "The CPU.", NULL}, {0}};
static PyType_Slot generator_slots[] = {
    {Py_tp_new, generator_new},
    {Py_tp_getset, generator_getset},
    {Py_tp_dealloc, generator_dealloc},
    {Py_tp_methods, generator_methods},
    {Py_tp_doc, "Generator(device='cpu')\n\nA stream of random numbers of its own: counter-based, keyed by the seed."},
    {0}};
static PyType_Spec generator_spec = {.name = "pydist._C.Generator",
                                     .basicsize = sizeof(generator),
                                     .slots = generator_slots,
                                     .flags = Py_TPFLAGS_DEFAULT};

static bool draw_key(const char *op, const options *o, pd_rng_key *key) {
    if (!o->generator || o->generator == Py_None) {
        *key = pd_rng_next();
        return true;
    }
    if (Py_TYPE(o->generator) != (PyTypeObject *)generator_type) {
        PyErr_Format(PyExc_TypeError, "%s: generator is %.100s (expected Generator)", op,
                     Py_TYPE(o->generator)->tp_name);
        return false;
    }
    *key = ((generator *)o->generator)->key;
    ((generator *)o->generator)->key.call++;
    return true;
}

/* ---- the functions ----------------------------------------------------------------------------------------------- */

#define F(name) static PyObject *f_##name(PyObject *module, PyObject *args, PyObject *kwargs)

PyObject *pd_py_filled(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype, const double *value) {
    options o;
    chosen c;
    pd_ints size;
    pd_tensor *t;
    if (!read_options(op, kwargs, &o, &c, dtype) || !read_size(op, args, 0, &o, &size)) return NULL;
    pd_scalar number = {.d = value ? *value : 0, .i = value ? (int64_t)*value : 0, .cat = PD_CAT_INT};
    return made_there(op, &c, (int)size.n, size.v, NULL, value ? &number : NULL, &t) ? finish(t, &c) : NULL;
}
F(empty) { (void)module; return pd_py_filled("empty", args, kwargs, pd_default_dtype, NULL); }
F(zeros) { (void)module; return pd_py_filled("zeros", args, kwargs, pd_default_dtype, &(double){0}); }
F(ones) { (void)module; return pd_py_filled("ones", args, kwargs, pd_default_dtype, &(double){1}); }

PyObject *pd_py_full(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype) {
    options o;
    chosen c;
    pd_ints size;
    pd_scalar value;
    pd_tensor *t;
    if (PyTuple_GET_SIZE(args) != 2) return PyErr_Format(PyExc_TypeError, "%s: expected size and fill_value", op);
    PyObject *v = PyTuple_GET_ITEM(args, 1);
    if (!pd_py_number(v, &value))
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_TypeError, "%s: fill_value is %.100s (expected a number)", op,
                                               Py_TYPE(v)->tp_name);
    if (dtype == PD_NO_DTYPE)
        dtype = value.cat == PD_CAT_BOOL ? PD_BOOL : value.cat == PD_CAT_INT ? PD_I64 : pd_default_dtype;
    if (!read_options(op, kwargs, &o, &c, dtype) || !pd_py_ints(PyTuple_GET_ITEM(args, 0), op, "size", &size))
        return NULL;
    return made_there(op, &c, (int)size.n, size.v, NULL, &value, &t) ? finish(t, &c) : NULL;
}
F(full) { (void)module; return pd_py_full("full", args, kwargs, PD_NO_DTYPE); }

static PyObject *like(const char *op, PyObject *args, PyObject *kwargs, const double *value) {
    options o;
    chosen c;
    pd_tensor *t, *x = PyTuple_GET_SIZE(args) >= 1 ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), op, "input") : NULL;
    if (!x) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "%s: argument 'input' is missing", op);
    if (!read_options(op, kwargs, &o, &c, x->dtype)) return NULL;
    bool keep = !o.format || o.format == pd_py.preserve_format;
    int64_t last[4];
    const int64_t *stride = keep && pd_shape_is_dense(x->ndim, x->size, x->stride) ? x->stride : NULL;
    if (o.format == pd_py.channels_last) {
        if (x->ndim != 4)
            return PyErr_Format(PyExc_RuntimeError, "%s: channels_last needs 4 dimensions, got %d", op, x->ndim);
        pd_shape_channels_last(x->size, last);
        stride = last;
    }
    if (!c.device) c.device = x->storage->device;
    pd_scalar number = {.d = value ? *value : 0, .i = value ? (int64_t)*value : 0, .cat = PD_CAT_INT};
    return made_there(op, &c, x->ndim, x->size, stride, value ? &number : NULL, &t) ? finish(t, &c) : NULL;
}
F(empty_like) { (void)module; return like("empty_like", args, kwargs, NULL); }
F(zeros_like) { (void)module; return like("zeros_like", args, kwargs, &(double){0}); }
F(ones_like) { (void)module; return like("ones_like", args, kwargs, &(double){1}); }

PyObject *pd_py_new_tensor(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype) {
    options o;
    chosen c;
    if (PyTuple_GET_SIZE(args) != 1) return PyErr_Format(PyExc_TypeError, "%s: expected one argument, data", op);
    if (!read_options(op, kwargs, &o, &c, dtype)) return NULL;
    pd_tensor *t = pd_py_from_data(PyTuple_GET_ITEM(args, 0), c.dtype, true);
    return t ? finish(t, &c) : NULL;
}
F(tensor) { (void)module; return pd_py_new_tensor("tensor", args, kwargs, PD_NO_DTYPE); }

F(as_tensor) {
    options o;
    chosen c;
    (void)module;
    if (PyTuple_GET_SIZE(args) != 1) return PyErr_Format(PyExc_TypeError, "as_tensor: expected one argument, data");
    PyObject *data = PyTuple_GET_ITEM(args, 0);
    if (!read_options("as_tensor", kwargs, &o, &c, PD_NO_DTYPE)) return NULL;
    if (pd_py_is_tensor(data) && (c.dtype == PD_NO_DTYPE || c.dtype == pd_py_tensor(data)->dtype) &&
        (!c.device || c.device == pd_py_tensor(data)->storage->device))
        return Py_NewRef(data);
    pd_tensor *t = pd_py_from_data(data, c.dtype, false);
    return t ? finish(t, &c) : NULL;
}

F(arange) {
    options o;
    chosen c;
    pd_scalar v[3] = {{.cat = PD_CAT_INT}, {.cat = PD_CAT_INT}, {.d = 1, .i = 1, .cat = PD_CAT_INT}};
    Py_ssize_t n = PyTuple_GET_SIZE(args);
    int category = PD_CAT_INT;
    (void)module;
    if (n < 1 || n > 3)
        return PyErr_Format(PyExc_TypeError, "arange: %zd arguments (expected end; or start, end; or start, end, step)",
                            n);
    for (Py_ssize_t i = 0; i < n; i++) {
        pd_scalar *to = &v[n == 1 ? 1 : i];
        if (!pd_py_number(PyTuple_GET_ITEM(args, i), to))
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "arange: expected numbers");
        if (to->cat > category) category = (int)to->cat;
    }
    if (!read_options("arange", kwargs, &o, &c, category == PD_CAT_INT ? PD_I64 : pd_default_dtype)) return NULL;
    double start = v[0].cat == PD_CAT_FLOAT ? v[0].d : (double)v[0].i,
           end = v[1].cat == PD_CAT_FLOAT ? v[1].d : (double)v[1].i;
    double by = v[2].cat == PD_CAT_FLOAT ? v[2].d : (double)v[2].i, count = (end - start) / by;
    if (!(by != 0) || !(count >= 0) || !(count < 1e15))
        return PyErr_Format(PyExc_ValueError,
                            "arange: start, end and step do not fit together (expected step nonzero and towards end)");
    int64_t size = (int64_t)count + (count > (double)(int64_t)count);
    pd_tensor *t;
    PD_PY_TRY(pd_tensor_new("arange", (pd_dtype)c.dtype, 1, &size, &t));
    pd_cpu()->range((pd_dtype)c.dtype, pd_tensor_data(t), size, start, by);
    return finish(t, &c);
}

static PyObject *drawn(const char *op, PyObject *args, PyObject *kwargs, bool normal) {
    options o;
    chosen c;
    pd_ints size;
    pd_tensor *t;
    if (!read_options(op, kwargs, &o, &c, pd_default_dtype) || !read_size(op, args, 0, &o, &size)) return NULL;
    if (!pd_dtype_is_float((pd_dtype)c.dtype))
        return PyErr_Format(pd_py.E_DTYPE, "%s: %s (expected a floating dtype)", op, pd_dtype_name((pd_dtype)c.dtype));
    if (!draw_key(op, &o, &c.key)) return NULL;
    PD_PY_TRY(pd_tensor_new(op, (pd_dtype)c.dtype, (int)size.n, size.v, &t));
    if (normal) pd_cpu()->normal((pd_dtype)c.dtype, t->numel, 0, 1, c.key, pd_tensor_data(t));
    else pd_cpu()->uniform((pd_dtype)c.dtype, t->numel, 0, 1, c.key, pd_tensor_data(t));
    return finish(t, &c);
}
F(rand) { (void)module; return drawn("rand", args, kwargs, false); }
F(randn) { (void)module; return drawn("randn", args, kwargs, true); }

F(randint) {
    options o;
    chosen c;
    pd_ints size;
    int64_t low = 0, high;
    pd_tensor *t;
    (void)module;
    Py_ssize_t n = PyTuple_GET_SIZE(args),
               at = n == 3 || (n == 2 && kwargs && PyDict_GetItemString(kwargs, "size")) ? 1 : 0;
    if (n < 1 || n > 3) return PyErr_Format(PyExc_TypeError, "randint: expected (high, size) or (low, high, size)");
    if (!read_options("randint", kwargs, &o, &c, PD_I64)) return NULL;
    if (at && !pd_py_int(PyTuple_GET_ITEM(args, 0), "randint", "low", &low)) return NULL;
    if (!pd_py_int(PyTuple_GET_ITEM(args, at), "randint", "high", &high) ||
        !read_size("randint", args, at + 1, &o, &size))
        return NULL;
    if (low >= high)
        return PyErr_Format(PyExc_ValueError, "randint: low %lld, high %lld (expected low < high)", (long long)low,
                            (long long)high);
    if (!draw_key("randint", &o, &c.key)) return NULL;
    PD_PY_TRY(pd_tensor_new("randint", (pd_dtype)c.dtype, (int)size.n, size.v, &t));
    pd_cpu()->randint((pd_dtype)c.dtype, t->numel, low, high, c.key, pd_tensor_data(t));
    return finish(t, &c);
}

F(randperm) {
    options o;
    chosen c;
    int64_t n;
    pd_tensor *t;
    (void)module;
    if (PyTuple_GET_SIZE(args) != 1 || !pd_py_int(PyTuple_GET_ITEM(args, 0), "randperm", "n", &n))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "randperm: expected one argument, n");
    if (!read_options("randperm", kwargs, &o, &c, PD_I64)) return NULL;
    if (c.dtype != PD_I64)
        return PyErr_Format(pd_py.E_DTYPE, "randperm: %s (expected int64)", pd_dtype_name((pd_dtype)c.dtype));
    if (n < 0) return PyErr_Format(PyExc_ValueError, "randperm: n is %lld (expected at least 0)", (long long)n);
    if (!draw_key("randperm", &o, &c.key)) return NULL;
    PD_PY_TRY(pd_tensor_new("randperm", PD_I64, 1, &n, &t));
    pd_cpu()->randperm(n, c.key, pd_tensor_data(t));
    return finish(t, &c);
}

static PyObject *f_set_default_dtype(PyObject *module, PyObject *o) {
    int64_t dtype;
    (void)module;
    if (!pd_py_dtype(o, "set_default_dtype", "d", &dtype)) return NULL;
    if (dtype == PD_NO_DTYPE || !pd_dtype_is_float((pd_dtype)dtype))
        return PyErr_Format(PyExc_TypeError, "set_default_dtype: %R (expected a floating dtype)", o);
    pd_default_dtype = (pd_dtype)dtype;
    Py_RETURN_NONE;
}
static PyObject *f_get_default_dtype(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return Py_NewRef(pd_py.dtypes[pd_default_dtype]);
}
static PyObject *f_promote_types(PyObject *module, PyObject *args) {
    int64_t a, b;
    (void)module;
    if (PyTuple_GET_SIZE(args) != 2) return PyErr_Format(PyExc_TypeError, "promote_types: expected two dtypes");
    if (!pd_py_dtype(PyTuple_GET_ITEM(args, 0), "promote_types", "type1", &a) ||
        !pd_py_dtype(PyTuple_GET_ITEM(args, 1), "promote_types", "type2", &b))
        return NULL;
    if (a == PD_NO_DTYPE || b == PD_NO_DTYPE)
        return PyErr_Format(PyExc_TypeError, "promote_types: expected two dtypes");
    return Py_NewRef(pd_py.dtypes[pd_dtype_promote((pd_dtype)a, (pd_dtype)b)]);
}
static PyObject *f_result_type(PyObject *module, PyObject *args) {
    pd_tensor *in[2] = {0};
    pd_scalar numbers[2] = {{.cat = -1}, {.cat = -1}};
    const pd_scalar *scalars[2] = {&numbers[0], &numbers[1]};
    (void)module;
    if (PyTuple_GET_SIZE(args) != 2)
        return PyErr_Format(PyExc_TypeError, "result_type: expected two tensors or numbers");
    for (int i = 0; i < 2; i++) {
        PyObject *o = PyTuple_GET_ITEM(args, i);
        if (pd_py_is_tensor(o)) in[i] = pd_py_tensor(o);
        else if (!pd_py_number(o, &numbers[i]))
            return PyErr_Occurred() ? NULL
                                    : PyErr_Format(PyExc_TypeError, "result_type: %.100s (expected Tensor or a number)",
                                                   Py_TYPE(o)->tp_name);
    }
    return Py_NewRef(pd_py.dtypes[pd_result_type(in, 2, scalars, 2)]);
}

static PyObject *f_manual_seed(PyObject *module, PyObject *o) {
    uint64_t seed;
    (void)module;
    if (!seed_of(o, "manual_seed", &seed)) return NULL;
    pd_rng_seed(seed);
    Py_RETURN_NONE;
}
static PyObject *f_initial_seed(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(pd_rng_initial_seed());
}
static PyObject *f_get_rng_state(PyObject *module, PyObject *unused) {
    pd_rng_key key;
    (void)module, (void)unused;
    pd_rng_get(&key);
    return key_as_state(&key);
}
static PyObject *f_rng_key(PyObject *module, PyObject *unused) {
    pd_rng_key key;
    (void)module, (void)unused;
    pd_rng_get(&key);
    return key_as_tuple(&key);
}
static PyObject *f_set_rng_state(PyObject *module, PyObject *state) {
    pd_rng_key key;
    (void)module;
    if (!key_from(state, &key)) return NULL;
    pd_rng_set(&key);
    Py_RETURN_NONE;
}
static PyObject *f_rng_own(PyObject *module, PyObject *args) {
    int own;
    (void)module;
    if (!PyArg_ParseTuple(args, "p:_rng_own", &own)) return NULL;
    pd_rng_own(own);
    Py_RETURN_NONE;
}
static PyObject *f_rng_shard(PyObject *module, PyObject *args) {
    int shard;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:_rng_shard", &shard)) return NULL;
    pd_rng_set_shard((uint32_t)shard);
    Py_RETURN_NONE;
}

#define KW(name, doc) {#name, (PyCFunction)(void (*)(void))f_##name, METH_VARARGS | METH_KEYWORDS, doc}
#define COMMON "\n\nKeywords: dtype, device, requires_grad."
static PyMethodDef functions[] = {
    KW(tensor,
       "tensor(data, *, dtype=None, device=None, requires_grad=False)\n\nA copy of numbers, nested sequences, arrays "
       "or a tensor."),
    KW(as_tensor, "as_tensor(data, *, dtype=None, device=None)\n\nThe same, sharing memory where it can."),
    KW(empty, "empty(*size)\n\nUninitialised." COMMON),
    KW(zeros, "zeros(*size)\n\nFilled with 0." COMMON),
    KW(ones, "ones(*size)\n\nFilled with 1." COMMON),
    KW(full, "full(size, fill_value)\n\nFilled with a number." COMMON),
    KW(empty_like, "empty_like(input)\n\nUninitialised, of input's shape and dtype." COMMON),
    KW(zeros_like, "zeros_like(input)\n\nZeros of input's shape and dtype." COMMON),
    KW(ones_like, "ones_like(input)\n\nOnes of input's shape and dtype." COMMON),
    KW(arange, "arange([start,] end[, step])\n\nstart, start + step, ... below end." COMMON),
    KW(rand, "rand(*size, generator=None)\n\nUniform in [0, 1)." COMMON),
    KW(randn, "randn(*size, generator=None)\n\nNormal, mean 0, variance 1." COMMON),
    KW(randint, "randint([low,] high, size, generator=None)\n\nWhole numbers in [low, high)." COMMON),
    KW(randperm, "randperm(n, generator=None)\n\nA random order of 0 ... n - 1."),
    {"set_default_dtype", f_set_default_dtype, METH_O,
     "set_default_dtype(d)\n\nThe dtype of floating tensors that are made without one; at first float32."},
    {"get_default_dtype", f_get_default_dtype, METH_NOARGS,
     "get_default_dtype()\n\nThe dtype of floating tensors that are made without one."},
    {"promote_types", f_promote_types, METH_VARARGS,
     "promote_types(type1, type2)\n\nThe smallest dtype that both fit into."},
    {"result_type", f_result_type, METH_VARARGS,
     "result_type(tensor1, tensor2)\n\nThe dtype of arithmetic on two tensors or numbers: dimensioned tensors decide "
     "before 0-d ones, these before numbers."},
    {"manual_seed", f_manual_seed, METH_O, "manual_seed(seed)\n\nStarts the default random stream anew."},
    {"initial_seed", f_initial_seed, METH_NOARGS, "initial_seed()\n\nThe seed of the default stream."},
    {"get_rng_state", f_get_rng_state, METH_NOARGS,
     "get_rng_state()\n\nA tensor of bytes: seed, next call, stream of the default stream."},
    {"_rng_key", f_rng_key, METH_NOARGS,
     "_rng_key(): (seed, next call, stream) of the default stream, which set_rng_state takes too."},
    {"set_rng_state", f_set_rng_state, METH_O, "set_rng_state(state)\n\nAs get_rng_state gave it."},
    {"_rng_own", f_rng_own, METH_VARARGS, "_rng_own(own): a generator of this thread's own, or not."},
    {"_rng_shard", f_rng_shard, METH_VARARGS, "_rng_shard(n): what dropout draws here differs from other shards."},
    {0},
};

int pd_py_add_create(PyObject *module) {
    return pd_py_type(module, &generator_spec, NULL, &generator_type) ? PyModule_AddFunctions(module, functions) : -1;
}
