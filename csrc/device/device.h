/* Where memory lives: one table per kind of device. The CPU is the embedded default. */
#ifndef PD_DEVICE_DEVICE_H
#define PD_DEVICE_DEVICE_H

#include "base/status.h"

typedef enum pd_device_kind { PD_DEVICE_CPU, PD_DEVICE_CUDA, PD_DEVICE_KINDS } pd_device_kind;

typedef struct pd_device {
    pd_device_kind kind;
    int index;                 /* -1 for the CPU */
    const char *name;          /* "cpu" */
    pd_status (*alloc)(const struct pd_device *d, size_t bytes, void **out); /* aligned to 64 */
    void (*free)(const struct pd_device *d, void *p, size_t bytes);
} pd_device;

extern const pd_device pd_device_cpu;

int64_t pd_device_cpu_bytes(void);  /* that CPU tensors hold now */
int64_t pd_device_cpu_cached(void); /* bytes of freed blocks that wait for the next tensor (PYDIST_CACHE) */
void pd_device_cpu_trim(void);      /* gives them back to the system */

#endif
