/* Works in Python: a collective under way, and the memory that it uses until it is done. */
#include "py/py.h"

#include "py/comm/comm_impl.h"

PyTypeObject *pd_py_work_type;

/* Removes a work from the list that keeps works under way alive. */
static void forget(pd_pywork *self) {
    PyObject *list = self->pending;
    self->pending = NULL;
    for (Py_ssize_t i = list ? PyList_GET_SIZE(list) : 0; i-- > 0;)
        if (PyList_GET_ITEM(list, i) == (PyObject *)self) {
            PyList_SetSlice(list, i, i + 1, NULL);
            break;
        }
    Py_XDECREF(list);
}

/* Called once the collective is done: copies staged results to their tensors and frees the buffers. The copy may give
   up the GIL, so other threads wait here. It runs once; every later call gets its failure. */
static pd_status settle(pd_pywork *self) {
    while (self->settling) PD_PY_NO_GIL(pd_os_yield());
    if (self->lost)
        return pd_fail(self->lost,
                       "wait: the collective is done, but copying its result to the output tensors failed (expected "
                       "memory for the copy)");
    if (self->done) return PD_OK;
    self->settling = true;
    pd_status status = pd_py_buffer_done(&self->buffers[0]);
    PD_THEN(pd_py_buffer_done(&self->buffers[1]));
    self->settling = false;
    self->done = true;
    self->lost = status;
    for (int i = 0; i < 2; i++) pd_py_buffer_drop(&self->buffers[i]);
    forget(self);
    return status;
}

/* Carries the work on without waiting. *done: it has ended, well or not; then the status says how. */
static pd_status look(pd_pywork *self, bool *done) {
    pd_status status = PD_OK;
    *done = self->done;
    if (!self->done) status = pd_work_test(self->work, done);
    if (!status && *done) status = settle(self);
    if (status) *done = true;
    return status;
}

bool pd_py_work_ended(PyObject *o) {
    bool done;
    (void)look((pd_pywork *)o, &done); /* the group keeps a failure, and all its calls return it */
    return done;
}

PyObject *pd_py_work_new(PyObject *pending, pd_work *work, const pd_py_buffer *in, const pd_py_buffer *out) {
    pd_pywork *self = (pd_pywork *)pd_py_comm_make(pd_py_work_type, PD_PY_WORK);
    if (!self || PyList_Append(pending, (PyObject *)self)) {
        Py_XDECREF(self);
        return NULL;
    }
    self->pending = Py_NewRef(pending);
    self->work = work;
    self->buffers[0] = *in;
    self->buffers[1] = *out;
    PyObject *written = out->keep ? out->keep : out->view.obj;
    if (written) self->written = Py_NewRef(written);
    return (PyObject *)self;
}

static int work_traverse(PyObject *o, visitproc visit, void *arg) {
    pd_pywork *self = (pd_pywork *)o;
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(self->written);
    Py_VISIT(self->pending);
    for (int i = 0; i < 2; i++) Py_VISIT(self->buffers[i].keep);
    return 0;
}

static void work_dealloc(PyObject *o) {
    pd_pywork *self = (pd_pywork *)o;
    PyObject_GC_UnTrack(o);
    for (int i = 0; i < 2; i++) pd_py_buffer_drop(&self->buffers[i]); /* its group keeps a pending work alive */
    Py_XDECREF(self->written);
    Py_XDECREF(self->pending);
    pd_work_release(self->work);
    pd_py_comm_end(o, PD_PY_WORK);
}

static PyObject *work_wait(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"wait", 0, {"timeout"}};
    pd_pywork *self = (pd_pywork *)o;
    PyObject *a[1];
    double timeout;
    if (!pd_py_args(&s, args, n, keywords, a) || !pd_py_seconds(a[0], -1, &timeout)) return NULL;
    pd_status status = PD_OK;
    if (!self->done) PD_PY_NO_GIL(status = pd_work_wait(self->work, timeout));
    PD_THEN(settle(self));
    if (status) return pd_py_raise(status);
    Py_RETURN_TRUE;
}

