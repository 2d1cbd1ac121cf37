/* Small types: dtype (one object each), device, Size (a tuple that prints its name). */
#include "device/cuda.h"
#include <stdlib.h>

#include "base/flags.h"
#include "py/py.h"

PyObject *pd_py_type(PyObject *module, PyType_Spec *spec, PyObject *bases, PyObject **keep) {
    PyObject *type = PyType_FromSpecWithBases(spec, bases);
    const char *dot = strrchr(spec->name, '.');
    if (type && module && PyModule_AddObjectRef(module, dot ? dot + 1 : spec->name, type)) Py_CLEAR(type);
    *keep = type;
    return type;
}

/* ---- dtype ------------------------------------------------------------------------------------------------------- */

/* Dtypes that PyTorch has and pydist computes nothing in: objects that programs may list and compare. Every function
   refuses them (pd_py_dtype). Their values follow those of the dtypes. */
static const struct {
    const char *name;
    pd_category category;
    uint8_t size;
} names_only[] = {
    {"complex32", PD_CAT_COMPLEX, 4}, {"float8_e4m3fn", PD_CAT_FLOAT, 1}, {"float8_e5m2", PD_CAT_FLOAT, 1}};
enum { NAMES_ONLY = sizeof names_only / sizeof *names_only };

typedef struct {
    PyObject_HEAD int value;
} pydtype;

static const char *name_of_dtype(int t) {
    return t < PD_DTYPE_COUNT ? pd_dtype_name((pd_dtype)t) : names_only[t - PD_DTYPE_COUNT].name;
}
static pd_category category_of_dtype(int t) {
    return t < PD_DTYPE_COUNT ? pd_dtype_category((pd_dtype)t) : names_only[t - PD_DTYPE_COUNT].category;
}

static PyObject *dtype_repr(PyObject *self) {
    return PyUnicode_FromFormat("pydist.%s", name_of_dtype(((pydtype *)self)->value));
}
static PyObject *dtype_float(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(category_of_dtype(((pydtype *)self)->value) == PD_CAT_FLOAT);
}
static PyObject *dtype_complex(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(category_of_dtype(((pydtype *)self)->value) == PD_CAT_COMPLEX);
}
static PyObject *dtype_to_real(PyObject *self, PyObject *unused) {
    int t = ((pydtype *)self)->value;
    (void)unused;
    if (t >= PD_DTYPE_COUNT) return Py_NewRef(category_of_dtype(t) == PD_CAT_COMPLEX ? pd_py.dtypes[PD_F16] : self);
    return Py_NewRef(pd_py.dtypes[pd_dtype_part((pd_dtype)t)]);
}
static PyObject *dtype_to_complex(PyObject *self, PyObject *unused) {
    int t = ((pydtype *)self)->value;
    (void)unused;
    if (category_of_dtype(t) == PD_CAT_COMPLEX) return Py_NewRef(self);
    return Py_NewRef(pd_py.dtypes[t < PD_DTYPE_COUNT ? pd_dtype_with_parts((pd_dtype)t) : PD_C64]);
}
static PyObject *dtype_size(PyObject *self, void *unused) {
    int t = ((pydtype *)self)->value;
    (void)unused;
    return PyLong_FromSize_t(t < PD_DTYPE_COUNT ? pd_dtype_size((pd_dtype)t) : names_only[t - PD_DTYPE_COUNT].size);
}
static PyObject *dtype_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyUnicode_FromString(name_of_dtype(((pydtype *)self)->value));
}
static PyObject *dtype_module(PyObject *self, void *unused) {
    (void)self, (void)unused;
    return PyUnicode_FromString("pydist");
}
static void plain_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyGetSetDef dtype_getset[] = {
    {"is_floating_point", dtype_float, NULL, "True for float64, float32, float16, bfloat16, float8_...", NULL},
    {"is_complex", dtype_complex, NULL, "True for complex32, complex64, complex128.", NULL},
    {"itemsize", dtype_size, NULL, "Bytes of one element.", NULL},
    {"__module__", dtype_module, NULL, NULL, NULL},
    {0}};
static PyMethodDef dtype_methods[] = {
    {"__reduce__", dtype_reduce, METH_NOARGS, NULL},
    {"to_real", dtype_to_real, METH_NOARGS,
     "to_real()\n\nThe dtype of the real part of a complex dtype; a real dtype itself."},
    {"to_complex", dtype_to_complex, METH_NOARGS,
     "to_complex()\n\nThe matching complex dtype: complex128 for float64 and complex128, otherwise complex64."},
    {0}};
