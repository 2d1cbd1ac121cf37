/* Schedules: which rank takes which parts from which rank, step by step, until all have the whole sum. They are pure
   numbers and know neither memory nor waiting. steps.c runs them for groups with order="fast", since they do not add in
   the tree's order.

   Every rank has a working copy of the data, cut into parts. In a step each rank combines parts of another rank's copy
   with its own, or replaces its own by them; then a gate follows. In a step no rank takes a part that its owner
   changes. In two steps in a row no rank takes the same parts of the same rank, since over messages the second may
   arrive early.

     ring     2(W - 1) steps of 1/W of the bytes, always from the left neighbour
     halving  2 log2 W steps of 1/2, 1/4, ... ..., 1/4, 1/2 of the bytes, from ranks that differ in one bit; ranks
              beyond the largest power of two give all their data before and take the result after: two more steps */
#ifndef PD_COMM_SCHEDULE_H
#define PD_COMM_SCHEDULE_H

#include <stdbool.h>

typedef struct pd_step {
    int from;   /* a rank; -1: this rank only waits */
    int lo, hi; /* parts [lo, hi) */
    bool add;   /* combine them with our own; else replace ours */
} pd_step;

typedef struct pd_schedule {
    int (*parts)(int size); /* how many parts, for size >= 2 ranks */
    int (*steps)(int size);
    pd_step (*step)(int size, int rank, int s);
} pd_schedule;

extern const pd_schedule pd_schedule_ring, pd_schedule_halving;

#endif
