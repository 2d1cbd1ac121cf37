/* Makes tensors: filled ones, ranges, random ones. */
#include <math.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "py/py.h"

/* ---- keyword arguments that all have ----------------------------------------------------------------------------- */

typedef struct { PyObject *dtype, *device, *requires_grad, *generator, *pin, *layout, *out, *size, *format; } options;
typedef enum draw_kind { CONSTANT, NOTHING, UNIFORM, NORMAL, INTEGERS, PERMUTATION } draw_kind;

/* What fills a tensor of this look with random numbers. */
typedef struct draw_attrs {
    int64_t kind, dtype, ndim, low, high, size[PD_MAX_DIMS];
    const pd_device *device;
} draw_attrs;

typedef struct {
    int64_t dtype;
    bool requires_grad;
    pd_rng_key key;
    draw_attrs draw;
    const pd_device *device;
    PyObject *out;
    const char *op;
} chosen; /* device, out NULL: not given */

/* The device of what this thread makes without one; NULL: the CPU. */
static _Thread_local const pd_device *by_default;

/* Reads the keywords that these functions share; an unknown one is an error. */
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
            PyErr_Format(PyExc_TypeError, "%s: got an unexpected keyword argument %R", op, key);
            return false;
        }
        *to[i] = value;
    }
    if (o->format == Py_None) o->format = NULL;
    if (o->format && !pd_py_format(o->format, op)) return false;
    c->out = o->out == Py_None ? NULL : o->out;
    c->op = op;
    c->draw.kind = CONSTANT;
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
    if (c->requires_grad && pd_dtype_category((pd_dtype)t->dtype) < PD_CAT_FLOAT) {
        PyErr_Format(PyExc_RuntimeError,
                     "requires_grad: only Tensors of floating point and complex dtype can require gradients: got %s "
                     "(expected a floating or complex dtype)",
                     pd_dtype_name((pd_dtype)t->dtype));
        pd_tensor_release(t);
        return NULL;
    }
    if (c->device && c->device != t->storage->device) {
        pd_tensor *there;
        pd_status status = pd_move(t, c->device, PD_WAIT_UNLOCKED, &there);
        pd_tensor_release(t);
        PD_PY_TRY(status);
        t = there;
    }
    if (c->out) {
        bool done = pd_py_write_out(c->op, c->out, t);
        pd_tensor_release(t);
        return done ? Py_NewRef(c->out) : NULL;
    }
    t->requires_grad = c->requires_grad;
    return pd_py_wrap_new(t);
}

static const pd_device *device_of(const chosen *c) {
    return c->device ? c->device : by_default ? by_default : &pd_device_cpu;
}

/* The key of a draw; on meta nothing is drawn. */
static bool draw(PyObject *generator, chosen *c) {
    c->key = (pd_rng_key){0};
    return device_of(c) == &pd_device_meta || pd_py_rng_key(generator, c->op, &c->key);
}

/* ---- draws ------------------------------------------------------------------------------------------------------- */

static void fill_drawn(const draw_attrs *a, pd_rng_key key, pd_tensor *t) {
    bool pairs = pd_dtype_is_complex((pd_dtype)a->dtype); /* whose parts together have variance 1 */
    pd_dtype part = pd_dtype_part((pd_dtype)a->dtype);
    int64_t n = pairs ? 2 * t->numel : t->numel;
    if (a->kind == NORMAL) pd_here()->normal(part, n, 0, pairs ? sqrt(0.5) : 1, key, pd_tensor_data(t));
    if (a->kind == UNIFORM) pd_here()->uniform(part, n, 0, 1, key, pd_tensor_data(t));
    if (a->kind == INTEGERS) pd_here()->randint(part, n, a->low, a->high, key, pd_tensor_data(t));
    if (a->kind == PERMUTATION) pd_here()->randperm(n, key, pd_tensor_data(t));
}

