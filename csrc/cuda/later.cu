/* One sum waits at a time, of all threads and devices. */
#include "cuda/later.h"

#include <pthread.h>

#include "cuda/table.h"

#ifdef __CUDACC__ /* the emulator counts what is launched */
static void pd_count_later() {}
static void pd_count_waiting(bool) {}
static void pd_count_joined() {}
#endif

bool pd_cuda_waits;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool launching; /* this thread launches the sum */
static struct { int device; cudaStream_t stream; pd_dtype t; pd_loop l; } waiting;

static void set(bool waits) { __atomic_store_n(&pd_cuda_waits, waits, __ATOMIC_RELEASE); }

/* Other threads wait for the lock meanwhile, so nothing overtakes the sum. */
static void launch_sum() {
    int device = waiting.device;
    cudaStream_t own = pd_cuda_stream_now;
    cudaGetDevice(&device);
    if (device != waiting.device) cudaSetDevice(waiting.device);
    pd_cuda_stream_now = waiting.stream;
    launching = true;
    pd_count_waiting(true);
    pd_cuda_binary(PD_BINARY_add, waiting.t, 1, &waiting.l);
    pd_count_waiting(false);
    launching = false;
    pd_cuda_stream_now = own;
    if (device != waiting.device) cudaSetDevice(device);
    set(false);
}

void pd_cuda_launch_waiting() {
    if (launching) return;
    pthread_mutex_lock(&lock);
    if (pd_cuda_waits) launch_sum();
    pthread_mutex_unlock(&lock);
}

void pd_cuda_add_later(pd_dtype t, const pd_loop *l) {
    pthread_mutex_lock(&lock);
    if (pd_cuda_waits) launch_sum();
    cudaGetDevice(&waiting.device);
    waiting.stream = pd_cuda_stream_now;
    waiting.t = t;
    waiting.l = *l;
    waiting.l.later = false;
    pd_count_later();
    set(true);
    pthread_mutex_unlock(&lock);
}

static bool harms(const result &r, const char *in, size_t bytes) {
    const char *p = (const char *)r.p;
    return p && p < in + bytes && in < p + r.bytes && !(p == in && r.bytes == bytes);
}

bool pd_cuda_take_sum(const void *out, pd_dtype t, int64_t n, const result *results, int count, pd_loop *sum) {
    int device = -1;
    if (!__atomic_load_n(&pd_cuda_waits, __ATOMIC_ACQUIRE)) return false;
    pthread_mutex_lock(&lock);
    cudaGetDevice(&device);
    bool fits = pd_cuda_waits && waiting.l.ptr[0] == out && waiting.t == t && waiting.l.numel == n &&
                waiting.stream == pd_cuda_stream_now && waiting.device == device;
    *sum = waiting.l;
    for (int k = 1; k < 3 && fits; k++) {
        if (!sum->mixed) sum->type[k] = (int8_t)t;
        for (int i = 0; i < count && fits; i++) fits = !harms(results[i], sum->ptr[k], (size_t)n * (sum->type[k] == PD_F32 ? 4 : 2));
    }
    if (fits) {
        pd_count_joined();
        set(false);
    }
    pthread_mutex_unlock(&lock);
    return fits;
}
