/* Tensor's operators: arithmetic, comparison, truth, length, iteration. */
#include "py/py.h"

#define T pd_tensor *t = pd_py_tensor(self)
#define BINARY(name) static PyObject *nb_##name(PyObject *a, PyObject *b) { return pd_py_binary(PD_OP_##name, a, b); } \
                     static PyObject *nb_i##name(PyObject *a, PyObject *b) { return pd_py_inplace(PD_OP_##name, a, b); }
BINARY(add) BINARY(sub) BINARY(mul) BINARY(div)
static PyObject *nb_pow(PyObject *a, PyObject *b, PyObject *mod) {
    if (mod != Py_None) return PyErr_Format(PyExc_TypeError, "pow: got a modulus (expected two arguments)");
    return pd_py_binary(PD_OP_pow, a, b);
}
#define OPERATOR(nb, op)                                                                            \
    static PyObject *nb_##nb(PyObject *a, PyObject *b) { return pd_py_binary(PD_OP_##op, a, b); }   \
    static PyObject *nb_i##nb(PyObject *a, PyObject *b) { return pd_py_inplace(PD_OP_##op, a, b); }
OPERATOR(and, bitwise_and) OPERATOR(or, bitwise_or) OPERATOR(xor, bitwise_xor) OPERATOR(lshift, bitwise_left_shift)
OPERATOR(rshift, bitwise_right_shift) OPERATOR(floordiv, floor_divide) OPERATOR(mod, remainder)
static PyObject *nb_ipow(PyObject *a, PyObject *b, PyObject *mod) {
    if (mod != Py_None) return PyErr_Format(PyExc_TypeError, "pow: got a modulus (expected two arguments)");
    return pd_py_inplace(PD_OP_pow, a, b);
}
static PyObject *nb_neg(PyObject *a) { return pd_py_unary(PD_OP_neg, a); }
static PyObject *nb_abs(PyObject *a) { return pd_py_unary(PD_OP_abs, a); }
static PyObject *nb_pos(PyObject *a) { return Py_NewRef(a); }
static PyObject *nb_invert(PyObject *a) { return pd_py_unary(PD_OP_bitwise_not, a); }

static PyObject *nb_matmul(PyObject *a, PyObject *b) {
    pd_tensor *out;
    if (!pd_py_is_tensor(a) || !pd_py_is_tensor(b)) return pd_py_foreign(PD_OP_matmul, a, b);
    PD_PY_TRY(pd_call2(PD_OP_matmul, pd_py_tensor(a), pd_py_tensor(b), NULL, &out));
    return pd_py_wrap_new(out);
}

static PyObject *only_item(PyObject *self) {
    T;
    if (t->numel == 1) return pd_py_item(t);
    return PyErr_Format(PyExc_RuntimeError, "item: a tensor of shape %s has %lld elements (expected 1)",
                        pd_tensor_shape(t), (long long)t->numel);
}

static int nb_bool(PyObject *self) {
    T;
    pd_scalar s;
    if (t->numel != 1) {
        PyErr_Format(
            PyExc_RuntimeError,
            "bool: the Boolean value of a tensor of shape %s is ambiguous (expected one element, or any() or all())",
            pd_tensor_shape(t));
        return -1;
    }
    if (!pd_py_scalar(t, PD_WAIT_UNLOCKED, &s)) return -1;
    return s.cat >= PD_CAT_FLOAT ? s.d != 0 || s.im != 0 : s.i != 0;
}

static PyObject *nb_int(PyObject *self) {
    PyObject *item = only_item(self), *result = item ? PyNumber_Long(item) : NULL;
    Py_XDECREF(item);
    return result;
}
static PyObject *nb_float(PyObject *self) {
    PyObject *item = only_item(self), *result = item ? PyNumber_Float(item) : NULL;
    Py_XDECREF(item);
    return result;
}
static PyObject *nb_index(PyObject *self) {
    T;
    if (pd_dtype_category((pd_dtype)t->dtype) > PD_CAT_INT || t->numel != 1)
        return PyErr_Format(PyExc_TypeError,
                            "index: only integer tensors of a single element can be converted to an index: got %s of "
                            "shape %s (expected one integer)",
                            pd_dtype_name((pd_dtype)t->dtype), pd_tensor_shape(t));
    return only_item(self);
}

