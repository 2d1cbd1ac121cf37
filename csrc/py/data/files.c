/* Files of records, for pydist/data: a capsule of pd_files, and what is done with it. */
#include "data/files.h"

#include "base/mem.h"
#include "data/crc.h"
#include "py/data/data.h"

#define NAME "pydist.files"

typedef struct holder {
    pd_files *files;
    PyObject *op;      /* the text of files->op */
    PyObject **starts; /* [owned] the tensors that files->file[i].starts points into, or NULL */
} holder;

static void free_holder(holder *h) {
    if (!h) return;
    for (int64_t i = 0; h->files && h->starts && i < h->files->count; i++) Py_XDECREF(h->starts[i]);
    if (h->files) pd_files_free(h->files);
    Py_XDECREF(h->op);
    pd_free(h->starts);
    pd_free(h);
}
static void drop(PyObject *capsule) { free_holder(PyCapsule_GetPointer(capsule, NAME)); }

static pd_status set_all(pd_files *files, PyObject *list) {
    for (int64_t i = 0; i < files->count; i++) {
        const char *path;
        long long size, changed;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(list, i), "yLL:_data_files", &path, &size, &changed))
            return pd_py_caught();
        PD_TRY(pd_files_set(files, i, path, size, changed));
    }
    return PD_OK;
}

/* [new] a holder of files; NULL with the exception set. */
static holder *make_holder(PyObject *op, int framing, PyObject *list, int64_t head, int64_t each) {
    holder *h = NULL;
    const char *text = PyUnicode_AsUTF8(op);
    if (!text) return NULL;
    pd_status status = pd_calloc(sizeof *h, text, &h);
    PD_THEN(pd_files_new(text, (pd_framing)framing, PyTuple_GET_SIZE(list), &h->files));
    PD_THEN(pd_calloc((size_t)h->files->count * sizeof *h->starts, text, &h->starts));
    PD_THEN(set_all(h->files, list));
    if (status) {
        free_holder(h);
        pd_py_raise(status);
        return NULL;
    }
    h->op = Py_NewRef(op);
    h->files->head = head;
    h->files->each = each;
    return h;
}

static PyObject *files(PyObject *module, PyObject *args) {
    PyObject *op, *given;
    int framing;
    long long head = 0, each = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "UiO|LL:_data_files", &op, &framing, &given, &head, &each)) return NULL;
    PyObject *list = pd_py_items(given, "_data_files", "files", "a list of (path, size, time of change)");
    if (!list) return NULL;
    holder *h = make_holder(op, framing, list, head, each);
    Py_DECREF(list);
    PyObject *capsule = h ? PyCapsule_New(h, NAME, drop) : NULL;
    if (h && !capsule) free_holder(h);
    return capsule;
}

/* The holder of a capsule and a file's number; NULL with the exception set. */
static holder *of(PyObject *capsule, int64_t i) {
    holder *h = PyCapsule_GetPointer(capsule, NAME);
    if (!h || (i >= 0 && i < h->files->count)) return h;
    PyErr_Format(PyExc_IndexError, "%U: file is %lld (expected 0 to %lld)", h->op, (long long)i,
                 (long long)h->files->count - 1);
    return NULL;
}

static PyObject *scan(PyObject *module, PyObject *args) {
    PyObject *capsule;
    long long i;
    int64_t *starts;
    size_t count;
    (void)module;
    if (!PyArg_ParseTuple(args, "OL:_data_files_scan", &capsule, &i)) return NULL;
    holder *h = of(capsule, i);
    if (!h) return NULL;
    Py_INCREF(capsule); /* while the lock is given up */
    pd_status status = pd_files_scan(h->files, i, &starts, &count);
    pd_tensor *t = status ? NULL : pd_py_made(h->files->op, PD_I64, 1, &(int64_t){(int64_t)count});
    if (t) memcpy(pd_tensor_data(t), starts, count * sizeof *starts);
    if (!status) pd_free(starts);
    Py_DECREF(capsule);
    return status ? pd_py_raise(status) : t ? pd_py_wrap_new(t) : NULL;
}

/* Whether so many starts can be those of records of a file. */
static bool are_starts(const pd_file *f, const pd_tensor *t) {
    const int64_t *starts = pd_tensor_data(t);
    if (!t->numel || starts[0] < 0 || starts[t->numel - 1] > f->size) return false;
    for (int64_t i = 1; i < t->numel; i++)
        if (starts[i] < starts[i - 1]) return false;
    return true;
}

