/* What comm.c lends to the other binding files. */
#ifndef PD_PY_COMM_H
#define PD_PY_COMM_H

#include "comm/group/group.h"
#include "parallel/layout.h"
#include "py/py.h"

pd_group *pd_py_group(PyObject *group); /* [borrowed] from a Group; NULL with a TypeError set */
uint64_t pd_py_site(void);              /* the Python line outside the package that is running, interned */
/* Per bucket a list of (piece, offset, elements). */
PyObject *pd_py_bucket_rows(const pd_layout *l);

/* Objects that are held, by kind, and what is cached, into two dicts; -1 with the exception set. */
int pd_py_comm_counts(PyObject *held, PyObject *cached);
void pd_py_comm_trim(void);

#endif
