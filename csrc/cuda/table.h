/* The library's functions for the table, in the files that are named after them. */
#ifndef PD_CUDA_TABLE_H
#define PD_CUDA_TABLE_H

#include "cuda/cuda.h"

#define PD_CUDA_ENTRIES(M) \
    M(unary) M(unary_grad) M(binary) M(binary_grad) M(compare) M(ternary) M(pointwise) M(complex_part) M(where) \
    M(copy) M(fill) M(range) M(fold) M(arg) M(topk) M(topk_scratch) M(sort) M(sort_scratch) M(cumsum) M(softmax) \
    M(softmax_grad) M(labels) M(nll) M(nll_grad) M(xent) M(xent_grad) M(dropout) M(uniform) M(normal) \
    M(bernoulli) M(randint) M(randperm) M(places) M(take) M(put) M(put_add) M(batch_norm_train) M(batch_norm_eval) \
    M(batch_norm_grad) M(row_norm) M(row_norm_grad) M(row_norm_scratch) M(attention) M(attention_grad) \
    M(attention_scratch) M(cell) M(cell_grad) M(max_pool) M(max_pool_grad) M(max_pool_take) M(max_pool_index) \
    M(avg_pool) M(avg_pool_grad) M(resample) M(sgd) M(adam) M(adadelta) M(rmsprop) M(adagrad) M(moments) \
    M(adamax) M(asgd) M(rprop) M(lion) M(sum_squares) M(scale) M(gemm) M(gemm_scratch) M(conv) M(unscale)

template <class F> struct pointed_to;
template <class F> struct pointed_to<F *> { typedef F type; };
#define PD_CUDA_DECLARE(name) extern pointed_to<decltype(pd_kernels::name)>::type pd_cuda_##name;
PD_CUDA_ENTRIES(PD_CUDA_DECLARE)

#endif
