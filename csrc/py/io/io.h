/* What the binding files of csrc/io share. */
#ifndef PD_PY_IO_IO_H
#define PD_PY_IO_IO_H

#include "io/parts.h"
#include "py/py.h"

/* Memory of Python objects: contiguous tensors on the CPU, and whatever has the buffer protocol. It is lent, so it
   stays where it is until pd_py_parts_drop, whatever other threads do with the objects. */
typedef struct pd_py_parts {
    PyObject *items; /* a tuple of the objects */
    pd_part *part;
    pd_storage **lent; /* of tensors, else NULL */
    Py_buffer *view;   /* of all others, else .obj is NULL */
} pd_py_parts;

/* Of an iterable; false with the exception set. */
bool pd_py_parts_get(PyObject *o, const char *op, pd_py_parts *out);
/* Of one object. */
bool pd_py_parts_one(PyObject *o, const char *op, pd_py_parts *out);
void pd_py_parts_drop(pd_py_parts *p); /* zeros are fine */
PyObject *pd_py_parts_sums(const pd_parts *parts); /* [new] a list of the list of checksums of each part */

/* An integer from lo to hi; else false with TypeError or ValueError. */
bool pd_py_io_int(PyObject *o, const char *op, const char *arg, int64_t lo, int64_t hi, int64_t *out);
/* The same for an offset in a file, a multiple of PD_DIRECT_ALIGN. */
bool pd_py_io_offset(PyObject *o, const char *op, int64_t *out);
/* The same for a number of threads; NULL: 2. */
bool pd_py_io_threads(PyObject *o, const char *op, int *out);
/* pd_py_raise; but OSError has errno and the paths (b may be NULL) where the failure has errno. */
PyObject *pd_py_io_raise(pd_status status, PyObject *a, PyObject *b);

int pd_py_add_io_read(PyObject *module);
int pd_py_add_io_stage(PyObject *module);

#endif
