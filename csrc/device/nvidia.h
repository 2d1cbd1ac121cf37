/* NVIDIA's libraries, opened when they are first needed: nothing of ours is linked against them.

   They are tried in this order: the file that a flag names; the copy that this process has loaded already, since two
   copies would not know of each other; pip's wheels, in the folders that py/ gives; the system's loader;
   /usr/local/cuda. */
#ifndef PD_DEVICE_NVIDIA_H
#define PD_DEVICE_NVIDIA_H

#include <stdatomic.h>

#include "base/dl.h"
#include "device/cuda.h"

typedef struct pd_nvidia {
    const char *name;     /* "cuBLASLt" */
    const char *soname;   /* "libcublasLt.so.13" */
    const char *folder;   /* of the wheel, below nvidia/: "cu13/lib" */
    const char *wheel;    /* what to install: "nvidia-cublas" */
} pd_nvidia;

/* Sets the folders of wheels, such as .../site-packages/nvidia. They are copied. */
void pd_nvidia_paths(const char *const *folders, int count);
/* Opens a library for good. `given`: the flag's value; "none": no library. PD_E_RUNTIME names the wheel and what was
   tried. */
pd_status pd_nvidia_open(const pd_nvidia *what, const char *given, const pd_dl_symbol *symbols, void **handle);

/* A library that is used by a handle for each device. If it is not there, code of ours does its work. */
typedef struct pd_nvidia_server {
    pd_nvidia library;
    int major;           /* the version that its soname stands for */
    const char *instead; /* "our own products" */
    const pd_dl_symbol *symbols;
    int (**create)(void **handle);
    size_t (**get_version)(void); /* 10000 major + 100 minor + patch */
    atomic_bool tried, opened;
    bool told;
    void *handles[PD_CUDA_DEVICES];
    char version[32], why[PD_ERROR_TEXT];
} pd_nvidia_server;

/* Whether the library is open; the first call opens it. */
bool pd_nvidia_ready(pd_nvidia_server *s, const char *given);
/* "13.1.0"; or NULL, and *reason: why it is not open. */
const char *pd_nvidia_version(pd_nvidia_server *s, const char *given, const char **reason);
/* The device's handle, or NULL, of which one warning tells. Only one thread at a time may call this. */
void *pd_nvidia_handle(pd_nvidia_server *s, const char *given, const pd_device *d);

#endif
