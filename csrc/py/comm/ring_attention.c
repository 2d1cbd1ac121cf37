/* Ring attention (parallel/ring_attention.h) for Python. */
#include "parallel/ring_attention.h"

#include "base/mem.h"
#include "py/comm/comm_impl.h"

/* One call: the ring, and tensors whose rows are dense, held while the GIL is given up. */
typedef struct call {
    pd_ring ring;
    int64_t *keys;
    int size, n;
    pd_tensor *in[6];
} call;

static bool begin(call *c, PyObject *const *a, const char *name) {
    *c = (call){.ring = {.site = pd_py_site()}};
    if (!(c->ring.group = pd_py_group(a[0]))) return false;
    if (!pd_py_double(a[2], name, "scale", &c->ring.scale)) return false;
    if (!pd_py_truth(a[3], &c->ring.causal) || !pd_py_truth(a[4], &c->ring.rotated)) return false;
    c->size = pd_group_size(c->ring.group);
    pd_status status = pd_calloc(sizeof *c->keys * (size_t)c->size, name, &c->keys);
    if (status) pd_py_raise(status);
    return !status;
}

static void end(call *c) {
    pd_tensor_let_go(c->in, c->n);
    pd_free(c->keys);
}

/* Takes n tensors of four dimensions, or three for a log-sum-exp. */
static bool take(call *c, PyObject *tensors, const char *name, int n) {
    pd_tensor *dense[6] = {0};
    PyObject *items = pd_py_items(tensors, name, "tensors", "a tuple of tensors");
    pd_status status = PD_OK;
    if (!items) return false;
    bool good = PyTuple_GET_SIZE(items) == n;
    if (!good) PyErr_Format(PyExc_ValueError, "%s: got %zd tensors (expected %d)", name, PyTuple_GET_SIZE(items), n);
    for (int i = 0; good && i < n; i++) {
        pd_tensor *t = pd_py_expect_tensor(PyTuple_GET_ITEM(items, i), name, "tensors");
        good = t && pd_py_on_host(t, name);
        if (!good) break;
        if (t->spread)
            status = pd_fail(PD_E_TYPE, "%s: got a DTensor (expected its local tensor)", name);
        else if (!t->ndim || t->stride[t->ndim - 1] == 1 || t->size[t->ndim - 1] <= 1)
            pd_tensor_retain(dense[i] = t);
        else
            status = pd_contiguous(t, &dense[i]);
        good = !status;
    }
    if (good && !(status = pd_tensor_hold(dense, n, c->in))) c->n = n;
    for (int i = 0; i < n; i++) pd_tensor_release(dense[i]);
    Py_DECREF(items);
    if (status) pd_py_raise(status);
    return good && !status;
}

#define RUN(call_)                                       \
    do {                                                 \
        const pd_device *was_;                           \
        status = pd_device_enter(&pd_device_cpu, &was_); \
        if (!status) PD_PY_NO_GIL(status = (call_));     \
        pd_device_here = was_;                           \
    } while (0)

PyObject *pd_py_ring_attention(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {"ring_attention", 5, {"group", "tensors", "scale", "is_causal", "rotated"}};
    PyObject *a[5], *result = NULL;
    pd_tensor *out, *lse;
    pd_status status;
    call c;
    (void)module;
    if (!pd_py_args(&s, args, n, keywords, a)) return NULL;
    if (begin(&c, a, s.name) && take(&c, a[1], s.name, 3)) {
        RUN(pd_ring_attention(&c.ring, c.in, c.keys, &out, &lse));
        PyObject *keys = status ? pd_py_raise(status) : PyTuple_New(c.size);
        for (int r = 0; keys && r < c.size; r++) {
            PyObject *number = PyLong_FromLongLong(c.keys[r]);
            if (number)
                PyTuple_SET_ITEM(keys, r, number);
            else
                Py_CLEAR(keys);
        }
        if (!status) {
            PyObject *first = pd_py_wrap_new(out), *second = pd_py_wrap_new(lse);
            if (keys && first && second) result = PyTuple_Pack(3, first, second, keys);
            Py_XDECREF(first);
            Py_XDECREF(second);
        }
        Py_XDECREF(keys);
    }
    end(&c);
    return result;
}

