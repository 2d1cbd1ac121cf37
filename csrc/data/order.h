/* Random orders that are computed number by number: nothing is filled or held, whatever the length.

   The order of n numbers is a Feistel network over the least power of two that holds them, keyed by (seed, epoch); a
   number outside [0, n) goes through the network again. With a window of w < n, element p is one of the first p + w, as
   from a buffer of w elements: the numbers are ordered within blocks of half of w, and then within blocks of the other
   half, which lie across the borders of the first ones. */
#ifndef PD_DATA_ORDER_H
#define PD_DATA_ORDER_H

#include "data/numbers.h"

/* to[i] = the element at place (number i) of the order. Places are in [0, n); n INT64_MAX: an endless sequence, which
   needs a window. window >= n: all of it is one block. */
void pd_order(int64_t n, int64_t window, uint64_t seed, uint64_t epoch, const pd_numbers *places, int64_t *to);

/* The order of the records of several files of which `cycle` are read in turn, one record of each, as tf.data has it: a
   file without more records lets its turn pass, and in the next turn another file follows. to[i] = the number of the
   i-th record, counted through all files. Fails with PD_E_MEMORY. */
pd_status pd_interleave(const int64_t *counts, int64_t files, int64_t cycle, int64_t *to);

#endif
