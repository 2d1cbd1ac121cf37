/* NVIDIA's libraries, opened when they are first needed: nothing of ours is linked against them.

   Tried in this order: the file that a flag names, the copy that this process has loaded already (two of them would not
   know of each other), the folders of pip's wheels (py/ hands over where packages named nvidia lie), what the system's
   loader finds, /usr/local/cuda. */
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

/* Folders that hold the wheels' ones, .../site-packages/nvidia; copied. */
void pd_nvidia_paths(const char *const *folders, int count);
/* [new] never given back. `given`: the flag's value; "none" asks for no library. PD_E_RUNTIME names the wheel and what
   was tried. */
pd_status pd_nvidia_open(const pd_nvidia *what, const char *given, const pd_dl_symbol *symbols, void **handle);

/* A library that serves by a handle for each device; where it does not, something of ours does. */
typedef struct pd_nvidia_server {
    pd_nvidia library;
    const char *instead; /* "our own products" */
    const pd_dl_symbol *symbols;
    int (**create)(void **handle);
    size_t (**get_version)(void); /* 10000 major + 100 minor + patch */
    atomic_bool tried, opened;
    bool told;
    void *handles[PD_CUDA_DEVICES];
    char version[32], why[PD_ERROR_TEXT];
} pd_nvidia_server;

/* Whether it is open; the first call opens it. */
bool pd_nvidia_ready(pd_nvidia_server *s, const char *given);
/* "13.1.0", or NULL and why it is not open. */
const char *pd_nvidia_version(pd_nvidia_server *s, const char *given, const char **reason);
/* The device's handle, or NULL, which a warning says once. Not for several threads at once. */
void *pd_nvidia_handle(pd_nvidia_server *s, const char *given, const pd_device *d);

#endif
