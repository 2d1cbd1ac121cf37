/* Schedules: which rank takes which parts from whom, step by step, until everybody has the whole sum. Pure numbers,
   which know neither memory nor waiting; steps.c runs them for groups with order="fast", since the order of their sums
   is not the tree's.

   Every rank has a working copy of the data, cut into parts. In step s all ranks at once combine parts of another's
   copy into their own, or replace theirs by them; a gate follows. No rank takes in a step what its owner changes in it,
   nor in two steps in a row the same parts of the same rank, since over messages the second may arrive early.

     ring     2(W - 1) steps of 1/W of the bytes, always from the left neighbour
     halving  2 log2 W steps of 1/2, 1/4, ... ..., 1/4, 1/2 of the bytes, from ranks that differ in one bit; ranks
              beyond the largest power of two give all they have before, and take the result after: two steps more */
#ifndef PD_COMM_SCHEDULE_H
#define PD_COMM_SCHEDULE_H

#include <stdbool.h>

typedef struct pd_step {
    int from;   /* a rank; -1: this one only waits */
    int lo, hi; /* parts [lo, hi) */
    bool add;   /* combined with our own; else they take its place */
} pd_step;

typedef struct pd_schedule {
    int (*parts)(int size); /* of size >= 2 ranks */
    int (*steps)(int size);
    pd_step (*step)(int size, int rank, int s);
} pd_schedule;

extern const pd_schedule pd_schedule_ring, pd_schedule_halving;

#endif