static PyObject *set_index(PyObject *module, PyObject *args) {
    PyObject *capsule, *given;
    long long i;
    (void)module;
    if (!PyArg_ParseTuple(args, "OLO:_data_files_index", &capsule, &i, &given)) return NULL;
    holder *h = of(capsule, i);
    if (!h) return NULL;
    int64_t n = 0, frame = h->files->framing == PD_RECORDS ? PD_RECORD_HEAD + PD_RECORD_TAIL : 0;
    if (h->files->framing == PD_FIXED) {
        if (!pd_py_int(given, h->files->op, "records", &n)) return NULL;
        pd_files_index(h->files, i, NULL, n);
    } else {
        pd_tensor *t = pd_py_plain(given, h->files->op, "starts", PD_I64, 1);
        if (!t) return NULL;
        if (!are_starts(&h->files->file[i], t))
            return PyErr_Format(PyExc_ValueError, "%U: starts of records are out of order (expected 0 to %lld)", h->op,
                                (long long)h->files->file[i].size);
        const int64_t *starts = pd_tensor_data(t);
        for (int64_t k = 1; k < t->numel; k++)
            if (starts[k] - starts[k - 1] < frame)
                return PyErr_Format(PyExc_ValueError, "%U: record %lld has %lld bytes (expected %lld or more)", h->op,
                                    (long long)k - 1, (long long)(starts[k] - starts[k - 1]), (long long)frame);
        Py_XSETREF(h->starts[i], Py_NewRef(given));
        pd_files_index(h->files, i, starts, t->numel - 1);
    }
    return PyLong_FromLongLong(h->files->total);
}

static PyObject *rows(PyObject *module, PyObject *args) {
    PyObject *capsule, *o;
    pd_numbers records;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:_data_files_rows", &capsule, &o)) return NULL;
    holder *h = PyCapsule_GetPointer(capsule, NAME);
    if (!h || !pd_py_numbers(o, h->files->op, &records)) return NULL;
    const char *op = h->files->op;
    PD_PY_TRY(pd_numbers_check(op, &records, h->files->total, "records"));
    int64_t bytes = pd_files_bytes(h->files, &records), size[2] = {records.n, 2};
    pd_tensor *data = pd_py_made(op, PD_U8, 1, &bytes), *spans = data ? pd_py_made(op, PD_I64, 2, size) : NULL;
    PyObject *result = NULL;
    if (spans) {
        Py_INCREF(capsule); /* while the lock is given up */
        Py_INCREF(o);
        pd_status status = pd_files_rows(h->files, &records, pd_tensor_data(data), pd_tensor_data(spans));
        Py_DECREF(o);
        Py_DECREF(capsule);
        if (status) pd_py_raise(status);
        else result = Py_BuildValue("NN", pd_py_wrap(data), pd_py_wrap(spans));
    }
    if (data) pd_tensor_release(data);
    if (spans) pd_tensor_release(spans);
    return result;
}

static PyObject *crc32c(PyObject *module, PyObject *args) {
    Py_buffer data;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*:_data_crc32c", &data)) return NULL;
    uint32_t crc = pd_crc_masked(pd_crc32c(0, data.buf, (size_t)data.len));
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef functions[] = {
    {"_data_files", files, METH_VARARGS,
     "_data_files(op, framing, [(path, size, changed)], head, each): files of records (0: TFRecords, 1: lines, 2: of "
     "`each` bytes after `head`)."},
    {"_data_files_scan", scan, METH_VARARGS,
     "_data_files_scan(files, i): where the records of file i begin, and the last one ends."},
    {"_data_files_index", set_index, METH_VARARGS,
     "_data_files_index(files, i, starts): tells where the records of file i begin, or how many it has. In the order "
     "of files. Returns how many records there are so far."},
    {"_data_files_rows", rows, METH_VARARGS, "_data_files_rows(files, numbers): (bytes, spans) of these records."},
    {"_data_crc32c", crc32c, METH_VARARGS, "_data_crc32c(bytes): the masked CRC-32C of TFRecords."},
    {0}};

int pd_py_add_data_files(PyObject *module) { return PyModule_AddFunctions(module, functions); }
