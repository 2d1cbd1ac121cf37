/* Calls of the engine's ops that another process runs without Python (rpc). A call becomes its tensors and a few bytes:
   the op, which of its inputs are there, and its attributes, which are plain data. */
#ifndef PD_PY_OPCALL_H
#define PD_PY_OPCALL_H

#include "ops/ops.h"
#include "py/py.h"

/* Whether another process may run it: it makes one new tensor from tensors and numbers. */
bool pd_opcall_allowed(const pd_def *def);
/* [new] (bytes, list of tensors) of a call of such an op; None if it has too many inputs. */
PyObject *pd_opcall_pack(const pd_def *def, pd_tensor *const *in, int nin, const void *attrs);

/* Runs such a call on tensors without the host's lock. *out [new]. PD_E_DIST: the bytes are no call. */
pd_status pd_opcall_run(const void *bytes, size_t n, pd_tensor *const *tensors, int count, pd_tensor **out);

#endif
