/* Shows tensors and nodes to Python's cycle collector.

   The collector works in two steps. First it subtracts, from the count of every object that it looks at, the references
   that visits of these objects show. An object with a count left is alive. Then it visits again, starting from the live
   objects; what it does not reach is garbage. Tensors and nodes are no Python objects, but they are between Python
   objects:

       wrapper -> tensor -> node -> node -> hook or ctx -> (Python) -> wrapper

   So a visit of a wrapper goes on through C. In the first step (COUNT) the walk counts the references that it meets at
   each tensor and node. Once it has met all of them, only visited objects hold that tensor or node; then, and so only
   once, its Python references are shown and its other references followed. In the second step (FOLLOW) the walk goes
   through these again and shows their references.

   The visit function tells which step it is: the first one that a collection uses belongs to the first step. While a
   backward runs, perhaps in another thread without the GIL, nothing is shown, so all stays alive until the next
   collection. */
#include "py/py.h"

typedef enum step { BLIND, COUNT, FOLLOW } step;

typedef struct walk {
    visitproc visit;
    void *arg;
    pd_node *todo;
    pd_meta *metas; /* metas of tensors that are still to be walked */
    step step;
    int result; /* what the visitor has returned; not 0: it wants no more */
} walk;

static bool collecting;                  /* true between the collector's start and stop */
static visitproc first_visit, last_visit; /* the first of a collection; that of the last call */
static uint32_t pass, counted;           /* the current pass; the last one of the first step */
#define COMPLETE UINT32_MAX

/* `own` belongs to the visited object. The first step visits each object once, so at a second visit another pass has
   begun. */
static step begin(uint32_t *own, visitproc visit) {
    if (pd_hooks_running) return BLIND;
    if (collecting && !first_visit) first_visit = visit;
    if (!first_visit || (visit == first_visit && !collecting)) return BLIND;
    if (visit != last_visit || !collecting || (visit == first_visit && *own == pass)) pass++;
    last_visit = visit;
    *own = pass;
    if (visit != first_visit) return FOLLOW;
    counted = pass;
    return COUNT;
}

/* Counts a reference to something that has `refs` references. Returns whether the walk goes on from it. */
static bool meet(const walk *w, pd_seen *s, int64_t refs) {
    if (w->result) return false;
    bool fresh = s->pass != pass, complete = s->pass == counted && s->met == COMPLETE;
    if (w->step == FOLLOW && collecting && !complete)
        return false; /* in the first step it showed nothing, and neither did what it alone holds */
    s->pass = pass;
    if (w->step == FOLLOW) return fresh;
    s->met = fresh ? 1 : s->met + 1;
    if (s->met != refs) return false;
    s->met = COMPLETE;
    return true;
}

static void show(walk *w, PyObject *o) {
    if (o && !w->result) w->result = w->visit(o, w->arg);
}

static void show_closure(walk *w, const pd_closure *c) {
    if (c && (c->drop == pd_py_drop || c->drop == pd_py_drop_function)) show(w, c->ctx);
}

static void show_hooks(walk *w, const pd_hook *h) {
    for (; h; h = h->next) show_closure(w, &h->closure); /* the closure of a removed hook is empty */
}

static void meet_node(walk *w, pd_node *n) {
    if (!n || !meet(w, &n->seen, n->refs)) return;
    n->next = w->todo;
    w->todo = n;
}

static void meet_tensor(walk *w, pd_tensor *t) {
    if (!t || !meet(w, &t->seen, t->refs)) return;
    if (t->wrapper) show(w, t->wrapper_owned ? t->wrapper : ((pd_pytensor *)t->wrapper)->dict);
    meet_tensor(w, t->base); /* which has no base, so chains are made by .grad only */
    if (!t->meta) return;
    t->meta->next = w->metas;
    w->metas = t->meta;
}

static void follow_meta(walk *w, const pd_meta *m) {
    meet_node(w, m->grad_fn);
    meet_tensor(w, m->grad);
    meet_tensor(w, m->destination.view);
    show_hooks(w, m->hooks);
}

static void follow_node(walk *w, const pd_node *n) {
    show_hooks(w, n->hooks);
    show_closure(w, pd_node_closure(n));
    if (n->kind->inner) meet_node(w, n->kind->inner(n));
    for (int i = 0; i < n->nin; i++) {
        meet_node(w, n->edges[i].fn);
        meet_tensor(w, n->edges[i].leaf);
    }
    for (int i = 0; i < n->nsaved; i++) {
        meet_tensor(w, n->saved[i].t);
        show_closure(w, n->saved[i].packed);
    }
}

static int finish(walk *w) {
    for (;;) {
        pd_node *n = w->todo;
        pd_meta *m = w->metas;
        if (n) {
            w->todo = n->next;
            follow_node(w, n);
        } else if (m) {
            w->metas = m->next;
            follow_meta(w, m);
        } else
            return w->result;
    }
}

int pd_py_visit_wrapper(pd_pytensor *self, visitproc visit, void *arg) {
    walk w = {.visit = visit, .arg = arg, .step = begin(&self->pass, visit)};
    if (w.step == BLIND) return 0;
    if (self->t->wrapper_owned)
        show(&w, self->dict); /* else the tensor shows it, since it may outlive the wrapper's other references */
    else meet_tensor(&w, self->t);
    return finish(&w);
}

int pd_py_visit_node(pd_node *n, uint32_t *own, visitproc visit, void *arg) {
    walk w = {.visit = visit, .arg = arg, .step = begin(own, visit)};
    if (w.step != BLIND) meet_node(&w, n);
    return finish(&w);
}

int pd_py_visit_tensors(pd_tensor *(*next)(void *ctx, int k), void *ctx, uint32_t *own, visitproc visit, void *arg) {
    walk w = {.visit = visit, .arg = arg, .step = begin(own, visit)};
    pd_tensor *t;
    for (int k = 0; w.step != BLIND && (t = next(ctx, k)); k++) meet_tensor(&w, t);
    return finish(&w);
}

/* For gc.callbacks: called when a collection starts and stops. */
static PyObject *told(PyObject *module, PyObject *args) {
    const char *phase;
    PyObject *info;
    (void)module;
    if (!PyArg_ParseTuple(args, "sO", &phase, &info)) return NULL;
    collecting = !strcmp(phase, "start");
    last_visit = NULL;
    Py_RETURN_NONE;
}

static PyMethodDef told_method = {
    "_collecting", told, METH_VARARGS,
    "The function in gc.callbacks that tells the engine when a collection starts and stops."};

int pd_py_add_collect(PyObject *module) {
    PyObject *gc = PyImport_ImportModule("gc"), *list = gc ? PyObject_GetAttrString(gc, "callbacks") : NULL;
    PyObject *f = list ? PyCFunction_New(&told_method, module) : NULL;
    int bad = f ? PyList_Append(list, f) : -1;
    Py_XDECREF(f);
    Py_XDECREF(list);
    Py_XDECREF(gc);
    return bad;
}
