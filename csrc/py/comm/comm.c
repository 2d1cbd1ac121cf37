/* How a process or a thread joins the ranks, and what all communication objects share. */
#include "py/py.h"

#include <string.h>

#include "base/flags.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "comm/algo/commit.h"
#include "comm/algo/tuning.h"
#include "comm/control/control.h"
#include "comm/mesh/mesh.h"
#include "py/comm/comm_impl.h"

/* ---- objects are counted while users hold them ------------------------------------------------------------------ */

static int64_t live[PD_PY_KINDS];
static const char *const live_names[PD_PY_KINDS] = {
    [PD_PY_SERVER] = "control servers", [PD_PY_HUB] = "hubs", [PD_PY_STORE] = "stores", [PD_PY_SEGMENT] = "segments",
    [PD_PY_WORK] = "works",             [PD_PY_GROUP] = "groups", [PD_PY_PIPES] = "pipes",
    [PD_PY_PARAMETERS] = "parameter stores",
};

PyObject *pd_py_comm_make(PyTypeObject *type, pd_py_kind kind) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self) live[kind]++;
    return self;
}

void pd_py_comm_end(PyObject *self, pd_py_kind kind) {
    PyTypeObject *type = Py_TYPE(self);
    live[kind]--;
    type->tp_free(self);
    Py_DECREF(type);
}

int pd_py_comm_visit(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

PyObject *pd_py_none_or(pd_status status) {
    if (status) return pd_py_raise(status);
    Py_RETURN_NONE;
}

int pd_py_comm_type(PyObject *module, PyType_Spec *spec, PyTypeObject **keep) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (!type) return -1;
    Py_XSETREF(*keep, (PyTypeObject *)type);
    return PyModule_AddType(module, *keep);
}

#define COME 300 /* seconds that ranks have to join */

/* ---- joining ----------------------------------------------------------------------------------------------------- */

/* The jobs that this process is in, by their addresses. Groups and agents that name the same one share its link. */
struct pd_py_tie {
    pd_link *link;             /* NULL: free, or left while `server` waits for other ranks to leave */
    pd_control_server *server; /* in a rank 0 without a launcher */
    int users;
    char address[4096];
};
static pd_py_tie ties[8];

/* The job of the process's groups. The launcher's secret can be read only once, so it is kept until a connection has
   succeeded. */
static struct {
    pd_py_tie *tie;  /* NULL: there is no group yet */
    pd_py_tie *root; /* to the launcher, if survivors went on over a link of their own; it hears of every death */
    int secret_fd;   /* the descriptor from which `secret` was read; 0: it was not read */
    uint8_t secret[PD_SECRET_BYTES];
} process;

static void forget_parents(void) {
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++)
        if (ties[i].link && pd_forked_since(ties[i].link->forks)) {
            if (process.tie == &ties[i]) process.tie = NULL;
            if (process.root == &ties[i]) process.root = NULL;
            ties[i] = (pd_py_tie){0};
        }
}

/* Waits until the ranks of the server that this process hosts have left, and ends it. */
static pd_status drain(pd_py_tie *t, double timeout) {
    pd_control_server *server = t->server;
    if (!server) return PD_OK;
    PD_TRY(pd_control_drain(server, timeout, &pd_py_hooks));
    t->server = NULL;
    PD_PY_NO_GIL(pd_control_server_free(server));
    return PD_OK;
}

static pd_status join(int rank, int world, const char *address, int secret_fd, double timeout, pd_py_tie *t) {
    if (strstr(address, "://")) {
        for (size_t i = 0; i < sizeof ties / sizeof *ties; i++)
            if (ties[i].server && !ties[i].link && drain(&ties[i], timeout))
                return pd_fail(PD_E_DIST,
                               "comm_init: this process still hosts the control server of an earlier job, whose ranks "
                               "have not left (expected all of them to leave first)");
        uint8_t secret[PD_SHA256_BYTES]; /* survivors of a launcher's job share a secret that only they can compute */
        const pd_link *root = process.root ? process.root->link : NULL;
        if (root) pd_hmac(root->token, PD_TOKEN_BYTES, address, strlen(address), secret);
        pd_status status = pd_control_join(address, root ? secret : NULL, rank, world, timeout, &pd_py_hooks, &t->link,
                                           &t->server);
        explicit_bzero(secret, sizeof secret);
        return PD_TRAIL(status);
    }
    bool tcp = *address != '@';
    if (!process.secret_fd || process.secret_fd != secret_fd) PD_TRY(pd_control_secret_read(secret_fd, process.secret));
    process.secret_fd = secret_fd;
    PD_TRY(pd_control_connect(address, process.secret, rank, world, timeout, tcp, &pd_py_hooks, &t->link));
    explicit_bzero(process.secret, sizeof process.secret);
    process.secret_fd = 0;
    return PD_OK;
}

