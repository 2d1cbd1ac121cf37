/* Attention over a sequence whose rows are spread over the ranks of a group (Liu et al., arXiv 2310.01889). Each rank
   has its rows of query, key and value, and gets its rows of the result. Nothing of the size of all pairs is held.

   A rank computes attention block by block: with its own keys first, then with those of rank - 1, rank - 2 and so on,
   round the ring. It merges results by their log-sum-exp, and keeps that for the gradient. This order is fixed, so the
   bits depend neither on the transport nor on time. Keys come in one of two ways, with equal bits of the result:

       gathered    one all-gather of all keys and values; their gradients end in one reduce-scatter, in its order
       rotated     a block at a time goes to the next rank; its gradient travels behind it and is summed on the way

   Causal: the sequence is cut into 2 * size chunks, the first ones longer by one row if it cannot be cut evenly. Rank r
   has the chunks r and 2 * size - 1 - r, in this order. Then every rank has as many pairs in each block, and each block
   needs one call of the kernel (kernels/kernels.h): with causality among own rows, else without, for all queries and
   the first chunk of keys (of a rank before), or the second chunk of queries and all keys (of a rank behind). Not
   causal: ranks have any number of rows. */
#ifndef PD_PARALLEL_RING_ATTENTION_H
#define PD_PARALLEL_RING_ATTENTION_H

#include "comm/group/group.h"
#include "tensor/tensor.h"

typedef struct pd_ring {
    pd_group *group;
    bool causal, rotated;
    double scale; /* of the scores */
    uint64_t site;
} pd_ring;

int64_t pd_ring_chunk(int64_t length, int size, int chunk); /* rows of one of the 2 * size chunks */

/* All ranks call it together. in: query [B, H, T, d], key [B, Hkv, S, d], value [B, Hkv, S, dv] on the host, whose last
   dimension is dense; Hkv divides H. keys[r]: gets the number of rank r's keys. *out [new]: [B, H, T, dv], whose memory
   is ordered [B, T, H, dv]; *lse [new]: [B, H, T]. PD_E_SHAPE, PD_E_DTYPE, PD_E_VALUE: the arguments are wrong, and the
   group stays as it is; PD_E_MISMATCH: another rank's are, or differ. */
pd_status pd_ring_attention(const pd_ring *r, pd_tensor *const in[3], int64_t *keys, pd_tensor **out,
                            pd_tensor **lse);

/* of: query, key, value, out, lse and out's gradient, whose last dimension is dense, too; keys as above. grads: [new]
   of query, key and value. */
pd_status pd_ring_attention_grad(const pd_ring *r, pd_tensor *const of[6], const int64_t *keys,
                                 pd_tensor *grads[3]);

#endif