static pd_status run_draw(const void *attrs, pd_tensor *const *in, int nin, pd_tensor **out, int nout) {
    const draw_attrs *a = attrs;
    const pd_device *was;
    (void)in, (void)nin, (void)nout;
    PD_TRY(pd_device_enter(a->device, &was));
    pd_status status = pd_tensor_new("replay", (pd_dtype)a->dtype, (int)a->ndim, a->size, out);
    if (!status) {
        fill_drawn(a, a->device == &pd_device_meta ? (pd_rng_key){0} : pd_rng_next(), *out);
        if ((status = pd_device_check(a->device, "replay"))) pd_tensor_release(*out);
    }
    pd_device_here = was;
    return status;
}
static const pd_instr_kind draw_instr = {.name = "a draw of random numbers", .run = run_draw};

/* Tells the recorder of programs about a new tensor. */
static void record(pd_tensor *t, const chosen *c) {
    if (c->requires_grad) pd_record_refuse("%s() makes a leaf that requires a gradient", c->op);
    if (c->draw.kind == CONSTANT || c->draw.kind == NOTHING) pd_record_constant(t, c->draw.kind == CONSTANT);
    else pd_record(pd_timespan_mark, &draw_instr, &c->draw, sizeof c->draw, NULL, 0, &t, 1);
}

/* Draws into t by c->key. */
static void draw_into(pd_tensor *t, chosen *c, draw_kind kind, int64_t low, int64_t high) {
    c->draw = (draw_attrs){.kind = kind, .dtype = t->dtype, .ndim = t->ndim, .low = low, .high = high,
                           .device = pd_device_here};
    memcpy(c->draw.size, t->size, sizeof *t->size * (size_t)t->ndim);
    fill_drawn(&c->draw, c->key, t);
}

/* *out [new]: a tensor on the device that was asked for, which stays the current one until `filled`. */
static bool made_there(const chosen *c, int ndim, const int64_t *size, const int64_t *stride, pd_tensor **out,
                       const pd_device **was) {
    if (!pd_py_at(device_of(c), was)) return false;
    pd_status status = pd_tensor_new(c->op, (pd_dtype)c->dtype, ndim, size, out);
    if (!status && stride) memcpy((*out)->stride, stride, sizeof *stride * (size_t)ndim);
    if (!status) return true;
    pd_device_here = *was;
    pd_py_raise(status);
    return false;
}
static PyObject *filled(pd_tensor *t, const chosen *c, const pd_device *was) {
    pd_status status = pd_device_check(pd_device_here, c->op);
    pd_device_here = was;
    if (pd_is_recording()) record(t, c);
    if (!status) return finish(t, c);
    pd_tensor_release(t);
    return pd_py_raise(status);
}

/* Reads sizes from argument `first` on: f(2, 3), f((2, 3)) or f(size=(2, 3)). */
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

/* ---- the functions ----------------------------------------------------------------------------------------------- */

#define F(name) static PyObject *f_##name(PyObject *module, PyObject *args, PyObject *kwargs)

PyObject *pd_py_filled(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype, const pd_device *device,
                       const double *value) {
    options o;
    chosen c;
    pd_ints size;
    pd_tensor *t;
    const pd_device *was;
    if (!read_options(op, kwargs, &o, &c, dtype) || !read_size(op, args, 0, &o, &size)) return NULL;
    if (!c.device) c.device = device;
    pd_scalar number = {.d = value ? *value : 0, .i = value ? (int64_t)*value : 0, .cat = PD_CAT_INT};
    if (!made_there(&c, (int)size.n, size.v, NULL, &t, &was)) return NULL;
    if (value) pd_fill(t, &number);
    else c.draw.kind = NOTHING;
    return filled(t, &c, was);
}
F(empty) { (void)module; return pd_py_filled("empty", args, kwargs, pd_default_dtype, NULL, NULL); }
F(zeros) { (void)module; return pd_py_filled("zeros", args, kwargs, pd_default_dtype, NULL, &(double){0}); }
F(ones) { (void)module; return pd_py_filled("ones", args, kwargs, pd_default_dtype, NULL, &(double){1}); }

