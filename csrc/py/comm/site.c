/* Call sites: the caller's place in Python as 64 bits, (code object, instruction offset). Code objects are interned for
   the life of the process. Taking a site costs some 100 ns; its line costs over a microsecond and is looked up only for
   a message. */
#include "py/py.h"

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h> /* Python 3.10 declares functions of frames here */
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "py/comm/comm_impl.h"

#define SITES 4096 /* so many code objects are kept, and kept alive; later ones are "unknown" */

static struct {
    PyCodeObject *codes[SITES]; /* by number */
    bool own[SITES];            /* a function of the package itself; its caller is further out */
    uint16_t slots[2 * SITES];  /* hash of the pointer -> number + 1 */
    atomic_int count;           /* stored after the code object */
    pthread_mutex_t trimming;   /* keeps out readers without the GIL */
    PyObject *package;          /* ".../pydist/" */
} sites = {.trimming = PTHREAD_MUTEX_INITIALIZER};

bool pd_py_site_is_own(PyCodeObject *code) {
    if (!sites.package) return false;
    if (PyUnicode_Tailmatch(code->co_filename, sites.package, 0, PY_SSIZE_T_MAX, -1) != 1) return false;
    PyObject *examples = PyUnicode_FromFormat("%Uexamples/", sites.package);
    if (!examples) {
        PyErr_Clear();
        return true;
    }
    bool user = PyUnicode_Tailmatch(code->co_filename, examples, 0, PY_SSIZE_T_MAX, -1) == 1;
    Py_DECREF(examples);
    return !user;
}

/* The number of a code object; -1: the table is full. */
static int number_of(PyCodeObject *code) {
    size_t mask = 2 * SITES - 1, at = ((uintptr_t)code >> 4) * 0x9E3779B97F4A7C15u >> 51 & mask;
    for (; sites.slots[at]; at = (at + 1) & mask)
        if (sites.codes[sites.slots[at] - 1] == code) return sites.slots[at] - 1;
    if (sites.count == SITES) return -1;
    int n = sites.count;
    sites.codes[n] = (PyCodeObject *)Py_NewRef((PyObject *)code);
    sites.own[n] = pd_py_site_is_own(code);
    sites.count = n + 1;
    sites.slots[at] = (uint16_t)(n + 1);
    return n;
}

static int offset_in(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return frame->f_lasti * 2;
#endif
}

uint64_t pd_py_site(void) {
    PyFrameObject *frame = PyEval_GetFrame();
    uint64_t site = 0;
    Py_XINCREF(frame);
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        int n = number_of(code), offset = offset_in(frame);
        Py_DECREF(code);
        if (n >= 0) site = (uint64_t)(n + 1) << 32 | (uint32_t)offset;
        PyFrameObject *back = n >= 0 && sites.own[n] ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
    return site;
}

/* Sites that were taken before lose their text: it is "" or another place. */
void pd_py_sites_trim(void) {
    memset(sites.slots, 0, sizeof sites.slots);
    while (sites.count) {
        pthread_mutex_lock(&sites.trimming);
        PyCodeObject *code = sites.codes[--sites.count];
        pthread_mutex_unlock(&sites.trimming);
        Py_DECREF(code);
    }
}

/* Writes "train.py:12". Any thread may call, without the GIL, which a rank that hangs may hold: the code objects are
   kept alive, and reading their name and line table makes or changes no object. */
void pd_py_site_text(uint64_t site, char *text, size_t size) {
    int n = (int)(site >> 32) - 1;
    if (size) *text = 0;
    if (n < 0 || n >= SITES || !size) return;
    pthread_mutex_lock(&sites.trimming);
    PyObject *file = n < sites.count ? sites.codes[n]->co_filename : NULL;
    if (file && !PyUnicode_IS_COMPACT_ASCII(file)) {
        snprintf(text, size, "line %d", PyCode_Addr2Line(sites.codes[n], (int)(uint32_t)site));
    } else if (file) {
        const char *path = (const char *)PyUnicode_1BYTE_DATA(file);
        const char *slash = strrchr(path, '/');
        snprintf(text, size, "%s:%d", slash ? slash + 1 : path, PyCode_Addr2Line(sites.codes[n], (int)(uint32_t)site));
    }
    pthread_mutex_unlock(&sites.trimming);
}

int64_t pd_py_sites_count(void) { return sites.count; }

void pd_py_sites_package(PyObject *module) {
    PyObject *file = PyModule_GetFilenameObject(module);
    if (!file) {
        PyErr_Clear();
        return;
    }
    Py_ssize_t slash = PyUnicode_FindChar(file, '/', 0, PyUnicode_GET_LENGTH(file), -1);
    Py_XSETREF(sites.package, slash >= 0 ? PyUnicode_Substring(file, 0, slash + 1) : NULL);
    Py_DECREF(file);
}
