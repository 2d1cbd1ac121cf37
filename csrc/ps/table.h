/* Tables of an embedding in a parameter server: many rows of float32, of which each push and each lookup names some.

   A row exists from its first update on. Before that it is what its number and the seed say, so a table of more rows
   than the memory has costs what its updated rows cost. It lies in memory that all workers share, or in a file that
   they map, whose pages in the system's cache are then the working set.

   A push is sorted by row; gradients of the same row are added in the order in which they stand. Orders of updates are
   those of the store's mode (ps.h): a round adds, row by row, the workers' sums by rank; an asynchronous push is one
   step for each of its rows, under the row's lock. A killed worker's push is finished by who finds it, as in
   stripe.c. */
#ifndef PD_PS_TABLE_H
#define PD_PS_TABLE_H

#include "ps/ps.h"

typedef struct pd_table pd_table; /* lives as long as the store */

typedef enum pd_table_rule {
    PD_TABLE_SGD,
    PD_TABLE_ADAGRAD,
    PD_TABLE_ADAM,
    PD_TABLE_FTRL,
    PD_TABLE_RULES
} pd_table_rule;
typedef enum pd_table_start { PD_TABLE_ZEROS, PD_TABLE_UNIFORM, PD_TABLE_NORMAL } pd_table_start;

/* Equal on all workers. numbers: sgd weight decay; adagrad (one sum of squares for a row) eps, weight decay; adam
   beta1, beta2, eps, weight decay, only for rows that are pushed; ftrl lamda1, beta, weight decay. */
typedef struct pd_table_options {
    int64_t rows, most; /* most: ids in a push */
    int32_t dim, rule, start;
    double numbers[4], scale; /* of what rows start with: uniform in [-scale, scale], or normal with this deviation */
    uint64_t seed;
} pd_table_options;

/* Collective, like pd_ps_add. path NULL: in memory. lr: rank 0's. A file that exists must be of the same table. */
pd_status pd_table_open(pd_ps *ps, const char *name, const pd_table_options *o, double lr, const char *path,
                        pd_table **out);
/* Errors: PD_E_INDEX (an id is out of range), PD_E_VALUE, PD_E_OS (the disk is full), those of waits. */
pd_status pd_table_lookup(pd_table *t, int64_t n, const int64_t *ids, float *out);
pd_status pd_table_push(pd_table *t, int64_t n, const int64_t *ids, const float *grads, double rescale);
pd_status pd_table_prefetch(pd_table *t, int64_t n, const int64_t *ids); /* reads pages of a file ahead */
int64_t pd_table_made(const pd_table *t);                                 /* rows that exist */
uint64_t pd_table_version(const pd_table *t);                             /* pushes, or rounds, that are applied */
void pd_table_set_lr(pd_table *t, double lr);
double pd_table_lr(const pd_table *t);
/* Copy all rows that exist and their states, `per_row` numbers each, or write them; while nobody pushes. */
int pd_table_per_row(const pd_table *t);
pd_status pd_table_export(pd_table *t, int64_t *ids, float *rows, float *states); /* as many as pd_table_made says */
pd_status pd_table_import(pd_table *t, int64_t n, const int64_t *ids, const float *rows, const float *states,
                          uint64_t version);

#endif
