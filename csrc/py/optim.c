/* The fused optimizer steps, on lists of tensors. */
#include <string.h>

#include "base/mem.h"
#include "io/stage.h"
#include "kernels/step_rules.h"
#include "optim/step.h"
#include "py/py.h"

enum { LISTS = 5, GRADIENTS = LISTS - 1 };

/* Lists of the same length, the first one of parameters; for a step also numbers that are tensors (optim/step.h). */
typedef struct {
    PyObject *seq[LISTS];
    pd_tensor **t[LISTS];
    Py_ssize_t n;
    pd_tensor *on_device[5]; /* skip, lr, step, own */
    pd_tensor *now[3];       /* lr, step, mu_product */
    const pd_numbering *numbers;
} lists;

typedef struct { PyObject *on_device, *keras, *numbers; } options; /* NULL: not given */
static bool is_keras(const options *more) { return more->keras && more->keras != Py_None; }


static void free_lists(lists *l) {
    for (int i = 0; i < LISTS; i++) {
        pd_free(l->t[i]);
        Py_XDECREF(l->seq[i]);
    }
}

static bool read_lists(const char *op, PyObject *const *o, int count, lists *l) {
    Py_ssize_t n;
    *l = (lists){0};
    for (int i = 0; i < count; i++) {
        if (!o[i] || o[i] == Py_None) continue;
        const char *one = i == 0 ? "parameter" : i == GRADIENTS ? "gradient" : "state";
        if (!pd_py_tensors(o[i], op, i == 0 ? "params" : i == GRADIENTS ? "gradients" : "a state list", &l->seq[i],
                           &l->t[i], &n))
            goto fail;
        if (i == 0) l->n = n;
        for (Py_ssize_t k = 0; k < n; k++)
            if (!l->t[i][k]) {
                PyErr_Format(PyExc_TypeError, "%s: %s %zd is None (expected Tensor)", op, one, k);
                goto fail;
            }
        if (n != l->n) {
            PyErr_Format(PyExc_ValueError, "%s: got %zd parameters and %zd %ss (expected one %s for each parameter)",
                         op, l->n, n, one, one);
            goto fail;
        }
    }
    return true;
fail:
    free_lists(l);
    return false;
}

/* Reads `from`, which is None or a tuple of up to `most` entries, from entry `first` on, each a tensor or None. */
static bool read_numbers(const char *op, const char *name, PyObject *from, Py_ssize_t first, Py_ssize_t most,
                         pd_tensor **to) {
    if (!from || from == Py_None) return true;
    if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) < first || PyTuple_GET_SIZE(from) > most) {
        PyErr_Format(PyExc_TypeError, "%s: %s is %R (expected None or a tuple of %zd to %zd entries)", op, name, from,
                     first, most);
        return false;
    }
    for (Py_ssize_t i = first; i < PyTuple_GET_SIZE(from); i++) {
        PyObject *t = PyTuple_GET_ITEM(from, i);
        if (t != Py_None && !(to[i - first] = pd_py_expect_tensor(t, op, name))) return false;
    }
    return true;
}

/* Reads the numbers of the parameters' elements for stochastic rounding: None, or bytes of a pd_numbering for each of
   n parameters, which the caller keeps. */
static bool read_numbering(const char *op, PyObject *from, Py_ssize_t n, const pd_numbering **out) {
    const Py_ssize_t want = (Py_ssize_t)sizeof **out * n;
    if (!from || from == Py_None) return true;
    if (!PyBytes_Check(from) || PyBytes_GET_SIZE(from) != want) {
        PyErr_Format(PyExc_ValueError, "%s: numbers is %.100R (expected None or %zd bytes)", op, from, want);
        return false;
    }
    *out = (const pd_numbering *)(const void *)PyBytes_AS_STRING(from);
    for (Py_ssize_t i = 0; i < n; i++) {
        const pd_numbering *one = &(*out)[i];
        if (one->first >= 0 && one->run >= 0 && one->row >= 0) continue;
        PyErr_Format(PyExc_ValueError, "%s: a number of parameter %zd is negative (expected at least 0)", op, i);
        return false;
    }
    return true;
}

