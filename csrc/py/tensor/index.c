/* x[key] and x[key] = value: integers, slices, None, Ellipsis, bools, tensors, lists, arrays, and tuples of these. */
#include "base/mem.h"
#include "ops/ops.h"
#include "py/py.h"

typedef struct { int64_t dim, index; } select_attrs;
typedef struct { int64_t dim, start, end, step; } slice_attrs;

/* The view by the basic parts of a key, and the tensors by which the view is indexed then (NULL: a whole dimension). */
typedef struct indexed {
    pd_tensor *view;               /* [new] */
    pd_tensor *tensors[PD_MAX_DIMS]; /* [new] */
    int n;                         /* how many tensors; 0: basic indexing only */
    int covered;                   /* dimensions of the view that they are for */
    bool advanced;
    int source;                    /* how many dimensions of the user's tensor are done, for messages */
} indexed;

static void clear(indexed *x) {
    pd_tensor_release(x->view);
    for (int i = 0; i < x->n; i++) pd_tensor_release(x->tensors[i]);
}

static bool step(indexed *x, pd_op_id op, const void *attrs) {
    pd_tensor *next;
    pd_status status = pd_call1(op, x->view, attrs, &next);
    if (status) {
        pd_py_raise(status);
        return false;
    }
    pd_tensor_release(x->view);
    x->view = next;
    return true;
}

static bool is_tensor_like(PyObject *o) { /* NumPy's scalars and 0-d arrays count as integers, not as tensors */
    if (pd_py_is_tensor(o)) return pd_py_tensor(o)->ndim || pd_is_mask(pd_py_tensor(o));
    if (PyList_Check(o) || PyBool_Check(o) || PyTuple_Check(o) || PyRange_Check(o)) return true;
    if (!PyObject_CheckBuffer(o) || !PySequence_Check(o) || PyBytes_Check(o)) return false;
    bool sized = PyObject_Size(o) >= 0;
    PyErr_Clear();
    return sized;
}

/* How many dimensions of the tensor an entry of the key is for. */
static Py_ssize_t takes(PyObject *o) {
    if (o == Py_None || o == Py_Ellipsis || PyBool_Check(o)) return 0;
    if (pd_py_is_tensor(o) && pd_is_mask(pd_py_tensor(o))) return pd_py_tensor(o)->ndim;
    return 1;
}

static bool add_tensor(indexed *x, PyObject *o, int *dim) {
    pd_tensor *t;
    if (PyBool_Check(o)) { /* x[True]: a new dimension, selected or not */
        if (!step(x, PD_OP_unsqueeze, &(int64_t){*dim})) return false;
        int64_t one = 1;
        pd_status status = pd_tensor_new("index", PD_BOOL, 1, &one, &t);
        if (status) {
            pd_py_raise(status);
            return false;
        }
        *(uint8_t *)pd_tensor_data(t) = o == Py_True;
        if (pd_is_recording()) pd_record_constant(t, true);
    } else if (pd_py_is_tensor(o)) {
        pd_tensor_retain(t = pd_py_tensor(o));
    } else if (!(t = pd_py_from_data("index", o, PD_NO_DTYPE, PD_PY_COPY_IF_NEEDED))) {
        return false;
    } else if (t->numel == 0 && t->dtype == PD_F32) { /* x[[]] */
        pd_tensor *whole;
        pd_status status = pd_engine.cast(t, PD_I64, &whole);
        pd_tensor_release(t);
        if (status) {
            pd_py_raise(status);
            return false;
        }
        t = whole;
    }
    int64_t covers = pd_is_mask(t) ? t->ndim : 1;
    if (covers == 0) { /* a 0-d mask is like x[True] */
        pd_scalar at;
        bool read = pd_py_scalar(t, PD_WAIT, &at), on = read && at.i;
        pd_tensor_release(t);
        if (!read) return false;
        return add_tensor(x, on ? Py_True : Py_False, dim);
    }
    if (*dim >= PD_MAX_DIMS) { /* an index has changed since its dimensions were counted */
        pd_tensor_release(t);
        PyErr_Format(PyExc_IndexError,
                     "index: too many indices for tensor of shape %s (expected at most one for each dimension)",
                     pd_tensor_shape(x->view));
        return false;
    }
    for (; x->covered < *dim; x->covered++) x->tensors[x->n++] = NULL;
    x->tensors[x->n++] = t;
    x->covered += (int)covers; /* one entry for all dimensions of a mask */
    x->advanced = true;
    *dim += (int)covers;
    x->source += (int)covers;
    if (covers > 1 && *dim > x->view->ndim) {
        PyErr_Format(PyExc_IndexError,
                     "index: the mask has shape %s, the tensor %s (expected equal sizes of the dimensions that the "
                     "mask covers)",
                     pd_tensor_shape(t), pd_tensor_shape(x->view));
        return false;
    }
    return true;
}

