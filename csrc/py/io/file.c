/* Files for checkpoints: writing them, and the calls that put them in their places. */
#include "base/mem.h"
#include "io/crc32.h"
#include "io/file.h"
#include "io/write.h"
#include "py/io/io.h"

static PyObject *crc32(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "crc", NULL};
    PyObject *buffer, *given = NULL;
    int64_t begin = 0;
    pd_py_parts p;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:io_crc32", names, &buffer, &given) ||
        (given && !pd_py_io_int(given, "io_crc32", "crc", 0, UINT32_MAX, &begin)) ||
        !pd_py_parts_one(buffer, "io_crc32", &p))
        return NULL;
    uint32_t crc = (uint32_t)begin;
    if (p.part->bytes < PD_BLOCK) crc = pd_crc32(crc, p.part->data, (size_t)p.part->bytes);
    else {
        Py_BEGIN_ALLOW_THREADS;
        crc = pd_crc32(crc, p.part->data, (size_t)p.part->bytes);
        Py_END_ALLOW_THREADS;
    }
    pd_py_parts_drop(&p);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *write_parts(PyObject *path, PyObject *name, pd_py_parts *given, int64_t offset, int threads,
                             bool direct) {
    pd_parts parts;
    pd_status status = pd_parts_make("io_write", given->part, PyTuple_GET_SIZE(given->items), offset, &parts);
    if (status) return pd_py_raise(status);
    Py_BEGIN_ALLOW_THREADS;
    status = pd_write_parts("io_write", PyBytes_AS_STRING(name), &parts, offset, threads, direct);
    Py_END_ALLOW_THREADS;
    PyObject *result = status ? pd_py_io_raise(status, path, NULL) : pd_py_parts_sums(&parts);
    pd_parts_free(&parts);
    return result;
}

static PyObject *f_write(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", "parts", "offset", "threads", "direct", NULL};
    PyObject *path, *o, *at, *many = NULL, *name = NULL, *result = NULL;
    pd_py_parts parts;
    int64_t offset;
    int threads, direct = 1;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|Op:io_write", names, &path, &o, &at, &many, &direct) ||
        !pd_py_io_offset(at, "io_write", &offset) || !pd_py_io_threads(many, "io_write", &threads))
        return NULL;
    if (!PyUnicode_FSConverter(path, &name)) return NULL;
    if (pd_py_parts_get(o, "io_write", &parts)) {
        result = write_parts(path, name, &parts, offset, threads, direct);
        pd_py_parts_drop(&parts);
    }
    Py_DECREF(name);
    return result;
}

static PyObject *write_small(const char *op, const char *format, bool make, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", "data", "sync", NULL};
    PyObject *path, *data, *name = NULL;
    pd_py_parts p;
    int sync = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &path, &data, &sync) ||
        !PyUnicode_FSConverter(path, &name))
        return NULL;
    pd_status status = PD_OK;
    bool ok = pd_py_parts_one(data, op, &p);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS;
        status = pd_write_small(op, PyBytes_AS_STRING(name), make, p.part->data, (size_t)p.part->bytes, sync);
        Py_END_ALLOW_THREADS;
        pd_py_parts_drop(&p);
        if (status) pd_py_io_raise(status, path, NULL);
    }
    Py_DECREF(name);
    return !ok || status ? NULL : Py_NewRef(Py_None);
}

static PyObject *f_head(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    return write_small("io_head", "OO|p:io_head", false, args, kwargs);
}
static PyObject *f_put(PyObject *module, PyObject *args, PyObject *kwargs) {
    (void)module;
    return write_small("io_put", "OO|p:io_put", true, args, kwargs);
}

/* ---- calls of one path and of two -------------------------------------------------------------------------------- */

static pd_status make_folder(const char *op, const char *path) {
    return pd_file_status(op, path, pd_file_calls->mkdir(path, 0777));
}
static pd_status remove_file(const char *op, const char *path) {
    return pd_file_status(op, path, pd_file_calls->unlink(path));
}
static pd_status remove_folder(const char *op, const char *path) {
    return pd_file_status(op, path, pd_file_calls->rmdir(path));
}