/* Reads the lists of a step, `on_device`: (skip, lr, step, *own), `keras`: (gradients, lr, step, mu_product), and
   `numbers`. */
static bool read_step(const char *op, PyObject *const *o, int count, const options *more, lists *l) {
    PyObject *all[LISTS] = {NULL};
    pd_tensor *now[3] = {NULL}, *on_device[5] = {NULL};
    if (!read_numbers(op, "on_device", more->on_device, 0, 5, on_device) ||
        !read_numbers(op, "keras", more->keras, 1, 4, now))
        return false;
    memcpy(all, o, sizeof *o * (size_t)count);
    if (is_keras(more)) all[GRADIENTS] = PyTuple_GET_ITEM(more->keras, 0);
    if (!read_lists(op, all, LISTS, l)) return false;
    memcpy(l->on_device, on_device, sizeof on_device);
    memcpy(l->now, now, sizeof now);
    if (read_numbering(op, more->numbers, l->n, &l->numbers)) return true;
    free_lists(l);
    return false;
}

static pd_step_lists step_of(const lists *l, pd_tensor **m, pd_tensor **v, pd_tensor **w) {
    pd_tensor *const *d = l->on_device;
    pd_tensor *const *now = l->now;
    return (pd_step_lists){.params = l->t[0], .m = m, .v = v, .w = w, .grads = l->t[GRADIENTS], .count = l->n,
                           .skip = d[0], .lr = d[1], .step = d[2], .own = {d[3], d[4]}, .numbers = l->numbers,
                           .now = {now[0], now[1], now[2]}};
}

static PyObject *finish(lists *l, pd_status status) {
    free_lists(l);
    if (status) return pd_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *sgd_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params",   "momentum_buffers", "lr",    "momentum", "dampening", "weight_decay",
                            "nesterov", "maximize",         "first", "chance", "numbers", "on_device", "keras", NULL};
    PyObject *o[2] = {NULL};
    options more = {0};
    pd_sgd c = {0};
    int nesterov = 0, maximize = 0, first = 0;
    unsigned long long chance = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$ddddpppKOOO:sgd_step", names, &o[0], &o[1], &c.lr, &c.momentum,
                                     &c.dampening, &c.weight_decay, &nesterov, &maximize, &first, &chance,
                                     &more.numbers, &more.on_device, &more.keras) ||
        !read_step("sgd_step", o, 2, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[1], NULL, NULL);
    s.chance = chance;
    c.nesterov = nesterov, c.maximize = maximize, c.keras = is_keras(&more), c.first = first;
    if (c.momentum != 0 && !l.t[1])
        return finish(
            &l,
            pd_fail(
                PD_E_VALUE,
                "sgd_step: momentum is %g, but there are no momentum buffers (expected a buffer for each parameter)",
                c.momentum));
    return finish(&l, pd_step_sgd(&s, &c));
}

static PyObject *adam_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params",  "exp_avgs",  "exp_avg_sqs", "max_exp_avg_sqs", "lr",
                            "beta1",   "beta2",     "eps",         "weight_decay",    "step",
                            "amsgrad", "decoupled", "maximize",    "chance", "numbers", "on_device", "keras", NULL};
    PyObject *o[4] = {NULL};
    options more = {0};
    pd_adam c = {0};
    int amsgrad = 0, decoupled = 0, maximize = 0;
    long long step = 0;
    unsigned long long chance = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|$dddddLpppKOOO:adam_step", names, &o[0], &o[1], &o[2], &o[3],
                                     &c.lr, &c.beta1, &c.beta2, &c.eps, &c.weight_decay, &step, &amsgrad,
                                     &decoupled, &maximize, &chance, &more.numbers, &more.on_device,
                                     &more.keras) ||
        !read_step("adam_step", o, 4, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[1], l.t[2], l.t[3]);
    s.chance = chance;
    c.step = step, c.amsgrad = amsgrad, c.decoupled = decoupled, c.maximize = maximize, c.keras = is_keras(&more);
    if (!l.t[1] || !l.t[2] || (amsgrad && !l.t[3]))
        return finish(&l, pd_fail(PD_E_VALUE,
                                  "adam_step: a list of states is None (expected exp_avgs, exp_avg_sqs and, with "
                                  "amsgrad, max_exp_avg_sqs)"));
    if (step < 1 && !s.now[1])
        return finish(&l, pd_fail(PD_E_VALUE, "adam_step: step is %lld (expected at least 1)", step));
    return finish(&l, pd_step_adam(&s, &c));
}

