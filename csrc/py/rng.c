/* Random streams in Python: Generator, which has a key of its own, and the default stream. */
#include "py/py.h"

typedef struct { PyObject_HEAD pd_rng_key key; } generator;
static PyObject *generator_type;

static PyObject *generator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"device", NULL};
    PyObject *device = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Generator", names, &device) ||
        !pd_py_device(device, "Generator"))
        return NULL;
    generator *g = (generator *)type->tp_alloc(type, 0);
    if (g) g->key.seed = 67280421310721u;
    return (PyObject *)g;
}

static bool seed_of(PyObject *o, const char *op, uint64_t *seed) {
    PyObject *i = PyNumber_Index(o);
    *seed = i ? PyLong_AsUnsignedLongLongMask(i) : 0; /* negative seeds wrap, as in PyTorch */
    (void)op;
    Py_XDECREF(i);
    return !PyErr_Occurred();
}

static PyObject *generator_seed(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"seed", NULL};
    generator *g = (generator *)self;
    PyObject *seed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:manual_seed", names, &seed)) return NULL;
    if (!seed_of(seed, "manual_seed", &g->key.seed)) return NULL;
    g->key.call = 0;
    return Py_NewRef(self);
}
static PyObject *generator_initial(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((generator *)self)->key.seed);
}
static PyObject *key_as_tuple(const pd_rng_key *k) {
    return Py_BuildValue("(KKk)", (unsigned long long)k->seed, (unsigned long long)k->call, (unsigned long)k->stream);
}

/* A state is a tensor of bytes, as in PyTorch, so that scripts can move and save it. There is a cheaper form, too, as
   three numbers. */
enum { STATE_BYTES = 8 + 8 + 4 };

static PyObject *key_as_state(const pd_rng_key *k) {
    pd_tensor *t;
    PD_PY_TRY(pd_tensor_new("get_rng_state", PD_U8, 1, &(int64_t){STATE_BYTES}, &t));
    char *bytes = pd_tensor_data(t);
    memcpy(bytes, &k->seed, 8);
    memcpy(bytes + 8, &k->call, 8);
    memcpy(bytes + 16, &k->stream, 4);
    return pd_py_wrap_new(t);
}
static bool key_from(PyObject *o, pd_rng_key *k) {
    unsigned long long seed, call;
    unsigned long stream;
    if (pd_py_is_tensor(o)) {
        pd_tensor *t = pd_py_tensor(o);
        if (!pd_py_on_host(t, "set_rng_state")) return false;
        if (t->dtype != PD_U8 || t->ndim != 1 || t->numel != STATE_BYTES || t->stride[0] != 1) {
            PyErr_Format(PyExc_TypeError,
                         "set_rng_state: new_state has a wrong length or dtype (expected the %d bytes that "
                         "get_rng_state returned)",
                         STATE_BYTES);
            return false;
        }
        const char *bytes = pd_tensor_data(t);
        memcpy(&k->seed, bytes, 8);
        memcpy(&k->call, bytes + 8, 8);
        memcpy(&k->stream, bytes + 16, 4);
        return true;
    }
    if (!PyTuple_Check(o) || !PyArg_ParseTuple(o, "KKk:set_rng_state", &seed, &call, &stream)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError,
                            "set_rng_state: new_state is not a state (expected a value that get_rng_state returned)");
        return false;
    }
    *k = (pd_rng_key){.seed = seed, .call = call, .stream = (uint32_t)stream};
    return true;
}
static PyObject *generator_get(PyObject *self, PyObject *unused) {
    (void)unused;
    return key_as_state(&((generator *)self)->key);
}
static PyObject *generator_key(PyObject *self, PyObject *unused) {
    (void)unused;
    return key_as_tuple(&((generator *)self)->key);
}
static PyObject *generator_set(PyObject *self, PyObject *state) {
    return key_from(state, &((generator *)self)->key) ? Py_NewRef(self) : NULL;
}
static PyObject *generator_device(PyObject *self, void *unused) {
    (void)self, (void)unused;
    return Py_NewRef(pd_py.cpu);
}
static void generator_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef generator_methods[] = {
    {"manual_seed", (PyCFunction)(void (*)(void))generator_seed, METH_VARARGS | METH_KEYWORDS,
     "manual_seed(seed)\n\nRestarts the generator at the beginning of the stream of `seed`."},
    {"initial_seed", generator_initial, METH_NOARGS, "initial_seed()\n\nThe generator's seed."},
    {"get_state", generator_get, METH_NOARGS, "get_state()\n\nA tensor of bytes: seed, next call, stream."},
    {"_key", generator_key, METH_NOARGS, "_key(): the state as (seed, next call, stream); set_state takes it too."},
    {"set_state", generator_set, METH_O, "set_state(state)\n\nRestores a state that get_state returned."},
    {0}};
