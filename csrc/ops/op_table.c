/* The register: descriptors in the order of ops.def, parsed once, and the ops that the engine asks for. */
#include <string.h>

#include "device/cuda.h"
#include "kernels/kernels.h"
#include "ops/ops.h"
#include "ops/parts.h"

#define PD_OP(name) extern const pd_op pd_op_##name;
#include "ops/ops.def"
#undef PD_OP

static const pd_op *const table[PD_OP_COUNT] = {
#define PD_OP(name) [PD_OP_##name] = &pd_op_##name,
#include "ops/ops.def"
#undef PD_OP
};

static const bool on_complex[PD_OP_COUNT] = {
#define PD_ON_COMPLEX(name) [PD_OP_##name] = true,
#include "ops/complex.def"
#undef PD_ON_COMPLEX
};

pd_def pd_defs[PD_OP_COUNT];

static pd_status add(pd_tensor *a, pd_tensor *b, pd_tensor **out) {
    struct { pd_scalar x, y, alpha; } attrs = {{.cat = -1}, {.cat = -1}, pd_number(1)};
    return pd_call2(PD_OP_add, a, b, &attrs, out);
}

static pd_status add_into(pd_tensor *a, pd_tensor *b) {
    struct { pd_scalar x, y, alpha; } attrs = {{.cat = -1}, {.cat = -1}, pd_number(1)};
    pd_tensor *in[2] = {a, b};
    bool mode = pd_grad_mode;
    pd_grad_mode = false;
    pd_status status = pd_apply_into(PD_DEF(add), in, 2, &attrs, a);
    pd_grad_mode = mode;
    return status;
}

static pd_status write_to(pd_tensor *to, pd_tensor *from) {
    pd_tensor *near = NULL, *in[2] = {to, from};
    if (from->storage->device != to->storage->device) {
        PD_TRY(pd_move(from, to->storage->device, PD_WAIT, &near));
        in[1] = near;
    }
    pd_status status = pd_apply_into(PD_DEF(copy), in, 2, NULL, to);
    pd_tensor_release(near);
    return status;
}

static pd_status copy_into(pd_tensor *to, pd_tensor *from) {
    bool mode = pd_grad_mode, plain = pd_parts_are_plain;
    pd_grad_mode = false;
    pd_parts_are_plain = true;
    pd_status status = write_to(to, from);
    pd_parts_are_plain = plain;
    pd_grad_mode = mode;
    return status;
}

static pd_status cast_to(pd_tensor *t, pd_dtype dtype, pd_tensor *destination, pd_tensor **out) {
    pd_cast_attrs attrs = {dtype};
    return pd_apply_to(PD_DEF(cast), &t, 1, &attrs, destination, out, NULL);
}
static pd_status cast(pd_tensor *t, pd_dtype dtype, pd_tensor **out) { return cast_to(t, dtype, NULL, out); }

static pd_status clone(pd_tensor *t, pd_tensor **out) { return pd_call1(PD_OP_clone, t, NULL, out); }
static pd_status ones_like(pd_tensor *t, pd_tensor **out) { return pd_full_like(t, 1, out); }
static pd_status zeros_like(pd_tensor *t, pd_tensor **out) { return pd_full_like(t, 0, out); }

static pd_status strided(pd_tensor *t, const pd_tensor *like, pd_tensor **out) {
    if (t->dtype != like->dtype) return pd_parts_strided(t, like, out);
    pd_strided_attrs a = {.size = {.n = like->ndim}, .stride = {.n = like->ndim}, .offset = like->offset};
    memcpy(a.size.v, like->size, sizeof(int64_t) * (size_t)like->ndim);
    memcpy(a.stride.v, like->stride, sizeof(int64_t) * (size_t)like->ndim);
    return pd_call1(PD_OP_as_strided, t, &a, out);
}

/* A view of t with the geometry of `like`, which is a view of the same memory, of the same dtype or of complex numbers'
   parts. */
static pd_status as_strided(pd_tensor *t, const pd_tensor *like, pd_tensor **out) {
    const bool plain = pd_parts_are_plain;
    pd_parts_are_plain = true; /* this is about memory */
    pd_status status = strided(t, like, out);
    pd_parts_are_plain = plain;
    return status;
}

pd_status pd_ops_init(void) {
    for (int i = 0; i < PD_OP_COUNT; i++) {
        PD_TRY(pd_def_init(&pd_defs[i], table[i]));
        pd_defs[i].on_complex = on_complex[i];
    }
    pd_cuda_expect(PD_CUDA_LAYOUT, sizeof(pd_kernels));
    pd_engine = (pd_engine_ops){.add = add,
                                .add_into = add_into,
                                .sum_to = pd_sum_to,
                                .cast = cast,
                                .cast_to = cast_to,
                                .copy_into = copy_into,
                                .write = write_to,
                                .clone = clone,
                                .ones_like = ones_like,
                                .zeros_like = zeros_like,
                                .as_strided = as_strided,
                                .move = pd_move};
    return PD_OK;
}
