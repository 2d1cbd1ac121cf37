/* Products of integer matrices: sums wrap around, as in C's unsigned arithmetic. */
#include <string.h>

#include "base/threads.h"
#include "kernels/portable/portable.h"

typedef struct { const pd_gemm *s; const char *a, *b; char *c; } whole_job;

#define ROWS(T)                                                                                              \
    static void rows_##T(void *ctx, int64_t begin, int64_t end) {                                            \
        const whole_job *j = ctx;                                                                            \
        const pd_gemm *s = j->s;                                                                             \
        for (int64_t row = begin; row < end; row++) {                                                        \
            int64_t batch = row / s->M, i = row % s->M;                                                      \
            const T *a = (const T *)j->a + batch * s->a_batch + i * s->a_row;                                \
            const T *b = (const T *)j->b + batch * s->b_batch;                                               \
            T *c = (T *)j->c + batch * s->c_batch + i * s->c_row;                                            \
            memset(c, 0, (size_t)s->N * sizeof(T));                                                          \
            for (int64_t k = 0; k < s->K; k++)                                                               \
                for (int64_t n = 0; n < s->N; n++)                                                           \
                    c[n] = (T)(c[n] + (uint64_t)a[k * s->a_col] * b[k * s->b_row + n * s->b_col]);           \
        }                                                                                                    \
    }
ROWS(uint8_t)
ROWS(uint16_t)
ROWS(uint32_t)
ROWS(uint64_t)

void pd_portable_gemm_whole(const pd_gemm *s, const void *a, const void *b, void *c) {
    whole_job job = {s, a, b, c};
    int64_t work = s->K * s->N;
    size_t size = pd_dtype_size(s->t);
    pd_parallel(s->batch * s->M, (1 << 15) / (work > 0 ? work : 1) + 1,
                size == 1   ? rows_uint8_t
                : size == 2 ? rows_uint16_t
                : size == 4 ? rows_uint32_t
                            : rows_uint64_t,
                &job);
}