static PyObject *with_path(const char *op, PyObject *path, pd_status (*call)(const char *op, const char *path)) {
    PyObject *name = NULL;
    pd_status status;
    if (!PyUnicode_FSConverter(path, &name)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = call(op, PyBytes_AS_STRING(name));
    Py_END_ALLOW_THREADS;
    Py_DECREF(name);
    return status ? pd_py_io_raise(status, path, NULL) : Py_NewRef(Py_None);
}

#define WITH_PATH(name, call)                               \
    static PyObject *f_##name(PyObject *module, PyObject *path) { \
        (void)module;                                       \
        return with_path("io_" #name, path, call);          \
    }
WITH_PATH(mkdir, make_folder)
WITH_PATH(unlink, remove_file)
WITH_PATH(rmdir, remove_folder)
WITH_PATH(sync, pd_write_sync)

static PyObject *with_paths(const char *op, const char *format, PyObject *args,
                            int (*call)(const char *, const char *)) {
    PyObject *a, *b, *from = NULL, *to = NULL;
    pd_status status;
    if (!PyArg_ParseTuple(args, format, &a, &b) || !PyUnicode_FSConverter(a, &from)) return NULL;
    if (!PyUnicode_FSConverter(b, &to)) {
        Py_DECREF(from);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = pd_file_status(op, PyBytes_AS_STRING(from), call(PyBytes_AS_STRING(from), PyBytes_AS_STRING(to)));
    Py_END_ALLOW_THREADS;
    Py_DECREF(from);
    Py_DECREF(to);
    return status ? pd_py_io_raise(status, a, b) : Py_NewRef(Py_None);
}

#define WITH_PATHS(name)                                                                    \
    static PyObject *f_##name(PyObject *module, PyObject *args) {                           \
        (void)module;                                                                       \
        return with_paths("io_" #name, "OO:io_" #name, args, pd_file_calls->name);          \
    }
WITH_PATHS(rename)
WITH_PATHS(exchange)
WITH_PATHS(link)

static PyObject *f_trace(PyObject *module, PyObject *on) {
    char *bytes;
    size_t n;
    int begin = PyObject_IsTrue(on);
    (void)module;
    if (begin < 0) return NULL;
    PD_PY_TRY(pd_file_trace(begin, &bytes, &n));
    PyObject *result = PyBytes_FromStringAndSize(bytes, (Py_ssize_t)n);
    pd_free(bytes);
    return result;
}

#define KEYWORDS(f) (PyCFunction)(void (*)(void))f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef functions[] = {
    {"io_crc32", KEYWORDS(crc32),
     "io_crc32(buffer, crc=0) -> int\n\nThe CRC-32 of a contiguous tensor or another buffer, as zlib.crc32 gives it."},
    {"io_write", KEYWORDS(f_write),
     "io_write(path, parts, offset, threads=2, direct=True) -> list[list[int]]\n\nMakes a file, which must not exist, "
     "and writes the parts one after the other from offset on (a multiple of 4096).\nReturns the CRC-32 of each block "
     "of 4 MiB of each part. Does not sync."},
    {"io_head", KEYWORDS(f_head),
     "io_head(path, data, sync=True)\n\nWrites data at the begin of a file that exists; sync: waits for the disk."},
    {"io_put", KEYWORDS(f_put),
     "io_put(path, data, sync=True)\n\nMakes a file, which must not exist, of data; sync: waits for the disk."},
    {"io_mkdir", f_mkdir, METH_O, "io_mkdir(path): makes a folder."},
    {"io_unlink", f_unlink, METH_O, "io_unlink(path): removes a file."},
    {"io_rmdir", f_rmdir, METH_O, "io_rmdir(path): removes an empty folder."},
    {"io_sync", f_sync, METH_O, "io_sync(path): waits until the disk has a file or the names in a folder."},
    {"io_rename", f_rename, METH_VARARGS, "io_rename(a, b): renames a file or folder; FileExistsError where b exists."},
    {"io_exchange", f_exchange, METH_VARARGS, "io_exchange(a, b): each gets the other's name, at once."},
    {"io_link", f_link, METH_VARARGS, "io_link(a, b): makes b another name of file a."},
    {"io_trace", f_trace, METH_O,
     "io_trace(on) -> bytes\n\nEnds the record of calls that changed the disk and returns it (its form: "
     "csrc/io/file.h); on: begins another one."},
    {0}};

int pd_py_add_io(PyObject *module) {
    if (pd_py_add_io_read(module) || pd_py_add_io_stage(module)) return -1;
    return PyModule_AddFunctions(module, functions);
}
