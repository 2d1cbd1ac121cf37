/* Two devices of PD_MEMORY bytes each, in one arena; threads of a block as fibers. */
#include "count.h"
#include "cuda_runtime.h"

#include <map>
#include <mutex>
#include <unistd.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;
char pd_emulated_lanes[1024][32];

/* ---- the calling thread, and one thread at a time ---- */

enum { DEVICES = 2, PIECES = 4096 };
static thread_local int current;
static thread_local cudaError_t last;
static std::recursive_mutex use;
typedef std::lock_guard<std::recursive_mutex> one_thread;

/* Not ready is kept, too: whether CUDA does so depends on its version. */
static cudaError_t is(cudaError_t e) {
    if (e) last = e;
    return e;
}
cudaError_t cudaGetLastError() {
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError() { return last; }
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation                ? "out of memory"
           : e == cudaErrorInvalidDevice                 ? "invalid device ordinal"
           : e == cudaErrorInvalidResourceHandle         ? "invalid resource handle"
           : e == cudaErrorCapturedEvent                 ? "operation not permitted on an event last recorded in a capturing stream"
           : e == cudaErrorStreamCaptureUnsupported      ? "operation not permitted when stream is capturing"
           : e == cudaErrorStreamCaptureInvalidated      ? "operation failed due to a previous error during capture"
           : e == cudaErrorStreamCaptureUnjoined         ? "capturing stream has unjoined work"
           : e == cudaErrorStreamCaptureIsolation        ? "dependency created on uncaptured work in another stream"
           : e                                           ? "unknown error"
                                                         : "no error";
}

/* ---- time: work is done when it is given, yet the device can be told to be busy ---- */

static double busy_until;
static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
static double through() { /* when the work so far will be */
    one_thread only(use);
    return busy_until > now() ? busy_until : now();
}
static void wait_until(double ms) {
    double left = ms - now();
    if (left > 0) usleep((unsigned)(left * 1e3) + 1);
}
/* For tests: what is done next seems to be done only after this time, on all devices. */
extern "C" __attribute__((visibility("default"))) void pd_emulated_wait(double ms) {
    one_thread only(use);
    busy_until = now() + ms;
}

/* ---- captures: lists of work, and who comes after whom ---- */

typedef std::map<cudaStream_t, size_t> counts; /* how much of each stream's work comes before */
struct emulated_graph { std::vector<std::function<void()>> work; };
struct capture {
    cudaStream_t origin;
    bool broken;
    emulated_graph *graph;
    std::map<cudaStream_t, counts> streams; /* those that take part */
};
/* The first byte is set by tests/fakes/nccl.c while a kernel of its own hangs there: events after it do not happen. Streams stay, since
   events point at them. */
struct emulated_stream { char hangs; int device; };
struct emulated_event {
    double ms;
    cudaStream_t stream;
    int device;
    uint64_t captured; /* the number of the capture that it was recorded in */
    counts before;
};
static std::map<uint64_t, capture> captures;
static uint64_t captures_made;

