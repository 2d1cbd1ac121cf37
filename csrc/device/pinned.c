#include "device/pinned.h"

#include <pthread.h>

#include "base/mem.h"
#include "device/cuda.h"

enum { CLASSES = 48, SMALLEST = 12 }; /* powers of two, starting with a page */

struct pd_pinned {
    struct pd_pinned *next; /* while it is free */
    void *p, *event, *stream; /* event: of the last copy out of it, in `stream`; NULL before the first one */
    int class;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pd_pinned *spare[CLASSES];

static int class_of(size_t bytes) {
    int k = SMALLEST;
    while (k < CLASSES - 1 && ((size_t)1 << k) < bytes) k++;
    return k;
}

/* Takes a free block that nothing reads any more out of its list. */
static pd_pinned *take_spare(int class) {
    pd_pinned *b = NULL;
    pthread_mutex_lock(&lock);
    for (pd_pinned **at = &spare[class]; *at && !b; at = &(*at)->next) {
        bool done = true;
        if ((*at)->event && (pd_cuda_open()->event_done((*at)->event, &done) || !done)) continue;
        b = *at;
        *at = b->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    return b;
}

pd_status pd_pinned_new(size_t bytes, pd_pinned **out) {
    const pd_device *d, *was;
    int class = class_of(bytes);
    PD_TRY(pd_cuda_device("pin_memory", -1, &d));
    if ((*out = take_spare(class))) return PD_OK;
    PD_TRY(pd_calloc(sizeof **out, "pin_memory", out));
    (*out)->class = class;
    pd_status status = pd_device_enter(d, &was);
    if (!status) pd_device_here = was;
    if (!status && pd_cuda_open()->pin(&(*out)->p, (size_t)1 << class)) {
        pd_cuda_open()->failed();
        status = pd_fail(PD_E_MEMORY, "pin_memory: cannot pin %zu bytes of the host's memory", (size_t)1 << class);
    }
    if (!status) return PD_OK;
    pd_free(*out);
    return PD_TRAIL(status);
}

void *pd_pinned_data(const pd_pinned *b) { return b->p; }

void pd_pinned_drop(void *ctx) {
    pd_pinned *b = ctx;
    pthread_mutex_lock(&lock);
    b->next = spare[b->class];
    spare[b->class] = b;
    pthread_mutex_unlock(&lock);
}

/* One event is enough: a copy in another stream is made to wait for the last one. */
pd_status pd_pinned_used(pd_pinned *b, const pd_device *d) {
    const pd_cuda_library *cuda = pd_cuda_open();
    void *stream = pd_cuda_stream(d);
    int error = b->event ? 0 : cuda->event_new(&b->event, false);
    if (!error && b->stream != stream) error = cuda->stream_after(stream, b->event);
    if (!error) error = cuda->event_record(b->event, stream);
    b->stream = stream;
    return pd_cuda_result("copy", error);
}
