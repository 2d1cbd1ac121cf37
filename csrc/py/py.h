/* What the binding files share. Only this folder knows Python.

   pd_py_wrap makes Python objects of the results of C calls; pd_py_raise alone makes exceptions of failures. The engine
   itself gives up the GIL for long work (base/host.h), so bindings call it with the GIL held. */
#ifndef PD_PY_PY_H
#define PD_PY_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "autograd/engine.h"
#include "autograd/program.h"
#include "ops/ops.h"

typedef struct pd_py_state {
#define PD_STATE(name) PyObject *name;
#include "py/state.def"
#undef PD_STATE
    PyObject *dtypes[PD_DTYPE_COUNT];
} pd_py_state;
extern pd_py_state pd_py;

/* ---- raise.c ---- */
/* Sets the Python exception of this thread's error record. Returns NULL, for `return pd_py_raise(s)`. */
PyObject *pd_py_raise(pd_status status);
/* [new] the exception that is set, which is so no longer. */
PyObject *pd_py_take_exception(void);
/* For a callback that has failed in Python: keeps the exception for the pd_py_raise that follows. Returns
   PD_E_PYTHON. */
pd_status pd_py_caught(void);
#define PD_PY_TRY(call)                                                  \
    do {                                                                 \
        pd_status pd_s_ = (call);                                        \
        if (__builtin_expect(pd_s_ != PD_OK, 0)) return pd_py_raise(pd_s_); \
    } while (0)
/* PD_PY_TRY for functions that return an int: returns -1. */
#define PD_PY_TRY_INT(call)                 \
    do {                                    \
        pd_status pd_s_ = (call);           \
        if (pd_s_ != PD_OK) {               \
            pd_py_raise(pd_s_);             \
            return -1;                      \
        }                                   \
    } while (0)

/* ---- deferred_decref.c: references that C keeps ---- */
/* Drops a reference. Any thread may call: with the GIL it is dropped at once, else at the next pd_py_drain. */
void pd_py_drop(void *object);
void pd_py_drain_slow(void);
extern _Atomic int pd_py_dropped;
static inline void pd_py_drain(void) {
    if (__builtin_expect(pd_py_dropped, 0)) pd_py_drain_slow();
}

/* ---- tensor/tensor.c ---- */
typedef struct pd_pytensor {
    PyObject_HEAD
    pd_tensor *t; /* [strong]; [borrowed] while t->wrapper_owned */
    PyObject *dict, *weakrefs;
    uint32_t pass; /* autograd/collect.c */
} pd_pytensor;

PyObject *pd_py_wrap(pd_tensor *t);      /* [new]; t is borrowed; NULL gives None */
PyObject *pd_py_wrap_new(pd_tensor *t);  /* the same for a [new] tensor, whose reference it takes */
static inline bool pd_py_is_tensor(PyObject *o) {
    return Py_TYPE(o) == (PyTypeObject *)pd_py.Tensor || PyObject_TypeCheck(o, (PyTypeObject *)pd_py.Tensor);
}
static inline pd_tensor *pd_py_tensor(PyObject *o) { return ((pd_pytensor *)o)->t; } /* [borrowed]; o is a tensor */
/* [borrowed] the tensor of o; NULL with a TypeError that names op and argument. */
pd_tensor *pd_py_expect_tensor(PyObject *o, const char *op, const char *arg);
PyObject *pd_py_size(int ndim, const int64_t *size);
PyObject *pd_py_make_subclass(PyObject *unused, PyObject *args);

/* ---- tensor/attributes.c, methods.c, operators.c: what Tensor has ---- */
extern PyGetSetDef pd_py_tensor_getset[];
extern PyMethodDef pd_py_tensor_methods[];
extern const PyType_Slot pd_py_tensor_operators[];
int pd_py_set_requires_grad(PyObject *self, PyObject *value);
PyObject *pd_py_item(const pd_tensor *t); /* its first element as a Python number */
PyObject *pd_py_tensor_repr(PyObject *self);

