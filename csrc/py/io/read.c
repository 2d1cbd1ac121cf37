/* Boxes of tensors out of files. */
#include "base/mem.h"
#include "io/read.h"
#include "py/io/io.h"

_Static_assert(PD_BOX_DIMS == PD_MAX_DIMS, "a tensor's dimensions fit in a box");

static PyObject *damaged; /* the class IoDamaged */

typedef struct jobs {
    PyObject *items; /* a tuple of the jobs */
    int64_t n;
    pd_box *box;
    pd_storage **lent;
} jobs;

static void drop_jobs(jobs *j) {
    for (int64_t i = 0; j->box && j->lent && i < j->n; i++) {
        if (j->lent[i]) pd_storage_give_back(j->lent[i], PD_LENT_ARRAY, true);
        pd_free((void *)(uintptr_t)j->box[i].crc);
    }
    pd_free(j->box);
    pd_free(j->lent);
    Py_XDECREF(j->items);
}

/* `want` integers, or as many as there are if that is -1. The number of them, or -1 with the exception set. */
static int read_ints(PyObject *o, const char *arg, int want, int64_t *out) {
    PyObject *all = pd_py_items(o, "io_read", arg, "a tuple of ints");
    Py_ssize_t n = all ? PyTuple_GET_SIZE(all) : -1;
    if (n > PD_BOX_DIMS || (all && want >= 0 && n != want)) {
        PyErr_Format(PyExc_ValueError, "io_read: %s has %zd entries (expected %s%d)", arg, n,
                     want < 0 ? "at most " : "", want < 0 ? PD_BOX_DIMS : want);
        n = -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (!pd_py_io_int(PyTuple_GET_ITEM(all, i), "io_read", arg, 0, INT64_MAX, &out[i])) n = -1;
    Py_XDECREF(all);
    return (int)n;
}

static bool read_sums(PyObject *o, pd_box *box) {
    uint32_t *crc;
    int64_t value, want = pd_blocks(box->bytes);
    PyObject *all = pd_py_items(o, "io_read", "crcs", "None or a list of ints");
    if (!all) return false;
    bool ok = PyTuple_GET_SIZE(all) == want;
    if (!ok)
        PyErr_Format(PyExc_ValueError, "io_read: got %zd checksums for %lld bytes (expected %lld)",
                     PyTuple_GET_SIZE(all), (long long)box->bytes, (long long)want);
    pd_status status = ok ? pd_malloc((size_t)want * sizeof *crc, "io_read", &crc) : PD_OK;
    if (status) pd_py_raise(status);
    else if (ok) box->crc = crc;
    ok = ok && !status;
    for (int64_t i = 0; ok && i < want; i++) {
        ok = pd_py_io_int(PyTuple_GET_ITEM(all, i), "io_read", "crcs", 0, UINT32_MAX, &value);
        if (ok) crc[i] = (uint32_t)value;
    }
    Py_DECREF(all);
    return ok;
}

static bool read_tensor(PyObject *o, pd_box *box, pd_storage **lent) {
    pd_tensor *t = pd_py_expect_tensor(o, "io_read", "tensor");
    if (!t || !pd_py_on_host(t, "io_read")) return false;
    if (!pd_shape_equal(t->ndim, t->size, box->ndim, box->size)) {
        PyErr_Format(PyExc_ValueError, "io_read: a tensor has shape %s, but its job reads %s (expected the same)",
                     pd_tensor_shape(t), pd_shape_text(box->ndim, box->size));
        return false;
    }
    if (pd_tensor_overlaps_itself(t)) {
        PyErr_Format(PyExc_ValueError,
                     "io_read: elements of a tensor share memory (expected one place for each element)");
        return false;
    }
    pd_status status = pd_tensor_before_write("io_read", t);
    PD_THEN(pd_storage_lend("io_read", t->storage, PD_LENT_ARRAY, true));
    if (status) {
        pd_py_raise(status);
        return false;
    }
    *lent = t->storage;
    box->each = (int64_t)pd_dtype_size((pd_dtype)t->dtype);
    box->to = pd_tensor_data(t);
    for (int d = 0; d < t->ndim; d++) box->stride[d] = t->stride[d];
    return true;
}

static bool read_job(PyObject *item, int64_t i, pd_box *box, pd_storage **lent) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 7) {
        PyErr_Format(PyExc_TypeError,
                     "io_read: job %lld is no tuple of seven (expected begin, nbytes, shape, lo, sizes, crcs, tensor)",
                     (long long)i);
        return false;
    }
    PyObject **of = &PyTuple_GET_ITEM(item, 0);
    if (!pd_py_io_int(of[0], "io_read", "begin", 0, INT64_MAX, &box->begin) ||
        !pd_py_io_int(of[1], "io_read", "nbytes", 0, INT64_MAX, &box->bytes) ||
        (box->ndim = read_ints(of[2], "shape", -1, box->shape)) < 0 ||
        read_ints(of[3], "lo", box->ndim, box->lo) < 0 || read_ints(of[4], "sizes", box->ndim, box->size) < 0 ||
        (of[5] != Py_None && !read_sums(of[5], box)) || !read_tensor(of[6], box, lent))
        return false;
    pd_status status = pd_box_check("io_read", box, i);
    if (status) pd_py_raise(status);
    return !status;
}

