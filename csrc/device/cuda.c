#include "device/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/flags.h"
#include "base/host.h"
#include "base/mem.h"

enum { HELD = 16, LONG = 1 << 20 /* bytes: a copy of so many takes longer than giving up the host's lock */ };

/* ---- the library ------------------------------------------------------------------------------------------------- */

typedef struct stream {
    void *cuda;
    int device, priority;
    bool taken;
    struct stream *next;
} stream;

typedef size_t (*entry)(void); /* stands for any entry; size_t, so that scratch sizes are 0 */

static struct {
    const pd_cuda_library *lib;
    entry *kernels;
    int count;
    uint64_t layout;
    size_t bytes;
    char why[512];
    bool forked;
    atomic_bool tried[PD_CUDA_DEVICES]; /* whether the library has kernels for the device */
    pd_device devices[PD_CUDA_DEVICES];
    char names[PD_CUDA_DEVICES][20];
    pd_cache *caches[PD_CUDA_DEVICES];
    stream *streams;
} cuda = {.why = "not asked yet"};
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The device of this thread's launches, and the memory that its current op has got so far. */
static _Thread_local struct {
    int current, used; /* used: 1 + the device that the runtime was set to */
    uint64_t entered;  /* how often an op has entered a device */
    void *streams[PD_CUDA_DEVICES], *used_stream;
    void *held[HELD];
    int nheld;
    pd_status refused;
    char text[PD_ERROR_TEXT];
} here;

static void refuse(pd_status kind, const char *text) {
    if (here.refused) return;
    here.refused = kind;
    snprintf(here.text, sizeof here.text, "%s", text);
}

static size_t missing(void) {
    refuse(PD_E_NOTIMPL, "the op needs a kernel that does not exist on CUDA yet");
    return 0;
}

static pd_status hold(const pd_device *d, size_t bytes, void **out) {
    if (here.nheld == HELD)
        return pd_fail(PD_E_RUNTIME, "scratch: an op asked for scratch memory too often (expected at most %d times)",
                       HELD);
    PD_TRY(pd_cache_alloc(cuda.caches[d->index], here.streams[d->index], bytes, out));
    here.held[here.nheld++] = *out;
    return PD_OK;
}

static void *room(size_t bytes) {
    void *p = NULL;
    pd_status status = hold(pd_device_here, bytes, &p);
    if (status) refuse(status, pd_error_get()->text);
    return p;
}

static void before_fork(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PD_CUDA_DEVICES; i++)
        if (cuda.caches[i]) pd_cache_lock(cuda.caches[i]);
}
static void after_fork(void) {
    for (int i = PD_CUDA_DEVICES - 1; i >= 0; i--)
        if (cuda.caches[i]) pd_cache_unlock(cuda.caches[i]);
    pthread_mutex_unlock(&lock);
}
static void in_child(void) {
    after_fork();
    cuda.forked = true;
    here.used = here.nheld = 0;
}
bool pd_cuda_forked(void) { return cuda.forked; }

static bool usable(const pd_cuda_library *lib) {
    if (!lib) snprintf(cuda.why, sizeof cuda.why, "%s", dlerror());
    else if (lib->layout != cuda.layout)
        snprintf(cuda.why, sizeof cuda.why,
                 "pydist/_cuda.so belongs to another build (expected to be built with this pydist)");
    return lib && lib->layout == cuda.layout;
}

/* _cuda.so beside the file that this code was loaded from. */
static void library_path(char *to, size_t size) {
    Dl_info info;
    const char *given = pd_flags_get()->CUDA_LIBRARY;
    int folder = !*given && dladdr(&cuda, &info) && strrchr(info.dli_fname, '/')
                     ? (int)(strrchr(info.dli_fname, '/') - info.dli_fname + 1)
                     : 0;
    snprintf(to, size, "%.*s%s", folder, folder ? info.dli_fname : "", *given ? given : "_cuda.so");
}

