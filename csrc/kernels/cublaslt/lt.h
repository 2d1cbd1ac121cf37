/* Our own declarations of what we use of cuBLASLt. It is opened at run time, and its header is not part of the toolkit
   that pip installs. Values and sizes are those of cublasLt.h of CUDA 12 and 13; tests/engine/test_cuda_libraries.py
   compares them if the header is there. Matrices are stored by columns. */
#ifndef PD_KERNELS_CUBLASLT_LT_H
#define PD_KERNELS_CUBLASLT_LT_H

#include <stddef.h>
#include <stdint.h>

enum { LT_R_32F = 0, LT_R_64F = 1, LT_R_16F = 2, LT_R_16BF = 14 };                          /* cudaDataType */
enum { LT_COMPUTE_32F = 68, LT_COMPUTE_32F_FAST_TF32 = 77, LT_COMPUTE_64F = 70 };           /* cublasComputeType_t */
enum { LT_OP_N = 0, LT_OP_T = 1 };                                                          /* cublasOperation_t */
enum { LT_LAYOUT_BATCH_COUNT = 5, LT_LAYOUT_STRIDED_BATCH_OFFSET = 6 };
enum { LT_DESC_TRANSA = 3, LT_DESC_TRANSB = 4, LT_DESC_EPILOGUE = 7, LT_DESC_BIAS_POINTER = 8 };
enum { LT_EPILOGUE_DEFAULT = 1, LT_EPILOGUE_BIAS = 4, LT_EPILOGUE_BGRADB = 512 };
enum { LT_PREF_MAX_WORKSPACE_BYTES = 1, LT_PREF_REDUCTION_SCHEME_MASK = 3 };
enum { LT_PREF_MIN_ALIGNMENT_A_BYTES = 5 };                                                 /* followed by B, C, D */
enum { LT_REDUCTION_COMPUTE_TYPE = 2 };                                             /* cublasLtReductionScheme_t */

typedef struct lt_algo { uint64_t data[8]; } lt_algo;
typedef struct lt_heuristic {
    lt_algo algo;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} lt_heuristic;

/* Name and arguments. All return a cublasStatus_t; 0: success. */
#define LT_FUNCTIONS(M)                                                                                              \
    M(Create, (void **handle))                                                                                       \
    M(MatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld))                       \
    M(MatrixLayoutDestroy, (void *layout))                                                                           \
    M(MatrixLayoutSetAttribute, (void *layout, int attribute, const void *value, size_t bytes))                      \
    M(MatmulDescCreate, (void **desc, int compute, int scale))                                                       \
    M(MatmulDescDestroy, (void *desc))                                                                               \
    M(MatmulDescSetAttribute, (void *desc, int attribute, const void *value, size_t bytes))                          \
    M(MatmulPreferenceCreate, (void **preference))                                                                   \
    M(MatmulPreferenceDestroy, (void *preference))                                                                   \
    M(MatmulPreferenceSetAttribute, (void *preference, int attribute, const void *value, size_t bytes))              \
    M(MatmulAlgoGetHeuristic, (void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,       \
                               int wanted, lt_heuristic *out, int *found))                                           \
    M(Matmul, (void *handle, void *desc, const void *alpha, const void *A, void *a, const void *B, void *b,          \
               const void *beta, const void *C, void *c, void *D, void *d, const lt_algo *algo, void *workspace,     \
               size_t bytes, void *stream))

#endif
