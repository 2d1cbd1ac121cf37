/* Two devices of PD_MEMORY bytes each, in one arena; threads of a block as fibers. */
#include "cuda_runtime.h"

#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;
char pd_emulated_lanes[1024][32];

/* ---- memory ---- */

enum { DEVICES = 2, PIECES = 4096 };
static const size_t PD_MEMORY = (size_t)256 << 20, FILLED = (size_t)256 << 10;
static char *arena;
static struct { char *p; size_t bytes; int device; } pieces[PIECES];
static size_t used[DEVICES];
static int current;
static cudaError_t last;

static void open_arena(bool open) {
    if (arena) mprotect(arena, DEVICES * PD_MEMORY, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}
static cudaError_t is(cudaError_t e) {
    if (e && e != cudaErrorNotReady) last = e;
    return e;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    if (!arena) {
        void *p = mmap(nullptr, DEVICES * PD_MEMORY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return is(cudaErrorMemoryAllocation);
        arena = (char *)p;
    }
    char *base = arena + current * PD_MEMORY, *at = base;
    for (bool moved = true; moved;) { /* the first gap that is large enough */
        moved = false;
        for (auto &piece : pieces)
            if (piece.p && at < piece.p + piece.bytes && piece.p < at + bytes) at = piece.p + piece.bytes, moved = true;
    }
    if (at + bytes > base + PD_MEMORY) return is(cudaErrorMemoryAllocation);
    for (auto &piece : pieces)
        if (!piece.p) {
            piece.p = at, piece.bytes = bytes, piece.device = current;
            used[current] += bytes;
            *out = at;
            open_arena(true);
            memset(at, 0xff, bytes < FILLED ? bytes : FILLED); /* NaN: nobody may count on zeros */
            open_arena(false);
            return cudaSuccess;
        }
    return is(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *p) {
    for (auto &piece : pieces)
        if (piece.p && piece.p == p) {
            used[piece.device] -= piece.bytes;
            /* pages that nobody holds would slow open_arena down; those at the ends may be others', too */
            const uintptr_t page = 4096, begin = ((uintptr_t)piece.p + page - 1) & ~(page - 1), end = ((uintptr_t)piece.p + piece.bytes) & ~(page - 1);
            if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
            piece.p = nullptr;
            return cudaSuccess;
        }
    return is(cudaErrorUnknown);
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    *left = PD_MEMORY - used[current];
    *total = PD_MEMORY;
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **out, size_t bytes) { return (*out = malloc(bytes)) ? cudaSuccess : is(cudaErrorMemoryAllocation); }
cudaError_t cudaFreeHost(void *p) {
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, cudaStream_t stream) {
    pd_emulate_work(stream, [=] { memmove(to, from, bytes); });
    return cudaSuccess;
}

/* ---- graphs: lists of work ---- */

struct emulated_graph { std::vector<std::function<void()>> work; };
static emulated_graph *written;
static cudaStream_t written_stream;

static void do_now(const std::function<void()> &work) {
    open_arena(true);
    work();
    open_arena(false);
}
void pd_emulate_work(cudaStream_t stream, std::function<void()> work) {
    if (written && stream == written_stream) written->work.push_back(work);
    else do_now(work);
}
/* The same for tests/fakes. */
extern "C" __attribute__((visibility("default"))) void pd_emulate_call(void *stream, void (*call)(void *), void *ctx) {
    pd_emulate_work((cudaStream_t)stream, [=] { call(ctx); });
}
static bool is_written(cudaStream_t stream) { return written && stream == written_stream; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (written || !stream) return is(cudaErrorStreamCaptureUnsupported);
    written = new emulated_graph;
    written_stream = stream;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *out) {
    *out = written;
    written = nullptr;
    return *out ? cudaSuccess : is(cudaErrorUnknown);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *out) {
    *out = is_written(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
    *out = new emulated_graph(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy(graph); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
    for (auto &work : graph->work) do_now(work);
    return cudaSuccess;
}

/* ---- devices, streams, events ---- */

const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorInvalidDevice ? "invalid device ordinal" : e ? "unknown error" : "no error";
}
cudaError_t cudaGetDeviceCount(int *count) {
    *count = DEVICES;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int) {
    *out = cudaDeviceProp{};
    strcpy(out->name, "emulated");
    out->multiProcessorCount = 1;
    out->totalGlobalMem = PD_MEMORY;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= DEVICES) return is(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() {
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
/* A stream is one byte, which tests/fakes/nccl.c sets while a kernel of its own hangs there: events after it do not happen. Streams
   stay, since events point at them. */
static bool hangs(cudaStream_t s) { return s && *(volatile char *)s; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int) { return (*out = (cudaStream_t)calloc(1, 1)) ? cudaSuccess : is(cudaErrorMemoryAllocation); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return is_written(stream) ? is(cudaErrorStreamCaptureUnsupported) : cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) { return (*out = (cudaEvent_t)calloc(1, sizeof **out)) ? cudaSuccess : is(cudaErrorMemoryAllocation); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    free(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    e->ms = now();
    e->stream = s;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return hangs(e->stream) ? is(cudaErrorNotReady) : cudaSuccess; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = (float)(to->ms - from->ms);
    return cudaSuccess;
}

/* ---- launches: a fiber goes on to the next thread when its own is through, so that a kernel without barriers needs one ---- */

enum { FIBERS = 1024, STACK = 64 << 10 };
static char *stacks[FIBERS];
static jmp_buf fibers[FIBERS], scheduler;
static unsigned fiber, threads_left, next_thread, thread_of[FIBERS];
static bool waits[FIBERS];
static void (*body)(void *);
static void *body_ctx;

static void run_fiber() {
    while (next_thread < blockDim.x) {
        threadIdx.x = thread_of[fiber] = next_thread++;
        body(body_ctx);
        threads_left--;
    }
    waits[fiber] = false;
    _longjmp(scheduler, 1);
}

void __syncthreads() {
    unsigned me = fiber;
    waits[me] = true;
    if (!_setjmp(fibers[me])) _longjmp(scheduler, 1);
    threadIdx.x = thread_of[me];
}

static void start_fiber(unsigned f) {
    static ucontext_t context, back;
    fiber = f;
    if (!stacks[f]) stacks[f] = (char *)malloc(STACK);
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[f];
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, run_fiber, 0);
    if (!_setjmp(scheduler)) swapcontext(&back, &context);
}

static void run_block() {
    unsigned started = 0;
    next_thread = 0;
    threads_left = blockDim.x;
    while (next_thread < blockDim.x) start_fiber(started++); /* each up to its first barrier */
    while (threads_left)
        for (unsigned f = 0; f < started; f++)
            if (waits[f]) {
                waits[f] = false;
                fiber = f;
                if (!_setjmp(scheduler)) _longjmp(fibers[f], 1);
            }
}

void pd_emulate_run(unsigned blocks, unsigned threads, void (*thread)(void *), void *ctx) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    body = thread;
    body_ctx = ctx;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) run_block();
}