static PyObject *richcompare(PyObject *a, PyObject *b, int op) {
    static const pd_op_id ops[] = {[Py_LT] = PD_OP_lt, [Py_LE] = PD_OP_le, [Py_EQ] = PD_OP_eq,
                                   [Py_NE] = PD_OP_ne, [Py_GT] = PD_OP_gt, [Py_GE] = PD_OP_ge};
    return pd_py_binary(ops[op], a, b);
}

static Py_hash_t hash(PyObject *self) { return (Py_hash_t)((uintptr_t)self >> 4); } /* by identity: == is elementwise */

static Py_ssize_t length(PyObject *self) {
    T;
    if (t->ndim) return (Py_ssize_t)t->size[0];
    PyErr_SetString(PyExc_TypeError, "len() of a 0-d tensor");
    return -1;
}

static PyObject *sequence_item(PyObject *self, Py_ssize_t i) {
    T;
    pd_tensor *out;
    if (t->ndim && i >= t->size[0])
        return PyErr_Format(PyExc_IndexError, "index %zd is out of range (expected an index below the first size)",
                            i); /* this ends an iteration */
    struct { int64_t dim, index; } attrs = {0, i};
    PD_PY_TRY(pd_call1(PD_OP_select, t, &attrs, &out));
    return pd_py_wrap_new(out);
}

static int contains(PyObject *self, PyObject *value) { /* whether value equals any element */
    PyObject *equal = pd_py_binary(PD_OP_eq, self, value);
    pd_reduce_attrs all = {.dim = {.n = -1}, .dtype = PD_NO_DTYPE};
    pd_tensor *any;
    pd_scalar found;
    if (!equal || equal == Py_NotImplemented) {
        if (equal)
            PyErr_Format(PyExc_TypeError, "in: got %.100s (expected a tensor or a number)", Py_TYPE(value)->tp_name);
        Py_XDECREF(equal);
        return -1;
    }
    pd_status status = pd_call1(PD_OP_any, pd_py_tensor(equal), &all, &any);
    Py_DECREF(equal);
    if (status) {
        pd_py_raise(status);
        return -1;
    }
    bool read = pd_py_scalar(any, PD_WAIT_UNLOCKED, &found);
    pd_tensor_release(any);
    if (!read) return -1;
    return found.i != 0;
}

static PyObject *iter(PyObject *self) {
    T;
    if (t->ndim == 0) return PyErr_Format(PyExc_TypeError, "iteration over a 0-d tensor");
    return PySeqIter_New(self);
}

const PyType_Slot pd_py_tensor_operators[] = {
    {Py_tp_richcompare, richcompare}, {Py_tp_hash, hash}, {Py_tp_iter, iter}, {Py_nb_add, nb_add},
    {Py_nb_subtract, nb_sub}, {Py_nb_multiply, nb_mul}, {Py_nb_true_divide, nb_div}, {Py_nb_power, nb_pow},
    {Py_nb_matrix_multiply, nb_matmul}, {Py_nb_negative, nb_neg}, {Py_nb_positive, nb_pos}, {Py_nb_absolute, nb_abs},
    {Py_nb_invert, nb_invert}, {Py_nb_and, nb_and}, {Py_nb_or, nb_or}, {Py_nb_xor, nb_xor},
    {Py_nb_lshift, nb_lshift}, {Py_nb_rshift, nb_rshift}, {Py_nb_floor_divide, nb_floordiv}, {Py_nb_remainder, nb_mod},
    {Py_nb_inplace_and, nb_iand}, {Py_nb_inplace_or, nb_ior}, {Py_nb_inplace_xor, nb_ixor},
    {Py_nb_inplace_lshift, nb_ilshift}, {Py_nb_inplace_rshift, nb_irshift}, {Py_nb_inplace_floor_divide, nb_ifloordiv},
    {Py_nb_inplace_remainder, nb_imod}, {Py_nb_inplace_power, nb_ipow}, {Py_nb_inplace_add, nb_iadd},
    {Py_nb_inplace_subtract, nb_isub}, {Py_nb_inplace_multiply, nb_imul}, {Py_nb_inplace_true_divide, nb_idiv},
    {Py_nb_bool, nb_bool}, {Py_nb_int, nb_int}, {Py_nb_float, nb_float}, {Py_nb_index, nb_index},
    {Py_mp_length, length}, {Py_mp_subscript, pd_py_getitem}, {Py_mp_ass_subscript, pd_py_setitem},
    {Py_sq_item, sequence_item}, {Py_sq_length, length}, {Py_sq_contains, contains}, {0},
};
