/* The control plane in Python: ControlServer for the launcher, Hub for ranks that are threads, Store for both. */
#include "py/py.h"

#include <string.h>

#include "base/mem.h"
#include "base/sha256.h"
#include "comm/control/control.h"
#include "comm/net/auth.h"
#include "comm/net/dial.h"
#include "py/comm/comm_impl.h"

typedef struct { PyObject_HEAD pd_control_server *server; } ServerObject;
typedef struct { PyObject_HEAD pd_link *link; } StoreObject;

PyTypeObject *pd_py_hub_type;
static PyTypeObject *server_type, *store_type;

/* ---- ControlServer ----------------------------------------------------------------------------------------------- */

static PyObject *server_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"world", "listen", "secret", NULL};
    int world;
    Py_ssize_t bytes = 0;
    pd_control_options o = {0};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "i|zz#:ControlServer", names, &world, &o.listen, &o.secret,
                                     &bytes))
        return NULL;
    if (o.secret && bytes != PD_SECRET_BYTES)
        return PyErr_Format(PyExc_ValueError, "ControlServer: secret has %zd bytes (expected %d)", bytes,
                            PD_SECRET_BYTES);
    ServerObject *self = (ServerObject *)pd_py_comm_make(type, PD_PY_SERVER);
    if (!self) return NULL;
    pd_status status;
    PD_PY_NO_GIL(status = pd_control_server_new(world, &o, &self->server)); /* looks host names up */
    if (status) {
        Py_DECREF(self);
        return pd_py_raise(status);
    }
    return (PyObject *)self;
}

static void close_server(ServerObject *self) {
    pd_control_server *s = self->server;
    self->server = NULL;
    if (s) PD_PY_NO_GIL(pd_control_server_free(s));
}

static void server_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    close_server((ServerObject *)self);
    pd_py_comm_end(self, PD_PY_SERVER);
}

static pd_control_server *server_of(PyObject *self) {
    pd_control_server *s = ((ServerObject *)self)->server;
    if (!s) PyErr_SetString(PyExc_ValueError, "ControlServer: the server is closed (expected an open one)");
    return s;
}

static PyObject *server_close(PyObject *self, PyObject *unused) {
    (void)unused;
    close_server((ServerObject *)self);
    Py_RETURN_NONE;
}

static PyObject *server_dead(PyObject *self, PyObject *args) {
    int rank;
    const char *text;
    pd_control_server *s = server_of(self);
    if (!s || !PyArg_ParseTuple(args, "is:dead", &rank, &text)) return NULL;
    PD_PY_NO_GIL(pd_control_dead(s, rank, text));
    Py_RETURN_NONE;
}

static PyObject *server_first_raised(PyObject *self, PyObject *unused) {
    (void)unused;
    int rank;
    char *text;
    pd_control_server *s = server_of(self);
    if (!s) return NULL;
    pd_status status = pd_control_first_raised(s, &rank, &text);
    if (status) return pd_py_raise(status);
    if (rank < 0) Py_RETURN_NONE;
    PyObject *decoded = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    pd_free(text);
    return decoded ? Py_BuildValue("iN", rank, decoded) : NULL;
}

static PyObject *server_silent(PyObject *self, PyObject *rank) {
    pd_control_server *s = server_of(self);
    long r = s ? PyLong_AsLong(rank) : -1;
    if (!s || (r == -1 && PyErr_Occurred())) return NULL;
    return PyBool_FromLong(r >= 0 && r < PD_RANKS_MAX && pd_control_silent(s, (int)r));
}

static PyObject *server_drain(PyObject *self, PyObject *args) {
    PyObject *seconds = NULL;
    double timeout;
    pd_control_server *s = server_of(self);
    if (!s || !PyArg_ParseTuple(args, "O:drain", &seconds) || !pd_py_seconds(seconds, 0, &timeout)) return NULL;
    return pd_py_none_or(pd_control_drain(s, timeout, &pd_py_hooks));
}