static bool add_slice(indexed *x, PyObject *o, int *dim) {
    Py_ssize_t start, stop, by;
    if (*dim >= x->view->ndim) {
        PyErr_Format(PyExc_IndexError,
                     "index: too many indices for tensor of shape %s (expected at most one for each dimension)",
                     pd_tensor_shape(x->view));
        return false;
    }
    if (PySlice_Unpack(o, &start, &stop, &by)) return false;
    if (by < 1) {
        PyErr_Format(PyExc_ValueError, "index: step is %zd (expected at least 1)", by);
        return false;
    }
    slice_attrs a = {*dim, start, stop, by};
    bool whole = start == 0 && stop == PY_SSIZE_T_MAX && by == 1;
    if (!whole && !step(x, PD_OP_slice, &a)) return false;
    ++*dim;
    x->source++;
    return true;
}

static bool add_int(indexed *x, PyObject *o, int dim) {
    PyObject *number = PyNumber_Index(o);
    int64_t i;
    bool ok = number && pd_py_int(number, "index", "the index", &i);
    Py_XDECREF(number);
    if (!ok) return false;
    if (dim >= x->view->ndim) {
        PyErr_Format(PyExc_IndexError,
                     "index: too many indices for tensor of shape %s (expected at most one for each dimension)",
                     pd_tensor_shape(x->view));
        return false;
    }
    int64_t size = x->view->size[dim];
    if (i < -size || i >= size) {
        PyErr_Format(PyExc_IndexError, "index %lld is out of range for dimension %d of size %lld", (long long)i,
                     x->source, (long long)size);
        return false;
    }
    x->source++;
    return step(x, PD_OP_select, &(select_attrs){dim, i});
}

static bool add_entry(indexed *x, PyObject *o, int *dim, Py_ssize_t skip) {
    if (o == Py_None) {
        if (!step(x, PD_OP_unsqueeze, &(int64_t){*dim})) return false;
        ++*dim;
        return true;
    }
    if (o == Py_Ellipsis) {
        *dim += (int)skip;
        x->source += (int)skip;
        return true;
    }
    if (PySlice_Check(o)) return add_slice(x, o, dim);
    if (is_tensor_like(o)) return add_tensor(x, o, dim);
    if (!PyIndex_Check(o)) {
        PyErr_Format(PyExc_TypeError,
                     "index: got an index of type %.100s (expected int, slice, None, Ellipsis, Tensor, list or range)",
                     Py_TYPE(o)->tp_name);
        return false;
    }
    return add_int(x, o, *dim);
}

static bool apply_key(PyObject *self, PyObject *key, indexed *x) {
    PyObject *one[1] = {key}, **entries = one;
    Py_ssize_t n = 1, used = 0;
    if (PyTuple_Check(key)) {
        n = PyTuple_GET_SIZE(key);
        entries = &PyTuple_GET_ITEM(key, 0);
    }
    *x = (indexed){.view = pd_py_tensor(self)};
    pd_tensor_retain(x->view);
    int dim = 0, dots = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        used += takes(entries[i]);
        dots += entries[i] == Py_Ellipsis;
    }
    Py_ssize_t skip = x->view->ndim - used;
    bool ok = true;
    if (skip < 0 || dots > 1) {
        PyErr_Format(PyExc_IndexError,
                     dots > 1
                         ? "index: got more than one Ellipsis (expected at most one)"
                         : "index: too many indices for tensor of shape %s (expected at most one for each dimension)",
                     pd_tensor_shape(x->view));
        ok = false;
    }
    for (Py_ssize_t i = 0; i < n && ok; i++) ok = x->n + 1 < PD_MAX_DIMS && add_entry(x, entries[i], &dim, skip);
    if (!ok) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "index: the index has too many entries (expected at most 15)");
        clear(x);
    }
    return ok;
}