static PyObject *adadelta_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params", "square_avgs",  "acc_deltas", "lr", "rho",
                            "eps",    "weight_decay", "maximize", "on_device", "keras", NULL};
    PyObject *o[3] = {NULL};
    options more = {0};
    pd_adadelta c = {0};
    int maximize = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$ddddpOO:adadelta_step", names, &o[0], &o[1], &o[2], &c.lr,
                                     &c.rho, &c.eps, &c.weight_decay, &maximize, &more.on_device, &more.keras) ||
        !read_step("adadelta_step", o, 3, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[2], l.t[1], NULL);
    c.maximize = maximize;
    if (!l.t[1] || !l.t[2])
        return finish(
            &l, pd_fail(PD_E_VALUE, "adadelta_step: a list of states is None (expected square_avgs and acc_deltas)"));
    return finish(&l, pd_step_adadelta(&s, &c));
}

static PyObject *rmsprop_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params", "square_avgs",  "momentum_buffers", "grad_avgs", "lr",       "alpha",

                            "eps",    "weight_decay", "momentum",         "centered",  "maximize", "on_device",
                            "keras",  NULL};
    PyObject *o[4] = {NULL};
    options more = {0};
    pd_rmsprop c = {0};
    int centered = 0, maximize = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOO|$dddddppOO:rmsprop_step", names, &o[0], &o[1], &o[2], &o[3],
                                     &c.lr, &c.alpha, &c.eps, &c.weight_decay, &c.momentum, &centered, &maximize,
                                     &more.on_device, &more.keras) ||
        !read_step("rmsprop_step", o, 4, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[2], l.t[1], l.t[3]);
    c.centered = centered, c.maximize = maximize, c.keras = is_keras(&more);
    if (!l.t[1] || (c.momentum != 0 && !l.t[2]) || (centered && !l.t[3]))
        return finish(&l, pd_fail(PD_E_VALUE,
                                  "rmsprop_step: a list of states is None (expected square_avgs, with momentum "
                                  "momentum_buffers, and if centered grad_avgs)"));
    return finish(&l, pd_step_rmsprop(&s, &c));
}

static PyObject *adagrad_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params", "sums", "lr", "lr_decay", "eps", "weight_decay", "step", "maximize",
                            "on_device", "keras", NULL};
    PyObject *o[2] = {NULL};
    options more = {0};
    pd_adagrad c = {0};
    int maximize = 0;
    long long step = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$ddddLpOO:adagrad_step", names, &o[0], &o[1], &c.lr, &c.lr_decay,
                                     &c.eps, &c.weight_decay, &step, &maximize, &more.on_device, &more.keras) ||
        !read_step("adagrad_step", o, 2, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, NULL, l.t[1], NULL);
    c.step = step, c.maximize = maximize, c.keras = is_keras(&more);
    if (!l.t[1]) return finish(&l, pd_fail(PD_E_VALUE, "adagrad_step: the list of states is None (expected sums)"));
    if (step < 1 && !s.now[1])
        return finish(&l, pd_fail(PD_E_VALUE, "adagrad_step: step is %lld (expected at least 1)", step));
    return finish(&l, pd_step_adagrad(&s, &c));
}

