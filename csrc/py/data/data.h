/* What the binding files of pydist.data share. */
#ifndef PD_PY_DATA_DATA_H
#define PD_PY_DATA_DATA_H

#include "data/numbers.h"
#include "py/py.h"

/* Numbers of elements: an int64 tensor (contiguous, on the CPU), or a range. False with the exception set. *out borrows
   the tensor's memory. */
bool pd_py_numbers(PyObject *o, const char *op, pd_numbers *out);
/* [borrowed] a contiguous tensor of the dtype on the CPU; NULL with the exception set. ndim -1: any. */
pd_tensor *pd_py_plain(PyObject *o, const char *op, const char *arg, int dtype, int ndim);
/* [new] a contiguous tensor on the CPU; NULL with the exception set. */
pd_tensor *pd_py_made(const char *op, pd_dtype dtype, int ndim, const int64_t *size);

#endif
