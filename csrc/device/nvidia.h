/* NVIDIA's libraries, opened when they are first needed: nothing of ours is linked against them.

   Tried in this order: the file that a flag names, the copy that this process has loaded already (two of them would not
   know of each other), the folders of pip's wheels (py/ hands over where packages named nvidia lie), what the system's
   loader finds, /usr/local/cuda. */
#ifndef PD_DEVICE_NVIDIA_H
#define PD_DEVICE_NVIDIA_H

#include "base/dl.h"

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

#endif