static int device_of(cudaStream_t s) { return s ? s->device : current; }
static capture *capture_of(cudaStream_t s) {
    if (s)
        for (auto &c : captures)
            if (c.second.streams.count(s)) return &c.second;
    return nullptr;
}
static cudaError_t broken(capture *c, cudaError_t e) {
    c->broken = true;
    return is(e);
}
/* What waits for all work of a device must not be called meanwhile. */
static cudaError_t breaks_captures(int device) {
    bool any = false;
    for (auto &c : captures)
        if (c.second.origin->device == device) c.second.broken = any = true;
    return any ? is(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

/* ---- memory: two devices of PD_MEMORY bytes each, in one arena ---- */

static const bool hollow = pd_is_hollow();
static const size_t PD_MEMORY = hollow ? (size_t)140 << 30 : (size_t)256 << 20, FILLED = hollow ? 0 : (size_t)256 << 10;
static char *arena;
static struct { char *p; size_t bytes; int device; } pieces[PIECES];
static size_t used[DEVICES];

static void open_arena(bool open) {
    static int opened; /* by as many threads */
    one_thread only(use);
    if (arena && (open ? !opened : opened == 1)) mprotect(arena, DEVICES * PD_MEMORY, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    opened += open ? 1 : -1;
}
static bool in_arena(const void *p) { return arena && (char *)p >= arena && (char *)p < arena + DEVICES * PD_MEMORY; }

void pd_emulated_arena(const char **begin, size_t *bytes) {
    *begin = arena;
    *bytes = DEVICES * PD_MEMORY;
}
cudaError_t cudaMalloc(void **out, size_t bytes) {
    one_thread only(use);
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
    wait_until(through());
    one_thread only(use);
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
    one_thread only(use);
    *left = PD_MEMORY - used[current];
    *total = PD_MEMORY;
    return cudaSuccess;
}
static std::map<char *, size_t> pinned;
static bool is_pinned(const void *p) {
    one_thread only(use);
    auto after = pinned.upper_bound((char *)p);
    return after != pinned.begin() && (char *)p < (--after)->first + after->second;
}
cudaError_t cudaMallocHost(void **out, size_t bytes) {
    one_thread only(use);
    if (!(*out = malloc(bytes))) return is(cudaErrorMemoryAllocation);
    pinned[(char *)*out] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) {
    one_thread only(use);
    pinned.erase((char *)p);
    free(p);
    return cudaSuccess;
}

/* ---- work ---- */

static void do_now(const std::function<void()> &work) {
    if (hollow) return;
    open_arena(true);
    work();
    open_arena(false);
}
static void write_down(capture *c, cudaStream_t stream, std::function<void()> work) {
    if (c->broken) is(cudaErrorStreamCaptureInvalidated);
    else c->graph->work.push_back(work), c->streams[stream][stream]++;
}
void pd_emulate_work(cudaStream_t stream, std::function<void()> work) {
    {
        one_thread only(use);
        capture *c = capture_of(stream);
        if (c) return write_down(c, stream, work);
    }
    do_now(work); /* it may wait for other threads */
}
void pd_emulate_launch(cudaStream_t stream, std::function<void()> work) {
    auto alone = [=] {
        one_thread only(use);
        work();
    };
    pd_count_launch();
    if (device_of(stream) == current) pd_emulate_work(stream, alone);
    else is(cudaErrorInvalidResourceHandle);
}
/* The same for tests/fakes. */
extern "C" __attribute__((visibility("default"))) void pd_emulate_call(void *stream, void (*call)(void *), void *ctx) {
    pd_emulate_work((cudaStream_t)stream, [=] { call(ctx); });
}
/* To memory of the host that is not pinned CUDA copies before it returns. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, cudaStream_t stream) {
    if (in_arena(from) && !in_arena(to) && !is_pinned(to)) wait_until(through());
    if (hollow && !in_arena(to)) memset(to, 0, bytes);
    if (pd_counts()) pd_count({"memcpy", (double)bytes, (double)bytes, 0, 1});
    pd_emulate_work(stream, [=] { memmove(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream) {
    if (pd_counts()) pd_count({"memset", 0, (double)bytes, 0, 1});
    pd_emulate_work(stream, [=] { memset(p, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    one_thread only(use);
    if (!stream || capture_of(stream)) return is(cudaErrorStreamCaptureUnsupported);
    captures[++captures_made] = capture{stream, false, new emulated_graph, {{stream, {}}}};
    return cudaSuccess;
}
/* Whether all work of all its streams comes before what its first stream would do next. */
static bool joined(const capture &c) {
    const counts &seen = c.streams.at(c.origin);
    for (auto &s : c.streams) {
        auto own = s.second.find(s.first), known = seen.find(s.first);
        if (own != s.second.end() && (known == seen.end() || known->second < own->second)) return false;
    }
    return true;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    one_thread only(use);
    *out = nullptr;
    for (auto at = captures.begin(); at != captures.end(); ++at) {
        capture &c = at->second;
        if (c.origin != stream) continue;
        cudaError_t error = c.broken ? cudaErrorStreamCaptureInvalidated : joined(c) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
        if (error) delete c.graph;
        else *out = c.graph;
        captures.erase(at);
        return is(error);
    }
    return is(cudaErrorStreamCaptureUnmatched);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *out) {
    one_thread only(use);
    capture *c = capture_of(stream);
    *out = !c ? cudaStreamCaptureStatusNone : c->broken ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
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
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    for (auto &work : graph->work) pd_emulate_work(stream, work);
    return cudaSuccess;
}

/* ---- devices, streams, events ---- */

/* EMULATED_DRIVER: the driver's CUDA (12040; 0: no driver); EMULATED_UNBUILT=1: no kernels are built for the devices. */
static int set_to(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }
cudaError_t cudaDriverGetVersion(int *out) {
    *out = set_to("EMULATED_DRIVER", 13000);
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *out) {
    *out = 13000;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *) {
    return set_to("EMULATED_UNBUILT", 0) ? is(cudaErrorNoKernelImageForDevice) : cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
    *count = DEVICES;
    return set_to("EMULATED_DRIVER", 13000) < 13000 ? is(cudaErrorInsufficientDriver) : cudaSuccess;
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
cudaError_t cudaGetDevice(int *out) {
    *out = current;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    {
        one_thread only(use);
        cudaError_t error = breaks_captures(current);
        if (error) return error;
    }
    wait_until(through());
    return cudaSuccess;
}

static bool hangs(cudaStream_t s) { return s && *(volatile char *)s; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int) {
    *out = (cudaStream_t)calloc(1, sizeof **out);
    if (!*out) return is(cudaErrorMemoryAllocation);
    (*out)->device = current;
    return cudaSuccess;
}
/* Nobody may ask whether a stream that is captured is through. */
static cudaError_t ask(cudaStream_t stream) {
    one_thread only(use);
    capture *c = capture_of(stream);
    return c ? broken(c, cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error = ask(stream);
    if (!error) wait_until(through());
    return error;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaError_t error = ask(stream);
    return error ? error : through() > now() ? is(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
    *out = new emulated_event{0, nullptr, current, 0, {}};
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    one_thread only(use);
    if (e->device != device_of(s)) return is(cudaErrorInvalidResourceHandle);
    e->ms = through();
    e->stream = s;
    e->captured = 0;
    for (auto &c : captures) {
        if (!c.second.streams.count(s)) continue;
        if (c.second.broken) return is(cudaErrorStreamCaptureInvalidated);
        e->captured = c.first;
        e->before = c.second.streams[s];
    }
    return cudaSuccess;
}
/* The stream joins the event's capture. */
static cudaError_t join(cudaStream_t s, cudaEvent_t e) {
    auto at = captures.find(e->captured);
    capture *own = capture_of(s);
    if (at == captures.end()) return own ? broken(own, cudaErrorStreamCaptureIsolation) : is(cudaErrorCapturedEvent);
    capture *c = &at->second;
    if (c->broken) return is(cudaErrorStreamCaptureInvalidated);
    if (!s || (own && own != c)) return broken(c, s ? cudaErrorStreamCaptureMerge : cudaErrorStreamCaptureUnsupported);
    counts &seen = c->streams[s];
    for (auto &before : e->before)
        if (seen[before.first] < before.second) seen[before.first] = before.second;
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    one_thread only(use);
    if (e->captured) return join(s, e);
    capture *own = capture_of(s);
    return own && e->ms ? broken(own, cudaErrorStreamCaptureIsolation) : cudaSuccess;
}
/* Nobody may ask whether work that was written down is done, either. */
static cudaError_t ask(cudaEvent_t e) {
    one_thread only(use);
    if (!e->captured) return cudaSuccess;
    auto at = captures.find(e->captured);
    if (at != captures.end()) at->second.broken = true;
    return is(cudaErrorCapturedEvent);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    cudaError_t error = ask(e);
    if (!error) wait_until(e->ms);
    return error;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    cudaError_t error = ask(e);
    return error ? error : hangs(e->stream) || e->ms > now() ? is(cudaErrorNotReady) : cudaSuccess;
}
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

/* For tests: blocks run from the last to the first, so that another one is the last to end. */
static bool backwards;
extern "C" __attribute__((visibility("default"))) void pd_emulated_backwards(int on) { backwards = on; }

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
    for (unsigned i = 0; i < blocks; i++) {
        blockIdx.x = backwards ? blocks - 1 - i : i;
        run_block();
    }
}