pd_status pd_py_tie_to(int rank, int world, const char *address, int secret_fd, double timeout, pd_py_tie **out) {
    pd_py_tie *place = NULL;
    forget_parents();
    if (strlen(address) >= sizeof place->address)
        return pd_fail(PD_E_VALUE, "comm_init: an address of %zu characters", strlen(address));
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) {
        pd_py_tie *t = &ties[i];
        bool same = t->link && !strcmp(t->address, address);
        if (same && (t->link->rank != rank || t->link->world != world))
            return pd_fail(PD_E_VALUE,
                           "comm_init: this process is already rank %d of %d at %s (expected the same rank and world, "
                           "or to leave first)",
                           t->link->rank, t->link->world, address);
        if (same) {
            t->users++;
            *out = t;
            return PD_OK;
        }
        if (!t->link && !t->server) place = t;
    }
    if (!place)
        return pd_fail(PD_E_DIST, "comm_init: this process is in %zu jobs (expected to leave one of them first)",
                       sizeof ties / sizeof *ties);
    PD_TRY(join(rank, world, address, secret_fd, timeout, place));
    snprintf(place->address, sizeof place->address, "%s", address);
    place->users = 1;
    *out = place;
    pd_py_listen_usr1(true);
    return PD_OK;
}

pd_link *pd_py_tied(const pd_py_tie *t) { return t->link; }

/* After the last user, groups that still use the link fail. */
pd_status pd_py_untie(pd_py_tie *t, double timeout) {
    bool in_job = false;
    if (--t->users > 0) return PD_OK;
    pd_link *link = t->link;
    t->link = NULL;
    PD_PY_NO_GIL(pd_link_close(link));
    pd_link_release(link);
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) in_job |= ties[i].link != NULL;
    if (!in_job) pd_py_listen_usr1(false);
    return drain(t, timeout);
}

static pd_status process_link(int rank, int world, const char *address, int secret_fd, double timeout) {
    forget_parents();
    pd_py_tie *t = process.tie;
    if (!t) return pd_py_tie_to(rank, world, address, secret_fd, timeout, &process.tie);
    if (strcmp(t->address, address) || t->link->rank != rank || t->link->world != world)
        return pd_fail(PD_E_VALUE,
                       "comm_init: this process is already rank %d of %d at %s (expected the same rank, world and "
                       "address, or comm_leave() first)",
                       t->link->rank, t->link->world, t->address);
    return PD_OK;
}

static PyObject *comm_init(PyObject *module, PyObject *args, PyObject *keywords) {
    (void)module;
    static char *names[] = {"rank", "world", "address", "secret_fd", "timeout", "algo", "slot", "transport", "patience",
                            "fast", "tuning", NULL};
    int rank, world, secret_fd, slot = 0, fast = 0;
    const char *address, *algo = NULL, *transport = NULL;
    PyObject *seconds = NULL, *join = NULL, *tuning = NULL;
    double patience;
    pd_group_options o = {0};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iizi|OzizOpO:comm_init", names, &rank, &world, &address,
                                     &secret_fd, &seconds, &algo, &slot, &transport, &join, &fast, &tuning) ||
        !pd_py_seconds(seconds, 0, &o.timeout) || !pd_py_seconds(join, 0, &patience))
        return NULL;
    if (transport && strcmp(transport, "mpi"))
        return PyErr_Format(PyExc_ValueError, "comm_init: transport is %s (expected None or 'mpi')", transport);
    o.algo = algo;
    o.slot = (size_t)slot;
    o.fast = fast;
    if (!address && world == 1) return pd_py_group_over(NULL, &o, tuning);
    o.kind = transport ? &pd_mesh_mpi : NULL;
    if (!address)
        return PyErr_Format(PyExc_ValueError,
                            "comm_init: address is None for %d ranks (expected the address of a launcher)", world);
    bool said = patience > 0 || o.timeout > 0;
    if (!(patience > 0)) patience = o.timeout;
    o.patience = said ? patience : pd_flags_get()->TIMEOUT < COME ? pd_flags_get()->TIMEOUT : COME;
    /* Started by people; or by a launcher, which is there already. */
    if (!said) patience = strstr(address, "://") ? COME : 60;
    pd_status status = process_link(rank, world, address, secret_fd, patience);
    return status ? pd_py_raise(status) : pd_py_group_over(process.tie->link, &o, tuning);
}