static PyType_Slot dtype_slots[] = {{Py_tp_repr, dtype_repr},
                                    {Py_tp_getset, dtype_getset},
                                    {Py_tp_methods, dtype_methods},
                                    {Py_tp_dealloc, plain_dealloc},
                                    {0}};
static PyType_Spec dtype_spec = {.name = "pydist._C.dtype", .basicsize = sizeof(pydtype), .slots = dtype_slots,
                                 .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION};

static int add_dtypes(PyObject *module) {
    static const char *const aliases[][2] = {{"float", "float32"},    {"double", "float64"},    {"half", "float16"},
                                             {"long", "int64"},       {"int", "int32"},         {"short", "int16"},
                                             {"cfloat", "complex64"}, {"cdouble", "complex128"}};
    if (!pd_py_type(module, &dtype_spec, NULL, &pd_py.dtype)) return -1;
    for (int t = 0; t < PD_DTYPE_COUNT + NAMES_ONLY; t++) {
        pydtype *o = (pydtype *)((PyTypeObject *)pd_py.dtype)->tp_alloc((PyTypeObject *)pd_py.dtype, 0);
        if (!o) return -1;
        o->value = t;
        if (PyModule_AddObjectRef(module, name_of_dtype(t), (PyObject *)o)) return -1;
        if (t < PD_DTYPE_COUNT) pd_py.dtypes[t] = (PyObject *)o;
        else Py_DECREF(o);
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        PyObject *o = PyObject_GetAttrString(module, aliases[i][1]);
        if (!o || PyModule_AddObjectRef(module, aliases[i][0], o)) return -1;
        Py_DECREF(o);
    }
    return 0;
}

/* ---- device ------------------------------------------------------------------------------------------------------ */

/* The types of devices that scripts may name; tensors can be on the first three. */
static const char *const device_names[] = {"cpu", "cuda", "meta", "mps", "xpu"};
enum { DEVICE_CPU, DEVICE_CUDA, DEVICE_META, DEVICE_KINDS = sizeof device_names / sizeof *device_names };
typedef struct { PyObject_HEAD int kind, index; /* -1: none */ } device;

static int pretended; /* how many GPUs the CPU pretends to be */
int pd_py_pretended_cuda(void) { return pretended; }

/* Reads "cuda", "cuda:1", 1 or a device. */
static bool read_device(PyObject *o, const char *op, int *kind, int *index) {
    *index = -1;
    if (Py_TYPE(o) == (PyTypeObject *)pd_py.device) {
        *kind = ((device *)o)->kind, *index = ((device *)o)->index;
        return true;
    }
    if (PyLong_Check(o) && !PyBool_Check(o)) {
        long at = PyLong_AsLong(o);
        *kind = DEVICE_CUDA, *index = (int)at;
        if (at >= 0 && at < 128) return true;
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_RuntimeError, "%s: the device index is %R (expected 0 to 127)", op, o);
        return false;
    }
    const char *text = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL;
    for (int k = 0; text && k < DEVICE_KINDS; k++) {
        size_t n = strlen(device_names[k]);
        char *end = (char *)(uintptr_t)text + n;
        if (strncmp(text, device_names[k], n)) continue;
        *kind = k;
        if (!text[n]) return true;
        long at = -1;
        if (text[n] == ':' && text[n + 1] >= '0' && text[n + 1] <= '9') at = strtol(text + n + 1, &end, 10);
        if (at >= 0 && at < 128 && !*end) {
            *index = (int)at;
            return true;
        }
    }
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "%s: device is %R (expected cpu, cuda, mps, xpu or meta, perhaps with :index)",
                     op, o);
    return false;
}

static PyObject *new_device(int kind, int index) {
    if (kind == DEVICE_CPU && pd_py.cpu) return Py_NewRef(pd_py.cpu);
    device *d = (device *)((PyTypeObject *)pd_py.device)->tp_alloc((PyTypeObject *)pd_py.device, 0);
    if (d) d->kind = kind, d->index = index;
    return (PyObject *)d;
}