static PyGetSetDef generator_getset[] = {{"device", generator_device, NULL, "The CPU.", NULL}, {0}};
static PyType_Slot generator_slots[] = {
    {Py_tp_new, generator_new},
    {Py_tp_getset, generator_getset},
    {Py_tp_dealloc, generator_dealloc},
    {Py_tp_methods, generator_methods},
    {Py_tp_doc,
     "Generator(device='cpu')\n\nA random number generator with its own stream: counter-based, keyed by the seed."},
    {0}};
static PyType_Spec generator_spec = {.name = "pydist._C.Generator",
                                     .basicsize = sizeof(generator),
                                     .slots = generator_slots,
                                     .flags = Py_TPFLAGS_DEFAULT};

/* What draws in a way that a replay would not repeat. */
static void refuse(void) {
    if (pd_is_recording()) pd_record_outside("it seeds or reads a random generator, or draws from one of its own");
}

bool pd_py_rng_key(PyObject *o, const char *op, pd_rng_key *key) {
    if (!o || o == Py_None) {
        *key = pd_rng_next();
        return true;
    }
    if (Py_TYPE(o) != (PyTypeObject *)generator_type) {
        PyErr_Format(PyExc_TypeError, "%s: generator is %.100s (expected Generator)", op, Py_TYPE(o)->tp_name);
        return false;
    }
    refuse();
    *key = ((generator *)o)->key;
    ((generator *)o)->key.call++;
    return true;
}

/* ---- the default stream ------------------------------------------------------------------------------------------ */

static PyObject *f_manual_seed(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"seed", NULL};
    uint64_t seed;
    PyObject *o;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:manual_seed", names, &o)) return NULL;
    if (!seed_of(o, "manual_seed", &seed)) return NULL;
    refuse();
    pd_rng_seed(seed);
    Py_RETURN_NONE;
}
static PyObject *f_initial_seed(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(pd_rng_initial_seed());
}
static PyObject *f_get_rng_state(PyObject *module, PyObject *unused) {
    pd_rng_key key;
    (void)module, (void)unused;
    refuse();
    pd_rng_get(&key);
    return key_as_state(&key);
}
static PyObject *f_rng_key(PyObject *module, PyObject *unused) {
    pd_rng_key key;
    (void)module, (void)unused;
    refuse();
    pd_rng_get(&key);
    return key_as_tuple(&key);
}
static PyObject *f_set_rng_state(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"new_state", NULL};
    PyObject *state;
    pd_rng_key key;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:set_rng_state", names, &state) || !key_from(state, &key))
        return NULL;
    refuse();
    pd_rng_set(&key);
    Py_RETURN_NONE;
}
static PyObject *f_rng_own(PyObject *module, PyObject *args) {
    int own;
    (void)module;
    if (!PyArg_ParseTuple(args, "p:_rng_own", &own)) return NULL;
    refuse();
    pd_rng_own(own);
    Py_RETURN_NONE;
}
static PyObject *f_rng_shard(PyObject *module, PyObject *args) {
    int shard;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:_rng_shard", &shard)) return NULL;
    refuse();
    pd_rng_set_shard((uint32_t)shard);
    Py_RETURN_NONE;
}
static PyObject *f_rng_next(PyObject *module, PyObject *args) {
    int shard;
    (void)module;
    if (!PyArg_ParseTuple(args, "i:_rng_next", &shard)) return NULL;
    refuse();
    pd_rng_key key = pd_rng_next();
    key.stream += (uint32_t)shard;
    return PyBytes_FromStringAndSize((const char *)&key, sizeof key);
}

static PyMethodDef functions[] = {
    {"manual_seed", (PyCFunction)(void (*)(void))f_manual_seed, METH_VARARGS | METH_KEYWORDS,
     "manual_seed(seed)\n\nRestarts the default random stream with this seed."},
    {"initial_seed", f_initial_seed, METH_NOARGS, "initial_seed()\n\nThe seed of the default stream."},
    {"get_rng_state", f_get_rng_state, METH_NOARGS,
     "get_rng_state()\n\nThe state of the default stream as a tensor of bytes: seed, next call, stream."},
    {"_rng_key", f_rng_key, METH_NOARGS,
     "_rng_key(): the state of the default stream as (seed, next call, stream); set_rng_state takes it too."},
    {"set_rng_state", (PyCFunction)(void (*)(void))f_set_rng_state, METH_VARARGS | METH_KEYWORDS,
     "set_rng_state(new_state)\n\nRestores a state that get_rng_state returned."},
    {"_rng_own", f_rng_own, METH_VARARGS,
     "_rng_own(own): gives this thread a default generator of its own (True), or takes it away."},
    {"_rng_shard", f_rng_shard, METH_VARARGS,
     "_rng_shard(n): makes dropout on this rank draw other numbers than on other shards; returns the number until "
     "now."},
    {"_rng_next", f_rng_next, METH_VARARGS,
     "_rng_next(shard): the bytes of the next key, as dropout on that shard would take it."},
    {0},
};

int pd_py_add_rng(PyObject *module) {
    return pd_py_type(module, &generator_spec, NULL, &generator_type) ? PyModule_AddFunctions(module, functions) : -1;
}
