#include "device/gpu_points.h"

#include <pthread.h>

#include "base/mem.h"
#include "base/os.h"

typedef struct point {
    void *event;
    uint64_t work;  /* how often the thread had entered a device by then */
    uint32_t spare; /* the next free one */
    int device;
} point;

static struct {
    pthread_mutex_t lock; /* of all below */
    point *points;        /* number 1 is the first */
    size_t count, cap;
    uint32_t spare[PD_CUDA_DEVICES], base[PD_CUDA_DEVICES]; /* base: the point whose time is base_ns */
    int64_t base_ns[PD_CUDA_DEVICES], start_ns;
} p = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Needs the lock. NULL: there is no point of this number. */
static point *at(uint32_t number) { return number && number <= p.count ? &p.points[number - 1] : NULL; }

/* Needs the lock. The device is the runtime's current one. */
static uint32_t take(int device) {
    uint32_t number = p.spare[device];
    if (number) {
        p.spare[device] = at(number)->spare;
        return number;
    }
    void *event = NULL;
    if (p.count == UINT32_MAX || pd_grow(&p.points, &p.cap, p.count + 1, sizeof *p.points, "profiler")) return 0;
    if (pd_cuda_open()->event_new(&event, true)) return 0;
    p.points[p.count++] = (point){.event = event, .device = device};
    return (uint32_t)p.count;
}
static void give_back(uint32_t number) {
    point *a = at(number);
    if (!a) return;
    a->spare = p.spare[a->device];
    p.spare[a->device] = number;
}

/* The device and stream of this thread's work; -1: none that has times. */
static int device_now(void **stream, uint64_t *work) {
    const pd_device *d;
    int device = pd_cuda_in_use(work);
    if (device < 0 || pd_cuda_device("profiler", device, &d) || pd_cuda_capturing(d)) return -1;
    *stream = pd_cuda_stream(d);
    return device;
}

static uint32_t record(int device, void *stream, uint64_t work) {
    const pd_cuda_library *cuda = pd_cuda_open();
    pthread_mutex_lock(&p.lock);
    if (!p.base[device] && (p.base[device] = take(device))) {
        cuda->event_record(at(p.base[device])->event, stream);
        p.base_ns[device] = pd_os_now();
    }
    uint32_t number = take(device);
    if (number && cuda->event_record(at(number)->event, stream)) {
        give_back(number);
        number = 0;
    }
    if (number) at(number)->work = work;
    pthread_mutex_unlock(&p.lock);
    return number;
}

uint32_t pd_gpu_point(void) {
    void *stream;
    uint64_t work;
    int device = device_now(&stream, &work);
    return device < 0 ? 0 : record(device, stream, work);
}

uint32_t pd_gpu_point_after(uint32_t begin) {
    void *stream = NULL;
    uint64_t work;
    int device = device_now(&stream, &work);
    pthread_mutex_lock(&p.lock);
    const point *from = at(begin);
    bool worked = from && from->device == device && from->work != work;
    if (from && !worked) give_back(begin);
    pthread_mutex_unlock(&p.lock);
    return worked ? record(device, stream, work) : 0;
}

pd_status pd_gpu_points_wait(void) {
    for (int i = 0; i < PD_CUDA_DEVICES; i++) {
        const pd_device *d;
        if (!p.base[i]) continue;
        PD_TRY(pd_cuda_device("profiler", i, &d));
        PD_TRY(pd_cuda_wait(d, "profiler"));
    }
    return PD_OK;
}

pd_status pd_gpu_points_start(void) {
    uint64_t work;
    const pd_device *d;
    pthread_mutex_lock(&p.lock);
    for (size_t i = 0; i < p.count; i++) pd_cuda_open()->event_free(p.points[i].event);
    pd_free(p.points);
    p.points = NULL;
    p.count = p.cap = 0;
    for (int i = 0; i < PD_CUDA_DEVICES; i++) p.spare[i] = p.base[i] = 0;
    p.start_ns = pd_os_now();
    pthread_mutex_unlock(&p.lock);
    PD_TRY(pd_cuda_device("profiler", pd_cuda_in_use(&work), &d));
    PD_TRY(pd_cuda_wait(d, "profiler"));
    pd_gpu_point_after(pd_gpu_point()); /* makes the device's base point while the device is idle */
    return PD_OK;
}

bool pd_gpu_points_times(uint32_t begin, uint32_t end, int *device, int64_t *from, int64_t *to) {
    const point *a = at(begin), *b = at(end);
    float first, second;
    if (!a || !b) return false;
    const pd_cuda_library *cuda = pd_cuda_open();
    *device = a->device;
    if (cuda->event_between(at(p.base[a->device])->event, a->event, &first) ||
        cuda->event_between(a->event, b->event, &second)) {
        cuda->failed();
        return false;
    }
    *from = p.base_ns[a->device] - p.start_ns + (int64_t)((double)first * 1e6);
    *to = *from + (int64_t)((double)second * 1e6);
    return true;
}