/* Why CUDA has no devices. */
static void say_why(int error) {
    int driver = 0, own = 0;
    cuda.lib->versions(&driver, &own);
    if (driver >= own) snprintf(cuda.why, sizeof cuda.why, "CUDA: %s", cuda.lib->text(error));
    else if (!driver) snprintf(cuda.why, sizeof cuda.why, "CUDA: there is no driver");
    else
        snprintf(cuda.why, sizeof cuda.why,
                 "CUDA: the driver is too old: it serves CUDA %d.%d (expected %d.%d, of which this pydist is built, or "
                 "newer)",
                 driver / 1000, driver % 1000 / 10, own / 1000, own % 1000 / 10);
}

static void open_library(void) {
    static const pd_cuda_host host = {room, refuse};
    char path[4096];
    library_path(path, sizeof path);
    snprintf(cuda.why, sizeof cuda.why, "this build of pydist has no CUDA (PYDIST_CUDA=1 builds it)");
    if (access(path, R_OK)) return;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const pd_cuda_library *lib = handle ? dlsym(handle, PD_CUDA_SYMBOL) : NULL;
    if (!usable(lib)) return;
    cuda.lib = lib;
    int error = lib->count(&cuda.count);
    if (error) {
        cuda.count = 0;
        say_why(error);
    } else if (!cuda.count)
        snprintf(cuda.why, sizeof cuda.why, "CUDA: there is no device");
    if (!cuda.count) return;
    if (pd_malloc(cuda.bytes, "cuda", &cuda.kernels)) {
        cuda.count = 0;
        snprintf(cuda.why, sizeof cuda.why, "out of memory");
        return;
    }
    memcpy(cuda.kernels, lib->kernels, cuda.bytes);
    for (size_t i = 0; i < cuda.bytes / sizeof *cuda.kernels; i++)
        if (!cuda.kernels[i]) cuda.kernels[i] = missing;
    if (cuda.count > PD_CUDA_DEVICES) cuda.count = PD_CUDA_DEVICES;
    *cuda.why = 0;
    lib->start(&host);
    pthread_atfork(before_fork, after_fork, in_child);
}

const pd_cuda_library *pd_cuda_open(void) {
    pthread_once(&once, open_library);
    return cuda.lib;
}
void pd_cuda_expect(uint64_t layout, size_t kernels_bytes) {
    cuda.layout = layout;
    cuda.bytes = kernels_bytes;
}
int pd_cuda_count(void) {
    pd_cuda_open();
    return cuda.count;
}
const char *pd_cuda_why(void) {
    pd_cuda_open();
    return cuda.why;
}
const char *pd_cuda_built(void) { return pd_cuda_open() ? cuda.lib->built : ""; }

pd_status pd_cuda_result(const char *op, int error) {
    if (!error) return PD_OK;
    cuda.lib->failed(); /* cleared, so that the next op does not report it again */
    return pd_fail(PD_E_RUNTIME, "%s: CUDA: %s (error %d)", op, cuda.lib->text(error), error);
}

/* ---- a device ---------------------------------------------------------------------------------------------------- */

/* Fails if the library was built without this kind of device. The device is the runtime's current one. */
static pd_status try_kernels(const pd_device *d) {
    bool fits;
    pd_cuda_properties p;
    if (atomic_load_explicit(&cuda.tried[d->index], memory_order_relaxed)) return PD_OK;
    PD_TRY(pd_cuda_result(d->name, cuda.lib->fits(&fits)));
    if (!fits) {
        PD_TRY(pd_cuda_result(d->name, cuda.lib->properties(d->index, &p)));
        return pd_fail(PD_E_RUNTIME,
                       "%s: this pydist has no kernels for %s, sm_%d%d: it was built of %s (expected a build with "
                       "CUDA_ARCH=%d%d)",
                       d->name, p.name, p.major, p.minor, cuda.lib->built, p.major, p.minor);
    }
    atomic_store_explicit(&cuda.tried[d->index], true, memory_order_relaxed);
    return PD_OK;
}

static pd_status enter(const pd_device *d) {
    here.entered++;
    void *stream = here.streams[d->index];
    if (here.used == d->index + 1 && here.used_stream == stream) return PD_OK;
    if (cuda.forked)
        return pd_fail(PD_E_RUNTIME, "%s: CUDA cannot be used in a forked process (expected the start method 'spawn')",
                       d->name);
    PD_TRY(pd_cuda_result(d->name, cuda.lib->use(d->index, stream)));
    PD_TRY(try_kernels(d));
    here.used = d->index + 1;
    here.used_stream = stream;
    return PD_OK;
}