PyObject *pd_py_full(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype, const pd_device *device) {
    options o;
    chosen c;
    pd_ints size;
    pd_scalar value;
    pd_tensor *t;
    const pd_device *was;
    if (PyTuple_GET_SIZE(args) != 2)
        return PyErr_Format(PyExc_TypeError, "%s: arguments are missing (expected size and fill_value)", op);
    PyObject *v = PyTuple_GET_ITEM(args, 1);
    if (!pd_py_value(v, &value))
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_TypeError, "%s: fill_value is %.100s (expected a number)", op,
                                               Py_TYPE(v)->tp_name);
    if (dtype == PD_NO_DTYPE) dtype = pd_py_number_dtype(&value);
    if (!read_options(op, kwargs, &o, &c, dtype) || !pd_py_ints(PyTuple_GET_ITEM(args, 0), op, "size", &size))
        return NULL;
    if (!c.device) c.device = device;
    PD_PY_TRY(pd_scalar_fits(op, &value, (pd_dtype)c.dtype));
    if (!made_there(&c, (int)size.n, size.v, NULL, &t, &was)) return NULL;
    pd_fill(t, &value);
    return filled(t, &c, was);
}
F(full) { (void)module; return pd_py_full("full", args, kwargs, PD_NO_DTYPE, NULL); }

static PyObject *like(const char *op, PyObject *args, PyObject *kwargs, const double *value) {
    options o;
    chosen c;
    const pd_device *was;
    pd_tensor *t, *x = PyTuple_GET_SIZE(args) >= 1 ? pd_py_expect_tensor(PyTuple_GET_ITEM(args, 0), op, "input") : NULL;
    if (!x)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "%s: argument 'input' is missing (expected Tensor)", op);
    if (!read_options(op, kwargs, &o, &c, x->dtype)) return NULL;
    pd_spread *spread = pd_parts_are_plain ? NULL : x->spread;
    if (spread && spread->combined && value && *value) spread = spread->gradient; /* ones in summands make no ones */
    bool keep = !o.format || o.format == pd_py.preserve_format;
    int64_t last[5];
    const int ndim = pd_py_format_ndim(o.format);
    const int64_t *stride = keep && pd_shape_is_dense(x->ndim, x->size, x->stride) ? x->stride : NULL;
    if (ndim) {
        if (x->ndim != ndim)
            return PyErr_Format(PyExc_RuntimeError, "%s: memory_format is %R: got %d dimensions (expected %d)", op,
                                o.format, x->ndim, ndim);
        pd_shape_channels_last(ndim, x->size, last);
        stride = last;
    }
    if (!c.device) c.device = x->storage->device;
    pd_scalar number = {.d = value ? *value : 0, .i = value ? (int64_t)*value : 0, .cat = PD_CAT_INT};
    if (!made_there(&c, x->ndim, x->size, stride, &t, &was)) return NULL;
    if (spread) pd_tensor_set_spread(t, spread);
    if (value) pd_fill(t, &number);
    else c.draw.kind = NOTHING;
    return filled(t, &c, was);
}
F(empty_like) { (void)module; return like("empty_like", args, kwargs, NULL); }
F(zeros_like) { (void)module; return like("zeros_like", args, kwargs, &(double){0}); }
F(ones_like) { (void)module; return like("ones_like", args, kwargs, &(double){1}); }

PyObject *pd_py_new_tensor(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype, const pd_device *device) {
    options o;
    chosen c;
    if (PyTuple_GET_SIZE(args) != 1)
        return PyErr_Format(PyExc_TypeError, "%s: the number of arguments is wrong (expected one, data)", op);
    if (!read_options(op, kwargs, &o, &c, dtype)) return NULL;
    if (!c.device) c.device = device;
    if (!c.device && !pd_py_is_tensor(PyTuple_GET_ITEM(args, 0))) c.device = by_default;
    pd_tensor *t = pd_py_from_data(op, PyTuple_GET_ITEM(args, 0), c.dtype, PD_PY_COPY_ALWAYS);
    return t ? finish(t, &c) : NULL;
}
F(tensor) { (void)module; return pd_py_new_tensor("tensor", args, kwargs, PD_NO_DTYPE, NULL); }

