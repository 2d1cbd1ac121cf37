/* What the library exports: its table of kernels, and CUDA's runtime, which is linked in, behind plain functions. */
#include <pthread.h>

#include "cuda/table.h"

#ifdef __CUDACC__
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h> /* a header alone; a profiler replaces its functions */
#else /* without it profilers see no ranges */
static void nvtxRangePushA(const char *) {}
static void nvtxRangePop() {}
static void nvtxMarkA(const char *) {}
#endif
#endif

__thread cudaStream_t pd_cuda_stream_now;
__thread const uint64_t *pd_cuda_draws_past;
const pd_cuda_host *pd_cuda_lent;

/* Members of kernels.def's rows that are not for CUDA stay NULL. */
static pd_kernels kernels() {
    pd_kernels k = {};
#define PD_KERNEL(devices, result, name, ...) PD_ON_CUDA_##devices(k.name = pd_cuda_##name;)
#include "kernels/kernels.def"
#undef PD_KERNEL
    return k;
}
#ifdef __CUDACC__
static const pd_kernels table = kernels();
#else
pd_kernels pd_emulated_kernels(const pd_kernels &); /* which tests/emulator puts in front of these, to count */
static const pd_kernels table = pd_emulated_kernels(kernels());
#endif

static bad_record *record; /* for all devices; made when a kernel first needs it */
bad_record *pd_cuda_bad_record() {
    void *p = nullptr;
    if (record) return record;
    if (cudaMallocHost(&p, sizeof *record)) {
        pd_cuda_lent->refuse(PD_E_MEMORY, "there is no pinned memory left");
        return nullptr;
    }
    memset(p, 0, sizeof *record);
    bad_record *none = nullptr;
    if (!__atomic_compare_exchange_n(&record, &none, (bad_record *)p, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        cudaFreeHost(p);
    return record;
}
static bool bad_index(pd_bad_index *out) {
    if (!record || !record->ready) return false;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    *out = record->what;
    record->ready = 0;
    __atomic_store_n(&record->taken, 0u, __ATOMIC_RELEASE);
    return true;
}

/* A row of counters for each stream: launches of one stream follow each other, those of two streams may overlap. */
enum { ROWS = 32, COUNTERS = 1024 };
static __device__ unsigned counters[ROWS][COUNTERS];
static struct owner { int device; cudaStream_t stream; } owners[ROWS];
static int taken; /* rows */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread unsigned *own_row; /* of the thread's stream; NULL: not asked for yet, or none was left */

static unsigned *find_row() {
    int device = 0, row = 0;
    void *all = nullptr;
    if (cudaGetDevice(&device) || cudaGetSymbolAddress(&all, counters)) return nullptr;
    pthread_mutex_lock(&lock);
    while (row < taken && (owners[row].device != device || owners[row].stream != pd_cuda_stream_now)) row++;
    if (row == taken && taken < ROWS) owners[taken++] = owner{device, pd_cuda_stream_now};
    pthread_mutex_unlock(&lock);
    return row < ROWS ? (unsigned *)all + row * COUNTERS : nullptr;
}

static int capturing(void *s, bool *out) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing((cudaStream_t)s, &status);
    *out = status != cudaStreamCaptureStatusNone;
    return error;
}

/* A graph runs on any stream, beside others, so it has counters of its own. */
unsigned *pd_cuda_counters(int64_t count) {
    bool captures = false;
    if (pd_cuda_stream_now && capturing(pd_cuda_stream_now, &captures)) captures = true;
    if (!captures && count <= COUNTERS && (own_row || (own_row = find_row()))) return own_row;
    unsigned *made = (unsigned *)pd_cuda_lent->room((size_t)count * sizeof *made);
    settle(); /* as the memory may be what a sum that waits will read */
    if (made) cudaMemsetAsync(made, 0, (size_t)count * sizeof *made, pd_cuda_stream_now);
    return made;
}

static void start(const pd_cuda_host *host) { pd_cuda_lent = host; }
static const char *text(int error) { return cudaGetErrorString((cudaError_t)error); }
static int count(int *devices) { return cudaGetDeviceCount(devices); }

static int properties(int device, pd_cuda_properties *out) {
    cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error) return error;
    *out = pd_cuda_properties{};
    for (int i = 0; p.name[i] && i < (int)sizeof out->name - 1; i++) out->name[i] = p.name[i];
    out->major = p.major;
    out->minor = p.minor;
    out->processors = p.multiProcessorCount;
    out->memory = p.totalGlobalMem;
    return 0;
}

static void versions(int *driver, int *own) {
    if (cudaDriverGetVersion(driver)) *driver = 0;
    cudaRuntimeGetVersion(own);
}
static __global__ void any_kernel() {}
static int fits(bool *out) {
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, (const void *)any_kernel);
    *out = !error;
    if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction) return error;
    cudaGetLastError(); /* forgets it */
    return 0;
}