static bool read_jobs(PyObject *o, jobs *j) {
    *j = (jobs){.items = pd_py_items(o, "io_read", "jobs", "a list of jobs")};
    if (!j->items) return false;
    j->n = PyTuple_GET_SIZE(j->items);
    pd_status status = pd_calloc((size_t)j->n * sizeof *j->box, "io_read", &j->box);
    PD_THEN(pd_calloc((size_t)j->n * sizeof *j->lent, "io_read", &j->lent));
    bool ok = !status;
    if (status) pd_py_raise(status);
    for (int64_t i = 0; ok && i < j->n; i++)
        ok = read_job(PyTuple_GET_ITEM(j->items, i), i, &j->box[i], &j->lent[i]);
    if (!ok) drop_jobs(j);
    return ok;
}

/* ---- IoDamaged --------------------------------------------------------------------------------------------------- */

static PyObject *damaged_str(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyObject_GetAttrString(self, "text");
}
static PyMethodDef str_method = {"__str__", damaged_str, METH_NOARGS, "What is damaged."};

static PyObject *raise_damaged(const pd_damage *d, PyObject *path) {
    static const char *const names[] = {"job", "block", "expected", "got"};
    PyObject *text = PyUnicode_FromString(pd_error_get()->text);
    PyObject *expected = d->checked ? PyLong_FromUnsignedLong(d->expected) : Py_NewRef(Py_None);
    PyObject *got = d->cut ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(d->got);
    PyObject *args = text && expected && got
                         ? Py_BuildValue("LLOO", (long long)d->box, (long long)d->block, expected, got) : NULL;
    PyObject *error = args ? PyObject_CallObject(damaged, args) : NULL;
    bool ok = error && !PyObject_SetAttrString(error, "text", text) &&
              !PyObject_SetAttrString(error, "filename", path);
    for (int i = 0; ok && i < 4; i++) ok = !PyObject_SetAttrString(error, names[i], PyTuple_GET_ITEM(args, i));
    if (ok) PyErr_SetObject(damaged, error);
    Py_XDECREF(error);
    Py_XDECREF(args);
    Py_XDECREF(got);
    Py_XDECREF(expected);
    Py_XDECREF(text);
    return NULL;
}

static PyObject *f_read(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", "jobs", "threads", "direct", NULL};
    PyObject *path, *o, *many = NULL, *name = NULL;
    pd_damage damage = {0};
    int threads, direct = 0;
    jobs j;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|Op:io_read", names, &path, &o, &many, &direct) ||
        !pd_py_io_threads(many, "io_read", &threads) || !PyUnicode_FSConverter(path, &name))
        return NULL;
    if (!read_jobs(o, &j)) {
        Py_DECREF(name);
        return NULL;
    }
    pd_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = pd_read_boxes("io_read", PyBytes_AS_STRING(name), j.box, j.n, threads, direct, &damage);
    Py_END_ALLOW_THREADS;
    drop_jobs(&j);
    Py_DECREF(name);
    if (!status) Py_RETURN_NONE;
    return status == PD_E_DATA ? raise_damaged(&damage, path) : pd_py_io_raise(status, path, NULL);
}

static PyMethodDef functions[] = {
    {"io_read", (PyCFunction)(void (*)(void))f_read, METH_VARARGS | METH_KEYWORDS,
     "io_read(path, jobs, threads=2, direct=False)\n\nReads boxes of tensors in a file. A job is (begin, nbytes, "
     "shape, lo, sizes, crcs, tensor): the stored tensor, the\nbox in it, the CRC-32 of its blocks of 4 MiB or None, "
     "and a tensor of shape sizes that gets the box. IoDamaged: a\nblock that the box touches is not what it was, or "
     "the file ends before it."},
    {0}};

int pd_py_add_io_read(PyObject *module) {
    damaged = PyErr_NewExceptionWithDoc(
        "pydist._C.IoDamaged",
        "A block of a file is not what was written. job: its number in the list; block: its number in the stored "
        "tensor; expected, got: the checksums (None: there was none to compare, or the file ends before the block "
        "does).",
        PyExc_RuntimeError, NULL);
    PyObject *method = damaged ? PyDescr_NewMethod((PyTypeObject *)damaged, &str_method) : NULL;
    int bad = !method || PyObject_SetAttrString(damaged, "__str__", method) ||
              PyModule_AddObjectRef(module, "IoDamaged", damaged);
    Py_XDECREF(method);
    return bad ? -1 : PyModule_AddFunctions(module, functions);
}