F(as_tensor) {
    options o;
    chosen c;
    (void)module;
    if (PyTuple_GET_SIZE(args) != 1)
        return PyErr_Format(PyExc_TypeError, "as_tensor: the number of arguments is wrong (expected one, data)");
    PyObject *data = PyTuple_GET_ITEM(args, 0);
    if (!read_options("as_tensor", kwargs, &o, &c, PD_NO_DTYPE)) return NULL;
    if (pd_py_is_tensor(data) && (c.dtype == PD_NO_DTYPE || c.dtype == pd_py_tensor(data)->dtype) &&
        (!c.device || c.device == pd_py_tensor(data)->storage->device))
        return Py_NewRef(data);
    if (!c.device && !pd_py_is_tensor(data)) c.device = by_default;
    pd_tensor *t = pd_py_from_data("as_tensor", data, c.dtype, PD_PY_COPY_IF_NEEDED);
    return t ? finish(t, &c) : NULL;
}

/* asarray (pydist/_make.py) for what is no tensor: _asarray(data, dtype, device, copy, requires_grad). */
static PyObject *f_asarray(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    chosen c = {.op = "asarray", .dtype = PD_NO_DTYPE};
    pd_py_copying copying = PD_PY_COPY_IF_NEEDED;
    (void)module;
    if (n != 5) return PyErr_Format(PyExc_TypeError, "_asarray: got %zd arguments (expected 5)", n);
    if (!pd_py_dtype(args[1], "asarray", "dtype", &c.dtype)) return NULL;
    c.device = args[2] == Py_None ? by_default : pd_py_device(args[2], "asarray");
    if (!c.device && args[2] != Py_None) return NULL;
    if (args[3] != Py_None) {
        int must = PyObject_IsTrue(args[3]);
        if (must < 0) return NULL;
        copying = must ? PD_PY_COPY_ALWAYS : PD_PY_COPY_NEVER;
    }
    int wants = PyObject_IsTrue(args[4]);
    if (wants < 0) return NULL;
    c.requires_grad = wants;
    if (copying == PD_PY_COPY_NEVER && c.device && c.device != &pd_device_cpu)
        return PyErr_Format(PyExc_ValueError,
                            "asarray: a tensor on %s needs a copy, but copy is False (expected copy=None)",
                            c.device->name);
    pd_tensor *t = pd_py_from_data("asarray", args[0], c.dtype, copying);
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
        return PyErr_Format(PyExc_TypeError,
                            "arange: got %zd arguments (expected end; or start, end; or start, end, step)", n);
    for (Py_ssize_t i = 0; i < n; i++) {
        pd_scalar *to = &v[n == 1 ? 1 : i];
        if (!pd_py_value(PyTuple_GET_ITEM(args, i), to))
            return PyErr_Occurred()
                       ? NULL
                       : PyErr_Format(PyExc_TypeError, "arange: start, end or step is not a number (expected numbers)");
        if (to->cat == PD_CAT_COMPLEX)
            return PyErr_Format(PyExc_TypeError, "arange: start, end or step is complex (expected real numbers)");
        if (to->cat > category) category = (int)to->cat;
    }
    if (!read_options("arange", kwargs, &o, &c, category == PD_CAT_INT ? PD_I64 : pd_default_dtype)) return NULL;
    double start = v[0].cat == PD_CAT_FLOAT ? v[0].d : (double)v[0].i,
           end = v[1].cat == PD_CAT_FLOAT ? v[1].d : (double)v[1].i;
    double by = v[2].cat == PD_CAT_FLOAT ? v[2].d : (double)v[2].i, count = (end - start) / by;
    if (!(by != 0) || !(count >= 0) || !(count < 1e15))
        return PyErr_Format(
            PyExc_ValueError,
            "arange: start, end and step do not fit together (expected a nonzero step that leads from start to end)");
    int64_t size = (int64_t)count + (count > (double)(int64_t)count);
    pd_tensor *t;
    const pd_device *was;
    if (pd_dtype_is_complex((pd_dtype)c.dtype))
        return PyErr_Format(pd_py.E_DTYPE, "arange: dtype is %s (expected a real dtype)",
                            pd_dtype_name((pd_dtype)c.dtype));
    if (!made_there(&c, 1, &size, NULL, &t, &was)) return NULL;
    pd_here()->range((pd_dtype)c.dtype, pd_tensor_data(t), size, start, by);
    return filled(t, &c, was);
}