/* (rank, world) of this process in the job at an address, or None. */
static PyObject *comm_tied(PyObject *module, PyObject *text) {
    const char *address = PyUnicode_AsUTF8(text);
    (void)module;
    if (!address) return NULL;
    forget_parents();
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++)
        if (ties[i].link && !strcmp(ties[i].address, address))
            return Py_BuildValue("(ii)", ties[i].link->rank, ties[i].link->world);
    Py_RETURN_NONE;
}

static PyObject *comm_init_hub(PyObject *module, PyObject *args, PyObject *keywords) {
    (void)module;
    static char *names[] = {"hub", "rank", "timeout", "algo", "slot", "fast", "tuning", NULL};
    pd_pyhub *hub;
    int rank, slot = 0, fast = 0;
    const char *algo = NULL;
    PyObject *seconds = NULL, *tuning = NULL;
    pd_group_options o = {0};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!i|OzipO:comm_init_hub", names, pd_py_hub_type, &hub, &rank,
                                     &seconds, &algo, &slot, &fast, &tuning) || !pd_py_seconds(seconds, 0, &o.timeout))
        return NULL;
    bool known = rank >= 0 && rank < pd_hub_world(hub->hub);
    if (!known || !hub->links[rank]) {
        pd_link *link;
        pd_status status = pd_hub_join(hub->hub, rank, &pd_py_hooks, &link);
        if (status) return pd_py_raise(status);
        hub->links[rank] = link;
    }
    o.algo = algo;
    o.slot = (size_t)slot;
    o.fast = fast;
    return pd_py_group_over(hub->links[rank], &o, tuning);
}

/* For tests: what each rank does in each step of a schedule, [[(from, lo, hi, add), ...], ...]. */
static PyObject *comm_schedule(PyObject *module, PyObject *args) {
    (void)module;
    const char *name;
    int world;
    if (!PyArg_ParseTuple(args, "si:_schedule", &name, &world)) return NULL;
    const pd_algo *algo;
    pd_status status = pd_tuning_forced(name, true, &algo);
    if (status) return pd_py_raise(status);
    if (!algo || !algo->schedule || world < 2)
        return PyErr_Format(
            PyExc_ValueError,
            "_schedule: algorithm %s for %d ranks has no schedule (expected ring or halving, and at least 2 ranks)",
            name, world);
    int steps = algo->schedule->steps(world);
    PyObject *all = PyList_New(steps);
    for (int s = 0; all && s < steps; s++) {
        PyObject *row = PyList_New(world);
        for (int r = 0; row && r < world; r++) {
            pd_step step = algo->schedule->step(world, r, s);
            PyObject *one = Py_BuildValue("(iiiO)", step.from, step.lo, step.hi, step.add ? Py_True : Py_False);
            if (!one) Py_CLEAR(row);
            else PyList_SET_ITEM(row, r, one);
        }
        if (!row) Py_CLEAR(all);
        else PyList_SET_ITEM(all, s, row);
    }
    return all ? Py_BuildValue("(iN)", algo->schedule->parts(world), all) : NULL;
}

static PyObject *comm_raised(PyObject *module, PyObject *text) {
    (void)module;
    const char *traceback = PyUnicode_AsUTF8(text);
    if (!traceback) return NULL;
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++)
        if (ties[i].link) pd_link_raised(ties[i].link, traceback);
    Py_RETURN_NONE;
}