static PyObject *moments_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params", "exp_avgs", "exp_avg_sqs", "lr", "beta1", "beta2", "eps", "weight_decay",
                            "momentum_decay", "mu_product", "step", "nesterov", "decoupled", "maximize",
                            "on_device", "keras", NULL};
    PyObject *o[3] = {NULL};
    options more = {0};
    pd_moments c = {.mu_product = 1};
    int nesterov = 0, decoupled = 0, maximize = 0;
    long long step = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$dddddddLpppOO:moments_step", names, &o[0], &o[1], &o[2], &c.lr,
                                     &c.beta1, &c.beta2, &c.eps, &c.weight_decay, &c.momentum_decay, &c.mu_product,
                                     &step, &nesterov, &decoupled, &maximize, &more.on_device, &more.keras) ||
        !read_step("moments_step", o, 3, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[1], l.t[2], NULL);
    c.step = step, c.nesterov = nesterov, c.decoupled = decoupled, c.maximize = maximize;
    if (!l.t[1] || !l.t[2])
        return finish(
            &l, pd_fail(PD_E_VALUE, "moments_step: a list of states is None (expected exp_avgs and exp_avg_sqs)"));
    if (step < 1 && !s.now[1])
        return finish(&l, pd_fail(PD_E_VALUE, "moments_step: step is %lld (expected at least 1)", step));
    PyObject *none = finish(&l, pd_step_moments(&s, &c));
    Py_XDECREF(none);
    return none ? PyFloat_FromDouble(pd_nadam_product(&c)) : NULL;
}

static PyObject *adamax_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params", "exp_avgs", "exp_infs",     "lr",   "beta1",
                            "beta2",  "eps",      "weight_decay", "step", "maximize", "on_device", "keras", NULL};
    PyObject *o[3] = {NULL};
    options more = {0};
    pd_adamax c = {0};
    int maximize = 0;
    long long step = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$dddddLpOO:adamax_step", names, &o[0], &o[1], &o[2], &c.lr,
                                     &c.beta1, &c.beta2, &c.eps, &c.weight_decay, &step, &maximize,
                                     &more.on_device, &more.keras) ||
        !read_step("adamax_step", o, 3, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[1], l.t[2], NULL);
    c.step = step, c.maximize = maximize, c.keras = is_keras(&more);
    if (!l.t[1] || !l.t[2])
        return finish(&l,
                      pd_fail(PD_E_VALUE, "adamax_step: a list of states is None (expected exp_avgs and exp_infs)"));
    if (step < 1 && !s.now[1])
        return finish(&l, pd_fail(PD_E_VALUE, "adamax_step: step is %lld (expected at least 1)", step));
    return finish(&l, pd_step_adamax(&s, &c));
}

static PyObject *asgd_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params", "averages", "eta", "mu",   "lambd",    "weight_decay",
                            "lr",     "alpha",    "t0",  "step", "maximize", "on_device", NULL};
    PyObject *o[2] = {NULL};
    options more = {0};
    pd_asgd c = {0};
    int maximize = 0;
    long long step = 0;
    double eta, mu;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$dddddddLpO:asgd_step", names, &o[0], &o[1], &c.eta, &c.mu,
                                     &c.lambd, &c.weight_decay, &c.lr, &c.alpha, &c.t0, &step, &maximize,
                                     &more.on_device) ||
        !read_step("asgd_step", o, 2, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[1], NULL, NULL);
    c.step = step, c.maximize = maximize;
    if (!l.t[1]) return finish(&l, pd_fail(PD_E_VALUE, "asgd_step: the list of states is None (expected averages)"));
    if (step < 1) return finish(&l, pd_fail(PD_E_VALUE, "asgd_step: step is %lld (expected at least 1)", step));
    PyObject *none = finish(&l, pd_step_asgd(&s, &c));
    Py_XDECREF(none);
    pd_asgd_next(&c, &eta, &mu);
    return none ? Py_BuildValue("dd", eta, mu) : NULL;
}

static PyObject *rprop_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params",   "prevs",    "step_sizes", "eta_minus", "eta_plus",
                            "step_min", "step_max", "maximize", "on_device", NULL};
    PyObject *o[3] = {NULL};
    options more = {0};
    pd_rprop c = {0};
    int maximize = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$ddddpO:rprop_step", names, &o[0], &o[1], &o[2], &c.eta_minus,
                                     &c.eta_plus, &c.step_min, &c.step_max, &maximize, &more.on_device) ||
        !read_step("rprop_step", o, 3, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[1], l.t[2], NULL);
    c.maximize = maximize;
    if (!l.t[1] || !l.t[2])
        return finish(&l, pd_fail(PD_E_VALUE, "rprop_step: a list of states is None (expected prevs and step_sizes)"));
    return finish(&l, pd_step_rprop(&s, &c));
}

