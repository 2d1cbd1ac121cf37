/* The interface between pydist._C and pydist/_cuda.so. The library holds the kernels, compiled by CUDA's compiler, and
   CUDA's runtime. _C opens it when the first device is asked for (cuda.c), and has all the rest: memory, errors,
   devices. tests/emulator builds the same sources for the CPU. Functions that return int return CUDA's error; 0:
   none. */
#ifndef PD_DEVICE_CUDA_LIBRARY_H
#define PD_DEVICE_CUDA_LIBRARY_H

#include "device/bad_index.h"

typedef struct pd_cuda_properties {
    char name[256];
    int major, minor, processors;
    size_t memory;
} pd_cuda_properties;

/* Functions of _C that kernels of the library call. */
typedef struct pd_cuda_host {
    /* Memory for the following launches of this op, aligned to 256 bytes, besides the op's scratch. NULL: there is
       none, and the op has failed. */
    void *(*room)(size_t bytes);
    void (*refuse)(pd_status kind, const char *text); /* makes the running op fail with "<op>: text" */
} pd_cuda_host;

typedef struct pd_cuda_library {
    uint64_t layout;   /* PD_CUDA_LAYOUT, which differs if the library is of another build */
    const char *built; /* "CUDA 13.0, sm_80 sm_90a" */
    const void *kernels;
    void (*start)(const pd_cuda_host *host);
    const char *(*text)(int error);
    int (*count)(int *devices);
    int (*properties)(int device, pd_cuda_properties *out);
    void (*versions)(int *driver, int *own); /* of CUDA, 13010 for 13.1; driver 0: there is none */
    int (*fits)(bool *out);                  /* whether the library has kernels for the current device */
    int (*use)(int device, void *stream); /* for this thread, from now on */
    int (*at)(int device, int *was);      /* sets the device alone; the caller sets it back to *was in the same way */
    int (*failed)(void);                  /* returns and clears the error of the launches so far */
    bool (*bad_index)(pd_bad_index *out); /* returns and clears what a kernel has found; false: nothing */
    void (*settle)(void);                 /* launches what waits for the next launch */
    int (*wait)(void);                    /* until the current device has done all its work; breaks its captures */
    int (*memory)(size_t *left, size_t *total);
    int (*take)(void **out, size_t bytes);
    int (*give)(void *p);
    int (*pin)(void **out, size_t bytes); /* allocates pinned memory */
    int (*unpin)(void *p);
    int (*copy)(void *to, const void *from, size_t bytes, void *stream); /* the direction follows from the pointers */
    int (*stream_new)(void **out, int priority);                         /* never destroyed */
    int (*stream_wait)(void *stream);
    int (*stream_done)(void *stream, bool *out);
    int (*stream_after)(void *stream, void *event);
    int (*event_new)(void **out, bool timing);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_done)(void *event, bool *out);
    int (*event_between)(void *from, void *to, float *milliseconds);
    /* Between begin and end the stream's work is captured and not run; the graph can run it any number of times. Random
       draws of this thread in between add `past`, [2] in the device's memory, to their key's seed and call. */
    int (*capture_begin)(void *stream, const uint64_t *past);
    int (*capture_end)(void *stream, void **graph);
    int (*capturing)(void *stream, bool *out);
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_free)(void *graph);
    void (*range_push)(const char *name); /* NVTX, for profilers */
    void (*range_pop)(void);
    void (*mark)(const char *name);
} pd_cuda_library;

/* Differs between libraries with other members, here or in the table of kernels. */
#define PD_CUDA_LAYOUT (PD_KERNELS_LAYOUT + UINT64_C(10000000000000) * sizeof(pd_cuda_library))

/* The one symbol that the library exports. */
#define PD_CUDA_SYMBOL "pd_cuda_library_of_pydist"

#endif
