/* References to Python objects that C drops. In a thread without the GIL they are put into a list. */
#include <pthread.h>

#include "base/mem.h"
#include "py/py.h"

_Atomic int pd_py_dropped;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static PyObject **list;
static size_t count, cap;

void pd_py_drop(void *object) {
    if (!object || !Py_IsInitialized()) return;
    if (PyGILState_Check()) {
        Py_DECREF((PyObject *)object);
        return;
    }
    pthread_mutex_lock(&lock);
    if (!pd_grow(&list, &cap, count + 1, sizeof *list, "drop list"))
        list[count++] = object; /* without memory for the list it leaks; nothing else can be done here */
    pthread_mutex_unlock(&lock);
    pd_py_dropped = 1;
}

void pd_py_drain_slow(void) {
    for (;;) {
        pthread_mutex_lock(&lock);
        PyObject *o = count ? list[--count] : NULL;
        if (!o) pd_py_dropped = 0;
        pthread_mutex_unlock(&lock);
        if (!o) return;
        Py_DECREF(o); /* outside the lock, since it may run code that drops references */
    }
}