static PyObject *lion_step(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"params", "exp_avgs", "lr", "beta1", "beta2", "weight_decay", "maximize",
                            "on_device", "keras", NULL};
    PyObject *o[2] = {NULL};
    options more = {0};
    pd_lion c = {0};
    int maximize = 0;
    lists l;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$ddddpOO:lion_step", names, &o[0], &o[1], &c.lr, &c.beta1,
                                     &c.beta2, &c.weight_decay, &maximize, &more.on_device, &more.keras) ||
        !read_step("lion_step", o, 2, &more, &l))
        return NULL;
    pd_step_lists s = step_of(&l, l.t[1], NULL, NULL);
    c.maximize = maximize;
    if (!l.t[1]) return finish(&l, pd_fail(PD_E_VALUE, "lion_step: the list of states is None (expected exp_avgs)"));
    return finish(&l, pd_step_lion(&s, &c));
}

static PyObject *zero_grads(PyObject *module, PyObject *args) {
    PyObject *o[1];
    int set_to_none = 1;
    lists l;
    (void)module;
    if (!PyArg_ParseTuple(args, "O|p:zero_grads", &o[0], &set_to_none) || !read_lists("zero_grads", o, 1, &l))
        return NULL;
    return finish(&l, pd_zero_grads(l.t[0], l.n, set_to_none));
}

/* Waits until no staging copies parameters (io/stage.h); false with the exception set after Ctrl-C. */
static bool pass_the_door(void) {
    if (__builtin_expect(!atomic_load_explicit(&pd_stages_open, memory_order_acquire), 1)) return true;
    for (bool open = false; !open;) {
        Py_BEGIN_ALLOW_THREADS;
        open = pd_stage_door();
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals()) return false;
    }
    return true;
}

/* Every step calls this first, so it makes no objects: it reads the groups as they are. */
static PyObject *ask_to_write(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    if (n != 2 || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError,
                            "ask_to_write: the arguments do not fit (expected an optimizer and its list of groups)");
    if (!pass_the_door()) return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); i++) {
        PyObject *group = PyList_GET_ITEM(args[1], i),
                 *params = PyDict_Check(group) ? PyDict_GetItemString(group, "params") : NULL;
        for (Py_ssize_t k = 0; params && PyList_Check(params) && k < PyList_GET_SIZE(params); k++) {
            PyObject *p = PyList_GET_ITEM(params, k);
            if (pd_py_is_tensor(p)) PD_PY_TRY(pd_step_ask_to_write(Py_TYPE(args[0])->tp_name, pd_py_tensor(p)));
        }
    }
    Py_RETURN_NONE;
}

/* A number that each state of a list has, as 0-dim views of one tensor on the CPU (pydist/optim/_fused.py). Steps call
   these, so they make no objects but a number. */

