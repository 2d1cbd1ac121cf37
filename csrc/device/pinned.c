#include "device/pinned.h"

#include <pthread.h>

#include "base/mem.h"
#include "device/cuda.h"

enum { CLASSES = 48, SMALLEST = 12 }; /* powers of two, starting with a page */

struct pd_pinned {
    struct pd_pinned *next; /* while it is free */
    void *p, *event, *stream; /* event: of the last copy, in `stream`; NULL before the first one */
    int class, device;        /* device: the event's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pd_pinned *spare[CLASSES];

static void lock_spare(void) { pthread_mutex_lock(&lock); }
static void unlock_spare(void) { pthread_mutex_unlock(&lock); }
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void at_start(void) { pthread_atfork(lock_spare, unlock_spare, unlock_spare); }

static int class_of(size_t bytes) {
    int k = SMALLEST;
    while (k < CLASSES - 1 && ((size_t)1 << k) < bytes) k++;
    return k;
}

static bool is_idle(const pd_pinned *b) {
    bool done = true;
    if (!b->event || !pd_cuda_open()->event_done(b->event, &done)) return done;
    pd_cuda_open()->failed(); /* clears the error, or the next launch would be blamed */
    return false;
}

/* Takes a free block that no copy uses any more out of its list. */
static pd_pinned *take_spare(int class) {
    pd_pinned *b = NULL;
    pthread_mutex_lock(&lock);
    for (pd_pinned **at = &spare[class]; *at && !b; at = &(*at)->next) {
        if (!is_idle(*at)) continue;
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
    pthread_once(&once, at_start);
    PD_TRY(pd_cuda_device("pin_memory", -1, &d));
    PD_TRY(pd_device_enter(d, &was));
    pd_device_here = was;
    if ((*out = take_spare(class))) return PD_OK;
    PD_TRY(pd_calloc(sizeof **out, "pin_memory", out));
    (*out)->class = class;
    if (!pd_cuda_open()->pin(&(*out)->p, (size_t)1 << class)) return PD_OK;
    pd_cuda_open()->failed();
    pd_free(*out);
    return pd_fail(PD_E_MEMORY, "pin_memory: cannot pin %zu bytes of the host's memory", (size_t)1 << class);
}

void *pd_pinned_data(const pd_pinned *b) { return b->p; }

void pd_pinned_drop(void *ctx) {
    pd_pinned *b = ctx;
    pthread_mutex_lock(&lock);
    b->next = spare[b->class];
    spare[b->class] = b;
    pthread_mutex_unlock(&lock);
}

/* One event is enough: a copy in another stream is made to wait for the last one. A stream of another device gets a new
   event, since it cannot record this one. */
pd_status pd_pinned_used(pd_pinned *b, const pd_device *d) {
    const pd_cuda_library *cuda = pd_cuda_open();
    void *stream = pd_cuda_stream(d);
    int error = 0;
    if (b->event && (b->stream != stream || b->device != d->index)) error = cuda->stream_after(stream, b->event);
    if (!error && b->event && b->device != d->index) {
        cuda->event_free(b->event);
        b->event = NULL;
    }
    if (!error && !b->event) error = cuda->event_new(&b->event, false);
    if (!error) error = cuda->event_record(b->event, stream);
    b->stream = stream;
    b->device = d->index;
    return pd_cuda_result("copy", error);
}