/* ---- autograd/collect.c: what Python's cycle collector sees of tensors and nodes; for tp_traverse ---- */
int pd_py_visit_wrapper(pd_pytensor *self, visitproc visit, void *arg);
/* Visits the reference of a Python object to a node. `pass` is memory of the object for this. */
int pd_py_visit_node(pd_node *n, uint32_t *pass, visitproc visit, void *arg);
/* The same for the tensors next(ctx, 0), next(ctx, 1) and so on, until NULL: one reference to each. */
int pd_py_visit_tensors(pd_tensor *(*next)(void *ctx, int k), void *ctx, uint32_t *pass, visitproc visit, void *arg);

/* ---- args.c: false with the exception set ---- */
bool pd_py_number(PyObject *o, pd_scalar *out);   /* false without an exception if o is no number */
bool pd_py_value(PyObject *o, pd_scalar *out);    /* the same, or the value of a tensor with one element */
bool pd_py_int(PyObject *o, const char *op, const char *arg, int64_t *out);
bool pd_py_double(PyObject *o, const char *op, const char *arg, double *out);
bool pd_py_ints(PyObject *o, const char *op, const char *arg, pd_ints *out); /* an int or a sequence of ints */
/* [new] the items of a list or another iterable as a tuple, since reading one may run code that changes a list. `want`:
   what the error says was expected. */
PyObject *pd_py_items(PyObject *o, const char *op, const char *arg, const char *want);
bool pd_py_dtype(PyObject *o, const char *op, const char *arg,
                 int64_t *out);                 /* also float, int, bool; None: PD_NO_DTYPE */
bool pd_py_format(PyObject *o, const char *op); /* a memory_format */
/* The number of dimensions of channels_last (4) or channels_last_3d (5); 0 for the other formats. */
static inline int pd_py_format_ndim(PyObject *f) {
    return f == pd_py.channels_last ? 4 : f == pd_py.channels_last_3d ? 5 : 0;
}
/* [borrowed] the device of o; the CPU for None and pretended GPUs; NULL with the exception set. */
const pd_device *pd_py_device(PyObject *o, const char *op);
int pd_py_pretended_cuda(void); /* how many GPUs the CPU pretends to be */
bool pd_py_scalar(const pd_tensor *t, pd_copy_wait wait, pd_scalar *out); /* pd_item; false with the exception set */
/* Whether its memory can be read here; false with the exception set. */
bool pd_py_on_host(const pd_tensor *t, const char *op);
PyObject *pd_py_device_of(const pd_tensor *t);              /* [new] its device */
bool pd_py_at(const pd_device *d, const pd_device **was);   /* pd_device_enter; false with the exception set */
/* Calls f after moving arguments with these names to their positions: size(dim=0), full(size=(2,), fill_value=1).
   `names` ends with NULL. With `bare`, f takes no keywords, and other names are errors. */
PyObject *pd_py_with_names(PyCFunctionWithKeywords f, bool bare, const char *op, PyObject *self, PyObject *args,
                           PyObject *kwargs, const char *const *names);
/* For out=: writes a result into a tensor, which is resized if it is empty. */
bool pd_py_write_out(const char *op, PyObject *out, pd_tensor *result);
/* *out: the [borrowed] tensors of an iterable. *seq: a [new] tuple that keeps them alive. */
bool pd_py_tensors(PyObject *o, const char *op, const char *arg, PyObject **seq, pd_tensor ***out, Py_ssize_t *n);

/* ---- tensor/spread.c ---- */
pd_spread *pd_py_spread(PyObject *of); /* [new] that of a Spread object */
PyObject *pd_py_respread(PyObject *part, pd_spread *to); /* [new] part.redistribute() to the placements of `to` */