static PyObject *device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"type", "index", NULL}, *names_of_one[] = {"device", NULL};
    PyObject *what;
    int index = -1, kind, own;
    bool one = kwargs && PyDict_GetItemString(kwargs, "device");
    (void)type;
    if (!(one ? PyArg_ParseTupleAndKeywords(args, kwargs, "O:device", names_of_one, &what)
              : PyArg_ParseTupleAndKeywords(args, kwargs, "O|i:device", names, &what, &index)) ||
        !read_device(what, "device", &kind, &own))
        return NULL;
    if (index < -1 || index >= 128)
        return PyErr_Format(PyExc_RuntimeError, "device: index is %d (expected 0 to 127, or -1 for none)", index);
    if (index >= 0 && own >= 0)
        return PyErr_Format(PyExc_RuntimeError,
                            "device: %R already has an index, but index %d is given too (expected one of them)", what,
                            index);
    return new_device(kind, own < 0 ? index : own);
}

const pd_device *pd_py_device(PyObject *o, const char *op) {
    int kind, index;
    const pd_device *d;
    if (o == NULL || o == Py_None || o == pd_py.cpu) return &pd_device_cpu;
    if (!read_device(o, op, &kind, &index)) return NULL;
    if (kind == DEVICE_CPU || (kind == DEVICE_CUDA && index < pretended && pretended)) return &pd_device_cpu;
    if (kind == DEVICE_META) return &pd_device_meta;
    if (kind == DEVICE_CUDA && !pretended) {
        pd_status status = pd_cuda_device(op, index, &d);
        if (!status) return d;
        pd_py_raise(status);
    } else if (kind == DEVICE_CUDA)
        PyErr_Format(PyExc_RuntimeError,
                     "%s: device is %R, but the CPU stands in for %d GPUs (expected an index below that)", op, o,
                     pretended);
    else
        PyErr_Format(PyExc_RuntimeError, "%s: device %R is not available (expected 'cpu', 'cuda' or 'meta')", op, o);
    return NULL;
}

PyObject *pd_py_device_of(const pd_tensor *t) {
    const pd_device *d = t->storage->device;
    if (d->kind == PD_DEVICE_CPU) return Py_NewRef(pd_py.cpu);
    return d->kind == PD_DEVICE_META ? new_device(DEVICE_META, -1) : new_device(DEVICE_CUDA, d->index);
}

bool pd_py_scalar(const pd_tensor *t, pd_copy_wait wait, pd_scalar *out) {
    if (pd_is_recording()) pd_record_read("item()");
    pd_status status = pd_item("item", t, wait, out);
    if (status) pd_py_raise(status);
    return !status;
}

bool pd_py_on_host(const pd_tensor *t, const char *op) {
    if (t->storage->device->kind == PD_DEVICE_CPU) return true;
    if (t->storage->device == &pd_device_meta)
        PyErr_Format(PyExc_TypeError, "%s: the tensor is on meta, which has no data (expected a tensor on the CPU)",
                     op);
    else
        PyErr_Format(PyExc_TypeError, "%s: the tensor is on %s (expected the CPU: call cpu() first)", op,
                     t->storage->device->name);
    return false;
}

bool pd_py_at(const pd_device *d, const pd_device **was) {
    pd_status status = pd_device_enter(d, was);
    if (!status) return true;
    pd_py_raise(status);
    return false;
}

static PyObject *device_repr(PyObject *self) {
    const device *d = (const device *)self;
    if (d->index < 0) return PyUnicode_FromFormat("device(type='%s')", device_names[d->kind]);
    return PyUnicode_FromFormat("device(type='%s', index=%d)", device_names[d->kind], d->index);
}
static PyObject *device_str(PyObject *self) {
    const device *d = (const device *)self;
    return d->index < 0 ? PyUnicode_FromString(device_names[d->kind])
                        : PyUnicode_FromFormat("%s:%d", device_names[d->kind], d->index);
}
static PyObject *device_type(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(device_names[((device *)self)->kind]);
}
static PyObject *device_index(PyObject *self, void *unused) {
    (void)unused;
    if (((device *)self)->index < 0) Py_RETURN_NONE;
    return PyLong_FromLong(((device *)self)->index);
}
static PyObject *device_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("O(N)", Py_TYPE(self), device_str(self));
}
static PyObject *device_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    PyObject *settings = PyImport_ImportModule("pydist._settings");
    PyObject *done = settings ? PyObject_CallMethod(settings, "_enter", "O", self) : NULL;
    Py_XDECREF(settings);
    Py_XDECREF(done);
    return done ? Py_NewRef(self) : NULL;
}
static PyObject *device_exit(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyObject *settings = PyImport_ImportModule("pydist._settings");
    PyObject *done = settings ? PyObject_CallMethod(settings, "_leave", NULL) : NULL;
    Py_XDECREF(settings);
    return done;
}
static Py_hash_t device_hash(PyObject *self) { return ((device *)self)->kind * 131 + ((device *)self)->index + 2; }
static PyObject *device_compare(PyObject *a, PyObject *b, int op) {
    if (Py_TYPE(b) != Py_TYPE(a) || (op != Py_EQ && op != Py_NE)) Py_RETURN_NOTIMPLEMENTED;
    bool same = ((device *)a)->kind == ((device *)b)->kind && ((device *)a)->index == ((device *)b)->index;
    return PyBool_FromLong(same == (op == Py_EQ));
}

