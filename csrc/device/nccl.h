/* NCCL's library, opened at first use. _C is not linked with CUDA, so this header declares what it uses. The
   declarations fit every NCCL from 2.27 on, which fills in what an older caller's configuration lacks. Functions return
   NCCL's result; PD_NCCL_OK: no error.

   nvidia.h says where it is searched; PYDIST_NCCL comes first, the wheels are nvidia-nccl-cu13 and -cu12. It is never
   closed, since it has threads of its own. */
#ifndef PD_DEVICE_NCCL_H
#define PD_DEVICE_NCCL_H

#include "base/status.h"

#define PD_NCCL_OLDEST 22700 /* 2.27: 10000 major + 100 minor + patch */

enum { PD_NCCL_OK, PD_NCCL_IN_PROGRESS = 7 };
enum { PD_NCCL_SUM, PD_NCCL_PRODUCT, PD_NCCL_MAX, PD_NCCL_MIN };
enum {
    PD_NCCL_I8, PD_NCCL_U8, PD_NCCL_I32, PD_NCCL_I64 = 4, PD_NCCL_F16 = 6, PD_NCCL_F32, PD_NCCL_F64, PD_NCCL_BF16
};
#define PD_NCCL_HOST_SCALAR 1 /* a PreMulSum's factor is read when the PreMulSum is made */

typedef struct pd_nccl_id { char bytes[128]; } pd_nccl_id;

typedef struct pd_nccl_config { /* ncclConfig_t as of 2.18 */
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster, min_ctas, max_ctas;
    const char *net;
    int split_share;
} pd_nccl_config;
#define PD_NCCL_NONBLOCKING                                                                                        \
    ((pd_nccl_config){.size = sizeof(pd_nccl_config), .magic = 0xcafebeef, .version = 21800, .blocking = 0,         \
                      .cga_cluster = INT32_MIN, .min_ctas = INT32_MIN, .max_ctas = INT32_MIN, .split_share = INT32_MIN})

#define PD_NCCL_FUNCTIONS(F)                                                                                      \
    F(int, GetVersion, (int *version))                                                                            \
    F(int, GetUniqueId, (pd_nccl_id *out))                                                                        \
    F(const char *, GetErrorString, (int result))                                                                 \
    F(const char *, GetLastError, (void *comm))                                                                   \
    F(int, CommInitRankConfig, (void **comm, int ranks, pd_nccl_id id, int rank, pd_nccl_config *config))         \
    F(int, CommGetAsyncError, (void *comm, int *result))                                                          \
    F(int, CommFinalize, (void *comm))                                                                            \
    F(int, CommDestroy, (void *comm))                                                                             \
    F(int, CommAbort, (void *comm))                                                                               \
    F(int, MemAlloc, (void **out, size_t bytes))                                                                  \
    F(int, MemFree, (void *p))                                                                                    \
    F(int, CommRegister, (void *comm, void *p, size_t bytes, void **handle))                                      \
    F(int, CommDeregister, (void *comm, void *handle))                                                            \
    F(int, GroupStart, (void))                                                                                    \
    F(int, GroupEnd, (void))                                                                                      \
    F(int, RedOpCreatePreMulSum, (int *op, void *scalar, int dtype, int residence, void *comm))                   \
    F(int, RedOpDestroy, (int op, void *comm))                                                                    \
    F(int, AllReduce, (const void *in, void *out, size_t n, int dtype, int op, void *comm, void *stream))         \
    F(int, Reduce, (const void *in, void *out, size_t n, int dtype, int op, int root, void *comm, void *stream))  \
    F(int, ReduceScatter, (const void *in, void *out, size_t n, int dtype, int op, void *comm, void *stream))     \
    F(int, Broadcast, (const void *in, void *out, size_t n, int dtype, int root, void *comm, void *stream))       \
    F(int, AllGather, (const void *in, void *out, size_t n, int dtype, void *comm, void *stream))                 \
    F(int, Send, (const void *in, size_t n, int dtype, int peer, void *comm, void *stream))                       \
    F(int, Recv, (void *out, size_t n, int dtype, int peer, void *comm, void *stream))

typedef struct pd_nccl_library {
#define PD_NCCL_FUNCTION(result, name, args) result(*name) args;
    PD_NCCL_FUNCTIONS(PD_NCCL_FUNCTION)
#undef PD_NCCL_FUNCTION
} pd_nccl_library;

/* PD_E_RUNTIME: "<op>: NCCL: ...", with what was tried and how to install it. */
pd_status pd_nccl_open(const char *op, const pd_nccl_library **out);
int pd_nccl_version(void);        /* of the open library: 22809; 0: none is open */
const char *pd_nccl_where(void);  /* the file that it came from; "": none is open */
/* Makes and ends a communicator of one rank on the calling thread's device. PD_E_DIST quotes NCCL's text. */
pd_status pd_nccl_probe(const char *op);
/* PD_OK, or PD_E_DIST "<op>: NCCL: <what result means> (NCCL's last message)". comm: NULL if there is none. */
pd_status pd_nccl_result(const char *op, int result, void *comm);

#endif
