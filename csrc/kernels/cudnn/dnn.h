/* Our own declarations of what we use of cuDNN's graph API, which is opened at run time. Values are those of
   cudnn_graph.h of cuDNN 9; tests/engine/test_cuda_libraries.py compares them if the header is there. */
#ifndef PD_KERNELS_CUDNN_DNN_H
#define PD_KERNELS_CUDNN_DNN_H

#include <stddef.h>
#include <stdint.h>

enum { DNN_FLOAT = 0, DNN_DOUBLE = 1, DNN_HALF = 2, DNN_BFLOAT16 = 9 };  /* cudnnDataType_t */
enum { DNN_CROSS_CORRELATION = 1, DNN_HEUR_FALLBACK = 2, DNN_HEUR_A = 3 };
enum {
    DNN_NOTE_TENSOR_CORE = 0,
    DNN_NOTE_DOWN_CONVERT = 1,
    DNN_NOTE_REDUCED_PRECISION = 2,
    DNN_NOTE_NONDETERMINISTIC = 4
};

enum { /* cudnnBackendDescriptorType_t */
    DNN_CONVOLUTION = 1,
    DNN_ENGINE = 2,
    DNN_ENGINECFG = 3,
    DNN_ENGINEHEUR = 4,
    DNN_PLAN = 5,
    DNN_CONV_FORWARD = 10,
    DNN_CONV_FILTER = 11,
    DNN_CONV_DATA = 12,
    DNN_GRAPH = 15,
    DNN_PACK = 16,
    DNN_TENSOR = 17
};

enum { /* cudnnBackendAttributeType_t */
    DNN_T_HANDLE = 0,
    DNN_T_DATA_TYPE = 1,
    DNN_T_INT64 = 3,
    DNN_T_FLOAT = 4,
    DNN_T_DOUBLE = 5,
    DNN_T_POINTER = 6,
    DNN_T_CONVOLUTION_MODE = 7,
    DNN_T_HEUR_MODE = 8,
    DNN_T_NOTE = 11,
    DNN_T_DESCRIPTOR = 15
};

enum { /* cudnnBackendAttributeName_t */
    DNN_A_CONV_COMPUTE = 100,
    DNN_A_CONV_MODE = 101,
    DNN_A_CONV_DILATIONS = 102,
    DNN_A_CONV_STRIDES = 103,
    DNN_A_CONV_POST_PADDINGS = 104,
    DNN_A_CONV_PRE_PADDINGS = 105,
    DNN_A_CONV_DIMS = 106,
    DNN_A_HEUR_MODE = 200,
    DNN_A_HEUR_GRAPH = 201,
    DNN_A_HEUR_RESULTS = 202,
    DNN_A_CONFIG_ENGINE = 300,
    DNN_A_PLAN_HANDLE = 400,
    DNN_A_PLAN_CONFIG = 401,
    DNN_A_PLAN_WORKSPACE = 402,
    DNN_A_FORWARD = 700, /* an operation's alpha; followed by beta, the convolution, w, x, y */
    DNN_A_DATA = 706,    /* ... w, dx, dy */
    DNN_A_FILTER = 712,  /* ... dw, x, dy */
    DNN_A_GRAPH_HANDLE = 800,
    DNN_A_GRAPH_OPS = 801,
    DNN_A_TENSOR_ALIGNMENT = 900,
    DNN_A_TENSOR_TYPE = 901,
    DNN_A_TENSOR_DIMS = 902,
    DNN_A_TENSOR_STRIDES = 903,
    DNN_A_TENSOR_ID = 906,
    DNN_A_PACK_IDS = 1000,
    DNN_A_PACK_POINTERS = 1001,
    DNN_A_PACK_WORKSPACE = 1003,
    DNN_A_ENGINE_NOTES = 1303
};

/* Name and arguments. All return a cudnnStatus_t; 0: success. */
#define DNN_FUNCTIONS(M)                                                                                      \
    M(Create, (void **handle))                                                                                \
    M(SetStream, (void *handle, void *stream))                                                                \
    M(BackendCreateDescriptor, (int type, void **desc))                                                       \
    M(BackendDestroyDescriptor, (void *desc))                                                                 \
    M(BackendFinalize, (void *desc))                                                                          \
    M(BackendSetAttribute, (void *desc, int name, int type, int64_t count, const void *values))               \
    M(BackendGetAttribute, (void *desc, int name, int type, int64_t most, int64_t *count, void *values))      \
    M(BackendExecute, (void *handle, void *plan, void *pack))

#endif