/* ---- ops.c ---- */
/* Reads argument o into its place in attrs; false with the exception set. */
bool pd_py_set_attr(const pd_def *def, const pd_param *p, PyObject *o, void *attrs);
PyObject *pd_py_attr(const pd_param *p, const void *attrs); /* [new] the same as a Python object */
PyObject *pd_py_binary(pd_op_id op, PyObject *a,
                       PyObject *b); /* pd_py_foreign's result if an operand is neither tensor nor number */
/* What _set_foreign_operands has set computes the operator, or NotImplemented. */
PyObject *pd_py_foreign(pd_op_id op, PyObject *a, PyObject *b);
PyObject *pd_py_inplace(pd_op_id op, PyObject *a, PyObject *b);
PyObject *pd_py_unary(pd_op_id op, PyObject *a);

/* ---- tensor/index.c ---- */
PyObject *pd_py_getitem(PyObject *self, PyObject *key);
int pd_py_setitem(PyObject *self, PyObject *key, PyObject *value);

/* ---- tensor/data.c ---- */
typedef enum { PD_PY_COPY_IF_NEEDED, PD_PY_COPY_ALWAYS, PD_PY_COPY_NEVER } pd_py_copying;
/* [new] a tensor of numbers, nested sequences, arrays or tensors. dtype PD_NO_DTYPE: inferred. PD_PY_COPY_NEVER:
   ValueError if the memory cannot be shared. */
pd_tensor *pd_py_from_data(const char *op, PyObject *data, int64_t dtype, pd_py_copying copying);
pd_dtype pd_py_number_dtype(const pd_scalar *s); /* the dtype of a tensor of this number alone */

/* ---- rng.c ---- */
/* The next key of the Generator o, or of the default stream for None or NULL; false with the exception set. */
bool pd_py_rng_key(PyObject *o, const char *op, pd_rng_key *key);

/* ---- tensor/create.c ---- */
/* zeros(*size, ...) and similar functions: a tensor filled with *value, or not filled if that is NULL. It has `dtype`
   and is on `device` (NULL: the CPU), unless keywords say otherwise. */
PyObject *pd_py_filled(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype, const pd_device *device,
                       const double *value);
/* dtype PD_NO_DTYPE: that of the value */
PyObject *pd_py_full(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype, const pd_device *device);
/* tensor(data, ...). device NULL: it stays on data's device. */
PyObject *pd_py_new_tensor(const char *op, PyObject *args, PyObject *kwargs, int64_t dtype, const pd_device *device);