static PyObject *server_address(PyObject *self, void *unused) {
    (void)unused;
    pd_control_server *s = server_of(self);
    return s ? PyUnicode_FromString(pd_control_address(s)) : NULL;
}

static PyObject *server_tcp_address(PyObject *self, void *unused) {
    (void)unused;
    pd_control_server *s = server_of(self);
    return s ? PyUnicode_FromString(pd_control_tcp_address(s)) : NULL;
}

static PyObject *server_secret_fd(PyObject *self, void *unused) {
    (void)unused;
    pd_control_server *s = server_of(self);
    return s ? PyLong_FromLong(pd_control_secret_fd(s)) : NULL;
}

static PyMethodDef server_methods[] = {
    {"close", server_close, METH_NOARGS, "close()\n\nEnds the server. The groups of ranks that still run fail."},
    {"dead", server_dead, METH_VARARGS,
     "dead(rank, text)\n\nThe launcher tells the server how this rank's process ended, as its wait() has said."},
    {"drain", server_drain, METH_VARARGS,
     "drain(timeout)\n\nWaits until every rank that joined has left or died; raises CommTimeout after `timeout` "
     "seconds."},
    {"silent", server_silent, METH_O,
     "silent(rank) -> bool\n\nWhether the server has heard nothing from this rank for PYDIST_SILENT seconds. Such a "
     "rank counts as dead, although its process may still exist."},
    {"first_raised", server_first_raised, METH_NOARGS,
     "first_raised() -> (rank, traceback) | None\n\nThe first rank that reported an exception."},
    {0},
};
static PyGetSetDef server_getset[] = {
    {"address", server_address, NULL, "The address that PYDIST_CONTROL gives to the workers of this host.", NULL},
    {"tcp_address", server_tcp_address, NULL,
     "The address that PYDIST_CONTROL gives to the workers of other hosts; '' without `listen`.", NULL},
    {"secret_fd", server_secret_fd, NULL,
     "The descriptor of the job's secret, which workers inherit (PYDIST_SECRET_FD).", NULL},
    {0},
};

/* ---- Hub --------------------------------------------------------------------------------------------------------- */

static PyObject *hub_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"world", "hosts", NULL};
    int world, hosts = 1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "i|i:Hub", names, &world, &hosts)) return NULL;
    pd_pyhub *self = (pd_pyhub *)pd_py_comm_make(type, PD_PY_HUB);
    if (!self) return NULL;
    pd_status status = pd_hub_new(world, hosts, &self->hub);
    PD_THEN(pd_calloc((size_t)world * sizeof *self->links, "hub", &self->links));
    if (status) {
        Py_DECREF(self);
        return pd_py_raise(status);
    }
    return (PyObject *)self;
}

static void hub_dealloc(PyObject *o) {
    pd_pyhub *self = (pd_pyhub *)o;
    PyObject_GC_UnTrack(o);
    for (int r = 0; self->links && r < pd_hub_world(self->hub); r++) pd_link_release(self->links[r]);
    pd_free(self->links);
    pd_hub_release(self->hub);
    pd_py_comm_end(o, PD_PY_HUB);
}

static PyObject *hub_world(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(pd_hub_world(((pd_pyhub *)self)->hub));
}

static PyGetSetDef hub_getset[] = {{"world", hub_world, NULL, "The number of ranks.", NULL}, {0}};

/* ---- Store ------------------------------------------------------------------------------------------------------- */

static void store_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    pd_link_release(((StoreObject *)self)->link);
    pd_py_comm_end(self, PD_PY_STORE);
}

static pd_link *link_of(PyObject *self) { return ((StoreObject *)self)->link; }

static PyObject *store_set(PyObject *self, PyObject *args) {
    const char *key, *data;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "ss#:set", &key, &data, &n)) return NULL; /* str or bytes */
    return pd_py_none_or(pd_store_set(link_of(self), key, data, (size_t)n));
}

