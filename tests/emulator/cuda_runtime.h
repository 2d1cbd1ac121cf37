/* For tests: what csrc/cuda needs of CUDA's runtime, on the CPU. A launch runs its blocks one after the other; the threads of a block
   take turns, each going on until it comes to a barrier or a shuffle. The device's memory can be touched during launches and copies
   only, so that code of the host that reads it dies, as it would with a GPU. Everything is done when the call returns, but in a
   stream that is captured: that is written down, and done when the graph is launched. What captures forbid is refused by CUDA's own
   numbers, and ends them. Device and last error belong to the thread, streams and events to their device. */
#ifndef PD_EMULATOR_CUDA_RUNTIME_H
#define PD_EMULATOR_CUDA_RUNTIME_H

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include <functional>

#define __host__
#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 { unsigned x, y, z; };
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

typedef enum cudaError_t {
    cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorInsufficientDriver = 35, cudaErrorInvalidDeviceFunction = 98,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209, cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600,
    cudaErrorStreamCaptureUnsupported = 900, cudaErrorStreamCaptureInvalidated, cudaErrorStreamCaptureMerge, cudaErrorStreamCaptureUnmatched,
    cudaErrorStreamCaptureUnjoined, cudaErrorStreamCaptureIsolation, cudaErrorCapturedEvent = 907, cudaErrorUnknown = 999,
} cudaError_t;
typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
enum { cudaMemcpyDefault = 4, cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2 };
typedef struct emulated_graph *cudaGraph_t, *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive, cudaStreamCaptureStatusInvalidated };
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
    size_t totalGlobalMem;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int *out);
cudaError_t cudaRuntimeGetVersion(int *out);
struct cudaFuncAttributes {};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *out);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaMemGetInfo(size_t *left, size_t *total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream);
template <class T> static cudaError_t cudaGetSymbolAddress(void **out, const T &symbol) { /* of __device__ variables */
    *out = (void *)&symbol;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);

/* Work of a stream that touches the device's memory: done now, or written down. */
void pd_emulate_work(cudaStream_t stream, std::function<void()> work);
/* The same for a launch: the stream has to be the current device's, else it fails. */
void pd_emulate_launch(cudaStream_t stream, std::function<void()> work);
/* Runs thread(ctx) for each thread of each block. */
void pd_emulate_run(unsigned blocks, unsigned threads, void (*thread)(void *ctx), void *ctx);
template <class F> static void pd_emulate(unsigned blocks, unsigned threads, cudaStream_t stream, F f) {
    pd_emulate_launch(stream, [=] { pd_emulate_run(blocks, threads, [](void *ctx) { (*(const F *)ctx)(); }, (void *)&f); });
}

/* For csrc/cuda/later.cu: the launch of the call under way waits; begins and ends; is part of the call under way. */
void pd_count_later();
void pd_count_waiting(bool begins);
void pd_count_joined();

void __syncthreads();
extern char pd_emulated_lanes[1024][32]; /* what each thread shows to the others */
template <class T> static T __shfl_xor_sync(unsigned, T v, int d) {
    unsigned me = threadIdx.x;
    memcpy(pd_emulated_lanes[me], &v, sizeof v);
    __syncthreads();
    memcpy(&v, pd_emulated_lanes[me ^ (unsigned)d], sizeof v);
    __syncthreads();
    return v;
}
static inline unsigned __ballot_sync(unsigned, bool of) {
    unsigned me = threadIdx.x, all = 0;
    pd_emulated_lanes[me][0] = of;
    __syncthreads();
    for (unsigned lane = 0; lane < 32; lane++) all |= (unsigned)pd_emulated_lanes[me / 32 * 32 + lane][0] << lane;
    __syncthreads();
    return all;
}
static inline unsigned __popc(unsigned x) { return (unsigned)__builtin_popcount(x); }

/* What warps do with 16-bit matrices (csrc/cuda/mma.h says who holds what); as with shuffles the whole block takes part. */
template <class F> static void pd_emulated_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, F up) {
    struct shown { uint32_t a[4], b[2]; } own = {{a[0], a[1], a[2], a[3]}, {b0, b1}}, of[32];
    unsigned me = threadIdx.x, lane = me % 32;
    memcpy(pd_emulated_lanes[me], &own, sizeof own);
    __syncthreads();
    for (unsigned l = 0; l < 32; l++) memcpy(&of[l], pd_emulated_lanes[me - lane + l], sizeof own);
    __syncthreads();
    for (int i = 0; i < 4; i++) {
        int row = (int)lane / 4 + i / 2 * 8, column = (int)lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            uint32_t x = of[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], y = of[column * 4 + k % 8 / 2].b[k / 8];
            c[i] += up((uint16_t)(x >> k % 2 * 16)) * up((uint16_t)(y >> k % 2 * 16));
        }
    }
}
static inline void pd_emulated_matrices(uint32_t (&r)[4], const void *row, bool turned) {
    unsigned me = threadIdx.x, lane = me % 32, g = lane / 4, t = lane % 4;
    memcpy(pd_emulated_lanes[me], &row, sizeof row);
    __syncthreads();
    for (unsigned m = 0; m < 4; m++) {
        uint32_t half[2];
        for (unsigned k = 0; k < 2; k++) {
            const uint16_t *from;
            memcpy(&from, pd_emulated_lanes[me - lane + 8 * m + (turned ? 2 * t + k : g)], sizeof from);
            half[k] = from[turned ? g : 2 * t + k];
        }
        r[m] = half[0] | half[1] << 16;
    }
    __syncthreads();
}

static inline unsigned atomicCAS(unsigned *p, unsigned old, unsigned value) {
    unsigned was = *p;
    if (was == old) *p = value;
    return was;
}
static inline unsigned atomicAdd(unsigned *p, unsigned value) {
    unsigned was = *p;
    *p = was + value;
    return was;
}
static inline unsigned atomicInc(unsigned *p, unsigned most) {
    unsigned was = *p;
    *p = was >= most ? 0 : was + 1;
    return was;
}
static inline void __threadfence() {}
static inline void __threadfence_system() {}

#endif
