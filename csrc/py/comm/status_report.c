/* What a rank says about itself to ranks that wait for it: the line of Python where its program is; and SIGUSR1. */
#include "py/py.h"

#include <frameobject.h> /* PyFrame_GetBack, before 3.11 */
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "py/comm/comm_impl.h"

#define PATIENCE_MS 200

/* ---- the place --------------------------------------------------------------------------------------------------- */

/* The control thread must never wait for the GIL, which C code may hold for minutes, so another thread does. There is
   one at a time; if it gets no GIL, that is the answer. */
enum { IDLE, LOOKING, FOUND };
static struct {
    atomic_int state;
    bool program;       /* it asks the program's function, not for the place */
    PyObject *function; /* [strong] () -> str, what else there is to say; NULL: nothing. Needs the GIL. */
    char text[16 << 10];
} look;

/* The logical shard that the program runs; read and written with the GIL. */
static struct {
    bool open;
    unsigned long shard;
    unsigned long long step;
} at;

PyObject *pd_py_enter_shard(PyObject *module, PyObject *args) {
    unsigned long long seed, step;
    unsigned long shard;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKk:_enter_shard", &seed, &step, &shard)) return NULL;
    if (pd_is_recording()) pd_record_outside("it runs logical shards");
    at.open = true;
    at.shard = shard;
    at.step = step;
    pd_rng_set_shard(0); /* the shard's number is in the key itself */
    pd_rng_set(&(pd_rng_key){.seed = seed, .call = (2 * step + 1) << 32, .stream = (uint32_t)shard});
    Py_RETURN_NONE;
}

PyObject *pd_py_leave_shards(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    at.open = false;
    Py_RETURN_NONE;
}

/* Finds the innermost frame of the main thread, which is the interpreter's oldest one, outside of the package and of
   Python's threading.py, which say how it waits, not where. */
static void find(char *text, size_t size) {
    PyThreadState *main = NULL;
    PyThreadState *t = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
    for (; t; t = PyThreadState_Next(t)) main = t;
    PyFrameObject *frame = main ? PyThreadState_GetFrame(main) : NULL;
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        const char *path = PyUnicode_AsUTF8(code->co_filename), *slash = path ? strrchr(path, '/') : NULL;
        bool own = pd_py_site_is_own(code) || (slash && !strcmp(slash, "/threading.py"));
        if (own) path = NULL;
        const char *name = path ? PyUnicode_AsUTF8(code->co_name) : NULL;
        if (path)
            snprintf(text, size, "%s:%d, in %s", slash ? slash + 1 : path, PyFrame_GetLineNumber(frame),
                     name ? name : "?");
        PyErr_Clear();
        Py_DECREF(code);
        PyFrameObject *back = own ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
}

static void find_place(void) {
    find(look.text, sizeof look.text);
    size_t used = strlen(look.text);
    if (used && at.open)
        snprintf(look.text + used, sizeof look.text - used, ", logical shard %lu of step %llu", at.shard, at.step);
}

static void ask_program(void) {
    PyObject *function = Py_XNewRef(look.function);
    PyObject *said = function ? PyObject_CallNoArgs(function) : NULL;
    const char *text = said && PyUnicode_Check(said) ? PyUnicode_AsUTF8(said) : NULL;
    if (text) snprintf(look.text, sizeof look.text, "%s", text);
    PyErr_Clear();
    Py_XDECREF(said);
    Py_XDECREF(function);
}

PyObject *pd_py_report_also(PyObject *module, PyObject *function) {
    (void)module;
    PyObject *old = look.function;
    look.function = Py_IsNone(function) ? NULL : Py_NewRef(function);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static void *run(void *unused) {
    (void)unused;
    PyGILState_STATE gil = PyGILState_Ensure();
    *look.text = 0;
    if (look.program) ask_program();
    else find_place();
    PyGILState_Release(gil);
    atomic_store(&look.state, FOUND);
    return NULL;
}

static bool start(void) {
    pd_os_thread thread;
    if (pd_os_thread_start("where", &thread, run, NULL)) return false;
    pd_os_thread_detach(thread);
    return true;
}

/* False: nobody can tell. */
static bool look_for(bool program, char *text, size_t size) {
    int expected = IDLE;
    if (size) *text = 0;
    if (!Py_IsInitialized()) return true;
    if (atomic_load(&look.state) == FOUND) atomic_store(&look.state, IDLE); /* an answer that came too late */
    if (atomic_compare_exchange_strong(&look.state, &expected, LOOKING)) {
        look.program = program;
        if (!start()) {
            atomic_store(&look.state, IDLE);
            return true;
        }
    } else if (program) {
        return false; /* what comes is the place */
    }
    for (int ms = 0; ms < PATIENCE_MS && atomic_load(&look.state) != FOUND; ms++)
        pd_os_sleep(1000000);
    if (atomic_load(&look.state) != FOUND) return false;
    snprintf(text, size, "%s", look.text);
    atomic_store(&look.state, IDLE);
    return true;
}

void pd_py_place(char *text, size_t size) {
    if (!look_for(false, text, size)) snprintf(text, size, "an unknown place: C code holds the GIL");
}

void pd_py_also(char *text, size_t size) { look_for(true, text, size); }

/* ---- SIGUSR1 ----------------------------------------------------------------------------------------------------- */

static atomic_int asker;

static void on_signal(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)context;
    atomic_store(&asker, info->si_code <= 0 && info->si_pid > 0 ? info->si_pid : -1);
}

int pd_py_status_request(void) { return atomic_exchange(&asker, 0); }

/* Takes the signal, which would end the process, only if nobody else handles it. */
void pd_py_listen_usr1(bool on) {
    struct sigaction now, own = {.sa_handler = SIG_DFL};
    if (sigaction(SIGUSR1, NULL, &now)) return;
    bool ours = (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_signal;
    bool free = !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
    if (on) {
        own.sa_sigaction = on_signal;
        own.sa_flags = SA_RESTART | SA_SIGINFO;
    }
    if (on ? free : ours) sigaction(SIGUSR1, &own, NULL);
}
