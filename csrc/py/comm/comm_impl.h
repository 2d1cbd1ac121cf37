/* Shared by args.c, buffers.c, work.c, group.c, comm.c, control.c and site.c. */
#ifndef PD_PY_COMM_IMPL_H
#define PD_PY_COMM_IMPL_H

#include "comm/link/hub.h"
#include "py/comm/comm.h"

/* ---- args.c: false with the exception set ---- */
#define PD_PY_ARGS 7
typedef struct pd_py_signature {
    const char *name;
    int required;
    const char *names[PD_PY_ARGS]; /* NULL at the end */
} pd_py_signature;

extern const pd_hooks pd_py_hooks; /* the hooks of every link and group made in Python */
/* Sorts positional and keyword arguments into `out` (borrowed; NULL: not given). */
bool pd_py_args(const pd_py_signature *s, PyObject *const *args, Py_ssize_t n, PyObject *keywords, PyObject **out);
bool pd_py_int_in(PyObject *o, const char *name, const char *arg, long low, long high, int *out);
bool pd_py_truth(PyObject *o, bool *out); /* NULL: false */
/* Seconds: a number, or an object with total_seconds(); None: `none`. */
bool pd_py_seconds(PyObject *o, double none, double *out);
/* A reduction: "sum", "SUM", "prod" or "product", ... or the number; NULL: sum. *factor: PREMUL_SUM's attribute of that
   name, else 1. */
bool pd_py_reduce(PyObject *o, const char *name, pd_reduce *out, double *factor);

/* ---- buffers.c: memory that a collective reads (IN) and writes (OUT) ---- */
enum {
    PD_PY_IN = 1, PD_PY_OUT = 2,
    PD_PY_COPY = 4, /* always copied to a flat buffer; tensors only */
    PD_PY_HOST = 8, /* copied if it is not in the host's memory */
    PD_PY_APART = 16, /* contiguous tensors of a list are used in place */
};
typedef struct pd_py_buffer {
    void *ptr;
    int64_t count;
    pd_dtype dtype;
    const pd_device *device; /* the device of ptr */
    int use;
    bool listed;       /* keep is a tuple of tensors, whose data follow each other */
    PyObject *keep;    /* the tensor, or a tuple of tensors; NULL: other memory, held by view */
    pd_storage *lent;  /* the storage that ptr points into, a loan; NULL: staged, or other memory */
    pd_tensor *staged; /* the flat copy that is used in their place, or NULL */
    bool apart;        /* the tensors of a list are used in place: no ptr, but parts, whose memory is lent */
    pd_tensor **parts; /* if staged: the tensors with the memory that they have now; it is lent if it is written */
    int nparts;
    Py_buffer view;
} pd_py_buffer;

/* Takes a buffer out of o. dtype reinterprets memory that is not a tensor's; NULL or None: the memory's own dtype. A
   failure leaves *b empty. */
pd_status pd_py_buffer_take(PyObject *o, PyObject *dtype, const char *op, const char *arg, int use, pd_py_buffer *b);
/* Fails unless the list b has the tensors of `like` n times: the same shapes in the same order each time. */
pd_status pd_py_buffer_like(const pd_py_buffer *b, const char *op, const char *arg, int n, const pd_py_buffer *like);
/* Addresses and sizes of the tensors of a list. out has room for all. Returns how many there are. */
int pd_py_buffer_parts(const pd_py_buffer *b, pd_part *out);
int pd_py_buffer_items(const pd_py_buffer *b); /* how many tensors; 1 if it is no list */
pd_status pd_py_buffer_done(pd_py_buffer *b); /* copies staged results to their tensors and frees b */
void pd_py_buffer_drop(pd_py_buffer *b);

/* ---- work.c ---- */
typedef struct pd_pywork {
    PyObject_HEAD
    pd_work *work;
    pd_py_buffer buffers[2];
    PyObject *written; /* the tensor or tuple of tensors that it writes; NULL: none */
    PyObject *pending; /* the list that keeps it alive; NULL: it has left the list */
    pd_status lost;    /* why staged results could not be moved; PD_OK: they were */
    bool done;         /* it has ended well, and its buffers are freed */
    bool settling;     /* a thread is moving staged results */
} pd_pywork;
/* [new] a Work in the list `pending`, which keeps it until it is done. It owns work and buffers, unless this fails
   (NULL). */
PyObject *pd_py_work_new(PyObject *pending, pd_work *work, const pd_py_buffer *in, const pd_py_buffer *out);
bool pd_py_work_ended(PyObject *work); /* whether it has ended, well or not; does not wait */
int pd_py_add_work(PyObject *module);

/* ---- group.c, collectives.c ---- */
typedef struct pd_pygroup {
    PyObject_HEAD
    pd_group *group;
    pd_link *link;     /* NULL: a world of one */
    const struct pd_mesh_kind *kind; /* for its subgroups, too */
    PyObject *tuning;                /* for its subgroups, too: bytes; NULL: defaults */
    PyObject *pending; /* works under way: their buffers must live until they are done */
    PyObject *rank, *size; /* numbers that can be called, see count_type */
} pd_pygroup;
/* [new] a Group over a link, or NULL with the exception set. tuning: NULL, None or the bytes of pd_tunings, for
   subgroups, too. */