static PyObject *drawn(const char *op, PyObject *args, PyObject *kwargs, bool normal) {
    options o;
    chosen c;
    pd_ints size;
    pd_tensor *t;
    const pd_device *was;
    if (!read_options(op, kwargs, &o, &c, pd_default_dtype) || !read_size(op, args, 0, &o, &size)) return NULL;
    if (pd_dtype_category((pd_dtype)c.dtype) < PD_CAT_FLOAT)
        return PyErr_Format(pd_py.E_DTYPE, "%s: dtype is %s (expected a floating or complex dtype)", op,
                            pd_dtype_name((pd_dtype)c.dtype));
    if (!draw(o.generator, &c)) return NULL;
    if (!made_there(&c, (int)size.n, size.v, NULL, &t, &was)) return NULL;
    draw_into(t, &c, normal ? NORMAL : UNIFORM, 0, 0);
    return filled(t, &c, was);
}
F(rand) { (void)module; return drawn("rand", args, kwargs, false); }
F(randn) { (void)module; return drawn("randn", args, kwargs, true); }

F(randint) {
    options o;
    chosen c;
    pd_ints size;
    int64_t low = 0, high;
    pd_tensor *t;
    const pd_device *was;
    (void)module;
    Py_ssize_t n = PyTuple_GET_SIZE(args),
               at = n == 3 || (n == 2 && kwargs && PyDict_GetItemString(kwargs, "size")) ? 1 : 0;
    if (n < 1 || n > 3)
        return PyErr_Format(PyExc_TypeError,
                            "randint: the arguments do not fit (expected (high, size) or (low, high, size))");
    if (!read_options("randint", kwargs, &o, &c, PD_I64)) return NULL;
    if (at && !pd_py_int(PyTuple_GET_ITEM(args, 0), "randint", "low", &low)) return NULL;
    if (!pd_py_int(PyTuple_GET_ITEM(args, at), "randint", "high", &high) ||
        !read_size("randint", args, at + 1, &o, &size))
        return NULL;
    if (pd_dtype_is_complex((pd_dtype)c.dtype))
        return PyErr_Format(pd_py.E_DTYPE, "randint: dtype is %s (expected a real dtype)",
                            pd_dtype_name((pd_dtype)c.dtype));
    if (low >= high)
        return PyErr_Format(PyExc_ValueError, "randint: low is %lld, high is %lld (expected low < high)",
                            (long long)low, (long long)high);
    if (!draw(o.generator, &c)) return NULL;
    if (!made_there(&c, (int)size.n, size.v, NULL, &t, &was)) return NULL;
    draw_into(t, &c, INTEGERS, low, high);
    return filled(t, &c, was);
}

F(randperm) {
    options o;
    chosen c;
    int64_t n;
    pd_tensor *t;
    const pd_device *was;
    (void)module;
    if (PyTuple_GET_SIZE(args) != 1 || !pd_py_int(PyTuple_GET_ITEM(args, 0), "randperm", "n", &n))
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_TypeError, "randperm: the number of arguments is wrong (expected one, n)");
    if (!read_options("randperm", kwargs, &o, &c, PD_I64)) return NULL;
    if (c.dtype != PD_I64)
        return PyErr_Format(pd_py.E_DTYPE, "randperm: dtype is %s (expected int64)", pd_dtype_name((pd_dtype)c.dtype));
    if (n < 0) return PyErr_Format(PyExc_ValueError, "randperm: n is %lld (expected at least 0)", (long long)n);
    if (!draw(o.generator, &c)) return NULL;
    if (!made_there(&c, 1, &n, NULL, &t, &was)) return NULL;
    draw_into(t, &c, PERMUTATION, 0, 0);
    return filled(t, &c, was);
}