static PyObject *pretend_cuda(PyObject *module, PyObject *count) {
    long n = PyLong_AsLong(count);
    (void)module;
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n < 0 || n > 128) return PyErr_Format(PyExc_ValueError, "pretend_cuda: count is %ld (expected 0 to 128)", n);
    pretended = (int)n;
    Py_RETURN_NONE;
}
static PyObject *pretended_cuda(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromLong(pretended);
}
static PyMethodDef device_functions[] = {
    {"pretend_cuda", pretend_cuda, METH_O,
     "pretend_cuda(count)\n\nFrom now on the CPU stands in for the devices cuda:0 to cuda:count-1; 0: for none."},
    {"pretended_cuda", pretended_cuda, METH_NOARGS,
     "pretended_cuda()\n\nThe number of GPUs for which the CPU stands in."},
    {0}};

static PyGetSetDef device_getset[] = {{"type", device_type, NULL, "'cpu', 'cuda', ...", NULL},
                                      {"index", device_index, NULL, "The index, or None if none was given.", NULL},
                                      {0}};
static PyMethodDef device_methods[] = {{"__reduce__", device_reduce, METH_NOARGS, NULL},
                                       {"__enter__", device_enter, METH_NOARGS, NULL},
                                       {"__exit__", device_exit, METH_VARARGS, NULL},
                                       {0}};
static PyType_Slot device_slots[] = {
    {Py_tp_new, device_new},
    {Py_tp_repr, device_repr},
    {Py_tp_str, device_str},
    {Py_tp_getset, device_getset},
    {Py_tp_methods, device_methods},
    {Py_tp_dealloc, plain_dealloc},
    {Py_tp_hash, device_hash},
    {Py_tp_richcompare, device_compare},
    {Py_tp_doc,
     "device(type, index=None, *, device=None)\n\nThe name of a device that holds tensors: device('cpu'), "
     "device('cuda:0'). An op raises where the device does not exist. `with device:` makes it the default for a "
     "block."},
    {0}};
static PyType_Spec device_spec = {
    .name = "pydist._C.device", .basicsize = sizeof(device), .slots = device_slots, .flags = Py_TPFLAGS_DEFAULT};

/* ---- memory_format ----------------------------------------------------------------------------------------------- */

typedef struct { PyObject_HEAD const char *name; } format;

static PyObject *format_repr(PyObject *self) { return PyUnicode_FromFormat("pydist.%s", ((format *)self)->name); }
static PyObject *format_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyUnicode_FromString(((format *)self)->name);
}
static PyMethodDef format_methods[] = {{"__reduce__", format_reduce, METH_NOARGS, NULL}, {0}};
static PyGetSetDef format_getset[] = {{"__module__", dtype_module, NULL, NULL, NULL}, {0}};
static PyType_Slot format_slots[] = {
    {Py_tp_repr, format_repr},
    {Py_tp_methods, format_methods},
    {Py_tp_getset, format_getset},
    {Py_tp_dealloc, plain_dealloc},
    {Py_tp_doc, "The order of a tensor's elements in memory: contiguous_format, channels_last or preserve_format."},
    {0}};
static PyType_Spec format_spec = {.name = "pydist._C.memory_format", .basicsize = sizeof(format), .slots = format_slots,
                                  .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION};