/* ---- autograd/autograd.c ---- */
PyObject *pd_py_tensor_backward(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *pd_py_register_hook(PyObject *self, PyObject *fn);
PyObject *pd_py_register_post_hook(PyObject *self, PyObject *fn);
PyObject *pd_py_node(pd_node *n); /* None for NULL */
pd_node *pd_py_node_of(PyObject *o); /* [borrowed from o] NULL if o is no node */
/* A closure that calls a Python function by `call`, which wraps the argument. It retains fn. */
pd_closure pd_py_closure(PyObject *fn, pd_status (*call)(void *ctx, void *arg));
pd_status pd_py_call_plain(void *fn, void *unused); /* such a call: fn(), whose result is dropped */

/* ---- autograd/function.c ---- */
void pd_py_drop_function(void *ctx); /* for a node that Python's Function made */

/* ---- tensor/numpy.c ---- */
/* Whether o is a NumPy array or scalar, or of a subclass. False also if NumPy is there but its C API is not. */
bool pd_py_is_array(PyObject *o);
/* [new] a tensor over the memory of an array (pd_py_is_array), which it keeps alive; NULL with the exception set.
   may_copy: over a copy if the array is not aligned, or if its dtype does not exist here and another one is wanted (the
   copy is int64 or float64). */
pd_tensor *pd_py_from_array(const char *op, PyObject *o, int64_t wanted, bool may_copy);
/* [new] the same for an array among other data. NULL without an exception if o is no array, cannot be shared, or has no
   elements or dimensions. */
pd_tensor *pd_py_array_part(PyObject *o);
/* The dtype of a NumPy scalar; false with the exception set. may_convert: a similar dtype will do. */
bool pd_py_array_dtype(const char *op, PyObject *o, bool may_convert, pd_dtype *out);
PyObject *pd_py_numpy(PyObject *self); /* [new] an array over the tensor's memory */
PyObject *pd_py_array(PyObject *self, PyObject *args, PyObject *kwargs);

/* ---- tensor/buffer.c ---- */
int pd_py_getbuffer(PyObject *self, Py_buffer *view, int flags);
void pd_py_releasebuffer(PyObject *self, Py_buffer *view);
/* [new] a tensor over memory that drop(ctx) frees; strides count elements. After a failure the caller still owns the
   memory. */
pd_status pd_py_borrow(const char *op, void *data, pd_dtype dtype, int ndim, const int64_t *size, const int64_t *stride,
                       bool read_only, void (*drop)(void *), void *ctx, pd_tensor **out);
/* [new] a tensor that shares the memory of an object by the buffer protocol; NULL with the exception set. */
pd_tensor *pd_py_from_buffer(PyObject *o, bool writable_only);

/* ---- tensor/storage.c ---- */
PyObject *pd_py_share_memory(PyObject *self, PyObject *unused);
PyObject *pd_py_is_shared(PyObject *self, PyObject *unused);

/* ---- tensor/dlpack.c ---- */
PyObject *pd_py_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *pd_py_dlpack_device(PyObject *self, PyObject *unused);

/* ---- each file adds its part to the module: 0, or -1 with the exception set ---- */
int pd_py_add_raise(PyObject *module);
int pd_py_add_types(PyObject *module);   /* dtype, device, Size */
int pd_py_add_tensor(PyObject *module);
int pd_py_add_ops(PyObject *module);
int pd_py_add_create(PyObject *module);
int pd_py_add_rng(PyObject *module);
int pd_py_add_autograd(PyObject *module);
int pd_py_add_function(PyObject *module);
int pd_py_add_collect(PyObject *module);
int pd_py_add_optim(PyObject *module);
int pd_py_add_numpy(PyObject *module);
int pd_py_add_buffer(PyObject *module);
int pd_py_add_dlpack(PyObject *module);
int pd_py_add_storage(PyObject *module);
int pd_py_add_spread(PyObject *module);
int pd_py_add_unpickle(PyObject *module);
int pd_py_add_resources(PyObject *module); /* info.c: threads and memory */
int pd_py_add_info(PyObject *module);
int pd_py_add_profile(PyObject *module);
int pd_py_add_saved(PyObject *module);
int pd_py_add_selected(PyObject *module);
int pd_py_add_run(PyObject *module);
int pd_py_add_program(PyObject *module);
int pd_py_add_cuda(PyObject *module);
/* When it is freed, its memory waits for that stream, too. */
pd_status pd_py_record_stream(const pd_storage *s, void *stream);
int pd_py_add_nccl(PyObject *module);
int pd_py_add_launch(PyObject *module);
int pd_py_add_comm(PyObject *module);
int pd_py_add_layout(PyObject *module);
int pd_py_add_reducer(PyObject *module);
int pd_py_add_sharded(PyObject *module);
int pd_py_add_vocab(PyObject *module);
int pd_py_add_mpi(PyObject *module);
int pd_py_add_plans(PyObject *module);
int pd_py_add_data(PyObject *module);
int pd_py_add_data_files(PyObject *module);
int pd_py_add_data_example(PyObject *module);
int pd_py_add_io(PyObject *module);

/* Makes a type by PyType_FromSpec, keeps it in the state, and adds it to the module under its name; NULL on failure. */
PyObject *pd_py_type(PyObject *module, PyType_Spec *spec, PyObject *bases, PyObject **keep);

#endif