static PyObject *numbers_kept(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    pd_tensor *whole = n == 5 ? pd_py_expect_tensor(args[3], "numbers_kept", "whole") : NULL;
    if (!whole || !PyList_Check(args[0]) || !PyList_Check(args[2]) ||
        PyList_GET_SIZE(args[0]) != PyList_GET_SIZE(args[2]))
        return PyErr_Format(PyExc_TypeError, "numbers_kept: the arguments do not fit (expected states, a name, as many "
                                             "views, their tensor and its version)");
    const unsigned long version = PyLong_AsUnsignedLong(args[4]);
    if (version == (unsigned long)-1 && PyErr_Occurred()) return NULL;
    if (version != pd_tensor_version(whole)) Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); i++) {
        PyObject *state = PyList_GET_ITEM(args[0], i),
                 *now = PyDict_Check(state) ? PyDict_GetItemWithError(state, args[1]) : NULL;
        if (PyErr_Occurred()) return NULL;
        if (now != PyList_GET_ITEM(args[2], i)) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyObject *set_numbers(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    (void)module;
    pd_tensor *whole = n == 2 ? pd_py_expect_tensor(args[0], "set_numbers", "whole") : NULL;
    const pd_scalar s = {.d = whole ? PyFloat_AsDouble(args[1]) : 0, .cat = PD_CAT_FLOAT};
    if (PyErr_Occurred()) return NULL;
    if (!whole || whole->storage->device != &pd_device_cpu)
        return PyErr_Format(PyExc_TypeError, "set_numbers: the arguments do not fit (expected a tensor on the CPU and "
                                             "a number)");
    PD_PY_TRY(pd_tensor_before_write("step", whole));
    pd_fill(whole, &s);
    return PyLong_FromUnsignedLong(pd_tensor_version(whole));
}

static PyObject *sums_of_squares(PyObject *module, PyObject *tensors) {
    lists l;
    pd_tensor *sums;
    (void)module;
    if (!read_lists("sums_of_squares", &tensors, 1, &l)) return NULL;
    pd_status status = pd_sums_of_squares(l.t[0], l.n, &sums);
    PyObject *none = finish(&l, status);
    Py_XDECREF(none);
    return none ? pd_py_wrap_new(sums) : NULL;
}

static PyObject *exact_squares(PyObject *module, PyObject *args) {
    PyObject *o;
    double more = 0.0;
    lists l;
    pd_tensor *sum;
    (void)module;
    if (!PyArg_ParseTuple(args, "O|d:exact_squares", &o, &more) || !read_lists("exact_squares", &o, 1, &l)) return NULL;
    pd_status status = pd_exact_squares(l.t[0], l.n, more, &sum);
    PyObject *none = finish(&l, status);
    Py_XDECREF(none);
    return none ? pd_py_wrap_new(sum) : NULL;
}

static PyObject *exact_number(const char *op, PyObject *o, bool root) {
    const pd_tensor *t = pd_py_expect_tensor(o, op, "sum");
    if (!t) return NULL;
    if (t->dtype != PD_I64 || t->ndim != 1 || t->numel != PD_EXACT || t->stride[0] != 1 ||
        t->storage->device != &pd_device_cpu)
        return PyErr_Format(PyExc_ValueError,
                            "%s: sum is %s of shape %s on %s (expected what exact_squares returned)", op,
                            pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t), t->storage->device->name);
    if (pd_is_recording()) pd_record_read(op);
    return PyFloat_FromDouble(pd_exact_value(pd_tensor_data(t), root));
}

static PyObject *exact_norm(PyObject *module, PyObject *o) {
    (void)module;
    return exact_number("exact_norm", o, true);
}

static PyObject *exact_value(PyObject *module, PyObject *o) {
    (void)module;
    return exact_number("exact_value", o, false);
}

static PyObject *scale_tensors(PyObject *module, PyObject *args) {
    PyObject *o;
    double by;
    bool finite = false;
    lists l;
    (void)module;
    if (!PyArg_ParseTuple(args, "Od:scale_tensors", &o, &by) || !read_lists("scale_tensors", &o, 1, &l)) return NULL;
    pd_status status = pd_scale_tensors(l.t[0], l.n, by, &finite);
    PyObject *none = finish(&l, status);
    Py_XDECREF(none);
    return none ? PyBool_FromLong(finite) : NULL;
}

static PyObject *unscale(PyObject *module, PyObject *args) {
    PyObject *o, *by, *found;
    pd_tensor *tb, *tf;
    lists l;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO:unscale", &o, &by, &found) || !(tb = pd_py_expect_tensor(by, "unscale", "by")) ||
        !(tf = pd_py_expect_tensor(found, "unscale", "found")) || !read_lists("unscale", &o, 1, &l))
        return NULL;
    return finish(&l, pd_unscale(l.t[0], l.n, tb, tf));
}