static int add_formats(PyObject *module) {
    const struct {
        const char *name;
        PyObject **keep;
    } all[] = {{"contiguous_format", &pd_py.contiguous_format},
               {"preserve_format", &pd_py.preserve_format},
               {"channels_last", &pd_py.channels_last},
               {"channels_last_3d", &pd_py.channels_last_3d}};
    if (!pd_py_type(module, &format_spec, NULL, &pd_py.memory_format)) return -1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        PyTypeObject *type = (PyTypeObject *)pd_py.memory_format;
        if (!(*all[i].keep = type->tp_alloc(type, 0))) return -1;
        ((format *)*all[i].keep)->name = all[i].name;
        if (PyModule_AddObjectRef(module, all[i].name, *all[i].keep)) return -1;
    }
    return 0;
}

bool pd_py_format(PyObject *o, const char *op) {
    if (o && Py_TYPE(o) == (PyTypeObject *)pd_py.memory_format) return true;
    PyErr_Format(PyExc_TypeError,
                 "%s: memory_format is %.100s (expected pydist.channels_last or pydist.contiguous_format)", op,
                 o ? Py_TYPE(o)->tp_name : "missing");
    return false;
}

/* ---- Size -------------------------------------------------------------------------------------------------------- */

static PyObject *size_repr(PyObject *self) {
    PyObject *list = PySequence_List(self), *repr = list ? PyUnicode_FromFormat("pydist.Size(%R)", list) : NULL;
    Py_XDECREF(list);
    return repr;
}

static PyObject *size_numel(PyObject *self, PyObject *unused) {
    int64_t n = 1;
    (void)unused;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self); i++) {
        int64_t size;
        if (!pd_py_int(PyTuple_GET_ITEM(self, i), "numel", "a size", &size)) return NULL;
        if (__builtin_mul_overflow(n, size, &n))
            return PyErr_Format(PyExc_OverflowError,
                                "numel: the product of %R is too large for int64 (expected less than 2^63)", self);
    }
    return PyLong_FromLongLong(n);
}

/* [new] a Size of a tuple (whose reference it takes), or what else a tuple's operator returned. */
static PyObject *as_size(PyObject *result) {
    if (!result || !PyTuple_Check(result)) return result;
    PyObject *size = PyObject_CallOneArg(pd_py.Size, result);
    Py_DECREF(result);
    return size;
}

static PyObject *size_subscript(PyObject *self, PyObject *key) {
    PyObject *result = PyTuple_Type.tp_as_mapping->mp_subscript(self, key);
    return PySlice_Check(key) ? as_size(result) : result;
}

static PyObject *size_add(PyObject *a, PyObject *b) {
    if (!PyTuple_Check(a) || !PyTuple_Check(b)) Py_RETURN_NOTIMPLEMENTED;
    return as_size(PyTuple_Type.tp_as_sequence->sq_concat(a, b));
}

static PyObject *size_repeat(PyObject *self, Py_ssize_t n) {
    return as_size(PyTuple_Type.tp_as_sequence->sq_repeat(self, n));
}

static PyMethodDef size_methods[] = {{"numel", size_numel, METH_NOARGS, "numel()\n\nThe product of the sizes."}, {0}};
static PyType_Slot size_slots[] = {{Py_tp_repr, size_repr},         {Py_mp_subscript, size_subscript},
                                   {Py_nb_add, size_add},           {Py_sq_repeat, size_repeat},
                                   {Py_tp_methods, size_methods},   {0}};
static PyType_Spec size_spec = {.name = "pydist._C.Size", .slots = size_slots, .flags = Py_TPFLAGS_DEFAULT};

PyObject *pd_py_size(int ndim, const int64_t *size) {
    PyTypeObject *type = (PyTypeObject *)pd_py.Size;
    PyObject *tuple = type->tp_alloc(type, ndim);
    for (int i = 0; tuple && i < ndim; i++) {
        PyObject *n = PyLong_FromLongLong(size[i]);
        if (!n) Py_CLEAR(tuple);
        else PyTuple_SET_ITEM(tuple, i, n);
    }
    return tuple;
}

int pd_py_add_types(PyObject *module) {
    PyObject *bases = PyTuple_Pack(1, &PyTuple_Type);
    bool ok = bases && !add_dtypes(module) && !add_formats(module) &&
              pd_py_type(module, &device_spec, NULL, &pd_py.device) && (pd_py.cpu = new_device(DEVICE_CPU, -1)) &&
              !PyModule_AddFunctions(module, device_functions) && pd_py_type(module, &size_spec, bases, &pd_py.Size);
    Py_XDECREF(bases);
    pretended = pd_flags_get()->CPU_AS_CUDA;
    return ok ? 0 : -1;
}
