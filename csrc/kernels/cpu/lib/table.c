/* The table of this instruction set. */
#include "kernels/cpu/lib/table.h"

#include "kernels/cpu/lib/isa.h"

/* Declarations of the same signature as the table's members. */
#define ENTRY(name) extern __typeof__(*((pd_kernels *)0)->name) PD_SUFFIXED(pd_cpu_##name);
#define ENTRIES(M) \
    M(unary) M(unary_grad) M(binary) M(binary_grad) M(compare) M(ternary) M(pointwise) M(complex_part) M(where) \
    M(copy) M(fill) M(range) M(fold) M(arg) M(sort) M(sort_scratch) M(cumsum) M(topk) M(topk_scratch) M(softmax) \
    M(softmax_grad) \
    M(labels) M(nll) M(nll_grad) M(xent) M(xent_grad) M(dropout) M(uniform) M(normal) M(randint) M(bernoulli) \
    M(randperm) M(places) M(take) M(put) M(put_add) M(batch_norm_train) M(batch_norm_eval) M(batch_norm_grad) \
    M(cell) M(cell_grad) M(attention) M(attention_grad) M(attention_scratch) M(row_norm) M(row_norm_grad) \
    M(row_norm_scratch) M(group_norm) M(group_norm_grad) M(group_norm_scratch) \
    M(max_pool) M(max_pool_grad) M(max_pool_take) M(max_pool_index) M(avg_pool) M(avg_pool_grad) \
    M(resample) M(sgd) M(adam) M(adadelta) M(rmsprop) M(adagrad) M(moments) M(adamax) M(asgd) M(rprop) M(lion) \
    M(sum_squares) M(scale) M(gemm) M(gemm_scratch)
ENTRIES(ENTRY)

#define SET(name) .name = PD_SUFFIXED(pd_cpu_##name),
const pd_kernels PD_SUFFIXED(pd_cpu_table) = {ENTRIES(SET)};
