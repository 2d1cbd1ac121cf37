/* The device "meta": tensors with shapes, strides and dtypes, but no memory. Ops stop after infer (autograd/apply.c).
   Gradients and factories that call kernels directly reach a table whose kernels do nothing. */
#include "kernels/kernels.h"

typedef size_t (*entry)(void); /* stands for any kernel; 1, so that all bytes are found valid */
static size_t nothing(void) { return 1; }

static const entry table[] = {
#define PD_KERNEL(devices, result, name, ...) nothing,
#include "kernels/kernels.def"
#undef PD_KERNEL
};
_Static_assert(sizeof table == sizeof(pd_kernels), "kernels.def: one entry for each member");

static pd_status alloc(const pd_device *d, size_t bytes, void **out) {
    (void)d, (void)bytes;
    *out = NULL;
    return PD_OK;
}
static void give_back(const pd_device *d, void *p, size_t bytes) { (void)d, (void)p, (void)bytes; }

static pd_status scratch(const pd_device *d, size_t bytes, const char *op, void **out) {
    (void)op;
    return alloc(d, bytes, out);
}

pd_status pd_meta_refuse(const char *op) {
    return pd_fail(PD_E_NOTIMPL,
                   "%s: Cannot copy out of meta tensor; no data! The tensor is on meta, where tensors have shapes only "
                   "(expected a tensor on another device; for modules: to_empty)",
                   op);
}

static pd_status copy(const pd_device *d, const char *op, pd_transfer way, void *to, const void *from, size_t bytes,
                      pd_copy_wait wait) {
    (void)d, (void)to, (void)from, (void)bytes, (void)wait;
    return way == PD_TO_HOST ? pd_meta_refuse(op) : PD_OK;
}

const pd_device pd_device_meta = {.kind = PD_DEVICE_META,
                                  .index = PD_META_INDEX,
                                  .name = "meta",
                                  .alloc = alloc,
                                  .free = give_back,
                                  .kernels = table,
                                  .scratch = scratch,
                                  .copy = copy};