static PyMethodDef functions[] = {
    {"sgd_step", (PyCFunction)(void (*)(void))sgd_step, METH_VARARGS | METH_KEYWORDS,
     "sgd_step(params, momentum_buffers, *, lr, ...): one fused step of SGD."},
    {"adam_step", (PyCFunction)(void (*)(void))adam_step, METH_VARARGS | METH_KEYWORDS,
     "adam_step(params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, *, lr, ...): one fused step of Adam."},
    {"adadelta_step", (PyCFunction)(void (*)(void))adadelta_step, METH_VARARGS | METH_KEYWORDS,
     "adadelta_step(params, square_avgs, acc_deltas, *, lr, ...): one fused step of Adadelta."},
    {"rmsprop_step", (PyCFunction)(void (*)(void))rmsprop_step, METH_VARARGS | METH_KEYWORDS,
     "rmsprop_step(params, square_avgs, momentum_buffers, grad_avgs, *, lr, ...): one fused step of RMSprop."},
    {"adagrad_step", (PyCFunction)(void (*)(void))adagrad_step, METH_VARARGS | METH_KEYWORDS,
     "adagrad_step(params, sums, *, lr, ...): one fused step of Adagrad."},
    {"moments_step", (PyCFunction)(void (*)(void))moments_step, METH_VARARGS | METH_KEYWORDS,
     "moments_step(params, exp_avgs, exp_avg_sqs, *, lr, ...): one fused step of RAdam, or of NAdam with nesterov; "
     "returns mu_product."},
    {"adamax_step", (PyCFunction)(void (*)(void))adamax_step, METH_VARARGS | METH_KEYWORDS,
     "adamax_step(params, exp_avgs, exp_infs, *, lr, ...): one fused step of Adamax."},
    {"asgd_step", (PyCFunction)(void (*)(void))asgd_step, METH_VARARGS | METH_KEYWORDS,
     "asgd_step(params, averages, *, eta, ...): one fused step of averaged SGD; returns eta and mu of the next step."},
    {"rprop_step", (PyCFunction)(void (*)(void))rprop_step, METH_VARARGS | METH_KEYWORDS,
     "rprop_step(params, prevs, step_sizes, *, eta_minus, ...): one fused step of Rprop."},
    {"lion_step", (PyCFunction)(void (*)(void))lion_step, METH_VARARGS | METH_KEYWORDS,
     "lion_step(params, exp_avgs, *, lr, ...): one fused step of Lion."},
    {"numbers_kept", (PyCFunction)(void (*)(void))numbers_kept, METH_FASTCALL,
     "numbers_kept(states, name, views, whole, version): whether each dictionary has its view of `whole` under the "
     "name, and nothing was written since set_numbers returned the version."},
    {"set_numbers", (PyCFunction)(void (*)(void))set_numbers, METH_FASTCALL,
     "set_numbers(whole, value): fills a tensor on the CPU; returns its version."},
    {"sums_of_squares", sums_of_squares, METH_O,
     "sums_of_squares(tensors): the sum of the squares of each tensor's elements, as a float64 tensor on the same "
     "device."},
    {"exact_squares", exact_squares, METH_VARARGS,
     "exact_squares(tensors, more=0.0): the exact sum of `more` and the squares of all elements, as an int64 tensor. "
     "Such tensors can be added, over ranks, too."},
    {"exact_norm", exact_norm, METH_O,
     "exact_norm(sum): the square root of the exact sum, as the nearest float."},
    {"exact_value", exact_value, METH_O, "exact_value(sum): the exact sum, as the nearest float."},
    {"scale_tensors", scale_tensors, METH_VARARGS,
     "scale_tensors(tensors, by): multiplies all elements by a number, in place; returns whether all were finite."},
    {"unscale", unscale, METH_VARARGS,
     "unscale(tensors, by, found): multiplies a GPU's tensors by the one element of by, in place; sets found to 1 "
     "where an element was not finite."},
    {"ask_to_write", (PyCFunction)(void (*)(void))ask_to_write, METH_FASTCALL,
     "ask_to_write(optimizer, groups): raises where a step must not write to a parameter that has a gradient."},
    {"zero_grads", zero_grads, METH_VARARGS, "zero_grads(params, set_to_none=True)"},
    {0},
};

int pd_py_add_optim(PyObject *module) { return PyModule_AddFunctions(module, functions); }