static PyObject *f_place_by_default(PyObject *module, PyObject *device) {
    const pd_device *d = pd_py_device(device, "set_default_device");
    (void)module;
    if (!d) return NULL;
    by_default = d;
    Py_RETURN_NONE;
}

static PyObject *f_set_default_dtype(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"d", NULL};
    int64_t dtype;
    PyObject *o;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:set_default_dtype", names, &o)) return NULL;
    if (!pd_py_dtype(o, "set_default_dtype", "d", &dtype)) return NULL;
    if (dtype == PD_NO_DTYPE || !pd_dtype_is_float((pd_dtype)dtype))
        return PyErr_Format(PyExc_TypeError, "set_default_dtype: d is %R (expected a floating dtype)", o);
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
    if (PyTuple_GET_SIZE(args) != 2)
        return PyErr_Format(PyExc_TypeError, "promote_types: the arguments do not fit (expected two dtypes)");
    if (!pd_py_dtype(PyTuple_GET_ITEM(args, 0), "promote_types", "type1", &a) ||
        !pd_py_dtype(PyTuple_GET_ITEM(args, 1), "promote_types", "type2", &b))
        return NULL;
    if (a == PD_NO_DTYPE || b == PD_NO_DTYPE)
        return PyErr_Format(PyExc_TypeError, "promote_types: the arguments do not fit (expected two dtypes)");
    return Py_NewRef(pd_py.dtypes[pd_dtype_promote((pd_dtype)a, (pd_dtype)b)]);
}
static PyObject *f_result_type(PyObject *module, PyObject *args) {
    pd_tensor *in[2] = {0};
    pd_scalar numbers[2] = {{.cat = -1}, {.cat = -1}};
    const pd_scalar *scalars[2] = {&numbers[0], &numbers[1]};
    (void)module;
    if (PyTuple_GET_SIZE(args) != 2)
        return PyErr_Format(PyExc_TypeError,
                            "result_type: the number of arguments is wrong (expected two tensors or numbers)");
    for (int i = 0; i < 2; i++) {
        PyObject *o = PyTuple_GET_ITEM(args, i);
        if (pd_py_is_tensor(o)) in[i] = pd_py_tensor(o);
        else if (!pd_py_number(o, &numbers[i]))
            return PyErr_Occurred() ? NULL
                                    : PyErr_Format(PyExc_TypeError,
                                                   "result_type: an argument is %.100s (expected Tensor or a number)",
                                                   Py_TYPE(o)->tp_name);
    }
    return Py_NewRef(pd_py.dtypes[pd_result_type(in, 2, scalars, 2)]);
}

/* The same functions, with names for their positional arguments. */
#define NAMED(name, ...)                                                                     \
    static PyObject *n_##name(PyObject *module, PyObject *args, PyObject *kwargs) {          \
        static const char *const names[] = {__VA_ARGS__, NULL};                              \
        return pd_py_with_names(f_##name, false, #name, module, args, kwargs, names);        \
    }
NAMED(tensor, "data")
NAMED(as_tensor, "data")
NAMED(full, "size", "fill_value")
NAMED(empty_like, "input")
NAMED(zeros_like, "input")
NAMED(ones_like, "input")
NAMED(randperm, "n")

/* arange(end=5) has no start, and randint(high=5, size=...) has no low. */
static PyObject *n_arange(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"start", "end", "step", NULL};
    bool start = PyTuple_GET_SIZE(args) || (kwargs && PyDict_GetItemString(kwargs, "start"));
    if (start || !kwargs || !PyDict_GetItemString(kwargs, "end"))
        return pd_py_with_names(f_arange, false, "arange", module, args, kwargs, names);
    PyObject *zero = Py_BuildValue("(i)", 0),
             *out = zero ? pd_py_with_names(f_arange, false, "arange", module, zero, kwargs, names) : NULL;
    Py_XDECREF(zero);
    return out;
}
static PyObject *n_randint(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const names[] = {"low", "high", NULL};
    bool low = PyTuple_GET_SIZE(args) || (kwargs && PyDict_GetItemString(kwargs, "low"));
    return pd_py_with_names(f_randint, false, "randint", module, args, kwargs, low ? names : names + 1);
}