static pd_status alloc(const pd_device *d, size_t bytes, void **out) {
    PD_TRY(enter(d));
    return pd_cache_alloc(cuda.caches[d->index], here.streams[d->index], bytes, out);
}

static void release(const pd_device *d, void *p, size_t bytes) {
    (void)bytes;
    if (!cuda.forked) pd_cache_free(cuda.caches[d->index], p);
}

/* Frees them while launches that use them are still under way: the next user comes after those, on the same stream. */
static void let_go(const pd_device *d) {
    while (here.nheld) pd_cache_free(cuda.caches[d->index], here.held[--here.nheld]);
}

static pd_status scratch(const pd_device *d, size_t bytes, const char *op, void **out) {
    (void)op;
    let_go(d);
    *out = NULL;
    return bytes ? hold(d, bytes, out) : PD_OK;
}

/* Fails if a kernel has found an index out of range since the last call. */
static pd_status complaint(void) {
    pd_bad_index bad;
    return cuda.lib->bad_index(&bad) ? pd_bad_index_fail(&bad) : PD_OK;
}

static pd_status check(const pd_device *d, const char *op) {
    let_go(d);
    pd_status refused = here.refused;
    here.refused = PD_OK;
    if (refused) return pd_fail(refused, "%s: %s (the tensors are on %s)", op, here.text, d->name);
    int error = cuda.lib->failed();
    if (!error && pd_flags_get()->SYNC && !pd_cuda_capturing(d)) error = cuda.lib->stream_wait(here.streams[d->index]);
    return error ? pd_cuda_result(op, error) : complaint();
}

static void settle(const pd_device *d) {
    (void)d;
    if (!cuda.forked) cuda.lib->settle();
}

/* Gives the lock up around the copy, too: CUDA waits there if the host's memory is not pinned. */
static int copy_in(void *stream, void *to, const void *from, size_t bytes, pd_copy_wait wait) {
    bool idle = bytes < LONG;
    if (wait == PD_WAIT_UNLOCKED && idle && cuda.lib->stream_done(stream, &idle)) idle = false;
    void *token = wait == PD_WAIT_UNLOCKED && !idle ? pd_host_release() : NULL;
    int error = bytes ? cuda.lib->copy(to, from, bytes, stream) : 0;
    if (!error && wait) error = cuda.lib->stream_wait(stream);
    pd_host_acquire(token);
    return error;
}

static pd_status copy(const pd_device *d, const char *op, pd_transfer way, void *to, const void *from, size_t bytes,
                      pd_copy_wait wait) {
    PD_TRY(enter(d));
    if (way != PD_WITHIN && pd_cuda_capturing(d))
        return pd_fail(PD_E_RUNTIME,
                       "%s: copy to the %s: a CUDA graph is being captured, whose replays cannot copy to or from the "
                       "host (expected tensors that are on the device already)",
                       op, way == PD_TO_HOST ? "host" : "device");
    int error = copy_in(here.streams[d->index], to, from, bytes, wait);
    return error || !wait ? pd_cuda_result(op, error) : complaint();
}

pd_status pd_cuda_device(const char *op, int index, const pd_device **out) {
    int count = pd_cuda_count();
    if (!count) return pd_fail(PD_E_RUNTIME, "%s: there is no CUDA device: %s (expected 'cpu')", op, cuda.why);
    if (index < 0) index = here.current;
    if (index >= count)
        return pd_fail(PD_E_RUNTIME, "%s: invalid device ordinal %d (expected 0 to %d)", op, index, count - 1);
    pd_device *d = &cuda.devices[index];
    pd_status status = PD_OK;
    pthread_mutex_lock(&lock);
    if (!cuda.caches[index]) {
        snprintf(cuda.names[index], sizeof cuda.names[index], "cuda:%d", index);
        *d = (pd_device){.kind = PD_DEVICE_CUDA,
                         .index = index,
                         .name = cuda.names[index],
                         .alloc = alloc,
                         .free = release,
                         .kernels = cuda.kernels,
                         .enter = enter,
                         .check = check,
                         .scratch = scratch,
                         .settle = settle,
                         .copy = copy};
        status = pd_cache_new(cuda.lib, index, d->name, &cuda.caches[index]);
    }
    pthread_mutex_unlock(&lock);
    PD_TRY(status);
    *out = d;
    return PD_OK;
}