static PyObject *work_is_completed(PyObject *o, PyObject *unused) {
    bool done;
    (void)unused;
    PD_PY_NO_GIL(pd_work_test(((pd_pywork *)o)->work, &done)); /* the test may have much to move */
    return PyBool_FromLong(pd_py_work_ended(o));
}

static PyObject *work_is_success(PyObject *o, PyObject *unused) {
    bool done;
    (void)unused;
    pd_status status = look((pd_pywork *)o, &done);
    return PyBool_FromLong(done && !status);
}

static PyObject *work_exception(PyObject *o, PyObject *unused) {
    bool done;
    (void)unused;
    pd_status status = look((pd_pywork *)o, &done);
    if (!status) Py_RETURN_NONE;
    pd_py_raise(status);
    return pd_py_take_exception();
}

static PyObject *work_result(PyObject *o, PyObject *unused) {
    pd_pywork *self = (pd_pywork *)o;
    bool done;
    (void)unused;
    pd_status status = look(self, &done);
    if (status) return pd_py_raise(status);
    if (!done) return PyErr_Format(PyExc_RuntimeError, "result: the collective is not done (expected wait() first)");
    if (!self->written) return PyList_New(0);
    if (PyTuple_Check(self->written)) return PySequence_List(self->written);
    PyObject *list = PyList_New(1);
    if (list) PyList_SET_ITEM(list, 0, Py_NewRef(self->written));
    return list;
}

static PyObject *work_get_future(PyObject *o, PyObject *unused) {
    (void)unused;
    PyObject *futures = PyImport_ImportModule("pydist.futures");
    PyObject *future = futures ? PyObject_CallMethod(futures, "_of_work", "O", o) : NULL;
    Py_XDECREF(futures);
    return future;
}

static PyObject *work_then(PyObject *o, PyObject *fn) {
    PyObject *future = work_get_future(o, NULL);
    PyObject *next = future ? PyObject_CallMethod(future, "then", "O", fn) : NULL;
    Py_XDECREF(future);
    return next;
}

static PyObject *work_source(PyObject *o, PyObject *unused) {
    (void)unused;
    return PyLong_FromLong(pd_work_source(((pd_pywork *)o)->work));
}

static PyMethodDef methods[] = {
    {"get_future", work_get_future, METH_NOARGS,
     "get_future() -> pydist.futures.Future\n\nA future whose value is the list of result(); it is set once somebody "
     "waits for it."},
    {"then", work_then, METH_O, "then(fn) -> pydist.futures.Future\n\nget_future().then(fn)."},
    {"wait", (PyCFunction)(void (*)(void))work_wait, METH_FASTCALL | METH_KEYWORDS,
     "wait(timeout=None) -> True\n\nReturns when the collective is done; raises the collective's error. timeout: "
     "seconds or a timedelta; after it wait() raises CommTimeout, and the collective goes on."},
    {"is_completed", work_is_completed, METH_NOARGS,
     "is_completed() -> bool\n\nWhether the collective has ended. Advances it as far as it goes without waiting."},
    {"is_success", work_is_success, METH_NOARGS,
     "is_success() -> bool\n\nWhether the collective has ended without an error."},
    {"exception", work_exception, METH_NOARGS,
     "exception() -> Exception | None\n\nThe exception that wait() would raise, if it is known already."},
    {"source_rank", work_source, METH_NOARGS,
     "source_rank() -> int\n\nFor a receive that is done: the rank in the group that has sent the message."},
    {"result", work_result, METH_NOARGS,
     "result() -> list\n\nThe tensors that the collective wrote, once it is done; raises the collective's error."},
    {0},
};
static PyType_Slot slots[] = {
    {Py_tp_dealloc, work_dealloc},
    {Py_tp_traverse, work_traverse},
    {Py_tp_methods, methods},
    {Py_tp_doc, "An asynchronous collective or message."},
    {0},
};
static PyType_Spec spec = PD_PY_SPEC("Work", pd_pywork, slots, Py_TPFLAGS_DISALLOW_INSTANTIATION);

int pd_py_add_work(PyObject *module) { return pd_py_comm_type(module, &spec, &pd_py_work_type); }