#define KW(name, doc) {#name, (PyCFunction)(void (*)(void))f_##name, METH_VARARGS | METH_KEYWORDS, doc}
#define KWN(name, doc) {#name, (PyCFunction)(void (*)(void))n_##name, METH_VARARGS | METH_KEYWORDS, doc}
#define OPTIONS "dtype=None, layout=None, device=None, requires_grad=False, pin_memory=False"
static PyMethodDef functions[] = {
    KWN(tensor,
        "tensor(data, *, dtype=None, device=None, requires_grad=False, pin_memory=False)\n\nA copy of numbers, nested "
        "sequences, arrays or a tensor. Arrays of uint16, uint32, uint64 and of the small\ntypes of ml_dtypes need "
        "dtype=. Errors: for arrays those of from_numpy, except for unaligned memory; ValueError\nfor sequences of "
        "different lengths; TypeError for elements that are not numbers."),
    KWN(as_tensor,
        "as_tensor(data, *, dtype=None, device=None)\n\nThe data as a tensor. Shares the memory of a tensor, an array "
        "or another buffer that has this dtype and device,\nand copies otherwise, like tensor()."),
    {"_asarray", (PyCFunction)(void (*)(void))f_asarray, METH_FASTCALL, NULL},
    {"_place_by_default", f_place_by_default, METH_O, NULL},
    KW(empty, "empty(*sizes, size=None, out=None, " OPTIONS ", memory_format=None)\n\nUninitialised."),
    KW(zeros, "zeros(*sizes, size=None, out=None, " OPTIONS ")\n\nFilled with 0."),
    KW(ones, "ones(*sizes, size=None, out=None, " OPTIONS ")\n\nFilled with 1."),
    KWN(full, "full(size, fill_value, *, out=None, " OPTIONS ")\n\nA tensor whose elements are all fill_value."),
    KWN(empty_like,
        "empty_like(input, *, " OPTIONS ", memory_format=None)\n\nUninitialised, of input's shape and dtype."),
    KWN(zeros_like, "zeros_like(input, *, " OPTIONS ", memory_format=None)\n\nZeros of input's shape and dtype."),
    KWN(ones_like, "ones_like(input, *, " OPTIONS ", memory_format=None)\n\nOnes of input's shape and dtype."),
    KWN(arange, "arange(start=0, end=None, step=1, *, out=None, " OPTIONS
                ")\n\nstart, start + step, start + 2 step and so on, below end. A single argument is the end."),
    KW(rand, "rand(*sizes, size=None, generator=None, out=None, " OPTIONS ")\n\nUniform in [0, 1)."),
    KW(randn, "randn(*sizes, size=None, generator=None, out=None, " OPTIONS
              ")\n\nNormally distributed numbers with mean 0 and variance 1."),
    KWN(randint, "randint(low=0, high=None, size=None, *, generator=None, out=None, " OPTIONS
                 ")\n\nRandom integers in [low, high). With two arguments, the first one is high."),
    KWN(randperm, "randperm(n, *, generator=None, out=None, " OPTIONS ")\n\nThe integers 0 to n - 1 in random order."),
    KW(set_default_dtype,
       "set_default_dtype(d)\n\nSets the dtype of floating tensors that are made without a dtype; at first it is "
       "float32."),
    {"get_default_dtype", f_get_default_dtype, METH_NOARGS,
     "get_default_dtype()\n\nThe dtype of floating tensors that are made without a dtype."},
    {"promote_types", f_promote_types, METH_VARARGS,
     "promote_types(type1, type2)\n\nThe smallest dtype to which both can be converted."},
    {"result_type", f_result_type, METH_VARARGS,
     "result_type(tensor, other)\n\nThe dtype of arithmetic on two tensors or numbers. Tensors with dimensions take "
     "precedence over 0-d tensors, and these over numbers."},
    {0},
};

int pd_py_add_create(PyObject *module) {
    return PyModule_AddFunctions(module, functions);
}