static int use(int device, void *stream) {
    pd_cuda_stream_now = (cudaStream_t)stream;
    own_row = nullptr;
    return cudaSetDevice(device);
}
static int at(int device, int *was) {
    cudaError_t error = cudaGetDevice(was);
    return error || *was == device ? error : cudaSetDevice(device);
}
static int failed(void) { return cudaGetLastError(); }
static int wait(void) {
    settle();
    return cudaDeviceSynchronize();
}
static int memory(size_t *left, size_t *total) { return cudaMemGetInfo(left, total); }
static int take(void **out, size_t bytes) { return cudaMalloc(out, bytes); }
static int give(void *p) {
    settle();
    return cudaFree(p);
}
static int pin(void **out, size_t bytes) { return cudaMallocHost(out, bytes); }
static int unpin(void *p) { return cudaFreeHost(p); }
static int copy(void *to, const void *from, size_t bytes, void *stream) {
    settle();
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)stream);
}

/* *out: whether the work that `error` is about is done. That it is not done yet is no error, even if CUDA keeps it as one. */
static int done(cudaError_t error, bool *out) {
    *out = error == cudaSuccess;
    if (error != cudaErrorNotReady) return error;
    if (cudaPeekAtLastError() == cudaErrorNotReady) cudaGetLastError();
    return 0;
}
static int stream_new(void **out, int priority) { return cudaStreamCreateWithPriority((cudaStream_t *)out, cudaStreamNonBlocking, priority); }
static int stream_wait(void *s) {
    settle();
    return cudaStreamSynchronize((cudaStream_t)s);
}
static int stream_done(void *s, bool *out) {
    settle();
    return done(cudaStreamQuery((cudaStream_t)s), out);
}
static int stream_after(void *s, void *event) {
    settle();
    return cudaStreamWaitEvent((cudaStream_t)s, (cudaEvent_t)event, 0);
}
static int event_new(void **out, bool timing) {
    return cudaEventCreateWithFlags((cudaEvent_t *)out, timing ? cudaEventDefault : cudaEventDisableTiming);
}
static int event_free(void *e) { return cudaEventDestroy((cudaEvent_t)e); }
static int event_record(void *e, void *s) {
    settle();
    return cudaEventRecord((cudaEvent_t)e, (cudaStream_t)s);
}
static int event_wait(void *e) { return cudaEventSynchronize((cudaEvent_t)e); }
static int event_done(void *e, bool *out) { return done(cudaEventQuery((cudaEvent_t)e), out); }
static int event_between(void *from, void *to, float *ms) { return cudaEventElapsedTime(ms, (cudaEvent_t)from, (cudaEvent_t)to); }

/* Relaxed: the cache may take memory from the driver meanwhile. */
static int capture_begin(void *s, const uint64_t *past) {
    settle();
    cudaError_t error = cudaStreamBeginCapture((cudaStream_t)s, cudaStreamCaptureModeRelaxed);
    if (!error) pd_cuda_draws_past = past;
    return error;
}
static int capture_end(void *s, void **out) {
    settle();
    cudaGraph_t graph = nullptr;
    pd_cuda_draws_past = nullptr;
    cudaError_t error = cudaStreamEndCapture((cudaStream_t)s, &graph);
    if (!error) error = cudaGraphInstantiate((cudaGraphExec_t *)out, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    return error;
}
static int graph_launch(void *graph, void *s) {
    settle();
    return cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)s);
}
static int graph_free(void *graph) { return cudaGraphExecDestroy((cudaGraphExec_t)graph); }

#ifdef __CUDACC__
static void range_push(const char *name) { nvtxRangePushA(name); }
static void range_pop() { nvtxRangePop(); }
static void mark(const char *name) { nvtxMarkA(name); }
#else
static void range_push(const char *) {}
static void range_pop() {}
static void mark(const char *) {}
#endif

#ifndef PD_CUDA_BUILT
#define PD_CUDA_BUILT "CUDA"
#endif
extern "C" __attribute__((visibility("default"))) const pd_cuda_library pd_cuda_library_of_pydist;
const pd_cuda_library pd_cuda_library_of_pydist = {
    PD_CUDA_LAYOUT, PD_CUDA_BUILT, &table, start, text, count, properties, versions, fits, use, at, failed, bad_index, settle, wait, memory, take, give,
    pin, unpin, copy, stream_new, stream_wait, stream_done, stream_after, event_new, event_free, event_record, event_wait, event_done,
    event_between,
    capture_begin, capture_end, capturing, graph_launch, graph_free, range_push, range_pop, mark,
};