/* Reads how many keys each rank has; the sizes of the tensors say it of this one. */
static bool take_keys(call *c, PyObject *keys, const char *name) {
    pd_part *parts;
    bool fits = false;
    pd_status status = pd_calloc(sizeof *parts * (size_t)c->size, name, &parts);
    if (status) return pd_py_raise(status);
    bool read = pd_py_part_sizes(keys, name, "keys", c->size, parts, &fits);
    for (int r = 0; read && fits && r < c->size; r++) c->keys[r] = parts[r].count;
    pd_free(parts);
    if (read && !fits)
        PyErr_Format(PyExc_ValueError, "%s: keys is %R (expected %d sizes, by rank)", name, keys, c->size);
    return read && fits;
}

static bool same(const pd_tensor *t, int64_t a, int64_t b, int64_t rows, int64_t width) {
    return t->ndim == 4 && t->size[0] == a && t->size[1] == b && t->size[2] == rows && t->size[3] == width;
}

/* Whether the tensors are those of a forward: Python may call this with any. */
static pd_status check_grad(const call *c, const char *name) {
    pd_tensor *const *t = c->in, *q = t[0], *k = t[1], *v = t[2], *lse = t[4];
    const int64_t *n = q->size;
    const int own = pd_group_rank(c->ring.group);
    bool good = q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && lse->ndim == 3;
    good = good && same(k, n[0], k->size[1], c->keys[own], n[3]) && same(v, n[0], k->size[1], c->keys[own], v->size[3]);
    good = good && same(t[3], n[0], n[1], n[2], v->size[3]) && same(t[5], n[0], n[1], n[2], v->size[3]);
    good = good && (k->size[1] ? n[1] % k->size[1] == 0 : !n[1]) && pd_tensor_is_contiguous(lse);
    good = good && lse->size[0] == n[0] && lse->size[1] == n[1] && lse->size[2] == n[2];
    good = good && lse->dtype == (int8_t)pd_dtype_computed((pd_dtype)q->dtype) && pd_dtype_is_float((pd_dtype)q->dtype);
    for (int i = 1; i < 6; i++) good = good && (i == 4 || t[i]->dtype == q->dtype);
    if (good && (!c->ring.causal || q->size[2] == k->size[2])) return PD_OK;
    return pd_fail(PD_E_SHAPE, "%s: query %s, key %s, value %s, out %s, lse %s, grad %s (expected those of a forward)",
                   name, pd_tensor_shape(q), pd_tensor_shape(k), pd_tensor_shape(v), pd_tensor_shape(t[3]),
                   pd_tensor_shape(lse), pd_tensor_shape(t[5]));
}

PyObject *pd_py_ring_attention_grad(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *keywords) {
    static const pd_py_signature s = {
        "ring_attention_grad", 6, {"group", "tensors", "scale", "is_causal", "rotated", "keys"}};
    PyObject *a[6], *result = NULL;
    pd_tensor *grads[3];
    pd_status status;
    call c;
    (void)module;
    if (!pd_py_args(&s, args, n, keywords, a)) return NULL;
    if (begin(&c, a, s.name) && take_keys(&c, a[5], s.name) && take(&c, a[1], s.name, 6)) {
        if (!(status = check_grad(&c, s.name))) RUN(pd_ring_attention_grad(&c.ring, c.in, c.keys, grads));
        if (status) {
            pd_py_raise(status);
        } else {
            PyObject *made[3];
            for (int i = 0; i < 3; i++) made[i] = pd_py_wrap_new(grads[i]);
            if (made[0] && made[1] && made[2]) result = PyTuple_Pack(3, made[0], made[1], made[2]);
            for (int i = 0; i < 3; i++) Py_XDECREF(made[i]);
        }
    }
    end(&c);
    return result;
}
