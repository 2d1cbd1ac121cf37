/* What site.c, control.c and comm.c share. */
#ifndef PD_PY_COMM_IMPL_H
#define PD_PY_COMM_IMPL_H

#include "comm/hub.h"
#include "py/comm.h"

/* ---- comm.c: objects are counted while users hold them ---- */
typedef enum pd_py_kind {
    PD_PY_SERVER, PD_PY_HUB, PD_PY_STORE, PD_PY_SEGMENT, PD_PY_WORK, PD_PY_GROUP, PD_PY_KINDS
} pd_py_kind;

extern const pd_hooks pd_py_hooks; /* of every link and group made in Python */
PyObject *pd_py_comm_make(PyTypeObject *type, pd_py_kind kind);
void pd_py_comm_end(PyObject *self, pd_py_kind kind); /* the end of a tp_dealloc */
int pd_py_comm_visit(PyObject *self, visitproc visit, void *arg);
/* None: `none`. A number, or whatever has total_seconds(). False with the exception set. */
bool pd_py_seconds(PyObject *o, double none, double *out);
PyObject *pd_py_none_or(pd_status status);

#define PD_PY_SPEC(n, T, slots_, more)                                               \
    {.name = "pydist._C." n, .basicsize = sizeof(T), .slots = slots_,                \
     .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | (more)}
int pd_py_comm_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep);

#define PD_PY_NO_GIL(call)                            \
    do {                                              \
        PyThreadState *thread_ = PyEval_SaveThread(); \
        call;                                         \
        PyEval_RestoreThread(thread_);                \
    } while (0)

/* ---- control.c ---- */
typedef struct pd_pyhub {
    PyObject_HEAD
    pd_hub *hub;
    pd_link **links; /* by rank: seats taken through this object */
} pd_pyhub;
extern PyTypeObject *pd_py_hub_type;
PyObject *pd_py_store(pd_link *link); /* new reference */
int pd_py_add_control(PyObject *module);

/* ---- site.c ---- */
void pd_py_site_text(uint64_t site, char *text, size_t size);
void pd_py_sites_trim(void);
int64_t pd_py_sites_count(void);
void pd_py_sites_package(PyObject *module); /* functions in this module's folder are not callers */

#endif