static PyObject *comm_leave(PyObject *module, PyObject *args, PyObject *keywords) {
    static char *names[] = {"timeout", "keep", NULL};
    PyObject *seconds = NULL;
    double timeout;
    int keep = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|Op:comm_leave", names, &seconds, &keep) ||
        !pd_py_seconds(seconds, pd_flags_get()->TIMEOUT, &timeout))
        return NULL;
    pd_py_tie *tie = process.tie, *root = process.root;
    process.tie = NULL;
    if (tie && keep && !root && !strstr(tie->address, "://")) {
        process.root = tie;
        Py_RETURN_NONE;
    }
    pd_status status = PD_OK;
    if (tie) status = pd_py_untie(tie, timeout);
    if (root && !keep) {
        process.root = NULL;
        PD_THEN(pd_py_untie(root, timeout));
    }
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) /* those that did not end in time before */
        if (!ties[i].link) PD_THEN(drain(&ties[i], timeout));
    return pd_py_none_or(status);
}

static PyObject *commit_decide(PyObject *module, PyObject *args) {
    PyObject *made, *has;
    int own;
    bool make = false;
    pd_progress *all = NULL;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!i:commit_decide", &PyList_Type, &made, &PyList_Type, &has, &own)) return NULL;
    int n = (int)PyList_GET_SIZE(made);
    if (PyList_GET_SIZE(has) != n || own < 0 || own >= n)
        return PyErr_Format(PyExc_ValueError,
                            "commit_decide: got %d and %zd entries, own %d (expected two lists of one length, and own "
                            "below it)", n, PyList_GET_SIZE(has), own);
    pd_status status = pd_calloc(sizeof *all * (size_t)n, "commit_decide", &all);
    for (int i = 0; i < n && !status; i++) {
        all[i].made = PyLong_AsLongLong(PyList_GET_ITEM(made, i));
        all[i].has = PyObject_IsTrue(PyList_GET_ITEM(has, i)) > 0;
        if (PyErr_Occurred()) status = pd_py_caught();
    }
    PD_THEN(pd_commit_decide(all, n, all[own], &make));
    pd_free(all);
    return status ? pd_py_raise(status) : PyBool_FromLong(make);
}

