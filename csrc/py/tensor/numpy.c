/* NumPy's arrays, both ways, without a copy. This is the only file that knows NumPy's C API.

   The API is opened at first use. numpy() imports NumPy. An argument can be an array only if somebody has imported
   NumPy before. Other memory, and all memory without NumPy, goes through the buffer protocol (buffer.c). */
#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#define NPY_TARGET_VERSION NPY_1_23_API_VERSION
#include "py/py.h"

#include <numpy/arrayobject.h>

static bool opened, unusable; /* unusable: the API of this NumPy cannot be opened, as before 1.23 */

/* Imports NumPy. False with the exception set. */
static bool open_numpy(void) {
    if (!opened) opened = _import_array() == 0; /* import_array() would print the error */
    return opened;
}

static bool is_imported(const char *name) {
    PyObject *modules = PyImport_GetModuleDict(), *module = modules ? PyDict_GetItemString(modules, name) : NULL;
    return module && module != Py_None;
}

bool pd_py_is_array(PyObject *o) {
    if (!PyObject_CheckBuffer(o)) return false;
    if (!opened) {
        if (unusable || !is_imported("numpy")) return false;
        unusable = !open_numpy();
        PyErr_Clear();
        if (!opened) return false;
    }
    return PyArray_Check(o) || PyArray_IsScalar(o, Generic);
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */

enum { NONE = -1 };
static const int types[PD_DTYPE_COUNT] = {
    [PD_BOOL] = NPY_BOOL,     [PD_U8] = NPY_UINT8,    [PD_I8] = NPY_INT8,         [PD_I16] = NPY_INT16,
    [PD_I32] = NPY_INT32,     [PD_I64] = NPY_INT64,   [PD_F16] = NPY_HALF,        [PD_BF16] = NONE,
    [PD_F32] = NPY_FLOAT,     [PD_F64] = NPY_DOUBLE,  [PD_C64] = NPY_CFLOAT,      [PD_C128] = NPY_CDOUBLE,
};

/* [borrowed] ml_dtypes.bfloat16: NumPy has no dtype of its own for it. NULL with the exception set. */
static PyArray_Descr *known;
static PyArray_Descr *bfloat16(void) {
    if (known) return known;
    PyArray_Descr *d = NULL;
    PyObject *module = PyImport_ImportModule("ml_dtypes"),
             *type = module ? PyObject_GetAttrString(module, "bfloat16") : NULL;
    if (type) PyArray_DescrConverter(type, &d);
    if (d && !(PyTypeNum_ISUSERDEF(d->type_num) && PyDataType_ELSIZE(d) == 2 && d->kind == 'V')) {
        PyErr_Format(PyExc_TypeError, "ml_dtypes.bfloat16 is %.100R (expected a dtype of 2 bytes)", d);
        Py_CLEAR(d);
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    if (!known) known = d;
    else Py_XDECREF(d); /* another thread was faster */
    return known;
}

static int dtype_of(const PyArray_Descr *d) {
    if (!PyArray_ISNBO(d->byteorder)) return PD_NO_DTYPE;
    if (PyTypeNum_ISUSERDEF(d->type_num)) {
        const PyArray_Descr *half = known || is_imported("ml_dtypes") ? bfloat16() : NULL;
        PyErr_Clear();
        return half && half->type_num == d->type_num ? PD_BF16 : PD_NO_DTYPE;
    }
    switch (d->type_num) {
    case NPY_BOOL: return PD_BOOL;
    case NPY_UBYTE: return PD_U8;
    case NPY_BYTE: return PD_I8;
    case NPY_SHORT: return PD_I16;
    case NPY_INT: return PD_I32;
    case NPY_LONG: return sizeof(long) == 8 ? PD_I64 : PD_I32;
    case NPY_LONGLONG: return PD_I64;
    case NPY_HALF: return PD_F16;
    case NPY_FLOAT: return PD_F32;
    case NPY_DOUBLE: return PD_F64;
    case NPY_CFLOAT: return PD_C64;
    case NPY_CDOUBLE: return PD_C128;
    default: return PD_NO_DTYPE;
    }
}

/* Whether float64 can hold its numbers, or nearly so (uint64): unsigned integers and the small floats of ml_dtypes. */
static bool is_number(PyArray_Descr *d) {
    if (!PyArray_ISNBO(d->byteorder)) return false;
    if (!PyTypeNum_ISUSERDEF(d->type_num)) return PyTypeNum_ISUNSIGNED(d->type_num);
    PyArray_Descr *wide = PyArray_DescrFromType(NPY_DOUBLE);
    bool fits = wide && PyArray_CanCastTypeTo(d, wide, NPY_SAFE_CASTING);
    Py_XDECREF(wide);
    return fits;
}

/* The dtype through which such numbers are converted to one of this category. */
static int wide_enough(const PyArray_Descr *d, int category) {
    return PyTypeNum_ISUNSIGNED(d->type_num) && category < PD_CAT_FLOAT ? PD_I64 : PD_F64;
}

static void refuse_dtype(const char *op, PyArray_Descr *d, bool may_copy) {
    if (!PyArray_ISNBO(d->byteorder))
        PyErr_Format(pd_py.E_DTYPE, "%s: the array's dtype is %.100S (expected native byte order: "
                     "array.astype(array.dtype.newbyteorder('=')))", op, d);
    else if (PyDataType_HASFIELDS(d))
        PyErr_Format(pd_py.E_DTYPE, "%s: the array's dtype is %.200S (expected an array of numbers, such as one of its "
                     "fields)", op, d);
    else
        PyErr_Format(pd_py.E_DTYPE,
                     "%s: the array's dtype is %.100S, which tensors do not support (expected bool, uint8, int8, "
                     "int16, int32, int64, float16, float32, float64, complex64, complex128 or ml_dtypes.bfloat16%s)",
                     op, d, may_copy && is_number(d) ? "; or dtype=, to convert it" : ": astype()");
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

/* The base of an array: a loan of a tensor's storage, which ends with the last array over it. */
typedef struct { PyObject_HEAD pd_storage *lent; bool written; } loan;

static void loan_dealloc(PyObject *o) {
    loan *l = (loan *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (l->lent) pd_storage_give_back(l->lent, PD_LENT_ARRAY, l->written);
    PyObject_Free(o);
    Py_DECREF(type);
}

/* NumPy asks the base for a writable buffer before it makes an array writeable again. */
static int loan_buffer(PyObject *o, Py_buffer *view, int flags) {
    loan *l = (loan *)o;
    return PyBuffer_FillInfo(view, o, l->lent->data, (Py_ssize_t)l->lent->bytes, !l->written, flags);
}

static PyType_Slot loan_slots[] = {{Py_tp_dealloc, loan_dealloc},
                                   {Py_bf_getbuffer, loan_buffer},
                                   {Py_tp_doc, "Memory of a tensor that a NumPy array uses."},
                                   {0}};
static PyType_Spec loan_spec = {.name = "pydist._C.Loan", .basicsize = sizeof(loan), .slots = loan_slots,
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION};

static loan *lend(pd_tensor *t) {
    loan *l = PyObject_New(loan, (PyTypeObject *)pd_py.Loan);
    if (!l) return NULL;
    l->lent = NULL;
    l->written = !t->storage->read_only;
    pd_status status = pd_storage_lend("numpy", t->storage, PD_LENT_ARRAY, l->written);
    if (!status) {
        l->lent = t->storage;
        return l;
    }
    Py_DECREF(l);
    pd_py_raise(status);
    return NULL;
}

/* [new] the NumPy dtype of a tensor's array; NULL with the exception set. */
static PyArray_Descr *descr_of(pd_dtype dtype) {
    if (types[dtype] != NONE) return PyArray_DescrFromType(types[dtype]);
    PyArray_Descr *d = bfloat16();
    if (!d && PyErr_ExceptionMatches(PyExc_ModuleNotFoundError))
        PyErr_SetString(
            PyExc_TypeError,
            "numpy: NumPy has no bfloat16 (expected float().numpy(), or the package ml_dtypes to be installed)");
    Py_XINCREF(d);
    return d;
}

static bool may_have_array(const pd_tensor *t) {
    if (!pd_py_on_host(t, "numpy")) return false;
    if (!pd_tensor_wants_grad(t)) return true;
    PyErr_SetString(PyExc_RuntimeError, "numpy: the tensor requires grad (expected detach().numpy())");
    return false;
}

PyObject *pd_py_numpy(PyObject *self) {
    if (pd_is_recording()) pd_record_read("numpy()");
    pd_tensor *t = pd_py_tensor(self);
    if (!open_numpy() || !may_have_array(t)) return NULL;
    pd_dtype dtype = (pd_dtype)t->dtype;
    PyArray_Descr *d = descr_of(dtype); /* may import, so other threads may run and change t */
    if (d && dtype != (pd_dtype)t->dtype)
        PyErr_SetString(
            PyExc_RuntimeError,
            "numpy: the tensor changed while ml_dtypes was imported (expected that no other thread writes it)");
    loan *l = d && dtype == (pd_dtype)t->dtype && may_have_array(t) ? lend(t) : NULL;
    if (!l) {
        Py_XDECREF(d);
        return NULL;
    }
    npy_intp shape[PD_MAX_DIMS], strides[PD_MAX_DIMS], each = (npy_intp)pd_dtype_size(dtype);
    for (int i = 0; i < t->ndim; i++) {
        shape[i] = (npy_intp)t->size[i];
        strides[i] = (npy_intp)t->stride[i] * each;
    }
    void *data = pd_tensor_data(t);
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, d, t->ndim, shape, strides, data ? data : l,
                                           l->written ? NPY_ARRAY_WRITEABLE : 0, NULL);
    if (!array) Py_DECREF(l);
    else if (PyArray_SetBaseObject((PyArrayObject *)array, (PyObject *)l)) Py_CLEAR(array);
    return array;
}

/* __array__, which NumPy calls for np.asarray(t) and np.sin(t). */
PyObject *pd_py_array(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:__array__", names, &dtype, &copy)) return NULL;
    int must = copy == Py_None ? 0 : PyObject_IsTrue(copy);
    if (must < 0) return NULL;
    PyObject *array = pd_py_numpy(self), *result = NULL;
    PyArray_Descr *d = NULL;
    if (!array || (dtype == Py_None && !must)) return array;
    if (PyArray_DescrConverter2(dtype, &d)) {
        PyArray_Descr *own = PyArray_DESCR((PyArrayObject *)array);
        if (copy != Py_None && !must && d && !PyArray_EquivTypes(d, own))
            PyErr_Format(PyExc_ValueError,
                         "__array__: %.100S as %.100S needs a copy, but copy is False (expected copy=None)", own, d);
        else {
            Py_XINCREF(d); /* PyArray_FromArray takes a reference */
            result = PyArray_FromArray((PyArrayObject *)array, d,
                                       NPY_ARRAY_FORCECAST | (must ? NPY_ARRAY_ENSURECOPY : 0));
        }
    }
    Py_XDECREF(d);
    Py_DECREF(array);
    return result;
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

/* A flag of the results of np.broadcast_arrays: writeable, but a write warns. NumPy's public headers lack its name. */
enum { WARN_ON_WRITE = INT_MIN };

static bool lies_well(const char *op, PyArrayObject *a) {
    npy_intp each = PyArray_ITEMSIZE(a);
    if (PyArray_NDIM(a) > PD_MAX_DIMS) {
        PyErr_Format(pd_py.E_SHAPE, "%s: the array has %d dimensions (expected at most %d)", op, PyArray_NDIM(a),
                     PD_MAX_DIMS);
        return false;
    }
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        npy_intp stride = PyArray_STRIDE(a, i);
        const char *wrong = stride < 0 ? "negative" : stride % each ? "not a multiple of the element's size" : NULL;
        if (PyArray_DIM(a, i) < 2 || !wrong) continue;
        PyErr_Format(PyExc_ValueError, "%s: stride %zd of dimension %d, in bytes, is %s (expected array.copy())", op,
                     (Py_ssize_t)stride, i, wrong);
        return false;
    }
    return true;
}

static pd_tensor *share(const char *op, PyArrayObject *a, pd_dtype dtype) {
    int64_t size[PD_MAX_DIMS], stride[PD_MAX_DIMS];
    npy_intp each = PyArray_ITEMSIZE(a);
    bool read_only = !PyArray_ISWRITEABLE(a) || PyArray_CHKFLAGS(a, WARN_ON_WRITE);
    pd_tensor *t;
    for (int i = 0; i < PyArray_NDIM(a); i++) {
        size[i] = (int64_t)PyArray_DIM(a, i);
        stride[i] = (int64_t)(PyArray_STRIDE(a, i) / each);
    }
    Py_INCREF(a);
    pd_status status = pd_py_borrow(op, PyArray_DATA(a), dtype, PyArray_NDIM(a), size, stride, read_only, pd_py_drop, a,
                                    &t);
    if (!status) return t;
    Py_DECREF(a);
    pd_py_raise(status);
    return NULL;
}

/* [new] an aligned copy of the array, with NumPy's dtype `type` (NONE: the array's own). */
static PyObject *copied(PyArrayObject *a, int type) {
    PyArray_Descr *d = type == NONE ? NULL : PyArray_DescrFromType(type);
    return PyArray_FromArray(a, d, NPY_ARRAY_CARRAY | NPY_ARRAY_ENSUREARRAY | NPY_ARRAY_ENSURECOPY |
                                       NPY_ARRAY_FORCECAST);
}

static pd_tensor *from_array(const char *op, PyArrayObject *a, PyArray_Descr *d, int64_t wanted, bool may_copy) {
    int dtype = dtype_of(d), type = NONE; /* may import, so other threads may run and change the array */
    if (d != PyArray_DESCR(a)) {
        PyErr_Format(
            PyExc_RuntimeError,
            "%s: the array's dtype changed while the array was read (expected that no other thread changes it)", op);
        return NULL;
    }
    if (dtype == PD_NO_DTYPE && may_copy && wanted != PD_NO_DTYPE && is_number(d)) {
        dtype = wide_enough(d, pd_dtype_category((pd_dtype)wanted));
        type = types[dtype];
    }
    if (dtype == PD_NO_DTYPE) {
        refuse_dtype(op, d, may_copy);
        return NULL;
    }
    if (!lies_well(op, a)) return NULL;
    if (type == NONE && (!may_copy || PyArray_ISALIGNED(a))) return share(op, a, (pd_dtype)dtype);
    PyObject *copy = copied(a, type);
    pd_tensor *t = copy ? share(op, (PyArrayObject *)copy, (pd_dtype)dtype) : NULL;
    Py_XDECREF(copy);
    return t;
}

pd_tensor *pd_py_from_array(const char *op, PyObject *o, int64_t wanted, bool may_copy) {
    PyObject *a = PyArray_Check(o) ? Py_NewRef(o) : PyArray_FromScalar(o, NULL);
    if (!a) return NULL;
    PyArray_Descr *d = PyArray_DESCR((PyArrayObject *)a);
    Py_INCREF(d);
    pd_tensor *t = from_array(op, (PyArrayObject *)a, d, wanted, may_copy);
    Py_DECREF(d);
    Py_DECREF(a);
    return t;
}

pd_tensor *pd_py_array_part(PyObject *o) {
    if (!pd_py_is_array(o) || !PyArray_Check(o)) return NULL;
    if (!PyArray_NDIM((PyArrayObject *)o) || !PyArray_SIZE((PyArrayObject *)o)) return NULL;
    pd_tensor *t = pd_py_from_array("tensor", o, PD_NO_DTYPE, true);
    if (!t) PyErr_Clear();
    return t;
}

bool pd_py_array_dtype(const char *op, PyObject *o, bool may_convert, pd_dtype *out) {
    PyArray_Descr *d = PyArray_Check(o) ? (PyArray_Descr *)Py_NewRef(PyArray_DESCR((PyArrayObject *)o))
                                        : PyArray_DescrFromScalar(o);
    if (!d) return false;
    int dtype = dtype_of(d);
    if (dtype == PD_NO_DTYPE && may_convert && is_number(d)) dtype = wide_enough(d, PD_CAT_INT);
    if (dtype == PD_NO_DTYPE) refuse_dtype(op, d, true);
    Py_DECREF(d);
    *out = (pd_dtype)dtype;
    return dtype != PD_NO_DTYPE;
}

static PyObject *from_numpy(PyObject *module, PyObject *array) {
    (void)module;
    if (!PyObject_CheckBuffer(array))
        return PyErr_Format(PyExc_TypeError, "from_numpy: got %.100s (expected a NumPy array)",
                            Py_TYPE(array)->tp_name);
    pd_tensor *t = pd_py_is_array(array) ? pd_py_from_array("from_numpy", array, PD_NO_DTYPE, false)
                                         : pd_py_from_buffer(array, false);
    if (t && pd_is_recording()) pd_record_constant(t, true);
    return t ? pd_py_wrap_new(t) : NULL;
}

static PyMethodDef functions[] = {
    {"from_numpy", from_numpy, METH_O,
     "from_numpy(array)\n\nA tensor over the memory of an array, or of any object with the buffer protocol. Writes are "
     "visible on both\nsides, and the array lives as long as the tensor needs it. In-place ops refuse a tensor over a "
     "read-only array.\ndtypes: bool, uint8, int8 to int64, float16, float32, float64, complex64, complex128, and "
     "bfloat16 of ml_dtypes.\nErrors: TypeError for other objects; DTypeError for other dtypes and for a byte order "
     "that is not native;\nValueError for negative strides, strides that are not a multiple of the element's size, and "
     "unaligned memory;\nShapeError for more than 16 dimensions."},
    {0}};

int pd_py_add_numpy(PyObject *module) {
    if (!pd_py_type(NULL, &loan_spec, NULL, &pd_py.Loan)) return -1;
    return PyModule_AddFunctions(module, functions);
}