int pd_cuda_in_use(uint64_t *entered) {
    *entered = here.entered;
    return here.used - 1;
}
pd_status pd_cuda_set_current(int index) {
    const pd_device *d;
    PD_TRY(pd_cuda_device("set_device", index, &d));
    here.current = index;
    return enter(d);
}

pd_status pd_cuda_wait(const pd_device *d, const char *op) {
    PD_TRY(enter(d));
    if (pd_cache_pool_is_open(cuda.caches[d->index]))
        return pd_fail(PD_E_RUNTIME,
                       "%s: a CUDA graph is being captured on %s, which to wait for the device would "
                       "break (expected to wait before or after the capture)",
                       op, d->name);
    int error = cuda.lib->wait();
    return error ? pd_cuda_result(op, error) : complaint();
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

void *pd_cuda_stream(const pd_device *d) {
    settle(d); /* somebody is about to launch there */
    return here.streams[d->index];
}
void pd_cuda_set_stream(const pd_device *d, void *stream) { here.streams[d->index] = stream; }
bool pd_cuda_capturing(const pd_device *d) {
    bool yes = false;
    return here.streams[d->index] && !cuda.lib->capturing(here.streams[d->index], &yes) && yes;
}

static stream *stream_at(const void *cuda_stream) {
    stream *s = cuda.streams;
    while (s && s->cuda != cuda_stream) s = s->next;
    return s;
}

static pd_status new_stream(const char *op, int device, int priority, stream **out) {
    stream *s;
    PD_TRY(pd_calloc(sizeof *s, op, &s));
    pd_status status = pd_cuda_result(op, cuda.lib->stream_new(&s->cuda, priority));
    if (status) {
        pd_free(s);
        return status;
    }
    s->device = device;
    s->priority = priority;
    s->next = cuda.streams;
    *out = cuda.streams = s;
    return PD_OK;
}

/* Whether it has no owner, and no capture goes on in it that an owner never ended. */
static bool is_spare(const stream *s, int device, int priority) {
    bool captures = false;
    return !s->taken && s->device == device && s->priority == priority && !cuda.lib->capturing(s->cuda, &captures) &&
           !captures;
}

pd_status pd_cuda_stream_take(const char *op, const pd_device *d, int priority, void **out) {
    pd_status status = PD_OK;
    PD_TRY(enter(d));
    pthread_mutex_lock(&lock);
    stream *s = cuda.streams;
    while (s && !is_spare(s, d->index, priority)) s = s->next;
    if (!s) status = new_stream(op, d->index, priority, &s);
    if (!status) {
        s->taken = true;
        *out = s->cuda;
    }
    pthread_mutex_unlock(&lock);
    return PD_TRAIL(status);
}

void pd_cuda_stream_back(void *cuda_stream) {
    pthread_mutex_lock(&lock);
    stream *s = stream_at(cuda_stream);
    if (s) s->taken = false;
    pthread_mutex_unlock(&lock);
}

bool pd_cuda_stream_known(const void *cuda_stream, int *device, bool *taken) {
    pthread_mutex_lock(&lock);
    const stream *s = stream_at(cuda_stream);
    if (s) {
        *device = s->device;
        *taken = s->taken;
    }
    pthread_mutex_unlock(&lock);
    return s != NULL;
}

pd_cache *pd_cuda_cache(const pd_device *d) { return cuda.caches[d->index]; }

void pd_cuda_trim(void) {
    if (cuda.forked || !cuda.count) return;
    void *token = pd_host_release();
    for (int i = 0; i < cuda.count; i++)
        if (cuda.caches[i] && !enter(&cuda.devices[i])) pd_cache_trim(cuda.caches[i]);
    pd_host_acquire(token);
}