PyObject *pd_py_group_over(pd_link *link, pd_group_options *o, PyObject *tuning);
int pd_py_add_group(PyObject *module);
PyObject *pd_py_raise_without(PyObject *half, pd_status status); /* raises after freeing `half`, an object half made */
/* The methods of a Group that are collectives and messages. */
#define PD_PY_FAST(f) (PyCFunction)(void (*)(void))f, METH_FASTCALL | METH_KEYWORDS
#define PD_PY_METHOD(f) PyObject *f(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *keywords)
PD_PY_METHOD(pd_py_group_all_reduce);
PD_PY_METHOD(pd_py_group_broadcast);
PD_PY_METHOD(pd_py_group_all_gather);
PD_PY_METHOD(pd_py_group_reduce_scatter);
PD_PY_METHOD(pd_py_group_all_to_all);
PD_PY_METHOD(pd_py_group_reduce);
PD_PY_METHOD(pd_py_group_gather);
PD_PY_METHOD(pd_py_group_scatter);
PD_PY_METHOD(pd_py_group_send);
PD_PY_METHOD(pd_py_group_recv);
PD_PY_METHOD(pd_py_group_messages);
PD_PY_METHOD(pd_py_group_barrier);

/* ---- cost.c ---- */
/* Reads n sizes into parts[r].count. They are copied to a tuple first, since reading one may run code that changes a
   list. *fits: there are n sizes and none is negative. */
bool pd_py_part_sizes(PyObject *sizes, const char *op, const char *arg, int n, pd_part *parts, bool *fits);
PyObject *pd_py_cost(const char *algorithm, const pd_cost *c); /* [new] a dict */
PyObject *pd_py_comm_cost(PyObject *module, PyObject *args, PyObject *kw);
PyObject *pd_py_comm_calls(PyObject *module, PyObject *unused);

/* ---- blocks.c ---- */
bool pd_py_blocks(PyObject *o, const char *op, pd_blocks **out); /* [borrowed] NULL: o is NULL or None */
PyObject *pd_py_share_shards(PyObject *module, PyObject *args, PyObject *kwargs);
int pd_py_add_blocks(PyObject *module);

/* ---- ring_attention.c ---- */
PyObject *pd_py_ring_attention(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *keywords);
PyObject *pd_py_ring_attention_grad(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *keywords);

/* ---- comm.c: objects are counted while users hold them ---- */
typedef enum pd_py_kind {
    PD_PY_SERVER, PD_PY_HUB, PD_PY_STORE, PD_PY_SEGMENT, PD_PY_WORK, PD_PY_GROUP, PD_PY_PIPES, PD_PY_PARAMETERS,
    PD_PY_KINDS
} pd_py_kind;

PyObject *pd_py_comm_make(PyTypeObject *type, pd_py_kind kind);
void pd_py_comm_end(PyObject *self, pd_py_kind kind); /* called at the end of a tp_dealloc */
int pd_py_comm_visit(PyObject *self, visitproc visit, void *arg);
PyObject *pd_py_none_or(pd_status status);

#define PD_PY_SPEC(n, T, slots_, more)                                               \
    {.name = "pydist._C." n, .basicsize = sizeof(T), .slots = slots_,                \
     .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | (more)}
int pd_py_comm_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep);
/* A job that this process is in, by its address; several users may share it. */
typedef struct pd_py_tie pd_py_tie;
pd_status pd_py_tie_to(int rank, int world, const char *address, int secret_fd, double timeout, pd_py_tie **out);
pd_link *pd_py_tied(const pd_py_tie *t); /* [borrowed] */
/* The last user leaves the job. A rank 0 that hosts the control server waits until the others have left, `timeout`
   seconds at most (PD_E_TIMEOUT names those that have not). */
pd_status pd_py_untie(pd_py_tie *t, double timeout);
int pd_py_add_pipes(PyObject *module);

/* ---- ps.c, ps_table.c ---- */
struct pd_ps *pd_py_parameter_store(PyObject *o);  /* [borrowed] NULL with a TypeError set */
bool pd_py_doubles(PyObject *tuple, double *out);  /* false with the exception set */
int pd_py_add_ps(PyObject *module);
int pd_py_add_ps_table(PyObject *module);

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
    pd_link **links; /* by rank: the seats that were taken through this object */
} pd_pyhub;
extern PyTypeObject *pd_py_hub_type;
PyObject *pd_py_store(pd_link *link); /* [new] */
int pd_py_add_control(PyObject *module);

/* ---- site.c ---- */
void pd_py_site_text(uint64_t site, char *text, size_t size);
bool pd_py_site_is_own(PyCodeObject *code);
void pd_py_sites_trim(void);
int64_t pd_py_sites_count(void);
void pd_py_sites_package(PyObject *module); /* functions in this module's folder are not callers */

/* ---- status_report.c ---- */
void pd_py_place(char *text, size_t size); /* hooks.h; may be called by any thread */
void pd_py_also(char *text, size_t size);  /* hooks.h */
PyObject *pd_py_report_also(PyObject *module, PyObject *function);
PyObject *pd_py_enter_shard(PyObject *module, PyObject *args);
PyObject *pd_py_leave_shards(PyObject *module, PyObject *unused);
int pd_py_status_request(void);            /* hooks.h: since the last call */
void pd_py_listen_usr1(bool on);           /* handles SIGUSR1, or no longer, unless the user handles it */

#endif
