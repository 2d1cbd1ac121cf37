/* oneDNN's library, opened at run time, with its functions in a table; and the cache of primitives.

   A plan is what one call of a kernel does: up to four steps (a primitive each, reorders and the main one) over
   buffers, which are the caller's pointers or pieces of the caller's scratch. A table of limited size keeps plans under
   a key of integers that says everything about the call, including the number of threads. All threads share a plan.
   What a running call needs for itself (stream, memory objects) is a `set`. Each plan keeps some sets, since threads
   that run it at the same time need one each. */
#ifndef PD_KERNELS_ONEDNN_LIB_H
#define PD_KERNELS_ONEDNN_LIB_H

#include <dnnl.h>

#include "base/status.h"
#include "kernels/kernels.h"

#define PD_DNN_FUNCTIONS(M)                                                                                       \
    M(version)                                                                                                    \
    M(get_effective_cpu_isa) M(set_primitive_cache_capacity) M(engine_create) M(stream_create) M(stream_destroy)  \
        M(memory_create) M(memory_destroy) M(memory_set_data_handle) M(memory_desc_create_with_strides)           \
            M(memory_desc_create_with_tag) M(memory_desc_destroy) M(memory_desc_equal) M(memory_desc_get_size)    \
                M(primitive_attr_create) M(primitive_attr_destroy) M(primitive_attr_set_scratchpad_mode)          \
                    M(primitive_attr_set_post_ops) M(post_ops_create) M(post_ops_destroy) M(post_ops_append_sum)  \
                        M(post_ops_append_eltwise) M(primitive_desc_destroy) M(primitive_desc_query_md)           \
                            M(primitive_desc_query) M(primitive_create) M(primitive_destroy) M(primitive_execute) \
                                M(primitive_get_primitive_desc) M(reorder_primitive_desc_create)                  \
                                    M(matmul_primitive_desc_create) M(convolution_forward_primitive_desc_create)  \
                                        M(convolution_backward_data_primitive_desc_create)                        \
                                            M(convolution_backward_weights_primitive_desc_create)

typedef struct pd_dnn_table {
#define FUNCTION(name) __typeof__(dnnl_##name) *name;
    PD_DNN_FUNCTIONS(FUNCTION)
#undef FUNCTION
} pd_dnn_table;
extern pd_dnn_table pd_dnn;
extern dnnl_engine_t pd_dnn_engine;

bool pd_dnn_serves(pd_dtype t);        /* whether the library computes in this type natively on this processor */
bool pd_dnn_has_avx512(void);
dnnl_data_type_t pd_dnn_type(pd_dtype t);

#define PD_DNN_STEPS 4
#define PD_DNN_SPARES 16
#define PD_DNN_ARGS 6
#define PD_DNN_BUFFERS 10
#define PD_DNN_USER 5 /* buffers below this number are the caller's pointers, others are pieces of scratch */
#define PD_DNN_KEY 28

typedef struct pd_dnn_key { int64_t v[PD_DNN_KEY]; } pd_dnn_key; /* unused ones 0 */

typedef struct pd_dnn_step {
    dnnl_primitive_t primitive;
    int nargs, arg[PD_DNN_ARGS], buffer[PD_DNN_ARGS];
    const_dnnl_memory_desc_t md[PD_DNN_ARGS]; /* [borrowed from the primitive] */
} pd_dnn_step;

typedef struct pd_dnn_set {
    dnnl_stream_t stream;
    dnnl_exec_arg_t args[PD_DNN_STEPS][PD_DNN_ARGS];
} pd_dnn_set;

typedef struct pd_dnn_plan {
    pd_dnn_key key;
    uint64_t hash, used; /* used: time of the last use, for eviction */
    int refs;
    int nsteps;          /* 0: the library cannot do it */
    pd_dnn_step steps[PD_DNN_STEPS];
    size_t temp[PD_DNN_BUFFERS]; /* bytes of each piece of scratch */
    size_t scratch;              /* bytes of all pieces */
    size_t result;               /* bytes of the result in the library's own layout (weight gradients) */
    pd_dnn_set *spare[PD_DNN_SPARES];
} pd_dnn_plan;

/* Fills nsteps, steps and temp of a zeroed plan. Any dnnl_status_t but success: the library cannot do it. */
typedef dnnl_status_t (*pd_dnn_build)(const void *what, int threads, pd_dnn_plan *p);

/* [new] the plan for `key`, which `build` makes if there is none; NULL: no memory. */
pd_dnn_plan *pd_dnn_plan_get(const pd_dnn_key *key, pd_dnn_build build, const void *what, int threads);
void pd_dnn_plan_release(pd_dnn_plan *p);
/* Runs the steps. user[i] is buffer i; scratch holds the other buffers. */
pd_status pd_dnn_plan_run(pd_dnn_plan *p, void *const *user, void *scratch, int threads);

/* For builds: appends a step. The primitive describes its arguments; a scratchpad is added if it needs one. Owns pd
   from now on. Refuses the library's reference implementations, which are a hundred times slower than our kernels. */
dnnl_status_t pd_dnn_add(pd_dnn_plan *p, dnnl_primitive_desc_t pd, int nargs, const int *arg, const int *buffer);
/* Appends a reorder from buffer `from`, of layout a, to buffer `to`, of layout b. */
dnnl_status_t pd_dnn_add_reorder(pd_dnn_plan *p, const_dnnl_memory_desc_t a, int from, const_dnnl_memory_desc_t b,
                                 int to);
dnnl_status_t pd_dnn_attr(dnnl_primitive_attr_t *attr, bool add, bool relu); /* [new] user scratchpad, post-ops */

/* columns.c: computes a weight gradient by a matrix product, if that is faster. */
bool pd_dnn_columns_serve(const pd_conv *c);
size_t pd_dnn_columns_scratch(const pd_conv *c);
pd_status pd_dnn_columns_run(const pd_conv *c, const void *gy, const void *x, void *gw, void *scratch);

#define PD_DNN_DO(call)                                      \
    do {                                                     \
        dnnl_status_t did_ = (call);                         \
        if (did_ != dnnl_success) { status = did_; goto done; } \
    } while (0)

#endif
