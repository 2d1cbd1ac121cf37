/* What comm.c lends to the other binding files. */
#ifndef PD_PY_COMM_H
#define PD_PY_COMM_H

#include "comm/group/group.h"
#include "py/py.h"

pd_group *pd_py_group(PyObject *group); /* [borrowed] from a Group; NULL with a TypeError set */
uint64_t pd_py_site(void);              /* the Python line outside the package that is running, interned */

/* Objects that are held, by kind, and what is cached, into two dicts; -1 with the exception set. */
int pd_py_comm_counts(PyObject *held, PyObject *cached);
void pd_py_comm_trim(void);

#endif
