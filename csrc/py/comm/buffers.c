/* The memory that a collective reads and writes: that of a tensor, of a list of tensors, or of an object with the
   buffer protocol.

   Contiguous memory is used in place, also the memory of a list whose tensors follow each other in one storage, such as
   the chunks of a tensor. Anything else is staged: copied to a flat tensor before the collective, and back after it.
   Until then the storages are lent (tensor/storage.h), since a tensor may get other memory meanwhile. */
#include "py/py.h"

#include <string.h>

#include "base/mem.h"
#include "device/cuda.h"
#include "py/comm/comm_impl.h"

/* [borrowed from b->keep] the items of a list, or the tensor itself as the only item. */
static int items_of(const pd_py_buffer *b, PyObject *const **items) {
    *items = b->listed ? ((PyTupleObject *)b->keep)->ob_item : &b->keep;
    return b->listed ? (int)PyTuple_GET_SIZE(b->keep) : 1;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Copies between t and its part of the staged memory, which is `at` elements from the start. */
static pd_status copy_part(const pd_py_buffer *b, int64_t at, pd_tensor *t, bool back) {
    pd_tensor *part;
    PD_TRY(pd_tensor_shell(&part));
    part->dtype = t->dtype;
    part->ndim = t->ndim;
    part->numel = t->numel;
    part->offset = at;
    memcpy(part->size, t->size, sizeof t->size);
    pd_shape_contiguous(part->ndim, part->size, part->stride);
    pd_tensor_view_of(part, b->staged);
    pd_status status = back ? pd_engine.copy_into(t, part) : pd_engine.copy_into(part, t);
    pd_tensor_release(part);
    return status;
}

static pd_status copy_parts(const pd_py_buffer *b, bool back) {
    int64_t at = 0;
    for (int i = 0; i < b->nparts; i++) {
        PD_TRY(copy_part(b, at, b->parts[i], back));
        at += b->parts[i]->numel;
    }
    return PD_OK;
}

static pd_status keep_parts(pd_py_buffer *b, const char *op, PyObject *const *items, int n) {
    PD_TRY(pd_calloc(sizeof *b->parts * (size_t)n, op, &b->parts));
    for (int i = 0; i < n; i++) {
        pd_tensor *part;
        PD_TRY(pd_tensor_alias(pd_py_tensor(items[i]), false, &part));
        bool writes = b->use & PD_PY_OUT, lends = writes || b->apart;
        pd_status status = lends ? pd_storage_lend(op, part->storage, PD_LENT_COLLECTIVE, writes) : PD_OK;
        if (status) {
            pd_tensor_release(part);
            return status;
        }
        b->parts[b->nparts++] = part;
    }
    return PD_OK;
}

static void drop_parts(pd_py_buffer *b) {
    for (int i = 0; i < b->nparts; i++) {
        bool writes = b->use & PD_PY_OUT;
        if (writes || b->apart) pd_storage_give_back(b->parts[i]->storage, PD_LENT_COLLECTIVE, writes);
        pd_tensor_release(b->parts[i]);
    }
    pd_free(b->parts);
    b->parts = NULL;
    b->nparts = 0;
}

static bool lies_end_to_end(PyObject *const *items, int n) {
    const char *end = NULL;
    const pd_storage *all = pd_py_tensor(items[0])->storage;
    for (int i = 0; i < n; i++) {
        pd_tensor *t = pd_py_tensor(items[i]);
        const char *data = pd_tensor_data(t);
        if (t->storage != all || !pd_tensor_is_contiguous(t) || (end && data != end)) return false;
        end = data + pd_tensor_bytes(t);
    }
    return true;
}

static bool all_contiguous(PyObject *const *items, int n) {
    for (int i = 0; i < n; i++)
        if (!pd_tensor_is_contiguous(pd_py_tensor(items[i]))) return false;
    return true;
}

static pd_status use_apart(const char *op, PyObject *const *items, int n, pd_py_buffer *b) {
    b->apart = true;
    PD_TRY(keep_parts(b, op, items, n));
    for (int i = 0; (b->use & PD_PY_OUT) && i < n; i++) PD_TRY(pd_tensor_before_write(op, pd_py_tensor(items[i])));
    return PD_OK;
}

/* "output 2" of a list, or the argument's own name. */
static const char *name_of(const pd_py_buffer *b, const char *arg, int i, char *text, size_t size) {
    if (!b->listed) return arg;
    snprintf(text, size, "%s %d", arg, i);
    return text;
}

static pd_status take_tensors(const char *op, const char *arg, pd_py_buffer *b) {
    PyObject *const *items;
    char name[64];
    int n = items_of(b, &items);
    if (!n) return pd_fail(PD_E_VALUE, "%s: %s is an empty list (expected tensors)", op, arg);
    for (int i = 0; i < n; i++) {
        if (!pd_py_is_tensor(items[i]))
            return pd_fail(PD_E_TYPE, "%s: %s is %s (expected a tensor)", op, name_of(b, arg, i, name, sizeof name),
                           Py_TYPE(items[i])->tp_name);
        pd_tensor *t = pd_py_tensor(items[i]);
        if (!i) b->device = t->storage->device;
        PD_TRY(pd_check_data(op, t->storage->device));
        if (t->storage->device != b->device)
            return pd_fail(PD_E_VALUE, "%s: %s is on %s (expected %s, like the first tensor)", op,
                           name_of(b, arg, i, name, sizeof name), t->storage->device->name, b->device->name);
        if (pd_dtype_is_complex((pd_dtype)t->dtype))
            return pd_fail(PD_E_DTYPE, "%s: %s is %s (expected real numbers: pass view_as_real(tensor))", op,
                           name_of(b, arg, i, name, sizeof name), pd_dtype_name((pd_dtype)t->dtype));
        if (i && (pd_dtype)t->dtype != b->dtype)
            return pd_fail(PD_E_DTYPE, "%s: %s has dtype %s (expected %s, like the first tensor)", op,
                           name_of(b, arg, i, name, sizeof name), pd_dtype_name((pd_dtype)t->dtype),
                           pd_dtype_name(b->dtype));
        if ((b->use & PD_PY_OUT) && (t->storage->read_only || pd_tensor_overlaps_itself(t)))
            return pd_fail(PD_E_VALUE, "%s: %s, of shape %s, %s (expected writable memory without overlaps)", op,
                           name_of(b, arg, i, name, sizeof name), pd_tensor_shape(t),
                           t->storage->read_only ? "is read-only" : "has elements that share memory");
        b->dtype = (pd_dtype)t->dtype;
        b->count += t->numel;
    }
    bool leaves = b->use & PD_PY_HOST && b->device != &pd_device_cpu;
    if (!(b->use & PD_PY_COPY) && !leaves && lies_end_to_end(items, n)) {
        pd_storage *all = pd_py_tensor(items[0])->storage;
        PD_TRY(pd_storage_lend(op, all, PD_LENT_COLLECTIVE, b->use & PD_PY_OUT));
        b->lent = all;
        b->ptr = pd_tensor_data(pd_py_tensor(items[0]));
        for (int i = 0; (b->use & PD_PY_OUT) && i < n; i++) PD_TRY(pd_tensor_before_write(op, pd_py_tensor(items[i])));
        return PD_OK;
    }
    bool apart = b->use & PD_PY_APART && b->listed && !(b->use & PD_PY_COPY) && !leaves;
    if (apart && all_contiguous(items, n)) return use_apart(op, items, n, b);
    const pd_device *was;
    PD_TRY(keep_parts(b, op, items, n));
    if (leaves) b->device = &pd_device_cpu;
    pd_status status = pd_device_enter(b->device, &was);
    PD_THEN(pd_tensor_new(op, b->dtype, 1, &b->count, &b->staged));
    pd_device_here = was;
    PD_TRY(status);
    b->ptr = pd_tensor_data(b->staged);
    return b->use & PD_PY_IN ? copy_parts(b, false) : PD_OK;
}

pd_status pd_py_buffer_like(const pd_py_buffer *b, const char *op, const char *arg, int n, const pd_py_buffer *like) {
    PyObject *const *items, *const *wants = NULL;
    char name[64];
    if (!b->listed) return PD_OK;
    int have = items_of(b, &items), each = like->keep ? items_of(like, &wants) : 1;
    if (have != n * each)
        return pd_fail(PD_E_VALUE, "%s: %s has %d tensors (expected %d, the same number for each rank)", op, arg, have,
                       n * each);
    for (int i = 0; i < have && wants; i++) {
        pd_tensor *t = pd_py_tensor(items[i]), *want = pd_py_tensor(wants[i % each]);
        if (!pd_tensor_same_shape(t, want))
            return pd_fail(PD_E_SHAPE, "%s: %s has shape %s (expected %s)", op, name_of(b, arg, i, name, sizeof name),
                           pd_tensor_shape(t), pd_tensor_shape(want));
    }
    return PD_OK;
}

int pd_py_buffer_items(const pd_py_buffer *b) {
    PyObject *const *items;
    return b->keep ? items_of(b, &items) : 1;
}

int pd_py_buffer_parts(const pd_py_buffer *b, pd_part *out) {
    PyObject *const *items;
    char *at = b->ptr;
    int n = items_of(b, &items);
    for (int i = 0; i < n; i++) {
        int64_t count = b->nparts ? b->parts[i]->numel : pd_py_tensor(items[i])->numel;
        out[i] = (pd_part){b->apart ? pd_tensor_data(b->parts[i]) : at, count};
        at += b->apart ? 0 : (size_t)count * pd_dtype_size(b->dtype);
    }
    return n;
}

/* ---- other memory ------------------------------------------------------------------------------------------------ */

static pd_dtype dtype_of_format(const char *format, Py_ssize_t size) {
    if (!format) return PD_U8;
    if (*format == '@' || *format == '=' || *format == '<') format++;
    switch (format[1] ? 0 : format[0]) {
    case '?': return PD_BOOL;
    case 'B': case 'c': return PD_U8;
    case 'e': return PD_F16;
    case 'f': return PD_F32;
    case 'd': return PD_F64;
    case 'b': case 'h': case 'i': case 'l': case 'q':
        return size == 1 ? PD_I8 : size == 2 ? PD_I16 : size == 4 ? PD_I32 : size == 8 ? PD_I64 : PD_NO_DTYPE;
    default: return PD_NO_DTYPE;
    }
}

/* dtype="bfloat16" for memory that Python has no format for. */
static pd_status dtype_of_name(const char *op, PyObject *o, size_t size, pd_dtype *out) {
    const char *name = PyUnicode_AsUTF8(o);
    if (!name) return pd_py_caught();
    for (int t = 0; t < PD_DTYPE_COUNT; t++)
        if (!strcmp(name, pd_dtype_name((pd_dtype)t)) && pd_dtype_size((pd_dtype)t) == size) {
            *out = (pd_dtype)t;
            return PD_OK;
        }
    return pd_fail(PD_E_VALUE, "%s: dtype is '%s' for elements of %zu bytes (expected a dtype of that size)", op, name,
                   size);
}

static pd_status take_external(PyObject *o, PyObject *dtype, const char *op, const char *arg, pd_py_buffer *b) {
    if (b->use & PD_PY_COPY || !PyObject_CheckBuffer(o))
        return pd_fail(PD_E_TYPE, "%s: %s is %s (expected a tensor)", op, arg, Py_TYPE(o)->tp_name);
    int writable = b->use & PD_PY_OUT ? PyBUF_WRITABLE : 0;
    if (PyObject_GetBuffer(o, &b->view, writable | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)) return pd_py_caught();
    b->ptr = b->view.buf;
    b->count = b->view.itemsize > 0 ? b->view.len / b->view.itemsize : 0;
    if (dtype) return dtype_of_name(op, dtype, (size_t)b->view.itemsize, &b->dtype);
    b->dtype = dtype_of_format(b->view.format, b->view.itemsize);
    if (b->dtype != PD_NO_DTYPE) return PD_OK;
    return pd_fail(PD_E_TYPE, "%s: %s is a buffer of format '%s' (expected numbers or bool)", op, arg, b->view.format);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

pd_status pd_py_buffer_take(PyObject *o, PyObject *dtype, const char *op, const char *arg, int use, pd_py_buffer *b) {
    *b = (pd_py_buffer){.use = use, .device = &pd_device_cpu};
    pd_status status;
    if (dtype == Py_None) dtype = NULL;
    b->listed = PyList_Check(o) || PyTuple_Check(o);
    if (b->listed) b->keep = PySequence_Tuple(o);
    else if (pd_py_is_tensor(o) && !dtype) b->keep = Py_NewRef(o);
    if (b->keep) status = take_tensors(op, arg, b);
    else status = b->listed ? pd_py_caught() : take_external(o, dtype, op, arg, b);
    if (status) pd_py_buffer_drop(b);
    return status;
}

pd_status pd_py_buffer_done(pd_py_buffer *b) {
    return b->staged && (b->use & PD_PY_OUT) ? copy_parts(b, true) : PD_OK;
}

/* The current stream waits for the collective. So the memory, whatever stream it was made in, is not used again before
   this stream's work so far. */
static void hold_for_stream(const pd_py_buffer *b) {
    const pd_device *d = b->device;
    if (!d || d->kind != PD_DEVICE_CUDA || !b->keep || pd_cuda_capturing(d)) return;
    void *stream = pd_cuda_stream(d);
    bool held = !(b->lent && pd_py_record_stream(b->lent, stream)) &&
                !(b->staged && pd_py_record_stream(b->staged->storage, stream));
    for (int i = 0; i < b->nparts && held; i++) held = !pd_py_record_stream(b->parts[i]->storage, stream);
    if (!held) pd_cuda_wait(d, "wait"); /* waits for the whole device */
}

void pd_py_buffer_drop(pd_py_buffer *b) {
    hold_for_stream(b);
    PyBuffer_Release(&b->view);
    Py_CLEAR(b->keep);
    if (b->lent) pd_storage_give_back(b->lent, PD_LENT_COLLECTIVE, b->use & PD_PY_OUT);
    b->lent = NULL;
    drop_parts(b);
    pd_tensor_release(b->staged);
    b->staged = NULL;
}