PyObject *pd_py_getitem(PyObject *self, PyObject *key) {
    indexed x;
    pd_tensor *out;
    pd_py_drain();
    if (!apply_key(self, key, &x)) return NULL;
    if (!x.advanced) {
        if (x.view == pd_py_tensor(self)) { /* x[...] gives a new view, too */
            pd_shape_attrs same = {.shape = {.n = x.view->ndim}};
            memcpy(same.shape.v, x.view->size, sizeof(int64_t) * (size_t)x.view->ndim);
            if (pd_tensor_is_contiguous(x.view) && !step(&x, PD_OP_view, &same)) {
                clear(&x);
                return NULL;
            }
        }
        return pd_py_wrap_new(x.view);
    }
    pd_tensor *in[1 + PD_MAX_DIMS] = {x.view};
    memcpy(in + 1, x.tensors, sizeof *in * (size_t)x.n);
    pd_status status = pd_apply(PD_DEF(index), in, 1 + x.n, NULL, &out, NULL);
    clear(&x);
    return status ? pd_py_raise(status) : pd_py_wrap_new(out);
}

/* As in PyTorch, a value may have additional dimensions of size 1 in front. */
static pd_status without_leading_ones(pd_tensor **v) {
    pd_status status = PD_OK;
    while (!status && (*v)->ndim && (*v)->size[0] == 1) {
        pd_tensor *next;
        status = pd_call1(PD_OP_select, *v, &(select_attrs){0, 0}, &next);
        if (status) break;
        pd_tensor_release(*v);
        *v = next;
    }
    return status;
}

int pd_py_setitem(PyObject *self, PyObject *key, PyObject *value) {
    indexed x;
    pd_tensor *v = NULL;
    pd_scalar number;
    pd_status status = PD_OK;
    pd_py_drain();
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "index: elements of a tensor cannot be deleted (expected an assignment)");
        return -1;
    }
    bool is_number = !pd_py_is_tensor(value) && pd_py_number(value, &number);
    if (PyErr_Occurred() || !apply_key(self, key, &x)) return -1;
    if (pd_py_is_tensor(value)) pd_tensor_retain(v = pd_py_tensor(value));
    else if (!is_number) {
        pd_tensor *data = pd_py_from_data("setitem", value, PD_NO_DTYPE, PD_PY_COPY_IF_NEEDED);
        if (!data) {
            clear(&x);
            return -1;
        }
        status = pd_move(data, x.view->storage->device, PD_WAIT, &v);
        pd_tensor_release(data);
    } else if (x.advanced) {
        status = pd_tensor_new("setitem", (pd_dtype)x.view->dtype, 0, NULL, &v);
        PD_THEN(pd_scalar_fits("setitem", &number, (pd_dtype)x.view->dtype));
        if (!status) pd_scalar_store(&number, (pd_dtype)x.view->dtype, pd_tensor_data(v));
        if (!status && pd_is_recording()) pd_record_constant(v, true);
    }
    if (!status && v) status = without_leading_ones(&v);
    if (!status && x.advanced) status = pd_index_put(x.view, x.tensors, x.n, v, false);
    else if (!status && v) status = pd_engine.write(x.view, v);
    else PD_THEN(pd_apply_into(PD_DEF(fill), &x.view, 1, &number, x.view));
    pd_tensor_release(v);
    clear(&x);
    if (status) pd_py_raise(status);
    return status ? -1 : 0;
}
