/* What pydist._C and pydist/_cuda.so know of each other. The library holds what CUDA's compiler made, the kernels, and
   the runtime (linked into it); _C opens it when the first device is asked for (cuda.c) and keeps everything else:
   memory, errors, devices. tests/emulator builds the same sources for the CPU. Functions that return int give CUDA's
   error, 0 for none. */
#ifndef PD_DEVICE_CUDA_LIBRARY_H
#define PD_DEVICE_CUDA_LIBRARY_H

#include "device/bad_index.h"

typedef struct pd_cuda_properties {
    char name[256];
    int major, minor, processors;
    size_t memory;
} pd_cuda_properties;

/* What _C lends to the library: for kernels, which return nothing. */
typedef struct pd_cuda_host {
    /* Memory for the launches that follow in this op, 256-byte aligned, beside the op's own scratch; NULL: refused
       already. */
    void *(*room)(size_t bytes);
    void (*refuse)(pd_status kind, const char *text); /* the op that runs fails with "<op>: text" */
} pd_cuda_host;

typedef struct pd_cuda_library {
    uint64_t layout;   /* PD_KERNELS_LAYOUT: of the table and the functions' numbers; another one is another build's */
    const char *built; /* "CUDA 13.0, sm_80 sm_90a" */
    const void *kernels;
    void (*start)(const pd_cuda_host *host);
    const char *(*text)(int error);
    int (*count)(int *devices);
    int (*properties)(int device, pd_cuda_properties *out);
    int (*use)(int device, void *stream); /* of this thread, from now on */
    int (*failed)(void);                  /* the error of the launches since, which is forgotten */
    bool (*bad_index)(pd_bad_index *out); /* whether a kernel has found one since, which is forgotten */
    int (*wait)(void);                    /* for all that the current device has been given */
    int (*memory)(size_t *left, size_t *total);
    int (*take)(void **out, size_t bytes);
    int (*give)(void *p);
    int (*pin)(void **out, size_t bytes); /* memory of the host */
    int (*unpin)(void *p);
    int (*copy)(void *to, const void *from, size_t bytes, void *stream); /* the pointers say which way */
    int (*stream_new)(void **out, int priority);
    int (*stream_free)(void *stream);
    int (*stream_wait)(void *stream);
    int (*stream_done)(void *stream, bool *out);
    int (*stream_after)(void *stream, void *event);
    int (*event_new)(void **out, bool timing);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_done)(void *event, bool *out);
    int (*event_between)(void *from, void *to, float *milliseconds);
    /* From begin to end the stream's work is written down and not done; the graph does it, any number of times. What
       this thread draws at random meanwhile adds `past`, [2] in the device's memory, to its key's seed and call. */
    int (*capture_begin)(void *stream, const uint64_t *past);
    int (*capture_end)(void *stream, void **graph);
    int (*capturing)(void *stream, bool *out);
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_free)(void *graph);
    void (*range_push)(const char *name); /* NVTX, for profilers */
    void (*range_pop)(void);
    void (*mark)(const char *name);
} pd_cuda_library;

/* The one symbol that the library exports. */
#define PD_CUDA_SYMBOL "pd_cuda_library_of_pydist"

#endif
