/* Cross entropy over ranks that share a vocabulary, below distributed.tensor. */
#include "parallel/vocab.h"

#include <string.h>

#include "py/comm/comm_impl.h"
#include "py/py.h"

#define OP "vocab_cross_entropy"

static bool read_reduction(const char *name, int64_t *out) {
    const char *const names[] = {[PD_LOSS_NONE] = "none", [PD_LOSS_MEAN] = "mean", [PD_LOSS_SUM] = "sum"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) {
            *out = i;
            return true;
        }
    PyErr_Format(PyExc_ValueError, OP ": reduction is '%s' (expected 'none', 'mean' or 'sum')", name);
    return false;
}

/* Reads (logits, target, weight, first, classes, ignore_index, reduction, label_smoothing). */
static bool read_loss(PyObject *o, pd_vocab_loss *v) {
    PyObject *logits, *target, *weight;
    long long first, classes, ignore;
    const char *reduction;
    if (!PyTuple_Check(o)) {
        PyErr_SetString(PyExc_TypeError, OP ": the loss is no tuple (expected a tuple of 8)");
        return false;
    }
    if (!PyArg_ParseTuple(o, "OOOLLLsd:" OP, &logits, &target, &weight, &first, &classes, &ignore, &reduction,
                          &v->loss.smoothing))
        return false;
    v->first = first, v->classes = classes, v->loss.ignore_index = ignore;
    return (v->logits = pd_py_expect_tensor(logits, OP, "logits")) &&
           (v->target = pd_py_expect_tensor(target, OP, "target")) &&
           (weight == Py_None || (v->weight = pd_py_expect_tensor(weight, OP, "weight"))) &&
           read_reduction(reduction, &v->loss.reduction);
}

static PyObject *loss(PyObject *module, PyObject *args) {
    PyObject *group, *given;
    pd_vocab_loss v = {0};
    pd_tensor *out, *stats;
    double total;
    pd_group *g;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:" OP, &group, &given) || !(g = pd_py_group(group)) || !read_loss(given, &v))
        return NULL;
    PD_PY_TRY(pd_vocab_loss_run(&v, g, pd_py_site(), &out, &stats, &total));
    return Py_BuildValue("NNd", pd_py_wrap_new(out), pd_py_wrap_new(stats), total);
}

static PyObject *grad(PyObject *module, PyObject *args) {
    PyObject *given, *o[2];
    pd_vocab_loss v = {0};
    pd_tensor *stats, *g, *gx;
    double total;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOdO:" OP "_grad", &given, &o[0], &total, &o[1]) || !read_loss(given, &v) ||
        !(stats = pd_py_expect_tensor(o[0], OP, "stats")) || !(g = pd_py_expect_tensor(o[1], OP, "grad")))
        return NULL;
    PD_PY_TRY(pd_vocab_loss_grad(&v, stats, total, g, &gx));
    return pd_py_wrap_new(gx);
}

static PyMethodDef functions[] = {
    {"vocab_cross_entropy", loss, METH_VARARGS,
     "vocab_cross_entropy(group, loss) -> (loss, stats, total)\n\nCross entropy where each rank has some columns of "
     "the "
     "logits; loss is a tuple (logits, target, weight, first, classes, ignore_index, reduction, label_smoothing)."},
    {"vocab_cross_entropy_grad", grad, METH_VARARGS,
     "vocab_cross_entropy_grad(loss, stats, total, grad) -> Tensor\n\nThe gradient of this rank's logits."},
    {0},
};

int pd_py_add_vocab(PyObject *module) { return PyModule_AddFunctions(module, functions); }