static PyObject *store_get(PyObject *self, PyObject *args) {
    const char *key;
    PyObject *seconds = NULL;
    double timeout;
    void *data;
    size_t n;
    if (!PyArg_ParseTuple(args, "s|O:get", &key, &seconds) || !pd_py_seconds(seconds, 300, &timeout)) return NULL;
    pd_status status = pd_store_get(link_of(self), key, timeout, &data, &n);
    if (status) return pd_py_raise(status);
    PyObject *bytes = PyBytes_FromStringAndSize(data, (Py_ssize_t)n);
    pd_free(data);
    return bytes;
}

static PyObject *store_wait(PyObject *self, PyObject *args) {
    PyObject *keys, *seconds = NULL, *items;
    double timeout;
    if (!PyArg_ParseTuple(args, "O|O:wait", &keys, &seconds) || !pd_py_seconds(seconds, 300, &timeout)) return NULL;
    items = PyUnicode_Check(keys) ? PyTuple_Pack(1, keys) : PySequence_Tuple(keys);
    pd_status status = PD_OK;
    int64_t deadline = pd_os_now() + (int64_t)(timeout * 1e9);
    for (Py_ssize_t i = 0; items && !status && i < PyTuple_GET_SIZE(items); i++) {
        const char *key = PyUnicode_AsUTF8(PyTuple_GET_ITEM(items, i));
        if (!key) Py_CLEAR(items);
        else status = pd_store_wait(link_of(self), key, (double)(deadline - pd_os_now()) * 1e-9);
    }
    if (!items) return NULL;
    Py_DECREF(items);
    return pd_py_none_or(status);
}

static PyObject *store_add(PyObject *self, PyObject *args) {
    const char *key;
    long long amount = 1;
    int64_t sum;
    if (!PyArg_ParseTuple(args, "s|L:add", &key, &amount)) return NULL;
    pd_status status = pd_store_add(link_of(self), key, amount, &sum);
    return status ? pd_py_raise(status) : PyLong_FromLongLong(sum);
}

static PyObject *store_check(PyObject *self, PyObject *args) {
    const char *key;
    bool there;
    if (!PyArg_ParseTuple(args, "s:check", &key)) return NULL;
    pd_status status = pd_store_check(link_of(self), key, &there);
    return status ? pd_py_raise(status) : PyBool_FromLong(there);
}

static PyObject *store_delete(PyObject *self, PyObject *args) {
    const char *key;
    bool there;
    if (!PyArg_ParseTuple(args, "s:delete", &key)) return NULL;
    pd_status status = pd_store_delete(link_of(self), key, &there);
    return status ? pd_py_raise(status) : PyBool_FromLong(there);
}

static PyMethodDef store_methods[] = {
    {"set", store_set, METH_VARARGS, "set(key, value)\n\nStores a value (bytes or str) under the key."},
    {"get", store_get, METH_VARARGS,
     "get(key, timeout=300) -> bytes\n\nThe key's value; waits until a rank has set it."},
    {"wait", store_wait, METH_VARARGS, "wait(key or keys, timeout=300)\n\nWaits until all these keys are set."},
    {"add", store_add, METH_VARARGS,
     "add(key, amount=1) -> int\n\nAdds the amount to the key's number, which starts at 0, and returns the sum."},
    {"check", store_check, METH_VARARGS, "check(key) -> bool"},
    {"delete", store_delete, METH_VARARGS, "delete(key) -> bool\n\nDeletes the key; returns whether it was set."},
    {0},
};

