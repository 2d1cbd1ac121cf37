/* Python values with tensors in them: tuples, lists and dicts, nested as one likes. A value is split into its tensors
   and a shape, which is the same value with a mark in the place of each tensor. All else in it are constants. */
#ifndef PD_PY_AUTOGRAD_TREE_H
#define PD_PY_AUTOGRAD_TREE_H

#include "py/py.h"

typedef struct pd_py_leaves {
    pd_tensor **t; /* [strong] */
    size_t n, cap;
} pd_py_leaves;

void pd_py_leaves_free(pd_py_leaves *l);
/* [new] the shape of o, whose tensors are appended; NULL with the exception set. */
PyObject *pd_py_tree_split(PyObject *o, pd_py_leaves *l);
/* Whether o has this shape and equal constants; appends its tensors. 0: it has not; -1: with the exception set. */
int pd_py_tree_match(PyObject *shape, PyObject *o, pd_py_leaves *l);
/* [new] a value of this shape with the tensors from *at on; NULL with the exception set. */
PyObject *pd_py_tree_join(PyObject *shape, pd_tensor *const *t, size_t *at);
int pd_py_add_tree(void);

#endif
