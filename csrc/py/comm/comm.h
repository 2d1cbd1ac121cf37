/* What other binding files use of this folder. */
#ifndef PD_PY_COMM_H
#define PD_PY_COMM_H

#include "comm/group/group.h"
#include "parallel/layout.h"
#include "py/py.h"

pd_group *pd_py_group(PyObject *group); /* [borrowed] the engine's group of a Group; NULL with a TypeError set */
uint64_t pd_py_site(void);              /* the running line of Python outside the package, interned */
/* For each bucket a list of (piece, offset, elements). */
PyObject *pd_py_bucket_rows(const pd_layout *l);

/* Puts the counts of living objects, by kind, and of cached ones into two dicts; -1 with the exception set. */
int pd_py_comm_counts(PyObject *held, PyObject *cached);
void pd_py_comm_trim(void);

#endif