PyObject *pd_py_store(pd_link *link) {
    StoreObject *s = (StoreObject *)pd_py_comm_make(store_type, PD_PY_STORE);
    if (!s) return NULL;
    pd_link_retain(link);
    s->link = link;
    return (PyObject *)s;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static PyType_Slot server_slots[] = {
    {Py_tp_new, server_new},
    {Py_tp_dealloc, server_dealloc},
    {Py_tp_traverse, pd_py_comm_visit},
    {Py_tp_methods, server_methods},
    {Py_tp_getset, server_getset},
    {Py_tp_doc,
     "ControlServer(world, listen=None, secret=None)\n\nThe launcher's side of the control plane. listen: 'host:port' "
     "where workers of other hosts connect; port 0: any free one. An address beyond loopback needs PYDIST_SECRET_FILE, "
     "PYDIST_INSECURE=1 or `secret`: 32 bytes that all ranks read from the descriptor PYDIST_SECRET_FD."},
    {0},
};
static PyType_Slot hub_slots[] = {
    {Py_tp_new, hub_new},
    {Py_tp_dealloc, hub_dealloc},
    {Py_tp_traverse, pd_py_comm_visit},
    {Py_tp_getset, hub_getset},
    {Py_tp_doc,
     "Hub(world, hosts=1)\n\nThe meeting place of ranks that are threads of one process. hosts: how many hosts the hub "
     "pretends to have; rank r is on host r * hosts // world, and tcp runs between hosts."},
    {0},
};
static PyType_Slot store_slots[] = {
    {Py_tp_dealloc, store_dealloc},
    {Py_tp_traverse, pd_py_comm_visit},
    {Py_tp_methods, store_methods},
    {Py_tp_doc, "A key-value store that all ranks share."},
    {0},
};

static PyType_Spec specs[] = {
    PD_PY_SPEC("ControlServer", ServerObject, server_slots, 0),
    PD_PY_SPEC("Hub", pd_pyhub, hub_slots, 0),
    PD_PY_SPEC("Store", StoreObject, store_slots, Py_TPFLAGS_DISALLOW_INSTANTIATION),
};

static PyObject *hmac_sha256(PyObject *module, PyObject *args) {
    (void)module;
    const char *key, *data;
    Py_ssize_t key_bytes, bytes;
    uint8_t out[PD_SHA256_BYTES];
    if (!PyArg_ParseTuple(args, "y#y#:hmac_sha256", &key, &key_bytes, &data, &bytes)) return NULL;
    pd_hmac(key, (size_t)key_bytes, data, (size_t)bytes, out);
    return PyBytes_FromStringAndSize((char *)out, sizeof out);
}

static PyObject *secret_file(PyObject *module, PyObject *path) {
    (void)module;
    PyObject *bytes = NULL;
    uint8_t secret[PD_SECRET_BYTES];
    if (!PyUnicode_FSConverter(path, &bytes)) return NULL;
    pd_status status = pd_control_secret_load(PyBytes_AS_STRING(bytes), secret);
    Py_DECREF(bytes);
    PyObject *result = status ? pd_py_raise(status) : PyBytes_FromStringAndSize((char *)secret, sizeof secret);
    explicit_bzero(secret, sizeof secret);
    return result;
}

static PyObject *interfaces(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    pd_face faces[PD_DIAL_FACES];
    int count;
    pd_status status = pd_dial_faces(faces, &count);
    if (status) return pd_py_raise(status);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < count; i++) {
        char text[80];
        pd_auth_text((struct sockaddr *)&faces[i].address, sizeof faces[i].address, text, sizeof text);
        *strrchr(text, ':') = 0; /* the port */
        PyObject *pair = Py_BuildValue("ss", faces[i].name, text);
        if (!pair || PyList_Append(list, pair)) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

static PyMethodDef functions[] = {
    {"interfaces", interfaces, METH_NOARGS,
     "interfaces() -> [(name, address)]\n\nThe network interfaces that ranks may use: those that are up and not "
     "loopback, or those that PYDIST_IFACE, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names. Errors: ValueError where "
     "no interface is left."},
    {"hmac_sha256", hmac_sha256, METH_VARARGS,
     "hmac_sha256(key, data) -> bytes\n\nHow ranks prove that they know the job's secret."},
    {"secret_file", secret_file, METH_O,
     "secret_file(path) -> bytes\n\nThe job's secret, 32 bytes, made from a file such as PYDIST_SECRET_FILE names. "
     "Errors: DistError where the file cannot be read, others may read it, or it is too short."},
    {0},
};

int pd_py_add_control(PyObject *module) {
    PyTypeObject **const types[] = {&server_type, &pd_py_hub_type, &store_type};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        if (pd_py_comm_type(module, &specs[i], types[i])) return -1;
    return PyModule_AddFunctions(module, functions);
}