static PyMethodDef functions[] = {
    {"comm_init", (PyCFunction)(void (*)(void))comm_init, METH_VARARGS | METH_KEYWORDS,
     "comm_init(rank, world, address, secret_fd, timeout=None, algo=None, slot=0, transport=None, patience=None) -> "
     "Group\n\nJoins the other ranks and waits for them up to `patience` seconds (None: timeout, or 300). address: a "
     "launcher's '@name' or 'host:port'; without a launcher 'tcp://host:port' or 'file://path', and rank 0 hosts the "
     "control server; None: a world of one. secret_fd: the descriptor of a launcher's secret; -1: the secret is in "
     "PYDIST_SECRET_FILE. Later groups of the process use the same connection."},
    {"tied", comm_tied, METH_O,
     "tied(address) -> (rank, world) | None: of this process in the job at this address, if it is in it."},
    {"comm_init_hub", (PyCFunction)(void (*)(void))comm_init_hub, METH_VARARGS | METH_KEYWORDS,
     "comm_init_hub(hub, rank, timeout=None, algo=None, slot=0, fast=False, tuning=None) -> Group\n\nJoins the other "
     "ranks of a hub; each rank is a thread of this process."},
    {"comm_cost", (PyCFunction)(void (*)(void))pd_py_comm_cost, METH_VARARGS | METH_KEYWORDS,
     "comm_cost(op, world, count, dtype='float32', rank=0, root=-1, messages=False, local=1, algo=None, fast=False, "
     "slot=262144, direct=False, sizes=None, blocks=None) -> dict\n\nComputes what a collective costs a rank, without "
     "running it: the algorithm, its steps, and the bytes that the rank writes for others and reads from them, in "
     "shared memory and in messages. count: elements of a rank's input, or of one part of it (reduce_scatter, "
     "scatter, all_to_all). local: ranks on each host, where messages go between hosts. direct: the data lie in a "
     "symmetric segment, or ranks read large parts where they lie. sizes: the sizes of the parts, by rank; for "
     "all_to_all one such list for each rank. blocks: of a sum over logical shards."},
    {"comm_calls", pd_py_comm_calls, METH_NOARGS,
     "comm_calls() -> dict\n\nHow often this thread has called each collective, of any group."},
    {"commit_decide", commit_decide, METH_VARARGS,
     "commit_decide(made, has, own) -> bool\n\nWhether rank `own` of the survivors makes the step that was under way "
     "when a rank died (csrc/comm/algo/commit.h). made: how many steps each has made; has: whether each has the next "
     "gradient."},
    {"_report_also", pd_py_report_also, METH_O,
     "_report_also(function): what it returns, a str, follows the flight record of SIGUSR1. None: nothing does."},
    {"_enter_shard", pd_py_enter_shard, METH_VARARGS,
     "_enter_shard(seed, step, shard): random numbers are those of this logical shard, and where the rank is says so."},
    {"_leave_shards", pd_py_leave_shards, METH_NOARGS, "_leave_shards(): no logical shard is open."},
    {"share_shards", (PyCFunction)(void (*)(void))pd_py_share_shards, METH_VARARGS | METH_KEYWORDS,
     "share_shards(shards, ranks, times=None) -> list\n\nHow many logical shards each rank gets so that a step ends "
     "soonest. times: how long each rank takes for a shard, 1 to 1023 in any unit; None: all take the same."},
    {"ring_attention", PD_PY_FAST(pd_py_ring_attention),
     "ring_attention(group, tensors, scale, is_causal, rotated) -> (out, lse, keys)\n\nAttention of the rows of all "
     "ranks (csrc/parallel/ring_attention.h), without autograd. tensors: this rank's query, key and value [B, H, T, "
     "E]. keys: how many keys each rank has."},
    {"ring_attention_grad", PD_PY_FAST(pd_py_ring_attention_grad),
     "ring_attention_grad(group, tensors, scale, is_causal, rotated, keys) -> tuple\n\nThe gradients of query, key and "
     "value. tensors: these, out, lse and the gradient of out."},
    {"_schedule", comm_schedule, METH_VARARGS,
     "_schedule(name, world) -> (parts, steps)\n\nThe schedule of the algorithm ring or halving. For each step and "
     "rank: (the rank from which it takes parts or -1, first part, end, whether it combines them with its own)."},
    {"comm_raised", comm_raised, METH_O,
     "comm_raised(traceback)\n\nTells the launcher and the other ranks that an exception ends this rank."},
    {"comm_leave", (PyCFunction)(void (*)(void))comm_leave, METH_VARARGS | METH_KEYWORDS,
     "comm_leave(timeout=None, keep=False)\n\nTells the launcher and the other ranks that this rank leaves. keep: "
     "stays connected to a launcher, which goes on telling this rank's groups who is gone. Without a launcher, rank 0 "
     "hosts the control server and waits up to `timeout` seconds (None: PYDIST_TIMEOUT) until the other ranks have "
     "left; after a CommTimeout it may be called again."},
    {0},
};

void pd_py_comm_trim(void) { pd_py_sites_trim(); }

int pd_py_comm_counts(PyObject *held, PyObject *cached) {
    for (size_t i = 0; i < sizeof live / sizeof *live; i++) {
        PyObject *n = PyLong_FromLongLong(live[i]);
        if (!n || PyDict_SetItemString(held, live_names[i], n)) {
            Py_XDECREF(n);
            return -1;
        }
        Py_DECREF(n);
    }
    PyObject *n = PyLong_FromLongLong(pd_py_sites_count());
    int rc = n ? PyDict_SetItemString(cached, "call sites", n) : -1;
    Py_XDECREF(n);
    return rc;
}

int pd_py_add_comm(PyObject *module) {
    pd_py_sites_package(module);
    if (pd_py_add_control(module)) return -1;
    if (pd_py_add_pipes(module) || pd_py_add_work(module) || pd_py_add_ps(module) ||
        pd_py_add_ps_table(module))
        return -1;
    if (pd_py_add_group(module) || pd_py_add_blocks(module)) return -1;
    return PyModule_AddFunctions(module, functions);
}
